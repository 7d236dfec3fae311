// Products of tiles for attention, and the layouts that they read. Included by attention_kernel.h,
// which is compiled once per arithmetic and instruction set (ATTENTION_PAIRS 1: an element is a
// pair of bf16; 0: one float).
//
// Every product of forward and backward has one form: C[m][n] (+)= sum over p of A(m, p) B[p][n],
// where A(m, p) is one 4-byte element, spread over a vector, and B[p] is a row of elements whose n
// lie side by side. A tile of C of 4 rows and 4 vectors stays in registers; each step loads 4
// vectors of B and 4 elements of A for 16 multiplications.
#pragma once
#include "device/cpu/attention.h"
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum {
    TILE = ATTENTION_TILE,
    W = SIMD_WIDTH,
    MR = 4,                        // rows of C in registers
    NV = SIMD_WIDTH == 16 ? 4 : 2, // vectors of C in registers
    PER = ATTENTION_PAIRS ? 2 : 1, // numbers in an element
    TILE_STEPS = TILE / PER        // elements along a tile
};

#if ATTENTION_PAIRS
typedef uint32_t element;
#else
typedef float element;
#endif

SIMD_INLINE simd_f multiply_add(simd_f c, element a, const element *b) {
#if ATTENTION_PAIRS
    __m512i pairs = _mm512_loadu_si512(b);
    return (simd_f)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32((int)a),
                                    (__m512bh)pairs);
#else
    simd_f x;
    memcpy(&x, b, sizeof x);
    return c + a * x;
#endif
}

struct operand {
    const element *at;
    int64_t row, step; // A: element (m, p) is at[m row + p step]; B: row p begins at at[p step]
};

