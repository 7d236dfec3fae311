// Models with experts on every kind of layout: close to one process when its routes are replayed,
// hardly any route flipped when they are not, the same bits where only pipeline, sharding, waves,
// threads or recomputation differ. Losses of the router are scaled alike for every split.
#include "world.h"
#include <string.h>

#define GPIPE PIPELINE_GPIPE
#define ONE PIPELINE_1F1B
#define INTER PIPELINE_INTERLEAVED
#define ZBH1 PIPELINE_ZB_H1
#define ZBV PIPELINE_ZB_V

static const struct engine_experts plain = {.aux_coefficient = 0.02, .z_coefficient = 0.001};
static const struct engine_experts global = {
    .aux_coefficient = 0.02, .aux_global = true, .z_coefficient = 0.001};

static struct world_layout layout(int pp, int dp, int cp, int tp, int ep, int zero,
                                  enum pipeline_kind schedule, int chunks,
                                  const struct engine_experts *experts) {
    return (struct world_layout){.model = "moe",
                                 .pp = pp,
                                 .dp = dp,
                                 .cp = cp,
                                 .tp = tp,
                                 .ep = ep,
                                 .zero = zero,
                                 .schedule = schedule,
                                 .chunks = chunks,
                                 .rows = 1,
                                 .steps = 4,
                                 .experts = *experts};
}

static void check_close(const struct world_layout *l) {
    char name[160], text[200];
    struct world_layout one = layout(1, 1, 1, 1, 1, 0, ONE, 1, &l->experts);
    struct world_result r, replayed, free_run;
    one.model = l->model;
    one.rows = l->rows;
    one.samples = l->samples;
    world_run(l, &r);
    CHECK(r.planned_is_allocated);
    CHECK(r.copies_are_equal);
    one.replay = &r;
    world_run(&one, &replayed);
    const char *apart = world_apart(&r, &replayed, l->steps, text);
    if (apart) test_fail(__FILE__, __LINE__, "%s: %s", world_name(l, name), apart);
    CHECK_CLOSE(r.balance, replayed.balance, 1e-5);
    CHECK_EQ_INT(r.dropped, replayed.dropped);
    one.replay = NULL;
    one.compare = &r;
    one.steps = 1; // later steps part on their own once a route has flipped
    world_run(&one, &free_run);
    if (free_run.gap > 1e-5)
        test_fail(__FILE__, __LINE__, "%s: a route flipped over a gap of %g", world_name(l, name),
                  free_run.gap);
    world_free(&r), world_free(&replayed), world_free(&free_run);
}

static void check_same(const struct world_layout *a, const struct world_layout *b) {
    char name[160], other[160];
    struct world_result x, y;
    world_run(a, &x);
    world_run(b, &y);
    if (!world_same(&x, &y, a->steps))
        test_fail(__FILE__, __LINE__, "%s and %s: loss of step 1: %a, %a; of step %d: %a, %a",
                  world_name(a, name), world_name(b, other), x.loss[0], y.loss[0], a->steps,
                  x.loss[a->steps - 1], y.loss[a->steps - 1]);
    world_free(&x), world_free(&y);
}

// Against its base: the same tensor, context, expert and data parallelism, nothing else.
static void check_base(const struct world_layout *l) {
    struct world_layout base = *l;
    base.pp = base.chunks = 1;
    base.zero = 0;
    base.schedule = ONE;
    base.no_overlap = true;
    check_same(l, &base);
}

TEST_LIMIT(experts_close_over_data_and_experts, 600) {
    struct world_layout l = layout(1, 2, 1, 1, 1, 0, ONE, 1, &plain);
    check_close(&l);
    l = layout(1, 2, 1, 1, 2, 1, ONE, 1, &plain);
    check_close(&l);
    l = layout(1, 4, 1, 1, 4, 0, ONE, 1, &plain);
    check_close(&l);
    l = layout(1, 4, 1, 1, 2, 3, ONE, 1, &plain);
    check_close(&l);
    l.rows = 2;
    l.zero = 2;
    check_close(&l);
}

TEST_LIMIT(experts_close_over_tensor_and_context, 600) {
    struct world_layout l = layout(1, 1, 1, 2, 1, 0, ONE, 1, &plain);
    check_close(&l);
    l.no_sequence = true;
    check_close(&l);
    l = layout(1, 2, 1, 2, 2, 1, ONE, 1, &plain);
    check_close(&l);
    l = layout(1, 1, 2, 1, 1, 0, ONE, 1, &plain);
    check_close(&l);
    l = layout(1, 1, 2, 1, 2, 0, ONE, 1, &plain);
    l.rows = 2;
    check_close(&l);
}

TEST_LIMIT(experts_close_with_fractions_of_the_whole_step, 600) {
    struct world_layout l = layout(1, 2, 1, 1, 2, 0, ONE, 1, &global);
    check_close(&l);
    l = layout(2, 1, 1, 1, 1, 0, GPIPE, 1, &global);
    check_close(&l);
    l = layout(1, 1, 2, 1, 1, 0, ONE, 1, &global);
    check_close(&l);
}

