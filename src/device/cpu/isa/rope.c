// Rotation of queries and keys by position, with their norm (per head, or over all heads) in the
// same pass, and the gradients of both. Halves of a head form the pairs: (i, i + head_dim / 2).
// Tokens are independent; gradients of norm weights are summed per ROPE_TOKENS tokens, then over
// these parts in order.
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"

enum { ROPE_TOKENS = 64 };

struct part { // the queries or the keys of one token
    int heads, head_dim;
    int64_t offset;      // elements from the row's start
    const float *weight; // or NULL
    float *rstd;
    bool whole; // one norm over all heads
};

static struct part part_of(const struct device_rope *a, bool keys) {
    struct part p = {.heads = keys ? a->kv_heads : a->heads,
                     .head_dim = a->head_dim,
                     .whole = a->norm_over_all_heads};
    p.offset = keys ? (int64_t)a->heads * a->head_dim : 0;
    p.weight = keys ? a->k_norm : a->q_norm;
    p.rstd = keys ? a->k_rstd : a->q_rstd;
    return p;
}

static int64_t weight_width(const struct device_rope *a, bool keys) {
    if (!(keys ? a->k_norm : a->q_norm)) return 0;
    return a->norm_over_all_heads ? (int64_t)(keys ? a->kv_heads : a->heads) * a->head_dim
                                  : a->head_dim;
}

SIMD_INLINE float reciprocal_root(const void *x, int64_t first, int64_t width, double eps,
                                  enum dtype type) {
    simd_f sum = simd_zero();
    int64_t i = 0;
    for (; i + SIMD_WIDTH <= width; i += SIMD_WIDTH) {
        simd_f v = simd_load(x, first + i, type);
        sum += v * v;
    }
    if (i < width) {
        simd_f v = simd_load_part(x, first + i, width - i, type);
        sum += v * v;
    }
    return 1.0f / sqrtf(simd_sum(sum) / (float)width + (float)eps);
}

SIMD_INLINE void rotate_head(const void *in, void *out, int64_t at, int half, const float *weight,
                             float rstd, const float *cosine, const float *sine, enum dtype type) {
    for (int i = 0; i < half; i += SIMD_WIDTH) {
        int64_t left = half - i;
        simd_f a = simd_load_upto(in, at + i, left, type),
               b = simd_load_upto(in, at + half + i, left, type);
        if (weight) {
            a *= rstd * simd_load_upto(weight, i, left, DTYPE_F32);
            b *= rstd * simd_load_upto(weight, half + i, left, DTYPE_F32);
        }
        simd_f x = a, y = b;
        if (cosine) {
            simd_f c = simd_load_upto(cosine, i, left, DTYPE_F32),
                   s = simd_load_upto(sine, i, left, DTYPE_F32);
            x = a * c - b * s;
            y = b * c + a * s;
        }
        simd_store_upto(out, at + i, left, type, x);
        simd_store_upto(out, at + half + i, left, type, y);
    }
}

SIMD_INLINE void forward_part(const struct device_rope *a, const struct part *p, int64_t t,
                              const void *in, void *out, enum dtype type) {
    int half = a->head_dim / 2;
    const float *cosine = a->cosine ? a->cosine + (int64_t)a->position[t] * half : NULL;
    const float *sine = a->cosine ? a->sine + (int64_t)a->position[t] * half : NULL;
    float rstd = 1;
    if (p->weight && p->whole) {
        rstd = reciprocal_root(in, p->offset, (int64_t)p->heads * p->head_dim, a->eps, type);
        if (p->rstd) p->rstd[t] = rstd;
    }
    for (int h = 0; h < p->heads; h++) {
        int64_t at = p->offset + (int64_t)h * p->head_dim;
        if (p->weight && !p->whole) {
            rstd = reciprocal_root(in, at, p->head_dim, a->eps, type);
            if (p->rstd) p->rstd[t * p->heads + h] = rstd;
        }
        const float *weight =
            p->weight && p->whole ? p->weight + (int64_t)h * p->head_dim : p->weight;
        rotate_head(in, out, at, half, weight, rstd, cosine, sine, type);
    }
}

