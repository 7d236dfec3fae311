// See launch_config.h.
#include "cli/launch_config.h"
#include "base/file.h"
#include "data/loader.h"
#include "train/config_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS_MOST = 1024, SAMPLES_SHOWN = 64 };

// ---- the words

static int add_setting(struct launch_config *c, const char *word, struct err *err) {
    if (c->setting_count == SETTINGS_MOST)
        return err_set(err, ERR_USAGE, "train: more than %d settings", SETTINGS_MOST);
    c->settings[c->setting_count] = strdup(word);
    if (!c->settings[c->setting_count]) return err_set(err, ERR_MEMORY, "no memory for settings");
    c->setting_count++;
    return 0;
}

// As weft train reads them.
static int read_words(struct launch_config *c, char **words, int count, struct err *err) {
    for (int i = 1; i < count; i++) {
        char *word = words[i], trace[CONFIG_TEXT_BYTES + 16];
        bool has_value = i + 1 < count;
        if (strcmp(word, "--json") == 0 && c->passed_count < LAUNCH_WORDS) {
            c->passed[c->passed_count++] = word;
        } else if (strcmp(word, "--hardware") == 0 && has_value &&
                   c->passed_count + 1 < LAUNCH_WORDS) {
            c->passed[c->passed_count++] = word;
            c->passed[c->passed_count++] = words[++i];
        } else if (strcmp(word, "--trace") == 0 && has_value) {
            snprintf(trace, sizeof trace, "train.trace=%s", words[++i]);
            if (add_setting(c, trace, err) != 0) return -1;
        } else if (word[0] == '-' || (c->path && !strchr(word, '='))) {
            return err_set(err, ERR_USAGE, "train: unexpected \"%.200s\"; weft train --help", word);
        } else if (!strchr(word, '=')) {
            c->path = word;
        } else if (add_setting(c, word, err) != 0) {
            return -1;
        }
    }
    if (!c->path)
        return err_set(err, ERR_USAGE, "train: a configuration is needed; weft train --help");
    return 0;
}

// ---- resolving

static int resolve(const struct launch_config *c, int ranks, struct train_config *out, int *unit,
                   struct err *err) {
    struct layout layout;
    if (config_load(out, c->path, c->settings, c->setting_count, err) != 0 ||
        config_layout(out, ranks, &layout, err) != 0)
        return -1;
    *unit = ranks / layout.mesh.size[MESH_DP];
    return 0;
}

static int print(struct launch_config *c, struct err *err) {
    c->text.size = 0;
    if (config_print(c->resolved, false, &c->text) == 0) return 0;
    return err_set(err, ERR_MEMORY, "no memory for the configuration");
}

int launch_config_open(struct launch_config *c, char **words, int count, int ranks,
                       struct err *err) {
    c->settings = calloc(SETTINGS_MOST, sizeof *c->settings);
    c->resolved = calloc(1, sizeof *c->resolved);
    if (!c->settings || !c->resolved)
        return err_set(err, ERR_MEMORY, "no memory for the configuration");
    if (read_words(c, words, count, err) != 0 || resolve(c, ranks, c->resolved, &c->unit, err) != 0)
        return -1;
    return file_join(c->copy, sizeof c->copy, c->resolved->folder, "launch/config.yaml", err);
}

void launch_config_close(struct launch_config *c) {
    for (int i = 0; i < c->setting_count; i++) free(c->settings[i]);
    free(c->settings);
    free(c->resolved);
    text_free(&c->text);
}

int launch_config_keep(struct launch_config *c, struct err *err) {
    if (print(c, err) != 0) return -1;
    return file_replace(c->copy, c->text.data, c->text.size, err);
}

// ---- comparing

// Faults are injected for trials and are no part of the run; a micro-batch that nobody gave follows
// from the number of ranks.
static bool counts(const struct train_config *now, int option) {
    if (strncmp(config_options[option].key, "fault.", 6) == 0) return false;
    return option != CONFIG_OPTION(micro_batch) || config_is_set(now, option);
}

static int compare(const struct train_config *then, const struct train_config *now,
                   struct text *out, struct err *err) {
    int count = 0, failed = 0;
    for (int i = 0; i < config_option_count && !failed; i++) {
        struct text a = {0}, b = {0};
        const struct option *o = &config_options[i];
        if (!counts(now, i)) continue;
        failed = config_write_value(then, o, &a) != 0 || config_write_value(now, o, &b) != 0;
        if (!failed && strcmp(a.data ? a.data : "", b.data ? b.data : "") != 0) {
            count++;
            failed = text_printf(out, "%s: %s, now %s\n", o->key, a.data ? a.data : "",
                                 b.data ? b.data : "");
        }
        text_free(&a);
        text_free(&b);
    }
    return failed ? err_set(err, ERR_MEMORY, "no memory for the differences") : count;
}