SIMD_INLINE void product_tile(const int vectors, int64_t steps, const struct operand a,
                              const struct operand b, float *c, int64_t c_row, const bool add) {
    simd_f sum[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = add ? simd_load(c + i * c_row, j * W, DTYPE_F32) : simd_zero();
    for (int64_t p = 0; p < steps; p++) {
        const element *ap = a.at + p * a.step, *bp = b.at + p * b.step;
#pragma GCC unroll 4
        for (int i = 0; i < MR; i++) {
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sum[i][j] = multiply_add(sum[i][j], ap[i * a.row], bp + j * W);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < vectors; j++) simd_store(c + i * c_row, j * W, DTYPE_F32, sum[i][j]);
}

// MR rows of C, `vectors` vectors wide.
SIMD_INLINE void product(int vectors, int64_t steps, const struct operand a, struct operand b,
                         float *c, int64_t c_row, const bool add) {
    for (; vectors >= NV; vectors -= NV, b.at += NV * W, c += NV * W)
        product_tile(NV, steps, a, b, c, c_row, add);
    if (NV > 2 && vectors == 3) product_tile(3 < NV ? 3 : 1, steps, a, b, c, c_row, add);
    if (NV > 2 && vectors == 2) product_tile(2 < NV ? 2 : 1, steps, a, b, c, c_row, add);
    if (vectors == 1) product_tile(1, steps, a, b, c, c_row, add);
}

// ---- layouts. `source` is the first number of the first row; rows from `count` on are zero, up to
// `rows`.

static const void *row_of(const void *base, enum dtype type, int64_t stride, int64_t i,
                          int64_t column) {
    return (const char *)base + (size_t)(i * stride + column) * (type == DTYPE_BF16 ? 2 : 4);
}

// One row of head_dim numbers as elements along its length, zero up to `padded` elements.
static void pack_row(const void *source, enum dtype type, int head_dim, int padded, element *to) {
#if ATTENTION_PAIRS
    (void)type;
    memcpy(to, source, (size_t)head_dim * 2);
    memset(to + head_dim / 2, 0, (size_t)(padded - head_dim / 2) * 4);
#else
    for (int i = 0; i < head_dim; i += W)
        simd_store_upto(to, i, head_dim - i, DTYPE_F32,
                        simd_load_upto(source, i, head_dim - i, type));
    memset(to + head_dim, 0, (size_t)(padded - head_dim) * 4);
#endif
}

static void pack_rows(const void *source, enum dtype type, int64_t stride,
                      const struct attention_shape *s, int64_t count, int64_t rows, element *to) {
    for (int64_t i = 0; i < count; i++)
        pack_row(row_of(source, type, stride, i, 0), type, s->head_dim, s->row, to + i * s->row);
    memset(to + count * s->row, 0, (size_t)((rows - count) * s->row) * 4);
}

#if SIMD_WIDTH == 16
// Turns a block of 16 rows of 16 elements: pairs, fours, then quarters of the vectors change
// places.
SIMD_INLINE void turn_block(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4;
         i++) { // r[4 g + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 g .. 4 g + 3
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// Elements [p, p + 16) of one row, zero from `depth` on.
SIMD_INLINE __m512i row_elements(const void *row, enum dtype type, int p, int depth) {
    int left = depth - p;
#if ATTENTION_PAIRS
    (void)type;
    return _mm512_maskz_loadu_epi32((__mmask16)(left >= 16 ? 0xffff : (1 << left) - 1),
                                    (const uint32_t *)row + p);
#else
    return (__m512i)simd_load_upto(row, p, left, type);
#endif
}

// TILE rows turned: to[p][row], an element holds what pack_row puts at p. Rows from `count` on are
// zero.
static void pack_turned(const void *source, enum dtype type, int64_t stride,
                        const struct attention_shape *s, int64_t count, element *to) {
    for (int64_t i = 0; i < TILE; i += 16)
        for (int p = 0; p < s->depth; p += 16) {
            __m512i block[16];
            for (int64_t j = 0; j < 16; j++)
                block[j] = i + j < count ? row_elements(row_of(source, type, stride, i + j, 0),
                                                        type, p, s->depth)
                                         : _mm512_setzero_si512();
            turn_block(block);
            int columns = s->depth - p < 16 ? s->depth - p : 16;
            for (int j = 0; j < columns; j++)
                _mm512_storeu_si512(to + (p + j) * TILE + i, block[j]);
        }
}
#else
// TILE rows turned: to[p][row], an element holds what pack_row puts at p.
static void pack_turned(const void *source, enum dtype type, int64_t stride,
                        const struct attention_shape *s, int64_t count, element *to) {
    element row[TILE * 8];
    if (count < TILE) memset(to, 0, (size_t)s->depth * TILE * 4);
    for (int64_t i = 0; i < count; i++) {
        pack_row(row_of(source, type, stride, i, 0), type, s->head_dim, s->depth, row);
        for (int p = 0; p < s->depth; p++) to[p * TILE + i] = row[p];
    }
}
#endif

#if ATTENTION_PAIRS
// Numbers of two rows side by side; `odd` NULL: zeros.
static void pair_rows(const bf16 *restrict even, const bf16 *restrict odd, int count,
                      uint32_t *restrict to) {
    if (odd) {
        for (int c = 0; c < count; c++) to[c] = even[c] | (uint32_t)odd[c] << 16;
    } else {
        for (int c = 0; c < count; c++) to[c] = even[c];
    }
}
#endif

// Rows beside each other: to[row / PER][column], an element holds rows r .. r + PER - 1 of one
// column.
static void pack_stacked(const void *source, enum dtype type, int64_t stride,
                         const struct attention_shape *s, int64_t count, int64_t rows,
                         element *to) {
#if ATTENTION_PAIRS
    for (int64_t i = 0; i < count; i += 2) {
        const bf16 *odd = i + 1 < count ? row_of(source, type, stride, i + 1, 0) : NULL;
        element *row = to + i / 2 * s->width;
        pair_rows(row_of(source, type, stride, i, 0), odd, s->head_dim, row);
        memset(row + s->head_dim, 0, (size_t)(s->width - s->head_dim) * 4);
    }
    int64_t filled = (count + 1) / 2;
    memset(to + filled * s->width, 0, (size_t)((rows / 2 - filled) * s->width) * 4);
#else
    for (int64_t i = 0; i < count; i++)
        pack_row(row_of(source, type, stride, i, 0), type, s->head_dim, s->width,
                 to + i * s->width);
    memset(to + count * s->width, 0, (size_t)((rows - count) * s->width) * 4);
#endif
}
