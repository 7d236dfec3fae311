// Activations, additions and conversions: one pass over memory, in fixed blocks.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { BLOCK = 16384 };

// Runs `body` for i = every vector of [0, count), `left` elements standing from i on, for both
// types as constants.
#define EACH_VECTOR(first_, end_, ...)                                                             \
    for (int64_t i = (first_); i < (end_); i += SIMD_WIDTH) {                                      \
        int64_t left = (end_)-i;                                                                   \
        __VA_ARGS__                                                                                \
    }

// ---- SwiGLU -----------------------------------------------------------------------------------

SIMD_INLINE void swiglu_row(const void *gate_up, void *out, int64_t t, int64_t ffn,
                            enum dtype type) {
    EACH_VECTOR(0, ffn, {
        simd_f g = simd_load_upto(gate_up, t * 2 * ffn + i, left, type);
        simd_f u = simd_load_upto(gate_up, t * 2 * ffn + ffn + i, left, type);
        simd_store_upto(out, t * ffn + i, left, type, g * simd_sigmoid(g) * u);
    })
}

static void swiglu_forward(struct device *device, enum dtype type, int64_t tokens, int64_t ffn,
                           const void *gate_up, void *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tokens; t++) {
        if (type == DTYPE_BF16) {
            swiglu_row(gate_up, out, t, ffn, DTYPE_BF16);
        } else {
            swiglu_row(gate_up, out, t, ffn, DTYPE_F32);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "swiglu", -1, begin);
}

// With s = sigmoid(g): d silu / dg = s (1 + g (1 - s)).
SIMD_INLINE void swiglu_backward_row(const void *gate_up, const void *dout, void *dgate_up,
                                     void *out, int64_t t, int64_t ffn, enum dtype type) {
    EACH_VECTOR(0, ffn, {
        simd_f g = simd_load_upto(gate_up, t * 2 * ffn + i, left, type);
        simd_f u = simd_load_upto(gate_up, t * 2 * ffn + ffn + i, left, type);
        simd_f d = simd_load_upto(dout, t * ffn + i, left, type);
        simd_f s = simd_sigmoid(g);
        simd_f silu = g * s;
        if (out) simd_store_upto(out, t * ffn + i, left, type, silu * u);
        simd_store_upto(dgate_up, t * 2 * ffn + i, left, type, d * u * s * (1.0f + g * (1.0f - s)));
        simd_store_upto(dgate_up, t * 2 * ffn + ffn + i, left, type, d * silu);
    })
}

static void swiglu_backward(struct device *device, enum dtype type, int64_t tokens, int64_t ffn,
                            const void *gate_up, const void *dout, void *dgate_up, void *out) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < tokens; t++) {
        if (type == DTYPE_BF16) {
            swiglu_backward_row(gate_up, dout, dgate_up, out, t, ffn, DTYPE_BF16);
        } else {
            swiglu_backward_row(gate_up, dout, dgate_up, out, t, ffn, DTYPE_F32);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "swiglu gradient", -1, begin);
}

// ---- GELU, tanh form: 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3) ----

static const float twice_root = 1.5957691216f; // 2 sqrt(2 / pi)

// sigmoid(2 u), the same bits forward and backward
SIMD_INLINE simd_f gelu_gate(simd_f v) {
    simd_f square = v * v;
    return simd_sigmoid(v * (1.0f + 0.044715f * square) * twice_root);
}

SIMD_INLINE void gelu_block(const void *x, void *out, int64_t first, int64_t end, enum dtype type){
    EACH_VECTOR(first, end,
                {
                    simd_f v = simd_load_upto(x, i, left, type);
                    simd_store_upto(out, i, left, type, v * gelu_gate(v));
                })}

SIMD_INLINE void gelu_backward_block(const void *x, const void *dout, void *dx, void *out,
                                     int64_t first, int64_t end, enum dtype type) {
    EACH_VECTOR(first, end, {
        simd_f v = simd_load_upto(x, i, left, type);
        simd_f d = simd_load_upto(dout, i, left, type);
        simd_f s = gelu_gate(v);
        simd_f slope = (1.0f + 0.134145f * v * v) * twice_root;
        if (out) simd_store_upto(out, i, left, type, v * s);
        simd_store_upto(dx, i, left, type, d * (s + v * s * (1.0f - s) * slope));
    })
}

#define BLOCKS_PARALLEL(call_bf16, call_f32)                                                       \
    _Pragma(                                                                                       \
        "omp parallel for schedule(static) num_threads(device->threads)") for (int64_t first = 0;  \
                                                                               first < count;      \
                                                                               first += BLOCK) {   \
        int64_t end = first + BLOCK < count ? first + BLOCK : count;                               \
        if (type == DTYPE_BF16) {                                                                  \
            call_bf16;                                                                             \
        } else {                                                                                   \
            call_f32;                                                                              \
        }                                                                                          \
    }

