// The memory plan of published training programs: states by the formulas of sharding, activations
// tensor by tensor (memory_kept.c), times the micro-batches that the schedule's own lists hold.
#include "plan/memory_kept.h"
#include "plan/memory_parts.h"

static double larger(double a, double b) {
    return a > b ? a : b;
}

// ---- states

struct shares { // ranks that share what is sharded
    double dense, expert;
};

static struct shares shares_of(const struct job *job) {
    const struct mesh *mesh = &job->layout.mesh;
    double data = (double)mesh->size[MESH_DP] * mesh->size[MESH_CP], shard = mesh->shard;
    double same = data / mesh->ep;
    return (struct shares){shard, shard < same ? shard : same};
}

static double sharded(const struct job *job, const struct job_elements *e, double bytes,
                      int from_stage) {
    struct shares n = shares_of(job);
    if (job->layout.zero < from_stage) n = (struct shares){1, 1};
    return bytes * ((e->dense + e->vectors) / n.dense + e->expert / n.expert);
}

static void add_states(const struct job *job, const struct job_elements *e, struct plan_memory *m) {
    bool f32 = job->precision == HARDWARE_FP32;
    double gradient = (double)dtype_bytes(f32 ? DTYPE_F32 : job->accumulate_type);
    m->bytes[PLAN_WEIGHTS] += sharded(job, e, f32 ? 4 : 2, 3);
    m->bytes[PLAN_GRADIENTS] += sharded(job, e, gradient, 2);
    if (!f32 && job->stack->masters) m->bytes[PLAN_MASTERS] += sharded(job, e, 4, 1);
    m->bytes[PLAN_MOMENTS] += sharded(job, e, 8, 1);
}

// ---- activations and messages

static double tokens_of(const struct job *job) {
    return (double)job->rows * job->context / job->layout.mesh.size[MESH_CP];
}

static double row_bytes(const struct job *job) { // of the residual stream
    return job->model.hidden * (job->precision == HARDWARE_FP32 ? 4.0 : 2.0);
}

// Sharded weights: the unit in use and the next one; the unit's gradients until they are scattered.
static double unit_bytes(const struct job *job, const struct job_elements *layer) {
    double elements = layer->dense + layer->expert;
    if (job->layout.zero < 3) return 0;
    return elements * (2 * 2 + (double)dtype_bytes(job->accumulate_type));
}

static void add_stage(const struct job *job, const struct pipeline *pipeline, int stage,
                      struct plan_memory *m) {
    const struct layout *layout = &job->layout;
    struct job_elements e = job_stage_elements(job, stage);
    int slots = pipeline->slots[stage], flows = pipeline->flows[stage], stages = pipeline->stages;
    bool halves = false;
    const struct schedule *list = &pipeline->compute[layout_stage_rank(layout, stage)];
    for (int i = 0; i < list->count && !halves; i++)
        halves = list->actions[i].kind == ACTION_BACKWARD_INPUT;
    add_states(job, &e, m);
    for (int l = layout->layer_first[stage]; l < layout->layer_first[stage + 1]; l++) {
        struct plan_layer layer;
        struct job_elements one = job_layer_elements(job, l);
        plan_layer_kept(job, l, &layer);
        m->bytes[PLAN_ACTIVATIONS] += slots * layer.kept_bytes;
        if (halves) m->bytes[PLAN_ACTIVATIONS] += flows * layer.flow_bytes;
        m->bytes[PLAN_WORKING] = larger(m->bytes[PLAN_WORKING], layer.working_bytes);
        m->bytes[PLAN_MESSAGES] = larger(m->bytes[PLAN_MESSAGES], unit_bytes(job, &one));
    }
    double rows = tokens_of(job) / (layout->sequence_parallel ? layout->mesh.size[MESH_TP] : 1);
    if (stage == 0 && job->dropout > 0)
        m->bytes[PLAN_ACTIVATIONS] += slots * rows * job->model.hidden;
    if (stage < stages - 1) return;
    m->bytes[PLAN_ACTIVATIONS] += slots * 2 * rows * row_bytes(job); // final norm and head
    double vocabulary = (double)job->model.vocab / layout->mesh.size[MESH_TP];
    m->bytes[PLAN_LOGITS] = tokens_of(job) * vocabulary * (job->stack->fused_loss ? 2 : 10);
}

static void add_messages(const struct job *job, struct plan_memory *m) {
    const struct layout *layout = &job->layout;
    double whole = tokens_of(job) * row_bytes(job);
    if (layout->sequence_parallel) m->bytes[PLAN_MESSAGES] += whole;
    if (layout->mesh.size[MESH_PP] > 1)
        m->bytes[PLAN_MESSAGES] +=
            2 * whole / (layout->sequence_parallel ? layout->mesh.size[MESH_TP] : 1);
}

int plan_memory_stack(const struct job *job, const struct pipeline *pipeline,
                      struct plan_memory *ranks, struct err *err) {
    (void)err;
    for (int stage = 0; stage < pipeline->stages; stage++)
        add_stage(job, pipeline, stage, &ranks[layout_stage_rank(&job->layout, stage)]);
    for (int i = 0; i < job->layout.mesh.size[MESH_PP]; i++) add_messages(job, &ranks[i]);
    return 0;
}
