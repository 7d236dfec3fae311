// One run of a small model in which something goes wrong on purpose, for `weft bench faults`: its
// ranks are threads of a process of its own, so that a run that breaks breaks nothing else.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum { TRIAL_MOST_WORDS = 96, TRIAL_MOST_RANKS = 8 };

struct trial {
    int ranks;
    bool checksums;                      // of messages
    const char *words[TRIAL_MOST_WORDS]; // key=value
    int word_count;
    int attempt;
    double most_seconds;
};
enum trial_end {
    TRIAL_DONE,
    TRIAL_RETRY,  // the run ended by itself, to be started again
    TRIAL_FAILED, // by another error
    TRIAL_DIED,   // by a signal
    TRIAL_STOOD   // still, until the time was up
};
struct trial_outcome {
    enum trial_end end;
    int64_t step;       // last one done
    double loss;        // its
    int alarms;         // what guards said
    int64_t first_step; // of the first of them; 0: none
    char first[300];
    char why[300]; // how it ended, where that was no success
};
void trial_words(struct trial *t, const char *const *words); // adds; ends with NULL
int trial_run(const struct trial *t, struct trial_outcome *out, struct err *err);
