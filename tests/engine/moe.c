// A layer with experts: against a plain one in double and its finite differences; the same bits
// whatever the waves, threads and what is kept; close however tokens are spread over ranks.
#include "moe_world.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the plain layer --------------------------------------------------------------------------

static double silu(double g) {
    return g / (1 + exp(-g));
}

static void plain_expert(const struct moe_case *c, const double *w, int part, int ffn,
                         const double *x, double scale, double *y) {
    const double *up = w + moe_weight_offset(c, part), *down = w + moe_weight_offset(c, part + 1);
    for (int f = 0; f < ffn; f++) {
        double g = 0, u = 0;
        for (int h = 0; h < c->hidden; h++) {
            g += up[f * c->hidden + h] * x[h];
            u += up[(ffn + f) * c->hidden + h] * x[h];
        }
        for (int h = 0; h < c->hidden; h++) y[h] += scale * silu(g) * u * down[h * ffn + f];
    }
}

// Loss with the choices (and drops) given: sum of y r, the balancing loss with f of the choices,
// and the z-loss.
static double plain_loss(const struct moe_case *c, const struct moe_result *given, const double *w,
                         const double *x, double *out) {
    int64_t tokens = given->tokens, routed = tokens - c->padding;
    double loss = 0, *score = calloc((size_t)(tokens * c->experts), 8),
           *y = calloc((size_t)c->hidden, 8);
    for (int64_t t = 0; t < tokens; t++) {
        double *s = score + t * c->experts, sum = 0, chosen = 0;
        const int32_t *expert = given->expert + t * c->top_k;
        for (int e = 0; e < c->experts; e++) {
            double logit = 0;
            for (int h = 0; h < c->hidden; h++)
                logit += w[e * c->hidden + h] * x[t * c->hidden + h];
            sum += s[e] = exp(logit);
        }
        for (int e = 0; e < c->experts; e++) s[e] /= sum;
        memset(y, 0, (size_t)c->hidden * 8);
        for (int k = 0; k < c->top_k && t < routed; k++) chosen += s[expert[k]];
        for (int k = 0; k < c->top_k && t < routed; k++)
            if (given->slot[t * c->top_k + k] >= 0)
                plain_expert(c, w, 1 + 2 * expert[k], c->ffn, x + t * c->hidden,
                             c->normalise ? s[expert[k]] / chosen : s[expert[k]], y);
        if (c->shared) plain_expert(c, w, 1 + 2 * c->experts, c->shared, x + t * c->hidden, 1, y);
        if (t < routed) loss += c->z * log(sum) * log(sum);
        for (int h = 0; h < c->hidden; h++) {
            if (!c->no_loss) loss += y[h] * (double)moe_gradient_of(t, h);
            if (out) out[t * c->hidden + h] = y[h];
        }
    }
    for (int64_t t = 0; t < routed; t++) { // f of the token's sequence, or of all
        int64_t first = c->scope == MOE_AUX_GLOBAL ? 0 : t / c->context * c->context;
        int64_t end = c->scope == MOE_AUX_GLOBAL ? tokens : first + c->context;
        double total = 0, sum = 0;
        for (int64_t i = first * c->top_k; i < end * c->top_k; i++)
            if (given->expert[i] >= 0) {
                total++;
                sum += score[t * c->experts + given->expert[i]];
            }
        loss += c->aux * c->experts * sum / total;
    }
    free(score);
    free(y);
    return loss;
}

