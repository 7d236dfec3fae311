// Rotary frequencies against transformers' own functions (tests/golden/rope.json) and the published
// Llama 3.1 figures.
#include "model/rope.h"
#include "base/json.h"
#include "model/hf_config.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(frequencies_equal_the_reference) {
    char path[4096];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/rope.json", test_golden_dir());
    json_t *cases = json_parse_file(path, &err), *one;
    CHECK(cases != NULL);
    size_t i;
    json_array_foreach(cases, i, one) {
        // the settings travel through a config.json, as in life
        char text[2048];
        char *parameters = json_dumps(json_object_get(one, "parameters"), JSON_REAL_PRECISION(17));
        int head_dim = (int)json_integer_value(json_object_get(one, "head_dim"));
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"llama\", \"vocab_size\": 10, \"hidden_size\": %d, "
            "\"intermediate_size\": 8, \"num_hidden_layers\": 1,"
            "\"num_attention_heads\": 2, \"max_position_embeddings\": %d, \"rope_parameters\": %s}",
            2 * head_dim, (int)json_integer_value(json_object_get(one, "context")), parameters);
        struct model_config c;
        CHECK_OK(hf_config_parse(text, strlen(text), "case", &c, &err), err);
        double found[256],
            factor = rope_inverse_frequencies(
                &c.rope, head_dim, (int)json_integer_value(json_object_get(one, "length")), found);
        CHECK_CLOSE(factor, json_number_value(json_object_get(one, "factor")), 1e-7);
        json_t *list = json_object_get(one, "frequencies"), *value;
        size_t k;
        CHECK_EQ_INT(json_array_size(list), head_dim / 2);
        json_array_foreach(list, k, value) {
            CHECK_CLOSE(found[k] / json_number_value(value), 1, 3e-6);
        }
        free(parameters);
    }
    CHECK(i >= 12);
    json_decref(cases);
}

TEST(llama3_scale_ratios) {
    struct model_rope plain = {.theta = 500000}, scaled = plain;
    scaled.scaling = ROPE_LLAMA3;
    scaled.factor = 8, scaled.low_freq_factor = 1, scaled.high_freq_factor = 4,
    scaled.original_context = 8192;
    double a[64], b[64];
    rope_inverse_frequencies(&plain, 128, 131072, a);
    rope_inverse_frequencies(&scaled, 128, 131072, b);
    CHECK_CLOSE(b[28] / a[28], 1, 1e-12);
    CHECK_CLOSE(b[30] / a[30], 0.643743, 1e-6);
    CHECK_CLOSE(b[32] / a[32], 0.371122, 1e-6);
    for (int i = 35; i < 64; i++) CHECK_CLOSE(b[i] / a[i], 0.125, 1e-12);
}
