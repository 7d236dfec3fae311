// Products of FP32 matrices, see product.h. B lies in panels of two vectors of columns, so that a
// step along the inner dimension reads them side by side; 6 rows by one panel of C stay in
// registers. A is read in place where its rows are FP32, else a tile of it is copied.
#ifndef WEFT_ISA_avx512 // there products are oneDNN's
#include "device/cpu/product.h"
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"
#include <omp.h>

enum { W = SIMD_WIDTH, PANEL = 2 * SIMD_WIDTH, MR = 6 };

// Explicit, so that every size of tile rounds alike.
SIMD_INLINE simd_f multiply_add(float a, simd_f b, simd_f c) {
#if defined WEFT_ISA_avx2
    return (simd_f)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#else
    return c + a * b;
#endif
}

// ---- B in panels -------------------------------------------------------------------------------

// Panels have the type of B. Rows [0, inner) of columns [0, count) of a B that is stored by rows.
SIMD_INLINE void pack_panel(int64_t inner, int64_t count, const void *b, int64_t stride,
                            enum dtype type, void *to) {
    for (int64_t p = 0; p < inner; p++)
        for (int i = 0; i < PANEL; i += W) {
            simd_f x = count - i >= W ? simd_load(b, p * stride + i, type)
                       : count > i    ? simd_load_part(b, p * stride + i, count - i, type)
                                      : simd_zero();
            simd_store(to, p * PANEL + i, type, x);
        }
}

// The same of a B that is stored by columns.
SIMD_INLINE void pack_panel_turned(int64_t inner, int64_t count, const void *b, int64_t stride,
                                   enum dtype type, void *to) {
    enum { STEPS = 16 };
    for (int64_t p = 0; p < inner; p += STEPS) {
        float rows[PANEL][STEPS];
        int64_t steps = inner - p < STEPS ? inner - p : STEPS;
        for (int64_t i = 0; i < PANEL; i++) {
            if (i >= count) {
                memset(rows[i], 0, sizeof rows[i]);
                continue;
            }
            for (int64_t s = 0; s < steps; s += W)
                simd_store_upto(rows[i], s, steps - s, DTYPE_F32,
                                simd_load_upto(b, i * stride + p + s, steps - s, type));
        }
        for (int64_t s = 0; s < steps; s++)
            for (int i = 0; i < PANEL; i += W) {
                simd_f x;
                for (int j = 0; j < W; j++) x[j] = rows[i + j][s];
                simd_store(to, (p + s) * PANEL + i, type, x);
            }
    }
}

static void pack_columns(int threads, const struct gemm_spec *spec, const void *b, int64_t first,
                         int64_t end, void *panels) {
    bool narrow = spec->in_type == DTYPE_BF16;
    size_t size = dtype_bytes(spec->in_type);
    int64_t k = spec->inner, stride = spec->b_stride, count = cpu_chunks(end - first, PANEL);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        int64_t column = first + i * PANEL, left = end - column < PANEL ? end - column : PANEL;
        const char *from =
            (const char *)b + (size_t)(spec->b_transposed ? column * stride : column) * size;
        void *to = (char *)panels + (size_t)(i * PANEL * k) * size;
        if (spec->b_transposed) {
            if (narrow) pack_panel_turned(k, left, from, stride, DTYPE_BF16, to);
            if (!narrow) pack_panel_turned(k, left, from, stride, DTYPE_F32, to);
        } else {
            if (narrow) pack_panel(k, left, from, stride, DTYPE_BF16, to);
            if (!narrow) pack_panel(k, left, from, stride, DTYPE_F32, to);
        }
    }
}

static void pack(int threads, const struct gemm_spec *spec, const void *b, void *panels) {
    pack_columns(threads, spec, b, 0, spec->columns, panels);
}

// ---- tiles of C --------------------------------------------------------------------------------

struct rows_of_a { // element (m, p) at at[m row + p step]
    const float *at;
    int64_t row, step;
};

