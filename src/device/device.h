// The only door to kernels. A device owns a compute stream; every operation below is queued on it
// in order (on the CPU it has run when the call returns). A backend fills the function pointers;
// the engine and the generator call them.
//
// Conventions
// - Matrices are row-major; `stride` is the distance of rows in elements.
// - Activations have the run's compute type `type`: DTYPE_BF16 or DTYPE_F32. Statistics, gradients
// of parameters, moments and masters are
//   FP32. Sums are FP32 inside a row; sums over tokens run in chunks of DEVICE_TOKEN_CHUNK tokens
//   from token 0 of the micro-batch, chunks added in order, so that no bit depends on the number of
//   threads.
// - `store` true: the first write of a gradient buffer in a step (overwrites); false: adds.
// - A norm or product never sees the unrounded value of something that is stored: it reads what is
// stored.
// - Operations cannot fail after the device was opened and the workspace set: shapes are checked
// when the plan is made.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "base/record.h"
#include "device/experts.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_TOKEN_CHUNK = 512, DEVICE_NORM_BLOCK = 4096 };

// A weight matrix [n, k] (n outputs, k inputs) as a product uses it. `packed_*` are copies in the
// backend's own layout (NULL: the plain matrix is read). They are buffers of the memory plan.
struct device_weight {
    int64_t n, k;
    enum dtype type;
    const void *plain;     // [n, k]
    void *packed_forward;  // for y = x w^T
    void *packed_backward; // for dx = dy w
};

struct device_norm { // LayerNorm when `bias` or `mean` is given, else RMSNorm: x rsqrt(mean(x^2) +
                     // eps) w
    enum dtype type;
    int64_t tokens, width;
    bool centred; // LayerNorm
    double eps;
    const void *x;     // [tokens, width]
    const void *delta; // or NULL: x + delta is rounded, stored in `residual`, and normalised
    void *residual;    // [tokens, width], may be x; used with delta only
    void *y;           // [tokens, width]
    const float *weight, *bias; // [width]; bias may be NULL
    float *rstd, *mean;         // [tokens]; mean for LayerNorm only. NULL: not wanted
};

struct device_norm_backward {
    enum dtype type;
    int64_t tokens, width;
    bool centred;
    const void *x;  // what was normalised (the stored residual)
    const void *dy; // [tokens, width]
    const float *weight, *rstd, *mean;
    const void
        *dx_add; // or NULL: gradient of the residual stream that passes by, added to the result
    void *dx;    // [tokens, width], may be dx_add or dy
    float *dweight, *dbias; // FP32 [width]; dbias may be NULL
    bool store;
    float *workspace; // norm_backward_workspace_bytes
};

struct device_rope { // optional norm of q and k, then rotation of half-split pairs (i, i + head_dim
                     // / 2)
    enum dtype type;
    int64_t tokens;
    int heads, kv_heads, head_dim;
    const void *qkv_in;           // [tokens, (heads + 2 kv_heads) head_dim]
    void *qkv_out;                // the same shape; may be qkv_in; v is copied when they differ
    const int32_t *position;      // [tokens]
    const float *cosine, *sine;   // [positions, head_dim / 2]; NULL: no rotation
    const float *q_norm, *k_norm; // weights or NULL
    bool norm_over_all_heads;
    double eps;
    float *q_rstd, *k_rstd; // [tokens, heads] and [tokens, kv_heads]; over all heads: [tokens].
                            // Written when normalised
};

struct device_rope_backward {
    struct device_rope
        forward; // as given forward; qkv_in holds the values before norm (needed with norm only)
    const void *dqkv_in;      // gradient of qkv_out
    void *dqkv_out;           // gradient of qkv_in; may be dqkv_in
    float *dq_norm, *dk_norm; // FP32, with norm only
    bool store;
    float *workspace; // rope_backward_workspace_bytes
};

