// Mixtures of experts as descriptions: parameters, counts, refused shapes, and the config.json of
// Mixtral and Qwen3-MoE.
#include "base/json.h"
#include "model/config_json.h"
#include "model/families.h"
#include "model/flops.h"
#include "model/hf_config.h"
#include "model/hf_names.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

static struct model_config tiny(void) {
    struct model_config c;
    model_family_defaults(FAMILY_LLAMA, &c);
    c.layers = 3, c.hidden = 16, c.heads = 2, c.kv_heads = 1, c.head_dim = 8;
    c.ffn = 24, c.vocab = 100, c.context = 32;
    c.experts = 4, c.top_k = 2, c.expert_ffn = 8, c.shared_ffn = 12;
    c.layer_dense[1] = true;
    return c;
}

static const struct param *param(const struct model *m, int index) {
    CHECK(index >= 0);
    return &m->params[index];
}

TEST(experts_have_a_param_each) {
    struct model_config c = tiny();
    struct model m;
    struct err err = {0};
    char name[PARAM_NAME_BYTES];
    CHECK_OK(model_describe(&m, &c, &err), err);
    const struct param *router = param(&m, model_param(&m, 2, PARAM_ROUTER));
    CHECK_STR(router->name, "layers.2.router.weight");
    CHECK_EQ_INT(router->rows, 4);
    CHECK_EQ_INT(router->columns, 16);
    CHECK_EQ_INT(router->axis, SHARD_NONE);
    const struct param *up = param(&m, model_param_expert(&m, 0, PARAM_EXPERT_UP, 3));
    CHECK_STR(up->name, "layers.0.experts.3.up.weight");
    CHECK_EQ_INT(up->expert, 3);
    CHECK_EQ_INT(up->rows, 16);
    CHECK_EQ_INT(up->part_rows[1], 8);
    CHECK_EQ_INT(up->axis, SHARD_COLUMN);
    param_part_full_name(up, 0, name);
    CHECK_STR(name, "layers.0.experts.3.gate.weight");
    const struct param *down = param(&m, model_param_expert(&m, 0, PARAM_EXPERT_DOWN, 3));
    CHECK_EQ_INT(down - up, 1);
    CHECK_EQ_INT(down->columns, 8);
    CHECK(down->init_std < up->init_std);
    CHECK_STR(param(&m, model_param(&m, 2, PARAM_SHARED_UP))->name, "layers.2.shared.up.weight");
    CHECK_EQ_INT(param(&m, model_param(&m, 2, PARAM_SHARED_DOWN))->columns, 12);
    CHECK_EQ_INT(param(&m, model_param(&m, 0, PARAM_EXPERT_UP))->expert, 0);
    // the dense layer between them
    CHECK_EQ_INT(model_param(&m, 1, PARAM_ROUTER), -1);
    CHECK_EQ_INT(param(&m, model_param(&m, 1, PARAM_UP))->rows, 48);
    CHECK_EQ_INT(model_param(&m, 0, PARAM_UP), -1);
    // initial values of experts differ
    float a[4], b[4];
    model_initial_values(&m, model_param_expert(&m, 0, PARAM_EXPERT_UP, 0), 1, 0, 4, a);
    model_initial_values(&m, model_param_expert(&m, 0, PARAM_EXPERT_UP, 1), 1, 0, 4, b);
    CHECK(memcmp(a, b, sizeof a) != 0);
    model_free(&m);
}

