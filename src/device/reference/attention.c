// Attention with one row of scores at a time.
#include "device/reference/reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void interval(const struct reference_attention *a, int64_t query, int64_t *from,
                     int64_t *to) {
    *from = a->from[query];
    *to = a->to[query];
    if (a->window > 0 && *to - *from > a->window) *from = *to - a->window;
}

static double dot(const double *x, const double *y, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

// p[j] = softmax of scale q k_j over the interval; returns the log of the sum of exponentials.
static double probabilities(const struct reference_attention *a, int64_t query, int head,
                            double *p) {
    int64_t from, to, kv_width = (int64_t)a->kv_heads * a->head_dim;
    int kv_head = head / (a->heads / a->kv_heads);
    const double *q = a->q + (query * a->heads + head) * a->head_dim;
    double max = -INFINITY, sum = 0;
    interval(a, query, &from, &to);
    for (int64_t j = from; j < to; j++) {
        p[j] = a->scale * dot(q, a->k + j * kv_width + (int64_t)kv_head * a->head_dim, a->head_dim);
        max = fmax(max, p[j]);
    }
    for (int64_t j = from; j < to; j++) sum += exp(p[j] - max);
    for (int64_t j = from; j < to; j++) p[j] = exp(p[j] - max) / sum;
    return from < to ? max + log(sum) : -INFINITY;
}

void reference_attention_forward(const struct reference_attention *a, double *out, double *lse) {
    double *p = malloc((size_t)(a->keys + 1) * sizeof *p);
    if (!p) { // NaN, which no comparison takes for equal
        out[0] = NAN;
        return;
    }
    int64_t kv_width = (int64_t)a->kv_heads * a->head_dim;
    memset(out, 0, (size_t)(a->queries * a->heads * a->head_dim) * sizeof(double));
    for (int64_t i = 0; i < a->queries; i++) {
        for (int h = 0; h < a->heads; h++) {
            int64_t from, to, kv_head = h / (a->heads / a->kv_heads);
            double log_sum = probabilities(a, i, h, p), *o = out + (i * a->heads + h) * a->head_dim;
            if (lse) lse[h * a->queries + i] = log_sum;
            interval(a, i, &from, &to);
            for (int64_t j = from; j < to; j++) {
                for (int d = 0; d < a->head_dim; d++)
                    o[d] += p[j] * a->v[j * kv_width + kv_head * a->head_dim + d];
            }
        }
    }
    free(p);
}

// With P the probabilities: dV = P^T dO, dP = dO V^T, dS = P (dP - sum_j P dP), dQ = scale dS K, dK
// = scale dS^T Q.
static void backward_row(const struct reference_attention *a, int64_t i, int h, const double *dout,
                         double *p, double *dp, double *dq, double *dk, double *dv) {
    int64_t from, to, kv_width = (int64_t)a->kv_heads * a->head_dim;
    int64_t column = (int64_t)(h / (a->heads / a->kv_heads)) * a->head_dim;
    int64_t at = (i * a->heads + h) * a->head_dim;
    double mean = 0;
    probabilities(a, i, h, p);
    interval(a, i, &from, &to);
    for (int64_t j = from; j < to; j++) {
        dp[j] = dot(dout + at, a->v + j * kv_width + column, a->head_dim);
        mean += p[j] * dp[j];
    }
    for (int64_t j = from; j < to; j++) {
        double ds = a->scale * p[j] * (dp[j] - mean);
        for (int d = 0; d < a->head_dim; d++) {
            dv[j * kv_width + column + d] += p[j] * dout[at + d];
            dq[at + d] += ds * a->k[j * kv_width + column + d];
            dk[j * kv_width + column + d] += ds * a->q[at + d];
        }
    }
}

void reference_attention_backward(const struct reference_attention *a, const double *dout,
                                  double *dq, double *dk, double *dv) {
    double *p = malloc((size_t)(a->keys + 1) * 2 * sizeof *p);
    if (!p) {
        dq[0] = dk[0] = dv[0] = NAN;
        return;
    }
    size_t kv_bytes = (size_t)(a->keys * a->kv_heads * a->head_dim) * sizeof(double);
    memset(dq, 0, (size_t)(a->queries * a->heads * a->head_dim) * sizeof(double));
    memset(dk, 0, kv_bytes);
    memset(dv, 0, kv_bytes);
    for (int64_t i = 0; i < a->queries; i++) {
        for (int h = 0; h < a->heads; h++) backward_row(a, i, h, dout, p, p + a->keys, dq, dk, dv);
    }
    free(p);
}
