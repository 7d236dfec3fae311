// For benchmarks that compare runs of several processes: each run is this program started anew, and
// what it prints as JSON is read.
#pragma once
#include "base/error.h"
#include "cli/bench.h"
#include <jansson.h>
#include <stdbool.h>

enum { CHILD_MOST_WORDS = 128 };

// What such a benchmark is told: a configuration and settings for all of its runs.
struct child_arguments {
    struct bench_target target;
    int ranks, steps;
};

// As bench_target_read. Refuses to start inside a launch, since the runs are launched themselves.
int child_arguments_read(struct child_arguments *a, int argc, char **argv,
                         const struct option *options, int count, struct err *err);

// "weft launch -n RANKS WORDS" (one rank: "weft WORDS"); words end with NULL. The caller drops the
// tree.
json_t *child_run(int ranks, const char *const *words, struct err *err);

// "bench step CONFIG SETTINGS EXTRA --steps N --json"; extra words end with NULL.
json_t *child_step(const struct child_arguments *a, int ranks, const char *const *extra,
                   struct err *err);

double child_number(const json_t *root, const char *key); // 0: there is none
// A figure of the messages of a stream, all kinds together: a wait for one may cover another that
// stands before it.
double child_messages(const json_t *root, const char *stream, const char *key);
