// The engine's part of the memory plan: the rank's share of model and pipeline, the sizes that only
// the device knows, and the products made ahead of time.
#include "engine/moe.h"
#include "engine/state.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool enters_product(const struct model *model, int head, int param) {
    switch (model->params[param].role) {
    case PARAM_QKV:
    case PARAM_OUT:
    case PARAM_UP:
    case PARAM_DOWN:
    case PARAM_EXPERT_UP:
    case PARAM_EXPERT_DOWN:
    case PARAM_SHARED_UP:
    case PARAM_SHARED_DOWN:
        return true;
    default:
        return param == head;
    }
}

// Shapes, and which copies there will be: the packed pointers are set to something that is not
// NULL, the real ones come later.
void engine_describe_weights(const struct model *model, int head, struct device *device,
                             const struct rank_shape *shape, struct device_weight *weights,
                             uint64_t *pack_forward, uint64_t *pack_backward) {
    for (int i = 0; i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        weights[i] =
            (struct device_weight){p->rows_padded, p->columns, shape->compute, NULL, NULL, NULL};
        pack_forward[i] = pack_backward[i] = 0;
        if (!enters_product(model, head, i)) continue;
        pack_forward[i] = device->pack_bytes(device, &weights[i], false);
        if (shape->train) pack_backward[i] = device->pack_bytes(device, &weights[i], true);
        if (pack_forward[i]) weights[i].packed_forward = weights;
        if (pack_backward[i]) weights[i].packed_backward = weights;
    }
}

static int prepare_one(struct device *device, const struct rank_shape *shape,
                       const struct device_weight *w, int64_t tokens, enum dtype out,
                       uint64_t *most, struct err *err) {
    for (const char *kind = shape->train ? "fiw" : "f"; *kind; kind++) {
        uint64_t bytes = 0;
        if (device->prepare_linear(device, w, *kind, tokens, w->k, w->n,
                                   *kind == 'f' ? out : shape->compute, &bytes, err) != 0)
            return -1;
        if (bytes > *most) *most = bytes;
    }
    return 0;
}

