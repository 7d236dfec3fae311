// What the files of the estimate share.
#pragma once
#include "plan/estimate.h"

// A job as its messages and operations see it.
struct estimate_view {
    const struct job *job;
    struct stack stack; // as the job alters it
    struct cost_shape shape;
    struct network_group groups[GROUP_KIND_COUNT];
    bool known[GROUP_KIND_COUNT];
};
// A view must not be copied: `shape` points into it.
void estimate_view_open(struct estimate_view *view, const struct job *job);
double estimate_message(struct estimate_view *view, enum mesh_group_kind group,
                        enum network_kind kind, double bytes);
double estimate_weight_bytes(const struct estimate_view *view);   // of one weight on the wire
double estimate_gradient_bytes(const struct estimate_view *view); // of one gradient on the wire

// Compute of a unit (embedding, layer, head) and its sharded states.
struct estimate_unit {
    double forward, backward, weight; // seconds of compute; backward: without the weight half
    struct job_elements elements;
};
// A micro-batch's residual stream to the next stage, or its gradient back.
double estimate_send_seconds(struct estimate_view *view);
// Without simulation: [layout_stages] of a job that job_check has passed.
int estimate_price_stages(const struct job *job, struct estimate_stage *stages, struct err *err);
// Messages of states: what travels with each micro-batch and what travels once.
void estimate_states(struct estimate_view *view, const struct estimate_unit *units, int count,
                     int stage, struct estimate_stage *out);
// Updated weights that the next step waits for. Hidden gathers are those of the stages.
void estimate_update_of(struct estimate_view *view, int rank, struct estimate_update *out);

// The costs of a simulation, to be altered.
struct estimate_costs {
    struct pipeline_stage_costs *stages;
    double *rank_step; // [pp]
};
int estimate_costs_open(const struct estimate *estimate, struct estimate_costs *out,
                        struct err *err);
void estimate_costs_close(struct estimate_costs *costs);
// As the simulation takes them.
struct pipeline_costs estimate_costs(const struct job *job, const struct estimate_costs *own);
bool estimate_in_halves(const struct pipeline *pipeline); // backward has two actions

// What lists are simulated of a step (not of PIPELINE_FILE), and the fewest micro-batches that they
// are made again for.
struct pipeline_shape estimate_lists_shape(const struct job *job, bool all_in_flight, int *fewest);
// Seconds of a step alone, on lists of that shape (all_in_flight false) that many jobs share; they
// are as before afterwards.
int estimate_seconds(const struct job *job, struct pipeline *lists, double *seconds,
                     struct err *err);
// all_sizes: with places for any number of micro-batches, as the engine opens them. all_in_flight:
// gpipe, which holds all of them at once, is not folded.
int estimate_open_lists(const struct job *job, bool all_sizes, bool all_in_flight,
                        struct pipeline *pipeline, struct err *err);
// `seconds`: of all micro-batches, without stalls; `times` (may be NULL): of the lists.
int estimate_simulate(const struct job *job, struct pipeline *pipeline,
                      const struct pipeline_costs *costs, double *seconds,
                      struct pipeline_times *times, struct err *err);
void estimate_fill_costs(const struct estimate_stage *stages, int count,
                         struct pipeline_stage_costs *out);

int estimate_waterfall(const struct job *job, struct estimate *estimate, struct err *err);
