// AdamW in one pass (moments, master weight, bf16 weight, decay) and the blocks of the gradient
// norm.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { BLOCK = 16384 };

struct factors { // of one step, as floats
    float scale, beta1, rest1, beta2, rest2, rate, root2, eps, keep;
};

// master (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
SIMD_INLINE void adamw_block(const struct device_adamw *a, const struct factors *f, int64_t first,
                             int64_t end) {
    for (int64_t i = first; i < end; i += SIMD_WIDTH) {
        int64_t left = end - i;
        simd_f g = simd_load_upto(a->gradient, i, left, DTYPE_F32) * f->scale;
        simd_f m = simd_load_upto(a->moment1, i, left, DTYPE_F32) * f->beta1 + g * f->rest1;
        simd_f v = simd_load_upto(a->moment2, i, left, DTYPE_F32) * f->beta2 + g * g * f->rest2;
        simd_f w = simd_load_upto(a->master, i, left, DTYPE_F32);
        w = w * f->keep - m * f->rate / (simd_sqrt(v) * f->root2 + f->eps);
        simd_store_upto(a->moment1, i, left, DTYPE_F32, m);
        simd_store_upto(a->moment2, i, left, DTYPE_F32, v);
        simd_store_upto(a->master, i, left, DTYPE_F32, w);
        if (a->weight) simd_store_upto(a->weight, i, left, DTYPE_BF16, w);
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
        adamw_block(args, &f, first, first + BLOCK < args->count ? first + BLOCK : args->count);
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

static void square_sums(struct device *device, int64_t count, const float *values, double *sums) {
    double begin = record_begin(device->lane);
    int64_t blocks = cpu_chunks(count, DEVICE_NORM_BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * DEVICE_NORM_BLOCK, left = count - first;
        sums[b] =
            block_squares(values + first, left < DEVICE_NORM_BLOCK ? left : DEVICE_NORM_BLOCK);
    }
    record_end(device->lane, RECORD_KERNEL, "square sums", -1, begin);
}

void ISA(optimizer_fill)(struct device *device) {
    device->adamw = adamw;
    device->square_sums = square_sums;
}
