// A lower bound of the memory plan without enumerating anything, for searches: states by the
// formulas of sharding, and what layers keep of the micro-batches that a stage certainly holds.
#include "plan/memory_parts.h"

// Bytes of an element's states, of which `shards` ranks share what ZeRO shards.
static double state_bytes_of(const struct job *job, double shards) {
    const struct stack *stack = job->stack;
    bool f32 = job->precision == HARDWARE_FP32, masters = !f32 && (stack->own || stack->masters);
    int zero = job->layout.zero;
    double weights = f32 ? 4 : 2, gradients = job->accumulate_type == DTYPE_BF16 ? 2 : 4;
    if (!stack->own && f32) gradients = 4;
    if (!stack->own && zero == 3 && masters) weights = 0; // see add_states in memory_stack.c
    return weights / (zero >= 3 ? shards : 1) + gradients / (zero >= 2 ? shards : 1) +
           (masters ? 12 : 8) / (zero >= 1 ? shards : 1);
}

// Micro-batches that a stage holds at once, at least.
static int least_slots(const struct job *job, int stage) {
    int pp = job->layout.mesh.size[MESH_PP], m = job->micro_batches, least = 1;
    int behind = layout_stages(&job->layout) - stage;
    if (pp == 1) return 1;
    if (job->schedule == PIPELINE_GPIPE) return m;
    if (job->schedule == PIPELINE_1F1B || job->schedule == PIPELINE_ZB_H1 ||
        job->schedule == PIPELINE_INTERLEAVED)
        least = behind < pp ? behind : pp;
    return least < m ? least : m;
}

// What a layer keeps of a micro-batch. Of other stacks only its input is certain.
static double kept_bytes(const struct job *job, const struct model_config *local, bool experts) {
    const struct mesh *mesh = &job->layout.mesh;
    int64_t tokens = (int64_t)job->rows * job->context / mesh->size[MESH_CP];
    struct rank_shape shape = {
        .compute = job->precision == HARDWARE_FP32 ? DTYPE_F32 : DTYPE_BF16,
        .recompute = job->recompute,
        .train = true,
        .tokens = tokens,
        .residual = job->layout.sequence_parallel ? tokens / mesh->size[MESH_TP] : tokens,
        .tp = mesh->size[MESH_TP]};
    if (job->stack->own) return (double)rank_kept_bytes(local, &shape, experts);
    return (double)(shape.residual * local->hidden) * (double)dtype_bytes(shape.compute);
}

struct layer_figures {
    double states, kept;
};

static struct layer_figures figures_of(const struct job *job, const struct model_config *local,
                                       int layer) {
    const struct mesh *mesh = &job->layout.mesh;
    double same = (double)mesh->size[MESH_DP] * mesh->size[MESH_CP] / mesh->ep;
    double shard = mesh->shard, expert_shard = shard < same ? shard : same;
    struct job_elements e = job_layer_elements(job, layer);
    return (struct layer_figures){
        e.dense * state_bytes_of(job, shard) + e.expert * state_bytes_of(job, expert_shard),
        kept_bytes(job, local, model_layer_has_experts(&job->model, layer))};
}

double plan_memory_bound(const struct job *job) {
    return plan_memory_bound_with(job, NULL);
}

double plan_memory_bound_with(const struct job *job, const struct pipeline *lists) {
    const struct layout *layout = &job->layout;
    struct model_config local = job->model;
    struct layer_figures kind[2]; // [a mixture of experts]
    bool known[2] = {false, false};
    double table = (double)job->model.vocab * job->model.hidden / layout->mesh.size[MESH_TP] *
                   state_bytes_of(job, layout->mesh.shard);
    double most = 0;
    layout_local_sizes(&local, layout);
    for (int rank = 0; rank < layout->mesh.size[MESH_PP]; rank++) {
        double bytes = 0;
        for (int stage = 0; stage < layout_stages(layout); stage++) {
            if (layout_stage_rank(layout, stage) != rank) continue;
            // others give a place back to whichever stage needs one
            int slots = lists && job->stack->own ? lists->slots[stage] : least_slots(job, stage);
            bool last = stage == layout_stages(layout) - 1;
            if (stage == 0) bytes += table;
            if (last && (stage > 0 || !job->model.tied_head)) bytes += table;
            // the two ends of a tied table are one where they meet on a rank
            if (last && stage > 0 && job->model.tied_head && rank == 0) bytes -= table;
            for (int l = layout->layer_first[stage]; l < layout->layer_first[stage + 1]; l++) {
                int k = model_layer_has_experts(&job->model, l);
                if (!known[k]) kind[k] = figures_of(job, &local, l);
                known[k] = true;
                bytes += kind[k].states + slots * kind[k].kept;
            }
        }
        if (bytes > most) most = bytes;
    }
    return most;
}
