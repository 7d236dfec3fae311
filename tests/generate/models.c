// Tiny models, see models.h.
#include "models.h"
#include "base/random.h"
#include "model/families.h"
#include "test.h"
#include <stdlib.h>

static struct model_config shape_of(enum tiny_kind kind) {
    struct model_config c;
    model_family_defaults(kind == TINY_GPT2 ? FAMILY_GPT2 : FAMILY_LLAMA, &c);
    c.layers = 2;
    c.hidden = 32;
    c.heads = 4;
    c.kv_heads = kind == TINY_GPT2 ? 4 : 2;
    c.head_dim = 8;
    c.ffn = 48;
    c.vocab = TINY_VOCAB;
    c.context = TINY_CONTEXT;
    c.init_std = 0.2;
    c.tied_head = kind == TINY_GPT2 || kind == TINY_QWEN2;
    if (kind == TINY_QWEN2) c.qkv_bias = true;
    if (kind == TINY_QWEN3) c.qk_norm = QK_NORM_HEAD;
    if (kind == TINY_OLMO2) {
        c.qk_norm = QK_NORM_FULL;
        c.norm_place = NORM_AFTER;
    }
    if (kind == TINY_WINDOW) c.layer_window[0] = 4;
    if (kind == TINY_EXPERTS) {
        c.experts = 5;
        c.top_k = 2;
        c.expert_ffn = 24;
        c.shared_ffn = 56; // wider than the dense layer's
        c.layer_dense[0] = true;
    }
    return c;
}

void tiny_fill(struct generator *g) {
    const struct model *m = generator_model(g);
    struct err err = {0};
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        int64_t count = param_elements(p);
        float *values = malloc((size_t)count * sizeof *values);
        CHECK(values);
        model_initial_values(m, i, 7, 0, count, values);
        for (int64_t k = 0; !param_is_matrix(p) && k < count; k++) // biases and norms too
            values[k] += 0.3f * (float)random_normal(random_key(8, p->name), (uint64_t)k);
        CHECK_OK(generator_set_param(g, i, values, &err), err);
        free(values);
    }
    generator_weights_changed(g);
}

void tiny_open(struct tiny *t, enum tiny_kind kind, enum dtype compute, int chunk, int threads) {
    struct err err = {0};
    struct model_config config = shape_of(kind);
    CHECK_OK(model_describe(&t->model, &config, &err), err);
    struct device_cpu_options cpu = {.threads = threads};
    CHECK_OK(device_cpu_open(&t->device, &cpu, &err), err);
    struct generator_options options = {.compute = compute, .chunk = chunk};
    t->g = generator_open(&t->model, &t->device, &options, &err);
    if (!t->g) test_fail(__FILE__, __LINE__, "generator_open: %s", err.text);
    tiny_fill(t->g);
}

void tiny_close(struct tiny *t) {
    generator_close(t->g);
    t->device.close(&t->device);
    model_free(&t->model);
}

void tiny_tokens(uint64_t seed, int count, int32_t *ids) {
    for (int i = 0; i < count; i++)
        ids[i] = (int32_t)(random_uniform(random_key(seed, "tokens"), (uint64_t)i) * TINY_VOCAB);
}
