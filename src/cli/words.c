// See words.h.
#include "cli/words.h"
#include "base/text.h"
#include "cli/options.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int words_read_options(struct words *w, const struct word *list, int count, int argc, char **argv,
                       const char **file, struct err *err) {
    struct option *options = calloc((size_t)count, sizeof *options);
    const char *others[1];
    int other_count;
    if (!options) return err_set(err, ERR_MEMORY, "no memory for the options");
    w->list = list;
    w->count = count;
    for (int k = 0; k < count; k++) {
        char *name = w->option_names[k];
        snprintf(name, sizeof w->option_names[k], "--%s", list[k].name);
        options[k] = list[k].kind == WORD_FLAG
                         ? (struct option){name, OPTION_FLAG, &w->flags[k], 0}
                         : (struct option){name, OPTION_TEXT, &w->given[k], 0};
    }
    int read = options_read(argc, argv, options, count, others, 1, &other_count, err);
    free(options);
    if (read != 0) return read;
    *file = other_count ? others[0] : NULL;
    for (int k = 0; k < count; k++) {
        if (w->flags[k]) w->given[k] = "true";
        snprintf(w->where[k], sizeof w->where[k], "%s", w->option_names[k]);
    }
    return 0;
}

static int unknown(const struct words *w, const char *path, const struct yaml_leaf *leaf,
                   const char *verb, struct err *err) {
    const char *names[WORDS_MOST];
    for (int k = 0; k < w->count; k++) names[k] = w->list[k].name;
    const char *nearest = text_nearest(leaf->key, names, (size_t)w->count);
    return err_set(err, ERR_USAGE,
                   "%s:%d: unknown key \"%.100s\"%s%s%s; weft %s --help lists them (- or _)", path,
                   leaf->line, leaf->key, nearest ? ", did you mean " : "", nearest ? nearest : "",
                   nearest ? "?" : "", verb);
}

int words_read_file(struct words *w, const char *path, const char *verb, struct err *err) {
    if (yaml_read(path, &w->leaves, err) != 0) return -1;
    for (size_t i = 0; i < w->leaves.count; i++) {
        struct yaml_leaf *leaf = &w->leaves.leaf[i];
        int k = 0;
        for (char *c = leaf->key; *c; c++)
            if (*c == '_') *c = '-';
        while (k < w->count && strcmp(leaf->key, w->list[k].name) != 0) k++;
        if (k == w->count) return unknown(w, path, leaf, verb, err);
        if (w->given[k] || leaf->is_null) continue;
        if (w->list[k].kind == WORD_FLAG && strcmp(leaf->text, "false") == 0) continue;
        w->given[k] = leaf->text;
        snprintf(w->where[k], sizeof w->where[k], "%.200s:%d: %s", path, leaf->line, leaf->key);
    }
    return 0;
}

void words_free(struct words *w) {
    yaml_free(&w->leaves);
}

int words_wrong(const struct words *w, int key, const char *expected, struct err *err) {
    return err_set(err, ERR_USAGE, "%s \"%.100s\": expected %s", w->where[key], w->given[key],
                   expected);
}

int words_number(const struct words *w, int key, double *out, struct err *err) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    bool seconds = w->list[key].kind == WORD_SECONDS;
    char *end;
    double value = strtod(w->given[key], &end);
    bool is_number = end != w->given[key] && isfinite(value);
    while (*end == ' ') end++;
    size_t most = seconds ? sizeof units / sizeof units[0] : 1;
    for (size_t u = 0; is_number && u < most; u++)
        if (strcmp(end, units[u].name) == 0) {
            *out = value * units[u].seconds;
            return 0;
        }
    return words_wrong(w, key, seconds ? "seconds, or a number with min, h or d" : "a number", err);
}

int words_count(const struct words *w, int key, int *out, struct err *err) {
    char *end;
    errno = 0;
    long value = strtol(w->given[key], &end, 10);
    if (end == w->given[key] || *end || errno || value < INT_MIN || value > INT_MAX)
        return words_wrong(w, key, "a whole number", err);
    *out = (int)value;
    return 0;
}

// "false" counts as not given.
static int flag(const struct words *w, int key, bool *out, struct err *err) {
    *out = strcmp(w->given[key], "true") == 0;
    return *out ? 0 : words_wrong(w, key, "true or false", err);
}

int words_store(const struct words *w, void *out, struct err *err) {
    for (int k = 0; k < w->count; k++) {
        if (!w->given[k] || w->list[k].offset == WORD_ELSEWHERE) continue;
        void *field = (char *)out + w->list[k].offset;
        int failed = 0;
        switch (w->list[k].kind) {
        case WORD_SECONDS:
        case WORD_NUMBER:
            failed = words_number(w, k, field, err);
            break;
        case WORD_COUNT:
            failed = words_count(w, k, field, err);
            break;
        case WORD_FLAG:
            failed = flag(w, k, field, err);
            break;
        case WORD_TEXT:
            *(const char **)field = w->given[k];
            break;
        }
        if (failed) return -1;
    }
    return 0;
}

int words_one_of(const struct words *w, const int *list, int count, struct err *err) {
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (!w->given[list[i]]) continue;
        if (found >= 0) {
            err_set(err, ERR_USAGE, "%s and %s: expected one of the two", w->where[found],
                    w->where[list[i]]);
            return -2;
        }
        found = list[i];
    }
    return found;
}