struct device_attention { // softmax(scale q k^T) v over the keys [attend_from[i], attend_to[i]) of
                          // query i
    enum dtype type;
    int64_t queries, keys;
    int heads, kv_heads, head_dim;
    double scale;
    int32_t window;        // 0: none; else query i (whose own key is attend_to[i] - 1) sees at most
                           // `window` keys up to its own
    const void *q, *k, *v; // row strides below; heads lie side by side in a row
    int64_t q_stride, kv_stride;
    const int32_t *attend_from, *attend_to; // [queries], both non-decreasing
    void *out;                              // [queries, heads head_dim], stride out_stride
    int64_t out_stride;
    bool out_f32; // forward: `out` is FP32 whatever the type, a part that attention_merge takes
    float *lse; // [heads, queries] natural log of the sum of exponentials (minus infinity: sees no
                // key); NULL: not wanted
    void *workspace;
};

struct device_attention_backward {
    struct device_attention forward; // out and lse filled
    const void *dout;                // stride out_stride
    void *dq, *dk, *dv;              // strides dq_stride and kv_stride; overwritten
    int64_t dq_stride;               // 0: q_stride
    bool gradients_f32;              // dq, dk and dv are FP32 whatever the type, to be added up
    void *workspace;
};

// Dropout of a residual or an embedding: out = x / (1 - rate) or 0; the gradient is the same
// operation on dout with the same key. Whether an element stays is a function of the key (made of
// seed, step, layer and place) and its index in the whole model alone, (global row) width + column,
// so it does not depend on the layout. Attention probabilities have no dropout.
struct device_dropout {
    enum dtype type;
    int64_t rows, width;
    uint64_t key;
    int64_t first_row;  // global row of local row i: first_row + (row ? row[i] : i)
    const int32_t *row; // or NULL
    double rate;        // 0 <= rate < 1
    const void *x;      // [rows, width]
    void *out;          // may be x
};

// Attention over keys in several blocks: `out` and `lse` of some blocks become those of these and
// one more. All FP32, dense. lse' = log(e^lse + e^part_lse), out' = out e^(lse - lse') + part
// e^(part_lse - lse'); where one side sees no key the other one stands.
struct device_attention_merge {
    int64_t queries;
    int heads, head_dim;
    float *out, *lse; // [queries, heads head_dim] and [heads, queries]
    const float *part, *part_lse;
};

// Checksums of a block of DEVICE_NORM_BLOCK elements: sums of their 32-bit words modulo 2^64, so
// that any single flipped bit changes them; the same on every instruction set.
struct device_seal {
    uint64_t master, moment1, moment2;
    uint64_t apart; // of a seal taken before an update: not 0 where a weight was not round(master)
};

struct device_adamw { // Loshchilov & Hutter 2019; one pass over `count` elements
    int64_t count;
    float *master, *moment1, *moment2; // FP32
    const float *gradient;             // FP32
    bf16 *weight;                      // round(master), or NULL in FP32 mode
    double learning_rate, beta1, beta2, eps, decay;
    double gradient_scale; // clip coefficient
    int64_t step;          // from 1, for the bias corrections
    // Both or none: seals of the blocks as they were read and as they were written.
    struct device_seal *before, *after;
};

struct device {
    const char *name;         // "cpu avx512-bf16, 2 threads"
    struct record_lane *lane; // may be NULL
    int threads;
    void *state; // the backend's own
    // What an operation met that cannot happen after preparation (the library refuses a prepared
    // product). The first one is kept; results after it mean nothing. Whoever runs a step looks
    // here before it uses them.
    struct err failure;

    void (*close)(struct device *device);

