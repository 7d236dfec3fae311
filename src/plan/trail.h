// Why a layout is as it is: for each choice what the neighbouring ones would have cost, the traps
// that it runs into, and the chapters' rules of thumb beside what holds.
#pragma once
#include "plan/estimate.h"
#include "plan/search.h"

enum trail_kind {
    TRAIL_CHOICE,  // a decision, with the figures that made it
    TRAIL_TRAP,    // something to mend, or to know
    TRAIL_CHAPTER, // a rule of thumb that gives another figure
    TRAIL_KINDS
};
const char *trail_kind_name(enum trail_kind kind); // "choice"
enum { TRAIL_MOST_LINES = 48, TRAIL_TEXT_BYTES = 480 };
struct trail_line {
    enum trail_kind kind;
    const char *name; // "tp", "micro_batches", "vocabulary": static text
    char text[TRAIL_TEXT_BYTES];
};
struct trail {
    struct trail_line lines[TRAIL_MOST_LINES];
    int count;
};

struct trail_subject {
    const struct search_request *request;
    const struct search_entry *entry;
    const struct job *job;
    const struct estimate *estimate;
    double checkpoint_seconds; // between two checkpoints; 0: not said
    int64_t steps;             // of the run
};
// -1 only when memory is short.
int trail_make(const struct trail_subject *subject, struct trail *out, struct err *err);

// The waterfall line that costs `other` most against `own`, and by how many seconds of a step;
// NULL: none is longer.
const char *trail_costliest(const struct estimate *own, const struct estimate *other,
                            double *seconds);
