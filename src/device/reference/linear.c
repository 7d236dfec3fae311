// Matrix products, look-ups and the optimizer as loops.
#include "device/reference/reference.h"
#include <math.h>
#include <string.h>

void reference_linear_forward(int64_t tokens, int64_t n, int64_t k, const double *x,
                              const double *w, const double *bias, double *y) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = bias ? bias[j] : 0;
            for (int64_t i = 0; i < k; i++) sum += x[t * k + i] * w[j * k + i];
            y[t * n + j] = sum;
        }
    }
}

void reference_linear_backward(int64_t tokens, int64_t n, int64_t k, const double *dy,
                               const double *x, const double *w, double *dx, double *dw,
                               double *dbias) {
    memset(dx, 0, (size_t)(tokens * k) * sizeof(double));
    memset(dw, 0, (size_t)(n * k) * sizeof(double));
    memset(dbias, 0, (size_t)n * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t j = 0; j < n; j++) {
            double d = dy[t * n + j];
            dbias[j] += d;
            for (int64_t i = 0; i < k; i++) {
                dx[t * k + i] += d * w[j * k + i];
                dw[j * k + i] += d * x[t * k + i];
            }
        }
    }
}

void reference_embedding_forward(int64_t tokens, int64_t width, const double *table,
                                 const double *positions, const int32_t *id,
                                 const int32_t *position, double *out) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < width; i++) {
            out[t * width + i] = (id[t] < 0 ? 0 : table[id[t] * width + i]) +
                                 (positions ? positions[position[t] * width + i] : 0);
        }
    }
}

void reference_embedding_backward(int64_t tokens, int64_t width, int64_t rows, const double *dout,
                                  const int32_t *id, double *dtable) {
    memset(dtable, 0, (size_t)(rows * width) * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        if (id[t] < 0) continue;
        for (int64_t i = 0; i < width; i++) dtable[id[t] * width + i] += dout[t * width + i];
    }
}

void reference_cross_entropy(int64_t tokens, int64_t vocab, int64_t stride, const double *logits,
                             const int32_t *target, double scale, double *loss, double *dlogits) {
    memset(dlogits, 0, (size_t)(tokens * stride) * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        loss[t] = 0;
        if (target[t] < 0) continue;
        const double *x = logits + t * stride;
        double max = x[0], sum = 0;
        for (int64_t i = 1; i < vocab; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < vocab; i++) sum += exp(x[i] - max);
        loss[t] = log(sum) + max - x[target[t]];
        for (int64_t i = 0; i < vocab; i++) {
            dlogits[t * stride + i] = scale * (exp(x[i] - max) / sum - (i == target[t] ? 1 : 0));
        }
    }
}

void reference_adamw(const struct reference_adamw *a, int64_t count, double *master,
                     double *moment1, double *moment2, const double *gradient) {
    for (int64_t i = 0; i < count; i++) {
        double g = gradient[i] * a->gradient_scale;
        moment1[i] = a->beta1 * moment1[i] + (1 - a->beta1) * g;
        moment2[i] = a->beta2 * moment2[i] + (1 - a->beta2) * g * g;
        double m = moment1[i] / (1 - pow(a->beta1, (double)a->step));
        double v = moment2[i] / (1 - pow(a->beta2, (double)a->step));
        master[i] -= a->learning_rate * a->decay * master[i];
        master[i] -= a->learning_rate * m / (sqrt(v) + a->eps);
    }
}
