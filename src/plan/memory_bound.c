// A lower bound of the memory plan without enumerating anything, for searches: states by the
// formulas of sharding, and what a layer keeps of the micro-batches that a stage certainly holds.
#include "plan/memory_parts.h"

// Elements of one layer, of a table, over all ranks.
struct counts {
    double dense, experts; // of a layer with a dense MLP; of all the experts of a layer with them
    double around;         // the rest of a layer with experts
    double table;
};

static int count_layer(const struct model_config *model, bool experts, double *rest,
                       double *of_experts) {
    struct model_config one = *model;
    struct model made;
    one.layers = 1;
    one.layer_dense[0] = false;
    if (experts)
        one.experts = one.top_k = 1; // stands for all; the router loses its other rows
    else
        one.experts = one.top_k = one.expert_ffn = one.shared_ffn = 0;
    if (model_describe(&made, &one, NULL) != 0) return -1;
    *rest = 0;
    for (int i = 0; i < made.param_count; i++) {
        const struct param *p = &made.params[i];
        double elements = (double)param_elements(p);
        if (p->expert >= 0)
            *of_experts += elements * model->experts;
        else if (p->layer >= 0)
            *rest += elements;
    }
    model_free(&made);
    return 0;
}

static int count(const struct model_config *model, struct counts *out) {
    bool dense = false, mixed = false;
    *out = (struct counts){.table = (double)model->vocab * model->hidden};
    for (int layer = 0; layer < model->layers; layer++)
        if (model_layer_has_experts(model, layer))
            mixed = true;
        else
            dense = true;
    if (dense && count_layer(model, false, &out->dense, &out->experts) != 0) return -1;
    return mixed ? count_layer(model, true, &out->around, &out->experts) : 0;
}

// Bytes of an element's states, of which `shards` ranks share what ZeRO shards.
static double state_bytes_of(const struct job *job, double shards) {
    bool f32 = job->precision == HARDWARE_FP32;
    bool narrow = (job->stack->own ? job->accumulate_type : job->stack->gradient) == DTYPE_BF16;
    int zero = job->layout.zero;
    double weights = f32 ? 4 : 2, gradients = narrow ? 2 : 4;
    double optimizer = (f32 || (!job->stack->own && !job->stack->masters) ? 8 : 12);
    if (f32 && narrow) gradients = 2;
    return weights / (zero >= 3 ? shards : 1) + gradients / (zero >= 2 ? shards : 1) +
           optimizer / (zero >= 1 ? shards : 1);
}

// Micro-batches that a stage holds at once, at least.
static int least_slots(const struct job *job, int stage) {
    int pp = job->layout.mesh.size[MESH_PP], m = job->micro_batches, stages, least;
    switch (job->schedule) {
    case PIPELINE_GPIPE:
        return m;
    case PIPELINE_1F1B:
    case PIPELINE_ZB_H1:
        least = pp - stage;
        return least < m ? least : m;
    case PIPELINE_INTERLEAVED:
        stages = layout_stages(&job->layout);
        least = stages - stage < pp ? stages - stage : pp;
        return least < m ? least : m;
    case PIPELINE_ZB_V:
    case PIPELINE_FILE:
    case PIPELINE_KIND_COUNT:
        break;
    }
    return 1;
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
    return job->recompute == RECOMPUTE_FULL
               ? 0
               : (double)(shape.residual * local->hidden) * (double)dtype_bytes(shape.compute);
}

double plan_memory_bound(const struct job *job) {
    const struct layout *layout = &job->layout;
    const struct mesh *mesh = &layout->mesh;
    struct counts elements;
    struct model_config local = job->model;
    if (count(&job->model, &elements) != 0) return 0;
    layout_local_sizes(&local, layout);
    double tp = mesh->size[MESH_TP], data = (double)mesh->size[MESH_DP] * mesh->size[MESH_CP];
    double same = data / mesh->ep, shard = mesh->shard;
    double dense_bytes = state_bytes_of(job, shard) / tp;
    double expert_bytes = state_bytes_of(job, shard < same ? shard : same) / tp / mesh->ep;
    double kept_dense = kept_bytes(job, &local, false), kept_mixed = kept_bytes(job, &local, true);
    double most = 0;
    for (int rank = 0; rank < mesh->size[MESH_PP]; rank++) {
        double bytes = 0;
        for (int stage = 0; stage < layout_stages(layout); stage++) {
            if (layout_stage_rank(layout, stage) != rank) continue;
            bool table = stage == 0 || stage == layout_stages(layout) - 1;
            int slots = least_slots(job, stage);
            if (table) bytes += elements.table * dense_bytes;
            if (stage == 0 && layout_stages(layout) == 1 && !job->model.tied_head)
                bytes += elements.table * dense_bytes;
            for (int l = layout->layer_first[stage]; l < layout->layer_first[stage + 1]; l++)
                bytes += model_layer_has_experts(&job->model, l)
                             ? elements.around * dense_bytes + elements.experts * expert_bytes +
                                   slots * kept_mixed
                             : elements.dense * dense_bytes + slots * kept_dense;
        }
        if (bytes > most) most = bytes;
    }
    return most;
}
