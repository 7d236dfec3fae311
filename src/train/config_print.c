// A configuration as YAML, its digest, what differs between two of them, and the documentation of
// the table. See config.h.
#include "base/hash.h"
#include "train/config_table.h"
#include <stdio.h>
#include <string.h>

// Rotary keys mean nothing to learned positions, nor those of experts to a dense model.
static bool is_used(const struct train_config *config, const struct option *o) {
    if (config->model.learned_positions && strncmp(o->key, "model.rope.", 11) == 0) return false;
    return config->model.experts > 0 || !config_needs_experts(o);
}

// Prints the group names of `key` that the line before did not have; returns the depth.
static int open_groups(const char *key, const char *before, struct text *out, const char **name) {
    int depth = 0;
    bool same = before != NULL;
    for (const char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1, depth++) {
        size_t length = (size_t)(dot - key) + 1;
        same = same && strncmp(key, before, length) == 0;
        if (same)
            before += length;
        else if (text_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)length - 1, key) != 0)
            return -1;
    }
    *name = key;
    return depth;
}

int config_print(const struct train_config *config, bool origins, struct text *out) {
    const char *before = NULL;
    for (int i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];
        const char *name;
        char place[1200];
        if (!is_used(config, o)) continue;
        int depth = open_groups(o->key, before, out, &name);
        before = o->key;
        size_t begin = out->size;
        if (depth < 0 || text_printf(out, "%*s%s: ", 2 * depth, "", name) != 0 ||
            config_write_value(config, o, out) != 0)
            return -1;
        int width = (int)(out->size - begin);
        if (origins && text_printf(out, "%*s  # %s", width < 40 ? 40 - width : 0, "",
                                   config_place(config, i, place)) != 0)
            return -1;
        if (text_puts(out, "\n") != 0) return -1;
    }
    return 0;
}

uint64_t config_digest(const struct train_config *config) {
    struct hash_stream h;
    hash_begin(&h);
    for (int i = 0; i < config_option_count; i++) {
        struct text value = {0};
        const struct option *o = &config_options[i];
        if (!is_used(config, o)) continue;
        config_write_value(config, o, &value);
        hash_put(&h, o->key, strlen(o->key) + 1);
        if (value.data) hash_put(&h, value.data, value.size + 1);
        text_free(&value);
    }
    return hash_end(&h);
}

int config_differences(const struct train_config *then, const struct train_config *now,
                       bool model_only, struct text *out) {
    int count = 0, failed = 0;
    for (int i = 0; i < config_option_count && !failed; i++) {
        const struct option *o = &config_options[i];
        bool is_shape = strncmp(o->key, "model.", 6) == 0 &&
                        o->offset >= offsetof(struct train_config, windows) &&
                        o->offset != offsetof(struct train_config, model.init_std);
        if ((model_only && !is_shape) || (!is_used(then, o) && !is_used(now, o))) continue;
        struct text a = {0}, b = {0};
        failed = config_write_value(then, o, &a) != 0 || config_write_value(now, o, &b) != 0;
        if (!failed && strcmp(a.data ? a.data : "", b.data ? b.data : "") != 0) {
            count++;
            failed = text_printf(out, "%s: %s in the checkpoint, %s now\n", o->key, a.data, b.data);
        }
        text_free(&a);
        text_free(&b);
    }
    return failed ? -1 : count;
}

static const char *type_name(const struct option *o) {
    static const char *const names[] = {"integer", "integer",       "size",
                                        "number",  "true or false", "text",
                                        "choice",  "list of texts", "numbers"};
    return names[o->type];
}

static int put_range(const struct option *o, struct text *out) {
    if (o->type != OPTION_INT && o->type != OPTION_LONG && o->type != OPTION_REAL) return 0;
    if (o->most >= 2147483647.0) return text_printf(out, ", %g or more", o->least);
    return text_printf(out, ", %.10g to %.10g", o->least, o->most);
}

// "integer (steps), 1 or more" or the choices.
static int put_kind(const struct option *o, bool markdown, struct text *out) {
    if (o->type == OPTION_CHOICE) {
        char name[64];
        for (int i = 0; i < config_choice_count(o); i++)
            if (text_printf(out, "%s%s", i ? ", " : "", config_choice(o, i, name)) != 0) return -1;
        return 0;
    }
    if (text_puts(out, type_name(o)) != 0) return -1;
    if (o->unit && text_printf(out, markdown ? " (%s)" : " in %s", o->unit) != 0) return -1;
    return put_range(o, out);
}

static int document_plain(const struct option *o, struct text *out) {
    if (text_printf(out, "%s\n    %s\n    ", o->key, o->help) != 0 || put_kind(o, false, out) != 0)
        return -1;
    if (o->fallback && o->fallback[0]) return text_printf(out, "; default %s\n", o->fallback);
    return text_puts(out, o->fallback ? "; default none\n" : "\n");
}

static int document_markdown(const struct option *o, const char *before, struct text *out) {
    size_t group = strcspn(o->key, ".");
    if ((!before || strncmp(before, o->key, group + 1) != 0) &&
        text_printf(
            out, "\n## %.*s\n\n| key | values | default | meaning |\n| --- | --- | --- | --- |\n",
            (int)group, o->key) != 0)
        return -1;
    if (text_printf(out, "| `%s` | ", o->key) != 0 || put_kind(o, true, out) != 0) return -1;
    return text_printf(out, " | %s | %s |\n",
                       !o->fallback      ? "follows"
                       : !o->fallback[0] ? "none"
                                         : o->fallback,
                       o->help);
}

int config_document(const char *key, bool markdown, struct text *out, const char **nearest) {
    const char *before = NULL;
    size_t length = key ? strlen(key) : 0;
    int found = 0;
    for (int i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];
        bool chosen = !key || strcmp(o->key, key) == 0 ||
                      (strncmp(o->key, key, length) == 0 && o->key[length] == '.');
        if (!chosen) continue;
        found++;
        if ((markdown ? document_markdown(o, before, out) : document_plain(o, out)) != 0) return -1;
        before = o->key;
    }
    if (found > 0) return 0;
    *nearest = config_nearest(key);
    return 1;
}