// What must show: fractions per sequence are not those of the step, a coefficient counts.
TEST_LIMIT(experts_controls_that_must_differ, 600) {
    char text[200];
    struct world_layout l = layout(1, 2, 1, 1, 2, 0, ONE, 1, &plain), other = l;
    struct world_result r, wrong;
    world_run(&l, &r);
    other.replay = &r;
    other.experts = global;
    world_run(&other, &wrong);
    CHECK(world_apart(&wrong, &r, l.steps, text) != NULL);
    world_free(&wrong);
    other.experts = plain;
    other.experts.aux_coefficient = 0.021;
    world_run(&other, &wrong);
    CHECK(world_apart(&wrong, &r, l.steps, text) != NULL);
    world_free(&wrong), world_free(&r);
}

TEST_LIMIT(experts_drop_the_same_tokens_on_every_layout, 600) {
    struct engine_experts capacity = plain;
    capacity.capacity_factor = 1;
    struct world_layout l = layout(1, 2, 1, 1, 2, 0, ONE, 1, &capacity);
    check_close(&l);
    l = layout(1, 1, 2, 1, 1, 0, ONE, 1, &capacity);
    check_close(&l);
    struct world_result r;
    world_run(&l, &r);
    CHECK(r.dropped > 0);
    world_free(&r);
}

TEST_LIMIT(experts_bits_over_pipelines_and_sharding, 600) {
    struct world_layout base = layout(1, 2, 1, 1, 2, 0, ONE, 1, &plain), l;
    base.no_overlap = true;
    l = layout(2, 2, 1, 1, 2, 1, ONE, 1, &plain);
    check_same(&l, &base);
    l = layout(2, 2, 1, 1, 2, 0, ZBH1, 1, &plain);
    check_same(&l, &base);
    l = layout(2, 2, 1, 1, 2, 1, ZBV, 2, &plain);
    check_same(&l, &base);
    l = layout(2, 2, 1, 1, 2, 0, INTER, 2, &plain);
    check_same(&l, &base);
    base.experts = global; // the counting pass of 1F1B gives what GPipe counts on its way
    l = layout(2, 2, 1, 1, 2, 1, GPIPE, 1, &global);
    check_same(&l, &base);
    l.schedule = ONE;
    check_same(&l, &base);
}

TEST_LIMIT(experts_bits_over_waves_threads_and_recomputation, 600) {
    struct world_layout base = layout(1, 2, 1, 1, 2, 1, ONE, 1, &plain), l;
    base.rows = 4; // more rows than the smallest wave holds
    l = base;
    l.experts.wave = 1;
    check_same(&l, &base);
    l = base;
    l.threads = 2;
    l.bucket_bytes = 3000;
    check_same(&l, &base);
    for (int mode = RECOMPUTE_SELECTIVE; mode <= RECOMPUTE_FULL; mode++) {
        l = base;
        l.recompute = (enum engine_recompute)mode;
        check_same(&l, &base);
    }
}

TEST_LIMIT(experts_with_everything_at_once, 600) {
    struct world_layout l = layout(2, 2, 1, 2, 2, 1, ONE, 1, &plain);
    check_close(&l);
    check_base(&l);
    l = layout(2, 1, 2, 2, 2, 0, ZBV, 2, &plain);
    check_close(&l);
    check_base(&l);
    l = layout(1, 2, 2, 1, 4, 1, ONE, 1, &plain);
    check_close(&l);
    check_base(&l);
    l = layout(2, 2, 2, 1, 2, 1, ONE, 1, &plain);
    check_base(&l);
}

TEST_LIMIT(experts_beside_a_shared_one_and_dense_layers, 600) {
    struct world_layout l = layout(2, 2, 1, 1, 2, 1, ONE, 1, &plain);
    l.model = "shared";
    check_close(&l);
    check_base(&l);
    l = layout(1, 2, 1, 2, 2, 1, ONE, 1, &plain);
    l.model = "shared";
    check_close(&l);
    l = layout(2, 1, 1, 1, 1, 0, ZBH1, 1, &plain);
    l.model = "shared";
    check_base(&l);
}

TEST_LIMIT(experts_in_bf16, 600) {
    struct world_layout l = layout(2, 2, 1, 1, 2, 1, ONE, 1, &plain);
    l.bf16 = true;
    check_base(&l);
    struct world_layout other = l;
    other.recompute = RECOMPUTE_FULL;
    check_same(&l, &other);
    l = layout(1, 2, 1, 1, 2, 3, ONE, 1, &plain);
    l.bf16 = true;
    l.rows = 4; // one micro-batch a step
    check_base(&l);
}

TEST_LIMIT(experts_balance_by_bias, 600) {
    struct engine_experts bias = {.bias_rate = 0.01};
    struct world_layout l = layout(1, 2, 1, 1, 2, 0, ONE, 1, &bias), other;
    other = layout(2, 2, 1, 1, 2, 1, ONE, 1, &bias);
    check_same(&other, &l);
    check_close(&l);
    other = l; // the bias is state
    other.resume_at = 2;
    check_same(&other, &l);
    struct world_layout sharded = layout(1, 2, 1, 1, 2, 1, ONE, 1, &bias);
    other.resume_as = &sharded;
    check_same(&other, &l);
    struct world_result with, without;
    l.steps = WORLD_STEPS;
    world_run(&l, &with);
    l.experts.bias_rate = 0;
    world_run(&l, &without);
    CHECK(memcmp(with.weights, without.weights, with.weight_count * sizeof(float)) != 0);
    world_free(&with), world_free(&without);
}
