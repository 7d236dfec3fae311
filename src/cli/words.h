// Options of a verb that may stand in a YAML file as well: "--step-seconds 2" or "step_seconds: 2".
// An option wins over the file. Values are read later, each with a message that names its place.
#pragma once
#include "base/error.h"
#include "base/yaml.h"
#include <stdbool.h>
#include <stddef.h>

enum word_kind {
    WORD_SECONDS, // double; "90", "10min", "1.5h", "1d"
    WORD_NUMBER,  // double
    WORD_COUNT,   // int
    WORD_FLAG,    // bool; takes no value as an option
    WORD_TEXT     // const char *
};
enum { WORD_ELSEWHERE = -1, WORDS_MOST = 48 };
struct word {
    const char *name; // "step-seconds"
    enum word_kind kind;
    long offset; // of the field it is stored in; WORD_ELSEWHERE: read by its owner
};
struct words {
    const struct word *list;
    int count;
    const char *given[WORDS_MOST]; // text, or NULL
    char where[WORDS_MOST][300];   // for messages: "--nodes", "run.yaml:3: nodes"
    char option_names[WORDS_MOST][32];
    bool flags[WORDS_MOST];
    struct yaml_leaves leaves;
};
// Of argv; a word that is no option goes to `file`, else NULL. 1: --help was asked for.
int words_read_options(struct words *words, const struct word *list, int count, int argc,
                       char **argv, const char **file, struct err *err);
// Adds what no option gave. `verb`: whose --help lists the keys.
int words_read_file(struct words *words, const char *path, const char *verb, struct err *err);
void words_free(struct words *words);

// Stores every word that has an offset into the struct at `out`.
int words_store(const struct words *words, void *out, struct err *err);
int words_number(const struct words *words, int key, double *out, struct err *err);
int words_count(const struct words *words, int key, int *out, struct err *err);
// Sets `WHERE "TEXT": expected EXPECTED`.
int words_wrong(const struct words *words, int key, const char *expected, struct err *err);
// Which one of a list is given: its key; -1: none; -2: more than one, with a message.
int words_one_of(const struct words *words, const int *list, int count, struct err *err);
