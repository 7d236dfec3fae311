// Look-up of rows and the scatter of their gradients. A negative id is a row that another rank
// holds: zeros here. The scatter is split over columns, never over
// tokens: each thread adds its columns in token order.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { COLUMNS = 64 };

SIMD_INLINE void embed_row(const void *table, const void *positions, int64_t id, int64_t position,
                           void *out, int64_t t, int64_t width, enum dtype type) {
    for (int64_t i = 0; i < width; i += SIMD_WIDTH) {
        int64_t left = width - i;
        simd_f v = id < 0 ? simd_zero() : simd_load_upto(table, id * width + i, left, type);
        if (positions) v += simd_load_upto(positions, position * width + i, left, type);
        simd_store_upto(out, t * width + i, left, type, v);
    }
}

static void embedding_forward(struct device *device, enum dtype type, int64_t tokens, int64_t width,
                              const void *table, const void *positions, const int32_t *id,
                              const int32_t *position, void *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tokens; t++) {
        int64_t where = positions ? position[t] : 0;
        if (type == DTYPE_BF16) {
            embed_row(table, positions, id[t], where, out, t, width, DTYPE_BF16);
        } else {
            embed_row(table, positions, id[t], where, out, t, width, DTYPE_F32);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "embedding", -1, begin);
}

SIMD_INLINE void scatter_columns(int64_t tokens, int64_t width, const void *dout, const int32_t *id,
                                 float *dtable, int64_t first, int64_t end, enum dtype type) {
    for (int64_t t = 0; t < tokens; t++) {
        if (id[t] < 0) continue;
        float *row = dtable + id[t] * width;
        for (int64_t i = first; i < end; i += SIMD_WIDTH) {
            int64_t left = end - i;
            simd_f d = left >= SIMD_WIDTH ? simd_load(dout, t * width + i, type)
                                          : simd_load_part(dout, t * width + i, left, type);
            simd_store_upto(row, i, left, DTYPE_F32, simd_load_upto(row, i, left, DTYPE_F32) + d);
        }
    }
}

static void embedding_backward(struct device *device, enum dtype type, int64_t tokens,
                               int64_t width, int64_t rows, const void *dout, const int32_t *id,
                               float *dtable, bool store) {
    double begin = record_begin(device->lane);
    if (store) {
#pragma omp parallel for schedule(static) num_threads(device->threads)
        for (int64_t r = 0; r < rows; r++)
            memset(dtable + r * width, 0, (size_t)width * sizeof(float));
    }
    int64_t blocks = cpu_chunks(width, COLUMNS);
    // A thread takes neighbouring blocks in one go over the tokens.
    int64_t parts = blocks < device->threads ? blocks : device->threads;
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t p = 0; p < parts; p++) {
        int64_t first = blocks * p / parts * COLUMNS, end = blocks * (p + 1) / parts * COLUMNS;
        if (end > width) end = width;
        if (type == DTYPE_BF16) {
            scatter_columns(tokens, width, dout, id, dtable, first, end, DTYPE_BF16);
        } else {
            scatter_columns(tokens, width, dout, id, dtable, first, end, DTYPE_F32);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "embedding gradient", -1, begin);
}

void ISA(embedding_fill)(struct device *device) {
    device->embedding_forward = embedding_forward;
    device->embedding_backward = embedding_backward;
}
