// Cross-entropy over a vocabulary in parts, attention over keys in parts, and dropout keyed by
// global indices.
#include "base/random.h"
#include "device/reference/reference.h"
#include <math.h>
#include <string.h>

void reference_cross_entropy_statistics(int64_t tokens, int64_t vocab, int64_t stride,
                                        const double *logits, const int32_t *target_local,
                                        double *out) {
    for (int64_t t = 0; t < tokens; t++) {
        const double *x = logits + t * stride;
        double max = -INFINITY, sum = 0;
        for (int64_t i = 0; i < vocab; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < vocab; i++) sum += exp(x[i] - max);
        out[3 * t] = max;
        out[3 * t + 1] = sum;
        out[3 * t + 2] = target_local[t] < 0 ? 0 : x[target_local[t]];
    }
}

void reference_cross_entropy_finish(int64_t tokens, int64_t vocab, int64_t stride,
                                    const double *logits, const int32_t *target_local,
                                    const int32_t *counted, const double *statistics, int ranks,
                                    double scale, double *loss, double *dlogits) {
    memset(dlogits, 0, (size_t)(tokens * stride) * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        loss[t] = 0;
        if (counted[t] < 0) continue;
        double max = -INFINITY, sum = 0, at_target = 0;
        for (int r = 0; r < ranks; r++) max = fmax(max, statistics[(r * tokens + t) * 3]);
        for (int r = 0; r < ranks; r++) {
            const double *part = statistics + (r * tokens + t) * 3;
            sum += part[1] * exp(part[0] - max);
            at_target += part[2];
        }
        loss[t] = log(sum) + max - at_target;
        for (int64_t i = 0; i < vocab; i++) {
            double p = exp(logits[t * stride + i] - max) / sum;
            dlogits[t * stride + i] = scale * (p - (i == target_local[t] ? 1 : 0));
        }
    }
}

void reference_dropout(int64_t rows, int64_t width, uint64_t key, int64_t first_row,
                       const int32_t *row, double rate, const double *x, double *out) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            uint64_t e = (uint64_t)((first_row + (row ? row[r] : r)) * width + i);
            uint32_t words[4];
            random_words(key, e / 4, words);
            bool stays = words[e % 4] >= rate * 0x1p32;
            out[r * width + i] = stays ? x[r * width + i] / (1 - rate) : 0;
        }
    }
}

void reference_attention_merge(int64_t queries, int heads, int head_dim, double *out, double *lse,
                               const double *part, const double *part_lse) {
    for (int64_t q = 0; q < queries; q++) {
        for (int h = 0; h < heads; h++) {
            double a = lse[h * queries + q], b = part_lse[h * queries + q], max = fmax(a, b);
            if (max == -INFINITY) continue;
            double wa = exp(a - max), wb = exp(b - max), sum = wa + wb;
            for (int i = 0; i < head_dim; i++) {
                int64_t at = (q * heads + h) * head_dim + i;
                out[at] = (out[at] * wa + part[at] * wb) / sum;
            }
            lse[h * queries + q] = max + log(sum);
        }
    }
}
