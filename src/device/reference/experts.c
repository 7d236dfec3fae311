// Mixtures of experts in double; see reference.h.
#include "device/reference/experts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void softmax(int experts, const double *logits, double *score, double *lse) {
    double most = logits[0];
    for (int i = 1; i < experts; i++) most = fmax(most, logits[i]);
    double sum = score[0] = exp(logits[0] - most);
    for (int i = 1; i < experts; i++) sum += score[i] = exp(logits[i] - most);
    for (int i = 0; i < experts; i++) score[i] /= sum;
    *lse = most + log(sum);
}

void reference_route(const struct reference_route *a, int32_t *expert, double *weight,
                     double *score, double *lse) {
    for (int64_t t = 0; t < a->tokens; t++) {
        double *s = score + t * a->experts, *w = weight + t * a->top_k, sum = 0;
        softmax(a->experts, a->logits + t * a->experts, s, &lse[t]);
        for (int k = 0; k < a->top_k; k++) {
            int best = -1;
            for (int i = 0; i < a->experts; i++) {
                bool taken = false;
                for (int j = 0; j < k; j++) taken = taken || expert[t * a->top_k + j] == i;
                double value = s[i] + (a->bias ? a->bias[i] : 0);
                if (!taken && (best < 0 || value > s[best] + (a->bias ? a->bias[best] : 0)))
                    best = i;
            }
            expert[t * a->top_k + k] = best;
            sum += w[k] = s[best];
        }
        for (int k = 0; k < a->top_k && a->normalise; k++) w[k] /= sum;
    }
}

double reference_route_loss(const struct reference_route *a, const int32_t *expert,
                            const double *dweight, const double *aux, const int32_t *group,
                            double z_scale) {
    double sum = 0, *score = calloc((size_t)a->experts, sizeof *score);
    for (int64_t t = 0; t < a->tokens; t++) {
        double lse, chosen = 1;
        softmax(a->experts, a->logits + t * a->experts, score, &lse);
        const int32_t *e = expert + t * a->top_k;
        if (a->normalise) chosen = 0;
        for (int k = 0; k < a->top_k && a->normalise; k++) chosen += score[e[k]];
        for (int k = 0; k < a->top_k; k++) sum += dweight[t * a->top_k + k] * score[e[k]] / chosen;
        for (int i = 0; i < a->experts; i++) sum += aux[group[t] * a->experts + i] * score[i];
        sum += z_scale * lse * lse;
    }
    free(score);
    return sum;
}

void reference_route_backward(const struct reference_route *a, const int32_t *expert,
                              const double *dweight, const double *aux, const int32_t *group,
                              double z_scale, double *dlogits) {
    double *score = calloc((size_t)a->experts * 2, sizeof *score), *dscore = score + a->experts;
    for (int64_t t = 0; t < a->tokens; t++) {
        double lse, chosen = 0, through = 0;
        softmax(a->experts, a->logits + t * a->experts, score, &lse);
        const int32_t *e = expert + t * a->top_k;
        for (int i = 0; i < a->experts; i++) dscore[i] = aux[group[t] * a->experts + i];
        for (int k = 0; k < a->top_k; k++) chosen += score[e[k]];
        for (int k = 0; k < a->top_k; k++)
            through += dweight[t * a->top_k + k] * score[e[k]] / (chosen * chosen);
        for (int k = 0; k < a->top_k; k++) {
            double dw = dweight[t * a->top_k + k];
            dscore[e[k]] += a->normalise ? dw / chosen - through : dw;
        }
        double mean = 0;
        for (int i = 0; i < a->experts; i++) mean += score[i] * dscore[i];
        for (int i = 0; i < a->experts; i++)
            dlogits[t * a->experts + i] = score[i] * (dscore[i] - mean + 2 * z_scale * lse);
    }
    free(score);
}

static double silu(double g) {
    return g / (1 + exp(-g));
}

void reference_weighted_swiglu(int64_t rows, int64_t ffn, const double *gate_up,
                               const double *weight, double *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < ffn; i++)
            out[r * ffn + i] =
                weight[r] * silu(gate_up[r * 2 * ffn + i]) * gate_up[r * 2 * ffn + ffn + i];
}

void reference_weighted_swiglu_backward(int64_t rows, int64_t ffn, const double *gate_up,
                                        const double *weight, const double *dout, double *dgate_up,
                                        double *dweight) {
    for (int64_t r = 0; r < rows; r++) {
        dweight[r] = 0;
        for (int64_t i = 0; i < ffn; i++) {
            double g = gate_up[r * 2 * ffn + i], u = gate_up[r * 2 * ffn + ffn + i];
            double d = dout[r * ffn + i], s = 1 / (1 + exp(-g));
            dweight[r] += d * g * s * u;
            dgate_up[r * 2 * ffn + i] = weight[r] * d * u * s * (1 + g * (1 - s));
            dgate_up[r * 2 * ffn + ffn + i] = weight[r] * d * g * s;
        }
    }
}
