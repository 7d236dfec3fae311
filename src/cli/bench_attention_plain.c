// The materialised attention: per head, S = Q K^T into memory, softmax over rows into P, O = P V;
// backward dP = dO V^T, dS = P (dP - delta), dQ = dS K, dK = dS^T Q, dV = P^T dO. Products by the
// device, the passes between them by rows.
#include "cli/bench_attention_plain.h"
#include "base/arena.h"
#include "base/clock.h"
#include <math.h>
#include <string.h>

struct plain {
    struct device *device;
    const struct device_attention_backward *args;
    int64_t n, d;
    enum dtype type;
    size_t size;
    float *scores;                              // [n, n]: S, later dP
    unsigned char *weights;                     // [n, n] P
    unsigned char *dscores;                     // [n, n] dS
    unsigned char *k, *v, *v_turned, *out, *dq; // [n, d]; v_turned [d, n]
    float *dk, *dv;                             // [n, d]
};

static float get(const void *p, enum dtype type, int64_t i) {
    return type == DTYPE_BF16 ? bf16_to_float(((const bf16 *)p)[i]) : ((const float *)p)[i];
}
static void put(void *p, enum dtype type, int64_t i, float x) {
    if (type == DTYPE_BF16) {
        ((bf16 *)p)[i] = bf16_from_float(x);
    } else {
        ((float *)p)[i] = x;
    }
}

static void softmax_rows(const struct plain *p, float scale) {
#pragma omp parallel for num_threads(p->device->threads) schedule(static)
    for (int64_t i = 0; i < p->n; i++) {
        float *s = p->scores + i * p->n, top = s[0], sum = 0;
        for (int64_t j = 1; j <= i; j++) top = s[j] > top ? s[j] : top;
        for (int64_t j = 0; j <= i; j++) sum += s[j] = expf((s[j] - top) * scale);
        for (int64_t j = 0; j <= i; j++) put(p->weights, p->type, i * p->n + j, s[j] / sum);
        memset(p->weights + (size_t)(i * p->n + i + 1) * p->size, 0,
               (size_t)(p->n - i - 1) * p->size);
    }
}

static void softmax_rows_backward(const struct plain *p, float scale) {
#pragma omp parallel for num_threads(p->device->threads) schedule(static)
    for (int64_t i = 0; i < p->n; i++) {
        const float *dp = p->scores + i * p->n;
        float delta = 0;
        for (int64_t j = 0; j <= i; j++) delta += get(p->weights, p->type, i * p->n + j) * dp[j];
        for (int64_t j = 0; j <= i; j++)
            put(p->dscores, p->type, i * p->n + j,
                scale * get(p->weights, p->type, i * p->n + j) * (dp[j] - delta));
        memset(p->dscores + (size_t)(i * p->n + i + 1) * p->size, 0,
               (size_t)(p->n - i - 1) * p->size);
    }
}

// Dense copies of a head's keys and values: the products take dense weights.
static void gather(const struct plain *p, int kv_head) {
    const struct device_attention *a = &p->args->forward;
    size_t row = (size_t)p->d * p->size, from = (size_t)kv_head * row;
    for (int64_t i = 0; i < p->n; i++) {
        size_t at = (size_t)(i * a->kv_stride) * p->size + from;
        memcpy(p->k + (size_t)i * row, (const char *)a->k + at, row);
        memcpy(p->v + (size_t)i * row, (const char *)a->v + at, row);
        for (int64_t c = 0; c < p->d; c++)
            memcpy(p->v_turned + (size_t)(c * p->n + i) * p->size,
                   p->v + (size_t)(i * p->d + c) * p->size, p->size);
    }
}

static void head(const struct plain *p, int h, struct plain_times *times) {
    struct device *device = p->device;
    const struct device_attention *a = &p->args->forward;
    size_t column = (size_t)(h * p->d) * p->size;
    const char *q = (const char *)a->q + column, *dout = (const char *)p->args->dout + column;
    struct device_weight k = {.n = p->n, .k = p->d, .type = p->type, .plain = p->k};
    struct device_weight v = {.n = p->n, .k = p->d, .type = p->type, .plain = p->v};
    struct device_weight v_turned = {.n = p->d, .k = p->n, .type = p->type, .plain = p->v_turned};
    double begin = clock_seconds();
    gather(p, h / (a->heads / a->kv_heads));
    device->linear_forward(device, &k, p->n, q, a->q_stride, NULL, p->scores, p->n, DTYPE_F32);
    softmax_rows(p, (float)a->scale);
    device->linear_forward(device, &v_turned, p->n, p->weights, p->n, NULL, p->out, p->d, p->type);
    double middle = clock_seconds();
    device->linear_forward(device, &v, p->n, dout, a->out_stride, NULL, p->scores, p->n, DTYPE_F32);
    softmax_rows_backward(p, (float)a->scale);
    device->linear_backward_input(device, &k, p->n, p->dscores, p->n, p->dq, p->d);
    device->linear_backward_weight(device, &k, p->n, p->dscores, p->n, q, a->q_stride, p->dk, true);
    device->linear_backward_weight(device, &v, p->n, p->weights, p->n, dout, a->out_stride, p->dv,
                                   true);
    times->forward_seconds += middle - begin;
    times->backward_seconds += clock_seconds() - middle;
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t c = 0; c < p->d; c++) {
            float other = get(a->out, p->type, i * a->out_stride + h * p->d + c);
            times->largest_difference =
                fmax(times->largest_difference, fabs(other - get(p->out, p->type, i * p->d + c)));
        }
}

int attention_plain(struct device *device, const struct device_attention_backward *args,
                    struct plain_times *times, struct err *err) {
    const struct device_attention *a = &args->forward;
    size_t size = dtype_bytes(a->type), square = (size_t)(a->queries * a->queries);
    size_t narrow = (size_t)(a->queries * a->head_dim);
    struct arena arena;
    size_t bytes = arena_round(square * 4) + 2 * arena_round(square * size) +
                   2 * arena_round(narrow * 4) + 5 * arena_round(narrow * size);
    if (arena_open(&arena, bytes, 1, err)) return -1;
    struct plain p = {.device = device,
                      .args = args,
                      .n = a->queries,
                      .d = a->head_dim,
                      .type = a->type,
                      .size = size};
    p.scores = arena_take(&arena, square * 4);
    p.weights = arena_take(&arena, square * size);
    p.dscores = arena_take(&arena, square * size);
    p.dk = arena_take(&arena, narrow * 4);
    p.dv = arena_take(&arena, narrow * 4);
    unsigned char **dense[] = {&p.k, &p.v, &p.v_turned, &p.out, &p.dq};
    for (int i = 0; i < 5; i++) *dense[i] = arena_take(&arena, narrow * size);
    head(&p, 0, times); // products made and warm
    *times = (struct plain_times){0};
    for (int h = 0; h < a->heads; h++) head(&p, h, times);
    // Forward: S written, read and rewritten, P written and read. Backward: dP written and read, P
    // read twice, dS written and read twice.
    double operands = (double)narrow * (double)size * a->heads;
    times->forward_bytes = a->heads * (double)square * (12.0 + 2.0 * (double)size) + 4 * operands;
    times->backward_bytes = a->heads * (double)square * (8.0 + 5.0 * (double)size) + 8 * operands;
    arena_close(&arena);
    return 0;
}