static void close_to(const char *what, const float *found, const float *wanted, int64_t count,
                     double tolerance) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        CHECK(isfinite(found[i]));
        worst = fmax(worst, fabs((double)found[i] - (double)wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (worst > tolerance * largest)
        test_fail(__FILE__, __LINE__, "%s: off by %g, largest %g", what, worst, largest);
}

static struct moe_case small(void) {
    return (struct moe_case){.rows = 2,
                             .context = 12,
                             .hidden = 16,
                             .ffn = 8,
                             .shared = 0,
                             .experts = 4,
                             .top_k = 2,
                             .aux = 0.02,
                             .z = 0.01,
                             .keeps_up = true};
}

static void follow_finite_differences(const struct moe_case *c) {
    struct moe_result r;
    moe_run(c, &r);
    int64_t weights = moe_weight_count(c), inputs = r.tokens * c->hidden;
    float *made = calloc((size_t)weights + 1, 4);
    double *w = calloc((size_t)weights + 1, 8), *x = calloc((size_t)inputs + 1, 8),
           *y = calloc((size_t)inputs + 1, 8);
    moe_make_weights(c, made);
    for (int64_t i = 0; i < weights; i++) w[i] = (double)made[i];
    for (int64_t i = 0; i < inputs; i++)
        x[i] = (double)moe_input(i / c->hidden, (int)(i % c->hidden));
    double loss = plain_loss(c, &r, w, x, y);
    CHECK_CLOSE(r.loss, loss, 1e-5 * (1 + fabs(loss)));
    for (int64_t i = 0; i < inputs; i++) CHECK_CLOSE(r.y[i], y[i], 1e-5);
    double step = 1e-5;
    for (int64_t i = 0; i < weights + inputs; i += i < c->experts * c->hidden ? 1 : 7) {
        double *at = i < weights ? &w[i] : &x[i - weights], kept = *at;
        *at = kept + step;
        double above = plain_loss(c, &r, w, x, NULL);
        *at = kept - step;
        double below = plain_loss(c, &r, w, x, NULL);
        *at = kept;
        double found = (double)(i < weights ? r.gradients[i] : r.dx[i - weights]);
        double wanted = (above - below) / (2 * step);
        if (fabs(found - wanted) > 2e-5 * (1 + fabs(wanted)))
            test_fail(__FILE__, __LINE__, "gradient %lld of %lld weights is %g, expected %g",
                      (long long)i, (long long)weights, found, wanted);
    }
    free(made), free(w), free(x), free(y);
    moe_free(&r);
}

TEST(moe_gradients_follow_finite_differences) {
    struct moe_case c = small();
    follow_finite_differences(&c);
    c.normalise = true;
    c.shared = 12;
    c.padding = 5;
    c.scope = MOE_AUX_GLOBAL;
    follow_finite_differences(&c);
    c.capacity_factor = 0.75;
    c.split = true;
    follow_finite_differences(&c);
    c.top_k = 1;
    c.capacity_factor = 0;
    c.scope = MOE_AUX_SEQUENCE;
    c.split = c.keeps_up = false;
    follow_finite_differences(&c);
}

// ---- requirements 37 and 39 -------------------------------------------------------------------

TEST(moe_balancing_loss_reaches_the_router_in_proportion) {
    for (int scope = 0; scope < 2; scope++) {
        struct moe_case c = small();
        struct moe_result one, two;
        c.no_loss = true;
        c.z = 0;
        c.scope = scope;
        c.aux = 0.01;
        moe_run(&c, &one);
        c.aux = 0.02;
        moe_run(&c, &two);
        double norm = 0;
        for (int64_t i = 0; i < c.experts * c.hidden; i++) {
            norm += fabs((double)one.gradients[i]);
            CHECK_CLOSE(two.gradients[i], 2 * one.gradients[i],
                        1e-6 * fabs((double)one.gradients[i]) + 1e-12);
        }
        CHECK(norm > 1e-4);
        for (int64_t i = c.experts * c.hidden; i < moe_weight_count(&c); i++)
            CHECK(one.gradients[i] == 0);
        moe_free(&one), moe_free(&two);
    }
}

TEST(moe_balance_is_one_when_loads_are_even) {
    int64_t loads[4] = {4, 2, 1, 1}, even[4] = {2, 2, 2, 2};
    double scores[4] = {3.2, 2.4, 1.6, 0.8}, uniform[4] = {2, 2, 2, 2}; // means .4 .3 .2 .1 of 8
    struct moe_statistics s = {.counts = loads, .score_sum = scores, .tokens = 8};
    CHECK_CLOSE(moe_balance(&s, 4), 1.25, 1e-12);
    CHECK_CLOSE(moe_max_load(&s, 4), 2, 1e-12);
    s.counts = even, s.score_sum = uniform;
    CHECK_CLOSE(moe_balance(&s, 4), 1, 1e-12);
    struct moe_case c = small();
    struct moe_result r;
    c.calm = true; // equal scores: E sum f p is 1 whatever f is
    moe_run(&c, &r);
    CHECK_CLOSE(moe_balance(&r.statistics, c.experts), 1, 1e-6);
    CHECK_CLOSE(r.statistics.aux / (double)r.statistics.tokens, 1, 1e-6);
    CHECK_EQ_INT(r.statistics.tokens, r.tokens);
    CHECK_EQ_INT(r.statistics.counts[0], r.tokens); // of equal scores the lower experts win
    moe_free(&r);
}

TEST(moe_bias_changes_the_choice_only) {
    struct moe_case c = small();
    struct moe_result plain, pushed;
    float bias[4] = {0, 0, 0, 10};
    c.aux = c.z = 0;
    moe_run(&c, &plain);
    c.bias = bias;
    moe_run(&c, &pushed);
    CHECK_EQ_INT(pushed.statistics.counts[3], pushed.tokens);
    CHECK(plain.statistics.counts[3] < plain.tokens);
    // replayed with the same choices but without the bias: the same everything
    struct moe_result replayed;
    c.bias = NULL;
    c.chosen = pushed.expert;
    moe_run(&c, &replayed);
    CHECK_BYTES(replayed.y, pushed.y, (size_t)(pushed.tokens * c.hidden) * 4);
    CHECK_BYTES(replayed.gradients, pushed.gradients, (size_t)moe_weight_count(&c) * 4);
    moe_free(&plain), moe_free(&pushed), moe_free(&replayed);
    int64_t counts[4] = {10, 2, 4, 4};
    float b[4] = {0.5f, 0.5f, 0.5f, 0};
    moe_update_bias(b, counts, 4, 0.25); // mean 5
    CHECK(b[0] == 0.25f && b[1] == 0.75f && b[2] == 0.75f && b[3] == 0.25f);
    counts[0] = 5, counts[1] = 5, counts[2] = 7, counts[3] = 3;
    moe_update_bias(b, counts, 4, 0.25);
    CHECK(b[0] == 0.25f && b[1] == 0.75f && b[2] == 0.5f && b[3] == 0.5f);
}

// ---- capacity ---------------------------------------------------------------------------------

TEST(moe_capacity_drops_the_later_tokens_and_counts_them) {
    struct moe_case c = small();
    struct moe_result r;
    c.calm = true; // every token chooses experts 0 and 1
    c.capacity_factor = 1;
    moe_run(&c, &r);
    // 12 positions, 2 of 4 experts: 6 rows for each in each of the 2 sequences
    CHECK_EQ_INT(r.statistics.dropped, 2 * 2 * 6);
    for (int64_t t = 0; t < r.tokens; t++)
        for (int k = 0; k < 2; k++) CHECK_EQ_INT(r.slot[t * 2 + k] >= 0, t % 12 < 6);
    for (int64_t i = 0; i < r.tokens * c.hidden; i++)
        CHECK(i / c.hidden % 12 < 6 ? r.y[i] != 0 : r.y[i] == 0);
    moe_free(&r);
    c.capacity_factor = 2;
    moe_run(&c, &r);
    CHECK_EQ_INT(r.statistics.dropped, 0);
    moe_free(&r);
}

// ---- the same bits ----------------------------------------------------------------------------

static void same_bits(const struct moe_case *c, const struct moe_result *a,
                      const struct moe_result *b) {
    CHECK_BYTES(a->y, b->y, (size_t)(a->tokens * c->hidden) * 4);
    CHECK_BYTES(a->dx, b->dx, (size_t)(a->tokens * c->hidden) * 4);
    CHECK_BYTES(a->gradients, b->gradients, (size_t)moe_weight_count(c) * 4);
}

static struct moe_case wide(enum dtype type) {
    return (struct moe_case){.rows = 4,
                             .context = 160,
                             .hidden = 96,
                             .ffn = 48,
                             .shared = 48,
                             .experts = 4,
                             .top_k = 2,
                             .normalise = true,
                             .aux = 1e-4,
                             .z = 1e-5,
                             .padding = 30,
                             .type = type,
                             .keeps_up = true};
}

TEST(moe_bits_do_not_depend_on_waves_or_what_is_kept) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        struct moe_case base = wide(types[i]);
        struct moe_result a, b;
        moe_run(&base, &a);
        CHECK_EQ_INT(a.waves, 1);
        struct moe_case others[] = {base, base, base, base};
        others[0].wave = MOE_CHUNK; // the smallest
        others[1].keeps_up = false;
        others[2].split = true;
        others[3].split = true, others[3].wave = 400;
        for (int k = 0; k < 4; k++) {
            moe_run(&others[k], &b);
            if (others[k].wave) CHECK(b.waves > 2);
            same_bits(&base, &a, &b);
            moe_free(&b);
        }
        // and a change that must show
        others[0] = base;
        others[0].normalise = false;
        moe_run(&others[0], &b);
        CHECK(memcmp(a.y, b.y, (size_t)(a.tokens * base.hidden) * 4) != 0);
        moe_free(&b);
        moe_free(&a);
    }
}

