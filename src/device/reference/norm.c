// Norms, rotation and activations as loops.
#include "device/reference/reference.h"
#include <math.h>
#include <string.h>

// y = xhat weight + bias with xhat = (x - mean) rstd over one row
static void row_statistics(const double *x, int64_t width, bool centred, double eps, double *mean,
                           double *rstd) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; i++) sum += x[i];
    *mean = centred ? sum / (double)width : 0;
    for (int64_t i = 0; i < width; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1 / sqrt(squares / (double)width + eps);
}

static void norm_row(const double *x, int64_t width, bool centred, double eps, const double *weight,
                     const double *bias, double *y) {
    double mean, rstd;
    row_statistics(x, width, centred, eps, &mean, &rstd);
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) * rstd * weight[i] + (bias ? bias[i] : 0);
}

// dweight and dbias are added to.
static void norm_row_backward(const double *x, int64_t width, bool centred, double eps,
                              const double *weight, const double *dy, double *dx, double *dweight,
                              double *dbias) {
    double mean, rstd, sum = 0, product = 0;
    row_statistics(x, width, centred, eps, &mean, &rstd);
    for (int64_t i = 0; i < width; i++) {
        double xhat = (x[i] - mean) * rstd;
        sum += dy[i] * weight[i];
        product += dy[i] * weight[i] * xhat;
        dweight[i] += dy[i] * xhat;
        if (dbias) dbias[i] += dy[i];
    }
    for (int64_t i = 0; i < width; i++) {
        double xhat = (x[i] - mean) * rstd;
        dx[i] = rstd * (dy[i] * weight[i] - (centred ? sum / (double)width : 0) -
                        xhat * product / (double)width);
    }
}

void reference_norm_forward(const struct reference_norm *a, double *y) {
    for (int64_t t = 0; t < a->tokens; t++) {
        norm_row(a->x + t * a->width, a->width, a->centred, a->eps, a->weight, a->bias,
                 y + t * a->width);
    }
}

void reference_norm_backward(const struct reference_norm *a, const double *dy, double *dx,
                             double *dweight, double *dbias) {
    memset(dweight, 0, (size_t)a->width * sizeof(double));
    if (dbias) memset(dbias, 0, (size_t)a->width * sizeof(double));
    for (int64_t t = 0; t < a->tokens; t++) {
        norm_row_backward(a->x + t * a->width, a->width, a->centred, a->eps, a->weight,
                          dy + t * a->width, dx + t * a->width, dweight, dbias);
    }
}

// ---- rotation ---------------------------------------------------------------------------------

struct segment { // the queries or the keys within a row
    int heads;
    int64_t offset;
    const double *weight;
};

static struct segment segment_of(const struct reference_rope *a, int which) {
    return which ? (struct segment){a->kv_heads, (int64_t)a->heads * a->head_dim, a->k_norm}
                 : (struct segment){a->heads, 0, a->q_norm};
}

// (a, b) -> (a c - b s, b c + a s); `direction` -1 turns back.
static void turn(const struct reference_rope *a, int64_t t, double *head, double direction) {
    int half = a->head_dim / 2;
    if (!a->cosine) return;
    for (int i = 0; i < half; i++) {
        double c = a->cosine[a->position[t] * half + i],
               s = direction * a->sine[a->position[t] * half + i];
        double x = head[i], y = head[i + half];
        head[i] = x * c - y * s;
        head[i + half] = y * c + x * s;
    }
}

void reference_rope_forward(const struct reference_rope *a, double *out) {
    int64_t row = ((int64_t)a->heads + 2 * a->kv_heads) * a->head_dim;
    memcpy(out, a->qkv, (size_t)(a->tokens * row) * sizeof(double));
    for (int64_t t = 0; t < a->tokens; t++) {
        for (int which = 0; which < 2; which++) {
            struct segment s = segment_of(a, which);
            double *x = out + t * row + s.offset;
            int64_t width = a->norm_over_all_heads ? (int64_t)s.heads * a->head_dim : a->head_dim;
            for (int64_t i = 0; s.weight && i < (int64_t)s.heads * a->head_dim; i += width) {
                norm_row(x + i, width, false, a->eps, s.weight, NULL, x + i);
            }
            for (int h = 0; h < s.heads; h++) turn(a, t, x + (int64_t)h * a->head_dim, 1);
        }
    }
}

void reference_rope_backward(const struct reference_rope *a, const double *dout, double *dqkv,
                             double *dq_norm, double *dk_norm) {
    int64_t row = ((int64_t)a->heads + 2 * a->kv_heads) * a->head_dim;
    memcpy(dqkv, dout, (size_t)(a->tokens * row) * sizeof(double));
    for (int which = 0; which < 2; which++) {
        struct segment s = segment_of(a, which);
        double *dweight = which ? dk_norm : dq_norm;
        int64_t width = a->norm_over_all_heads ? (int64_t)s.heads * a->head_dim : a->head_dim;
        if (s.weight) memset(dweight, 0, (size_t)width * sizeof(double));
        for (int64_t t = 0; t < a->tokens; t++) {
            double *d = dqkv + t * row + s.offset;
            const double *x = a->qkv + t * row + s.offset;
            for (int h = 0; h < s.heads; h++) turn(a, t, d + (int64_t)h * a->head_dim, -1);
            for (int64_t i = 0; s.weight && i < (int64_t)s.heads * a->head_dim; i += width) {
                norm_row_backward(x + i, width, false, a->eps, s.weight, d + i, d + i, dweight,
                                  NULL);
            }
        }
    }
}

// ---- activations ------------------------------------------------------------------------------

void reference_swiglu_forward(int64_t tokens, int64_t ffn, const double *gate_up, double *out) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < ffn; i++) {
            double gate = gate_up[t * 2 * ffn + i], up = gate_up[t * 2 * ffn + ffn + i];
            out[t * ffn + i] = gate / (1 + exp(-gate)) * up;
        }
    }
}

void reference_swiglu_backward(int64_t tokens, int64_t ffn, const double *gate_up,
                               const double *dout, double *dgate_up) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < ffn; i++) {
            double gate = gate_up[t * 2 * ffn + i], up = gate_up[t * 2 * ffn + ffn + i],
                   d = dout[t * ffn + i];
            double s = 1 / (1 + exp(-gate));
            dgate_up[t * 2 * ffn + i] = d * up * (s + gate * s * (1 - s));
            dgate_up[t * 2 * ffn + ffn + i] = d * gate * s;
        }
    }
}

static const double root_two_over_pi = 0.79788456080286535588;

void reference_gelu_forward(int64_t count, const double *x, double *out) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = 0.5 * x[i] * (1 + tanh(root_two_over_pi * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
}

void reference_gelu_backward(int64_t count, const double *x, const double *dout, double *dx) {
    for (int64_t i = 0; i < count; i++) {
        double v = x[i], th = tanh(root_two_over_pi * (v + 0.044715 * v * v * v));
        double slope = root_two_over_pi * (1 + 3 * 0.044715 * v * v);
        dx[i] = dout[i] * (0.5 * (1 + th) + 0.5 * v * (1 - th * th) * slope);
    }
}
