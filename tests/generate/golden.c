// Every family against values that transformers gave for the tiny checkpoints of tests/golden:
// logits in FP32, read whole and token by token, and the greedy continuation.
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/hf_folder.h"
#include "generate/write.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 64 };

struct golden {
    struct hf_folder *folder;
    json_t *expected;
    struct device device;
    struct generator *g;
};

static void golden_open(struct golden *o, const char *name, enum dtype compute, int context) {
    struct err err = {0};
    char path[4096], file[4200];
    snprintf(path, sizeof path, "%s/checkpoints/%s", test_golden_dir(), name);
    snprintf(file, sizeof file, "%s/expected.json", path);
    o->expected = json_parse_file(file, &err);
    if (!o->expected) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_OK(hf_folder_open(path, &o->folder, &err), err);
    CHECK_OK(device_cpu_open(&o->device, &(struct device_cpu_options){0}, &err), err);
    const struct model *m = hf_folder_model(o->folder);
    struct generator_options options = {.compute = compute, .context = context, .chunk = 16};
    o->g = generator_open(m, &o->device, &options, &err);
    if (!o->g) test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
    for (int i = 0; i < m->param_count; i++) {
        float *values = malloc((size_t)param_elements(&m->params[i]) * sizeof *values);
        CHECK(values);
        CHECK_OK(hf_folder_read(o->folder, i, values, &err), err);
        CHECK_OK(generator_set_param(o->g, i, values, &err), err);
        free(values);
    }
    generator_weights_changed(o->g);
}

static void golden_close(struct golden *o) {
    generator_close(o->g);
    o->device.close(&o->device);
    hf_folder_close(o->folder);
    json_decref(o->expected);
}

static int numbers(const struct golden *o, const char *key, int32_t *out) {
    const json_t *list = json_object_get(o->expected, key);
    int count = (int)json_array_size(list);
    CHECK(count > 0 && count <= MOST_TOKENS);
    for (int i = 0; i < count; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return count;
}

// Largest distance of the logits that are given from those found, over the largest given.
static double logits_distance(const struct golden *o, const float *logits, int vocab) {
    int32_t positions[MOST_TOKENS];
    int count = numbers(o, "positions", positions);
    double most = 0, scale = 0;
    for (int i = 0; i < count; i++) {
        const json_t *row = json_array_get(json_object_get(o->expected, "logits"), (size_t)i);
        CHECK_EQ_INT(json_array_size(row), vocab);
        for (int v = 0; v < vocab; v++) {
            double given = json_number_value(json_array_get(row, (size_t)v));
            most = fmax(most, fabs(given - (double)logits[positions[i] * vocab + v]));
            scale = fmax(scale, fabs(given));
        }
    }
    return most / scale;
}

static void check_logits(const char *name, enum dtype compute, int context, double tolerance) {
    struct err err = {0};
    struct golden o;
    golden_open(&o, name, compute, context);
    int vocab = generator_model(o.g)->config.vocab;
    int32_t ids[MOST_TOKENS], targets[MOST_TOKENS];
    int count = numbers(&o, "tokens", ids);
    float *logits = malloc((size_t)count * (size_t)vocab * sizeof *logits);
    CHECK(logits);
    CHECK_OK(generator_feed_all(o.g, ids, count, logits, &err), err);
    CHECK_CLOSE(logits_distance(&o, logits, vocab), 0, tolerance);
    generator_rewind(o.g, 0);
    for (int i = 0; i < count; i++) {
        CHECK_OK(generator_feed(o.g, ids + i, 1, &err), err);
        memcpy(logits + i * vocab, generator_logits(o.g), (size_t)vocab * 4);
    }
    CHECK_CLOSE(logits_distance(&o, logits, vocab), 0, tolerance);
    free(logits);
    generator_rewind(o.g, 0);
    float losses[MOST_TOKENS];
    for (int i = 0; i < count; i++) targets[i] = i + 1 < count ? ids[i + 1] : -1;
    CHECK_OK(generator_score(o.g, ids, targets, count, losses, &err), err);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)losses[i];
    CHECK_CLOSE(sum / (count - 1), json_number_value(json_object_get(o.expected, "loss")),
                tolerance);
    golden_close(&o);
}

struct heard {
    int32_t ids[MOST_TOKENS];
    int count;
};
static int hear(void *context, int32_t id) {
    struct heard *h = context;
    h->ids[h->count++] = id;
    return 0;
}

static void check_greedy(const char *name) {
    struct err err = {0};
    struct golden o;
    golden_open(&o, name, DTYPE_F32, 0);
    int32_t prompt[MOST_TOKENS], continuation[MOST_TOKENS];
    struct heard h = {.count = 0};
    struct write_request request = {.prompt = prompt,
                                    .prompt_count = numbers(&o, "prompt", prompt),
                                    .tokens = numbers(&o, "greedy", continuation),
                                    .sampler = {.greedy = true, .top_p = 1},
                                    .token = hear,
                                    .context = &h};
    struct write_result result;
    CHECK_OK(write_text(o.g, &request, &result, &err), err);
    CHECK_EQ_INT(h.count, request.tokens);
    CHECK_BYTES(h.ids, continuation, (size_t)h.count * sizeof *continuation);
    golden_close(&o);
}

#define FAMILY(test_, name_)                                                                       \
    TEST(golden_##test_) {                                                                         \
        check_logits(name_, DTYPE_F32, 0, 1e-5);                                                   \
        check_logits(name_, DTYPE_BF16, 0, 0.04);                                                  \
        check_greedy(name_);                                                                       \
    }
FAMILY(gpt2, "gpt2")
FAMILY(llama, "llama")
FAMILY(llama_bias, "llama-bias")
FAMILY(llama_linear, "llama-linear")
FAMILY(llama_yarn, "llama-yarn")
FAMILY(mistral, "mistral")
FAMILY(olmo2, "olmo2")
FAMILY(qwen2, "qwen2")
FAMILY(qwen2_window, "qwen2-window")
FAMILY(qwen3, "qwen3")
FAMILY(smollm2, "smollm2")
FAMILY(mixtral, "mixtral")
FAMILY(qwen3_moe, "qwen3-moe")
FAMILY(qwen3_moe_norm, "qwen3-moe-norm")

// The bias decides which experts are visited; zeros change nothing.
TEST(golden_bias_of_experts) {
    struct golden o;
    struct err err = {0};
    golden_open(&o, "mixtral", DTYPE_F32, 0);
    int vocab = generator_model(o.g)->config.vocab;
    int32_t ids[MOST_TOKENS];
    int count = numbers(&o, "tokens", ids);
    float *logits = malloc((size_t)(count * vocab) * sizeof *logits);
    float zero[4] = {0}, last[4] = {0, 0, 0, 2};
    for (int turn = 0; turn < 3; turn++) {
        generator_rewind(o.g, 0);
        generator_set_expert_bias(o.g, 1, turn == 1 ? last : zero);
        CHECK_OK(generator_feed_all(o.g, ids, count, logits, &err), err);
        double distance = logits_distance(&o, logits, vocab);
        CHECK(turn == 1 ? distance > 1e-3 : distance < 1e-5);
    }
    free(logits);
    golden_close(&o);
}

// Dynamic scaling is meant to go beyond the model's context; the frequencies follow the length.
TEST(golden_llama_dynamic) {
    check_logits("llama-dynamic", DTYPE_F32, 24, 1e-5);
    check_greedy("llama-dynamic");
}
