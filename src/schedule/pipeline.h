// A step of a whole pipeline as action lists, one per pipeline rank: what each rank computes, and
// between that, what it sends, receives, gathers and reduces. Made, checked, printed, drawn and
// simulated here without any memory or message; the engine walks its rank's list, the planner and
// `weft schedule` read the same.
#pragma once
#include "schedule/schedule.h"
#include <stdint.h>

enum pipeline_kind {
    PIPELINE_GPIPE,
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED,
    PIPELINE_ZB_H1,
    PIPELINE_ZB_V,
    PIPELINE_FILE, // a user's own list
    PIPELINE_KIND_COUNT
};
const char *pipeline_kind_name(enum pipeline_kind kind); // "zb-h1"

struct pipeline_shape {
    enum pipeline_kind kind;
    int ranks, chunks, micro_batches; // chunks: stages per rank (interleaved: v; zb-v: 2; else 1)
    bool gather, reduce; // weights are gathered before the step's first use; gradients reduced
                         // behind the last
};

struct pipeline {
    struct pipeline_shape shape;
    int stages;             // ranks x chunks
    int *stage_rank;        // [stages]
    struct schedule *ranks; // [ranks], complete lists
    int *slots, *flows; // [stages] most micro-batches whose activations (flows) are held at once
};

// Generates, lowers (sends, receives, gather, reduce, step) and numbers slots. Errors: too few
// micro-batches for a kind (which number is needed and why), chunks that the kind does not have.
int pipeline_open(struct pipeline *pipeline, const struct pipeline_shape *shape, struct err *err);
// From a CSV of compute actions, one row per rank ("0F0,0F1,,0B0": an empty cell is a pause; "0I0",
// "0W0" are the halves).
int pipeline_open_csv(struct pipeline *pipeline, const char *text, const char *name,
                      const struct pipeline_shape *shape, struct err *err);
void pipeline_close(struct pipeline *pipeline);

// Complete (each micro-batch of each stage forward once, backward once or input before weight
// half), every receive with its send, no deadlock (with buffered sends), in flight within `slots`,
// actions on the rank that holds the stage. Names rank, action and what it waits for.
int pipeline_validate(const struct pipeline *pipeline, struct err *err);
bool pipeline_ascending(
    const struct pipeline *pipeline); // backward in micro-batch order: bit-identical to pp = 1

// Seconds of one action; send: until the receiver has it, the sender goes on at once (posting costs
// nothing).
struct pipeline_costs {
    double forward, input, weight; // per stage action; backward = input + weight
    const double *stage_factor;    // [stages] multiplies the three, or NULL
    double send, gather, reduce, step;
};
struct pipeline_span {
    int rank, action;
    double begin, end;
};
struct pipeline_times {
    double total, ideal; // seconds: of the step; of the busiest rank's compute alone
    double bubble;       // idle share of total over ranks: 1 - compute / (ranks x total)
    double bubble_over_ideal;
    struct pipeline_span *spans; // compute actions and waits, by rank, or NULL
    int span_count;
};
// Event simulation of the lists. -1 on deadlock.
int pipeline_simulate(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                      struct pipeline_times *times, struct err *err);
void pipeline_times_free(struct pipeline_times *times);

int pipeline_print_csv(const struct pipeline *pipeline,
                       struct text *out); // compute actions; reads back with pipeline_open_csv
int pipeline_draw_terminal(const struct pipeline *pipeline, const struct pipeline_times *times,
                           int width, struct text *out);
int pipeline_draw_svg(const struct pipeline *pipeline, const struct pipeline_times *times,
                      const char *title, struct text *out);