int engine_prepare(struct device *device, const struct model *model, int head,
                   const struct rank_shape *shape, struct device_weight *weights, int64_t tokens,
                   uint64_t *bytes, struct err *err) {
    *bytes = 0;
    for (int i = 0; i < model->param_count; i++) {
        if (!enters_product(model, head, i) || model->params[i].expert >= 0) continue;
        if (i != head) {
            if (prepare_one(device, shape, &weights[i], tokens, shape->compute, bytes, err) != 0)
                return err_context(err, "%s", model->params[i].name);
            continue;
        }
        int64_t rest = tokens % shape->chunk;
        if (tokens >= shape->chunk &&
            prepare_one(device, shape, &weights[i], shape->chunk, DTYPE_F32, bytes, err) != 0)
            return err_context(err, "%s", model->params[i].name);
        if (rest && prepare_one(device, shape, &weights[i], rest, DTYPE_F32, bytes, err) != 0)
            return err_context(err, "%s", model->params[i].name);
    }
    return engine_moe_prepare(device, model, shape, weights, tokens, bytes, err);
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

// The largest workspace of the kernels that are no products: they run one after the other.
static uint64_t kernel_bytes(struct device *device, const struct model_config *c,
                             const struct rank_shape *s) {
    struct device_attention attention = {.type = s->compute,
                                         .queries = s->tokens,
                                         .keys = s->tokens,
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_dim = c->head_dim,
                                         .scale = 1.0 / sqrt(c->head_dim),
                                         .q_stride = model_qkv_width(c),
                                         .kv_stride = model_qkv_width(c),
                                         .out_stride = model_q_width(c)};
    uint64_t most = device->attention_workspace_bytes(device, &attention, false);
    if (!s->train) return most;
    most = larger(most, device->attention_workspace_bytes(device, &attention, true));
    most = larger(most, device->norm_backward_workspace_bytes(device, s->tokens, c->hidden));
    int64_t up = c->activation == ACTIVATION_SWIGLU ? 2 * (int64_t)c->ffn : c->ffn;
    most = larger(most, device->bias_backward_workspace_bytes(device, s->tokens, up));
    most = larger(most, device->bias_backward_workspace_bytes(device, s->tokens, c->hidden));
    most =
        larger(most, device->bias_backward_workspace_bytes(device, s->tokens, model_qkv_width(c)));
    struct device_rope rope = {.type = s->compute,
                               .tokens = s->tokens,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .norm_over_all_heads = c->qk_norm == QK_NORM_FULL};
    static const float some_weight = 1; // only whether there is one counts for the size
    if (c->qk_norm != QK_NORM_NONE) rope.q_norm = rope.k_norm = &some_weight;
    return larger(most, device->rope_backward_workspace_bytes(device, &rope));
}

static int check_options(const struct engine *e, struct err *err) {
    const struct engine_options *o = &e->options;
    const struct model_config *c = &e->whole->config;
    if (o->rows < 1 || o->context < 1 || o->micro_batches < 1)
        return err_set(err, ERR_USAGE,
                       "a micro-batch needs at least one row and one position, and a step at least "
                       "one micro-batch");
    int64_t tokens = (int64_t)o->rows * o->context;
    if (tokens > INT32_MAX)
        return err_set(err, ERR_USAGE, "%lld tokens in a micro-batch: at most %d",
                       (long long)tokens, INT32_MAX);
    if (c->learned_positions && o->context > c->context)
        return err_set(err, ERR_USAGE,
                       "context %d is longer than the model's position table of %d rows",
                       o->context, c->context);
    return 0;
}

// ---- the rank's share ---------------------------------------------------------------------------

static int open_pipeline(struct engine *e, struct err *err) {
    const struct engine_options *o = &e->options;
    struct pipeline_shape shape = {.kind = e->parallel.schedule,
                                   .ranks = e->layout.mesh.size[MESH_PP],
                                   .chunks = e->layout.chunks,
                                   .micro_batches = o->micro_batches,
                                   .gather = e->layout.zero > 0,
                                   .reduce = true};
    if (!o->parallel) shape.kind = o->split_backward ? PIPELINE_ZB_H1 : PIPELINE_1F1B;
    if (e->pipeline_given) {
        e->pipeline = *e->pipeline_given;
        e->schedule = &e->pipeline.ranks[e->local.at[MESH_PP]];
        return 0;
    }
    int result = shape.kind == PIPELINE_FILE
                     ? pipeline_open_csv(&e->pipeline, e->parallel.schedule_csv, "pipeline.file",
                                         &shape, err)
                     : pipeline_open(&e->pipeline, &shape, err);
    if (result != 0) return -1;
    e->schedule = &e->pipeline.ranks[e->local.at[MESH_PP]];
    return 0;
}

static int open_flat(struct engine *e, struct err *err) {
    uint64_t bucket_bytes = e->parallel.bucket_bytes ? e->parallel.bucket_bytes : 32000000;
    struct flat_options options = flat_options_for(&e->layout, e->rank, bucket_bytes);
    for (int g = 0; g < FLAT_GROUPS; g++) e->shape.ranks[g] = options.ranks[g];
    // gradients that move on after each micro-batch do so unit by unit, as in ZeRO-2
    options.by_unit =
        e->parallel.reduce_per_micro_batch || e->parallel.accumulate_type == DTYPE_BF16;
    return flat_open(&e->flat, &e->local, &options, err);
}

static bool splits_backward(const struct schedule *s) {
    for (int i = 0; i < s->count; i++)
        if (s->actions[i].kind == ACTION_BACKWARD_INPUT) return true;
    return false;
}

static int shape_stages(struct engine *e, struct err *err) {
    struct rank_shape *s = &e->shape;
    int pp = e->local.at[MESH_PP], stages = layout_stages(&e->layout);
    s->stage_count = e->local.stage_count;
    for (int i = 0; i < s->stage_count; i++) {
        int stage = e->local.stages[i].stage;
        bool train = e->options.train;
        s->stages[i] = (struct rank_stage){
            .part = e->local.stages[i],
            .slots = train ? e->pipeline.slots[stage] : 1,
            .flows = train ? e->pipeline.flows[stage] : 0,
            .previous_local = stage > 0 && layout_stage_rank(&e->layout, stage - 1) == pp,
            .next_local = stage + 1 < stages && layout_stage_rank(&e->layout, stage + 1) == pp};
        if (s->stages[i].slots > RANK_MOST_SLOTS)
            return err_set(err, ERR_USAGE,
                           "stage %d holds %d micro-batches at once, at most %d can be; choose "
                           "another pipeline.schedule or fewer micro-batches",
                           stage, s->stages[i].slots, RANK_MOST_SLOTS);
    }
    return 0;
}

static int make_shape(struct engine *e, struct err *err) {
    const struct engine_options *o = &e->options;
    const struct engine_parallel *p = &e->parallel;
    int64_t full = (int64_t)o->rows * o->context, tokens = full / e->cp;
    // the update looks at both on its way
    bool states = o->guards.optimizer || o->guards.weights_every > 0;
    struct rank_shape shape = {.compute = o->compute,
                               .recompute = o->recompute,
                               .train = o->train,
                               .dropout = o->dropout > 0,
                               .split_backward = o->train && splits_backward(e->schedule),
                               .tokens = tokens,
                               .residual = e->sequence ? tokens / e->tp : tokens,
                               .tp = e->tp,
                               .micro_batches = o->micro_batches,
                               .context = o->context,
                               .chunk =
                                   tokens < DEVICE_TOKEN_CHUNK ? (int)tokens : DEVICE_TOKEN_CHUNK,
                               .other_bytes = o->other_bytes,
                               .snapshots = o->snapshots,
                               .shared_batches_bytes = layer_context_batches_bytes(e),
                               .flat = &e->flat,
                               .zero = e->layout.zero,
                               .ranks = {e->shape.ranks[FLAT_DENSE], e->shape.ranks[FLAT_EXPERT]},
                               .ep = e->layout.mesh.ep,
                               .reduce_per_micro_batch = p->reduce_per_micro_batch,
                               .gather_type = p->gather_type,
                               .reduce_type = p->reduce_type,
                               .accumulate_type = p->accumulate_type,
                               .gathers_in_flight = p->gathers_in_flight,
                               .seals_optimizer = o->train && states,
                               .seals_gradients = o->train && o->guards.gradients,
                               .seals_weights = o->train && o->guards.weights_every > 0,
                               .seals_products = o->train && o->guards.products_every > 0,
                               .totals_only = e->totals_only};
    e->shape = shape;
    if (e->shape.split_backward && o->recompute != RECOMPUTE_NONE)
        return err_set(err, ERR_USAGE,
                       "separate weight halves of backward need recompute none: they read what "
                       "recomputation would overwrite");
    return shape_stages(e, err);
}

_Static_assert((int)RANK_WHOLE_BYTES == (int)COMM_WHOLE_BYTES,
               "scratch is planned for the sums that messages exchange whole");

// Of a sum of [tokens, hidden] over tp.
static uint64_t tensor_scratch_bytes(const struct engine *e) {
    int64_t elements = e->shape.tokens * (int64_t)e->model->config.hidden;
    return e->tp == 1 ? 0 : rank_sum_scratch_bytes(elements, e->tp, dtype_bytes(e->type));
}

static int describe(struct engine *e, struct err *err) {
    if (layout_local(&e->local, e->whole, &e->layout, e->rank, err) != 0) return -1;
    e->model = &e->local.model;
    e->tp = e->layout.mesh.size[MESH_TP];
    e->tp_index = e->local.at[MESH_TP];
    e->cp = e->layout.mesh.size[MESH_CP];
    e->cp_index = e->local.at[MESH_CP];
    e->sequence = e->layout.sequence_parallel && e->tp > 1;
    e->head = model_param(e->model, -1, PARAM_HEAD);
    bool last = e->local.stages[e->local.stage_count - 1].last;
    if (last && e->whole->config.tied_head) e->head = model_param(e->model, -1, PARAM_EMBEDDING);
    if (open_pipeline(e, err) != 0 || open_flat(e, err) != 0) return -1;
    return make_shape(e, err);
}

static int plan_memory(struct engine *e, struct err *err) {
    size_t params = (size_t)e->model->param_count;
    struct device_weight *weights = calloc(params, sizeof *weights);
    uint64_t *pack = calloc(2 * params, sizeof *pack);
    int status = -1;
    if (weights && pack) {
        struct rank_workspace workspace = {.pack_forward = pack, .pack_backward = pack + params};
        engine_describe_weights(e->model, e->head, e->device, &e->shape, weights, pack,
                                pack + params);
        status = engine_prepare(e->device, e->model, e->head, &e->shape, weights, e->shape.tokens,
                                &workspace.products_bytes, err);
        workspace.kernels_bytes = kernel_bytes(e->device, &e->model->config, &e->shape);
        workspace.tp_scratch_bytes = tensor_scratch_bytes(e);
        workspace.context_bytes = layer_context_bytes(e);
        struct rank_expert_buffer experts[MOE_BUFFER_COUNT + 1];
        struct moe_shape moe;
        workspace.experts = experts;
        workspace.expert_count = engine_moe_enumerate(e, experts, &moe);
        if (status == 0)
            status = rank_plan(&e->plan, &e->buffers, &e->local, &e->shape, &workspace, err);
    } else {
        err_set(err, ERR_MEMORY, "no memory for the description of %zu parameters", params);
    }
    free(weights);
    free(pack);
    return status;
}

int engine_enumerate(struct engine *e, struct err *err) {
    if (check_options(e, err) != 0) return -1;
    if (e->options.parallel) {
        e->parallel = *e->options.parallel;
        e->layout = *e->parallel.layout;
        e->rank = e->parallel.rank;
        if (layout_check(&e->layout, e->whole, e->options.context, e->options.rows,
                         e->options.micro_batches, err) != 0)
            return -1;
    } else {
        e->layout = layout_single(&e->whole->config);
        e->parallel = (struct engine_parallel){.gather_type = e->options.compute,
                                               .reduce_type = DTYPE_F32,
                                               .accumulate_type = DTYPE_F32};
    }
    e->type = e->options.compute;
    if (describe(e, err) == 0 && plan_memory(e, err) == 0) return 0;
    engine_describe_close(e);
    return -1;
}

void engine_describe_close(struct engine *e) {
    rank_buffers_free(&e->buffers);
    memory_plan_free(&e->plan);
    flat_close(&e->flat);
    if (!e->pipeline_given) pipeline_close(&e->pipeline);
    local_model_free(&e->local);
}

static int plan_only(struct memory_plan *plan, bool totals_only, const struct model *model,
                     struct device *device, const struct engine_options *options,
                     const struct pipeline *pipeline, struct err *err) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, ERR_MEMORY, "no memory for the memory plan");
    e->whole = model;
    e->device = device;
    e->options = *options;
    e->totals_only = totals_only;
    e->pipeline_given = pipeline;
    int status = engine_enumerate(e, err);
    if (status == 0) {
        *plan = e->plan;
        e->plan = (struct memory_plan){.buffers = NULL};
        engine_describe_close(e);
    }
    free(e);
    return status;
}

int engine_plan(struct memory_plan *plan, const struct model *model, struct device *device,
                const struct engine_options *options, struct err *err) {
    return plan_only(plan, false, model, device, options, NULL, err);
}

int engine_plan_totals(struct memory_plan *totals, const struct model *model, struct device *device,
                       const struct engine_options *options, const struct pipeline *pipeline,
                       struct err *err) {
    return plan_only(totals, true, model, device, options, pipeline, err);
}
