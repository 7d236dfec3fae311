// LayerNorm and RMSNorm with the residual addition in the same pass, and their gradients; column
// sums of a matrix. Rows are independent. Sums over tokens are made per NORM_ROWS tokens, then over
// these parts in order.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { NORM_ROWS = 64 }; // divides DEVICE_TOKEN_CHUNK

// x (+ delta, stored and rounded) -> sum and sum of squares around `centre`.
SIMD_INLINE void row_sums(const void *x, int64_t width, float centre, enum dtype type, float *sum,
                          float *squares) {
    simd_f s0 = simd_zero(), s1 = simd_zero(), q0 = simd_zero(), q1 = simd_zero();
    int64_t i = 0;
    for (; i + 2 * SIMD_WIDTH <= width; i += 2 * SIMD_WIDTH) {
        simd_f a = simd_load(x, i, type) - centre, b = simd_load(x, i + SIMD_WIDTH, type) - centre;
        s0 += a;
        s1 += b;
        q0 += a * a;
        q1 += b * b;
    }
    float rest_sum = 0, rest_squares = 0;
    if (i + SIMD_WIDTH <= width) {
        simd_f a = simd_load(x, i, type) - centre;
        s0 += a;
        q0 += a * a;
        i += SIMD_WIDTH;
    }
    for (; i < width; i++) {
        float a = simd_load_part(x, i, 1, type)[0] - centre;
        rest_sum += a;
        rest_squares += a * a;
    }
    *sum = simd_sum(s0 + s1) + rest_sum;
    *squares = simd_sum(q0 + q1) + rest_squares;
}

SIMD_INLINE void add_row(const void *x, const void *delta, void *residual, int64_t width,
                         enum dtype type) {
    for (int64_t i = 0; i < width; i += SIMD_WIDTH) {
        int64_t left = width - i;
        simd_store_upto(residual, i, left, type,
                        simd_load_upto(x, i, left, type) + simd_load_upto(delta, i, left, type));
    }
}

SIMD_INLINE void forward_rows(struct device *device, const struct device_norm *a, enum dtype type) {
    size_t row_bytes = (size_t)a->width * dtype_bytes(type);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < a->tokens; t++) {
        const void *x = (const char *)a->x + (size_t)t * row_bytes;
        if (a->delta) {
            void *residual = (char *)a->residual + (size_t)t * row_bytes;
            add_row(x, (const char *)a->delta + (size_t)t * row_bytes, residual, a->width, type);
            x = residual;
        }
        float mean = 0, sum, squares;
        if (a->centred) {
            row_sums(x, a->width, 0, type, &sum, &squares);
            mean = sum / (float)a->width;
        }
        row_sums(x, a->width, mean, type, &sum, &squares);
        float rstd = 1.0f / sqrtf(squares / (float)a->width + (float)a->eps);
        void *y = (char *)a->y + (size_t)t * row_bytes;
        for (int64_t i = 0; i < a->width; i += SIMD_WIDTH) {
            int64_t left = a->width - i;
            simd_f v = (simd_load_upto(x, i, left, type) - mean) * rstd *
                       simd_load_upto(a->weight, i, left, DTYPE_F32);
            if (a->bias) v += simd_load_upto(a->bias, i, left, DTYPE_F32);
            simd_store_upto(y, i, left, type, v);
        }
        if (a->rstd) a->rstd[t] = rstd;
        if (a->mean && a->centred) a->mean[t] = mean;
    }
}

static void norm_forward(struct device *device, const struct device_norm *args) {
    double begin = record_begin(device->lane);
    if (args->type == DTYPE_BF16) {
        forward_rows(device, args, DTYPE_BF16);
    } else {
        forward_rows(device, args, DTYPE_F32);
    }
    record_end(device->lane, RECORD_KERNEL, "norm", -1, begin);
}

// Adds parts [count][width] in order to `out` (or stores).
static void sum_parts(struct device *device, const float *parts, int64_t count, int64_t part_stride,
                      int64_t width, float *out, bool store) {
    enum { BLOCK = 256 };
    int64_t blocks = cpu_chunks(width, BLOCK);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t end = (b + 1) * BLOCK < width ? (b + 1) * BLOCK : width;
        for (int64_t i = b * BLOCK; i < end; i += SIMD_WIDTH) {
            int64_t left = end - i;
            simd_f sum = store ? simd_zero() : simd_load_upto(out, i, left, DTYPE_F32);
            for (int64_t p = 0; p < count; p++)
                sum += simd_load_upto(parts, p * part_stride + i, left, DTYPE_F32);
            simd_store_upto(out, i, left, DTYPE_F32, sum);
        }
    }
}

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)), mean(g)
// for LayerNorm only.
SIMD_INLINE void backward_row(const struct device_norm_backward *a, int64_t t, float *dweight,
                              float *dbias, enum dtype type) {
    size_t offset = (size_t)(t * a->width) * dtype_bytes(type);
    const void *x = (const char *)a->x + offset, *dy = (const char *)a->dy + offset;
    float mean = a->centred ? a->mean[t] : 0, rstd = a->rstd[t];
    simd_f sum = simd_zero(), product = simd_zero();
    for (int64_t i = 0; i < a->width; i += SIMD_WIDTH) {
        int64_t left = a->width - i;
        simd_f d = simd_load_upto(dy, i, left, type),
               xhat = (simd_load_upto(x, i, left, type) - mean) * rstd;
        simd_f g = d * simd_load_upto(a->weight, i, left, DTYPE_F32);
        sum += g;
        product += g * xhat;
        simd_store_upto(dweight, i, left, DTYPE_F32,
                        simd_load_upto(dweight, i, left, DTYPE_F32) + d * xhat);
        if (dbias)
            simd_store_upto(dbias, i, left, DTYPE_F32,
                            simd_load_upto(dbias, i, left, DTYPE_F32) + d);
    }
    float mean_g = a->centred ? simd_sum(sum) / (float)a->width : 0;
    float mean_product = simd_sum(product) / (float)a->width;
    for (int64_t i = 0; i < a->width; i += SIMD_WIDTH) {
        int64_t left = a->width - i;
        simd_f d = simd_load_upto(dy, i, left, type),
               xhat = (simd_load_upto(x, i, left, type) - mean) * rstd;
        simd_f g = d * simd_load_upto(a->weight, i, left, DTYPE_F32);
        simd_f dx = (g - mean_g - xhat * mean_product) * rstd;
        if (a->dx_add) dx += simd_load_upto((const char *)a->dx_add + offset, i, left, type);
        simd_store_upto((char *)a->dx + offset, i, left, type, dx);
    }
}

