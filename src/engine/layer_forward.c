// One layer forward, operation by operation, and the part of it that recomputation repeats before
// backward. Both run the same functions on the same stored tensors, which is why no recomputation
// mode changes a bit.
//
// Norms before the blocks: x_mid = x + attention(norm(x)), x' = x_mid + mlp(norm(x_mid)); the sum
// joins the next norm's pass. Norms after (OLMo-2):    x_mid = x + norm(attention(x)), x' = x_mid +
// norm(mlp(x_mid)).
#include "engine/seals.h"
#include <math.h>

static bool norms_before(const struct engine *e) {
    return e->model->config.norm_place == NORM_BEFORE;
}

struct device_norm layer_norm(struct engine *e, int weight, int bias, const void *x, void *y,
                              float *rstd, float *mean, int64_t tokens) {
    const struct model_config *c = &e->model->config;
    return (struct device_norm){.type = e->type,
                                .tokens = tokens,
                                .width = c->hidden,
                                .centred = c->norm == NORM_LAYER,
                                .eps = c->norm_eps,
                                .x = x,
                                .y = y,
                                .weight = engine_vector(e, weight),
                                .bias = engine_vector(e, bias),
                                .rstd = rstd,
                                .mean = mean};
}

struct device_rope layer_rope(struct engine *e, int layer, const struct batch *batch) {
    const struct model_config *c = &e->model->config;
    struct engine_layer *l = &e->layers[layer];
    bool normed = c->qk_norm != QK_NORM_NONE;
    return (struct device_rope){.type = e->type,
                                .tokens = batch->tokens,
                                .heads = c->heads,
                                .kv_heads = c->kv_heads,
                                .head_dim = c->head_dim,
                                .qkv_in = normed ? l->act[ACT_QKV_RAW] : l->act[ACT_QKV],
                                .qkv_out = l->act[ACT_QKV],
                                .position = batch->position,
                                .cosine = e->single[SINGLE_COSINE],
                                .sine = e->single[SINGLE_SINE],
                                .q_norm = engine_vector(e, l->param[PARAM_Q_NORM]),
                                .k_norm = engine_vector(e, l->param[PARAM_K_NORM]),
                                .norm_over_all_heads = c->qk_norm == QK_NORM_FULL,
                                .eps = c->norm_eps,
                                .q_rstd = l->act[ACT_Q_RSTD],
                                .k_rstd = l->act[ACT_K_RSTD]};
}

struct device_attention layer_attention(struct engine *e, int layer, const struct batch *batch) {
    const struct model_config *c = &e->model->config;
    struct engine_layer *l = &e->layers[layer];
    const char *qkv = l->act[ACT_QKV];
    size_t element = dtype_bytes(e->type);
    return (struct device_attention){.type = e->type,
                                     .queries = batch->tokens,
                                     .keys = batch->tokens,
                                     .heads = c->heads,
                                     .kv_heads = c->kv_heads,
                                     .head_dim = c->head_dim,
                                     .scale = 1.0 / sqrt(c->head_dim),
                                     .window = l->window,
                                     .q = qkv,
                                     .k = qkv + (size_t)model_q_width(c) * element,
                                     .v = qkv +
                                          (size_t)(model_q_width(c) + model_kv_width(c)) * element,
                                     .q_stride = model_qkv_width(c),
                                     .kv_stride = model_qkv_width(c),
                                     .attend_from = batch->attend_from,
                                     .attend_to = batch->attend_to,
                                     .out = l->act[ACT_ATTENTION],
                                     .out_stride = model_q_width(c),
                                     .lse = l->act[ACT_LSE],
                                     .workspace = e->single[SINGLE_KERNELS]};
}

// This rank's output features of all tokens.
static void column_linear(struct engine *e, int weight, int bias, const struct batch *batch,
                          const void *shard, void *y) {
    const struct device_weight *w = &e->weight[weight];
    const void *x = tensor_gather(e, batch, shard, e->single[SINGLE_GATHERED]);
    e->device->linear_forward(e->device, w, batch->tokens, x, w->k, engine_vector(e, bias), y, w->n,
                              e->type);
    products_forward(e, weight, batch->tokens, x, engine_vector(e, bias), y, e->type);
}

// All output features from this rank's input features, added over tp. The bias enters once.
static void row_linear(struct engine *e, int weight, int bias, const struct batch *batch,
                       const void *x, void *out) {
    const struct device_weight *w = &e->weight[weight];
    void *partial = tensor_partial(e, out);
    const float *once = e->tp_index == 0 ? engine_vector(e, bias) : NULL;
    e->device->linear_forward(e->device, w, batch->tokens, x, w->k, once, partial, w->n, e->type);
    products_forward(e, weight, batch->tokens, x, once, partial, e->type);
    tensor_reduce(e, batch, partial, out);
}

