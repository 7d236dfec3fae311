// Parameters of a model: which there are, their shapes and names, initial values, operation counts.
#include "base/random.h"
#include "model/config_json.h"
#include "model/families.h"
#include "model/flops.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct model_config small(void) {
    struct model_config c;
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = 2, c.hidden = 64, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.ffn = 128,
    c.vocab = 256, c.context = 128;
    return c;
}

TEST(flops_of_grouped_queries_and_swiglu) {
    struct model_config c = small();
    CHECK_EQ_INT(flops_matmul_params(&c), 90112);
    CHECK_CLOSE(flops_per_token_full(&c, 128), 737280, 0);
    CHECK_CLOSE(flops_per_token_half(&c, 128), 638976, 0);
    // the diagonal counts: 129 / 2 keys per token
    CHECK_CLOSE(flops_per_token_causal(&c, 128), 6 * 90112 + 6 * 2 * 64 * 129, 0);
    c.tied_head = true; // the head's product is the same
    CHECK_EQ_INT(flops_matmul_params(&c), 90112);
    CHECK_EQ_INT(flops_all_params(&c), 90112 + 5 * 64);
    c.tied_head = false;
    CHECK_EQ_INT(flops_all_params(&c), 90112 + 5 * 64 + 256 * 64);
}

TEST(flops_of_windows) {
    CHECK_EQ_INT(flops_attended_pairs(128, 32), 3600);
    CHECK_EQ_INT(flops_attended_pairs(128, 0), 8256);
    CHECK_EQ_INT(flops_attended_pairs(128, 128), 8256);
    CHECK_EQ_INT(flops_attended_pairs(1, 32), 1);
    struct model_config c = small();
    c.layer_window[0] = 32; // alternating: 5928 pairs a layer on average
    CHECK_CLOSE(flops_per_token_causal(&c, 128), flops_per_token_pairs(&c, 5928.0 / 128), 1e-12);
    for (int64_t tokens = 1; tokens < 20; tokens++)
        for (int64_t window = 0; window < 25; window++) {
            int64_t pairs = 0;
            for (int64_t q = 0; q < tokens; q++)
                for (int64_t k = 0; k <= q; k++) pairs += window == 0 || q - k < window;
            CHECK_EQ_INT(flops_attended_pairs(tokens, window), pairs);
        }
}

