// A GPU, a cluster and stacks of round figures, so that tests depend on no catalogue.
#pragma once
#include "cost/stage.h"
#include "model/model.h"
#include "test.h"

static inline struct figure figure_of(double value) {
    return (struct figure){value, FIGURE_STATED, "test"};
}

// 100 processors of 3 TFLOP/s, 2 TB/s.
static inline struct accelerator test_accelerator(void) {
    struct accelerator a = {.name = "test", .units = 100, .tile_count = 3};
    static const int rows[3] = {256, 128, 64}, columns[3] = {128, 128, 64};
    for (int i = 0; i < a.tile_count; i++) {
        a.tile_m[i] = rows[i];
        a.tile_n[i] = columns[i];
    }
    a.dense[HARDWARE_FP32] = figure_of(20e12);
    a.dense[HARDWARE_BF16] = figure_of(300e12);
    a.dense[HARDWARE_FP8] = figure_of(600e12);
    for (int p = 0; p < HARDWARE_PRECISIONS; p++) a.sustained[p] = figure_of(0.9);
    a.memory_bytes = figure_of(80e9);
    a.memory_bandwidth = figure_of(2e12);
    a.memory_share = figure_of(0.9);
    a.kernel_seconds = figure_of(2e-6);
    a.fill_k = figure_of(64);
    a.flash_forward = figure_of(0.6);
    a.flash_backward = figure_of(0.5);
    return a;
}

static inline struct cluster test_cluster(void) {
    struct cluster c = {
        .name = "test", .accelerator = test_accelerator(), .nodes = 4, .per_node = 8, .domain = 8};
    c.fast = (struct link){.name = "fast",
                           .bandwidth = figure_of(300e9),
                           .latency_seconds = figure_of(2e-6),
                           .share = figure_of(0.8),
                           .half_bytes = figure_of(4e6),
                           .reduce_gain = figure_of(1)};
    c.slow = c.fast;
    c.slow.name = "slow";
    c.slow.bandwidth = figure_of(25e9);
    c.fabric.oversubscription = figure_of(1);
    return c;
}

static inline struct stack test_stack(bool own) {
    return (struct stack){.name = own ? "weft" : "other",
                          .own = own,
                          .flash_attention = true,
                          .fused_softmax = true,
                          .fused_activation = true,
                          .fused_norm = true,
                          .fused_rope = true,
                          .fused_loss = true,
                          .masters = true,
                          .gradient = DTYPE_F32,
                          .reduce = DTYPE_F32,
                          .fused_residual = true,
                          .fused_accumulate = true,
                          .selective = own ? STACK_SELECTIVE_OWN : STACK_SELECTIVE_CORE};
}

// A Llama of 4 layers with grouped queries.
static inline struct model_config test_llama(void) {
    return (struct model_config){.family = FAMILY_LLAMA,
                                 .layers = 4,
                                 .hidden = 1024,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .head_dim = 128,
                                 .ffn = 2816,
                                 .vocab = 32000,
                                 .context = 2048,
                                 .norm = NORM_RMS,
                                 .activation = ACTIVATION_SWIGLU};
}

static inline struct model_config test_gpt2(void) {
    return (struct model_config){.family = FAMILY_GPT2,
                                 .layers = 3,
                                 .hidden = 768,
                                 .heads = 12,
                                 .kv_heads = 12,
                                 .head_dim = 64,
                                 .ffn = 3072,
                                 .vocab = 50257,
                                 .context = 1024,
                                 .norm = NORM_LAYER,
                                 .activation = ACTIVATION_GELU_TANH,
                                 .learned_positions = true,
                                 .qkv_bias = true,
                                 .out_bias = true,
                                 .mlp_bias = true,
                                 .tied_head = true};
}

static inline struct cost_shape test_shape(const struct model_config *model,
                                           const struct cluster *cluster,
                                           const struct stack *stack) {
    return (struct cost_shape){
        .model = model,
        .cluster = cluster,
        .stack = stack,
        .mesh = {.size = {1, 1, 1, 1},
                 .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                 .ep = 1,
                 .shard = 1},
        .rows = 2,
        .context = 1024,
        .precision = HARDWARE_BF16,
        .imbalance = 1,
    };
}

// A layer's pass, priced.
static inline struct cost_sum test_layer(const struct cost_shape *shape, int layer,
                                         enum cost_pass pass) {
    struct cost_ops ops = {NULL, 0, 0};
    struct err err = {0};
    CHECK_OK(cost_list_layer(shape, layer, pass, &ops, &err), err);
    struct cost_sum sum = cost_price(shape, &ops);
    cost_ops_free(&ops);
    return sum;
}