    // ---- products. x [tokens, k], y and dy [tokens, n]; x, y, dx, dy are dense with the given
    // strides. Bytes of one packed copy (0: this backend does not gain by packing) and making it.
    // `backward` chooses the use.
    uint64_t (*pack_bytes)(struct device *device, const struct device_weight *weight,
                           bool backward);
    void (*pack)(struct device *device, const struct device_weight *weight, bool backward);
    // Prepares products of this shape, so that no step creates anything; returns the workspace that
    // it needs. Kinds: 'f' forward, 'i' input gradient, 'w' weight gradient. -1 with a message when
    // the shape is refused. x_stride is that of x and dx, y_stride that of y and dy. Of `packed_*`
    // only NULL or not NULL matters here.
    int (*prepare_linear)(struct device *device, const struct device_weight *weight, char kind,
                          int64_t tokens, int64_t x_stride, int64_t y_stride, enum dtype out_type,
                          uint64_t *workspace_bytes, struct err *err);
    // y = x w^T + bias; y has type `y_type` (compute type, or F32 for logits). bias F32 [n] or
    // NULL.
    void (*linear_forward)(struct device *device, const struct device_weight *weight,
                           int64_t tokens, const void *x, int64_t x_stride, const float *bias,
                           void *y, int64_t y_stride, enum dtype y_type);
    // dx = dy w
    void (*linear_backward_input)(struct device *device, const struct device_weight *weight,
                                  int64_t tokens, const void *dy, int64_t dy_stride, void *dx,
                                  int64_t dx_stride);
    // dw (+)= dy^T x, FP32 [n, k], in chunks of DEVICE_TOKEN_CHUNK tokens
    void (*linear_backward_weight)(struct device *device, const struct device_weight *weight,
                                   int64_t tokens, const void *dy, int64_t dy_stride, const void *x,
                                   int64_t x_stride, float *dw, bool store);
    // db (+)= column sums of dy, FP32 [n]
    void (*bias_backward)(struct device *device, enum dtype type, int64_t tokens, int64_t n,
                          const void *dy, int64_t dy_stride, float *db, bool store,
                          float *workspace);
    uint64_t (*bias_backward_workspace_bytes)(struct device *device, int64_t tokens, int64_t n);

    // ---- fused kernels
    void (*norm_forward)(struct device *device, const struct device_norm *args);
    void (*norm_backward)(struct device *device, const struct device_norm_backward *args);
    uint64_t (*norm_backward_workspace_bytes)(struct device *device, int64_t tokens, int64_t width);
    void (*rope_forward)(struct device *device, const struct device_rope *args);
    void (*rope_backward)(struct device *device, const struct device_rope_backward *args);
    uint64_t (*rope_backward_workspace_bytes)(struct device *device,
                                              const struct device_rope *shape);
    void (*attention_forward)(struct device *device, const struct device_attention *args);
    void (*attention_backward)(struct device *device, const struct device_attention_backward *args);
    uint64_t (*attention_workspace_bytes)(struct device *device,
                                          const struct device_attention *shape, bool backward);
    void (*attention_merge)(struct device *device, const struct device_attention_merge *args);
    // out [tokens, ffn] = silu(gate) * up of gate_up [tokens, 2 ffn] (gate first)
    void (*swiglu_forward)(struct device *device, enum dtype type, int64_t tokens, int64_t ffn,
                           const void *gate_up, void *out);
    // dgate_up from dout; `out` when not NULL is redone in the same pass (recomputation). dgate_up
    // may be gate_up.
    void (*swiglu_backward)(struct device *device, enum dtype type, int64_t tokens, int64_t ffn,
                            const void *gate_up, const void *dout, void *dgate_up, void *out);
    // tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); count elements. dx may be x or
    // dout.
    void (*gelu_forward)(struct device *device, enum dtype type, int64_t count, const void *x,
                         void *out);
    void (*gelu_backward)(struct device *device, enum dtype type, int64_t count, const void *x,
                          const void *dout, void *dx, void *out);
    void (*add)(struct device *device, enum dtype type, int64_t count, const void *a, const void *b,
                void *out);

    // out [tokens, width] = table[id] (+ positions[position]); tables have the compute type. An id
    // below 0 is a row that another rank holds: zeros in its place, and no gradient.
    void (*embedding_forward)(struct device *device, enum dtype type, int64_t tokens, int64_t width,
                              const void *table, const void *positions, const int32_t *id,
                              const int32_t *position, void *out);
    // dtable[id] += dout, in token order, FP32. `store`: rows not touched become zero first (`rows`
    // of them).
    void (*embedding_backward)(struct device *device, enum dtype type, int64_t tokens,
                               int64_t width, int64_t rows, const void *dout, const int32_t *id,
                               float *dtable, bool store);
    // Softmax cross-entropy of `tokens` rows of FP32 logits [tokens, stride], of which `vocab`
    // columns count. loss[i] = log sum exp - logit[target], 0 where target is -1. dlogits (compute
    // type, same stride, may overlay logits; NULL: not wanted) = scale (softmax - onehot), zero in
    // padding and where target is -1.
    void (*cross_entropy)(struct device *device, enum dtype type, int64_t tokens, int64_t vocab,
                          int64_t stride, const float *logits, const int32_t *target, float scale,
                          float *loss, void *dlogits);

