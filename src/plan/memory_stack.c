// The memory plan of published training programs: states by the formulas of sharding, activations
// tensor by tensor (memory_kept.c), times the micro-batches that the schedule's own lists hold.
#include "plan/memory_kept.h"
#include "plan/memory_parts.h"

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double element_bytes(const struct job *job) {
    return job->precision == HARDWARE_FP32 ? 4 : 2;
}

static double gradient_bytes(const struct job *job) {
    return job->precision == HARDWARE_FP32 ? 4 : (double)dtype_bytes(job->accumulate_type);
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
    const struct stack *stack = job->stack;
    bool f32 = job->precision == HARDWARE_FP32, wide = job->accumulate_type == DTYPE_F32;
    // FSDP shards the FP32 weights themselves and rounds what it gathers.
    bool only_masters = !f32 && stack->masters && job->layout.zero == 3;
    if (!only_masters) m->bytes[PLAN_WEIGHTS] += sharded(job, e, element_bytes(job), 3);
    m->bytes[PLAN_GRADIENTS] += sharded(job, e, gradient_bytes(job), 2);
    if (!f32 && wide && stack->both_gradients) m->bytes[PLAN_GRADIENTS] += sharded(job, e, 2, 2);
    if (!f32 && !wide && stack->step_gradients) m->bytes[PLAN_GRADIENTS] += sharded(job, e, 4, 1);
    // DeepSpeed's BF16 optimizer flattens the weights into a copy and leaves a hole behind
    if (!f32 && wide && stack->step_gradients)
        m->bytes[PLAN_FRAGMENTATION] += sharded(job, e, 2, 3);
    if (!f32 && stack->masters) m->bytes[PLAN_MASTERS] += sharded(job, e, 4, 1);
    m->bytes[PLAN_MOMENTS] += sharded(job, e, 8, 1);
}

// ---- activations

static double tokens_of(const struct job *job) {
    return (double)job->rows * job->context / job->layout.mesh.size[MESH_CP];
}

// [tokens, hidden] of a micro-batch, and the part of it that a rank holds under sequence
// parallelism.
static double tensor_bytes(const struct job *job) {
    return tokens_of(job) * job->model.hidden * element_bytes(job);
}

static double part_bytes(const struct job *job) {
    const struct layout *layout = &job->layout;
    return tensor_bytes(job) / (layout->sequence_parallel ? layout->mesh.size[MESH_TP] : 1);
}

// What a stage holds of one micro-batch: from its forward to the end of backward or of its input
// half, and from there to the weight half.
struct held {
    double whole, halved;
};

// The most at a time, walking the rank's list: an allocator gives back what is freed.
static double most_held(const struct schedule *list, const struct held *held) {
    double now = 0, most = 0;
    for (int i = 0; i < list->count; i++) {
        const struct held *h = &held[list->actions[i].stage];
        switch (list->actions[i].kind) {
        case ACTION_FORWARD:
            now += h->whole;
            break;
        case ACTION_BACKWARD:
            now -= h->whole;
            break;
        case ACTION_BACKWARD_INPUT:
            now += h->halved - h->whole;
            break;
        case ACTION_BACKWARD_WEIGHT:
            now -= h->halved;
            break;
        default:
            break;
        }
        most = larger(most, now);
    }
    return most;
}

// One expert's matrices of a layer with experts, all of one that has none.
static double shapes_elements(const struct job *job, const struct job_elements *layer) {
    double local = (double)job->model.experts / job->layout.mesh.ep;
    return layer->dense + (layer->expert > 0 ? layer->expert / local : 0);
}

// What is there once, however many layers there are.
struct once {
    double working, unit, tables, dummy, elements;
};

static void look_at_layers(const struct job *job, int stage, struct held *held, struct once *once) {
    const int *first = &job->layout.layer_first[stage];
    for (int l = first[0]; l < first[1]; l++) {
        struct plan_layer layer;
        struct job_elements e = job_layer_elements(job, l);
        double matrices = e.dense + e.expert;
        plan_layer_kept(job, l, &layer);
        held->whole += layer.kept_bytes;
        held->halved += layer.halved_bytes;
        once->working = larger(once->working, layer.working_bytes);
        once->dummy = larger(once->dummy, element_bytes(job) * shapes_elements(job, &e));
        // weights of the unit in use and of the next one, gradients until they are scattered
        once->unit = larger(once->unit, matrices * (2 * element_bytes(job) + gradient_bytes(job)));
    }
}