static int64_t row_width(const struct device_rope *a) {
    return ((int64_t)a->heads + 2 * a->kv_heads) * a->head_dim;
}

static void copy_values(const struct device_rope *a, const void *in, void *out) {
    size_t size = dtype_bytes(a->type),
           offset = ((size_t)a->heads + (size_t)a->kv_heads) * (size_t)a->head_dim * size;
    if (in != out)
        memcpy((char *)out + offset, (const char *)in + offset,
               (size_t)a->kv_heads * (size_t)a->head_dim * size);
}

static void rope_forward(struct device *device, const struct device_rope *args) {
    double begin = record_begin(device->lane);
    size_t row_bytes = (size_t)row_width(args) * dtype_bytes(args->type);
    struct part q = part_of(args, false), k = part_of(args, true);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t t = 0; t < args->tokens; t++) {
        const void *in = (const char *)args->qkv_in + (size_t)t * row_bytes;
        void *out = (char *)args->qkv_out + (size_t)t * row_bytes;
        if (args->type == DTYPE_BF16) {
            forward_part(args, &q, t, in, out, DTYPE_BF16);
            forward_part(args, &k, t, in, out, DTYPE_BF16);
        } else {
            forward_part(args, &q, t, in, out, DTYPE_F32);
            forward_part(args, &k, t, in, out, DTYPE_F32);
        }
        copy_values(args, in, out);
    }
    record_end(device->lane, RECORD_KERNEL, "rope", -1, begin);
}

// ---- gradient ---------------------------------------------------------------------------------

// The rotation backward: into `turned` as FP32 (norm follows) or straight to `out`.
SIMD_INLINE void turn_back_head(const void *in, void *out, int64_t at, int64_t out_at, int half,
                                const float *cosine, const float *sine, enum dtype type,
                                enum dtype out_type) {
    for (int i = 0; i < half; i += SIMD_WIDTH) {
        int64_t left = half - i;
        simd_f x = simd_load_upto(in, at + i, left, type),
               y = simd_load_upto(in, at + half + i, left, type);
        simd_f a = x, b = y;
        if (cosine) {
            simd_f c = simd_load_upto(cosine, i, left, DTYPE_F32),
                   s = simd_load_upto(sine, i, left, DTYPE_F32);
            a = x * c + y * s;
            b = y * c - x * s;
        }
        simd_store_upto(out, out_at + i, left, out_type, a);
        simd_store_upto(out, out_at + half + i, left, out_type, b);
    }
}

// Gradient of v rstd w over `width` elements: g is the gradient of the normalised values.
SIMD_INLINE void norm_back(const void *x, void *dx, int64_t at, int64_t width, const float *g,
                           const float *weight, float rstd, float *dweight, enum dtype type) {
    simd_f product = simd_zero();
    for (int64_t i = 0; i < width; i += SIMD_WIDTH) {
        int64_t left = width - i;
        simd_f xhat = simd_load_upto(x, at + i, left, type) * rstd,
               d = simd_load_upto(g, i, left, DTYPE_F32);
        product += d * simd_load_upto(weight, i, left, DTYPE_F32) * xhat;
        simd_store_upto(dweight, i, left, DTYPE_F32,
                        simd_load_upto(dweight, i, left, DTYPE_F32) + d * xhat);
    }
    float mean = simd_sum(product) / (float)width;
    for (int64_t i = 0; i < width; i += SIMD_WIDTH) {
        int64_t left = width - i;
        simd_f xhat = simd_load_upto(x, at + i, left, type) * rstd,
               d = simd_load_upto(g, i, left, DTYPE_F32);
        simd_store_upto(dx, at + i, left, type,
                        (d * simd_load_upto(weight, i, left, DTYPE_F32) - xhat * mean) * rstd);
    }
}

