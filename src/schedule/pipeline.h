// A step of a whole pipeline as action lists, one per pipeline rank: what each rank computes, and
// between that, what it sends, receives, gathers and reduces. Made, checked, printed, drawn and
// simulated here without any memory or message; the engine walks its rank's list, the planner and
// `weft schedule` read the same.
//
// Made in two passes: a generator writes the compute actions of every rank; lowering adds the rest
// and numbers the places of activations (slots) and of their gradients (flows).
//
// Messages. Stage s sends the output of a forward to s + 1, and the gradient of its input to s - 1;
// both sides match by stage, direction and micro-batch, not by order. A receive stands one compute
// action before the one that waits for it, so that the transfer hides, if its slot is free there;
// else directly before. A send stands behind the action that made the tensor. Neither blocks. A
// gradient arrives in the slot of the activations that wait for it.
//
// Two neighbouring stages on one rank (the turning point of zb-v; all of them with one rank) hand
// over without message: the producer writes into the consumer's slot, the action's `target`.
#pragma once
#include "base/error.h"
#include "schedule/schedule.h"
#include <stdbool.h>
#include <stdint.h>

enum pipeline_kind {
    PIPELINE_GPIPE,       // all forwards, then all backwards, in ascending order
    PIPELINE_1F1B,        // one forward, one backward; at most min(ranks - r, m) in flight
    PIPELINE_INTERLEAVED, // 1f1b with `chunks` stages per rank, stage s on rank s % ranks
    PIPELINE_ZB_H1,       // 1f1b whose weight halves fill the pauses; at most min(ranks, m)
    PIPELINE_ZB_V,        // halves, rank r holds stages r and 2 ranks - 1 - r
    PIPELINE_FILE,        // a user's own list
    PIPELINE_KIND_COUNT
};
const char *pipeline_kind_name(enum pipeline_kind kind); // "zb-h1"
int pipeline_parse_kind(const char *name, enum pipeline_kind *kind, struct err *err);

struct pipeline_shape {
    enum pipeline_kind kind;
    int ranks;
    int chunks; // stages per rank: interleaved v, zb-v 2, else 1. 0: the kind's own (2, 2, 1)
    int micro_batches;
    int spare; // slots per stage beyond what the order needs, at most: lets an input arrive while
               // its predecessors still hold theirs (1f1b's steady state has none free)
    bool gather, reduce; // weights are gathered before the step's first use; gradients reduced
                         // behind the last
};

struct pipeline {
    struct pipeline_shape shape;
    int stages;               // ranks x chunks
    int *stage_rank;          // [stages]
    struct schedule *ranks;   // [ranks], complete lists
    struct schedule *compute; // [ranks], the compute actions of them alone, without places
    int *slots, *flows; // [stages] most micro-batches whose activations (flows) are held at once
    int most_micro_batches;   // for which there is room
    int fewest_micro_batches; // that it may be remade for
    int *scratch;
    int scratch_ints;
};

// Rank that holds a stage, for layouts. Any kind but PIPELINE_FILE.
int pipeline_stage_rank(enum pipeline_kind kind, int ranks, int stage);

// Generates, lowers (sends, receives, gather, reduce, step) and numbers places. One rank with one
// stage gives plain accumulation, F0 B0 F1 B1 ..., whatever the kind (zb kinds: in halves). Any
// number of micro-batches from 1 up works with every kind. Errors: chunks that the kind does not
// have, numbers below 1, memory.
int pipeline_open(struct pipeline *pipeline, const struct pipeline_shape *shape, struct err *err);
// The same, to be remade for no less than `fewest` micro-batches: zb-v, whose places have to do for
// all, is opened sooner.
int pipeline_open_for(struct pipeline *pipeline, const struct pipeline_shape *shape, int fewest,
                      struct err *err);
// The same for fewer (or again as many) micro-batches in the room that was taken: allocates
// nothing, and `slots` and `flows` stay as they were opened, which suffices. Not for a list that
// was read.
int pipeline_remake(struct pipeline *pipeline, int micro_batches, struct err *err);
// From a CSV of compute actions, one row per rank ("0F0,0F1,,0B0": an empty cell is a pause; "0I0",
// "0W0" are the halves; rows that begin with # are comments). `name` is the file for messages.
// `shape`: ranks, chunks and micro_batches are those of the file where they are 0, else they must
// agree. Each rank must hold equally many stages.
int pipeline_open_csv(struct pipeline *pipeline, const char *text, const char *name,
                      const struct pipeline_shape *shape, struct err *err);
void pipeline_close(struct pipeline *pipeline);

