// What happens to a tile of scores between its two products: masks, exponentials, rounding.
// Included by attention_kernel.h.
#pragma once
#include "device/cpu/attention_product.h"

enum {
    SUB_ROWS = 32,
    GROUPS = TILE / MR
}; // rows of scores held at a time; groups of MR rows in a tile

// Which part of a tile MR consecutive queries see: vectors [first, last), all of it or by each
// query's interval.
struct span {
    int first, last;
    bool full;
};

// Intervals of the queries of a tile, padded to TILE with empty ones.
struct tile_rows {
    int count;
    int32_t from[TILE], to[TILE];
};

static void tile_rows_set(struct tile_rows *rows, const struct attention_job *job, int64_t begin,
                          int64_t end) {
    rows->count = (int)(end - begin < TILE ? end - begin : TILE);
    memcpy(rows->from, job->from + begin, (size_t)rows->count * sizeof *rows->from);
    memcpy(rows->to, job->to + begin, (size_t)rows->count * sizeof *rows->to);
    for (int i = rows->count; i < TILE; i++) rows->from[i] = rows->to[i] = 0;
}

// The part of keys [key, key + TILE) that rows [r, r + MR) see.
static struct span span_of(const struct tile_rows *rows, int r, int64_t key) {
    int64_t low = TILE, high = 0;
    bool full = true;
    for (int i = r; i < r + MR; i++) {
        full = full && rows->from[i] <= key && rows->to[i] >= key + TILE;
        if (rows->from[i] >= rows->to[i]) continue;
        low = rows->from[i] - key < low ? rows->from[i] - key : low;
        high = rows->to[i] - key > high ? rows->to[i] - key : high;
    }
    low = low < 0 ? 0 : low;
    high = high > TILE ? TILE : high;
    if (low >= high) return (struct span){0, 0, false};
    return (struct span){(int)(low / W), (int)((high + W - 1) / W), full};
}

// All bits set in the lanes whose key index lies in [from, to); lane 0 is key `key`.
SIMD_INLINE simd_i seen(int64_t key, int32_t from, int32_t to) {
    simd_i lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    int32_t low = (int32_t)(from - key), high = (int32_t)(to - key);
    return (lane >= low) & (lane < high);
}

SIMD_INLINE simd_f keep(simd_f x, simd_i mask) {
    return (simd_f)((simd_i)x & mask);
}

SIMD_INLINE bool any_greater(simd_f a, simd_f b) {
#if defined WEFT_ISA_avx512
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined WEFT_ISA_avx2
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#else
    simd_i greater = a > b;
    int any = 0;
    for (int i = 0; i < W; i++) any |= greater[i];
    return any != 0;
#endif
}

// 2^x for x <= 126, relative error 2e-7; 2^-126 below -126; NaN for NaN. x = n + f with |f| <= 1/2:
// a minimax polynomial of degree 5 in f (least maximum of the relative error, found by reweighted
// least squares), n added to the exponent.
SIMD_INLINE simd_f exp2_vector(simd_f x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    x = simd_max(simd_set(-126.0f), x);
    simd_f shifted = x + magic;
    simd_f f = x - (shifted - magic);
    simd_f p = simd_set(1.327647152e-3f);
    p = p * f + 9.675541331e-3f;
    p = p * f + 5.550713275e-2f;
    p = p * f + 2.402211972e-1f;
    p = p * f + 6.931469671e-1f;
    p = p * f + 1.000000072e+0f;
    return (simd_f)((simd_u)p + ((simd_u)shifted << 23));
}

// One row of weights as elements along the keys, from vector j on.
SIMD_INLINE void store_along(element *row, int j, simd_f x) {
#if ATTENTION_PAIRS
    _mm256_storeu_si256((__m256i *)(row + j * W / 2), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    simd_store(row, j * W, DTYPE_F32, x);
#endif
}

#if ATTENTION_PAIRS
// Rows r and r + 1 of one vector of keys as pairs along the queries.
SIMD_INLINE void store_across(element *to, simd_f even, simd_f odd) {
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, both));
}
#endif

// Takes `bytes` of a thread's scratch.
static void *take(unsigned char **scratch, int64_t elements) {
    void *p = *scratch;
    *scratch += (elements * 4 + 63) / 64 * 64;
    return p;
}
