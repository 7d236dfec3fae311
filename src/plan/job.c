// Jobs: defaults, checks, and what follows from a job alone. See job.h.
#include "plan/job.h"

void job_defaults(struct job *job) {
    *job = (struct job){.layout = {.mesh = {.size = {1, 1, 1, 1},
                                            .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                            .ep = 1,
                                            .shard = 1},
                                   .chunks = 1},
                        .schedule = PIPELINE_1F1B,
                        .rows = 1,
                        .micro_batches = 1,
                        .precision = HARDWARE_BF16,
                        .imbalance = 1,
                        .seals_optimizer = true,
                        .seals_gradients = true,
                        .seals_weights = true,
                        .seals_products = true,
                        .gather_type = DTYPE_BF16,
                        .reduce_type = DTYPE_F32,
                        .accumulate_type = DTYPE_F32};
}

struct pipeline_shape job_pipeline_shape(const struct job *job, int micro_batches) {
    return (struct pipeline_shape){.kind = job->schedule,
                                   .ranks = job->layout.mesh.size[MESH_PP],
                                   .chunks = job->layout.chunks,
                                   .micro_batches = micro_batches,
                                   .gather = job->layout.zero > 0,
                                   .reduce = true};
}

void job_cost_shape(const struct job *job, struct stack *room, struct cost_shape *out) {
    *room = *job->stack;
    if (job->no_overlap)
        room->overlap_reduce = room->overlap_gather = room->overlap_tensor =
            room->overlap_pipeline = room->overlap_experts = false;
    *out = (struct cost_shape){.model = &job->model,
                               .cluster = &job->cluster,
                               .stack = room,
                               .mesh = job->layout.mesh,
                               .sequence_parallel = job->layout.sequence_parallel,
                               .rows = job->rows,
                               .context = job->context,
                               .recompute = job->recompute,
                               .precision = job->precision,
                               .gather_keys = job->gather_keys,
                               .imbalance = job->imbalance,
                               .predictions = job->predictions,
                               .threads = job->threads,
                               .dropout = job->dropout,
                               .no_overlap = job->no_overlap};
}

// ---- elements

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

double job_head_elements(const struct job *job) {
    int tp = job->layout.mesh.size[MESH_TP];
    return (double)(round_up(job->model.vocab, 64 * (int64_t)tp) / tp * job->model.hidden);
}

double job_table_elements(const struct job *job) {
    double positions = job->model.learned_positions ? job->model.context : 0;
    return job_head_elements(job) + positions * job->model.hidden;
}

// Keys and values have a head on every tensor rank, also where there are fewer heads than ranks.
static double attention_elements(const struct model_config *c, int tp) {
    double hidden = c->hidden, out = (double)model_value_width(c) / tp * hidden;
    if (!model_is_latent(c)) {
        double kv_heads = c->kv_heads > tp ? (double)c->kv_heads / tp : 1;
        return ((double)model_q_width(c) / tp + 2 * kv_heads * c->head_dim) * hidden + out;
    }
    double q = (double)model_q_width(c) / tp, latent = c->q_lora_rank;
    double queries = latent > 0 ? latent * (hidden + q) : q * hidden;
    double width = (double)c->heads / tp * (c->head_dim - c->qk_rope_head_dim + c->v_head_dim);
    return queries + (c->kv_lora_rank + c->qk_rope_head_dim) * hidden + width * c->kv_lora_rank +
           out;
}

static double layer_vectors(const struct model_config *c, int layer, int tp) {
    double sum = (c->norm == NORM_LAYER ? 4.0 : 2.0) * c->hidden;
    if (c->qkv_bias) sum += (double)model_qkv_width(c) / tp;
    if (c->out_bias) sum += c->hidden;
    if (c->mlp_bias && !model_layer_has_experts(c, layer))
        sum += (c->activation == ACTIVATION_SWIGLU ? 2.0 : 1.0) * c->ffn / tp + c->hidden;
    if (model_is_latent(c)) sum += c->q_lora_rank + c->kv_lora_rank;
    if (c->qk_norm == QK_NORM_HEAD) sum += 2.0 * c->head_dim;
    if (c->qk_norm == QK_NORM_FULL) sum += (double)(model_q_width(c) + model_kv_width(c)) / tp;
    return sum;
}

struct job_elements job_layer_elements(const struct job *job, int layer) {
    const struct model_config *c = &job->model;
    int tp = job->layout.mesh.size[MESH_TP];
    double hidden = c->hidden;
    struct job_elements e = {.dense = attention_elements(c, tp),
                             .vectors = layer_vectors(c, layer, tp)};
    if (model_layer_has_experts(c, layer)) {
        e.dense += c->experts * hidden + 3.0 * hidden * c->shared_ffn / tp;
        int cut = job->stack->experts_whole ? 1 : tp;
        e.expert = (double)c->experts / job->layout.mesh.ep * 3 * hidden * c->expert_ffn / cut;
    } else
        e.dense += (c->activation == ACTIVATION_SWIGLU ? 3 : 2) * hidden * c->ffn / tp;
    return e;
}

