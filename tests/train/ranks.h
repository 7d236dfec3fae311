// Runs of several ranks as threads of the test, and what they leave. States are saved where the
// step is (checkpoint.snapshot=false unless the words say otherwise).
#pragma once
#include "base/log.h"
#include "base/text.h"
#include "train/run.h"

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

enum { RANKS_MOST = 4 };
struct ranked {
    struct comm *comm;
    struct train_config *config;
    struct run_result result;
    struct err err;
    int status;
};
// Of the last run.
extern struct ranked ranked[RANKS_MOST];
extern struct text ranks_lines; // its warnings

extern struct ranks_ways {
    // Hears every line, one at a time; NULL: nobody.
    void (*listener)(enum log_level level, const char *line);
    bool supervised;                      // though nobody is there
    double watchdog_seconds;              // 60
    volatile sig_atomic_t stop_is_raised; // 0 when a run begins
} ranks_ways;

// Words as of fixture_config; the run's folder has this name.
void ranks_run(const char *name, int ranks, const char *const *words);
void ranks_run_to_end(const char *name, int ranks, const char *const *words); // all have status 0

// Exit statuses of the ranks of the last run: RANKS_STATUSES(75, 76).
void ranks_check_statuses(int line, const char *file, const int *expected, int ranks);
#define RANKS_STATUSES(...)                                                                        \
    ranks_check_statuses(__LINE__, __FILE__, (int[]){__VA_ARGS__},                                 \
                         sizeof(int[]){__VA_ARGS__} / sizeof(int))

// Losses and norms of all steps, and the bytes of the state of this one.
struct ranks_outcome {
    char *losses, *norms;
    uint64_t hash;
};
struct ranks_outcome ranks_outcome(int64_t step);
void ranks_check_same(int line, const char *file, struct ranks_outcome a, struct ranks_outcome b);
#define CHECK_SAME(a, b) ranks_check_same(__LINE__, __FILE__, a, b)

// How many lines of metrics.jsonl are this event, and the rank that the last one names; -1: none.
int ranks_events(const char *event);
int ranks_event_rank(const char *event);
// The number of the step whose "skipped" is true; 0: none, -1: several.
int64_t ranks_skipped_step(void);

// For two ranks.
enum { RANKS_LAYOUTS = 5 };
extern const char *const ranks_layouts[RANKS_LAYOUTS][4];