TEST(flops_of_known_models) {
    struct model_config c;
    struct err err = {0};
    CHECK_OK(model_preset("llama-15m", &c, &err), err);
    CHECK_CLOSE(flops_per_token_full(&c, 256) / 1e6, 96.4,
                1e-3); // the figure that the benchmarks quote
    CHECK_OK(model_preset("gpt2-124m", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 124439808);
    CHECK_OK(model_preset("llama2-7b", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 6738415616);
    CHECK_OK(model_preset("llama3-8b", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 8030261248);
    CHECK_OK(model_preset("qwen2.5-0.5b", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 494032768);
    CHECK_OK(model_preset("smollm2-135m", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 134515008);
}

TEST(every_preset_describes_a_model) {
    for (const char *const *name = model_preset_names(NULL); *name; name++) {
        struct model_config c;
        struct model model;
        struct err err = {0};
        CHECK_OK(model_preset(*name, &c, &err), err);
        CHECK_OK(model_describe(&model, &c, &err), err);
        CHECK(model.param_count > 0);
        model_free(&model);
    }
    struct model_config c;
    struct err err = {0};
    CHECK(model_preset("llama3-8B", &c, &err) != 0);
    CHECK_CONTAINS(err.text, "llama3-8b");
}

TEST(params_are_listed_in_order_and_fused) {
    struct model_config c = small();
    struct model model;
    struct err err = {0};
    c.vocab = 250;
    CHECK_OK(model_describe(&model, &c, &err), err);
    CHECK_STR(model.params[0].name, "embedding.weight");
    CHECK_EQ_INT(model.params[0].rows, 250);
    CHECK_EQ_INT(model.params[0].rows_padded, 256);
    CHECK_STR(model.params[model.param_count - 1].name, "head.weight");
    int index = model_param(&model, 1, PARAM_QKV);
    const struct param *qkv = &model.params[index];
    CHECK_STR(qkv->name, "layers.1.attention.qkv.weight");
    CHECK_EQ_INT(qkv->rows, 128);
    CHECK_EQ_INT(qkv->columns, 64);
    CHECK_EQ_INT(qkv->parts, 3);
    CHECK_EQ_INT(qkv->part_rows[0] + qkv->part_rows[1] + qkv->part_rows[2], qkv->rows);
    char name[PARAM_NAME_BYTES];
    param_part_full_name(qkv, 1, name);
    CHECK_STR(name, "layers.1.attention.k.weight");
    const struct param *up = &model.params[model_param(&model, 0, PARAM_UP)];
    param_part_full_name(up, 0, name);
    CHECK_STR(name, "layers.0.mlp.gate.weight");
    CHECK_EQ_INT(model_param(&model, 0, PARAM_QKV_BIAS), -1);
    for (int i = 1; i < model.param_count; i++)
        CHECK(model.params[i].layer < 0 || model.params[i].layer >= model.params[i - 1].layer);
    for (int i = 0; i < model.param_count; i++)
        CHECK(model.params[i].decays == param_is_matrix(&model.params[i]));
    model_free(&model);
}

TEST(initial_values_depend_on_the_element_alone) {
    struct model_config c = small();
    struct model model;
    struct err err = {0};
    CHECK_OK(model_describe(&model, &c, &err), err);
    int index = model_param(&model, 1, PARAM_QKV);
    int64_t count = param_elements(&model.params[index]);
    float *whole = calloc((size_t)count, sizeof *whole), piece[300];
    model_initial_values(&model, index, 7, 0, count, whole);
    for (int64_t first = 0; first + 300 <= count; first += 1000 + first % 7) {
        model_initial_values(&model, index, 7, first, 300, piece);
        CHECK_BYTES(piece, whole + first, sizeof piece);
    }
    // the key's first element is the same whatever the number of query heads in front of it
    float k_first = whole[model.params[index].part_rows[0] * 64];
    struct model other;
    c.heads = 8;
    c.vocab = 300;
    CHECK_OK(model_describe(&other, &c, &err), err);
    float again;
    model_initial_values(&other, index, 7, other.params[index].part_rows[0] * 64, 1, &again);
    CHECK_CLOSE(again, k_first, 0);
    // another layer, another seed: other values
    model_initial_values(&model, index, 8, 0, 1, &again);
    CHECK(again != whole[0]);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)whole[i], squares += (double)whole[i] * (double)whole[i];
    CHECK_CLOSE(sqrt(squares / (double)count), 0.02, 2e-3);
    CHECK_CLOSE(sum / (double)count, 0, 1e-3);
    // what closes a block begins smaller by sqrt(2 layers)
    int down = model_param(&model, 0, PARAM_DOWN);
    CHECK_CLOSE(model.params[down].init_std, 0.01, 1e-12);
    int norm = model_param(&model, -1, PARAM_FINAL_NORM);
    model_initial_values(&model, norm, 7, 0, 64, piece);
    for (int i = 0; i < 64; i++) CHECK_CLOSE(piece[i], 1, 0);
    free(whole);
    model_free(&model);
    model_free(&other);
}

TEST(normal_deviates_have_their_moments) {
    enum { COUNT = 400000 };
    float *x = calloc(COUNT, sizeof *x);
    random_normals(99, 0, COUNT, x);
    double m[5] = {0};
    int beyond_two = 0;
    for (int i = 0; i < COUNT; i++) {
        double p = 1;
        for (int k = 1; k < 5; k++) m[k] += p *= (double)x[i];
        beyond_two += fabsf(x[i]) > 2;
    }
    CHECK_CLOSE(m[1] / COUNT, 0, 6e-3);
    CHECK_CLOSE(m[2] / COUNT, 1, 1e-2);
    CHECK_CLOSE(m[3] / COUNT, 0, 2e-2);
    CHECK_CLOSE(m[4] / COUNT, 3, 2e-2);
    CHECK_CLOSE(beyond_two / (double)COUNT, 0.0455, 2e-3);
    double neighbours = 0;
    for (int i = 1; i < COUNT; i++) neighbours += (double)x[i] * (double)x[i - 1];
    CHECK_CLOSE(neighbours / COUNT, 0, 6e-3);
    free(x);
}

TEST(impossible_shapes_are_refused_by_name) {
    static const struct {
        const char *word;
        size_t offset;
        int value;
    } cases[] = {
        {"layers", offsetof(struct model_config, layers), 0},
        {"hidden", offsetof(struct model_config, hidden), -1},
        {"kv_heads", offsetof(struct model_config, kv_heads), 3},
        {"head_dim", offsetof(struct model_config, head_dim), 15},
        {"vocab", offsetof(struct model_config, vocab), 1 << 30},
        {"context", offsetof(struct model_config, context), 0},
        {"ffn", offsetof(struct model_config, ffn), 0},
        {"layers", offsetof(struct model_config, layers), 513},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = small();
        struct err err = {0};
        *(int *)((char *)&c + cases[i].offset) = cases[i].value;
        CHECK(model_config_check(&c, &err) != 0);
        CHECK_CONTAINS(err.text, cases[i].word);
    }
    struct model_config c = small();
    struct err err = {0};
    c.norm_eps = NAN;
    CHECK(model_config_check(&c, &err) != 0);
    c = small();
    c.norm = NORM_LAYER;
    CHECK(model_config_check(&c, NULL) != 0);
    c = small();
    c.rope.theta = INFINITY;
    CHECK(model_config_check(&c, NULL) != 0);
    c = small();
    c.layer_window[1] = -4;
    CHECK(model_config_check(&c, NULL) != 0);
}

TEST(description_survives_json) {
    for (const char *const *name = model_preset_names(NULL); *name; name++) {
        struct model_config c, back;
        struct err err = {0};
        CHECK_OK(model_preset(*name, &c, &err), err);
        c.stop_ids[0] = 5, c.stop_ids[1] = 9, c.stop_count = 2;
        json_t *tree = model_config_to_json(&c);
        CHECK_OK(model_config_from_json(tree, "x", &back, &err), err);
        json_t *again = model_config_to_json(&back);
        CHECK(json_equal(tree, again));
        CHECK_EQ_INT(back.layer_window[c.layers - 1], c.layer_window[c.layers - 1]);
        json_object_set_new(tree, "surprise", json_true());
        CHECK(model_config_from_json(tree, "x", &back, NULL) != 0);
        json_object_del(tree, "surprise");
        json_object_del(tree, "rope_theta");
        CHECK(model_config_from_json(tree, "x", &back, &err) != 0);
        CHECK_CONTAINS(err.text, "rope_theta");
        json_decref(tree);
        json_decref(again);
    }
}
