// Layers over stages, and what a layout refuses; each message names the numbers and what would do.
#include "layout/layout.h"
#include "model/families.h"
#include "test.h"
#include <string.h>

static struct model_config shape(int layers, int heads, int kv_heads) {
    struct model_config c;
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = layers, c.heads = heads, c.kv_heads = kv_heads, c.head_dim = 8;
    c.hidden = heads * 8, c.ffn = 96, c.vocab = 250, c.context = 64;
    return c;
}

static struct layout cut(int pp, int dp, int cp, int tp, int chunks) {
    return (struct layout){.mesh = {.size = {pp, dp, cp, tp},
                                    .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                    .ep = 1,
                                    .shard = dp * cp},
                           .chunks = chunks,
                           .sequence_parallel = tp > 1};
}

static void check_split(int layers, int pp, int chunks, bool ends, const int *expected) {
    struct model_config c = shape(layers, 8, 8);
    struct layout layout = cut(pp, 1, 1, 1, chunks);
    struct err err = {0};
    CHECK_OK(layout_split_layers(&layout, &c, NULL, 0, ends, &err), err);
    for (int s = 0; s < pp * chunks; s++)
        CHECK_EQ_INT(layout.layer_first[s + 1] - layout.layer_first[s], expected[s]);
    CHECK_EQ_INT(layout.layer_first[pp * chunks], layers);
    CHECK_EQ_INT(layout.layer_first[0], 0);
}

TEST(layers_split_evenly) {
    check_split(8, 4, 1, false, (int[]){2, 2, 2, 2});
    check_split(10, 4, 1, false, (int[]){3, 3, 2, 2});
    check_split(10, 2, 2, false, (int[]){3, 3, 2, 2});
    check_split(4, 4, 1, false, (int[]){1, 1, 1, 1});
    check_split(5, 1, 1, false, (int[]){5});
    // embedding and head weigh a layer each
    check_split(10, 4, 1, true, (int[]){2, 3, 3, 2});
    check_split(4, 4, 1, true, (int[]){1, 1, 1, 1});
    check_split(5, 1, 1, true, (int[]){5});
    check_split(126, 16, 1, true, (int[]){7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7});
}

TEST(layers_split_by_a_list) {
    struct model_config c = shape(32, 8, 8);
    struct layout layout = cut(4, 1, 1, 1, 1);
    struct err err = {0};
    CHECK_OK(layout_split_layers(&layout, &c, (int[]){7, 8, 9, 8}, 4, false, &err), err);
    for (int stage = 0; stage <= 4; stage++)
        CHECK_EQ_INT(layout.layer_first[stage], ((int[]){0, 7, 15, 24, 32})[stage]);

    CHECK_EQ_INT(layout_split_layers(&layout, &c, (int[]){7, 8, 9, 9}, 4, false, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, "33 layers to 4 stages, but the model has 32");
    CHECK_CONTAINS(err.text, "4 of 8");
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, (int[]){16, 16}, 2, false, &err), -1);
    CHECK_CONTAINS(err.text, "has 2 numbers, but pp 4 x 1 chunks is 4 stages");
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, (int[]){16, 16, 0, 0}, 4, false, &err), -1);
    CHECK_CONTAINS(err.text, "stage 2 has 0 layers");
    // no layer vanishes: 16 stages of 2 do not hold 40
    c = shape(40, 8, 8);
    layout = cut(8, 1, 1, 1, 2);
    int twos[16];
    for (int i = 0; i < 16; i++) twos[i] = 2;
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, twos, 16, false, &err), -1);
    CHECK_CONTAINS(err.text, "32 layers to 16 stages, but the model has 40");
    CHECK_CONTAINS(err.text, "8 of 3 and 8 of 2");
}

TEST(layers_too_few_for_the_stages) {
    struct model_config c = shape(6, 8, 8);
    struct layout layout = cut(4, 1, 1, 1, 2);
    struct err err = {0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, NULL, 0, false, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, "layers (6) do not fill the 8 stages of pp 4 x 2 chunks");
    CHECK_CONTAINS(err.text, "pp 4 with at most 1 chunks, or pp 3 or less with 2");
    layout = cut(8, 1, 1, 1, 1);
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, NULL, 0, false, &err), -1);
    CHECK_CONTAINS(err.text, "pp 6 or less");
    layout = cut(2, 1, 1, 1, 3);
    layout.placement = PLACE_V;
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, NULL, 0, false, &err), -1);
    CHECK_CONTAINS(err.text, "2 chunks a rank, not 3");
    layout = cut(2, 1, 1, 1, 0);
    err = (struct err){0};
    CHECK_EQ_INT(layout_split_layers(&layout, &c, NULL, 0, false, &err), -1);
    CHECK_CONTAINS(err.text, "0 chunks");
}

TEST(stages_lie_in_a_loop_or_a_v) {
    struct layout layout = cut(3, 1, 1, 1, 2);
    for (int s = 0; s < 6; s++) CHECK_EQ_INT(layout_stage_rank(&layout, s), s % 3);
    layout.placement = PLACE_V;
    static const int v[] = {0, 1, 2, 2, 1, 0};
    for (int s = 0; s < 6; s++) CHECK_EQ_INT(layout_stage_rank(&layout, s), v[s]);
}

// One check of a layout against a shape and a run; `parts`: what the message must hold, or NULL for
// a layout that fits.
static void check(struct layout layout, struct model_config c, int context, int rows, int micro,
                  const char *part, const char *other) {
    struct model model = {.config = c};
    struct err err = {0};
    if (layout.mesh.size[MESH_PP] * layout.chunks <= c.layers)
        CHECK_OK(layout_split_layers(&layout, &c, NULL, 0, false, &err), err);
    int result = layout_check(&layout, &model, context, rows, micro, &err);
    if (!part) {
        CHECK_OK(result, err);
        return;
    }
    CHECK_EQ_INT(result, -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, other);
}

