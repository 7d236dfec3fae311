// Latent attention (DeepSeek) as a description: parameters, operations, refused shapes, and the
// config.json of DeepSeek-V3. Counts are those that its report gives.
#include "model/families.h"
#include "model/flops.h"
#include "model/hf_config.h"
#include "model/hf_names.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t of_role(const struct model *m, int layer, enum param_role role) {
    int index = model_param(m, layer, role);
    return index < 0 ? 0 : param_elements(&m->params[index]);
}

TEST(latent_attention_of_deepseek_v3) {
    struct model_config c;
    struct model m;
    struct err err = {0};
    CHECK_OK(model_preset("deepseek-v3", &c, &err), err);
    CHECK_OK(model_describe(&m, &c, &err), err);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_QKV), 0);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_Q_DOWN), 1536LL * 7168);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_Q_UP), 128LL * 192 * 1536);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_KV_DOWN), (512LL + 64) * 7168);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_KV_UP), 128LL * (128 + 128) * 512);
    CHECK_EQ_INT(of_role(&m, 5, PARAM_OUT), 7168LL * 128 * 128);
    CHECK_EQ_INT(of_role(&m, 2, PARAM_UP), 2LL * 18432 * 7168);
    CHECK_EQ_INT(of_role(&m, 3, PARAM_SHARED_UP), 2LL * 2048 * 7168);
    model_free(&m);
    // 671B stored, 37B per token
    CHECK(fabs((double)flops_all_params(&c) / 671e9 - 1) < 0.002);
    CHECK(fabs((double)flops_active_params(&c) / 37.5e9 - 1) < 0.01);
    CHECK_EQ_INT(model_value_width(&c), 128 * 128);
    CHECK_EQ_INT(model_qkv_width(&c), 128 * (192 + 192 + 128));
    // attended pairs cost a product of 192 and one of 128
    double pairs = flops_per_token_pairs(&c, 1) - flops_per_token_pairs(&c, 0);
    CHECK(fabs(pairs / (6.0 * 128 * (192 + 128) * 61) - 1) < 1e-6);
}

TEST(latent_smaller_models) {
    struct model_config c;
    struct err err = {0};
    CHECK_OK(model_preset("deepseek-v2-lite", &c, &err), err);
    CHECK(fabs((double)flops_all_params(&c) / 15.7e9 - 1) < 0.01);
    CHECK_OK(model_preset("deepseek-v2", &c, &err), err);
    CHECK(fabs((double)flops_all_params(&c) / 236e9 - 1) < 0.01);
    CHECK(fabs((double)flops_active_params(&c) / 21e9 - 1) < 0.03);
}

static void check_refused(void (*change)(struct model_config *), const char *word) {
    struct model_config c;
    struct err err = {0};
    CHECK_OK(model_preset("deepseek-v2-lite", &c, &err), err);
    change(&c);
    CHECK(model_config_check(&c, &err) != 0);
    CHECK_CONTAINS(err.text, word);
}
static void odd_rope(struct model_config *c) {
    c->qk_rope_head_dim = 63;
}
static void wide_rope(struct model_config *c) {
    c->qk_rope_head_dim = 200;
}
static void no_value(struct model_config *c) {
    c->v_head_dim = 0;
}
static void grouped(struct model_config *c) {
    c->kv_heads = 4;
}
static void no_latent(struct model_config *c) {
    c->kv_lora_rank = 0;
}
static void negative(struct model_config *c) {
    c->q_lora_rank = -1;
}

TEST(latent_shapes_that_cannot_be) {
    check_refused(odd_rope, "qk_rope_head_dim");
    check_refused(wide_rope, "qk_rope_head_dim");
    check_refused(no_value, "v_head_dim");
    check_refused(grouped, "kv_heads");
    check_refused(no_latent, "kv_lora_rank");
    check_refused(negative, "q_lora_rank");
}

static const char deepseek[] =
    "{\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"],"
    "\"vocab_size\": 129280, \"hidden_size\": 7168, \"intermediate_size\": 18432,"
    "\"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"num_key_value_heads\": 128,"
    "\"max_position_embeddings\": 163840, \"rms_norm_eps\": 1e-6, \"q_lora_rank\": 1536,"
    "\"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, \"qk_nope_head_dim\": 128,"
    "\"v_head_dim\": 128, \"n_routed_experts\": 256, \"n_shared_experts\": 1,"
    "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3,"
    "\"moe_layer_freq\": 1, \"norm_topk_prob\": true, \"n_group\": 8, \"topk_group\": 4,"
    "\"scoring_func\": \"sigmoid\", \"routed_scaling_factor\": 2.5, \"rope_theta\": 10000,"
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1,"
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096}}";

TEST(latent_config_json_equals_the_preset) {
    struct model_config read, preset;
    struct err err = {0};
    CHECK_OK(hf_config_parse(deepseek, sizeof deepseek - 1, "config.json", &read, &err), err);
    CHECK_OK(model_preset("deepseek-v3", &preset, &err), err);
    CHECK_EQ_INT(flops_all_params(&read), flops_all_params(&preset));
    CHECK_EQ_INT(flops_matmul_params(&read), flops_matmul_params(&preset));
    CHECK_EQ_INT(read.head_dim, 192);
    CHECK_EQ_INT(read.shared_ffn, 2048);
    CHECK(read.layer_dense[2] && !read.layer_dense[3]);
    CHECK_STR(read.variant, "deepseek_v3");
    // planned, not loaded or saved
    struct model m;
    struct hf_tensor *list;
    int count;
    CHECK_OK(model_describe(&m, &read, &err), err);
    CHECK(hf_tensors(&m, &list, &count, &err) != 0);
    CHECK_CONTAINS(err.text, "latent attention");
    model_free(&m);
    CHECK(hf_config_type(&read, &err) == NULL);
    CHECK_CONTAINS(err.text, "latent attention");
}

TEST(latent_keys_are_of_their_type) {
    static const char foreign[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 100, \"hidden_size\": 16,"
        "\"intermediate_size\": 32, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
        "\"kv_lora_rank\": 8}";
    struct model_config c;
    struct err err = {0};
    CHECK(hf_config_parse(foreign, sizeof foreign - 1, "config.json", &c, &err) != 0);
    CHECK_CONTAINS(err.text, "kv_lora_rank");
}
