// Counting operations; the conventions stand in flops.h.
#include "model/flops.h"
#include <stddef.h>

// Of the experts those that one token visits, with the router that chooses them.
static int64_t mlp_matmul_params(const struct model_config *c, int layer) {
    if (model_layer_has_experts(c, layer))
        return (c->experts + 3 * ((int64_t)c->top_k * c->expert_ffn + c->shared_ffn)) * c->hidden;
    return (c->activation == ACTIVATION_SWIGLU ? 3 : 2) * (int64_t)c->ffn * c->hidden;
}

static int64_t attention_matmul_params(const struct model_config *c) {
    int64_t out = model_value_width(c) * c->hidden;
    if (!model_is_latent(c)) return model_qkv_width(c) * c->hidden + out;
    int64_t queries = c->q_lora_rank > 0 ? c->q_lora_rank * (c->hidden + model_q_width(c))
                                         : model_q_width(c) * c->hidden;
    int64_t keys = (c->kv_lora_rank + c->qk_rope_head_dim) * (int64_t)c->hidden;
    int64_t width = c->head_dim - c->qk_rope_head_dim + c->v_head_dim;
    return queries + keys + c->heads * width * c->kv_lora_rank + out;
}

int64_t flops_matmul_params(const struct model_config *c) {
    int64_t sum = (int64_t)c->vocab * c->hidden;
    for (int i = 0; i < c->layers; i++) sum += attention_matmul_params(c) + mlp_matmul_params(c, i);
    return sum;
}

int64_t flops_all_params(const struct model_config *c) {
    struct model model;
    if (model_describe(&model, c, NULL) != 0) return -1;
    int64_t sum = 0;
    for (int i = 0; i < model.param_count; i++) sum += param_elements(&model.params[i]);
    model_free(&model);
    return sum;
}

int64_t flops_active_params(const struct model_config *c) {
    int64_t all = flops_all_params(c);
    if (all < 0) return -1;
    int64_t idle = 3 * (int64_t)(c->experts - c->top_k) * c->expert_ffn * c->hidden;
    for (int i = 0; i < c->layers; i++)
        if (model_layer_has_experts(c, i)) all -= idle;
    return all;
}

int64_t flops_attended_pairs(int64_t tokens, int64_t window) {
    if (window <= 0 || window >= tokens) return tokens * (tokens + 1) / 2;
    return window * (window + 1) / 2 + (tokens - window) * window;
}

// One attended pair costs a product of length head_dim in Q K^T and one of a value's width in P V,
// two operations per multiply-add, and twice that backward: 12 operations per element of the heads'
// width where the two are equal.
static double pair_flops(const struct model_config *c) {
    return 6.0 * (double)(model_q_width(c) + model_value_width(c));
}

double flops_per_token_full(const struct model_config *c, int64_t context) {
    return 6.0 * (double)flops_matmul_params(c) + pair_flops(c) * c->layers * (double)context;
}

double flops_per_token_half(const struct model_config *c, int64_t context) {
    return 6.0 * (double)flops_matmul_params(c) + pair_flops(c) * c->layers * (double)context / 2;
}

double flops_per_token_causal(const struct model_config *c, int64_t context) {
    double pairs = 0;
    for (int i = 0; i < c->layers; i++)
        pairs += (double)flops_attended_pairs(context, c->layer_window[i]);
    return 6.0 * (double)flops_matmul_params(c) + pair_flops(c) * pairs / (double)context;
}

double flops_per_token_pairs(const struct model_config *c, double pairs_per_token) {
    return 6.0 * (double)flops_matmul_params(c) + pair_flops(c) * c->layers * pairs_per_token;
}
