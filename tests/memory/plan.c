// The enumeration of a rank's buffers, against sizes worked out by hand.
#include "memory/rank.h"
#include "test.h"
#include <stdlib.h>

static struct model_config small(void) { // 8 hidden, 2 heads of 4, ffn 16
    return (struct model_config){.family = FAMILY_LLAMA,
                                 .variant = "llama",
                                 .layers = 2,
                                 .hidden = 8,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 4,
                                 .ffn = 16,
                                 .vocab = 70,
                                 .context = 32,
                                 .norm = NORM_RMS,
                                 .norm_eps = 1e-5,
                                 .activation = ACTIVATION_SWIGLU,
                                 .rope = {.theta = 10000},
                                 .tied_head = true,
                                 .init_std = 0.02,
                                 .bos_id = -1,
                                 .eos_id = -1};
}

static uint64_t bytes_of(enum engine_recompute mode, enum buffer_kind kind, bool train) {
    struct model model;
    struct model_config c = small();
    struct err err = {0};
    CHECK_OK(model_describe(&model, &c, &err), err);
    struct rank_shape shape = {.compute = DTYPE_BF16,
                               .recompute = mode,
                               .train = train,
                               .tokens = 64,
                               .micro_batches = 2,
                               .context = 32,
                               .chunk = 64};
    struct rank_workspace workspace = {NULL, NULL, 1000, 2000};
    struct memory_plan plan;
    struct rank_buffers *buffers = malloc(sizeof *buffers);
    CHECK_OK(rank_plan(&plan, buffers, &model, &shape, &workspace, &err), err);
    uint64_t total = 0;
    for (int i = 0; i < plan.count; i++) {
        CHECK_EQ_INT(plan.buffers[i].offset_bytes, total);
        CHECK_EQ_INT(plan.buffers[i].bytes % 64, 0);
        CHECK(plan.buffers[i].bytes > 0);
        total += plan.buffers[i].bytes;
    }
    CHECK_EQ_INT(total, plan.total_bytes);
    uint64_t bytes = memory_plan_kind_bytes(&plan, kind);
    rank_buffers_free(buffers);
    free(buffers);
    memory_plan_free(&plan);
    model_free(&model);
    return bytes;
}

TEST(state_of_a_rank) {
    // 128 x 8 embedding (70 rows padded to 128); per layer norms 2 x 64 (aligned), qkv 16 x 8, out
    // 8 x 8, up 32 x 8, down 8 x 16; final norm 64 (aligned).
    uint64_t elements = 1024 + 2 * (128 + 128 + 64 + 256 + 128) + 64;
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_WEIGHT, true), elements * 2);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MASTER, true), elements * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MOMENT, true), elements * 8);
    // ... and the look-up's accumulator: at most 70 ids of 8
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_GRADIENT, true), elements * 4 + 2240);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MOMENT, false), 0);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_GRADIENT, false), 0);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_LOGITS, true), 64 * 128 * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_TABLE, true), 2 * 32 * 2 * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_WORKSPACE, true), 1024 + 2048);
}

TEST(activations_by_recomputation_mode) {
    // Per token and layer in bf16: input 8, norm1 8, qkv 16, attention 8, middle 8, norm2 8, up 32,
    // activated 16; in FP32 the log-sum-exp of 2 heads and two statistics. Behind the layers: 8 and
    // one statistic.
    uint64_t end = 64 * (8 * 2 + 4), layers = 2 * 64;
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_ACTIVATION, true),
                 end + layers * (104 * 2 + 2 * 4 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_SELECTIVE, BUFFER_ACTIVATION, true),
                 end + layers * ((8 + 16 + 8 + 8 + 32) * 2 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_SELECTIVE_MLP, BUFFER_ACTIVATION, true),
                 end + layers * ((8 + 16 + 8 + 8) * 2 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_FULL, BUFFER_ACTIVATION, true), end + layers * 8 * 2);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_ACTIVATION, false), end);
}
