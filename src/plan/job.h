// What is planned: a model on a cluster under a layout, with everything that a step's time and
// memory depend on. Plain data; search makes many, a training configuration makes one.
#pragma once
#include "cost/shape.h"
#include "schedule/pipeline.h"

struct job {
    struct model_config model;
    struct cluster cluster;
    const struct stack *stack;
    struct layout layout; // mesh, stages, sequence parallelism, ZeRO stage
    enum pipeline_kind schedule;
    const char *schedule_csv; // PIPELINE_FILE
    int rows, context;        // of a micro-batch
    int micro_batches; // per data rank and step; sequences per step = rows x micro_batches x dp
    enum engine_recompute recompute;
    enum hardware_precision precision;
    bool reduce_per_micro_batch;
    bool gather_keys;
    bool no_overlap;       // every message is waited for where it is posted
    int predictions;       // multi-token prediction: modules behind the last layer; their time, not
                           // their memory
    double imbalance;      // MoE; 1: forced balance
    uint64_t bucket_bytes; // 0: the stack's
    enum dtype gather_type, reduce_type, accumulate_type; // weights and gradients on the wire,
                                                          // gradients in memory
    bool split_backward_own;                              // one process with zero-bubble halves
    double dropout;
    int threads; // CPU: of a rank
    // That the ranks of a pipeline share, see pipeline_costs; 0: each has its own.
    double processors;
    uint64_t other_bytes;  // of the own engine's plan: the batches of a run's loaders
    int snapshots;         // of the state in the machine's memory, see engine_options; they count
                           // where that is what the device computes in
    int gathers_in_flight; // ZeRO-3, the own engine; 0: 2
    bool seals_optimizer, seals_gradients, seals_weights, seals_products; // guards of the own engine
    int64_t expert_wave; // rows of experts at a time, the own engine; 0: planned
    // stalls that are not the step's own, seconds per step on average
    double checkpoint_seconds, data_seconds;
};
static inline int64_t job_sequences(const struct job *job) {
    return (int64_t)job->rows * job->micro_batches * job->layout.mesh.size[MESH_DP];
}
// Sizes 1, BF16, 1f1b, no recomputation, what travels and adds up as weft's engine does it. Model,
// cluster, stack, rows and context are the caller's.
void job_defaults(struct job *job);
// What the engine would refuse (layout_check), for other stacks what has no meaning; the schedule,
// ranks against the cluster, and figures without which no time can be given.
int job_check(const struct job *job, struct err *err);

// The step's lists.
struct pipeline_shape job_pipeline_shape(const struct job *job, int micro_batches);
// `room` holds the stack where `no_overlap` alters it; it must live as long as *out.
void job_cost_shape(const struct job *job, struct stack *room, struct cost_shape *out);

// Elements that the fullest tensor rank holds, before any sharding of states over data ranks.
struct job_elements {
    double dense;   // matrices reduced over GROUP_DATA
    double expert;  // matrices reduced over GROUP_EXPERT_DATA
    double vectors; // norms and biases, whole on every data rank
};
struct job_elements job_layer_elements(const struct job *job, int layer);
// Of the embedding with its positions; and of the head.
double job_table_elements(const struct job *job);
double job_head_elements(const struct job *job);
// Of a stage: its layers, and embedding, head (also the copy of a tied one), final norm.
struct job_elements job_stage_elements(const struct job *job, int stage);