// Complete (each micro-batch of each stage forward once, backward once or input before weight
// half), every receive with its send, no deadlock (with buffered sends), in flight within `slots`,
// actions on the rank that holds the stage. Names rank, action and what it waits for.
int pipeline_validate(const struct pipeline *pipeline, struct err *err);
bool pipeline_ascending(
    const struct pipeline *pipeline); // backward in micro-batch order: bit-identical to pp = 1

// Most micro-batches of one stage, added over the rank's stages, whose activations it holds at
// once. Divided by chunks: in units of one micro-batch through all layers of the rank.
int pipeline_in_flight(const struct pipeline *pipeline, int rank);

// Seconds of what one stage does.
struct pipeline_stage_costs {
    double forward, input, weight; // per micro-batch
    double backward;               // of a whole one; it may take less than its halves. 0: their sum
    double send_forward;           // of a forward's output, to the next stage
    double send_backward;          // of the gradient of its input, to the stage before
    // Sharded weights arrive in equal pieces while the first forward goes on: it begins with the
    // first piece, and a part of it as large as a piece comes behind the last one. 1 (or 0): all
    // must be there first.
    double gather;
    int gather_pieces;
    double gather_first; // further seconds, before those: what the forward begins with
    // Gradients leave in equal pieces (buckets) while the last backward goes on, each when its part
    // of that is over; the last one leaves at its end. 1 (or 0): all leave at its end.
    double reduce;
    int reduce_pieces;
    double reduce_behind; // further seconds, behind those: what is known at the end only
};
// Seconds of one action. send: until the receiver has it, from when both sides have posted (as
// large messages go), or, with `eager`, from when it was sent; posting costs nothing. gather and
// reduce run beside the compute, one after the other; the step waits for the rank's reductions and
// for all ranks (the gradient norm is everybody's).
struct pipeline_costs {
    double forward, input, weight; // per stage action; backward = input + weight
    const double *stage_factor;    // [stages] multiplies the three, or NULL
    double send, gather, reduce, step;
    const struct pipeline_stage_costs *stages; // [stages], or NULL; else they stand for all above
                                               // but `step`
    const double *rank_step;                   // [ranks] for `step`, or NULL
    bool no_spans;                             // sums alone, sooner
    bool eager;
    bool blocking; // a send keeps its sender from computing as long as it takes
    bool serial;   // and its receiver: it begins when both are free for it
    bool occupied; // sends of a rank leave one after the other, each when the last one is through
    bool reduce_last; // reductions begin when all backward work of the rank is over
    // Ranks that share so many processors, none using more than one: where more compute at once,
    // all are slowed down alike. Seconds are those of a whole processor; messages take none of it,
    // gathers come before the first forward and reductions behind the last backward. 0: every rank
    // has its own.
    double processors;
    bool no_barrier; // a rank's step waits for its own reductions alone (Qi et al. 2023: the norm
                     // is looked at later); ranks then begin the next step at different times
};
struct pipeline_span {
    int rank, action; // index into the rank's list
    bool wait;        // the rank stands still until this action can begin
    double begin, end;
};
struct pipeline_times {
    double total, ideal;         // seconds: of the step; of the busiest rank's compute alone
    double bubble;               // idle share of total over ranks: 1 - compute / (ranks x total)
    double bubble_over_ideal;    // (total - ideal) / ideal
    double longest;              // over ranks: from a rank's first action to the end of its step.
                                 // Without barrier, steps follow each other in this time
    struct pipeline_span *spans; // compute actions, steps and waits, by rank and time
    int span_count;
};
// Event simulation of the lists. -1 on deadlock or when memory is short.
int pipeline_simulate(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                      struct pipeline_times *times, struct err *err);
void pipeline_times_free(struct pipeline_times *times);
// The bubble by formula with forward = input = weight and enough micro-batches (interleaved: a
// multiple of ranks; zb: ranks and more): (p-1)/(p-1+km) with k 1 for gpipe and 1f1b, chunks for
// interleaved, 3 for zb-h1, 6 for zb-v. Below 0: there is none (a list that was read).
double pipeline_bubble_formula(const struct pipeline_shape *shape);

// The compute actions as pipeline_open_csv reads them, in columns of equal time with pauses
// (forward and each half one column, a whole backward one where there are no halves).
int pipeline_print_csv(const struct pipeline *pipeline, struct text *out);
// One row per rank, at most `width` columns. 0, or -1 when memory is short.
int pipeline_draw_terminal(const struct pipeline *pipeline, const struct pipeline_times *times,
                           int width, bool color, struct text *out);
int pipeline_draw_svg(const struct pipeline *pipeline, const struct pipeline_times *times,
                      const char *title, struct text *out);
