// config.json of the supported model types: read, written back, and refused where a setting would
// be lost.
#include "model/hf_config.h"
#include "base/file.h"
#include "base/json.h"
#include "model/config_json.h"
#include "model/families.h"
#include "model/hf_names.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES                                                                                      \
    "\"vocab_size\": 100, \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": " \
    "4, \"num_attention_heads\": 4"

static struct err parse(const char *text, struct model_config *c) {
    struct err err = {0};
    if (hf_config_parse(text, strlen(text), "config.json", c, &err) != 0)
        CHECK(err.kind != ERR_NONE);
    return err;
}

static void same(const struct model_config *a, const struct model_config *b) {
    json_t *x = model_config_to_json(a), *y = model_config_to_json(b);
    char *s = json_dumps(x, JSON_COMPACT), *t = json_dumps(y, JSON_COMPACT);
    CHECK_STR(s, t);
    free(s), free(t);
    json_decref(x), json_decref(y);
}

TEST(public_configurations_come_back_as_they_went) {
    for (const char *const *name = model_preset_names(NULL); *name; name++) {
        struct model_config c, back;
        struct err err = {0};
        struct text text = {0};
        CHECK_OK(model_preset(*name, &c, &err), err);
        if (model_is_latent(&c)) continue; // see latent.c
        CHECK_OK(hf_config_write(&c, "bfloat16", &text, &err), err);
        CHECK_OK(hf_config_parse(text.data, text.size, "config.json", &back, &err), err);
        same(&back, &c);
        text_free(&text);
    }
}

TEST(settings_of_each_type) {
    struct model_config c;
    CHECK_STR(parse("{\"model_type\": \"llama\", " SIZES "}", &c).text, "");
    CHECK_EQ_INT(c.kv_heads, 4);
    CHECK_EQ_INT(c.context, 2048);
    CHECK(!c.qkv_bias && !c.tied_head);
    CHECK_STR(
        parse("{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, " SIZES
              "}",
              &c)
            .text,
        "");
    CHECK(c.qkv_bias && c.out_bias && c.mlp_bias);
    CHECK_STR(parse("{\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, " SIZES "}", &c).text,
              "");
    CHECK(c.qkv_bias && !c.out_bias);
    CHECK_STR(parse("{\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, " SIZES "}", &c).text,
              "");
    CHECK_EQ_INT(c.head_dim, 128);
    CHECK_EQ_INT(c.qk_norm, QK_NORM_HEAD);
    CHECK_STR(parse("{\"model_type\": \"olmo2\", " SIZES "}", &c).text, "");
    CHECK_EQ_INT(c.qk_norm, QK_NORM_FULL);
    CHECK_EQ_INT(c.norm_place, NORM_AFTER);
    CHECK_STR(parse("{\"model_type\": \"llama\", \"eos_token_id\": [5, 8, 9], \"bos_token_id\": "
                    "null, " SIZES "}",
                    &c)
                  .text,
              "");
    CHECK_EQ_INT(c.eos_id, 5);
    CHECK_EQ_INT(c.stop_count, 2);
    CHECK_EQ_INT(c.stop_ids[1], 9);
    CHECK_EQ_INT(c.bos_id, -1);
    CHECK_STR(parse("{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 12, \"n_layer\": 1, "
                    "\"n_head\": 3, \"n_inner\": null, \"n_ctx\": 1024}",
                    &c)
                  .text,
              "");
    CHECK_EQ_INT(c.ffn, 48);
    CHECK(c.tied_head && c.learned_positions);
}

TEST(windows_of_each_form) {
    struct model_config c;
    CHECK_STR(parse("{\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": "
                    "7, " SIZES "}",
                    &c)
                  .text,
              "");
    CHECK_EQ_INT(c.layer_window[0], 7);
    CHECK_EQ_INT(c.layer_window[3], 7);
    CHECK_STR(parse("{\"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": "
                    "null, " SIZES "}",
                    &c)
                  .text,
              "");
    CHECK_EQ_INT(c.layer_window[0], 0);
    const char *qwen =
        "{\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, \"use_sliding_window\": true, "
        "\"sliding_window\": 9, \"max_window_layers\": 3, " SIZES "}";
    CHECK_STR(parse(qwen, &c).text, "");
    CHECK_EQ_INT(c.layer_window[2], 0);
    CHECK_EQ_INT(c.layer_window[3], 9);
    CHECK_STR(
        parse("{\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, \"use_sliding_window\": "
              "false, \"sliding_window\": 9, \"max_window_layers\": 3, " SIZES "}",
              &c)
            .text,
        "");
    CHECK_EQ_INT(c.layer_window[3], 0);
    const char *mixed = "{\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, "
                        "\"use_sliding_window\": true, \"sliding_window\": 9, \"layer_types\": "
                        "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                        "\"full_attention\"], " SIZES "}";
    CHECK_STR(parse(mixed, &c).text, "");
    CHECK_EQ_INT(c.layer_window[0], 9);
    CHECK_EQ_INT(c.layer_window[1], 0);
    struct text text = {0};
    struct model_config back;
    struct err err = {0};
    CHECK_OK(hf_config_write(&c, "float32", &text, &err), err);
    CHECK_STR(parse(text.data, &back).text, "");
    same(&back, &c);
    text_free(&text);
}

