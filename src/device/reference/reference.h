// What every kernel computes, written down as plainly as possible, in double and without thought of
// speed. Tests hold the kernels of every backend to these functions, and these functions to finite
// differences. Matrices are dense and row-major. Gradients overwrite. Formulas: device.h and the
// comments in the bodies.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// y [tokens, n] = x [tokens, k] w[n, k]^T + bias (or NULL)
void reference_linear_forward(int64_t tokens, int64_t n, int64_t k, const double *x,
                              const double *w, const double *bias, double *y);
void reference_linear_backward(int64_t tokens, int64_t n, int64_t k, const double *dy,
                               const double *x, const double *w, double *dx, double *dw,
                               double *dbias);

struct reference_norm {
    int64_t tokens, width;
    bool centred; // LayerNorm, else RMSNorm
    double eps;   // inside the root
    const double *x, *weight, *bias;
};
void reference_norm_forward(const struct reference_norm *args, double *y);
void reference_norm_backward(const struct reference_norm *args, const double *dy, double *dx,
                             double *dweight, double *dbias);

struct reference_rope {
    int64_t tokens;
    int heads, kv_heads, head_dim;
    const double *qkv; // [tokens, (heads + 2 kv_heads) head_dim]
    const int32_t *position;
    const double *cosine, *sine;   // [positions, head_dim / 2]; NULL: no rotation
    const double *q_norm, *k_norm; // NULL: no norm
    bool norm_over_all_heads;
    double eps;
};
void reference_rope_forward(const struct reference_rope *args, double *out);
void reference_rope_backward(const struct reference_rope *args, const double *dout, double *dqkv,
                             double *dq_norm, double *dk_norm);

// Keys [from[i], to[i]) of query i, of them the last `window` when window > 0.
struct reference_attention {
    int64_t queries, keys;
    int heads, kv_heads, head_dim;
    double scale;
    int32_t window;
    const double *q;     // [queries, heads head_dim]
    const double *k, *v; // [keys, kv_heads head_dim]
    const int32_t *from, *to;
};
// out [queries, heads head_dim], lse [heads, queries] (minus infinity and zeros where a query sees
// no key)
void reference_attention_forward(const struct reference_attention *args, double *out, double *lse);
void reference_attention_backward(const struct reference_attention *args, const double *dout,
                                  double *dq, double *dk, double *dv);

// out and lse of some keys and `part` of others become those of all, see device.h.
void reference_attention_merge(int64_t queries, int heads, int head_dim, double *out, double *lse,
                               const double *part, const double *part_lse);

void reference_swiglu_forward(int64_t tokens, int64_t ffn, const double *gate_up, double *out);
void reference_swiglu_backward(int64_t tokens, int64_t ffn, const double *gate_up,
                               const double *dout, double *dgate_up);
void reference_gelu_forward(int64_t count, const double *x, double *out);
void reference_gelu_backward(int64_t count, const double *x, const double *dout, double *dx);

// positions (or NULL): [*, width], row position[t] added; id < 0: zeros, and no gradient
void reference_embedding_forward(int64_t tokens, int64_t width, const double *table,
                                 const double *positions, const int32_t *id,
                                 const int32_t *position, double *out);
void reference_embedding_backward(int64_t tokens, int64_t width, int64_t rows, const double *dout,
                                  const int32_t *id, double *dtable);

// Rows of logits [tokens, stride], `vocab` columns count; target -1: no loss, no gradient.
void reference_cross_entropy(int64_t tokens, int64_t vocab, int64_t stride, const double *logits,
                             const int32_t *target, double scale, double *loss, double *dlogits);

// Statistics [tokens][3] of `vocab` columns, and loss and gradient from those of all ranks, see
// device.h.
void reference_cross_entropy_statistics(int64_t tokens, int64_t vocab, int64_t stride,
                                        const double *logits, const int32_t *target_local,
                                        double *out);
void reference_cross_entropy_finish(int64_t tokens, int64_t vocab, int64_t stride,
                                    const double *logits, const int32_t *target_local,
                                    const int32_t *counted, const double *statistics, int ranks,
                                    double scale, double *loss, double *dlogits);

// Element i of row r (global rows from first_row, or first_row + row[r]) stays when word e % 4 of
// block e / 4 of the key's random words is at least rate 2^32, e = global row x width + i.
void reference_dropout(int64_t rows, int64_t width, uint64_t key, int64_t first_row,
                       const int32_t *row, double rate, const double *x, double *out);

struct reference_adamw {
    double learning_rate, beta1, beta2, eps, decay, gradient_scale;
    int64_t step; // from 1
};
void reference_adamw(const struct reference_adamw *args, int64_t count, double *master,
                     double *moment1, double *moment2, const double *gradient);
