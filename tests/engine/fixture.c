#include "fixture.h"
#include "base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct model_config fixture_config(const char *kind) {
    struct model_config c = {.family = FAMILY_LLAMA,
                             .variant = "llama",
                             .layers = 3,
                             .hidden = 32,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 8,
                             .ffn = 48,
                             .vocab = 90,
                             .context = 64,
                             .norm = NORM_RMS,
                             .norm_eps = 1e-5,
                             .activation = ACTIVATION_SWIGLU,
                             .rope = {.theta = 10000},
                             .init_std = 0.15,
                             .bos_id = -1,
                             .eos_id = -1};
    if (strcmp(kind, "gpt2") == 0) {
        c.family = FAMILY_GPT2;
        strcpy(c.variant, "gpt2");
        c.norm = NORM_LAYER;
        c.activation = ACTIVATION_GELU_TANH;
        c.learned_positions = c.qkv_bias = c.out_bias = c.mlp_bias = c.tied_head = true;
        c.kv_heads = 4;
        c.ffn = 128;
    } else if (strcmp(kind, "tied") == 0) {
        c.tied_head = true;
        c.layer_window[1] = 5;
    } else if (strcmp(kind, "qwen3") == 0) {
        strcpy(c.variant, "qwen3");
        c.qk_norm = QK_NORM_HEAD;
        c.qkv_bias = true;
    } else if (strcmp(kind, "olmo2") == 0) {
        strcpy(c.variant, "olmo2");
        c.norm_place = NORM_AFTER;
        c.qk_norm = QK_NORM_FULL;
    } else if (strncmp(kind, "experts", 7) == 0) {
        c.experts = 5;
        c.top_k = 2;
        c.expert_ffn = 24;
        c.shared_ffn = 16;
        c.layer_dense[0] = true;
        c.norm_top_k = true;
        if (strcmp(kind, "experts after") == 0) c.norm_place = NORM_AFTER;
    } else {
        CHECK(strcmp(kind, "llama") == 0);
    }
    return c;
}

void fixture_open(struct fixture *f, const struct model_config *config,
                  struct engine_options options, int threads, enum device_isa isa) {
    struct err err = {0};
    struct device_cpu_options cpu = {.threads = threads, .limit = isa};
    CHECK_OK(device_cpu_open(&f->device, &cpu, &err), err);
    CHECK_OK(model_describe(&f->model, config, &err), err);
    if (!options.micro_batches) options.micro_batches = 1;
    if (options.beta1 == 0) options.beta1 = 0.9;
    if (options.beta2 == 0) options.beta2 = 0.95;
    if (options.eps == 0) options.eps = 1e-8;
    f->engine = engine_open(&f->model, &f->device, &options, &err);
    if (!f->engine) test_fail(__FILE__, __LINE__, "%s", err.text);
    engine_initialise(f->engine, 1);
}

void fixture_close(struct fixture *f) {
    engine_close(f->engine);
    model_free(&f->model);
    f->device.close(&f->device);
}

static struct batch empty_batch(int rows, int context) {
    struct batch b;
    void *memory = calloc(1, batch_bytes(rows * context));
    CHECK(memory != NULL);
    batch_place(&b, memory, rows, context);
    return b;
}

void fixture_free(struct batch *batch) {
    free(batch->input); // the first array of the memory
}

void fixture_count(struct batch *b) {
    b->counted = b->attended_pairs = 0;
    for (int i = 0; i < b->tokens; i++) {
        b->counted += b->target[i] >= 0;
        b->attended_pairs += b->attend_to[i] - b->attend_from[i];
    }
}

struct batch fixture_batch(int rows, int context, int vocab, uint64_t seed) {
    struct batch b = empty_batch(rows, context);
    uint64_t key = random_key(seed, "tokens");
    for (int i = 0; i < b.tokens; i++) {
        int at = i % context;
        b.input[i] = (int32_t)(random_uniform(key, (uint64_t)i) * vocab);
        b.target[i] = (int32_t)(random_uniform(key, (uint64_t)i + 1) * vocab);
        if (at == context - 1)
            b.target[i] = (int32_t)(random_uniform(key, (uint64_t)i + 1000000) * vocab);
        b.position[i] = at;
        b.attend_from[i] = i - at;
        b.attend_to[i] = i + 1;
    }
    b.non_pad = b.tokens;
    fixture_count(&b);
    return b;
}

struct batch fixture_packed(const int *lengths, int documents, int context, int vocab,
                            uint64_t seed) {
    struct batch b = empty_batch(1, context);
    int at = 0;
    for (int d = 0; d < documents; d++) {
        uint64_t key = random_key(seed + (uint64_t)d, "document");
        int first = at;
        for (int i = 0; i < lengths[d]; i++, at++) {
            b.input[at] = (int32_t)(random_uniform(key, (uint64_t)i) * vocab);
            b.target[at] =
                i + 1 < lengths[d] ? (int32_t)(random_uniform(key, (uint64_t)i + 1) * vocab) : -1;
            b.position[at] = i;
            b.attend_from[at] = first;
            b.attend_to[at] = at + 1;
        }
    }
    b.non_pad = at;
    for (; at < context; at++) {
        b.target[at] = -1;
        b.attend_from[at] = at;
        b.attend_to[at] = at + 1;
    }
    fixture_count(&b);
    return b;
}

struct engine_step fixture_step(struct fixture *f, struct batch *batches, int count, bool update) {
    struct err err = {0};
    struct batch *list[64];
    for (int i = 0; i < count; i++) list[i] = &batches[i];
    struct engine_step step = {.learning_rate = 0.01, .update = 1, .no_update = !update};
    CHECK_OK(engine_run_step(f->engine, list, count, &step, &err), err);
    return step;
}

float *fixture_copy(struct fixture *f, enum engine_part part, size_t *count) {
    struct err err = {0};
    struct tensor *tensors;
    int n;
    CHECK_OK(engine_tensors(f->engine, part, &tensors, &n, &err), err);
    size_t total = 0, at = 0;
    for (int i = 0; i < n; i++) total += (size_t)tensor_elements(&tensors[i]);
    float *copy = malloc(total * sizeof *copy);
    CHECK(copy != NULL);
    for (int i = 0; i < n; at += (size_t)tensor_elements(&tensors[i++]))
        memcpy(copy + at, tensors[i].data, tensor_bytes(&tensors[i]));
    free(tensors);
    *count = total;
    return copy;
}

double fixture_difference(const float *a, const float *b, size_t count) {
    double most = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
        if (!isfinite(a[i])) return INFINITY;
    }
    return most / size;
}
