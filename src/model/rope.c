// Rotary frequencies, in double. Sources: Su et al. 2021 (plain); Chen et al. 2023 (linear
// interpolation); the NTK-aware base of Peng and Quesnelle 2023 (dynamic); the Llama 3.1 model card
// (llama3); Peng et al. 2023, "YaRN".
#include "model/rope.h"
#include <math.h>

static const double two_pi = 6.283185307179586476925;

// Wavelengths far below the original context stay, those far above are stretched by the factor, and
// between the two thresholds the share goes linearly with the number of turns in the original
// context.
static double llama3_frequency(const struct model_rope *r, double frequency) {
    double turns = r->original_context * frequency / two_pi;
    if (turns > r->high_freq_factor) return frequency;
    if (turns < r->low_freq_factor) return frequency / r->factor;
    double keep = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - keep) * frequency / r->factor + keep * frequency;
}

// Index (of a pair, not rounded) whose frequency makes `turns` turns in the original context.
static double yarn_index(const struct model_rope *r, int head_dim, double turns) {
    return head_dim * log(r->original_context / (turns * two_pi)) / (2 * log(r->theta));
}

static void yarn_frequencies(const struct model_rope *r, int head_dim, double *out) {
    double low = yarn_index(r, head_dim, r->beta_fast),
           high = yarn_index(r, head_dim, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, head_dim - 1);
    if (low == high) high += 0.001; // a step, not a division by zero
    for (int i = 0; i < head_dim / 2; i++) {
        double stretch = fmin(fmax((i - low) / (high - low), 0), 1);
        out[i] = out[i] / r->factor * stretch + out[i] * (1 - stretch);
    }
}

double rope_inverse_frequencies(const struct model_rope *r, int head_dim, int length, double *out) {
    double base = r->theta;
    if (r->scaling == ROPE_DYNAMIC_NTK && length > r->original_context) {
        double stretch = r->factor * length / r->original_context - (r->factor - 1);
        base *= pow(stretch, head_dim / (head_dim - 2.0));
    }
    for (int i = 0; i < head_dim / 2; i++) out[i] = pow(base, -2.0 * i / head_dim);
    switch (r->scaling) {
    case ROPE_PLAIN:
    case ROPE_DYNAMIC_NTK:
        break;
    case ROPE_LINEAR:
        for (int i = 0; i < head_dim / 2; i++) out[i] /= r->factor;
        break;
    case ROPE_LLAMA3:
        for (int i = 0; i < head_dim / 2; i++) out[i] = llama3_frequency(r, out[i]);
        break;
    case ROPE_YARN:
        yarn_frequencies(r, head_dim, out);
        if (r->attention_factor > 0) return r->attention_factor;
        return r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1;
    }
    return 1;
}

void rope_tables(const struct model_rope *rope, int head_dim, int positions, int length,
                 float *cosine, float *sine) {
    int half = head_dim / 2;
    double inverse[2048]; // heads are at most 4096 wide
    double factor = rope_inverse_frequencies(rope, head_dim, length, inverse);
    for (int position = 0; position < positions; position++)
        for (int i = 0; i < half; i++) {
            double angle = position * inverse[i];
            cosine[(int64_t)position * half + i] = (float)(factor * cos(angle));
            sine[(int64_t)position * half + i] = (float)(factor * sin(angle));
        }
}

int64_t rope_half_split_row(int64_t row, int head_dim) {
    int64_t head = row / head_dim, within = row % head_dim;
    return head * head_dim + within / 2 + within % 2 * (head_dim / 2);
}

int64_t rope_interleaved_row(int64_t row, int head_dim) {
    int64_t head = row / head_dim, within = row % head_dim, half = head_dim / 2;
    return head * head_dim + within % half * 2 + within / half;
}
