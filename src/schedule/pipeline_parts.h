// Shared by the sources of pipeline.h.
#pragma once
#include "schedule/pipeline.h"

// The rank whose message an action waits for is another one than `rank`.
static inline bool pipeline_remote(const struct pipeline *p, int stage, int rank) {
    return stage >= 0 && stage < p->stages && p->stage_rank[stage] != rank;
}
static inline bool pipeline_local(const struct pipeline *p, int stage, int rank) {
    return stage >= 0 && stage < p->stages && p->stage_rank[stage] == rank;
}

void pipeline_put(struct schedule *list, enum action_kind kind, int stage, int micro_batch);

// Fill `compute`. The room must be there.
void pipeline_generate(struct pipeline *pipeline);
void pipeline_generate_zb_v(struct pipeline *pipeline);
int pipeline_zb_v_scratch(int ranks, int micro_batches); // ints

// Fills `ranks` from `compute`; slots and flows get what the lists need, `needed` and
// `needed_flows`. Every rank's list must be in order (pipeline_check_compute).
void pipeline_lower(struct pipeline *pipeline, int *needed, int *needed_flows);
int pipeline_lower_scratch(int stages, int micro_batches); // ints

// Each rank's compute list on its own: stages, micro-batches, order, completeness.
int pipeline_check_compute(const struct pipeline *pipeline, struct err *err);

// Takes the memory of a pipeline of this shape (kind, ranks, chunks, micro_batches set).
int pipeline_allocate(struct pipeline *pipeline, const struct pipeline_shape *shape,
                      struct err *err);

// What pipeline_simulate does where ranks share processors.
int pipeline_simulate_shared(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                             const struct pipeline_stage_costs *stages,
                             struct pipeline_times *times, struct err *err);
