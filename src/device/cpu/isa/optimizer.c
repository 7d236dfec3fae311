// AdamW in one pass (moments, master weight, bf16 weight, decay) and the blocks of the gradient
// norm.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { BLOCK = 16384, FEW_BLOCKS = 8 };
_Static_assert(BLOCK % DEVICE_NORM_BLOCK == 0, "seals are taken by whole blocks");

struct factors { // of one step, as floats
    float scale, beta1, rest1, beta2, rest2, rate, root2, eps, keep;
};

// Sums of 32-bit words, in lanes of 64 bits that take two words each.
typedef uint64_t simd_words __attribute__((vector_size(4 * SIMD_WIDTH)));

SIMD_INLINE void add_words(simd_words *sum, simd_f x) {
    simd_words pair = (simd_words)x;
    *sum += (pair & 0xffffffffu) + (pair >> 32);
}

SIMD_INLINE uint64_t all_words(const simd_words *sum) {
    uint64_t all = 0;
    for (int i = 0; i < SIMD_WIDTH / 2; i++) all += (*sum)[i];
    return all;
}

// master (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps). `seals`: a constant.
SIMD_INLINE void adamw_run(const struct device_adamw *a, const struct factors *f, int64_t first,
                           int64_t end, bool seals, struct device_seal *before,
                           struct device_seal *after) {
    simd_words m0 = {0}, v0 = {0}, w0 = {0}, m1 = {0}, v1 = {0}, w1 = {0};
    simd_u apart = {0};
    for (int64_t i = first; i < end; i += SIMD_WIDTH) {
        int64_t left = end - i;
        simd_f g = simd_load_upto(a->gradient, i, left, DTYPE_F32) * f->scale;
        simd_f m = simd_load_upto(a->moment1, i, left, DTYPE_F32);
        simd_f v = simd_load_upto(a->moment2, i, left, DTYPE_F32);
        simd_f w = simd_load_upto(a->master, i, left, DTYPE_F32);
        if (seals) {
            add_words(&m0, m);
            add_words(&v0, v);
            add_words(&w0, w);
            if (a->weight) {
                simd_f stored = simd_load_upto(a->weight, i, left, DTYPE_BF16);
                simd_f rounded = simd_from_bf16(simd_to_bf16(w));
                apart |= (simd_u)stored ^ (simd_u)rounded;
            }
        }
        m = m * f->beta1 + g * f->rest1;
        v = v * f->beta2 + g * g * f->rest2;
        w = w * f->keep - m * f->rate / (simd_sqrt(v) * f->root2 + f->eps);
        if (seals) {
            add_words(&m1, m);
            add_words(&v1, v);
            add_words(&w1, w);
        }
        simd_store_upto(a->moment1, i, left, DTYPE_F32, m);
        simd_store_upto(a->moment2, i, left, DTYPE_F32, v);
        simd_store_upto(a->master, i, left, DTYPE_F32, w);
        if (a->weight) simd_store_upto(a->weight, i, left, DTYPE_BF16, w);
    }
    if (!seals) return;
    uint64_t differs = 0;
    for (int i = 0; i < SIMD_WIDTH; i++) differs |= apart[i];
    *before = (struct device_seal){all_words(&w0), all_words(&m0), all_words(&v0), differs};
    *after = (struct device_seal){all_words(&w1), all_words(&m1), all_words(&v1), 0};
}

static void adamw_block(const struct device_adamw *a, const struct factors *f, int64_t first,
                        int64_t end) {
    adamw_run(a, f, first, end, false, NULL, NULL);
}

static void adamw_sealed(const struct device_adamw *a, const struct factors *f, int64_t first,
                         int64_t end) {
    for (int64_t at = first; at < end; at += DEVICE_NORM_BLOCK) {
        int64_t stop = at + DEVICE_NORM_BLOCK < end ? at + DEVICE_NORM_BLOCK : end;
        int64_t b = at / DEVICE_NORM_BLOCK;
        adamw_run(a, f, at, stop, true, &a->before[b], &a->after[b]);
    }
}

static void adamw(struct device *device, const struct device_adamw *args) {
    double begin = record_begin(device->lane);
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    struct factors f = {
        .scale = (float)args->gradient_scale,
        .beta1 = (float)args->beta1,
        .rest1 = (float)(1 - args->beta1),
        .beta2 = (float)args->beta2,
        .rest2 = (float)(1 - args->beta2),
        .rate = (float)(args->learning_rate / correction1),
        .root2 = (float)(1 / sqrt(correction2)),
        .eps = (float)args->eps,
        .keep = (float)(1 - args->learning_rate * args->decay),
    };
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t first = 0; first < args->count; first += BLOCK) {
        int64_t end = first + BLOCK < args->count ? first + BLOCK : args->count;
        if (args->after)
            adamw_sealed(args, &f, first, end);
        else
            adamw_block(args, &f, first, end);
    }
    record_end(device->lane, RECORD_KERNEL, "adamw", -1, begin);
}

// Eight sums at a time, each over every eighth element, then pairs: one order for every instruction
// set.
static double block_squares(const float *x, int64_t count) {
    double sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < count; i++, j++) sum[j] += (double)x[i] * (double)x[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

SIMD_INLINE uint64_t words_of(const void *values, int64_t first, int64_t end, enum dtype type) {
    simd_words sum = {0};
    for (int64_t i = first; i < end; i += SIMD_WIDTH)
        add_words(&sum, simd_load_upto(values, i, end - i, type));
    return all_words(&sum);
}

static void square_sums(struct device *device, int64_t count, const float *values, double *sums,
                        uint64_t *words) {
    double begin = record_begin(device->lane);
    int64_t blocks = cpu_chunks(count, DEVICE_NORM_BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * DEVICE_NORM_BLOCK, left = count - first;
        int64_t n = left < DEVICE_NORM_BLOCK ? left : DEVICE_NORM_BLOCK;
        sums[b] = block_squares(values + first, n);
        if (words) words[b] = words_of(values, first, first + n, DTYPE_F32); // near now
    }
    record_end(device->lane, RECORD_KERNEL, "square sums", -1, begin);
}

static void word_sums(struct device *device, int64_t count, const void *values, enum dtype type,
                      uint64_t *sums) {
    double begin = record_begin(device->lane);
    int64_t blocks = cpu_chunks(count, DEVICE_NORM_BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads) if (blocks > FEW_BLOCKS)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * DEVICE_NORM_BLOCK, end = first + DEVICE_NORM_BLOCK;
        if (end > count) end = count;
        sums[b] = type == DTYPE_BF16 ? words_of(values, first, end, DTYPE_BF16)
                                     : words_of(values, first, end, DTYPE_F32);
    }
    record_end(device->lane, RECORD_KERNEL, "word sums", -1, begin);
}

void ISA(optimizer_fill)(struct device *device) {
    device->adamw = adamw;
    device->square_sums = square_sums;
    device->word_sums = word_sums;
}
