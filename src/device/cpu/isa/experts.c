// Routing, movement of rows and the weighted activation of mixtures of experts; see
// device/experts.h. Every output row is made by one thread from its own inputs in a fixed order.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { ROUTE_BLOCK = 64 };

// ---- router -----------------------------------------------------------------------------------

// score = softmax(logits); returns the log of the sum of exponentials.
static float softmax_row(int experts, const float *logits, float *score) {
    float most = logits[0];
    for (int i = 1; i < experts; i++) most = logits[i] > most ? logits[i] : most;
    simd_f sums = simd_zero();
    for (int i = 0; i < experts; i += SIMD_WIDTH) {
        int left = experts - i;
        simd_f e = simd_exp(simd_load_upto(logits, i, left, DTYPE_F32) - most);
        simd_store_upto(score, i, left, DTYPE_F32, e);
        // missing lanes read as 0 and would count as exp(-most)
        sums += left >= SIMD_WIDTH ? e : simd_load_upto(score, i, left, DTYPE_F32);
    }
    float sum = simd_sum(sums);
    for (int i = 0; i < experts; i++) score[i] /= sum;
    return most + logf(sum);
}

static void choose(int experts, int top_k, const float *score, const float *bias, int32_t *expert) {
    float best[DEVICE_MOST_TOP_K] = {0};
    int count = 0;
    if (top_k < 1 || top_k > DEVICE_MOST_TOP_K) return; // refused by model_config_check
    for (int i = 0; i < experts; i++) {
        float value = bias ? score[i] + bias[i] : score[i];
        if (count == top_k && !(value > best[count - 1])) continue;
        int at = count < top_k ? count++ : top_k - 1;
        for (; at > 0 && value > best[at - 1]; at--) {
            best[at] = best[at - 1];
            expert[at] = expert[at - 1];
        }
        best[at] = value;
        expert[at] = i;
    }
}

static void route_row(const struct device_route *a, int64_t t) {
    float *score = a->score + t * a->experts, *weight = a->weight + t * a->top_k;
    int32_t *expert = a->expert + t * a->top_k;
    a->lse[t] = softmax_row(a->experts, a->logits + t * a->experts, score);
    if (a->idle && a->idle[t]) {
        for (int k = 0; k < a->top_k; k++) expert[k] = -1, weight[k] = 0;
        return;
    }
    if (!a->chosen) choose(a->experts, a->top_k, score, a->bias, expert);
    float sum = 0;
    for (int k = 0; k < a->top_k; k++) sum += weight[k] = score[expert[k]];
    for (int k = 0; k < a->top_k && a->normalise; k++) weight[k] /= sum;
}

static void route(struct device *device, const struct device_route *args) {
    double begin = record_begin(device->lane);
    int64_t blocks = cpu_chunks(args->tokens, ROUTE_BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t end = (b + 1) * ROUTE_BLOCK;
        if (end > args->tokens) end = args->tokens;
        for (int64_t t = b * ROUTE_BLOCK; t < end; t++) route_row(args, t);
    }
    record_end(device->lane, RECORD_KERNEL, "router", -1, begin);
}

// Gradient of the weights, brought to the scores: with s the sum of the chosen scores, w = score /
// s gives (dw - sum dw w) / s.
static void add_weight_gradient(const struct device_route_backward *a, int64_t t, float *dscore) {
    const float *weight = a->weight + t * a->top_k, *dweight = a->dweight + t * a->top_k;
    const float *score = a->score + t * a->experts;
    const int32_t *expert = a->expert + t * a->top_k;
    float sum = 1, mean = 0;
    if (a->normalise) {
        sum = 0;
        for (int k = 0; k < a->top_k; k++) {
            sum += score[expert[k]];
            mean += dweight[k] * weight[k];
        }
    }
    for (int k = 0; k < a->top_k; k++) dscore[expert[k]] += (dweight[k] - mean) / sum;
}

static void route_backward_row(const struct device_route_backward *a, int64_t t) {
    const float *score = a->score + t * a->experts;
    float *dlogits = a->dlogits + t * a->experts;
    memset(dlogits, 0, (size_t)a->experts * sizeof *dlogits);
    if (a->idle && a->idle[t]) return;
    if (a->aux)
        memcpy(dlogits, a->aux + (a->group ? (int64_t)a->group[t] * a->experts : 0),
               (size_t)a->experts * sizeof *dlogits);
    if (a->dweight) add_weight_gradient(a, t, dlogits);
    float mean = 0;
    for (int i = 0; i < a->experts; i++) mean += score[i] * dlogits[i];
    float z = 2 * a->z_scale * a->lse[t];
    for (int i = 0; i < a->experts; i++) dlogits[i] = score[i] * (dlogits[i] - mean + z);
}

static void route_backward(struct device *device, const struct device_route_backward *args) {
    double begin = record_begin(device->lane);
    int64_t blocks = cpu_chunks(args->tokens, ROUTE_BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t end = (b + 1) * ROUTE_BLOCK;
        if (end > args->tokens) end = args->tokens;
        for (int64_t t = b * ROUTE_BLOCK; t < end; t++) route_backward_row(args, t);
    }
    record_end(device->lane, RECORD_KERNEL, "router gradient", -1, begin);
}

// ---- rows -------------------------------------------------------------------------------------

static void gather_rows(struct device *device, enum dtype type, int64_t rows, int64_t width,
                        const int32_t *index, const void *from, void *to) {
    double begin = record_begin(device->lane);
    size_t bytes = (size_t)width * dtype_bytes(type);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t i = 0; i < rows; i++) {
        char *target = (char *)to + (size_t)i * bytes;
        if (index[i] < 0)
            memset(target, 0, bytes);
        else
            memcpy(target, (const char *)from + (size_t)index[i] * bytes, bytes);
    }
    record_end(device->lane, RECORD_KERNEL, "gather rows", -1, begin);
}