TEST(layout_checks_heads) {
    struct model_config c = shape(4, 8, 8);
    check(cut(1, 1, 1, 2, 1), c, 64, 1, 1, NULL, NULL);
    check(cut(1, 2, 1, 3, 1), c, 64, 1, 6, "tp (3) does not divide heads (8)",
          "nearest layouts that work on 6 ranks: dp 3 x tp 2, or dp 6 x tp 1");
    // the step's micro-batches must divide, too: 4 of each of 2 replicas are not 3 equal shares
    check(cut(1, 2, 1, 3, 1), c, 64, 1, 4, "tp (3) does not divide heads (8)",
          "nearest layouts that work on 6 ranks: pp 3 x dp 1 x tp 2");
    c = shape(4, 8, 2); // fewer key and value heads than ranks: held by several
    check(cut(1, 1, 1, 4, 1), c, 64, 1, 1, NULL, NULL);
    check(cut(1, 1, 1, 8, 1), c, 64, 1, 1, NULL, NULL);
    c = shape(4, 6, 3);
    check(cut(1, 1, 1, 2, 1), c, 64, 1, 4, "tp (2) neither divides kv_heads (3)", "dp 2 x tp 1");
    c = shape(4, 12, 4);
    check(cut(1, 1, 1, 6, 1), c, 64, 1, 6, "tp (6) neither divides kv_heads (4)", "dp 3 x tp 2");
}

TEST(layout_checks_widths) {
    struct model_config c = shape(4, 10, 10);
    check(cut(1, 1, 1, 5, 1), c, 60, 1, 5, "tp (5) does not divide ffn (96)", "dp 5 x tp 1");
    c = shape(4, 8, 8);
    c.vocab = 251; // any vocabulary: it is padded
    check(cut(1, 1, 1, 8, 1), c, 64, 1, 1, NULL, NULL);
    c.qk_norm = QK_NORM_FULL;
    check(cut(1, 1, 1, 2, 1), c, 64, 1, 2, "norm of queries and keys", "dp 2 x tp 1");
    check(cut(2, 1, 1, 1, 1), c, 64, 1, 2, NULL, NULL);
}

static struct model_config experts(int count, int width, int shared) {
    struct model_config c = shape(4, 8, 8);
    c.experts = count, c.top_k = 2, c.expert_ffn = width, c.shared_ffn = shared;
    return c;
}

TEST(layout_checks_experts) {
    struct model_config c = experts(6, 32, 32);
    struct layout layout = cut(1, 4, 1, 2, 1);
    layout.mesh.ep = 2;
    check(layout, c, 64, 1, 1, NULL, NULL);
    layout.mesh.ep = 4;
    check(layout, c, 64, 1, 1, "ep (4) does not divide experts (6)",
          "dp 4 x tp 2 with ep 2, or dp 4 x tp 2 with ep 1");
    c = experts(8, 33, 0);
    check(layout, c, 64, 1, 2, "tp (2) does not divide expert_ffn (33)", "dp 8 x tp 1 with ep 4");
    c = experts(8, 32, 33);
    check(layout, c, 64, 1, 2, "tp (2) does not divide shared_ffn (33)", "dp 8 x tp 1 with ep 4");
    // ffn is the width of dense layers; here there are none
    c = experts(8, 32, 0);
    c.ffn = 97;
    check(layout, c, 64, 1, 1, NULL, NULL);
    c.layer_dense[0] = true;
    check(layout, c, 64, 1, 1, "tp (2) does not divide ffn (97)", "tp 1");
    check(layout, shape(4, 8, 8), 64, 1, 1, "ep is 4, but the model has no experts", "use ep 1");
}

TEST(layout_checks_the_sequence) {
    struct model_config c = shape(4, 8, 8);
    check(cut(1, 1, 4, 1, 1), c, 64, 1, 4, NULL, NULL);
    check(cut(1, 1, 4, 1, 1), c, 60, 1, 4, "2 cp (8) does not divide context (60)",
          "dp 2 x cp 2, or dp 4 x cp 1");
    check(cut(1, 1, 8, 1, 1), c, 12, 1, 8, "12 tokens is too short for cp (8)", "16 parts");
    // tokens of a rank over tp, only with sequence parallelism
    struct layout layout = cut(1, 1, 2, 4, 1);
    check(layout, c, 20, 1, 8, "tp (4) does not divide the 10 tokens", "parallel.sequence=false");
    layout.sequence_parallel = false;
    check(layout, c, 20, 1, 8, NULL, NULL);
    check(cut(1, 1, 1, 1, 1), c, 0, 1, 1, "sequences of 0 tokens", "at least 1");
    check(cut(1, 1, 1, 1, 1), c, 8, 1, 0, "0 micro-batches", "at least 1");
}

TEST(layout_checks_itself) {
    struct model_config c = shape(4, 8, 8);
    struct layout layout = cut(1, 1, 1, 1, 1);
    layout.zero = 4;
    check(layout, c, 64, 1, 1, "zero is 4", "0 to 3");
    layout = cut(1, 4, 1, 1, 1);
    layout.mesh.shard = 3;
    check(layout, c, 64, 1, 1, "the shard group (3)", "2 or 4");
    check(cut(8, 1, 1, 1, 1), c, 64, 1, 8, "layers (4) do not fill the 8 stages", "pp 4 x dp 2");
    // a layout whose layers were never split
    struct model model = {.config = c};
    struct err err = {0};
    layout = cut(2, 1, 1, 1, 1);
    CHECK_EQ_INT(layout_check(&layout, &model, 64, 1, 1, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_INTERNAL);
}