TEST(operations_count_the_experts_that_a_token_visits) {
    struct model_config c = tiny();
    int64_t attention = (2 * 8 + 2 * 8 + 2 * 8) * 16;
    int64_t mixture = (4 + 3 * (2 * 8 + 12)) * 16, dense = 3 * 24 * 16;
    CHECK_EQ_INT(flops_matmul_params(&c), 3 * attention + 2 * mixture + dense + 100 * 16);
    CHECK_EQ_INT(flops_all_params(&c) - flops_active_params(&c), 2 * 2 * 3 * 8 * 16);
    struct err err = {0};
    CHECK_OK(model_preset("mixtral-8x7b", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 46702792704); // as published
    CHECK_EQ_INT(flops_active_params(&c), 12879925248);
    CHECK_OK(model_preset("qwen3-30b-a3b", &c, &err), err);
    CHECK_EQ_INT(flops_all_params(&c), 30532122624);
}

TEST(shapes_of_experts_that_cannot_be) {
    static const struct {
        int experts, top_k, expert_ffn, shared_ffn;
        const char *message;
    } cases[] = {{4, 0, 8, 0, "top_k is 0"},      {4, 5, 8, 0, "between 1 and 4 of the 4"},
                 {4, 2, 0, 0, "expert_ffn is 0"}, {4, 2, 8, -1, "shared_ffn is -1"},
                 {-1, 1, 8, 0, "experts is -1"},  {100, 65, 8, 0, "between 1 and 64"},
                 {0, 2, 0, 0, "without experts"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config c = tiny();
        struct err err = {0};
        c.experts = cases[i].experts, c.top_k = cases[i].top_k;
        c.expert_ffn = cases[i].expert_ffn, c.shared_ffn = cases[i].shared_ffn;
        CHECK(model_config_check(&c, &err) != 0);
        CHECK_CONTAINS(err.text, cases[i].message);
    }
    struct model_config c = tiny();
    struct err err = {0};
    for (int i = 0; i < c.layers; i++) c.layer_dense[i] = true;
    CHECK(model_config_check(&c, &err) != 0);
    CHECK_CONTAINS(err.text, "every layer is dense");
    c = tiny();
    err = (struct err){0};
    c.mlp_bias = true;
    CHECK(model_config_check(&c, &err) != 0);
    CHECK_CONTAINS(err.text, "without biases");
}

TEST(experts_survive_json) {
    struct model_config c = tiny(), back;
    struct err err = {0};
    c.norm_top_k = true;
    c.aux_coefficient = 0.01;
    json_t *tree = model_config_to_json(&c);
    CHECK_OK(model_config_from_json(tree, "x", &back, &err), err);
    CHECK_EQ_INT(back.experts, 4);
    CHECK_EQ_INT(back.shared_ffn, 12);
    CHECK(back.norm_top_k && back.layer_dense[1] && !back.layer_dense[0]);
    CHECK_CLOSE(back.aux_coefficient, 0.01, 1e-15);
    json_array_append_new(json_object_get(tree, "dense_layers"), json_integer(3));
    CHECK(model_config_from_json(tree, "x", &back, &err) != 0);
    CHECK_CONTAINS(err.text, "there is no layer 3");
    json_decref(tree);
}

#define SIZES                                                                                      \
    "\"vocab_size\": 100, \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": " \
    "4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
#define MIXTRAL "{\"model_type\": \"mixtral\", " SIZES
#define QWEN "{\"model_type\": \"qwen3_moe\", " SIZES

static struct err parse(const char *text, struct model_config *c) {
    struct err err = {0};
    if (hf_config_parse(text, strlen(text), "config.json", c, &err) != 0)
        CHECK(err.kind != ERR_NONE);
    return err;
}

TEST(both_kinds_are_read) {
    struct model_config c;
    CHECK_STR(parse(MIXTRAL ", \"num_local_experts\": 4, \"router_aux_loss_coef\": 0.02}", &c).text,
              "");
    CHECK_EQ_INT(c.experts, 4);
    CHECK_EQ_INT(c.top_k, 2);
    CHECK_EQ_INT(c.expert_ffn, 48);
    CHECK(c.norm_top_k && c.rope.theta == 1e6 && c.layer_window[0] == 0);
    CHECK_CLOSE(c.aux_coefficient, 0.02, 1e-15);
    CHECK_STR(parse(QWEN ", \"num_experts\": 6, \"num_experts_per_tok\": 3, "
                         "\"moe_intermediate_size\": 8, \"decoder_sparse_step\": 2, "
                         "\"mlp_only_layers\": [3]}",
                    &c)
                  .text,
              "");
    CHECK_EQ_INT(c.qk_norm, QK_NORM_HEAD);
    CHECK_EQ_INT(c.head_dim, 8);
    CHECK(!c.norm_top_k && c.layer_dense[0] && !c.layer_dense[1] && c.layer_dense[2]);
    CHECK(c.layer_dense[3]);
    CHECK_EQ_INT(c.expert_ffn, 8);
    CHECK_EQ_INT(c.ffn, 48);
    // the newer name of the count
    CHECK_STR(parse(QWEN ", \"num_local_experts\": 9, \"norm_topk_prob\": true}", &c).text, "");
    CHECK(c.experts == 9 && c.norm_top_k && c.top_k == 8);
}

TEST(settings_of_experts_that_would_be_lost_are_refused) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {MIXTRAL ", \"moe_intermediate_size\": 8}",
         "moe_intermediate_size: models of type mixtral"},
        {MIXTRAL ", \"router_jitter_noise\": 0.1}", "router_jitter_noise: 0.1"},
        {MIXTRAL ", \"num_local_experts\": 0}", "needs at least one expert"},
        {MIXTRAL ", \"num_experts_per_tok\": 9}", "top_k is 9"},
        {QWEN ", \"num_experts\": 8, \"num_local_experts\": 9}", "both given and differ"},
        {QWEN ", \"mlp_only_layers\": [4]}", "element 0 is not a layer number"},
        {QWEN ", \"decoder_sparse_step\": 0}", "decoder_sparse_step: 0"},
        {QWEN ", \"decoder_sparse_step\": 9}", "every layer is dense"},
        {QWEN ", \"n_shared_experts\": 1}", "n_shared_experts: this key may change"},
        {"{\"model_type\": \"llama\", " SIZES ", \"num_local_experts\": 4}", "num_local_experts"},
    };
    struct model_config c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_CONTAINS(parse(cases[i].text, &c).text, cases[i].message);
}

