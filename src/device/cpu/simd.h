// Vectors of SIMD_WIDTH floats for the kernels under isa/, written with the compiler's vector
// types: the same source becomes AVX-512, AVX2 or whatever the baseline has (SSE2, NEON). Only
// rounding, reciprocal roots and conversions need care; exp is a polynomial of about one unit in
// the last place.
#pragma once
#include "base/dtype.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined WEFT_ISA_avx512
#include <immintrin.h>
enum { SIMD_WIDTH = 16 };
#elif defined WEFT_ISA_avx2
#include <immintrin.h>
enum { SIMD_WIDTH = 8 };
#else
enum { SIMD_WIDTH = 4 };
#endif

typedef float simd_f __attribute__((vector_size(4 * SIMD_WIDTH)));
typedef int32_t simd_i __attribute__((vector_size(4 * SIMD_WIDTH)));
typedef uint32_t simd_u __attribute__((vector_size(4 * SIMD_WIDTH)));
typedef uint16_t simd_h __attribute__((vector_size(2 * SIMD_WIDTH)));
typedef double simd_d __attribute__((vector_size(8 * SIMD_WIDTH))); // one double per float

#define SIMD_INLINE static inline __attribute__((always_inline))

SIMD_INLINE simd_f simd_set(float x) {
    return x - (simd_f){0};
}
SIMD_INLINE simd_f simd_zero(void) {
    return (simd_f){0};
}

SIMD_INLINE simd_f simd_from_bf16(simd_h h) {
#if defined WEFT_ISA_avx512 // the compiler would take two halves
    return (simd_f)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined WEFT_ISA_avx2
    return (simd_f)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (simd_f)(__builtin_convertvector(h, simd_u) << 16);
#endif
}

// Round to nearest even, NaN stays NaN: the same as bf16_from_float.
SIMD_INLINE simd_h simd_to_bf16(simd_f x) {
#if defined WEFT_ISA_avx512
    __m512i word = (__m512i)x,
            odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, word, _mm512_set1_epi32(0x400000));
    return (simd_h)_mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
#else
    simd_u bits = (simd_u)x;
    simd_u rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    simd_u quiet = (bits >> 16) | 0x40u;
    simd_u is_nan = (simd_u)((bits & 0x7fffffffu) > 0x7f800000u);
    rounded = (rounded & ~is_nan) | (quiet & is_nan);
    return __builtin_convertvector(rounded, simd_h);
#endif
}

// Whole vectors at element `i` of an array of `type` (a constant where it matters).
SIMD_INLINE simd_f simd_load(const void *p, int64_t i, enum dtype type) {
    if (type == DTYPE_BF16) {
        simd_h h;
        memcpy(&h, (const bf16 *)p + i, sizeof h);
        return simd_from_bf16(h);
    }
    simd_f f;
    memcpy(&f, (const float *)p + i, sizeof f);
    return f;
}
SIMD_INLINE void simd_store(void *p, int64_t i, enum dtype type, simd_f x) {
    if (type == DTYPE_BF16) {
        simd_h h = simd_to_bf16(x);
        memcpy((bf16 *)p + i, &h, sizeof h);
    } else {
        memcpy((float *)p + i, &x, sizeof x);
    }
}

// The last `count` < SIMD_WIDTH elements; missing ones read as zero.
SIMD_INLINE simd_f simd_load_part(const void *p, int64_t i, int64_t count, enum dtype type) {
    if (type == DTYPE_BF16) {
        simd_h h = {0};
        memcpy(&h, (const bf16 *)p + i, (size_t)count * 2);
        return simd_from_bf16(h);
    }
    simd_f f = {0};
    memcpy(&f, (const float *)p + i, (size_t)count * 4);
    return f;
}
SIMD_INLINE void simd_store_part(void *p, int64_t i, int64_t count, enum dtype type, simd_f x) {
    if (type == DTYPE_BF16) {
        simd_h h = simd_to_bf16(x);
        memcpy((bf16 *)p + i, &h, (size_t)count * 2);
    } else {
        memcpy((float *)p + i, &x, (size_t)count * 4);
    }
}