SIMD_INLINE void backward_part(const struct device_rope *a, const struct part *p, int64_t t,
                               const void *x, const void *in, void *out, float *dweight,
                               float *turned, enum dtype type) {
    int half = a->head_dim / 2;
    const float *cosine = a->cosine ? a->cosine + (int64_t)a->position[t] * half : NULL;
    const float *sine = a->cosine ? a->sine + (int64_t)a->position[t] * half : NULL;
    for (int h = 0; h < p->heads; h++) {
        int64_t from = (int64_t)h * p->head_dim, at = p->offset + from;
        if (!p->weight) {
            turn_back_head(in, out, at, at, half, cosine, sine, type, type);
            continue;
        }
        turn_back_head(in, turned, at, from, half, cosine, sine, type, DTYPE_F32);
        if (!p->whole) {
            norm_back(x, out, at, p->head_dim, turned + from, p->weight, p->rstd[t * p->heads + h],
                      dweight, type);
        }
    }
    if (p->weight && p->whole) {
        norm_back(x, out, p->offset, (int64_t)p->heads * p->head_dim, turned, p->weight, p->rstd[t],
                  dweight, type);
    }
}

static int64_t turned_width(const struct device_rope *a) {
    return (int64_t)(a->heads > a->kv_heads ? a->heads : a->kv_heads) * a->head_dim;
}

// Floats of one chunk: sums of both weights, then a row of turned gradients.
static int64_t chunk_floats(const struct device_rope *a) {
    int64_t sums = weight_width(a, false) + weight_width(a, true);
    return sums ? sums + turned_width(a) : 0;
}

static void backward_chunk(const struct device_rope_backward *args, int64_t chunk) {
    const struct device_rope *a = &args->forward;
    size_t row_bytes = (size_t)row_width(a) * dtype_bytes(a->type);
    struct part q = part_of(a, false), k = part_of(a, true);
    int64_t floats = chunk_floats(a);
    float *dq = args->workspace + chunk * floats, *dk = dq + weight_width(a, false);
    float *turned = dk + weight_width(a, true);
    if (floats) memset(dq, 0, (size_t)floats * sizeof(float));
    int64_t end = (chunk + 1) * ROPE_TOKENS < a->tokens ? (chunk + 1) * ROPE_TOKENS : a->tokens;
    for (int64_t t = chunk * ROPE_TOKENS; t < end; t++) {
        const void *x = (const char *)a->qkv_in + (size_t)t * row_bytes;
        const void *in = (const char *)args->dqkv_in + (size_t)t * row_bytes;
        void *out = (char *)args->dqkv_out + (size_t)t * row_bytes;
        if (a->type == DTYPE_BF16) {
            backward_part(a, &q, t, x, in, out, dq, turned, DTYPE_BF16);
            backward_part(a, &k, t, x, in, out, dk, turned, DTYPE_BF16);
        } else {
            backward_part(a, &q, t, x, in, out, dq, turned, DTYPE_F32);
            backward_part(a, &k, t, x, in, out, dk, turned, DTYPE_F32);
        }
        copy_values(a, in, out);
    }
}

static void add_parts(const float *parts, int64_t count, int64_t stride, int64_t width, float *out,
                      bool store) {
    for (int64_t i = 0; i < width; i++) {
        float sum = store ? 0 : out[i];
        for (int64_t c = 0; c < count; c++) sum += parts[c * stride + i];
        out[i] = sum;
    }
}

static void rope_backward(struct device *device, const struct device_rope_backward *args) {
    double begin = record_begin(device->lane);
    const struct device_rope *a = &args->forward;
    int64_t chunks = cpu_chunks(a->tokens, ROPE_TOKENS);
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t c = 0; c < chunks; c++) backward_chunk(args, c);
    int64_t floats = chunk_floats(a), q_width = weight_width(a, false),
            k_width = weight_width(a, true);
    if (q_width) add_parts(args->workspace, chunks, floats, q_width, args->dq_norm, args->store);
    if (k_width)
        add_parts(args->workspace + q_width, chunks, floats, k_width, args->dk_norm, args->store);
    record_end(device->lane, RECORD_KERNEL, "rope gradient", -1, begin);
}

static uint64_t rope_backward_workspace_bytes(struct device *device,
                                              const struct device_rope *shape) {
    (void)device;
    return (uint64_t)(cpu_chunks(shape->tokens, ROPE_TOKENS) * chunk_floats(shape)) * sizeof(float);
}

void ISA(rope_fill)(struct device *device) {
    device->rope_forward = rope_forward;
    device->rope_backward = rope_backward;
    device->rope_backward_workspace_bytes = rope_backward_workspace_bytes;
}