// `rows` by one panel: c (+)= a b, c [rows][PRODUCT_COLUMNS].
SIMD_INLINE void multiply(const int rows, int64_t steps, const struct rows_of_a a, const void *b,
                          const enum dtype type, float *c, bool first) {
    simd_f sum[MR][2];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = first ? simd_zero() : simd_load(c + i * PRODUCT_COLUMNS, j * W, DTYPE_F32);
    const float *ap = a.at;
    for (int64_t p = 0; p < steps; p++, ap += a.step) {
        simd_f b0 = simd_load(b, p * PANEL, type), b1 = simd_load(b, p * PANEL + W, type);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            float x = ap[i * a.row];
            sum[i][0] = multiply_add(x, b0, sum[i][0]);
            sum[i][1] = multiply_add(x, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2; j++)
            simd_store(c + i * PRODUCT_COLUMNS, j * W, DTYPE_F32, sum[i][j]);
}

SIMD_INLINE void multiply_rows(int64_t rows, int64_t steps, const struct rows_of_a a, const void *b,
                               const enum dtype type, float *c, bool first) {
    switch (rows) {
    case 1:
        multiply(1, steps, a, b, type, c, first);
        break;
    case 2:
        multiply(2, steps, a, b, type, c, first);
        break;
    case 3:
        multiply(3, steps, a, b, type, c, first);
        break;
    case 4:
        multiply(4, steps, a, b, type, c, first);
        break;
    case 5:
        multiply(5, steps, a, b, type, c, first);
        break;
    default:
        if (a.step == 1) {
            multiply(MR, steps, (struct rows_of_a){a.at, a.row, 1}, b, type, c, first);
        } else {
            multiply(MR, steps, (struct rows_of_a){a.at, 1, a.step}, b, type, c, first);
        }
    }
}

static void multiply_bf16(int64_t rows, int64_t steps, const struct rows_of_a a, const void *b,
                          float *c, bool first) {
    multiply_rows(rows, steps, a, b, DTYPE_BF16, c, first);
}
static void multiply_f32(int64_t rows, int64_t steps, const struct rows_of_a a, const void *b,
                         float *c, bool first) {
    multiply_rows(rows, steps, a, b, DTYPE_F32, c, first);
}

struct tile {
    int64_t row, rows, column, columns; // columns count in the stripe
};

// Rows of A for steps [p, p + steps), in place or copied.
static struct rows_of_a tile_of_a(const struct gemm_spec *spec, const void *a, const struct tile *t,
                                  int64_t p, int64_t steps, float *copy) {
    int64_t stride = spec->a_stride;
    if (spec->a_transposed) {
        for (int64_t i = 0; i < steps; i++)
            for (int64_t m = 0; m < t->rows; m += W) {
                int64_t at = (p + i) * stride + t->row + m, left = t->rows - m;
                simd_f x = spec->in_type == DTYPE_BF16 ? simd_load_upto(a, at, left, DTYPE_BF16)
                                                       : simd_load_upto(a, at, left, DTYPE_F32);
                simd_store_upto(copy, i * PRODUCT_ROWS + m, left, DTYPE_F32, x);
            }
        return (struct rows_of_a){copy, 1, PRODUCT_ROWS};
    }
    if (spec->in_type == DTYPE_F32)
        return (struct rows_of_a){(const float *)a + t->row * stride + p, stride, 1};
    for (int64_t m = 0; m < t->rows; m++)
        for (int64_t i = 0; i < steps; i += W)
            simd_store_upto(
                copy, m * PRODUCT_INNER + i, steps - i, DTYPE_F32,
                simd_load_upto(a, (t->row + m) * stride + p + i, steps - i, DTYPE_BF16));
    return (struct rows_of_a){copy, PRODUCT_INNER, 1};
}

SIMD_INLINE void finish_row(const struct gemm_spec *spec, const float *sums, int64_t columns,
                            const float *bias, void *c, int64_t at, enum dtype type) {
    for (int64_t i = 0; i < columns; i += W) {
        int64_t left = columns - i;
        simd_f x = simd_load(sums, i, DTYPE_F32); // rows of sums are whole vectors
        if (bias) x += simd_load_upto(bias, i, left, DTYPE_F32);
        if (spec->add) x += simd_load_upto(c, at + i, left, DTYPE_F32);
        simd_store_upto(c, at + i, left, type, x);
    }
}

// `panels` are those of the stripe that begins at column `stripe` of C; `own` is the thread's
// memory.
static void compute_tile(const struct gemm_spec *spec, const struct tile *t, int64_t stripe,
                         const void *a, const void *panels, const float *bias, void *c,
                         float *own) {
    bool narrow = spec->in_type == DTYPE_BF16;
    float *sums = own, *copy = own + PRODUCT_ROWS * PRODUCT_COLUMNS;
    for (int64_t p = 0; p < spec->inner; p += PRODUCT_INNER) {
        int64_t steps = spec->inner - p < PRODUCT_INNER ? spec->inner - p : PRODUCT_INNER;
        struct rows_of_a rows = tile_of_a(spec, a, t, p, steps, copy);
        for (int64_t j = 0; j < t->columns; j += PANEL) {
            int64_t at = (t->column + j) * spec->inner + p * PANEL;
            const void *b = (const char *)panels + (size_t)at * dtype_bytes(spec->in_type);
            for (int64_t m = 0; m < t->rows; m += MR) {
                struct rows_of_a some = {rows.at + m * rows.row, rows.row, rows.step};
                (narrow ? multiply_bf16 : multiply_f32)(t->rows - m < MR ? t->rows - m : MR, steps,
                                                        some, b, sums + m * PRODUCT_COLUMNS + j,
                                                        p == 0);
            }
        }
    }
    int64_t column = stripe + t->column;
    for (int64_t m = 0; m < t->rows; m++) {
        int64_t at = (t->row + m) * spec->c_stride + column;
        const float *row = sums + m * PRODUCT_COLUMNS, *added = bias ? bias + column : NULL;
        if (spec->out_type == DTYPE_BF16) {
            finish_row(spec, row, t->columns, added, c, at, DTYPE_BF16);
        } else {
            finish_row(spec, row, t->columns, added, c, at, DTYPE_F32);
        }
    }
}

// Columns of a tile: fewer where rows are few, so that every thread gets some.
static int64_t tile_columns(int threads, int64_t row_tiles, int64_t columns) {
    int64_t wanted = PRODUCT_COLUMNS;
    while (wanted > 4 * PANEL && row_tiles * cpu_chunks(columns, wanted) < 3 * threads) wanted /= 2;
    return wanted;
}

static void run(int threads, const struct gemm_spec *spec, const void *a, const void *b,
                const float *bias, void *c, void *workspace) {
    char *panels = workspace;
    int64_t stripe = spec->b_packed ? spec->columns : PRODUCT_STRIPE;
    int64_t packed = spec->b_packed           ? 0
                     : spec->columns < stripe ? cpu_chunks(spec->columns, PANEL) * PANEL
                                              : stripe;
    size_t panel_bytes = (size_t)(packed * spec->inner) * dtype_bytes(spec->in_type);
    float *own = (float *)(panels + (panel_bytes + 63) / 64 * 64);
    int64_t each = PRODUCT_ROWS * (PRODUCT_COLUMNS + PRODUCT_INNER);
    int64_t row_tiles = cpu_chunks(spec->rows, PRODUCT_ROWS);
    for (int64_t first = 0; first < spec->columns; first += stripe) {
        int64_t columns = spec->columns - first < stripe ? spec->columns - first : stripe;
        if (!spec->b_packed) pack_columns(threads, spec, b, first, first + columns, panels);
        const void *used = spec->b_packed ? b : panels;
        int64_t wide = tile_columns(threads, row_tiles, columns);
        int64_t tiles = row_tiles * cpu_chunks(columns, wide);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t i = 0; i < tiles; i++) {
            struct tile t = {.row = i % row_tiles * PRODUCT_ROWS, .column = i / row_tiles * wide};
            t.rows = spec->rows - t.row < PRODUCT_ROWS ? spec->rows - t.row : PRODUCT_ROWS;
            t.columns = columns - t.column < wide ? columns - t.column : wide;
            compute_tile(spec, &t, first, a, used, bias, c, own + each * omp_get_thread_num());
        }
    }
}

const struct product_kernels ISA(product_kernels) = {run, pack, PANEL};
#endif
