// The activations of a layer by the terms of Korthikanti et al. 2022 (arXiv 2205.05198, section 4:
// s b h (10 + 24 / t + 5 a s / (h t)) bytes for a GPT layer), each tensor by itself, so that other
// models and stacks change the terms that they change: grouped heads, gated MLPs, experts, fused
// kernels, no dropout, attention without stored scores, sequence parallelism.
#include "plan/memory_kept.h"

struct layer_shape {
    const struct job *job;
    const struct model_config *whole;
    struct model_config local; // sizes of a rank
    double tokens;             // of a micro-batch on this rank
    double rows;               // of them in the residual stream: cut under sequence parallelism
    double element;            // bytes
    double input;              // of an element of a product's input, as backward reads it
    double expert_rows, expert_ffn; // rows of a rank's experts, and their local width
    bool experts;
    enum engine_recompute mode;
    struct plan_layer *out;
};

static void keep(struct layer_shape *s, const char *name, double bytes) {
    if (bytes <= 0 || s->out->count == PLAN_MOST_KEPT) return;
    s->out->kept[s->out->count++] = (struct plan_kept){name, bytes};
    s->out->kept_bytes += bytes;
}

static double residual(const struct layer_shape *s) {
    return s->rows * s->whole->hidden * s->element;
}

// Norms and what else costs little is done again, as in this program's own modes.
static bool redoes_norms(const struct layer_shape *s) {
    return s->mode == RECOMPUTE_SELECTIVE_MLP ||
           (s->mode == RECOMPUTE_SELECTIVE && s->job->stack->selective == STACK_SELECTIVE_OWN);
}

// What a norm writes is a product's input; before experts the router and their messages read it.
static void keep_norm(struct layer_shape *s, const char *name, bool routed) {
    if (redoes_norms(s)) return;
    keep(s, name, s->rows * s->whole->hidden * (routed ? s->element : s->input));
    // RMSNorm out of single operations keeps its input and what it normalised in FP32.
    if (!s->job->stack->fused_norm && s->whole->norm == NORM_RMS)
        keep(s, "norm in parts", s->rows * s->whole->hidden * 8);
}

static double scores_bytes(const struct layer_shape *s) {
    double pairs = s->tokens * s->local.heads * s->job->context;
    double each = s->element + (s->job->dropout > 0 ? 1 + s->element : 0);
    if (s->job->stack->flash_attention) return 0;
    // scaled and masked scores beside the probabilities, where softmax is not one kernel with them
    return pairs * (each + (s->job->stack->fused_softmax ? 0 : 2 * s->element));
}

static void keep_attention(struct layer_shape *s) {
    const struct model_config *c = &s->local;
    double t = s->tokens * s->element;
    double q = (double)model_q_width(c), kv = (double)model_kv_width(c);
    keep_norm(s, "norm1", false);
    if (model_is_latent(c)) {
        // Latents before and after their norms; queries and keys are put together from a part that
        // is rotated and one that is not, so that what the products gave is free.
        keep(s, "latents", 2 * t * (double)model_latent_width(c));
        keep(s, "qkv", t * (double)model_qkv_width(c));
    } else {
        keep(s, "qkv", t * (q + 2 * kv));
        // The rotated ones stand beside the product's output, of which the values are a part.
        if (!c->learned_positions && !redoes_norms(s)) keep(s, "rotated", t * (q + kv));
    }
    if (s->mode == RECOMPUTE_NONE) keep(s, "scores", scores_bytes(s));
    keep(s, "attention", t * (double)model_value_width(c));
    if (s->input < s->element) // the projection's own copy
        keep(s, "attention narrow", s->tokens * s->input * (double)model_value_width(c));
    if (s->job->stack->flash_attention) keep(s, "lse", s->tokens * c->heads * 4);
    if (s->job->dropout > 0) keep(s, "mask1", s->rows * s->whole->hidden);
}

static void keep_mlp(struct layer_shape *s) {
    const struct model_config *c = &s->local;
    double t = s->tokens * s->element, up = c->activation == ACTIVATION_SWIGLU ? 2.0 : 1.0;
    if (s->mode == RECOMPUTE_SELECTIVE_MLP) return;
    keep(s, "up", t * up * c->ffn);
    if (redoes_norms(s)) return;
    keep(s, "activated", s->tokens * s->input * c->ffn);
    if (!s->job->stack->fused_activation && c->activation == ACTIVATION_SWIGLU)
        keep(s, "gate activated", t * c->ffn);
}

