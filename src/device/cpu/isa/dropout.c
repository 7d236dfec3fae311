// Dropout, see device.h. The random words are those of random_words (base/random.h), LANES blocks
// of four at a time.
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { LANES = SIMD_WIDTH / 2, BLOCKS = 64, WORDS = 4 * BLOCKS }; // BLOCKS are made at a time

typedef uint64_t simd_w __attribute__((vector_size(8 * LANES)));

// Products of the lower halves.
SIMD_INLINE simd_w multiply_low(simd_w x, uint32_t factor) {
#if defined WEFT_ISA_avx512
    return (simd_w)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)factor));
#elif defined WEFT_ISA_avx2
    return (simd_w)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)factor));
#else
    return (x & 0xffffffffu) * (uint64_t)factor;
#endif
}

// Words of blocks [first, first + LANES) of `key`, in order. A lane's upper half holds what is left
// over of products; nothing reads it.
SIMD_INLINE void words_of(uint64_t key, uint64_t first, uint32_t *words) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    simd_w counter, x2 = {0}, x3 = {0};
    for (int i = 0; i < LANES; i++) counter[i] = first + (uint64_t)i;
    simd_w x0 = counter, x1 = counter >> 32;
    for (int round = 0; round < RANDOM_ROUNDS; round++) {
        simd_w p0 = multiply_low(x0, RANDOM_MULTIPLY_0), p1 = multiply_low(x2, RANDOM_MULTIPLY_1);
        x0 = (p1 >> 32) ^ x1 ^ k0;
        x1 = p1;
        x2 = (p0 >> 32) ^ x3 ^ k1;
        x3 = p0;
        k0 += RANDOM_WALK_0;
        k1 += RANDOM_WALK_1;
    }
    uint32_t x[4][2 * LANES];
    memcpy(x[0], &x0, sizeof x0);
    memcpy(x[1], &x1, sizeof x1);
    memcpy(x[2], &x2, sizeof x2);
    memcpy(x[3], &x3, sizeof x3);
    const int lower = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__; // place of a lane's lower half
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) words[4 * i + j] = x[j][2 * i + lower];
}

SIMD_INLINE void drop_row(const struct device_dropout *a, int64_t r, enum dtype type) {
    uint32_t words[WORDS + SIMD_WIDTH] = {0};
    uint64_t row = (uint64_t)(a->first_row + (a->row ? a->row[r] : r));
    uint64_t begin = row * (uint64_t)a->width, end = begin + (uint64_t)a->width;
    double limit = ceil(a->rate * 0x1p32);
    uint32_t threshold = limit >= 0x1p32 ? UINT32_MAX : (uint32_t)limit;
    float factor = (float)(1 / (1 - a->rate));
    for (uint64_t block = begin / 4; 4 * block < end; block += BLOCKS) {
        for (uint64_t b = 0; b < BLOCKS && 4 * (block + b) < end; b += LANES)
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
