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

static uint64_t bytes_of(enum engine_recompute mode, enum buffer_kind kind, bool train,
                         int64_t *elements) {
    struct model model;
    struct model_config c = small();
    struct err err = {0};
    struct local_model local;
    struct flat flat;
    struct layout layout = layout_single(&c);
    struct flat_options options = flat_options_for(&layout, 0, 32000000);
    CHECK_OK(model_describe(&model, &c, &err), err);
    CHECK_OK(layout_local(&local, &model, &layout, 0, &err), err);
    CHECK_OK(flat_open(&flat, &local, &options, &err), err);
    struct rank_shape shape = {.compute = DTYPE_BF16,
                               .recompute = mode,
                               .train = train,
                               .tokens = 64,
                               .residual = 64,
                               .tp = 1,
                               .micro_batches = 2,
                               .context = 32,
                               .chunk = 64,
                               .stages = {{.part = local.stages[0], .slots = 1, .flows = train}},
                               .stage_count = 1,
                               .flat = &flat,
                               .ranks = {1, 1},
                               .ep = 1,
                               .gather_type = DTYPE_BF16};
    struct rank_workspace workspace = {.products_bytes = 1000, .kernels_bytes = 2000};
    struct memory_plan plan;
    struct rank_buffers *buffers = malloc(sizeof *buffers);
    CHECK_OK(rank_plan(&plan, buffers, &local, &shape, &workspace, &err), err);
    *elements = flat.elements;
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
    flat_close(&flat);
    local_model_free(&local);
    model_free(&model);
    return bytes;
}

TEST(state_of_a_rank) {
    int64_t n;
    bytes_of(RECOMPUTE_NONE, BUFFER_WEIGHT, true, &n);
    // 128 x 8 table (70 rows padded to 128), two layers of 128 + 64 + 256 + 128, five norms of 8:
    // buckets of table, layers and norms, each padded to a block
    CHECK_EQ_INT(n, 3 * 4096);
    uint64_t elements = (uint64_t)n;
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_WEIGHT, true, &n), elements * 2);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MASTER, true, &n), elements * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MOMENT, true, &n), elements * 8);
    // ... and the look-up's accumulator: at most 70 ids of 8
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_GRADIENT, true, &n), elements * 4 + 2240);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_MOMENT, false, &n), 0);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_GRADIENT, false, &n), 0);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_LOGITS, true, &n), 64 * 128 * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_TABLE, true, &n), 2 * 32 * 2 * 4);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_WORKSPACE, true, &n), 1024 + 2048);
}

TEST(activations_by_recomputation_mode) {
    // Per token and layer in bf16: input 8, norm1 8, qkv 16, attention 8, middle 8, norm2 8, up 32,
    // activated 16; in FP32 the log-sum-exp of 2 heads and two statistics. Behind the layers: 8 and
    // one statistic.
    int64_t n;
    uint64_t end = 64 * (8 * 2 + 4), layers = 2 * 64;
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_ACTIVATION, true, &n),
                 end + layers * (104 * 2 + 2 * 4 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_SELECTIVE, BUFFER_ACTIVATION, true, &n),
                 end + layers * ((8 + 16 + 8 + 8 + 32) * 2 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_SELECTIVE_MLP, BUFFER_ACTIVATION, true, &n),
                 end + layers * ((8 + 16 + 8 + 8) * 2 + 2 * 4));
    CHECK_EQ_INT(bytes_of(RECOMPUTE_FULL, BUFFER_ACTIVATION, true, &n), end + layers * 8 * 2);
    CHECK_EQ_INT(bytes_of(RECOMPUTE_NONE, BUFFER_ACTIVATION, false, &n), end);
}