TEST(both_forms_of_rope_settings) {
    struct model_config a, b;
    CHECK_STR(parse("{\"model_type\": \"llama\", \"rope_theta\": 5e5, \"rope_scaling\": {\"type\": "
                    "\"linear\", \"factor\": 2}, " SIZES "}",
                    &a)
                  .text,
              "");
    CHECK_STR(parse("{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"linear\", "
                    "\"rope_theta\": 5e5, \"factor\": 2.0}, " SIZES "}",
                    &b)
                  .text,
              "");
    same(&a, &b);
    CHECK_EQ_INT(a.rope.scaling, ROPE_LINEAR);
    CHECK_CLOSE(a.rope.theta, 5e5, 0);
    CHECK_STR(parse("{\"model_type\": \"llama\", \"max_position_embeddings\": 100, "
                    "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 3}, " SIZES "}",
                    &a)
                  .text,
              "");
    CHECK_EQ_INT(a.rope.original_context, 100);
    CHECK_EQ_INT(a.context, 300);
    CHECK_STR(
        parse("{\"model_type\": \"llama\", \"max_position_embeddings\": 100, \"rope_scaling\": "
              "{\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 25}, " SIZES "}",
              &a)
            .text,
        "");
    CHECK_CLOSE(a.rope.factor, 4, 0);
}

