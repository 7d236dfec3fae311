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

// Rows beside each other: to[row / PER][column], an element holds rows r .. r + PER - 1 of one
// column.
static void pack_stacked(const void *source, enum dtype type, int64_t stride,
                         const struct attention_shape *s, int64_t count, int64_t rows,
                         element *to) {
#if ATTENTION_PAIRS
    for (int64_t i = 0; i < rows; i += 2, to += s->width) {
        const bf16 *even = row_of(source, type, stride, i, 0),
                   *odd = row_of(source, type, stride, i + 1, 0);
        for (int c = 0; c < s->head_dim; c++) {
            uint32_t low = i < count ? even[c] : 0, high = i + 1 < count ? odd[c] : 0;
            to[c] = low | high << 16;
        }
        memset(to + s->head_dim, 0, (size_t)(s->width - s->head_dim) * 4);
    }
#else
    for (int64_t i = 0; i < count; i++)
        pack_row(row_of(source, type, stride, i, 0), type, s->head_dim, s->width,
                 to + i * s->width);
    memset(to + count * s->width, 0, (size_t)((rows - count) * s->width) * 4);
#endif
}
