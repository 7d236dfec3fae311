// Rules of thumb that a user may know, beside what holds here. See trail.h.
#include "model/flops.h"
#include "plan/trail_parts.h"

static void say_bubble(const struct trail_subject *s, struct trail *out) {
    const int *v = s->entry->choice.value;
    int pp = v[SEARCH_PP], m = s->job->micro_batches;
    double rule = (double)m * v[SEARCH_DP] / pp;
    if (pp == 1) return;
    trail_say(out, TRAIL_CHAPTER, "bubble",
              "M = grad_accum x DP / PP would be %.4g micro-batches and a bubble of %.1f %%; each "
              "pipeline sees global batch / (DP x micro-batch) = %d, (p-1)/(p-1+m) is %.1f %%, and "
              "%s with %d stage%s a rank leaves %.1f %% (simulated)",
              rule, 100 * (pp - 1) / (pp - 1 + rule), m, 100.0 * (pp - 1) / (pp - 1 + m),
              pipeline_kind_name(s->job->schedule), v[SEARCH_CHUNKS],
              v[SEARCH_CHUNKS] == 1 ? "" : "s", 100 * s->estimate->bubble);
    if (m >= 4 * pp && 100 * (pp - 1) > 10 * (pp - 1 + m))
        trail_say(out, TRAIL_CHAPTER, "micro_batches",
                  "M >= 4 x PP does not keep the bubble below 10 %%: %d micro-batches on %d ranks "
                  "leave %.1f %%; it takes more than 9 (PP - 1) = %d",
                  m, pp, 100.0 * (pp - 1) / (pp - 1 + m), 9 * (pp - 1));
}

static void say_states(const struct trail_subject *s, struct trail *out) {
    const int *v = s->entry->choice.value;
    int cut = v[SEARCH_TP] * v[SEARCH_PP], data = v[SEARCH_DP] * v[SEARCH_CP];
    double params = (double)flops_all_params(s->request->model);
    if (v[SEARCH_ZERO] != 3 || cut == 1) return;
    trail_say(out, TRAIL_CHAPTER, "zero3",
              "ZeRO-3 is not 16 P / N_DP = %.1f GB here: TP and PP divide the parameters first, "
              "16 P / (%d x %d x %d) = %.2f GB (18 bytes with FP32 gradients: %.2f GB)",
              16 * params / data / 1e9, v[SEARCH_TP], v[SEARCH_PP], data,
              16 * params / cut / data / 1e9, 18 * params / cut / data / 1e9);
}

static void say_flops(const struct trail_subject *s, struct trail *out) {
    const struct model_config *c = s->request->model;
    double params = (double)flops_active_params(c), six = 6 * params;
    double full = flops_per_token_full(c, s->request->context);
    double causal = flops_per_token_causal(c, s->request->context);
    trail_say(out, TRAIL_CHAPTER, "mfu",
              "6 P a token (%.3g) would be an MFU of %.1f %%; 6 N + 12 L H T (%.3g) is %.1f %%, "
              "with causal attention counted exactly (%.3g) %.1f %%",
              six, 100 * s->estimate->mfu_full * six / full, full, 100 * s->estimate->mfu_full,
              causal, 100 * s->estimate->mfu_causal);
}

static void say_tensor(const struct trail_subject *s, struct trail *out) {
    const int *v = s->entry->choice.value;
    const struct cluster *c = s->request->cluster;
    int tp = v[SEARCH_TP];
    if (tp == 1 || tp > c->domain || !c->fast.both_directions_stated) return;
    trail_say(out, TRAIL_CHAPTER, "link",
              "%s is stated as %.0f GB/s, both directions together: %.0f one way; an all-reduce of "
              "%d ranks moves 2 (N-1)/N = %.3g times its bytes, two per layer forward and two "
              "backward for every micro-batch",
              c->fast.name, 2 * c->fast.bandwidth.value / 1e9, c->fast.bandwidth.value / 1e9, tp,
              2.0 * (tp - 1) / tp);
}

void trail_chapters(const struct trail_subject *subject, struct trail *out) {
    say_bubble(subject, out);
    say_states(subject, out);
    say_flops(subject, out);
    say_tensor(subject, out);
}