TEST(moe_bits_do_not_depend_on_threads) {
    struct moe_case c = wide(DTYPE_F32);
    struct moe_result a, b;
    moe_run(&c, &a);
    c.threads = 2;
    moe_run(&c, &b);
    same_bits(&c, &a, &b);
    moe_free(&a), moe_free(&b);
}

// ---- expert parallelism -----------------------------------------------------------------------

TEST(moe_is_close_however_experts_are_spread) {
    for (int capacity = 0; capacity < 2; capacity++) {
        struct moe_case c = wide(DTYPE_F32);
        c.capacity_factor = capacity;
        struct moe_result one, many;
        moe_run(&c, &one);
        CHECK(capacity ? one.statistics.dropped > 0 : one.statistics.dropped == 0);
        c.chosen = one.expert;
        for (int ep = 2; ep <= 4; ep *= 2) {
            for (int waves = 0; waves < 2; waves++) {
                c.ep = ep;
                c.wave = waves ? MOE_CHUNK : 0;
                moe_run(&c, &many);
                if (waves && !capacity) CHECK(many.waves > 1);
                CHECK_EQ_INT(many.statistics.dropped, one.statistics.dropped);
                CHECK_EQ_INT(many.statistics.tokens, one.statistics.tokens);
                for (int e = 0; e < c.experts; e++)
                    CHECK_EQ_INT(many.statistics.counts[e], one.statistics.counts[e]);
                close_to("y", many.y, one.y, one.tokens * c.hidden, 1e-5);
                close_to("dx", many.dx, one.dx, one.tokens * c.hidden, 1e-5);
                close_to("gradients", many.gradients, one.gradients, moe_weight_count(&c), 1e-5);
                CHECK_CLOSE(many.loss, one.loss, 1e-5 * (1 + fabs(one.loss)));
                moe_free(&many);
            }
        }
        moe_free(&one);
    }
}

