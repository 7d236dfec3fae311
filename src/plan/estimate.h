// A step foretold: time from simulating the action lists of all pipeline ranks with the prices of
// their operations, and where each part of the machine's rate goes.
#pragma once
#include "cost/stage.h"
#include "plan/job.h"
#include "plan/memory.h"

struct estimate_stage {
    double forward, input, weight, recompute; // seconds per micro-batch
    struct cost_sum pass[COST_PASSES];
    double send_forward, send_backward;
    double gather, reduce; // seconds in flight per step (or, per micro-batch, see `repeats`)
};
// From the machine's peak down to what is achieved: each line takes `share` of the peak.
struct waterfall_line {
    const char *name;
    double share;
};
enum { WATERFALL_MOST = 16 };

struct estimate {
    double step_seconds;
    double tokens_per_second, tokens_per_second_per_accelerator;
    double mfu_full, mfu_causal, hfu; // of the vendor's dense rate, or the best GEMM rate on a CPU
    double model_flops_full, model_flops_causal; // of the step, all ranks
    double bubble, bubble_formula;
    double forward_seconds, backward_seconds, message_seconds, update_seconds;
    double overlap_formula_seconds; // T_fwd + max(T_bwd, T_comm) + T_opt, the chapters' formula
    double exposed_reduce, exposed_gather, exposed_pipeline, exposed_tensor, exposed_expert,
        exposed_context;
    struct waterfall_line waterfall[WATERFALL_MOST];
    int waterfall_lines;
    struct estimate_stage *stages; // [layout_stages]
    int stage_count;
    struct pipeline pipeline; // lists that were simulated
    struct pipeline_times times;
    struct plan_memory *memory; // [pp]
    int memory_ranks;
    double memory_peak;     // of the fullest rank
    double memory_headroom; // of the accelerator less that
    bool assumed;           // some figure that the time rests on is assumed, not stated or measured
};
// Memory is left out (memory NULL) with `time_only`.
int estimate_step(const struct job *job, bool time_only, struct estimate *out, struct err *err);
void estimate_free(struct estimate *estimate);
