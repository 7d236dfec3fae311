// Softmax cross-entropy with its gradient: a row of logits is read for its maximum, then, from the
// cache, for the sum of exponentials and the gradient.
//
// The gradient may overlay the logits. With a smaller element row i of the gradient then lies where
// row i / 2 of the logits stood, so rows run in waves 0, 1, 2-3, 4-7, ...: a wave overwrites only
// what an earlier wave has used.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

SIMD_INLINE float row_max(const float *x, int64_t count) {
    simd_f best = simd_set(-INFINITY), other = best;
    int64_t i = 0;
    for (; i + 2 * SIMD_WIDTH <= count; i += 2 * SIMD_WIDTH) {
        best = simd_max(simd_load(x, i, DTYPE_F32), best);
        other = simd_max(simd_load(x, i + SIMD_WIDTH, DTYPE_F32), other);
    }
    float m = simd_max_lane(simd_max(best, other));
    for (; i < count; i++) m = x[i] > m ? x[i] : m;
    return m;
}

SIMD_INLINE float row_sum_exp(const float *x, int64_t count, float max) {
    simd_f sum = simd_zero(), other = simd_zero();
    int64_t i = 0;
    for (; i + 2 * SIMD_WIDTH <= count; i += 2 * SIMD_WIDTH) {
        sum += simd_exp(simd_load(x, i, DTYPE_F32) - max);
        other += simd_exp(simd_load(x, i + SIMD_WIDTH, DTYPE_F32) - max);
    }
    float total = simd_sum(sum + other);
    for (; i < count; i++) total += simd_exp(simd_set(x[i] - max))[0];
    return total;
}

SIMD_INLINE void zero_row(void *out, int64_t first, int64_t end, enum dtype type) {
    size_t size = dtype_bytes(type);
    memset((char *)out + (size_t)first * size, 0, (size_t)(end - first) * size);
}

SIMD_INLINE void loss_row(int64_t t, int64_t vocab, int64_t stride, const float *logits,
                          int32_t target, float scale, float *loss, void *dlogits,
                          enum dtype type) {
    const float *x = logits + t * stride;
    void *dx = dlogits ? (char *)dlogits + (size_t)(t * stride) * dtype_bytes(type) : NULL;
    if (target < 0) {
        loss[t] = 0;
        if (dx) zero_row(dx, 0, stride, type);
        return;
    }
    float max = row_max(x, vocab), sum = row_sum_exp(x, vocab, max), at_target = x[target];
    loss[t] = logf(sum) + (max - at_target);
    if (!dx) return;
    float factor = scale / sum;
    // Ascending order: with an overlay what is overwritten has been read.
    for (int64_t i = 0; i < vocab; i += SIMD_WIDTH) {
        int64_t left = vocab - i;
        simd_f p = simd_exp(simd_load_upto(x, i, left, DTYPE_F32) - max) * factor;
        simd_store_upto(dx, i, left, type, p);
    }
    float p = simd_exp(simd_set(at_target - max))[0] * factor - scale;
    simd_store_part(dx, target, 1, type, simd_set(p));
    zero_row(dx, vocab, stride, type);
}

static void rows_between(struct device *device, enum dtype type, int64_t first, int64_t end,
                         int64_t vocab, int64_t stride, const float *logits, const int32_t *target,
                         float scale, float *loss, void *dlogits) {
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = first; t < end; t++) {
        if (type == DTYPE_BF16) {
            loss_row(t, vocab, stride, logits, target[t], scale, loss, dlogits, DTYPE_BF16);
        } else {
            loss_row(t, vocab, stride, logits, target[t], scale, loss, dlogits, DTYPE_F32);
        }
    }
}

static void cross_entropy(struct device *device, enum dtype type, int64_t tokens, int64_t vocab,
                          int64_t stride, const float *logits, const int32_t *target, float scale,
                          float *loss, void *dlogits) {
    double begin = record_begin(device->lane);
    const char *from = (const char *)logits, *to = dlogits;
    size_t from_bytes = (size_t)(tokens * stride) * 4,
           to_bytes = (size_t)(tokens * stride) * dtype_bytes(type);
    bool overlay = to && to < from + from_bytes && from < to + to_bytes;
    if (overlay && type != DTYPE_F32) {
        for (int64_t first = 0, end = 1; first < tokens; first = end, end = 2 * end) {
            rows_between(device, type, first, end < tokens ? end : tokens, vocab, stride, logits,
                         target, scale, loss, dlogits);
        }
    } else {
        rows_between(device, type, 0, tokens, vocab, stride, logits, target, scale, loss, dlogits);
    }
    record_end(device->lane, RECORD_KERNEL, "cross-entropy", -1, begin);
}

void ISA(cross_entropy_fill)(struct device *device) {
    device->cross_entropy = cross_entropy;
}