SIMD_INLINE void backward_chunk(const struct device_norm_backward *a, int64_t chunk,
                                enum dtype type) {
    float *dweight = a->workspace + chunk * 2 * a->width,
          *dbias = a->dbias ? dweight + a->width : NULL;
    memset(dweight, 0, (size_t)a->width * 2 * sizeof(float));
    int64_t end = (chunk + 1) * NORM_ROWS < a->tokens ? (chunk + 1) * NORM_ROWS : a->tokens;
    for (int64_t t = chunk * NORM_ROWS; t < end; t++) backward_row(a, t, dweight, dbias, type);
}

static void norm_backward(struct device *device, const struct device_norm_backward *args) {
    double begin = record_begin(device->lane);
    int64_t chunks = cpu_chunks(args->tokens, NORM_ROWS);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t c = 0; c < chunks; c++) {
        if (args->type == DTYPE_BF16) {
            backward_chunk(args, c, DTYPE_BF16);
        } else {
            backward_chunk(args, c, DTYPE_F32);
        }
    }
    sum_parts(device, args->workspace, chunks, 2 * args->width, args->width, args->dweight,
              args->store);
    if (args->dbias) {
        sum_parts(device, args->workspace + args->width, chunks, 2 * args->width, args->width,
                  args->dbias, args->store);
    }
    record_end(device->lane, RECORD_KERNEL, "norm gradient", -1, begin);
}

static uint64_t norm_backward_workspace_bytes(struct device *device, int64_t tokens,
                                              int64_t width) {
    (void)device;
    return (uint64_t)(cpu_chunks(tokens, NORM_ROWS) * 2 * width) * sizeof(float);
}

SIMD_INLINE void column_sums(const void *dy, int64_t stride, int64_t first, int64_t end, int64_t n,
                             float *sums, enum dtype type) {
    memset(sums, 0, (size_t)n * sizeof(float));
    for (int64_t t = first; t < end; t++) {
        for (int64_t i = 0; i < n; i += SIMD_WIDTH) {
            int64_t left = n - i;
            simd_f d = left >= SIMD_WIDTH ? simd_load(dy, t * stride + i, type)
                                          : simd_load_part(dy, t * stride + i, left, type);
            simd_store_upto(sums, i, left, DTYPE_F32, simd_load_upto(sums, i, left, DTYPE_F32) + d);
        }
    }
}

static void bias_backward(struct device *device, enum dtype type, int64_t tokens, int64_t n,
                          const void *dy, int64_t dy_stride, float *db, bool store,
                          float *workspace) {
    double begin = record_begin(device->lane);
    int64_t chunks = cpu_chunks(tokens, NORM_ROWS);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t end = (c + 1) * NORM_ROWS < tokens ? (c + 1) * NORM_ROWS : tokens;
        if (type == DTYPE_BF16) {
            column_sums(dy, dy_stride, c * NORM_ROWS, end, n, workspace + c * n, DTYPE_BF16);
        } else {
            column_sums(dy, dy_stride, c * NORM_ROWS, end, n, workspace + c * n, DTYPE_F32);
        }
    }
    sum_parts(device, workspace, chunks, n, n, db, store);
    record_end(device->lane, RECORD_KERNEL, "bias gradient", -1, begin);
}

static uint64_t bias_backward_workspace_bytes(struct device *device, int64_t tokens, int64_t n) {
    (void)device;
    return (uint64_t)(cpu_chunks(tokens, NORM_ROWS) * n) * sizeof(float);
}

void ISA(norm_fill)(struct device *device) {
    device->norm_forward = norm_forward;
    device->norm_backward = norm_backward;
    device->norm_backward_workspace_bytes = norm_backward_workspace_bytes;
    device->bias_backward = bias_backward;
    device->bias_backward_workspace_bytes = bias_backward_workspace_bytes;
}