TEST(a_type_is_found_for_experts) {
    struct model_config c = tiny();
    struct err err = {0};
    CHECK(hf_config_type(&c, &err) == NULL);
    CHECK_CONTAINS(err.text, "a shared expert");
    c.shared_ffn = 0;
    err = (struct err){0};
    CHECK(hf_config_type(&c, &err) == NULL); // Qwen3-MoE norms q and k, Mixtral has no dense layer
    c.qk_norm = QK_NORM_HEAD;
    CHECK_STR(hf_config_type(&c, &err), "qwen3_moe");
    err = (struct err){0};
    c.qk_norm = QK_NORM_NONE;
    c.layer_dense[1] = false;
    CHECK(hf_config_type(&c, &err) == NULL);
    CHECK_CONTAINS(err.text, "norm_top_k");
    c.norm_top_k = true;
    CHECK_STR(hf_config_type(&c, &err), "mixtral");
}

TEST(names_of_experts) {
    static const char *const wanted[2][5] = {{"model.layers.2.block_sparse_moe.gate.weight",
                                              "model.layers.2.block_sparse_moe.experts.3.w1.weight",
                                              "model.layers.2.block_sparse_moe.experts.3.w3.weight",
                                              "model.layers.2.block_sparse_moe.experts.3.w2.weight",
                                              "model.layers.2.post_attention_layernorm.weight"},
                                             {"model.layers.2.mlp.gate.weight",
                                              "model.layers.2.mlp.experts.3.gate_proj.weight",
                                              "model.layers.2.mlp.experts.3.up_proj.weight",
                                              "model.layers.2.mlp.experts.3.down_proj.weight",
                                              "model.layers.2.post_attention_layernorm.weight"}};
    for (int qwen = 0; qwen < 2; qwen++) {
        struct model_config c = tiny();
        struct model m;
        struct hf_tensor *list;
        int count;
        struct err err = {0};
        c.shared_ffn = 0;
        c.norm_top_k = true;
        c.layer_dense[1] = qwen;
        if (qwen) c.qk_norm = QK_NORM_HEAD;
        CHECK_OK(model_describe(&m, &c, &err), err);
        CHECK_OK(hf_tensors(&m, &list, &count, &err), err);
        int64_t elements = 0;
        for (int i = 0; i < count; i++) elements += list[i].rows * list[i].columns;
        CHECK_EQ_INT(elements, flops_all_params(&c));
        for (int i = 0; i < 5; i++) CHECK(hf_tensor_find(list, count, wanted[qwen][i]) >= 0);
        int up = hf_tensor_find(list, count, wanted[qwen][2]);
        CHECK_EQ_INT(list[up].first_row, 8);
        free(list);
        model_free(&m);
    }
}
