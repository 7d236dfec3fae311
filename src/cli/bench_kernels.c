// Body of bench_kernels.h: every kernel once over large buffers.
#include "cli/bench_kernels.h"
#include "base/arena.h"
#include "base/clock.h"
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 16384,
    WIDTH = 2048,
    HEAD_DIM = 64,
    VOCAB = 50257,
    VOCAB_STRIDE = 50304,
    ROWS = 1024
};

struct place {
    struct device *device;
    enum dtype type;
    double seconds;
    void *buffer[4];  // each TOKENS x WIDTH floats
    float *vector[4]; // each at least WIDTH and TOKENS floats
    int32_t *number;  // TOKENS small numbers
    void *workspace;
    struct bandwidth_figures *out;
};

static const int64_t count = (int64_t)TOKENS * WIDTH;

// The best time of `call`, repeated for about p->seconds.
#define MEASURE(p, title, bytes_, call)                                                            \
    do {                                                                                           \
        double begin_ = clock_seconds(), best_ = 1e30;                                             \
        for (int i_ = 0; i_ < 3 || clock_seconds() - begin_ < (p)->seconds; i_++) {                \
            double from_ = clock_seconds();                                                        \
            call;                                                                                  \
            double took_ = clock_seconds() - from_;                                                \
            if (took_ < best_) best_ = took_;                                                      \
        }                                                                                          \
        (p)->out->kernel[(p)->out->count++] =                                                      \
            (struct kernel_figure){title, (double)(bytes_), best_};                                \
    } while (0)

static void copy(struct place *p) {
    size_t piece = (size_t)1 << 20, pieces = (size_t)count * 4 / piece;
#pragma omp parallel for schedule(static) num_threads(p->device->threads)
    for (size_t i = 0; i < pieces; i++)
        memcpy((char *)p->buffer[1] + i * piece, (const char *)p->buffer[0] + i * piece, piece);
}

static void triad(struct place *p) {
    float *a = p->buffer[0];
    const float *b = p->buffer[1], *c = p->buffer[2];
#pragma omp parallel for simd schedule(static) num_threads(p->device->threads)
    for (int64_t i = 0; i < count; i++) a[i] = b[i] + 3.0f * c[i];
}

static void measure_memory(struct place *p) {
    struct bandwidth_figures *out = p->out;
    MEASURE(p, "copy", count * 8, copy(p));
    MEASURE(p, "triad", count * 12, triad(p));
    out->copy_rate = out->kernel[0].bytes / out->kernel[0].seconds;
    out->triad_rate = out->kernel[1].bytes / out->kernel[1].seconds;
    out->count = 0;
}

static void measure_norms(struct place *p) {
    struct device *d = p->device;
    int64_t size = (int64_t)dtype_bytes(p->type);
    struct device_norm a = {.type = p->type,
                            .tokens = TOKENS,
                            .width = WIDTH,
                            .eps = 1e-5,
                            .x = p->buffer[0],
                            .delta = p->buffer[1],
                            .residual = p->buffer[2],
                            .y = p->buffer[3],
                            .weight = p->vector[0],
                            .rstd = p->vector[1],
                            .mean = p->vector[2]};
    MEASURE(p, "rms norm + residual", 4 * count * size, d->norm_forward(d, &a));
    a.centred = true;
    a.bias = p->vector[0];
    MEASURE(p, "layer norm + residual", 4 * count * size, d->norm_forward(d, &a));
    struct device_norm_backward b = {.type = p->type,
                                     .tokens = TOKENS,
                                     .width = WIDTH,
                                     .centred = true,
                                     .x = p->buffer[0],
                                     .dy = p->buffer[1],
                                     .weight = p->vector[0],
                                     .rstd = p->vector[1],
                                     .mean = p->vector[2],
                                     .dx_add = p->buffer[2],
                                     .dx = p->buffer[3],
                                     .dweight = p->vector[3],
                                     .dbias = p->vector[0],
                                     .store = true,
                                     .workspace = p->workspace};
    MEASURE(p, "layer norm gradient", 4 * count * size, d->norm_backward(d, &b));
    MEASURE(p, "bias gradient", count * size,
            d->bias_backward(d, p->type, TOKENS, WIDTH, p->buffer[0], WIDTH, p->vector[3], true,
                             p->workspace));
    int heads = WIDTH / HEAD_DIM / 2;
    struct device_rope r = {.type = p->type,
                            .tokens = TOKENS,
                            .heads = heads,
                            .kv_heads = heads / 2,
                            .head_dim = HEAD_DIM,
                            .qkv_in = p->buffer[0],
                            .qkv_out = p->buffer[0],
                            .position = p->number,
                            .cosine = p->vector[1],
                            .sine = p->vector[2]};
    MEASURE(p, "rope", 1.5 * (double)(count * size), d->rope_forward(d, &r));
}