static double table_elements(const struct job *job) {
    return (double)job->model.vocab * job->model.hidden / job->layout.mesh.size[MESH_TP];
}

static double loss_bytes(const struct job *job) {
    const struct stack *stack = job->stack;
    double each = stack->loss_bytes.value;
    if (job->layout.mesh.size[MESH_TP] > 1 && stack->spread_loss_bytes.value > 0)
        each = stack->spread_loss_bytes.value;
    // unless said: the gradient in the place of the logits, or FP32 logits and their softmax beside
    if (each <= 0) each = stack->fused_loss ? element_bytes(job) : 4 + 4 + element_bytes(job);
    double vocabulary = (double)job->model.vocab / job->layout.mesh.size[MESH_TP];
    double head = table_elements(job) * element_bytes(job);
    return tokens_of(job) * vocabulary * each + (stack->dummy_gradients ? head : 0);
}

static void add_rank(const struct job *job, const struct pipeline *pipeline, int rank,
                     struct plan_memory *m) {
    const struct layout *layout = &job->layout;
    struct held held[LAYOUT_MAX_STAGES] = {{0}};
    struct once once = {0};
    double tensor = tensor_bytes(job), part = part_bytes(job);
    for (int stage = 0; stage < pipeline->stages; stage++) {
        if (layout_stage_rank(layout, stage) != rank) continue;
        struct job_elements e = job_stage_elements(job, stage);
        add_states(job, &e, m);
        once.elements += e.dense + e.expert;
        look_at_layers(job, stage, &held[stage], &once);
        if (stage == 0 && job->dropout > 0) held[0].whole += part / element_bytes(job); // its mask
        if (stage < pipeline->stages - 1) continue;
        held[stage].whole += 2 * part; // of the final norm
        held[stage].halved += part;
        m->bytes[PLAN_LOGITS] = loss_bytes(job);
        // a unit of its own that stays gathered from forward to backward
        once.tables = table_elements(job) * (element_bytes(job) + gradient_bytes(job));
    }
    m->bytes[PLAN_ACTIVATIONS] = most_held(&pipeline->compute[rank], held);
    // The loss is taken before any layer is worked on backward; what the layers need beyond its
    // room stands beside it.
    m->bytes[PLAN_WORKING] = larger(0, once.working - m->bytes[PLAN_LOGITS]);
    if (job->stack->dummy_gradients) m->bytes[PLAN_WORKSPACE] += once.dummy;
    // In a pipeline the weights stay gathered and gradients add up whole until the last
    // micro-batch.
    bool stay = layout->mesh.size[MESH_PP] > 1 && !job->reduce_per_micro_batch;
    if (layout->zero == 3 && stay)
        m->bytes[PLAN_MESSAGES] += once.elements * (element_bytes(job) + gradient_bytes(job));
    else if (layout->zero == 3)
        m->bytes[PLAN_MESSAGES] += once.unit + once.tables;
    if (part < tensor) m->bytes[PLAN_MESSAGES] += 2 * tensor; // gathered, and its gradient
    // DeepSpeed flattens gradients into a bucket and gathers weights into another.
    if (job->stack->step_gradients && layout->zero > 0)
        m->bytes[PLAN_MESSAGES] += 2 * job->stack->bucket_bytes.value;
    if (layout->mesh.size[MESH_PP] > 1) m->bytes[PLAN_MESSAGES] += 2 * part;
}

int plan_memory_stack(const struct job *job, const struct pipeline *pipeline,
                      struct plan_memory *ranks, struct err *err) {
    (void)err;
    for (int i = 0; i < job->layout.mesh.size[MESH_PP]; i++) add_rank(job, pipeline, i, &ranks[i]);
    return 0;
}
