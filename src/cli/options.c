// Reading a verb's options, see options.h.
#include "cli/options.h"
#include "base/text.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 64 };

static int unknown(const char *verb, const char *word, const struct option *options, int count,
                   struct err *err) {
    const char *names[MOST_OPTIONS + 1] = {"--help"};
    for (int i = 0; i < count && i < MOST_OPTIONS; i++) names[i + 1] = options[i].name;
    const char *nearest = text_nearest(word, names, (size_t)count + 1);
    return err_set(err, ERR_USAGE, "%s: unknown option \"%.200s\"%s%s%s; weft %s --help lists them",
                   verb, word, nearest ? ", did you mean " : "", nearest ? nearest : "",
                   nearest ? "?" : "", verb);
}

static int store(const char *verb, const struct option *o, const char *text, struct err *err) {
    char *end = NULL;
    errno = 0;
    if (o->kind == OPTION_TEXT) {
        *(const char **)o->value = text;
        return 0;
    }
    if (o->kind == OPTION_COUNT || o->kind == OPTION_THREADS) {
        long value = strtol(text, &end, 10);
        if (*text == 0 || *end != 0 || errno || value < o->least || value > INT_MAX)
            return err_set(err, ERR_USAGE, "%s: %s \"%.200s\": expected a whole number from %d up",
                           verb, o->name, text, o->least);
        if (o->kind == OPTION_THREADS && value > MOST_THREADS)
            return err_set(err, ERR_USAGE, "%s: %s %ld: expected at most %d", verb, o->name, value,
                           MOST_THREADS);
        *(int *)o->value = (int)value;
        return 0;
    }
    if (o->kind == OPTION_SEED) {
        unsigned long long value = strtoull(text, &end, 10);
        if (*text == 0 || *text == '-' || *end != 0 || errno)
            return err_set(err, ERR_USAGE, "%s: %s \"%.200s\": expected a whole number from 0 up",
                           verb, o->name, text);
        *(uint64_t *)o->value = value;
        return 0;
    }
    double value = strtod(text, &end);
    if (*text == 0 || *end != 0 || !isfinite(value))
        return err_set(err, ERR_USAGE, "%s: %s \"%.200s\": expected a number", verb, o->name, text);
    *(double *)o->value = value;
    return 0;
}

int options_read(int argc, char **argv, const struct option *options, int count, const char **words,
                 int most_words, int *word_count, struct err *err) {
    const char *verb = argv[0];
    *word_count = 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    for (int i = 1; i < argc; i++) {
        const struct option *o = NULL;
        if (argv[i][0] != '-' || argv[i][1] == 0) {
            if (*word_count == most_words)
                return err_set(err, ERR_USAGE, "%s: unexpected \"%.200s\"; weft %s --help", verb,
                               argv[i], verb);
            words[(*word_count)++] = argv[i];
            continue;
        }
        for (int k = 0; k < count && !o; k++)
            if (strcmp(argv[i], options[k].name) == 0) o = &options[k];
        if (!o) return unknown(verb, argv[i], options, count, err);
        if (o->kind == OPTION_FLAG) {
            *(bool *)o->value = true;
            continue;
        }
        if (i + 1 == argc) return err_set(err, ERR_USAGE, "%s: %s needs a value", verb, argv[i]);
        if (store(verb, o, argv[++i], err) != 0) return -1;
    }
    return 0;
}
