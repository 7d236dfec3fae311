// Dropout, see device.h. The random words are those of random_words (base/random.h), SIMD_WIDTH
// blocks of four at a time.
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { BLOCKS = 4 * SIMD_WIDTH, WORDS = 4 * BLOCKS }; // made at a time

// Words of blocks [first, first + SIMD_WIDTH) of `key`, in order.
static void words_of(uint64_t key, uint64_t first, uint32_t *words) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0[SIMD_WIDTH], x1[SIMD_WIDTH], x2[SIMD_WIDTH], x3[SIMD_WIDTH];
    for (int i = 0; i < SIMD_WIDTH; i++) {
        uint64_t counter = first + (uint64_t)i;
        x0[i] = (uint32_t)counter;
        x1[i] = (uint32_t)(counter >> 32);
        x2[i] = x3[i] = 0;
    }
    for (int round = 0; round < RANDOM_ROUNDS; round++) {
        for (int i = 0; i < SIMD_WIDTH; i++) {
            uint64_t p0 = (uint64_t)x0[i] * RANDOM_MULTIPLY_0;
            uint64_t p1 = (uint64_t)x2[i] * RANDOM_MULTIPLY_1;
            x0[i] = (uint32_t)(p1 >> 32) ^ x1[i] ^ k0;
            x1[i] = (uint32_t)p1;
            x2[i] = (uint32_t)(p0 >> 32) ^ x3[i] ^ k1;
            x3[i] = (uint32_t)p0;
        }
        k0 += RANDOM_WALK_0;
        k1 += RANDOM_WALK_1;
    }
    for (int i = 0; i < SIMD_WIDTH; i++) {
        words[4 * i] = x0[i];
        words[4 * i + 1] = x1[i];
        words[4 * i + 2] = x2[i];
        words[4 * i + 3] = x3[i];
    }
}

SIMD_INLINE void drop_row(const struct device_dropout *a, int64_t r, enum dtype type) {
    uint32_t words[WORDS + SIMD_WIDTH] = {0};
    uint64_t row = (uint64_t)(a->first_row + (a->row ? a->row[r] : r));
    uint64_t begin = row * (uint64_t)a->width, end = begin + (uint64_t)a->width;
    double limit = ceil(a->rate * 0x1p32);
    uint32_t threshold = limit >= 0x1p32 ? UINT32_MAX : (uint32_t)limit;
    float factor = (float)(1 / (1 - a->rate));
    for (uint64_t block = begin / 4; 4 * block < end; block += BLOCKS) {
        for (uint64_t b = 0; b < BLOCKS && 4 * (block + b) < end; b += SIMD_WIDTH)
            words_of(a->key, block + b, words + 4 * b);
        uint64_t from = 4 * block < begin ? begin : 4 * block;
        uint64_t to = 4 * block + WORDS < end ? 4 * block + WORDS : end;
        for (uint64_t e = from; e < to; e += SIMD_WIDTH) {
            simd_u word;
            memcpy(&word, words + (e - 4 * block), sizeof word);
            int64_t left = (int64_t)(to - e), at = r * a->width + (int64_t)(e - begin);
            simd_f x = simd_load_upto(a->x, at, left, type);
            simd_store_upto(a->out, at, left, type,
                            simd_select((simd_i)(word >= threshold), x * factor, simd_zero()));
        }
    }
}

static void dropout(struct device *device, const struct device_dropout *args) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t r = 0; r < args->rows; r++) {
        if (args->type == DTYPE_BF16) {
            drop_row(args, r, DTYPE_BF16);
        } else {
            drop_row(args, r, DTYPE_F32);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "dropout", -1, begin);
}

void ISA(dropout_fill)(struct device *device) {
    device->dropout = dropout;
}
