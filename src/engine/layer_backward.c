// One layer backward in two halves. The input half turns the gradient of the layer's output into
// that of its input and leaves every intermediate gradient in the layer's flows (that of the
// activation's input in ACT_UP, over the value that is no longer needed). The weight half makes the
// gradients of matrices and biases from them and may run later. Norm weights get their gradients in
// the input half, in the same order of micro-batches.
#include "engine/seals.h"

void layer_norm_backward(struct engine *e, int weight, int bias, const void *x, const void *dy,
                         const float *rstd, const float *mean, const void *dx_add, void *dx,
                         int64_t tokens) {
    bool store = engine_first(e, weight);
    if (bias >= 0) engine_first(e, bias); // the kernel writes both
    struct device_norm_backward args = {.type = e->type,
                                        .tokens = tokens,
                                        .width = e->model->config.hidden,
                                        .centred = e->model->config.norm == NORM_LAYER,
                                        .x = x,
                                        .dy = dy,
                                        .weight = engine_vector(e, weight),
                                        .rstd = rstd,
                                        .mean = mean,
                                        .dx_add = dx_add,
                                        .dx = dx,
                                        .dweight = engine_gradient(e, weight),
                                        .dbias = engine_gradient(e, bias),
                                        .store = store,
                                        .workspace = e->single[SINGLE_KERNELS]};
    e->device->norm_backward(e->device, &args);
}

static void row_input_gradient(struct engine *e, int weight, int64_t tokens, const void *dy,
                               void *dx) {
    const struct device_weight *w = &e->weight[weight];
    e->device->linear_backward_input(e->device, w, tokens, dy, w->n, dx, w->k);
    products_input(e, weight, tokens, dy, dx);
}

// This rank's output features contribute to the gradient of every input feature.
static void column_input_gradient(struct engine *e, int weight, const struct batch *batch,
                                  const void *dy, void *dx) {
    const struct device_weight *w = &e->weight[weight];
    void *partial = tensor_partial(e, dx);
    e->device->linear_backward_input(e->device, w, batch->tokens, dy, w->n, partial, w->k);
    products_input(e, weight, batch->tokens, dy, partial);
    tensor_reduce(e, batch, partial, dx);
}

static void add(struct engine *e, int64_t tokens, const void *a, const void *b, void *sum) {
    e->device->add(e->device, e->type, tokens * e->model->config.hidden, a, b, sum);
}

// What the MLP's first products read: all tokens.
static const void *mlp_input(struct engine *e, const struct engine_layer *l,
                             const struct batch *batch) {
    bool before = e->model->config.norm_place == NORM_BEFORE;
    return tensor_gather(e, batch, l->act[before ? ACT_NORM2 : ACT_MIDDLE],
                         e->single[SINGLE_GATHERED]);
}

// Gradient of the MLP's input from that of its output in FLOW_DOWN, into `dx`.
static void mlp_backward(struct engine *e, int layer, const struct batch *batch, void *dx) {
    struct engine_layer *l = &e->layers[layer];
    int64_t tokens = batch->tokens;
    const struct model_config *c = &e->model->config;
    void *wide = e->single[SINGLE_WIDE], *up = l->act[ACT_UP];
    void *redone = e->keeps[ACT_ACTIVATED] ? NULL : l->act[ACT_ACTIVATED];
    const void *dy = tensor_gather(e, batch, l->flow[FLOW_DOWN], l->flow[FLOW_DOWN_ALL]);
    if (l->param[PARAM_ROUTER] >= 0) {
        const void *x = mlp_input(e, l, batch);
        void *partial = tensor_partial(e, dx);
        layer_moe_backward_input(e, layer, batch, x, dy, partial);
        tensor_reduce(e, batch, partial, dx);
        return;
    }
    row_input_gradient(e, l->param[PARAM_DOWN], tokens, dy, wide);
    if (c->activation == ACTIVATION_SWIGLU)
        e->device->swiglu_backward(e->device, e->type, tokens, c->ffn, up, wide, up, redone);
    else
        e->device->gelu_backward(e->device, e->type, tokens * c->ffn, up, wide, up, redone);
    column_input_gradient(e, l->param[PARAM_UP], batch, up, dx);
}

// Gradient of the attention block's input from that of its output in FLOW_PROJECT, into `dx`.
static void attention_backward(struct engine *e, int layer, const struct batch *batch, void *dx) {
    struct engine_layer *l = &e->layers[layer];
    void *dqkv = l->flow[FLOW_QKV];
    const void *dy = tensor_gather(e, batch, l->flow[FLOW_PROJECT], l->flow[FLOW_PROJECT_ALL]);
    row_input_gradient(e, l->param[PARAM_OUT], batch->tokens, dy, e->single[SINGLE_WIDE]);
    layer_attend_backward(e, layer, batch, e->single[SINGLE_WIDE], dqkv);
    struct device_rope_backward rope = {.forward = layer_rope(e, layer, batch),
                                        .dqkv_in = dqkv,
                                        .dqkv_out = dqkv,
                                        .dq_norm = engine_gradient(e, l->param[PARAM_Q_NORM]),
                                        .dk_norm = engine_gradient(e, l->param[PARAM_K_NORM]),
                                        .workspace = e->single[SINGLE_KERNELS]};
    if (rope.forward.q_norm) {
        rope.store = engine_first(e, l->param[PARAM_Q_NORM]);
        engine_first(e, l->param[PARAM_K_NORM]); // the kernel writes both
    }
    if (rope.forward.cosine || rope.forward.q_norm) e->device->rope_backward(e->device, &rope);
    column_input_gradient(e, l->param[PARAM_QKV], batch, dqkv, dx);
}

