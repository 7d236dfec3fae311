// What weft bench step has measured, and how it is shown.
#pragma once
#include "engine/engine.h"
#include "observe/mfu.h"
#include "train/config.h"

enum { BENCH_STREAMS = 40 }; // at least those of an engine

// Of one rank, as the ranks tell each other. Seconds by kind, and messages, are means per timed
// step.
struct bench_rank {
    double step_seconds; // median
    double seconds[RECORD_KIND_COUNT];
    uint64_t planned, allocated, base_pss, peak_pss;
    uint64_t planned_by_kind[BUFFER_KIND_COUNT];
    struct comm_counts messages[BENCH_STREAMS][COMM_KIND_COUNT];
};

struct bench_step {
    const struct train_config *config;
    const struct device *device; // of rank 0
    const struct mesh *mesh;
    const struct engine *engine; // for the names of streams
    int steps, ranks;
    struct bench_rank *rank;        // [ranks]
    double rate_before, rate_after; // best GEMM rate of all ranks together
    double step_seconds;            // of the slowest rank
    struct engine_step last;
    struct mfu mfu;
    double recompute_flops; // per token
};

// (peak PSS - PSS before the run's memory) / planned.
double bench_memory_ratio(const struct bench_rank *rank);

int bench_step_json(const struct bench_step *b);
void bench_step_text(const struct bench_step *b);