// `carried`: the MLP output of the layer below waits in SINGLE_DELTA and joins the residual stream
// in this pass.
static void attention_norm(struct engine *e, int layer, bool carried, int64_t tokens) {
    struct engine_layer *l = &e->layers[layer];
    struct device_norm norm = layer_norm(
        e, l->param[PARAM_ATTENTION_NORM], l->param[PARAM_ATTENTION_NORM_BIAS], l->act[ACT_INPUT],
        l->act[ACT_NORM1], l->act[ACT_RSTD1], l->act[ACT_MEAN1], tokens);
    if (carried) {
        norm.x = e->layers[layer - 1].act[ACT_MIDDLE];
        norm.delta = e->single[SINGLE_DELTA];
        norm.residual = l->act[ACT_INPUT];
    }
    e->device->norm_forward(e->device, &norm);
}

static void project_qkv(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    const void *x = norms_before(e) ? l->act[ACT_NORM1] : l->act[ACT_INPUT];
    void *qkv = l->act[ACT_QKV_RAW] ? l->act[ACT_QKV_RAW] : l->act[ACT_QKV];
    column_linear(e, l->param[PARAM_QKV], l->param[PARAM_QKV_BIAS], batch, x, qkv);
}

static void rotate(struct engine *e, int layer, const struct batch *batch) {
    struct device_rope rope = layer_rope(e, layer, batch);
    if (rope.cosine || rope.q_norm) e->device->rope_forward(e->device, &rope);
}

static void project_out(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    void *out = norms_before(e) ? e->single[SINGLE_DELTA] : l->act[ACT_ATTENTION_OUT];
    row_linear(e, l->param[PARAM_OUT], l->param[PARAM_OUT_BIAS], batch, l->act[ACT_ATTENTION], out);
    layer_dropout(e, layer, DROPOUT_ATTENTION, batch, out, out);
}

// Norm of a block's output (after): result in SINGLE_DELTA.
static void after_norm(struct engine *e, int weight, int bias, const void *x, float *rstd,
                       float *mean, int64_t tokens) {
    struct device_norm norm =
        layer_norm(e, weight, bias, x, e->single[SINGLE_DELTA], rstd, mean, tokens);
    e->device->norm_forward(e->device, &norm);
}

static void after_attention_norm(struct engine *e, int layer, int64_t tokens) {
    struct engine_layer *l = &e->layers[layer];
    after_norm(e, l->param[PARAM_ATTENTION_NORM], l->param[PARAM_ATTENTION_NORM_BIAS],
               l->act[ACT_ATTENTION_OUT], l->act[ACT_RSTD1], l->act[ACT_MEAN1], tokens);
}

static void after_mlp_norm(struct engine *e, int layer, int64_t tokens) {
    struct engine_layer *l = &e->layers[layer];
    after_norm(e, l->param[PARAM_MLP_NORM], l->param[PARAM_MLP_NORM_BIAS], l->act[ACT_DOWN],
               l->act[ACT_RSTD2], l->act[ACT_MEAN2], tokens);
}

static void join(struct engine *e, const void *x, void *sum, int64_t tokens) {
    e->device->add(e->device, e->type, tokens * e->model->config.hidden, x, e->single[SINGLE_DELTA],
                   sum);
}

// `carried`: the attention's output in SINGLE_DELTA joins the residual stream in this pass.
static void mlp_norm(struct engine *e, int layer, bool carried, int64_t tokens) {
    struct engine_layer *l = &e->layers[layer];
    struct device_norm norm =
        layer_norm(e, l->param[PARAM_MLP_NORM], l->param[PARAM_MLP_NORM_BIAS], l->act[ACT_MIDDLE],
                   l->act[ACT_NORM2], l->act[ACT_RSTD2], l->act[ACT_MEAN2], tokens);
    if (carried) {
        norm.x = l->act[ACT_INPUT];
        norm.delta = e->single[SINGLE_DELTA];
        norm.residual = l->act[ACT_MIDDLE];
    }
    e->device->norm_forward(e->device, &norm);
}

static void mlp_up(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    const void *x = norms_before(e) ? l->act[ACT_NORM2] : l->act[ACT_MIDDLE];
    column_linear(e, l->param[PARAM_UP], l->param[PARAM_UP_BIAS], batch, x, l->act[ACT_UP]);
}

