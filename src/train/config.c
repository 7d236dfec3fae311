// Reading a configuration: file and words of the command line become values of the table, then the
// rest follows, then all is checked. See config.h.
#include "train/config.h"
#include "base/yaml.h"
#include "train/config_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What the user wrote for each option, before it is assigned: model.* must wait until the preset is
// known, wherever in the file that stands.
struct written {
    struct config_value value[CONFIG_MAX_OPTIONS]; // text NULL: not written
};

const char *config_place(const struct train_config *config, int option, char out[1200]) {
    struct config_origin from = config->origin[option];
    switch (from.source) {
    case SOURCE_DEFAULT:
        return "default";
    case SOURCE_DERIVED:
        return from.reason;
    case SOURCE_COMMAND_LINE:
        return "command line";
    case SOURCE_FILE:
        break;
    }
    snprintf(out, 1200, "%s: line %d", config->path, from.line);
    return out;
}

static int unknown_key(const char *place, const char *key, struct err *err) {
    const char *nearest = config_nearest(key);
    if (nearest)
        return err_set(err, ERR_USAGE, "%s: unknown key \"%.200s\"; did you mean \"%s\"?", place,
                       key, nearest);
    return err_set(err, ERR_USAGE,
                   "%s: unknown key \"%.200s\"; \"weft config\" lists the keys that there are",
                   place, key);
}

static int take_leaves(struct train_config *config, const struct yaml_leaves *leaves,
                       struct written *written, struct err *err) {
    for (size_t i = 0; i < leaves->count; i++) {
        const struct yaml_leaf *leaf = &leaves->leaf[i];
        int option = config_find(leaf->key);
        if (option < 0) {
            char place[1200];
            snprintf(place, sizeof place, "%s: line %d", config->path, leaf->line);
            return unknown_key(place, leaf->key, err);
        }
        written->value[option] =
            (struct config_value){leaf->text, leaf->is_quoted, leaf->is_list, leaf->is_null};
        config->origin[option] = (struct config_origin){SOURCE_FILE, leaf->line, NULL};
    }
    return 0;
}

// "key=value". Brackets around a list may be written as in the file.
static int take_word(struct train_config *config, char *word, struct written *written,
                     struct err *err) {
    char *equals = strchr(word, '=');
    if (!equals || equals == word)
        return err_set(err, ERR_USAGE,
                       "command line: expected key=value (as in train.steps=100), found \"%.200s\"",
                       word);
    *equals = 0;
    int option = config_find(word);
    if (option < 0) return unknown_key("command line", word, err);
    char *text = equals + 1;
    size_t length = strlen(text);
    bool list = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    if (list) {
        text[length - 1] = 0;
        text++;
    }
    written->value[option] = (struct config_value){text, false, list, false};
    config->origin[option] = (struct config_origin){SOURCE_COMMAND_LINE, 0, NULL};
    return 0;
}

static int assign(struct train_config *config, int option, const struct written *written,
                  struct err *err) {
    char place[1200];
    if (!written->value[option].text && !written->value[option].is_null) return 0;
    if (config_assign(config, &config_options[option], written->value[option], err) == 0) return 0;
    return err_context(err, "%s: %s", config_place(config, option, place),
                       config_options[option].key);
}

static int assign_defaults(struct train_config *config, struct err *err) {
    for (int i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];
        struct config_value value = {.text = o->fallback};
        if (o->fallback && config_assign(config, o, value, err) != 0)
            return err_context(err, "default of %s", o->key);
    }
    return 0;
}

static bool is_base_key(int option) {
    return option == CONFIG_OPTION(preset) || option == CONFIG_OPTION(from) ||
           option == CONFIG_OPTION(model.family);
}

static void derive_int(struct train_config *config, int option, int *field, int value,
                       const char *reason) {
    if (config_is_set(config, option)) return;
    *field = value;
    config->origin[option] = (struct config_origin){SOURCE_DERIVED, 0, reason};
}

// "configs/demo.yaml" -> "demo"
static void stem(const char *path, char *out, size_t bytes) {
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    snprintf(out, bytes, "%.200s", name[0] ? name : "run");
    char *dot = strrchr(out, '.');
    if (dot && dot != out) *dot = 0;
}

static void derive_folders(struct train_config *config) {
    int folder = CONFIG_OPTION(folder), checkpoints = CONFIG_OPTION(checkpoint_folder);
    if (!config_is_set(config, folder)) {
        char name[256];
        stem(config->path, name, sizeof name);
        snprintf(config->folder, sizeof config->folder, "runs/%s", name);
        config->origin[folder] =
            (struct config_origin){SOURCE_DERIVED, 0, "name of the configuration"};
    }
    if (!config_is_set(config, checkpoints)) {
        snprintf(config->checkpoint_folder, sizeof config->checkpoint_folder, "%.1000s/checkpoints",
                 config->folder);
        config->origin[checkpoints] = (struct config_origin){SOURCE_DERIVED, 0, "train.folder"};
    }
}

static int resolve(struct train_config *config, const struct written *written, struct err *err) {
    if (assign_defaults(config, err) != 0) return -1;
    for (int i = 0; i < config_option_count; i++)
        if (is_base_key(i) && assign(config, i, written, err) != 0) return -1;
    if (config_model_base(config, err) != 0) return -1;
    for (int i = 0; i < config_option_count; i++)
        if (assign(config, i, written, err) != 0) return -1;
    if (config_model_finish(config, err) != 0) return -1;
    derive_int(config, CONFIG_OPTION(context), &config->context, config->model.context,
               "model.context");
    derive_int(config, CONFIG_OPTION(micro_batch), &config->micro_batch,
               config_usual_micro_batch(config, config->dp > 0 ? config->dp : 1),
               "train.batch and data.context");
    derive_folders(config);
    return config_cross_check(config, err);
}

static int load(struct train_config *config, const struct yaml_leaves *leaves, char *const *words,
                int word_count, struct err *err) {
    struct written *written = calloc(1, sizeof *written);
    char **copies = calloc((size_t)word_count + 1, sizeof *copies);
    int result = written && copies ? take_leaves(config, leaves, written, err)
                                   : err_set(err, ERR_MEMORY, "no memory for the configuration");
    for (int i = 0; i < word_count && result == 0; i++) {
        copies[i] = strdup(words[i]);
        result = copies[i] ? take_word(config, copies[i], written, err)
                           : err_set(err, ERR_MEMORY, "no memory for the configuration");
    }
    if (result == 0) result = resolve(config, written, err);
    for (int i = 0; copies && i < word_count; i++) free(copies[i]);
    free(copies);
    free(written);
    return result;
}

static void begin(struct train_config *config, const char *path) {
    memset(config, 0, sizeof *config);
    config->replicas = 1;
    snprintf(config->path, sizeof config->path, "%s", path ? path : "");
}

int config_load(struct train_config *config, const char *path, char *const *words, int word_count,
                struct err *err) {
    struct yaml_leaves leaves = {0};
    begin(config, path);
    if (path && yaml_read(path, &leaves, err) != 0) return -1;
    int result = load(config, &leaves, words, word_count, err);
    yaml_free(&leaves);
    return result;
}

int config_load_text(struct train_config *config, const char *text, size_t bytes, const char *name,
                     struct err *err) {
    struct yaml_leaves leaves = {0};
    begin(config, name);
    if (yaml_parse(text, bytes, name, &leaves, err) != 0) return -1;
    int result = load(config, &leaves, NULL, 0, err);
    yaml_free(&leaves);
    return result;
}