struct job_elements job_stage_elements(const struct job *job, int stage) {
    const struct model_config *c = &job->model;
    const struct layout *l = &job->layout;
    struct job_elements sum = {0};
    bool first = stage == 0, last = stage == layout_stages(l) - 1;
    for (int i = l->layer_first[stage]; i < l->layer_first[stage + 1]; i++) {
        struct job_elements e = job_layer_elements(job, i);
        sum.dense += e.dense;
        sum.expert += e.expert;
        sum.vectors += e.vectors;
    }
    if (first) sum.dense += job_table_elements(job);
    bool own_table = first && c->tied_head;
    if (last) sum.vectors += (c->norm == NORM_LAYER ? 2.0 : 1.0) * c->hidden;
    if (last && !own_table) sum.dense += job_head_elements(job);
    return sum;
}

// ---- checks

static int check_figures(const struct job *job, struct err *err) {
    const struct cluster *c = &job->cluster;
    const struct accelerator *a = &c->accelerator;
    int64_t there = (int64_t)c->nodes * c->per_node, wanted = 1;
    for (int axis = 0; axis < MESH_AXES && wanted <= there; axis++)
        wanted *= job->layout.mesh.size[axis];
    if (!job->stack) return err_set(err, ERR_INTERNAL, "plan: a job without a stack");
    if (wanted > there)
        return err_set(err, ERR_USAGE,
                       "plan: the layout has %lld ranks, cluster %s has %d nodes of %d: %lld; "
                       "expected no more ranks than accelerators",
                       (long long)wanted, c->name ? c->name : "", c->nodes, c->per_node,
                       (long long)there);
    if (job->precision < 0 || job->precision >= HARDWARE_PRECISIONS ||
        (a->dense[job->precision].value <= 0 && a->product_count == 0))
        return err_set(err, ERR_USAGE, "plan: %s has no rate for %s products; another precision?",
                       a->name ? a->name : "the accelerator",
                       job->precision >= 0 && job->precision < HARDWARE_PRECISIONS
                           ? hardware_precision_name(job->precision)
                           : "unknown");
    if (!(job->imbalance >= 1) || job->imbalance > 1e6)
        return err_set(err, ERR_USAGE,
                       "plan: imbalance %g; expected the busiest rank's tokens over the mean, 1 "
                       "or more",
                       job->imbalance);
    if (!(job->checkpoint_seconds >= 0) || !(job->data_seconds >= 0))
        return err_set(err, ERR_USAGE, "plan: stalls of %g and %g seconds; expected 0 or more",
                       job->checkpoint_seconds, job->data_seconds);
    return 0;
}

static int check_schedule(const struct job *job, struct err *err) {
    const struct layout *l = &job->layout;
    bool v = job->schedule == PIPELINE_ZB_V;
    if ((unsigned)job->schedule >= PIPELINE_KIND_COUNT)
        return err_set(err, ERR_INTERNAL, "plan: schedule %d", (int)job->schedule);
    if (v != (l->placement == PLACE_V) && l->mesh.size[MESH_PP] > 1)
        return err_set(err, ERR_USAGE, "plan: schedule %s with stages placed in %s; expected %s",
                       pipeline_kind_name(job->schedule), v ? "a row" : "a V", v ? "a V" : "a row");
    bool many = job->schedule == PIPELINE_INTERLEAVED || job->schedule == PIPELINE_FILE;
    if (!many && l->chunks != (v ? 2 : 1))
        return err_set(err, ERR_USAGE, "plan: schedule %s has %d stage%s per rank, not %d",
                       pipeline_kind_name(job->schedule), v ? 2 : 1, v ? "s" : "", l->chunks);
    if (job->schedule == PIPELINE_FILE && !job->schedule_csv)
        return err_set(err, ERR_INTERNAL, "plan: a schedule from a file without its text");
    return 0;
}

// Stages of other programs may be without a layer (an embedding or a head alone).
static int check_split(const struct job *job, struct err *err) {
    const struct layout *l = &job->layout;
    int stages = layout_stages(l);
    bool whole = stages >= 1 && stages <= LAYOUT_MAX_STAGES && l->layer_first[0] == 0 &&
                 l->layer_first[stages] == job->model.layers;
    for (int s = 0; whole && s < stages; s++) whole = l->layer_first[s] <= l->layer_first[s + 1];
    if (whole) return 0;
    return err_set(err, ERR_INTERNAL, "plan: the layers of %d stages do not add up to %d", stages,
                   job->model.layers);
}

static int check_other(const struct job *job, struct err *err) {
    if (job->context < 1 || job->rows < 1 || job->micro_batches < 1)
        return err_set(
            err, ERR_USAGE,
            "plan: a step has %d micro-batches of %d sequences of %d tokens; each number "
            "is at least 1",
            job->micro_batches, job->rows, job->context);
    if (job->layout.zero < 0 || job->layout.zero > 3)
        return err_set(err, ERR_USAGE, "plan: zero is %d; stages are 0 to 3", job->layout.zero);
    const struct mesh *mesh = &job->layout.mesh;
    return mesh_check(mesh, mesh_ranks(mesh), err) != 0 ? -1 : check_split(job, err);
}

int job_check(const struct job *job, struct err *err) {
    if (check_figures(job, err) != 0 || check_schedule(job, err) != 0) return -1;
    if (!job->stack->own) return check_other(job, err);
    struct model model = {.config = job->model};
    return layout_check(&job->layout, &model, job->context, job->rows, job->micro_batches, err);
}
