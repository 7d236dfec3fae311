// A step foretold beside one that was measured, action by action: the predicted timeline is written
// with the span names of the engine, both timelines are read back, and what stands at the same
// place of the same rank's list is compared.
#pragma once
#include "base/error.h"
#include "plan/estimate.h"

// Writes the predicted step: a row per rank ("rank 3"), spans "forward", "backward", "backward
// input", "backward weight" and "optimizer" as the engine records them, that is with the waits for
// messages inside. All micro-batches.
int explain_write_trace(const char *path, const struct job *job, const struct estimate *estimate,
                        struct err *err);

enum explain_name {
    EXPLAIN_FORWARD,
    EXPLAIN_BACKWARD,
    EXPLAIN_BACKWARD_INPUT,
    EXPLAIN_BACKWARD_WEIGHT,
    EXPLAIN_OPTIMIZER,
    EXPLAIN_NAMES
};
const char *explain_name_text(enum explain_name name); // "backward input"

// The actions of a step. Seconds are those of computing and of the messages that belong to a layer
// (tensor, context and expert parallelism); waits for other stages and for the sums of gradients
// are taken out and counted apart. Of several steps: the median.
struct explain_action {
    int rank;
    enum explain_name name;
    int index; // how many of this name the rank did before in the step
    double seconds;
};
struct explain_trace {
    struct explain_action *actions;
    int count, capacity;
    int ranks, steps;
    double step_seconds;  // median over the steps of the first rank, from action to action
    double stage_seconds; // of a step, mean over the ranks: waits for other stages
    double state_seconds; // waits for sums of gradients and for weights, mean over the ranks
};
// Reads the file of one rank (trace.json, or trace.json.rankN) and appends; the first `skip` steps
// are left out where more are there.
int explain_read_measured(const char *path, int rank, int skip, struct explain_trace *out,
                          struct err *err);
// A predicted file holds all ranks.
int explain_read_predicted(const char *path, struct explain_trace *out, struct err *err);
void explain_trace_free(struct explain_trace *trace);

struct explain_pair {
    const struct explain_action *predicted, *measured;
    double error; // predicted / measured - 1
};
struct explain_kind {
    int count;
    double predicted, measured; // seconds of a step, all ranks
    double median_error;        // of the absolute errors
};
struct explain {
    struct explain_pair *pairs; // by falling difference in seconds
    int pair_count;
    int only_predicted, only_measured;
    struct explain_kind kinds[EXPLAIN_NAMES], all;
};
// The traces must outlive the result. Nothing in common: ERR_DATA.
int explain_compare(const struct explain_trace *predicted, const struct explain_trace *measured,
                    struct explain *out, struct err *err);
void explain_free(struct explain *explain);