TEST(settings_that_would_be_lost_are_refused) {
    static const struct {
        const char *extra, *word;
    } cases[] = {
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}", "beta_fast"},
        {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1}",
         "high_freq_factor"},
        {"\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 8}", "longrope"},
        {"\"rope_scaling\": {\"type\": \"linear\"}", "factor"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", "factor"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"factor\": 2.0}", "factor"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor"},
        {"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}",
         "full_attention"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
         "{\"rope_type\": \"linear\", \"factor\": 3}",
         "differ"},
        {"\"rope_scaling\": 7", "rope"},
        {"\"rope_thet\": 5e5", "rope_theta"},
        {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {"\"logits_soft_cap\": 30", "logits_soft_cap"},
        {"\"quantization_config\": {\"bits\": 4}", "quantization_config"},
        {"\"hidden_act\": \"relu\"", "hidden_act"},
        {"\"sliding_window\": 5", "sliding_window"},
        {"\"use_sliding_window\": 5", "use_sliding_window"},
        {"\"num_key_value_heads\": 3", "kv_heads"},
        {"\"num_key_value_heads\": -4", "kv_heads"},
        {"\"head_dim\": 7", "head_dim"},
        {"\"architectures\": [\"LlamaForSequenceClassification\"]",
         "LlamaForSequenceClassification"},
        {"\"vocab_size\": 7", "duplicate"},
        {"\"rms_norm_eps\": \"1e-5\"", "rms_norm_eps"},
        {"\"max_position_embeddings\": 99999999999", "max_position_embeddings"},
        {"\"layer_types\": [\"full_attention\"]", "layer_types"},
        {"\"layer_types\": [\"full_attention\", \"chunked_attention\", \"full_attention\", "
         "\"full_attention\"]",
         "chunked_attention"},
        {"\"eos_token_id\": [\"a\"]", "eos_token_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        struct model_config c;
        snprintf(text, sizeof text, "{\"model_type\": \"llama\", " SIZES ", %s}", cases[i].extra);
        struct err err = parse(text, &c);
        if (err.kind == ERR_NONE) test_fail(__FILE__, __LINE__, "accepted: %s", cases[i].extra);
        CHECK_CONTAINS(err.text, cases[i].word);
    }
    struct model_config c;
    CHECK_CONTAINS(parse("{\"model_type\": \"mamba\", " SIZES "}", &c).text, "mamba");
    CHECK_CONTAINS(parse("{" SIZES "}", &c).text, "model_type");
    CHECK_CONTAINS(parse("{\"model_type\": \"llama\"}", &c).text, "vocab_size");
    CHECK_CONTAINS(parse("[1]", &c).text, "object");
    CHECK_CONTAINS(parse("{", &c).text, "JSON");
    CHECK_CONTAINS(
        parse("{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_embd\": 12, \"n_layer\": 1, "
              "\"n_head\": 3, \"scale_attn_by_inverse_layer_idx\": true}",
              &c)
            .text,
        "scale_attn_by_inverse_layer_idx");
    // off or empty settings of other types, and bookkeeping, do no harm
    CHECK_STR(
        parse("{\"model_type\": \"llama\", \"use_mup\": false, \"some_feature\": null, "
              "\"use_cache\": true, \"attention_dropout\": 0.1, \"rope_scaling\": null, " SIZES "}",
              &c)
            .text,
        "");
}

TEST(a_type_is_found_for_a_description) {
    struct model_config c;
    struct err err = {0};
    CHECK_OK(model_preset("llama-15m", &c, &err), err);
    c.variant[0] = 0;
    c.qk_norm = QK_NORM_HEAD;
    CHECK_STR(hf_config_type(&c, &err), "qwen3");
    c.norm_place = NORM_AFTER;
    c.qk_norm = QK_NORM_FULL;
    CHECK_STR(hf_config_type(&c, &err), "olmo2");
    c.mlp_bias = true;
    CHECK(hf_config_type(&c, &err) == NULL);
    CHECK(strlen(err.text) > 20);
}

TEST(random_changes_of_a_configuration_never_crash) {
    char path[4096], *text;
    size_t bytes;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/checkpoints/llama-yarn/config.json", test_golden_dir());
    CHECK_OK(file_read(path, 0, &text, &bytes, &err), err);
    unsigned state = 12345, accepted = 0;
    for (int round = 0; round < 3000; round++) {
        char *copy = malloc(bytes);
        memcpy(copy, text, bytes);
        size_t length = bytes;
        for (int k = 0; k < 1 + round % 4; k++) {
            state = state * 1664525u + 1013904223u;
            size_t at = (state >> 8) % bytes;
            switch (state & 3) {
            case 0:
                copy[at] = (char)(state >> 24);
                break;
            case 1:
                copy[at] = "0123456789-.e{}[]\",:"[(state >> 24) % 20];
                break;
            case 2:
                length = length > at ? at + 1 : length;
                break;
            default:
                copy[at] ^= (char)(1u << (state >> 29));
                break;
            }
        }
        struct model_config c;
        struct model model;
        if (hf_config_parse(copy, length, "x", &c, NULL) == 0) {
            accepted++;
            if (model_describe(&model, &c, NULL) == 0) model_free(&model);
        }
        free(copy);
    }
    CHECK(accepted < 3000);
    free(text);
}

TEST(tensor_names_cover_the_model) {
    for (const char *const *name = model_preset_names(NULL); *name; name++) {
        struct model_config c;
        struct model model;
        struct hf_tensor *list;
        struct err err = {0};
        int count;
        CHECK_OK(model_preset(*name, &c, &err), err);
        if (c.layers > 40 || model_is_latent(&c)) continue;
        CHECK_OK(model_describe(&model, &c, &err), err);
        CHECK_OK(hf_tensors(&model, &list, &count, &err), err);
        int64_t elements = 0, expected = 0;
        for (int i = 0; i < count; i++) {
            elements += list[i].rows * list[i].columns;
            CHECK_EQ_INT(hf_tensor_find(list, count, list[i].name), i);
        }
        for (int i = 0; i < model.param_count; i++) expected += param_elements(&model.params[i]);
        CHECK_EQ_INT(elements, expected);
        free(list);
        model_free(&model);
    }
    CHECK(hf_name_ignorable("h.3.attn.bias") && !hf_name_ignorable("h.3.attn.c_attn.bias"));
}

TEST(published_configurations) {
    static const struct {
        const char *name, *word; // NULL: accepted; else what the refusal names
    } files[] = {
        {"Llama-3.2-1B-Instruct", NULL},
        {"Qwen2.5-0.5B-Instruct", NULL},
        {"Qwen3-1.7B", NULL},
        {"llama3-8B-instruct", NULL},
        {"llama31_405b", NULL},
        {"llama31_70b", NULL},
        {"mixtral_8x7b", NULL},
        {"deepseek3_671b", NULL},
        {"qwen3_30b_a3b_base", NULL},
    };
    if (!test_data_dir()) SKIP("needs DATA");
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[4096];
        struct model_config c;
        struct err err = {0};
        snprintf(path, sizeof path, "%s/configs/%s.config.json", test_data_dir(), files[i].name);
        if (!file_exists(path)) SKIP("no %s", path);
        if (files[i].word) {
            CHECK(hf_config_read(path, &c, &err) != 0);
            CHECK_CONTAINS(err.text, files[i].word);
        } else {
            CHECK_OK(hf_config_read(path, &c, &err), err);
        }
        if (strcmp(files[i].name, "llama31_70b") == 0) {
            CHECK_EQ_INT(c.rope.scaling, ROPE_LLAMA3);
            CHECK_EQ_INT(c.stop_count, 2);
        }
    }
}