int launch_config_compare(struct launch_config *c, struct text *changes, struct err *err) {
    char journal[4096];
    if (file_join(journal, sizeof journal, c->resolved->folder, "metrics.jsonl", err) != 0)
        return -1;
    if (!file_exists(c->copy) || !file_exists(journal)) return 0;
    struct train_config *then = calloc(1, sizeof *then);
    if (!then) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    int result = config_load(then, c->copy, NULL, 0, err);
    if (result == 0) result = compare(then, c->resolved, changes, err);
    free(then);
    return result;
}

int launch_config_reload(struct launch_config *c, int ranks, char *const *words, int count,
                         struct text *changes, struct err *err) {
    int before = c->setting_count, unit = 0, result = 0;
    struct train_config *now = calloc(1, sizeof *now);
    if (!now) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    for (int i = 0; i < count && result == 0; i++) result = add_setting(c, words[i], err);
    if (result == 0) result = resolve(c, ranks, now, &unit, err);
    if (result == 0 && strcmp(now->folder, c->resolved->folder) != 0)
        result =
            err_set(err, ERR_USAGE, "reload: train.folder cannot change while the run goes on");
    if (result == 0 && unit != c->unit)
        result = err_set(err, ERR_USAGE,
                         "reload: the layout of a replica cannot change while the run goes on (%d "
                         "ranks, now %d); stop the run and launch it anew with --accept-changes",
                         c->unit, unit);
    if (result == 0 && compare(c->resolved, now, changes, err) < 0) result = -1;
    if (result == 0) {
        struct train_config *old = c->resolved;
        c->resolved = now;
        now = old;
        result = launch_config_keep(c, err);
    }
    while (result != 0 && c->setting_count > before) free(c->settings[--c->setting_count]);
    free(now);
    return result;
}

void launch_config_changed(struct launch_config *c, int ranks, struct text *changes) {
    struct err err = {0};
    int unit;
    struct train_config *now = calloc(1, sizeof *now);
    if (!now) return;
    if (resolve(c, ranks, now, &unit, &err) != 0 || compare(c->resolved, now, changes, &err) < 0)
        text_printf(changes, "%s\n", err.text);
    free(now);
}

bool launch_config_fits(const struct launch_config *c, int ranks, int replicas) {
    struct err err = {0};
    struct layout layout;
    struct train_config *other = malloc(sizeof *other);
    if (!other) return false;
    memcpy(other, c->resolved, sizeof *other);
    other->dp = replicas;
    // As the ranks will read it: the micro-batch stands in their file.
    other->origin[CONFIG_OPTION(micro_batch)].source = SOURCE_FILE;
    bool fits = config_layout(other, ranks, &layout, &err) == 0;
    free(other);
    return fits;
}

// ---- samples

// Any loader of the same sets, seed and order knows them; this one is as small as can be.
int launch_config_samples(const struct launch_config *c, int64_t step, struct text *out,
                          struct err *err) {
    struct train_schedule schedule;
    struct loader_options options;
    struct config_paths *paths = malloc(sizeof *paths);
    if (!paths) return err_set(err, ERR_MEMORY, "no memory for the paths of the data");
    config_schedule(c->resolved, &schedule);
    int64_t first = schedule_samples(&schedule, step - 1);
    int batch = schedule_batch(&schedule, first);
    void *memory = NULL;
    struct loader *loader = NULL;
    if (config_loader(c->resolved, false, batch, paths, &options, err) == 0) {
        options.rows = options.micro_batches = options.readers = options.steps_ahead = 1;
        options.rank = 0;
        options.ranks = 1;
        memory = aligned_alloc(64, (loader_bytes(&options) + 63) / 64 * 64);
        loader = memory ? loader_open(&options, memory, err) : NULL;
        if (!memory) err_set(err, ERR_MEMORY, "no memory for a sample");
    }
    int result = loader ? 0 : -1;
    for (int i = 0; i < batch && i < SAMPLES_SHOWN && result == 0; i++) {
        struct loader_origin origin;
        result = loader_origin(loader, (uint64_t)(first + i), &origin, err);
        if (result == 0)
            result = text_printf(out, "%s%llu", i ? ", " : "", (unsigned long long)origin.id);
    }
    if (result == 0 && batch > SAMPLES_SHOWN)
        text_printf(out, " and %d more", batch - SAMPLES_SHOWN);
    if (loader) loader_close(loader);
    free(memory);
    free(paths);
    return result;
}