// Rows go to top_k experts each; with even routing every rank gets as many as it sends.
static void keep_experts(struct layer_shape *s) {
    const struct model_config *c = &s->local;
    double rows = s->expert_rows, experts = s->whole->experts;
    double shared = s->tokens * c->shared_ffn;
    keep(s, "router", s->rows * experts * (2 * 4 + 1)); // logits and scores FP32, choices
    keep(s, "rows of experts", rows * s->whole->hidden * s->input);
    if (s->mode == RECOMPUTE_SELECTIVE_MLP) return;
    keep(s, "up of experts", rows * 2 * s->expert_ffn * s->element);
    keep(s, "shared expert", shared * (2 * s->element + (redoes_norms(s) ? 0 : s->input)));
    if (redoes_norms(s)) return;
    keep(s, "activated of experts", rows * s->expert_ffn * s->input);
}

// Every second product of those in a row (q, k, v, out, gate, up, down) keeps its output, and
// attention does; all else is done again: torchtitan's selective recomputation by operation.
static void keep_half(struct layer_shape *s) {
    const struct model_config *c = &s->local;
    double t = s->tokens * s->element;
    keep(s, "q and v", t * (double)(model_q_width(c) + model_kv_width(c)));
    keep(s, "attention", t * (double)model_value_width(c));
    keep(s, "lse", s->tokens * c->heads * 4);
    if (s->experts)
        keep(s, "gate", t * c->shared_ffn + s->expert_rows * s->expert_ffn * s->element);
    else
        keep(s, "gate", t * c->ffn);
    keep(s, "down", residual(s));
}

static void keep_all(struct layer_shape *s) {
    keep(s, "input", residual(s));
    if (s->mode == RECOMPUTE_FULL) return;
    if (s->mode == RECOMPUTE_SELECTIVE && s->job->stack->selective == STACK_SELECTIVE_HALF) {
        keep_half(s);
        return;
    }
    keep_attention(s);
    keep(s, "middle", residual(s));
    keep_norm(s, "norm2", s->experts);
    if (s->experts)
        keep_experts(s);
    else
        keep_mlp(s);
    if (s->job->dropout > 0) keep(s, "mask2", s->rows * s->whole->hidden);
}

// Outputs and inputs of the MLP's products, or of the experts', elements of a micro-batch.
static double wide_elements(const struct layer_shape *s) {
    const struct model_config *c = &s->local;
    double up = c->activation == ACTIVATION_SWIGLU ? 3.0 : 2.0;
    if (!s->experts) return s->tokens * up * c->ffn;
    return s->expert_rows * (3 * s->expert_ffn + 2.0 * c->hidden) + s->tokens * 3 * c->shared_ffn;
}

// Gradients of one block on their way, the residual stream's among them.
static double gradient_bytes(const struct layer_shape *s) {
    return 2 * residual(s) + s->element * wide_elements(s);
}

// Inputs of all products and gradients of their outputs: 14 and 18 h for a GPT layer, see Qi et al.
// 2024 (arXiv 2401.10241, section 3.1).
static double halved_bytes(const struct layer_shape *s) {
    double attention = (double)(model_qkv_width(&s->local) + model_value_width(&s->local));
    return 4 * residual(s) + s->element * (wide_elements(s) + s->tokens * attention);
}

// Narrow products keep their inputs as they multiply them, NVFP4 with a scale for 16 elements.
static double input_bytes(enum hardware_precision precision) {
    switch (precision) {
    case HARDWARE_FP32:
        return 4;
    case HARDWARE_FP8:
        return 1;
    case HARDWARE_FP4:
        return 0.5 + 1.0 / 16;
    default:
        return 2;
    }
}

void plan_layer_kept(const struct job *job, int layer, struct plan_layer *out) {
    const struct mesh *mesh = &job->layout.mesh;
    struct layer_shape s = {.job = job,
                            .whole = &job->model,
                            .local = job->model,
                            .tokens = (double)job->rows * job->context / mesh->size[MESH_CP],
                            .element = job->precision == HARDWARE_FP32 ? 4 : 2,
                            .input = input_bytes(job->precision),
                            .experts = model_layer_has_experts(&job->model, layer),
                            .mode = job->recompute,
                            .out = out};
    struct plan_layer whole = {.count = 0};
    layout_local_sizes(&s.local, &job->layout);
    s.expert_rows = s.tokens * s.local.top_k * job->imbalance;
    s.expert_ffn = s.local.expert_ffn;
    if (job->stack->experts_whole) { // each tensor rank routes its own part of the tokens
        s.expert_rows /= mesh->size[MESH_TP];
        s.expert_ffn *= mesh->size[MESH_TP];
    }
    s.rows = job->layout.sequence_parallel ? s.tokens / mesh->size[MESH_TP] : s.tokens;
    *out = (struct plan_layer){.count = 0};
    keep_all(&s);
    out->working_bytes = gradient_bytes(&s);
    out->halved_bytes = halved_bytes(&s);
    if (s.mode == RECOMPUTE_NONE) return;
    s.mode = RECOMPUTE_NONE;
    s.out = &whole;
    keep_all(&s);
    out->working_bytes += whole.kept_bytes - out->kept_bytes;
}
