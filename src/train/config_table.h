// The option table itself, for the files of this room that loop over it.
#pragma once
#include "train/config.h"
#include <stddef.h>

enum option_type {
    OPTION_INT,    // int
    OPTION_LONG,   // int64_t
    OPTION_SIZE,   // uint64_t bytes, written with a unit
    OPTION_REAL,   // double
    OPTION_BOOL,   // bool
    OPTION_TEXT,   // char[size]
    OPTION_CHOICE, // an enum (int); `choices` names its values
    OPTION_LIST,   // char[size]: texts separated by commas
    OPTION_NUMBERS // the same, each a number
};

struct option {
    const char *key;
    enum option_type type;
    size_t offset, size;
    const char *fallback; // as written; NULL: follows from others (see help)
    double least, most;   // of numbers
    const char *choices;  // "a|b|c" in the order of the enum
    const char *unit;
    const char *help;
};

extern const struct option config_options[];
extern const int config_option_count;

int config_find(const char *key);                  // place in the table, or -1
int config_find_field(size_t offset);              // by offsetof
const char *config_nearest(const char *key);       // full key that was perhaps meant, or NULL
bool config_needs_experts(const struct option *o); // says something about experts only
int config_choice_count(const struct option *o);
const char *config_choice(const struct option *o, int place, char out[64]);

// Reads `text` into the option's field. `quoted` and `list` say how YAML wrote it. The message has
// neither key nor place.
struct config_value {
    const char *text;
    bool is_quoted, is_list, is_null;
};
int config_assign(struct train_config *config, const struct option *o, struct config_value value,
                  struct err *err);
// The field as it would be written in YAML. -1 when memory is short.
int config_write_value(const struct train_config *config, const struct option *o, struct text *out);

// "file.yaml: line 3" or "command line" and so on, of the value that stands now.
const char *config_place(const struct train_config *config, int option, char out[1200]);

// model.*: the base that preset, from or family give (before the model's own keys are assigned),
// and what follows from the rest afterwards.
int config_model_base(struct train_config *config, struct err *err);
int config_model_finish(struct train_config *config, struct err *err);
// model.window, model.stops and model.dense_layers as text, from the model.
void config_model_lists(struct train_config *config);
// Loads data.tokenizer, if given and not loaded yet, for its vocabulary and fingerprint.
int config_read_tokenizer(struct train_config *config, struct err *err);
// Checks between keys; those of parallel layouts (as far as no world is known) in a file of their
// own.
int config_cross_check(struct train_config *config, struct err *err);
int config_check_parallel(const struct train_config *config, struct err *err);
// Whether the batch, and every batch of the ramp, is micro-batches of `replicas` equal shares.
int config_check_batches(const struct train_config *config, int replicas, struct err *err);
// The largest divisor of a replica's sequences that keeps a micro-batch within 8,192 tokens a rank.
int config_usual_micro_batch(const struct train_config *config, int replicas);

static inline bool config_is_set(const struct train_config *config, int option) {
    return config->origin[option].source >= SOURCE_FILE;
}
#define CONFIG_OPTION(field) config_find_field(offsetof(struct train_config, field))