static void gelu_forward(struct device *device, enum dtype type, int64_t count, const void *x,
                         void *out) {
    double begin = record_begin(device->lane);
    BLOCKS_PARALLEL(gelu_block(x, out, first, end, DTYPE_BF16),
                    gelu_block(x, out, first, end, DTYPE_F32))
    record_end(device->lane, RECORD_KERNEL, "gelu", -1, begin);
}

static void gelu_backward(struct device *device, enum dtype type, int64_t count, const void *x,
                          const void *dout, void *dx, void *out) {
    double begin = record_begin(device->lane);
    BLOCKS_PARALLEL(gelu_backward_block(x, dout, dx, out, first, end, DTYPE_BF16),
                    gelu_backward_block(x, dout, dx, out, first, end, DTYPE_F32))
    record_end(device->lane, RECORD_KERNEL, "gelu gradient", -1, begin);
}

// ---- sums and conversions ---------------------------------------------------------------------

SIMD_INLINE void add_block(const void *a, const void *b, void *out, int64_t first, int64_t end,
                           enum dtype type) {
    EACH_VECTOR(first, end, {
        simd_store_upto(out, i, left, type,
                        simd_load_upto(a, i, left, type) + simd_load_upto(b, i, left, type));
    })
}

static void add(struct device *device, enum dtype type, int64_t count, const void *a, const void *b,
                void *out) {
    double begin = record_begin(device->lane);
    BLOCKS_PARALLEL(add_block(a, b, out, first, end, DTYPE_BF16),
                    add_block(a, b, out, first, end, DTYPE_F32))
    record_end(device->lane, RECORD_KERNEL, "add", -1, begin);
}

SIMD_INLINE void convert_block(const void *from, enum dtype from_type, void *to, enum dtype to_type,
                               int64_t first, int64_t end) {
    EACH_VECTOR(first, end, {
        simd_store_upto(to, i, left, to_type, simd_load_upto(from, i, left, from_type));
    })
}

static void convert(struct device *device, int64_t count, const void *from, enum dtype from_type,
                    void *to, enum dtype to_type) {
    double begin = record_begin(device->lane);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t end = first + BLOCK < count ? first + BLOCK : count;
        if (from_type == DTYPE_BF16 && to_type == DTYPE_F32) {
            convert_block(from, DTYPE_BF16, to, DTYPE_F32, first, end);
        } else if (from_type == DTYPE_F32 && to_type == DTYPE_BF16) {
            convert_block(from, DTYPE_F32, to, DTYPE_BF16, first, end);
        } else {
            dtype_convert((char *)to + (size_t)first * dtype_bytes(to_type), to_type,
                          (const char *)from + (size_t)first * dtype_bytes(from_type), from_type,
                          (size_t)(end - first));
        }
    }
    record_end(device->lane, RECORD_KERNEL, "convert", -1, begin);
}

SIMD_INLINE void convert_row(const void *from, enum dtype from_type, int64_t from_at, void *to,
                             enum dtype to_type, int64_t to_at, int64_t columns) {
    EACH_VECTOR(0, columns, {
        simd_store_upto(to, to_at + i, left, to_type,
                        simd_load_upto(from, from_at + i, left, from_type));
    })
}

static void convert_rows(struct device *device, int64_t rows, int64_t columns, const void *from,
                         enum dtype from_type, int64_t from_stride, void *to, enum dtype to_type,
                         int64_t to_stride) {
    double begin = record_begin(device->lane);
    size_t from_size = dtype_bytes(from_type), to_size = dtype_bytes(to_type);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * from_stride, to_at = r * to_stride;
        if (from_type == DTYPE_BF16 && to_type == DTYPE_F32) {
            convert_row(from, DTYPE_BF16, at, to, DTYPE_F32, to_at, columns);
        } else if (from_type == DTYPE_F32 && to_type == DTYPE_BF16) {
            convert_row(from, DTYPE_F32, at, to, DTYPE_BF16, to_at, columns);
        } else {
            dtype_convert((char *)to + (size_t)to_at * to_size, to_type,
                          (const char *)from + (size_t)at * from_size, from_type, (size_t)columns);
        }
    }
    record_end(device->lane, RECORD_KERNEL, "convert", -1, begin);
}

void ISA(pointwise_fill)(struct device *device) {
    device->swiglu_forward = swiglu_forward;
    device->swiglu_backward = swiglu_backward;
    device->gelu_forward = gelu_forward;
    device->gelu_backward = gelu_backward;
    device->add = add;
    device->convert = convert;
    device->convert_rows = convert_rows;
}