static void mlp_down(struct engine *e, int layer, const struct batch *batch) {
    int64_t tokens = batch->tokens;
    const struct model_config *c = &e->model->config;
    struct engine_layer *l = &e->layers[layer];
    if (c->activation == ACTIVATION_SWIGLU)
        e->device->swiglu_forward(e->device, e->type, tokens, c->ffn, l->act[ACT_UP],
                                  l->act[ACT_ACTIVATED]);
    else
        e->device->gelu_forward(e->device, e->type, tokens * c->ffn, l->act[ACT_UP],
                                l->act[ACT_ACTIVATED]);
    void *out = norms_before(e) ? e->single[SINGLE_DELTA] : l->act[ACT_DOWN];
    row_linear(e, l->param[PARAM_DOWN], l->param[PARAM_DOWN_BIAS], batch, l->act[ACT_ACTIVATED],
               out);
    layer_dropout(e, layer, DROPOUT_MLP, batch, out, out);
}

// The whole MLP of a layer with experts; `again`: redone.
static void mlp_experts(struct engine *e, int layer, const struct batch *batch, bool again) {
    struct engine_layer *l = &e->layers[layer];
    bool before = norms_before(e);
    void *out = before ? e->single[SINGLE_DELTA] : l->act[ACT_DOWN];
    const void *x = tensor_gather(e, batch, before ? l->act[ACT_NORM2] : l->act[ACT_MIDDLE],
                                  e->single[SINGLE_GATHERED]);
    void *partial = tensor_partial(e, out);
    layer_moe_forward(e, layer, batch, x, partial, again);
    tensor_reduce(e, batch, partial, out);
    layer_dropout(e, layer, DROPOUT_MLP, batch, out, out);
}

// `carried`: the MLP output of the layer below waits in SINGLE_DELTA. With norms before, this
// layer's own is left there for the next norm; with norms after, the layer's output goes to `next`.
void layer_forward(struct engine *e, int layer, const struct batch *batch, bool carried,
                   void *next) {
    struct engine_layer *l = &e->layers[layer];
    int64_t tokens = engine_residual(e, batch);
    bool before = norms_before(e);
    if (before) attention_norm(e, layer, carried, tokens);
    project_qkv(e, layer, batch);
    rotate(e, layer, batch);
    layer_attend(e, layer, batch);
    project_out(e, layer, batch);
    if (before) {
        mlp_norm(e, layer, true, tokens);
    } else {
        after_attention_norm(e, layer, tokens);
        join(e, l->act[ACT_INPUT], l->act[ACT_MIDDLE], tokens);
    }
    if (l->param[PARAM_ROUTER] >= 0) {
        mlp_experts(e, layer, batch, false);
    } else {
        mlp_up(e, layer, batch);
        mlp_down(e, layer, batch);
    }
    if (before) return;
    after_mlp_norm(e, layer, tokens);
    join(e, l->act[ACT_MIDDLE], next, tokens);
}

// Redoes what the mode did not keep; the activation itself is redone inside its backward pass.
void layer_recompute(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    int64_t tokens = engine_residual(e, batch);
    bool before = norms_before(e), normed = l->act[ACT_QKV_RAW] != NULL;
    bool keeps_projection = normed ? e->keeps[ACT_QKV_RAW] : e->keeps[ACT_QKV];
    if (before && !e->keeps[ACT_NORM1]) attention_norm(e, layer, false, tokens);
    if (!keeps_projection) project_qkv(e, layer, batch);
    if (!e->keeps[ACT_QKV]) rotate(e, layer, batch);
    if (!e->keeps[ACT_ATTENTION]) layer_attend(e, layer, batch);
    if (before) {
        if (!e->keeps[ACT_MIDDLE]) project_out(e, layer, batch);
        if (!e->keeps[ACT_NORM2]) mlp_norm(e, layer, !e->keeps[ACT_MIDDLE], tokens);
    } else {
        if (!e->keeps[ACT_ATTENTION_OUT]) project_out(e, layer, batch);
        if (!e->keeps[ACT_RSTD1]) after_attention_norm(e, layer, tokens);
        if (!e->keeps[ACT_MIDDLE]) join(e, l->act[ACT_INPUT], l->act[ACT_MIDDLE], tokens);
    }
    bool experts = l->param[PARAM_ROUTER] >= 0; // their backward redoes what it needs itself
    if (!experts && !e->keeps[ACT_UP]) mlp_up(e, layer, batch);
    if (before) return;
    if (!e->keeps[ACT_DOWN] && experts) mlp_experts(e, layer, batch, true);
    if (!e->keeps[ACT_DOWN] && !experts) mlp_down(e, layer, batch);
    if (!e->keeps[ACT_RSTD2]) after_mlp_norm(e, layer, tokens);
}
