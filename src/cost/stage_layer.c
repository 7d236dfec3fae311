// A layer's passes: norms, projections, MLP, and what joins them. The engine's own order is that of
// engine/layer_forward.c, layer_backward.c; other stacks do the same work with more kernels where
// they fuse less.
#include "cost/list.h"

// ---- pieces that are bound by memory -----------------------------------------------------------

static bool swiglu(const struct cost_list *l) {
    return l->model->activation == ACTIVATION_SWIGLU;
}

static bool norms_before(const struct cost_list *l) {
    return l->model->norm_place == NORM_BEFORE;
}

static double stream(const struct cost_list *l) {
    return (double)l->residual * (double)l->hidden;
}

// PyTorch has one kernel for LayerNorm; RMSNorm is written in single operations where nothing fuses
// them.
static bool fuses_norm(const struct cost_list *l) {
    return l->stack->fused_norm || l->model->norm == NORM_LAYER;
}

void cost_norm_forward(struct cost_list *l, bool joined) {
    double reads_and_writes = joined && l->stack->own ? 4 : 2;
    if (fuses_norm(l)) {
        cost_kernel(l, "norm", KERNEL_NORM, stream(l), reads_and_writes * l->element);
        return;
    }
    // to FP32, square, mean, scale, back, weight: each a kernel
    cost_kernel(l, "norm", KERNEL_NORM, stream(l), 32)->launches = 6;
}

// Gradients of input and weights; that of the residual stream joins in the same pass, or in one
// more.
void cost_norm_backward(struct cost_list *l) {
    if (l->stack->own) {
        cost_kernel(l, "norm gradient", KERNEL_NORM_BACKWARD, stream(l), 4 * l->element);
        return;
    }
    struct cost_op *op =
        cost_kernel(l, "norm gradient", KERNEL_NORM_BACKWARD, stream(l), 5 * l->element);
    op->launches = 3;
    if (!fuses_norm(l)) {
        op->launches = 12;
        op->bytes = stream(l) * 64;
    }
    cost_kernel(l, "add", KERNEL_ADD, stream(l), 3 * l->element);
}

void cost_activation_forward(struct cost_list *l, double tokens, double width) {
    double elements = tokens * width;
    enum hardware_kernel kernel = swiglu(l) ? KERNEL_SWIGLU : KERNEL_GELU;
    struct cost_op *op = cost_kernel(l, swiglu(l) ? "swiglu" : "gelu", kernel, elements,
                                     (swiglu(l) ? 3 : 2) * l->element);
    if (l->stack->fused_activation || !(swiglu(l) || l->model->mlp_bias)) return;
    op->launches = 2; // silu, then the product; or the bias, then gelu
    op->bytes += 2 * elements * l->element;
}

void cost_activation_backward(struct cost_list *l, double tokens, double width) {
    double elements = tokens * width;
    enum hardware_kernel kernel = swiglu(l) ? KERNEL_SWIGLU_BACKWARD : KERNEL_GELU_BACKWARD;
    struct cost_op *op = cost_kernel(l, swiglu(l) ? "swiglu gradient" : "gelu gradient", kernel,
                                     elements, (swiglu(l) ? 5 : 3) * l->element);
    if (l->stack->fused_activation || !swiglu(l)) return;
    op->launches = 4;
    op->bytes += 5 * elements * l->element;
}

void cost_join_forward(struct cost_list *l, bool bias) {
    bool drops = l->stack->own ? l->shape->dropout > 0 : l->stack->dropout;
    if (l->stack->own) { // the sum is made by the next norm
        if (drops) cost_kernel(l, "dropout", KERNEL_DROPOUT, stream(l), 2 * l->element);
        if (!norms_before(l)) cost_kernel(l, "add", KERNEL_ADD, stream(l), 3 * l->element);
        return;
    }
    struct cost_op *op = cost_kernel(l, "add", KERNEL_ADD, stream(l), 3 * l->element);
    if (drops) op->bytes += stream(l); // the mask
    if (l->stack->fused_residual) return;
    op->launches += bias + drops;
    op->bytes += stream(l) * l->element * 2 * (bias + drops);
}

void cost_join_backward(struct cost_list *l, bool bias) {
    bool drops = l->stack->own ? l->shape->dropout > 0 : l->stack->dropout;
    if (drops) cost_kernel(l, "dropout", KERNEL_DROPOUT, stream(l), 2 * l->element + 1);
    if (l->stack->own && !norms_before(l))
        cost_kernel(l, "add", KERNEL_ADD, stream(l), 3 * l->element);
    if (bias && !l->stack->own)
        cost_kernel(l, "bias gradient", KERNEL_BIAS_BACKWARD, stream(l), l->element);
}

static void bias_gradient(struct cost_list *l, bool bias, int64_t width) {
    if (!bias) return;
    cost_kernel(l, "bias gradient", KERNEL_BIAS_BACKWARD, (double)l->tokens * (double)width,
                l->element);
}