// `left` elements stand from i on: a whole vector or the rest.
SIMD_INLINE simd_f simd_load_upto(const void *p, int64_t i, int64_t left, enum dtype type) {
    return left >= SIMD_WIDTH ? simd_load(p, i, type) : simd_load_part(p, i, left, type);
}
SIMD_INLINE void simd_store_upto(void *p, int64_t i, int64_t left, enum dtype type, simd_f x) {
    if (left >= SIMD_WIDTH) {
        simd_store(p, i, type, x);
    } else {
        simd_store_part(p, i, left, type, x);
    }
}

// Lane by lane: a where the mask (a comparison) holds, else b.
SIMD_INLINE simd_f simd_select(simd_i mask, simd_f a, simd_f b) {
    return (simd_f)((mask & (simd_i)a) | (~mask & (simd_i)b));
}
// Where one of the two is NaN the result is `b`: limits are written simd_max(limit, x), which keeps
// NaN.
SIMD_INLINE simd_f simd_max(simd_f a, simd_f b) {
#if defined WEFT_ISA_avx512
    return (simd_f)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined WEFT_ISA_avx2
    return (simd_f)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return simd_select(a > b, a, b);
#endif
}
SIMD_INLINE simd_f simd_min(simd_f a, simd_f b) {
#if defined WEFT_ISA_avx512
    return (simd_f)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined WEFT_ISA_avx2
    return (simd_f)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return simd_select(a < b, a, b);
#endif
}

SIMD_INLINE simd_f simd_sqrt(simd_f x) {
#if defined WEFT_ISA_avx512
    return (simd_f)_mm512_sqrt_ps((__m512)x);
#elif defined WEFT_ISA_avx2
    return (simd_f)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < SIMD_WIDTH; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

// Sum and maximum over the lanes, pairs first: one fixed order.
SIMD_INLINE float simd_sum(simd_f x) {
    float lane[SIMD_WIDTH];
    memcpy(lane, &x, sizeof x);
    for (int half = SIMD_WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}
SIMD_INLINE float simd_max_lane(simd_f x) {
    float best = x[0];
    for (int i = 1; i < SIMD_WIDTH; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// 2^n p for whole n; p near 1. Without the instruction n is put into the exponent in two steps,
// since 2^128 is no float.
SIMD_INLINE simd_f simd_scale(simd_f p, simd_f n, simd_f n_plus_magic) {
#if defined WEFT_ISA_avx512
    (void)n_plus_magic;
    return (simd_f)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    (void)n;
    simd_i whole = (simd_i)n_plus_magic - 0x4b400000, half = whole >> 1;
    return p * (simd_f)((half + 127) << 23) * (simd_f)((whole - half + 127) << 23);
#endif
}

// e^x, about 1 unit in the last place; 0 far below, infinity above 88.7, NaN for NaN. x = n ln 2 +
// r with |r| <= ln 2 / 2, the logarithm in two parts (Cody and Waite), the Taylor polynomial of
// degree 7 in r, then 2^n.
SIMD_INLINE simd_f simd_exp(simd_f x) {
    simd_f c = simd_min(simd_set(89.0f), simd_max(simd_set(-106.0f), x));
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    simd_f shifted = c * 1.44269504f + magic;
    simd_f n = shifted - magic;
    simd_f r = c - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    simd_f p = simd_set(1.9841270e-4f);
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    return simd_scale(p, n, shifted);
}

// 1 / x for positive finite x, within 1 unit in the last place.
SIMD_INLINE simd_f simd_reciprocal(simd_f x) {
#if defined WEFT_ISA_avx512
    simd_f r = (simd_f)_mm512_rcp14_ps((__m512)x);
    return r + r * (1.0f - x * r);
#else
    return 1.0f / x;
#endif
}

// 1 / (1 + e^-x); exactly 0 below -80, where the sum might not be finite.
SIMD_INLINE simd_f simd_sigmoid(simd_f x) {
    simd_f y = simd_reciprocal(1.0f + simd_exp(-simd_max(simd_set(-80.0f), x)));
    return simd_select(x < -80.0f, simd_zero(), y);
}
