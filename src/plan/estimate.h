// A step foretold: time from simulating the action lists of all pipeline ranks with the prices of
// their operations, and where each part of the machine's rate goes.
//
// Data ranks are alike, and so are the tensor and context ranks of a stage: one of each stands for
// all. Seconds of a pipeline rank are those of its fullest member.
#pragma once
#include "cost/stage.h"
#include "plan/job.h"
#include "plan/memory.h"

struct estimate_stage {
    // Seconds of an action, all that stands in its way included. `input` holds what is done again;
    // `backward` is a whole one, which may be shorter than its halves (the host launches ahead).
    double forward, input, weight, backward;
    struct cost_sum pass[COST_PASSES]; // of layers, embedding and head
    struct cost_sum whole;             // recomputation, input and weight half as one
    double attention_flops[COST_PASSES];
    // Sharded weights and gradients that travel with every micro-batch: seconds in flight, and
    // those among them that `forward`, `input` and `backward` wait for.
    double shard_flight, shard_forward, shard_backward;
    double send_forward, send_backward;
    // Once per step, beside the compute: seconds in flight, in so many pieces (1: not beside it).
    double gather, reduce;
    int gather_pieces, reduce_pieces;
    // The embedding's: its weights come first, its gradient (a tied table's too) goes last.
    double gather_first, reduce_behind;
};

// What a pipeline rank does behind the last backward, one after the other. Seconds.
struct estimate_update {
    double update;  // gradient norm and optimizer over its shard
    double tied;    // sum of a tied table's gradients over the first and the last stage
    double partial; // sums over tensor ranks of gradients that are partial there
    double norm;    // sum of the norm over all ranks
    double gather;  // updated weights to the data ranks, where that is not hidden in forward
    double host;    // per step
};

// From the machine's peak down to what is achieved: each line takes `share` (0 or more) of the
// peak, and 1 less all of them is mfu_causal.
struct waterfall_line {
    const char *name;
    double share;
};
enum { WATERFALL_MOST = 20 };

struct estimate {
    double step_seconds; // with stalls
    double tokens_per_second, tokens_per_second_per_accelerator;
    double rate; // of one accelerator: the vendor's dense one, or a CPU's best measured product
    double mfu_full, mfu_causal, hfu;            // hfu: full attention, recomputation added
    double model_flops_full, model_flops_causal; // of the step, all ranks
    double hardware_flops;                       // of hfu
    double bubble; // share of the step (without stalls) that pipeline ranks neither compute nor
                   // update: waits for messages are in it
    double bubble_without_messages; // the same when reductions, gathers and sends take no time:
                                    // what the formula foretells for equal stages
    double bubble_formula;
    // Of the busiest pipeline rank, all micro-batches; message: its gradients' reduction in flight.
    double forward_seconds, backward_seconds, message_seconds, update_seconds;
    double overlap_formula_seconds; // T_fwd + max(T_bwd, T_comm) + T_opt, the chapters' formula
    // By how much the step would be shorter if this kind of message, alone, took no time.
    double exposed_reduce, exposed_gather, exposed_pipeline, exposed_tensor, exposed_expert,
        exposed_context;
    struct waterfall_line waterfall[WATERFALL_MOST];
    int waterfall_lines;
    struct estimate_stage *stages; // [layout_stages]
    int stage_count;
    struct estimate_update *updates; // [pp]
    int rank_count;
    // Lists that were simulated. Of a step with many micro-batches it is a shorter one: its steady
    // state is prolonged.
    struct pipeline pipeline;
    struct pipeline_times times;
    struct plan_memory *memory; // [pp]
    int memory_ranks;
    double memory_peak;     // of the fullest rank
    double memory_headroom; // of the accelerator less that
    bool assumed;           // some figure that the time rests on is assumed, not stated or measured
};
// With `time_only` memory, exposed_*, bubble_without_messages, the waterfall and the spans of
// `times` are left out.
int estimate_step(const struct job *job, bool time_only, struct estimate *out, struct err *err);
void estimate_free(struct estimate *estimate);

// The chapters' formulas: messages hidden behind the backward pass, T_fwd + max(T_bwd, T_comm) +
// T_opt; and a share of them hidden, T_fwd + T_bwd + (1 - hidden) T_comm + T_opt (0: no overlap).
double estimate_overlap_formula(double forward, double backward, double message, double update);
double estimate_share_formula(double forward, double backward, double message, double update,
                              double hidden);

double estimate_update_sum(const struct estimate_update *update);
