// Refuses model shapes that cannot be, before anything is allocated; see model.h.
#include "model/model.h"
#include <math.h>
#include <string.h>

// Sizes beyond these are typing errors or hostile files; below them no product of sizes overflows
// 64 bits.
enum {
    LARGEST_WIDTH = 1 << 20,
    LARGEST_VOCAB = 1 << 24,
    LARGEST_CONTEXT = 1 << 26,
    LARGEST_EXPERTS = 4096,
    LARGEST_TOP_K = 64
};

static int in_range(const char *key, int value, int largest, struct err *err) {
    if (value >= 1 && value <= largest) return 0;
    return err_set(err, ERR_USAGE, "model: %s is %d; it must lie between 1 and %d", key, value,
                   largest);
}

static int check_sizes(const struct model_config *c, struct err *err) {
    if (in_range("layers", c->layers, MODEL_MAX_LAYERS, err) != 0 ||
        in_range("hidden", c->hidden, LARGEST_WIDTH, err) != 0 ||
        in_range("heads", c->heads, 1 << 16, err) != 0 ||
        in_range("kv_heads", c->kv_heads, 1 << 16, err) != 0 ||
        in_range("head_dim", c->head_dim, 1 << 12, err) != 0 ||
        in_range("ffn", c->ffn, LARGEST_WIDTH, err) != 0 ||
        in_range("vocab", c->vocab, LARGEST_VOCAB, err) != 0 ||
        in_range("context", c->context, LARGEST_CONTEXT, err) != 0)
        return -1;
    if (c->heads % c->kv_heads != 0)
        return err_set(err, ERR_USAGE,
                       "model: heads (%d) is not a multiple of kv_heads (%d); every key and value "
                       "head serves the same number of query heads",
                       c->heads, c->kv_heads);
    if (!c->learned_positions && c->head_dim % 2 != 0)
        return err_set(err, ERR_USAGE,
                       "model: head_dim is %d; rotary positions turn pairs, so it must be even",
                       c->head_dim);
    return 0;
}

static int check_kind(const struct model_config *c, struct err *err) {
    bool gpt2 = c->family == FAMILY_GPT2;
    if (gpt2 && (c->norm != NORM_LAYER || c->norm_place != NORM_BEFORE ||
                 c->activation != ACTIVATION_GELU_TANH || c->qk_norm != QK_NORM_NONE ||
                 !c->learned_positions))
        return err_set(
            err, ERR_USAGE,
            "model: the gpt2 family has LayerNorm before each block, GELU (tanh), learned "
            "positions and no norm of queries and keys; use the llama family for other kinds");
    if (!gpt2 &&
        (c->norm != NORM_RMS || c->activation != ACTIVATION_SWIGLU || c->learned_positions))
        return err_set(err, ERR_USAGE,
                       "model: the llama family has RMSNorm, SwiGLU and rotary positions; use the "
                       "gpt2 family for LayerNorm, GELU and learned positions");
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        return err_set(err, ERR_USAGE,
                       "model: norm_eps is %g; it must lie between 0 and 1, usually 1e-6 to 1e-5",
                       c->norm_eps);
    if (!(c->init_std >= 0 && c->init_std <= 1))
        return err_set(err, ERR_USAGE,
                       "model: init_std is %g; it must lie between 0 and 1, usually 0.02",
                       c->init_std);
    for (int i = 0; i < c->layers; i++)
        if (c->layer_window[i] < 0)
            return err_set(err, ERR_USAGE,
                           "model: the window of layer %d is %d; it counts keys, 0 meaning all", i,
                           c->layer_window[i]);
    return 0;
}

static int check_experts(const struct model_config *c, struct err *err) {
    if (c->experts == 0) {
        if (c->top_k == 0 && c->expert_ffn == 0 && c->shared_ffn == 0) return 0;
        return err_set(err, ERR_USAGE,
                       "model: top_k is %d, expert_ffn %d and shared_ffn %d in a model without "
                       "experts; set experts, or these three to 0",
                       c->top_k, c->expert_ffn, c->shared_ffn);
    }
    if (in_range("experts", c->experts, LARGEST_EXPERTS, err) != 0 ||
        in_range("expert_ffn", c->expert_ffn, LARGEST_WIDTH, err) != 0)
        return -1;
    if (c->top_k < 1 || c->top_k > c->experts || c->top_k > LARGEST_TOP_K)
        return err_set(
            err, ERR_USAGE, "model: top_k is %d; a token visits between 1 and %d of the %d experts",
            c->top_k, c->experts < LARGEST_TOP_K ? c->experts : LARGEST_TOP_K, c->experts);
    if (c->shared_ffn < 0 || c->shared_ffn > LARGEST_WIDTH)
        return err_set(err, ERR_USAGE,
                       "model: shared_ffn is %d; it must lie between 0 (no shared expert) and %d",
                       c->shared_ffn, LARGEST_WIDTH);
    if (c->family != FAMILY_LLAMA || c->mlp_bias)
        return err_set(err, ERR_USAGE,
                       "model: experts are SwiGLU MLPs without biases; use the llama family with "
                       "mlp_bias off, or experts 0");
    if (!(c->aux_coefficient >= 0 && isfinite(c->aux_coefficient)))
        return err_set(err, ERR_USAGE,
                       "model: aux_coefficient is %g; it must be 0 or more, usually 0.001 to 0.01",
                       c->aux_coefficient);
    for (int i = 0; i < c->layers; i++)
        if (!c->layer_dense[i]) return 0;
    return err_set(err, ERR_USAGE,
                   "model: %d experts, but every layer is dense; make a layer one of experts, or "
                   "set experts to 0",
                   c->experts);
}