static void scatter_rows(struct device *device, enum dtype type, int64_t rows, int64_t width,
                         const int32_t *index, const void *from, void *to) {
    double begin = record_begin(device->lane);
    size_t bytes = (size_t)width * dtype_bytes(type);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t i = 0; i < rows; i++)
        if (index[i] >= 0)
            memcpy((char *)to + (size_t)index[i] * bytes, (const char *)from + (size_t)i * bytes,
                   bytes);
    record_end(device->lane, RECORD_KERNEL, "scatter rows", -1, begin);
}

struct combine {
    int64_t width;
    int top_k;
    const int32_t *slot;
    const void *rows, *base;
    const float *base32;
    void *out;
};

SIMD_INLINE void combine_row(const struct combine *c, int64_t t, enum dtype type) {
    int64_t first = t * c->width;
    for (int64_t i = 0; i < c->width; i += SIMD_WIDTH) {
        int64_t left = c->width - i;
        simd_f sum = simd_zero();
        if (c->base) sum += simd_load_upto(c->base, first + i, left, type);
        if (c->base32) sum += simd_load_upto(c->base32, first + i, left, DTYPE_F32);
        for (int k = 0; k < c->top_k; k++) {
            int64_t slot = c->slot[t * c->top_k + k];
            if (slot >= 0) sum += simd_load_upto(c->rows, slot * c->width + i, left, type);
        }
        simd_store_upto(c->out, first + i, left, type, sum);
    }
}

static void combine_rows(struct device *device, enum dtype type, int64_t tokens, int64_t width,
                         int top_k, const int32_t *slot, const void *rows, const void *base,
                         const float *base32, void *out) {
    double begin = record_begin(device->lane);
    struct combine c = {width, top_k, slot, rows, base, base32, out};
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tokens; t++) {
        if (type == DTYPE_BF16)
            combine_row(&c, t, DTYPE_BF16);
        else
            combine_row(&c, t, DTYPE_F32);
    }
    record_end(device->lane, RECORD_KERNEL, "combine rows", -1, begin);
}

// ---- weighted SwiGLU --------------------------------------------------------------------------

SIMD_INLINE void swiglu_row(const void *gate_up, float weight, void *out, int64_t t, int64_t ffn,
                            enum dtype type) {
    for (int64_t i = 0; i < ffn; i += SIMD_WIDTH) {
        int64_t left = ffn - i;
        simd_f g = simd_load_upto(gate_up, t * 2 * ffn + i, left, type);
        simd_f u = simd_load_upto(gate_up, t * 2 * ffn + ffn + i, left, type);
        simd_store_upto(out, t * ffn + i, left, type, g * simd_sigmoid(g) * u * weight);
    }
}

static void swiglu_forward(struct device *device, enum dtype type, int64_t rows, int64_t ffn,
                           const void *gate_up, const float *weight, void *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < rows; t++) {
        if (type == DTYPE_BF16)
            swiglu_row(gate_up, weight[t], out, t, ffn, DTYPE_BF16);
        else
            swiglu_row(gate_up, weight[t], out, t, ffn, DTYPE_F32);
    }
    record_end(device->lane, RECORD_KERNEL, "weighted swiglu", -1, begin);
}

// As swiglu_backward of pointwise.c with the weight inside; returns the weight's own gradient.
SIMD_INLINE float swiglu_backward_row(const void *gate_up, float weight, const void *dout,
                                      void *dgate_up, void *out, int64_t t, int64_t ffn,
                                      enum dtype type) {
    simd_f sums = simd_zero();
    for (int64_t i = 0; i < ffn; i += SIMD_WIDTH) {
        int64_t left = ffn - i;
        simd_f g = simd_load_upto(gate_up, t * 2 * ffn + i, left, type);
        simd_f u = simd_load_upto(gate_up, t * 2 * ffn + ffn + i, left, type);
        simd_f d = simd_load_upto(dout, t * ffn + i, left, type);
        simd_f s = simd_sigmoid(g);
        simd_f silu = g * s;
        if (out) simd_store_upto(out, t * ffn + i, left, type, silu * u * weight);
        sums += d * silu * u;
        d *= weight;
        simd_store_upto(dgate_up, t * 2 * ffn + i, left, type, d * u * s * (1.0f + g * (1.0f - s)));
        simd_store_upto(dgate_up, t * 2 * ffn + ffn + i, left, type, d * silu);
    }
    return simd_sum(sums);
}

static void swiglu_backward(struct device *device, enum dtype type, int64_t rows, int64_t ffn,
                            const void *gate_up, const float *weight, const void *dout,
                            void *dgate_up, float *dweight, void *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < rows; t++) {
        if (type == DTYPE_BF16)
            dweight[t] =
                swiglu_backward_row(gate_up, weight[t], dout, dgate_up, out, t, ffn, DTYPE_BF16);
        else
            dweight[t] =
                swiglu_backward_row(gate_up, weight[t], dout, dgate_up, out, t, ffn, DTYPE_F32);
    }
    record_end(device->lane, RECORD_KERNEL, "weighted swiglu gradient", -1, begin);
}

void ISA(experts_fill)(struct device *device) {
    device->experts = (struct device_experts){.route = route,
                                              .route_backward = route_backward,
                                              .gather_rows = gather_rows,
                                              .scatter_rows = scatter_rows,
                                              .combine_rows = combine_rows,
                                              .swiglu_forward = swiglu_forward,
                                              .swiglu_backward = swiglu_backward};
}
