// Options of a verb as a table: reading them, with the nearest name for a wrong one.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

// As device.threads. OpenMP crashes when the system refuses it so many threads.
enum { MOST_THREADS = 4096 };

enum option_kind {
    OPTION_FLAG,    // bool; takes no value
    OPTION_TEXT,    // const char *
    OPTION_COUNT,   // int, `least` at least
    OPTION_THREADS, // as OPTION_COUNT, at most MOST_THREADS
    OPTION_SEED,    // uint64_t
    OPTION_NUMBER,  // double
};
struct option {
    const char *name; // "--tokens"
    enum option_kind kind;
    void *value;
    int least;
};

// Reads argv[1 ...]; words that are no options go to `words` (at most `most_words`). -1 with a
// message that names the verb (argv[0]). 1: --help was asked for.
int options_read(int argc, char **argv, const struct option *options, int count, const char **words,
                 int most_words, int *word_count, struct err *err);
