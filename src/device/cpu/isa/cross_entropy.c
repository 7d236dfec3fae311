// Softmax cross-entropy with its gradient: a row of logits is read for its maximum, then, from the
// cache, for the sum of exponentials and the gradient.
//
// The gradient may overlay the logits. With a smaller element row i of the gradient then lies where
// row i / 2 of the logits stood, so rows run in waves 0, 1, 2-3, 4-7, ...: a wave overwrites only
// what an earlier wave has used.
//
// With the vocabulary in parts on several ranks, the statistics of each part (maximum, sum of
// exponentials, logit of the target) go round, and the same pass makes the gradient of the own
// part.
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

struct loss_rows { // of one call
    enum dtype type;
    int64_t tokens, vocab, stride;
    const float *logits;
    const int32_t *target;   // in these columns, -1: not here
    const int32_t *counted;  // -1: not counted; NULL: as `target` says
    const float *statistics; // [ranks][tokens][3]; NULL: the columns are the whole vocabulary
    int ranks;
    float scale, *loss;
    void *dlogits;
};

struct row_sums {
    float max, sum, at_target;
};

SIMD_INLINE struct row_sums sums_of_row(const float *x, int64_t vocab, int32_t target) {
    if (vocab == 0) return (struct row_sums){-INFINITY, 0, 0};
    float max = row_max(x, vocab);
    return (struct row_sums){max, row_sum_exp(x, vocab, max), target < 0 ? 0 : x[target]};
}

// Parts in rank order; a part without columns adds nothing.
static struct row_sums merged_sums(const struct loss_rows *r, int64_t t) {
    struct row_sums all = {-INFINITY, 0, 0};
    for (int rank = 0; rank < r->ranks; rank++) {
        float max = r->statistics[(rank * r->tokens + t) * 3];
        all.max = max > all.max || isnan(max) ? max : all.max;
    }
    for (int rank = 0; rank < r->ranks; rank++) {
        const float *part = r->statistics + (rank * r->tokens + t) * 3;
        all.sum += part[1] == 0 ? 0 : part[1] * simd_exp(simd_set(part[0] - all.max))[0];
        all.at_target += part[2];
    }
    return all;
}

SIMD_INLINE void loss_row(const struct loss_rows *r, int64_t t, enum dtype type) {
    const float *x = r->logits + t * r->stride;
    void *dx = r->dlogits ? (char *)r->dlogits + (size_t)(t * r->stride) * dtype_bytes(type) : NULL;
    int32_t target = r->target[t];
    if ((r->counted ? r->counted[t] : target) < 0) {
        r->loss[t] = 0;
        if (dx) zero_row(dx, 0, r->stride, type);
        return;
    }
    struct row_sums s = r->statistics ? merged_sums(r, t) : sums_of_row(x, r->vocab, target);
    r->loss[t] = logf(s.sum) + (s.max - s.at_target);
    if (!dx) return;
    float factor = r->scale / s.sum;
    // Ascending order: with an overlay what is overwritten has been read.
    for (int64_t i = 0; i < r->vocab; i += SIMD_WIDTH) {
        int64_t left = r->vocab - i;
        simd_f p = simd_exp(simd_load_upto(x, i, left, DTYPE_F32) - s.max) * factor;
        simd_store_upto(dx, i, left, type, p);
    }
    if (target >= 0) {
        float p = simd_exp(simd_set(s.at_target - s.max))[0] * factor - r->scale;
        simd_store_part(dx, target, 1, type, simd_set(p));
    }
    zero_row(dx, r->vocab, r->stride, type);
}

static void rows_between(struct device *device, const struct loss_rows *r, int64_t first,
                         int64_t end) {
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = first; t < end; t++) {
        if (r->type == DTYPE_BF16) {
            loss_row(r, t, DTYPE_BF16);
        } else {
            loss_row(r, t, DTYPE_F32);
        }
    }
}

static void all_rows(struct device *device, const struct loss_rows *r) {
    double begin = record_begin(device->lane);
    const char *from = (const char *)r->logits, *to = r->dlogits;
    size_t count = (size_t)(r->tokens * r->stride);
    bool overlay = to && to < from + count * 4 && from < to + count * dtype_bytes(r->type);
    if (overlay && r->type != DTYPE_F32) {
        for (int64_t first = 0, end = 1; first < r->tokens; first = end, end = 2 * end)
            rows_between(device, r, first, end < r->tokens ? end : r->tokens);
    } else {
        rows_between(device, r, 0, r->tokens);
    }
    record_end(device->lane, RECORD_KERNEL, "cross-entropy", -1, begin);
}

static void cross_entropy(struct device *device, enum dtype type, int64_t tokens, int64_t vocab,
                          int64_t stride, const float *logits, const int32_t *target, float scale,
                          float *loss, void *dlogits) {
    struct loss_rows rows = {.type = type,
                             .tokens = tokens,
                             .vocab = vocab,
                             .stride = stride,
                             .logits = logits,
                             .target = target,
                             .scale = scale,
                             .loss = loss,
                             .dlogits = dlogits};
    all_rows(device, &rows);
}

static void statistics(struct device *device, int64_t tokens, int64_t vocab, int64_t stride,
                       const float *logits, const int32_t *target_local, float *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tokens; t++) {
        struct row_sums s = sums_of_row(logits + t * stride, vocab, target_local[t]);
        memcpy(out + 3 * t, &s, sizeof s);
    }
    record_end(device->lane, RECORD_KERNEL, "cross-entropy statistics", -1, begin);
}

static void finish(struct device *device, enum dtype type, int64_t tokens, int64_t vocab,
                   int64_t stride, const float *logits, const int32_t *target_local,
                   const int32_t *counted, const float *parts, int ranks, float scale, float *loss,
                   void *dlogits) {
    struct loss_rows rows = {.type = type,
                             .tokens = tokens,
                             .vocab = vocab,
                             .stride = stride,
                             .logits = logits,
                             .target = target_local,
                             .counted = counted,
                             .statistics = parts,
                             .ranks = ranks,
                             .scale = scale,
                             .loss = loss,
                             .dlogits = dlogits};
    all_rows(device, &rows);
}

void ISA(cross_entropy_fill)(struct device *device) {
    device->cross_entropy = cross_entropy;
    device->cross_entropy_statistics = statistics;
    device->cross_entropy_finish = finish;
}