// ---- widths ------------------------------------------------------------------------------------

// A linear map of a layer, in all three forms: the projections of queries, keys and values are one,
// or those of latent attention.
struct linear {
    const char *name;
    int64_t n, k;
};

static int qkv_linears(const struct cost_list *l, struct linear out[4]) {
    const struct model_config *c = l->model;
    int count = 0;
    if (!model_is_latent(c)) {
        out[0] = (struct linear){"qkv", (l->heads + 2 * l->kv_heads) * l->head_dim, l->hidden};
        return 1;
    }
    int64_t queries = l->heads * l->head_dim;
    int64_t width = l->head_dim - c->qk_rope_head_dim + l->value_dim;
    if (c->q_lora_rank > 0) {
        out[count++] = (struct linear){"q down", c->q_lora_rank, l->hidden};
        out[count++] = (struct linear){"q up", queries, c->q_lora_rank};
    } else {
        out[count++] = (struct linear){"q", queries, l->hidden};
    }
    out[count++] = (struct linear){"kv down", c->kv_lora_rank + c->qk_rope_head_dim, l->hidden};
    out[count++] = (struct linear){"kv up", l->heads * width, c->kv_lora_rank};
    return count;
}

// Norms of the latents, and the shared part of the keys copied to every head.
static void latent_kernels(struct cost_list *l, bool backward) {
    const struct model_config *c = l->model;
    if (!model_is_latent(c)) return;
    double latents = (double)l->tokens * (c->q_lora_rank + c->kv_lora_rank);
    double keys = (double)l->tokens * (double)l->heads * (double)l->head_dim;
    if (backward)
        cost_kernel(l, "norm gradient", KERNEL_NORM_BACKWARD, latents, 4 * l->element)->launches =
            4;
    else
        cost_kernel(l, "norm", KERNEL_NORM, latents, 2 * l->element)->launches = 2;
    if (!l->stack->own) cost_kernel(l, "copy", KERNEL_COPY, keys, 2 * l->element)->launches = 2;
}

static int64_t up_width(const struct cost_list *l) {
    return (swiglu(l) ? 2 : 1) * l->ffn;
}

static bool has_experts(const struct cost_list *l) {
    return model_layer_has_experts(l->model, l->layer);
}

// ---- forward -----------------------------------------------------------------------------------

static void project_qkv(struct cost_list *l) {
    cost_gather(l, "gather qkv");
    struct linear linears[4];
    int count = qkv_linears(l, linears);
    for (int i = 0; i < count; i++)
        cost_linear(l, linears[i].name, l->tokens, linears[i].n, linears[i].k);
    latent_kernels(l, false);
}

static void project_out(struct cost_list *l) {
    cost_linear(l, "out", l->tokens, l->hidden, l->heads * l->value_dim);
    cost_reduce(l, "reduce out");
    cost_join_forward(l, l->model->out_bias);
}

static void mlp_up(struct cost_list *l) {
    cost_gather(l, "gather up");
    cost_linear(l, "up", l->tokens, up_width(l), l->hidden);
}

static void mlp_down(struct cost_list *l) {
    cost_activation_forward(l, (double)l->tokens, (double)l->ffn);
    cost_linear(l, "down", l->tokens, l->hidden, l->ffn);
    cost_reduce(l, "reduce down");
    cost_join_forward(l, l->model->mlp_bias);
}

static void experts(struct cost_list *l) {
    if (!cost_experts_apart(l)) cost_gather(l, "gather experts");
    cost_experts_forward(l);
    if (!cost_experts_apart(l)) cost_reduce(l, "reduce experts");
    cost_join_forward(l, false);
}

static void forward(struct cost_list *l) {
    bool before = norms_before(l);
    if (before) cost_norm_forward(l, true);
    project_qkv(l);
    cost_attention_forward(l);
    project_out(l);
    cost_norm_forward(l, before);
    if (has_experts(l)) {
        experts(l);
    } else {
        mlp_up(l);
        mlp_down(l);
    }
    if (!before) cost_norm_forward(l, false);
}

// ---- backward ----------------------------------------------------------------------------------

static void experts_input(struct cost_list *l) {
    bool apart = cost_experts_apart(l);
    if (!apart) cost_gather(l, "gather gradient");
    if (l->stack->own) cost_gather(l, "gather experts");
    cost_experts_input(l);
    if (!apart) cost_reduce_gradient(l);
}

