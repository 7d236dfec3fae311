// What a layout is made of, by name: pinned values and the text of a choice. See search.h.
#include "base/text.h"
#include "plan/search_parts.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const precisions[] = {"fp32", "bf16", "fp8", "fp4", NULL};
static const char *const recomputes[] = {"none", "selective", "selective_mlp", "full", NULL};
static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", NULL};
static const char *const switches[] = {"false", "true", NULL};

// `config` is the key of a configuration; `words` the names of values, NULL for numbers.
static const struct key {
    const char *name, *other, *config;
    const char *const *words;
    int least, most, plain;
} keys[SEARCH_KEYS] = {
    [SEARCH_PRECISION] = {"precision", "precision", "train.precision", precisions, 0, 3,
                          HARDWARE_BF16},
    [SEARCH_TP] = {"tp", "tp", "parallel.tp", NULL, 1, 65536, 1},
    [SEARCH_PP] = {"pp", "pp", "parallel.pp", NULL, 1, LAYOUT_MAX_STAGES, 1},
    [SEARCH_CP] = {"cp", "cp", "parallel.cp", NULL, 1, 65536, 1},
    [SEARCH_DP] = {"dp", "dp", "parallel.dp", NULL, 1, 1 << 20, 0},
    [SEARCH_EP] = {"ep", "ep", "parallel.ep", NULL, 1, 65536, 1},
    [SEARCH_SEQUENCE] = {"sequence", "sp", "parallel.sequence", switches, 0, 1, -1},
    [SEARCH_MICRO] = {"micro_batch", "micro", "train.micro_batch", NULL, 1, 1 << 20, 0},
    [SEARCH_RECOMPUTE] = {"recompute", "recompute", "train.recompute", recomputes, 0, 3, 0},
    [SEARCH_SCHEDULE] = {"schedule", "schedule", "pipeline.schedule", schedules, 0, 4, -1},
    [SEARCH_CHUNKS] = {"chunks", "chunks", "pipeline.chunks", NULL, 1, LAYOUT_MAX_CHUNKS, 1},
    [SEARCH_ENDS] = {"count_ends", "ends", "pipeline.count_ends", switches, 0, 1, 0},
    [SEARCH_ZERO] = {"zero", "zero", "parallel.zero", NULL, 0, 3, 0},
};

const char *search_key_name(enum search_key key) {
    return keys[key].name;
}

const char *search_value_text(enum search_key key, int value, char out[24]) {
    if (keys[key].words && value >= 0 && value <= keys[key].most)
        snprintf(out, 24, "%s", keys[key].words[value]);
    else
        snprintf(out, 24, "%d", value);
    return out;
}

// A schedule says nothing where there is no pipeline, sequence parallelism follows from tp.
static bool is_plain(const struct search_choice *c, int key) {
    const int *v = c->value;
    if (key == SEARCH_SCHEDULE) return v[SEARCH_PP] == 1;
    if (key == SEARCH_CHUNKS) return v[SEARCH_SCHEDULE] != PIPELINE_INTERLEAVED;
    if (key == SEARCH_SEQUENCE) return v[key] == (v[SEARCH_TP] > 1);
    return v[key] == keys[key].plain;
}

const char *search_choice_text(const struct search_choice *choice, char out[192]) {
    size_t at = 0;
    char value[24];
    out[0] = 0;
    for (int key = 0; key < SEARCH_KEYS; key++)
        if (!is_plain(choice, key))
            at += (size_t)snprintf(
                out + at, 192 - at, "%s%s %s", at ? ", " : "",
                key == SEARCH_MICRO ? "micro-batch" : keys[key].name,
                search_value_text((enum search_key)key, choice->value[key], value));
    return out;
}

static int find_key(const char *name, size_t length) {
    for (int key = 0; key < SEARCH_KEYS; key++) {
        const char *names[] = {keys[key].name, keys[key].other, keys[key].config};
        for (int i = 0; i < 3; i++)
            if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) return key;
    }
    return -1;
}

static int unknown_key(const char *text, size_t length, struct err *err) {
    const char *names[3 * SEARCH_KEYS];
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    for (int key = 0; key < SEARCH_KEYS; key++) {
        names[3 * key] = keys[key].name;
        names[3 * key + 1] = keys[key].other;
        names[3 * key + 2] = keys[key].config;
    }
    const char *nearest = text_nearest(name, names, 3 * SEARCH_KEYS);
    return err_set(err, ERR_USAGE,
                   "--fix %.100s: there is no \"%s\" to fix%s%s%s; these can be: tp, pp, cp, dp, "
                   "ep, sequence, micro_batch, recompute, schedule, chunks, count_ends, zero, "
                   "precision",
                   text, name, nearest ? ", did you mean " : "", nearest ? nearest : "",
                   nearest ? "?" : "");
}

static int read_word(const struct key *key, const char *text, int *value, struct err *err) {
    size_t count = 0;
    for (; key->words[count]; count++)
        if (strcmp(key->words[count], text) == 0) {
            *value = (int)count;
            return 0;
        }
    char list[128] = "";
    for (size_t i = 0; i < count; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 key->words[i]);
    return err_set(err, ERR_USAGE, "--fix %s=%.60s: expected one of %s", key->name, text, list);
}

static int read_number(const struct key *key, const char *text, int *value, struct err *err) {
    char *end = NULL;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || errno || number < key->least || number > key->most)
        return err_set(err, ERR_USAGE, "--fix %s=%.60s: expected a whole number from %d to %d",
                       key->name, text, key->least, key->most);
    *value = (int)number;
    return 0;
}

int search_pin(struct search_pins *pins, const char *text, struct err *err) {
    size_t length = strcspn(text, "=");
    int value;
    if (text[length] != '=')
        return err_set(err, ERR_USAGE, "--fix %.100s: expected KEY=VALUE, as in --fix tp=8", text);
    int key = find_key(text, length);
    if (key < 0) return unknown_key(text, length, err);
    const char *word = text + length + 1;
    if ((keys[key].words ? read_word : read_number)(&keys[key], word, &value, err) != 0) return -1;
    if (pins->set[key] && pins->value[key] != value) {
        char first[24];
        return err_set(err, ERR_USAGE, "--fix %s=%s: it is fixed to %s already", keys[key].name,
                       word, search_value_text((enum search_key)key, pins->value[key], first));
    }
    pins->set[key] = true;
    pins->value[key] = value;
    return 0;
}
