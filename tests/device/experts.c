// Kernels of mixtures of experts on every instruction set against the reference, the reference
// against finite differences.
#include "device/reference/experts.h"
#include "kernel_test.h"

struct route_case {
    int64_t tokens;
    int experts, top_k;
    bool normalise, bias;
};

static void route_one(struct run *r, const struct route_case *c) {
    struct device *d = &r->device;
    int64_t scores = c->tokens * c->experts, chosen = c->tokens * c->top_k;
    struct values logits = run_values(r, DTYPE_F32, scores, 2),
                  bias = run_values(r, DTYPE_F32, c->experts, 0.2),
                  weight = run_output(r, DTYPE_F32, chosen),
                  score = run_output(r, DTYPE_F32, scores),
                  lse = run_output(r, DTYPE_F32, c->tokens),
                  dweight = run_values(r, DTYPE_F32, chosen, 1),
                  aux = run_values(r, DTYPE_F32, 3 * c->experts, 0.3),
                  dlogits = run_output(r, DTYPE_F32, scores);
    int32_t *expert = run_memory(r, (size_t)chosen * 4),
            *expected = run_memory(r, (size_t)chosen * 4),
            *group = run_memory(r, (size_t)c->tokens * 4);
    for (int64_t t = 0; t < c->tokens; t++) group[t] = run_below(r, 3);
    struct device_route args = {.tokens = c->tokens,
                                .experts = c->experts,
                                .top_k = c->top_k,
                                .logits = logits.data,
                                .bias = c->bias ? bias.data : NULL,
                                .normalise = c->normalise,
                                .expert = expert,
                                .weight = weight.data,
                                .score = score.data,
                                .lse = lse.data};
    d->experts.route(d, &args);
    struct reference_route plain = {
        c->tokens, c->experts, c->top_k, logits.exact, c->bias ? bias.exact : NULL, c->normalise};
    reference_route(&plain, expected, weight.exact, score.exact, lse.exact);
    CHECK_BYTES(expert, expected, (size_t)chosen * 4);
    run_check(r, "router weights", &weight, 2e-6);
    run_check(r, "router scores", &score, 2e-6);
    run_check(r, "router log-sum-exp", &lse, 1e-6);
    struct device_route_backward back = {.tokens = c->tokens,
                                         .experts = c->experts,
                                         .top_k = c->top_k,
                                         .normalise = c->normalise,
                                         .expert = expert,
                                         .weight = weight.data,
                                         .score = score.data,
                                         .lse = lse.data,
                                         .dweight = dweight.data,
                                         .aux = aux.data,
                                         .group = group,
                                         .z_scale = 0.05f,
                                         .dlogits = dlogits.data};
    d->experts.route_backward(d, &back);
    reference_route_backward(&plain, expected, dweight.exact, aux.exact, group, (double)0.05f,
                             dlogits.exact);
    run_check(r, "router gradient", &dlogits, 1e-5);
    // Given routes: the same weights come back.
    struct values again = run_output(r, DTYPE_F32, chosen);
    args.chosen = true;
    args.weight = again.data;
    d->experts.route(d, &args);
    CHECK_BYTES(again.data, weight.data, (size_t)chosen * 4);
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

static void routes(struct run *r) {
    static const struct route_case cases[] = {{1, 1, 1, false, false},   {1, 2, 1, true, false},
                                              {9, 4, 2, true, true},     {70, 5, 5, false, true},
                                              {130, 16, 3, true, false}, {33, 37, 8, true, true},
                                              {65, 128, 8, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) route_one(r, &cases[i]);
}
TEST(routers_equal_the_reference) {
    for_every_device(routes);
}

static void equal_scores(struct run *r) {
    struct device *d = &r->device;
    float logits[3 * 4] = {1, 1, 1, 1, 0, 2, 2, 0, 5, 0, 5, 5}, weight[6], score[12], lse[3];
    uint8_t idle[3] = {0, 0, 1};
    int32_t expert[6];
    struct device_route args = {.tokens = 3,
                                .experts = 4,
                                .top_k = 2,
                                .logits = logits,
                                .idle = idle,
                                .expert = expert,
                                .weight = weight,
                                .score = score,
                                .lse = lse};
    d->experts.route(d, &args);
    static const int32_t wanted[6] = {0, 1, 1, 2, -1, -1};
    for (int i = 0; i < 6; i++) CHECK_EQ_INT(expert[i], wanted[i]);
    CHECK(weight[4] == 0 && weight[5] == 0);
    float dlogits[12], aux[4] = {1, 2, 3, 4};
    struct device_route_backward back = {.tokens = 3,
                                         .experts = 4,
                                         .top_k = 2,
                                         .idle = idle,
                                         .expert = expert,
                                         .weight = weight,
                                         .score = score,
                                         .lse = lse,
                                         .aux = aux,
                                         .z_scale = 1,
                                         .dlogits = dlogits};
    d->experts.route_backward(d, &back);
    for (int i = 8; i < 12; i++) CHECK(dlogits[i] == 0); // an idle token learns nothing
    CHECK(dlogits[0] != 0);
}
TEST(of_equal_scores_the_lower_expert_wins) {
    for_every_device(equal_scores);
}

TEST(router_reference_follows_finite_differences) {
    enum { TOKENS = 5, EXPERTS = 6, K = 2 };
    double logits[TOKENS * EXPERTS], dweight[TOKENS * K], aux[2 * EXPERTS], weight[TOKENS * K],
        score[TOKENS * EXPERTS], lse[TOKENS], gradient[TOKENS * EXPERTS];
    int32_t expert[TOKENS * K], group[TOKENS] = {0, 1, 0, 1, 1};
    for (int normalise = 0; normalise < 2; normalise++) {
        for (int i = 0; i < TOKENS * EXPERTS; i++) logits[i] = sin(1.7 * i) * 2;
        for (int i = 0; i < TOKENS * K; i++) dweight[i] = cos(2.3 * i);
        for (int i = 0; i < 2 * EXPERTS; i++) aux[i] = sin(0.9 * i + 1);
        struct reference_route args = {TOKENS, EXPERTS, K, logits, NULL, normalise};
        reference_route(&args, expert, weight, score, lse);
        reference_route_backward(&args, expert, dweight, aux, group, 0.1, gradient);
        for (int i = 0; i < TOKENS * EXPERTS; i++) {
            double kept = logits[i], step = 1e-5;
            logits[i] = kept + step;
            double above = reference_route_loss(&args, expert, dweight, aux, group, 0.1);
            logits[i] = kept - step;
            double below = reference_route_loss(&args, expert, dweight, aux, group, 0.1);
            logits[i] = kept;
            CHECK_CLOSE(gradient[i], (above - below) / (2 * step), 1e-8);
        }
    }
}

static void moves(struct run *r) {
    struct device *d = &r->device;
    enum { TOKENS = 37, K = 3 };
    static const int64_t widths[] = {1, 16, 33, 200};
    for (int w = 0; w < 4; w++) {
        int64_t width = widths[w], rows = TOKENS * K;
        struct values x = run_values(r, r->type, TOKENS * width, 1),
                      base = run_values(r, r->type, TOKENS * width, 1),
                      base32 = run_values(r, DTYPE_F32, TOKENS * width, 1),
                      spread = run_output(r, r->type, rows * width),
                      back = run_output(r, r->type, rows * width),
                      out = run_output(r, r->type, TOKENS * width);
        int32_t *index = run_memory(r, (size_t)rows * 4), *slot = run_memory(r, (size_t)rows * 4),
                *turned = run_memory(r, (size_t)rows * 4);
        for (int64_t i = 0; i < rows; i++) { // 7 is no divisor of 111: a permutation
            slot[i] = i % 5 == 4 ? -1 : (int32_t)(i * 7 % rows);
            index[i * 7 % rows] = i % 5 == 4 ? -1 : (int32_t)(i / K);
            turned[i] = (int32_t)(i * 7 % rows);
        }
        d->experts.gather_rows(d, r->type, rows, width, index, x.data, spread.data);
        for (int64_t i = 0; i < rows * width; i++)
            spread.exact[i] =
                index[i / width] < 0 ? 0 : x.exact[index[i / width] * width + i % width];
        run_check(r, "gathered rows", &spread, 0);
        d->experts.scatter_rows(d, r->type, rows, width, turned, spread.data, back.data);
        for (int64_t i = 0; i < rows * width; i++)
            back.exact[turned[i / width] * width + i % width] = spread.exact[i];
        run_check(r, "scattered rows", &back, 0);
        for (int with = 0; with < 2; with++) {
            d->experts.combine_rows(d, r->type, TOKENS, width, K, slot, spread.data,
                                    with ? base.data : NULL, with ? base32.data : NULL, out.data);
            for (int64_t i = 0; i < TOKENS * width; i++) {
                out.exact[i] = with ? base.exact[i] + base32.exact[i] : 0;
                for (int k = 0; k < K; k++) {
                    int32_t s = slot[i / width * K + k];
                    if (s >= 0) out.exact[i] += spread.exact[s * width + i % width];
                }
            }
            run_check(r, "combined rows", &out, run_tolerance(r, 1e-6));
        }
        while (r->owned_count) free(r->owned[--r->owned_count]);
    }
}
TEST(rows_move_to_experts_and_back) {
    for_every_device(moves);
}

static void activations(struct run *r) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {5, 333}, {64, 48}};
    struct device *d = &r->device;
    for (int s = 0; s < 4; s++) {
        int64_t rows = shapes[s][0], ffn = shapes[s][1];
        struct values x = run_values(r, r->type, 2 * rows * ffn, 2),
                      weight = run_values(r, DTYPE_F32, rows, 1),
                      dout = run_values(r, r->type, rows * ffn, 1),
                      out = run_output(r, r->type, rows * ffn),
                      again = run_output(r, r->type, rows * ffn),
                      dx = run_output(r, r->type, 2 * rows * ffn),
                      dweight = run_output(r, DTYPE_F32, rows);
        d->experts.swiglu_forward(d, r->type, rows, ffn, x.data, weight.data, out.data);
        reference_weighted_swiglu(rows, ffn, x.exact, weight.exact, out.exact);
        run_check(r, "weighted swiglu", &out, run_tolerance(r, 2e-6));
        d->experts.swiglu_backward(d, r->type, rows, ffn, x.data, weight.data, dout.data, dx.data,
                                   dweight.data, again.data);
        reference_weighted_swiglu_backward(rows, ffn, x.exact, weight.exact, dout.exact, dx.exact,
                                           dweight.exact);
        run_check(r, "weighted swiglu gradient", &dx, run_tolerance(r, 3e-6));
        run_check(r, "gradient of the weight", &dweight, 1e-5);
        CHECK_BYTES(again.data, out.data, (size_t)(rows * ffn) * dtype_bytes(r->type));
        d->experts.swiglu_backward(d, r->type, rows, ffn, x.data, weight.data, dout.data, x.data,
                                   dweight.data, NULL); // in place
        CHECK_BYTES(x.data, dx.data, (size_t)(2 * rows * ffn) * dtype_bytes(r->type));
        while (r->owned_count) free(r->owned[--r->owned_count]);
    }
}
TEST(weighted_activations_equal_the_reference) {
    for_every_device(activations);
}