static void input_gradients(struct cost_list *l) {
    bool before = norms_before(l);
    if (!before) cost_norm_backward(l);
    cost_join_backward(l, l->model->mlp_bias && !has_experts(l));
    if (has_experts(l)) {
        experts_input(l);
    } else {
        cost_gather(l, "gather gradient");
        cost_linear_input(l, "down", l->tokens, l->hidden, l->ffn);
        cost_activation_backward(l, (double)l->tokens, (double)l->ffn);
        cost_linear_input(l, "up", l->tokens, up_width(l), l->hidden);
        cost_reduce_gradient(l);
    }
    cost_norm_backward(l);
    cost_join_backward(l, l->model->out_bias);
    cost_gather(l, "gather gradient");
    cost_linear_input(l, "out", l->tokens, l->hidden, l->heads * l->value_dim);
    cost_attention_backward(l);
    struct linear linears[4];
    latent_kernels(l, true);
    for (int i = qkv_linears(l, linears) - 1; i >= 0; i--)
        cost_linear_input(l, linears[i].name, l->tokens, linears[i].n, linears[i].k);
    cost_reduce_gradient(l);
    if (before) cost_norm_backward(l);
}

static void weight_gradients(struct cost_list *l) {
    const struct model_config *c = l->model;
    if (!has_experts(l) || !cost_experts_apart(l)) cost_gather_again(l, "gather up");
    if (has_experts(l)) {
        cost_experts_weight(l);
    } else {
        cost_linear_weight(l, "down", l->tokens, l->hidden, l->ffn);
        cost_linear_weight(l, "up", l->tokens, up_width(l), l->hidden);
        bias_gradient(l, c->mlp_bias, up_width(l));
        if (l->stack->own) bias_gradient(l, c->mlp_bias, l->hidden);
    }
    cost_linear_weight(l, "out", l->tokens, l->hidden, l->heads * l->value_dim);
    if (l->stack->own) bias_gradient(l, c->out_bias, l->hidden);
    cost_gather_again(l, "gather qkv");
    struct linear linears[4];
    int count = qkv_linears(l, linears);
    for (int i = 0; i < count; i++) {
        cost_linear_weight(l, linears[i].name, l->tokens, linears[i].n, linears[i].k);
        bias_gradient(l, c->qkv_bias, linears[i].n);
    }
}

// ---- recomputation -----------------------------------------------------------------------------

// As engine/layer_forward.c: layer_recompute. The activation is redone inside its backward pass.
static void recompute_own(struct cost_list *l) {
    enum engine_recompute mode = l->shape->recompute;
    bool before = norms_before(l), whole = mode == RECOMPUTE_FULL;
    if (before) cost_norm_forward(l, false);
    if (whole) {
        project_qkv(l);
        cost_attention_forward(l);
        project_out(l);
    }
    if (before || whole) cost_norm_forward(l, whole && before);
    if (has_experts(l)) {
        if (!before) experts(l);
        return;
    }
    if (mode != RECOMPUTE_SELECTIVE) mlp_up(l);
    if (before) return;
    mlp_down(l);
    cost_norm_forward(l, false);
}

// Of the products of a layer that are apart in torchtitan (q, k, v, out, gate, up, down) every
// second one is done again, and all that is no product.
static void recompute_half(struct cost_list *l) {
    cost_norm_forward(l, false);
    cost_linear(l, "k", l->tokens, l->kv_heads * l->head_dim, l->hidden);
    cost_rotate(l, false);
    cost_linear(l, "out", l->tokens, l->hidden, l->heads * l->value_dim);
    cost_join_forward(l, l->model->out_bias);
    cost_norm_forward(l, false);
    if (has_experts(l)) return;
    cost_linear(l, "up", l->tokens, l->ffn, l->hidden);
    cost_activation_forward(l, (double)l->tokens, (double)l->ffn);
}

// Checkpointing of a layer runs all of its forward pass; "selective" redoes the attention between
// the projections (Korthikanti et al. 2022) or what the stack says.
static void recompute_other(struct cost_list *l) {
    enum engine_recompute mode = l->shape->recompute;
    if (mode == RECOMPUTE_FULL) {
        forward(l);
    } else if (l->stack->selective == STACK_SELECTIVE_HALF) {
        recompute_half(l);
    } else if (l->stack->selective == STACK_SELECTIVE_CORE) {
        cost_attention_forward(l);
        if (mode == RECOMPUTE_SELECTIVE_MLP && !has_experts(l)) mlp_up(l);
    } else {
        recompute_own(l);
    }
}

static void recompute(struct cost_list *l) {
    if (l->shape->recompute == RECOMPUTE_NONE) return;
    if (l->stack->own)
        recompute_own(l);
    else
        recompute_other(l);
}

int cost_list_layer(const struct cost_shape *shape, int layer, enum cost_pass pass,
                    struct cost_ops *out, struct err *err) {
    static void (*const passes[COST_PASSES])(struct cost_list *) = {forward, input_gradients,
                                                                    weight_gradients, recompute};
    struct cost_list l;
    if (layer < 0 || layer >= shape->model->layers)
        return err_set(err, ERR_USAGE, "layer %d was asked of a model with the layers 0 to %d",
                       layer, shape->model->layers - 1);
    if (cost_list_open(&l, shape, out, err) != 0) return -1;
    l.layer = layer;
    passes[pass](&l);
    return cost_list_close(&l, err);
}