    // Cross-entropy with the vocabulary in parts on several ranks. `vocab` columns (0 is allowed)
    // of logits are here, target_local is the target's column here or -1. First the statistics of
    // the own part, out [tokens][3]: maximum (minus infinity for no columns), sum of exp(x -
    // maximum), logit of the target (or 0).
    void (*cross_entropy_statistics)(struct device *device, int64_t tokens, int64_t vocab,
                                     int64_t stride, const float *logits,
                                     const int32_t *target_local, float *out);
    // Then loss and the own part of dlogits as cross_entropy gives them, from everybody's
    // statistics [ranks][tokens][3], combined in rank order. `counted` [tokens] is the target in
    // the whole vocabulary, -1: not counted. With one rank the bits are those of cross_entropy.
    void (*cross_entropy_finish)(struct device *device, enum dtype type, int64_t tokens,
                                 int64_t vocab, int64_t stride, const float *logits,
                                 const int32_t *target_local, const int32_t *counted,
                                 const float *statistics, int ranks, float scale, float *loss,
                                 void *dlogits);
    void (*dropout)(struct device *device, const struct device_dropout *args);

    struct device_experts experts; // ---- mixtures of experts

    // ---- optimizer
    void (*adamw)(struct device *device, const struct device_adamw *args);
    // sums[b] = sum of squares, in double, of elements [4096 b, 4096 (b + 1)) of `values`
    // words[b], if wanted, = the sum of their 32-bit words, as in struct device_seal
    void (*square_sums)(struct device *device, int64_t count, const float *values, double *sums,
                        uint64_t *words);
    // sums[b] = sum of the words of elements [4096 b, 4096 (b + 1)) of `values`, of type F32 or
    // BF16; a BF16 value counts as the FP32 word that it widens to.
    void (*word_sums)(struct device *device, int64_t count, const void *values, enum dtype type,
                      uint64_t *sums);
    void (*convert)(struct device *device, int64_t count, const void *from, enum dtype from_type,
                    void *to, enum dtype to_type);
    // The same for the first `columns` of rows that lie `stride` elements apart.
    void (*convert_rows)(struct device *device, int64_t rows, int64_t columns, const void *from,
                         enum dtype from_type, int64_t from_stride, void *to, enum dtype to_type,
                         int64_t to_stride);

    // ---- workspace of the products, given once after planning
    void (*set_workspace)(struct device *device, void *memory, uint64_t bytes);
};

// 0, or -1 with the message of the operation that failed.
static inline int device_check(const struct device *device, struct err *err) {
    return device->failure.kind == ERR_NONE
               ? 0
               : err_set(err, device->failure.kind, "%s", device->failure.text);
}

enum device_isa { DEVICE_ISA_BEST, DEVICE_ISA_PORTABLE, DEVICE_ISA_AVX2, DEVICE_ISA_AVX512 };

struct device_cpu_options {
    int threads;           // 0: all that the process may use
    enum device_isa limit; // highest instruction set to use
    struct record_lane *lane;
};
// Opens the CPU backend. An ISA that this machine lacks is refused with a message.
int device_cpu_open(struct device *device, const struct device_cpu_options *options,
                    struct err *err);
// Products that a step had to make because prepare_linear had not been told of their shape (0 after
// a good plan).
int device_cpu_late_products(struct device *device);

// A device that exists on paper: it answers what a plan asks, the sizes, and can do nothing else
// (all operations are NULL). Plans of machines that are not here.
struct device_described_options {
    uint64_t products_bytes; // workspace that its library of products holds
    int units;               // processors that add up gradients of vectors apart
};
// `options` are kept, not copied.
void device_described(struct device *device, const struct device_described_options *options);

// Best GEMM rate in FLOP/s: pre-packed 4096x768x3072 and 4096x3072x768 of type bf16 or f32,
// `seconds` each; the larger.
double device_gemm_rate(struct device *device, enum dtype type, double seconds);
