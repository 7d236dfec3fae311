// The engine's part of the memory plan: the sizes that only the device knows, and the products made
// ahead of time.
#include "engine/state.h"
#include <math.h>
#include <stdlib.h>

struct rank_shape engine_shape(const struct engine_options *options) {
    int64_t tokens = (int64_t)options->rows * options->context;
    return (struct rank_shape){.compute = options->compute,
                               .recompute = options->recompute,
                               .train = options->train,
                               .split_backward = options->split_backward,
                               .tokens = tokens,
                               .micro_batches = options->micro_batches,
                               .context = options->context,
                               .chunk =
                                   tokens < DEVICE_TOKEN_CHUNK ? (int)tokens : DEVICE_TOKEN_CHUNK,
                               .other_bytes = options->other_bytes};
}

static bool enters_product(const struct model *model, int param) {
    const struct param *p = &model->params[param];
    switch (p->role) {
    case PARAM_QKV:
    case PARAM_OUT:
    case PARAM_UP:
    case PARAM_DOWN:
    case PARAM_HEAD:
        return true;
    case PARAM_EMBEDDING:
        return model->config.tied_head;
    default:
        return false;
    }
}

// Shapes, and which copies there will be: the packed pointers are set to something that is not
// NULL, the real ones come later.
void engine_describe_weights(const struct model *model, struct device *device,
                             const struct rank_shape *shape, struct device_weight *weights,
                             uint64_t *pack_forward, uint64_t *pack_backward) {
    for (int i = 0; i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        weights[i] =
            (struct device_weight){p->rows_padded, p->columns, shape->compute, NULL, NULL, NULL};
        pack_forward[i] = pack_backward[i] = 0;
        if (!enters_product(model, i)) continue;
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

int engine_prepare(struct device *device, const struct model *model, const struct rank_shape *shape,
                   struct device_weight *weights, int64_t tokens, uint64_t *bytes,
                   struct err *err) {
    *bytes = 0;
    int head = model_param(model, -1, model->config.tied_head ? PARAM_EMBEDDING : PARAM_HEAD);
    for (int i = 0; i < model->param_count; i++) {
        if (!enters_product(model, i)) continue;
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
    return 0;
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

static int check_shape(const struct model_config *c, const struct rank_shape *s, struct err *err) {
    if (s->tokens < 1 || s->micro_batches < 1)
        return err_set(err, ERR_USAGE,
                       "a micro-batch needs at least one row and one position, and a step at least "
                       "one micro-batch");
    if (s->tokens > INT32_MAX)
        return err_set(err, ERR_USAGE, "%lld tokens in a micro-batch: at most %d",
                       (long long)s->tokens, INT32_MAX);
    if (c->learned_positions && s->context > c->context)
        return err_set(err, ERR_USAGE,
                       "context %d is longer than the model's position table of %d rows",
                       s->context, c->context);
    if (s->split_backward && s->recompute != RECOMPUTE_NONE)
        return err_set(err, ERR_USAGE,
                       "separate weight halves of backward need recompute none: they read what "
                       "recomputation would overwrite");
    return 0;
}

int engine_enumerate(struct memory_plan *plan, struct rank_buffers *buffers,
                     const struct model *model, struct device *device,
                     const struct rank_shape *shape, struct err *err) {
    if (check_shape(&model->config, shape, err) != 0) return -1;
    size_t params = (size_t)model->param_count;
    struct device_weight *weights = calloc(params, sizeof *weights);
    uint64_t *pack = calloc(2 * params, sizeof *pack);
    int status = -1;
    if (weights && pack) {
        struct rank_workspace workspace = {pack, pack + params, 0, 0};
        engine_describe_weights(model, device, shape, weights, pack, pack + params);
        status = engine_prepare(device, model, shape, weights, shape->tokens,
                                &workspace.products_bytes, err);
        workspace.kernels_bytes = kernel_bytes(device, &model->config, shape);
        if (status == 0) status = rank_plan(plan, buffers, model, shape, &workspace, err);
    } else {
        err_set(err, ERR_MEMORY, "no memory for the description of %zu parameters", params);
    }
    free(weights);
    free(pack);
    return status;
}

int engine_plan(struct memory_plan *plan, const struct model *model, struct device *device,
                const struct engine_options *options, struct err *err) {
    struct rank_shape shape = engine_shape(options);
    struct rank_buffers *buffers = malloc(sizeof *buffers);
    if (!buffers) return err_set(err, ERR_MEMORY, "no memory for the memory plan");
    int status = engine_enumerate(plan, buffers, model, device, &shape, err);
    if (status == 0) rank_buffers_free(buffers);
    free(buffers);
    return status;
}
