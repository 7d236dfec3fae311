// Curves over the size of the world.
#include "plan/scaling.h"
#include "plan/jobs.h"

static const struct test_layout seventy = {
    "llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 1, 1, 1, 4096, 512, PIPELINE_1F1B};
static const int worlds[] = {32, 128, 512, 2048, 48};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

static void curve(enum scaling_kind kind, enum scaling_tuning tuning, struct scaling_point *out) {
    struct job job;
    struct err err = {0};
    test_job(&seventy, &job);
    CHECK_OK(estimate_scaling(&job, kind, tuning, worlds, WORLDS, out, &err), err);
}

TEST(weak_scaling_keeps_the_batch_of_a_rank) {
    struct scaling_point p[WORLDS];
    curve(SCALING_WEAK, SCALING_CHOSEN, p);
    for (int k = 0; k < 4; k++) {
        CHECK(p[k].possible);
        CHECK_EQ_INT(p[k].micro_batches, 32);
        CHECK_CLOSE(p[k].tokens_per_second * p[k].step_seconds, 32.0 * 4096 * worlds[k] / 32, 1e-9);
        if (k > 0) CHECK(p[k].mfu_full <= p[k - 1].mfu_full * (1 + 1e-9));
    }
    CHECK(p[3].mfu_full > 0.8 * p[0].mfu_full); // messages grow, but little
    CHECK(!p[4].possible);
    CHECK_CONTAINS(p[4].why, "48 ranks are no multiple of the 32");
}

TEST(strong_scaling_runs_out_of_micro_batches) {
    struct scaling_point p[WORLDS];
    curve(SCALING_STRONG, SCALING_CHOSEN, p);
    const int expected[4] = {512, 128, 32, 8};
    for (int k = 0; k < 4; k++) {
        CHECK(p[k].possible);
        CHECK_EQ_INT(p[k].micro_batches, expected[k]);
        CHECK_CLOSE(p[k].tokens_per_second * p[k].step_seconds, 512.0 * 4096, 1e-9);
        if (k > 0) CHECK(p[k].step_seconds < p[k - 1].step_seconds);
    }
    CHECK(p[3].mfu_full < 0.85 * p[1].mfu_full); // 3/11 of bubble against 3/131
}

TEST(mistunings_cost) {
    struct scaling_point good[WORLDS], bad[WORLDS];
    curve(SCALING_WEAK, SCALING_CHOSEN, good);
    for (int tuning = SCALING_CHOSEN + 1; tuning < SCALING_TUNINGS; tuning++) {
        curve(SCALING_WEAK, (enum scaling_tuning)tuning, bad);
        for (int k = 0; k < 4; k++) {
            CHECK(bad[k].possible);
            CHECK_CLOSE(bad[k].tokens_per_second * bad[k].step_seconds,
                        good[k].tokens_per_second * good[k].step_seconds, 1e-9);
            CHECK(bad[k].step_seconds > good[k].step_seconds);
            if (tuning == SCALING_FEW_MICRO_BATCHES) CHECK_EQ_INT(bad[k].micro_batches, 4);
            if (tuning == SCALING_TENSOR_ACROSS)
                CHECK(bad[k].step_seconds > 1.1 * good[k].step_seconds);
        }
    }
}

TEST(mistunings_that_the_layout_does_not_have) {
    struct test_layout l = seventy;
    struct scaling_point p;
    struct job job;
    struct err err = {0};
    int world = 8;
    l.model = "gpt2-124m";
    l.tp = l.pp = 1;
    l.cluster = "h100-sxm:8";
    test_job(&l, &job);
    CHECK_OK(estimate_scaling(&job, SCALING_WEAK, SCALING_TENSOR_ACROSS, &world, 1, &p, &err), err);
    CHECK(!p.possible);
    CHECK_CONTAINS(p.why, "no tensor parallelism");
    CHECK_OK(estimate_scaling(&job, SCALING_WEAK, SCALING_FEW_MICRO_BATCHES, &world, 1, &p, &err),
             err);
    CHECK(!p.possible);
    CHECK_CONTAINS(p.why, "no pipeline");
}