// Waves of any size give the same bits on several ranks too, and so does what is kept.
TEST(moe_bits_on_several_ranks_do_not_depend_on_waves) {
    struct moe_case c = wide(DTYPE_BF16);
    struct moe_result a, b;
    c.ep = 4;
    c.wave = 2000;
    moe_run(&c, &a);
    CHECK_EQ_INT(a.waves, 1);
    struct moe_case others[] = {c, c, c};
    others[0].wave = MOE_CHUNK;
    others[1].keeps_up = false;
    others[2].split = true, others[2].wave = MOE_CHUNK;
    for (int k = 0; k < 3; k++) {
        moe_run(&others[k], &b);
        same_bits(&c, &a, &b);
        moe_free(&b);
    }
    moe_free(&a);
}

TEST(moe_many_experts_few_tokens) {
    struct moe_case c = wide(DTYPE_F32);
    struct moe_result one, many;
    c.experts = 32;
    c.top_k = 8;
    c.rows = 2, c.context = 8, c.padding = 15; // a single token is left
    moe_run(&c, &one);
    CHECK_EQ_INT(one.statistics.tokens, 1);
    c.chosen = one.expert;
    c.ep = 2;
    moe_run(&c, &many);
    close_to("y", many.y, one.y, one.tokens * c.hidden, 1e-5);
    close_to("gradients", many.gradients, one.gradients, moe_weight_count(&c), 1e-5);
    moe_free(&one), moe_free(&many);
}