static int check_latent(const struct model_config *c, struct err *err) {
    if (c->kv_lora_rank == 0) {
        if (c->q_lora_rank == 0 && c->qk_rope_head_dim == 0 && c->v_head_dim == 0) return 0;
        return err_set(err, ERR_USAGE,
                       "model: q_lora_rank is %d, qk_rope_head_dim %d and v_head_dim %d in a model "
                       "without latent attention; set kv_lora_rank, or these three to 0",
                       c->q_lora_rank, c->qk_rope_head_dim, c->v_head_dim);
    }
    if (in_range("kv_lora_rank", c->kv_lora_rank, LARGEST_WIDTH, err) != 0 ||
        in_range("v_head_dim", c->v_head_dim, 1 << 12, err) != 0)
        return -1;
    if (c->q_lora_rank < 0 || c->q_lora_rank > LARGEST_WIDTH)
        return err_set(err, ERR_USAGE,
                       "model: q_lora_rank is %d; it must lie between 0 (queries without a latent) "
                       "and %d",
                       c->q_lora_rank, LARGEST_WIDTH);
    if (c->qk_rope_head_dim < 2 || c->qk_rope_head_dim % 2 || c->qk_rope_head_dim > c->head_dim)
        return err_set(err, ERR_USAGE,
                       "model: qk_rope_head_dim is %d; it must be even, at least 2 and at most "
                       "head_dim (%d)",
                       c->qk_rope_head_dim, c->head_dim);
    if (c->family != FAMILY_LLAMA || c->kv_heads != c->heads || c->qk_norm != QK_NORM_NONE ||
        c->qkv_bias)
        return err_set(err, ERR_USAGE,
                       "model: latent attention belongs to the llama family, with as many kv_heads "
                       "(%d) as heads (%d), without qk_norm and qkv_bias",
                       c->kv_heads, c->heads);
    return 0;
}

static int check_rope(const struct model_config *c, struct err *err) {
    const struct model_rope *r = &c->rope;
    if (c->learned_positions) return 0;
    if (!(r->theta > 0 && isfinite(r->theta)))
        return err_set(err, ERR_USAGE,
                       "model: rope theta is %g; it must be positive, usually 10000 or more",
                       r->theta);
    if (r->scaling == ROPE_PLAIN) return 0;
    if (!(r->factor >= 1 && isfinite(r->factor)))
        return err_set(err, ERR_USAGE,
                       "model: the rope scaling factor is %g; it must be at least 1", r->factor);
    if (r->scaling == ROPE_DYNAMIC_NTK && c->head_dim < 4)
        return err_set(err, ERR_USAGE,
                       "model: head_dim is %d; dynamic rope scaling needs at least 4", c->head_dim);
    if (r->scaling != ROPE_LINEAR && r->original_context < 1)
        return err_set(err, ERR_USAGE,
                       "model: this rope scaling needs the original context, which is %d",
                       r->original_context);
    if (r->scaling == ROPE_LLAMA3 &&
        !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor))
        return err_set(
            err, ERR_USAGE,
            "model: rope low_freq_factor (%g) must be positive and below high_freq_factor (%g)",
            r->low_freq_factor, r->high_freq_factor);
    if (r->scaling == ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast >= r->beta_slow &&
                                     r->attention_factor >= 0 && r->theta > 1))
        return err_set(err, ERR_USAGE,
                       "model: yarn needs 0 < beta_slow (%g) <= beta_fast (%g), an "
                       "attention_factor (%g) of 0 or more and a theta (%g) above 1",
                       r->beta_slow, r->beta_fast, r->attention_factor, r->theta);
    return 0;
}

int model_config_check(const struct model_config *c, struct err *err) {
    if (check_sizes(c, err) != 0 || check_kind(c, err) != 0 || check_experts(c, err) != 0 ||
        check_latent(c, err) != 0 || check_rope(c, err) != 0)
        return -1;
    if (memchr(c->variant, 0, sizeof c->variant) == NULL)
        return err_set(err, ERR_INTERNAL, "model: the variant's name is not terminated");
    if (c->stop_count < 0 || c->stop_count > MODEL_MAX_STOPS)
        return err_set(err, ERR_USAGE, "model: %d stop ids; at most %d are kept", c->stop_count,
                       MODEL_MAX_STOPS);
    return 0;
}
