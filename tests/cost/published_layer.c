// A layer against the layer that Korthikanti et al. 2022 (arXiv 2205.05198) timed in Table 4: 22B
// model, 8-way tensor parallelism on a DGX A100, micro-batch 4. The figures are theirs; ours come
// from the catalogue and the list of operations alone.
#include "cost/stage.h"
#include "test.h"

struct timed {
    const char *name;
    bool sequence_parallel;
    enum engine_recompute recompute;
    double forward, backward; // ms
};

static struct cost_sum pass(const struct cost_shape *shape, enum cost_pass which) {
    struct cost_ops ops = {NULL, 0, 0};
    struct err err = {0};
    CHECK_OK(cost_list_layer(shape, 0, which, &ops, &err), err);
    struct cost_sum sum = cost_price(shape, &ops);
    cost_ops_free(&ops);
    return sum;
}

TEST(a_published_layer_within_five_percent) {
    static const struct timed rows[] = {
        {"baseline", false, RECOMPUTE_NONE, 7.7, 11.9},
        {"sequence parallelism", true, RECOMPUTE_NONE, 7.2, 11.8},
        {"full recomputation", false, RECOMPUTE_FULL, 7.7, 19.5},
        {"selective", false, RECOMPUTE_SELECTIVE, 7.7, 13.2},
        {"selective and sequence parallelism", true, RECOMPUTE_SELECTIVE, 7.2, 13.1}};
    struct catalogue *catalogue;
    struct cluster cluster;
    struct err err = {0};
    CHECK_OK(catalogue_open(&catalogue, &err), err);
    CHECK_OK(catalogue_cluster(catalogue, "a100-80:8", &cluster, &err), err);
    const struct stack *stack = catalogue_stack(catalogue, "megatron-2022", &err);
    CHECK(stack != NULL);
    struct model_config model = {.family = FAMILY_GPT2,
                                 .layers = 48,
                                 .hidden = 6144,
                                 .heads = 64,
                                 .kv_heads = 64,
                                 .head_dim = 96,
                                 .ffn = 24576,
                                 .vocab = 51200,
                                 .context = 2048,
                                 .norm = NORM_LAYER,
                                 .activation = ACTIVATION_GELU_TANH,
                                 .learned_positions = true,
                                 .qkv_bias = true,
                                 .out_bias = true,
                                 .mlp_bias = true};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct cost_shape shape = {.model = &model,
                                   .cluster = &cluster,
                                   .stack = stack,
                                   .mesh = {.size = {1, 1, 1, 8},
                                            .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                            .ep = 1,
                                            .shard = 1},
                                   .sequence_parallel = rows[i].sequence_parallel,
                                   .rows = 4,
                                   .context = 2048,
                                   .recompute = rows[i].recompute,
                                   .precision = HARDWARE_BF16,
                                   .imbalance = 1};
        double forward = pass(&shape, COST_FORWARD).seconds * 1e3;
        struct cost_sum input = pass(&shape, COST_INPUT), weight = pass(&shape, COST_WEIGHT);
        struct cost_sum again = pass(&shape, COST_RECOMPUTE);
        struct cost_sum both = cost_sum_add(&input, &weight), all = cost_sum_add(&both, &again);
        double backward = all.seconds * 1e3, near = 0.05;
        if (forward < rows[i].forward * (1 - near) || forward > rows[i].forward * (1 + near) ||
            backward < rows[i].backward * (1 - near) || backward > rows[i].backward * (1 + near))
            test_fail(__FILE__, __LINE__, "%s: %.2f and %.2f ms, published %.1f and %.1f",
                      rows[i].name, forward, backward, rows[i].forward, rows[i].backward);
    }
    catalogue_close(catalogue);
}