void layer_backward_input(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    int64_t tokens = engine_residual(e, batch);
    bool before = e->model->config.norm_place == NORM_BEFORE;
    int norm1 = l->param[PARAM_ATTENTION_NORM], bias1 = l->param[PARAM_ATTENTION_NORM_BIAS];
    int norm2 = l->param[PARAM_MLP_NORM], bias2 = l->param[PARAM_MLP_NORM_BIAS];
    void *out = l->flow[FLOW_OUT], *middle = l->flow[FLOW_MIDDLE], *in = l->flow[FLOW_IN];
    layer_recompute(e, layer, batch);
    if (before) {
        layer_dropout(e, layer, DROPOUT_MLP, batch, out, l->flow[FLOW_DOWN]);
        mlp_backward(e, layer, batch, middle);
        layer_norm_backward(e, norm2, bias2, l->act[ACT_MIDDLE], middle, l->act[ACT_RSTD2],
                            l->act[ACT_MEAN2], out, middle, tokens);
        layer_dropout(e, layer, DROPOUT_ATTENTION, batch, middle, l->flow[FLOW_PROJECT]);
        attention_backward(e, layer, batch, in);
        layer_norm_backward(e, norm1, bias1, l->act[ACT_INPUT], in, l->act[ACT_RSTD1],
                            l->act[ACT_MEAN1], middle, in, tokens);
        return;
    }
    layer_norm_backward(e, norm2, bias2, l->act[ACT_DOWN], out, l->act[ACT_RSTD2],
                        l->act[ACT_MEAN2], NULL, l->flow[FLOW_DOWN], tokens);
    layer_dropout(e, layer, DROPOUT_MLP, batch, l->flow[FLOW_DOWN], l->flow[FLOW_DOWN]);
    mlp_backward(e, layer, batch, middle);
    add(e, tokens, out, middle, middle);
    layer_norm_backward(e, norm1, bias1, l->act[ACT_ATTENTION_OUT], middle, l->act[ACT_RSTD1],
                        l->act[ACT_MEAN1], NULL, l->flow[FLOW_PROJECT], tokens);
    layer_dropout(e, layer, DROPOUT_ATTENTION, batch, l->flow[FLOW_PROJECT], l->flow[FLOW_PROJECT]);
    attention_backward(e, layer, batch, in);
    add(e, tokens, middle, in, in);
}

static void weight_gradient(struct engine *e, int weight, int bias, int64_t tokens, const void *dy,
                            const void *x) {
    const struct device_weight *w = &e->weight[weight];
    bool store = engine_first(e, weight);
    products_before(e, weight, store);
    e->device->linear_backward_weight(e->device, w, tokens, dy, w->n, x, w->k,
                                      engine_gradient(e, weight), store);
    products_weight(e, weight, tokens, dy, x);
    seals_written(e, weight); // while it is near
    if (bias >= 0)
        e->device->bias_backward(e->device, e->type, tokens, w->n, dy, w->n,
                                 engine_gradient(e, bias), engine_first(e, bias),
                                 e->single[SINGLE_KERNELS]);
}

void layer_backward_weight(struct engine *e, int layer, const struct batch *batch) {
    struct engine_layer *l = &e->layers[layer];
    int64_t tokens = batch->tokens;
    bool before = e->model->config.norm_place == NORM_BEFORE;
    void *gathered = e->single[SINGLE_GATHERED];
    const void *x = mlp_input(e, l, batch);
    if (l->param[PARAM_ROUTER] >= 0) {
        layer_moe_backward_weight(e, layer, batch, x, l->flow[FLOW_DOWN_ALL]);
    } else {
        weight_gradient(e, l->param[PARAM_DOWN], l->param[PARAM_DOWN_BIAS], tokens,
                        l->flow[FLOW_DOWN_ALL], l->act[ACT_ACTIVATED]);
        weight_gradient(e, l->param[PARAM_UP], l->param[PARAM_UP_BIAS], tokens, l->act[ACT_UP], x);
    }
    weight_gradient(e, l->param[PARAM_OUT], l->param[PARAM_OUT_BIAS], tokens,
                    l->flow[FLOW_PROJECT_ALL], l->act[ACT_ATTENTION]);
    x = tensor_gather(e, batch, l->act[before ? ACT_NORM1 : ACT_INPUT], gathered);
    weight_gradient(e, l->param[PARAM_QKV], l->param[PARAM_QKV_BIAS], tokens, l->flow[FLOW_QKV], x);
}