static void measure_activations(struct place *p) {
    struct device *d = p->device;
    int64_t size = (int64_t)dtype_bytes(p->type), ffn = WIDTH / 2, half = count / 2;
    MEASURE(p, "swiglu", 3 * half * size,
            d->swiglu_forward(d, p->type, TOKENS, ffn, p->buffer[0], p->buffer[1]));
    MEASURE(p, "swiglu gradient", 5 * half * size,
            d->swiglu_backward(d, p->type, TOKENS, ffn, p->buffer[0], p->buffer[1], p->buffer[2],
                               NULL));
    MEASURE(p, "gelu", 2 * count * size,
            d->gelu_forward(d, p->type, count, p->buffer[0], p->buffer[1]));
    MEASURE(p, "gelu gradient", 3 * count * size,
            d->gelu_backward(d, p->type, count, p->buffer[0], p->buffer[1], p->buffer[2], NULL));
    MEASURE(p, "add", 3 * count * size,
            d->add(d, p->type, count, p->buffer[0], p->buffer[1], p->buffer[2]));
    MEASURE(p, "embedding", 2 * count * size,
            d->embedding_forward(d, p->type, TOKENS, WIDTH, p->buffer[0], NULL, p->number, NULL,
                                 p->buffer[1]));
}

static void measure_rest(struct place *p) {
    struct device *d = p->device;
    memset(p->buffer[0], 0, (size_t)count * 4);
    int64_t rows = count / VOCAB_STRIDE < ROWS ? count / VOCAB_STRIDE : ROWS;
    MEASURE(p, "cross-entropy with gradient",
            rows * VOCAB_STRIDE * (4 + (int64_t)dtype_bytes(p->type)),
            d->cross_entropy(d, p->type, rows, VOCAB, VOCAB_STRIDE, p->buffer[0], p->number, 1,
                             p->vector[3], p->buffer[1]));
    for (int i = 0; i < 4; i++) memset(p->buffer[i], 0, (size_t)count * 4);
    bool low = p->type == DTYPE_BF16;
    struct device_adamw a = {.count = low ? count - count / 8 : count,
                             .master = p->buffer[0],
                             .moment1 = p->buffer[1],
                             .moment2 = p->buffer[2],
                             .gradient = p->buffer[3],
                             .learning_rate = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .decay = 0.1,
                             .gradient_scale = 1,
                             .step = 1};
    if (low) a.weight = p->workspace;
    MEASURE(p, "adamw", a.count * (low ? 30 : 28), d->adamw(d, &a));
    struct device_seal *seals = calloc(2 * (size_t)(count / DEVICE_NORM_BLOCK + 1), sizeof *seals);
    if (seals) {
        a.before = seals;
        a.after = seals + count / DEVICE_NORM_BLOCK + 1;
        MEASURE(p, "adamw with checksums", a.count * (low ? 30 : 28), d->adamw(d, &a));
        MEASURE(p, "checksums", count * 4,
                d->word_sums(d, count, p->buffer[0], DTYPE_F32, &seals->master));
    }
    free(seals);
    MEASURE(p, "square sums", count * 4,
            d->square_sums(d, count, p->buffer[0], p->workspace, NULL));
}

int bench_kernels(struct device *device, enum dtype type, double seconds,
                  struct bandwidth_figures *out, struct err *err) {
    struct place p = {.device = device, .type = type, .seconds = seconds, .out = out};
    size_t vector_bytes = (size_t)TOKENS * HEAD_DIM * 4, work_bytes = (size_t)count * 2;
    struct arena arena;
    if (arena_open(&arena, 4 * ((size_t)count * 4 + vector_bytes) + TOKENS * 4 + work_bytes + 4096,
                   1, err))
        return -1;
    for (int i = 0; i < 4; i++) p.buffer[i] = arena_take(&arena, (size_t)count * 4);
    for (int i = 0; i < 4; i++) p.vector[i] = arena_take(&arena, vector_bytes);
    p.number = arena_take(&arena, TOKENS * 4);
    p.workspace = arena_take(&arena, work_bytes);
    for (int i = 0; i < TOKENS; i++) p.number[i] = i * 7 % 1000;
    struct record_lane *lane = device->lane;
    device->lane = NULL;
    *out = (struct bandwidth_figures){0};
    measure_memory(&p);
    for (int i = 0; i < 3; i++) memset(p.buffer[i], 0, (size_t)count * 4);
    measure_norms(&p);
    measure_activations(&p);
    measure_rest(&p);
    device->lane = lane;
    arena_close(&arena);
    return 0;
}
