// Balance of experts: the auxiliary loss, the bias that replaces it, and figures; see moe.h.
//
// With scores p (softmax over experts) and fractions f of the choices, the loss of scope
// `sequence` is, for each sequence, E sum_i f_i mean_t p_ti, averaged over the tokens of the global
// batch; of scope `global` the same with one f and one mean over the whole step. Both are linear in
// p once f is known, so a token's gradient is E f_i coefficient / tokens of the global batch,
// whichever rank and micro-batch holds it. f counts choices before anything is dropped and has no
// gradient. (Switch Transformers, Fedus et al. 2021, equation 4, with top-k choices counted each.)
#include "engine/moe.h"

// f of one set of choices, times E and the scale.
static void aux_row(const int64_t *counts, int experts, double scale, float *row) {
    int64_t total = 0;
    for (int e = 0; e < experts; e++) total += counts[e];
    for (int e = 0; e < experts; e++)
        row[e] = total ? (float)(scale * experts * (double)counts[e] / (double)total) : 0;
}

bool moe_aux_rows(const struct moe_layer *m) {
    int experts = m->shape.experts;
    float *rows = m->buffer[MOE_AUX];
    if (m->aux_scale == 0 || m->tp_index != 0) return false;
    if (m->aux_scope == MOE_AUX_GLOBAL) {
        aux_row(m->global_counts, experts, m->aux_scale, rows);
        return true;
    }
    const int64_t *loads = m->buffer[MOE_LOADS];
    for (int32_t s = 0; s < m->batch->rows; s++)
        aux_row(loads + (int64_t)s * experts, experts, m->aux_scale, rows + (int64_t)s * experts);
    return true;
}

void moe_sum_counts(int64_t *counts, int experts, struct comm_stream *data) {
    if (data) comm_sum_integers(data, counts, experts);
}

void moe_update_bias(float *bias, const int64_t *counts, int experts, double rate) {
    int64_t total = 0;
    for (int e = 0; e < experts; e++) total += counts[e];
    for (int e = 0; e < experts; e++) { // compared as whole numbers: mean and count times experts
        int64_t count = counts[e] * experts;
        if (count < total) bias[e] += (float)rate;
        if (count > total) bias[e] -= (float)rate;
    }
}

double moe_balance(const struct moe_statistics *s, int experts) {
    int64_t total = 0;
    double sum = 0;
    for (int e = 0; e < experts; e++) total += s->counts[e];
    if (total == 0 || s->tokens == 0) return 0;
    for (int e = 0; e < experts; e++) sum += (double)s->counts[e] * s->score_sum[e];
    return experts * sum / (double)total / (double)s->tokens;
}

double moe_max_load(const struct moe_statistics *s, int experts) {
    int64_t total = 0, most = 0;
    for (int e = 0; e < experts; e++) {
        total += s->counts[e];
        if (s->counts[e] > most) most = s->counts[e];
    }
    return total ? (double)most * experts / (double)total : 0;
}
