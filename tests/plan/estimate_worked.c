// Steps foretold against figures worked out by hand: the example of the chapters (70B on 512 H100),
// and states that travel by unit.
#include "plan/estimate.h"
#include "plan/estimate_parts.h"
#include "plan/jobs.h"
#include <math.h>

static void estimate(const struct job *job, struct estimate *out) {
    struct err err = {0};
    CHECK_OK(estimate_step(job, true, out, &err), err);
}

// Micro-batches per pipeline are global batch / (dp x micro-batch) = 8, not 32: bubble 3/11.
TEST(seventy_billion_has_eight_micro_batches) {
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    CHECK_EQ_INT(job.layout.mesh.size[MESH_DP], 16);
    CHECK_EQ_INT(job.micro_batches, 8);
    estimate(&job, &e);
    CHECK_CLOSE(e.bubble_formula, 3.0 / 11, 1e-12);
    CHECK(e.bubble >= 3.0 / 11); // stages are not equal, and messages take time
    estimate_free(&e);
}

// Equal stages and nothing but layers: the simulated bubble is the formula.
TEST(bubble_of_equal_stages) {
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    struct stack stack = *job.stack;
    stack.step_seconds.value = 0;
    job.stack = &stack;
    job.model.vocab = 64 * 8;
    job.cluster.slow.bandwidth.value = job.cluster.fast.bandwidth.value = 1e18;
    job.cluster.slow.latency_seconds.value = job.cluster.fast.latency_seconds.value = 0;
    job.cluster.fabric.hop_seconds.value = 0;
    job.micro_batches = 8;
    estimate(&job, &e);
    CHECK_CLOSE(e.bubble, 3.0 / 11, 0.01);
    estimate_free(&e);
}

// 20 layers x (2 forward + 2 backward) x 8 micro-batches x 0.522 ms (2 x 7/8 x 134 MB over 450 GB/s
// one way) = 334 ms per GPU and step.
TEST(tensor_messages_take_334_ms) {
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    job.no_overlap = true;
    test_plain_links(&job);
    estimate(&job, &e);
    const struct estimate_stage *s = &e.stages[1]; // no end of the model
    double once = s->pass[COST_FORWARD].cause[CAUSE_TENSOR] + s->whole.cause[CAUSE_TENSOR];
    CHECK_CLOSE(8 * once, 0.334, 0.002 / 0.334);
    estimate_free(&e);
}

// ZeRO-3 beside TP 8 and PP 4 gathers 140 GB / 32 x 15/16 = 4.1 GB in 82 ms at 50 GB/s; with 8
// micro-batches x (gather, gather, scatter) 98 GB in 1.97 s; gradients added up unsharded 70 GB in
// 1.39 s; ZeRO-1 8.2 GB in 0.16 s. (70e9 parameters; the model has 70.55e9.)
TEST(sharded_states_of_seventy_billion) {
    struct job job;
    struct estimate e;
    struct test_layout l = test_seventy;
    double flight[3], more = 70.55 / 70;
    l.zero = 3;
    for (int k = 0; k < 3; k++) {
        test_job(&l, &job);
        test_plain_links(&job);
        struct stack stack = *job.stack;
        stack.own = true; // adds up unsharded where a job says so
        job.reduce_type = DTYPE_BF16;
        job.stack = &stack;
        job.reduce_per_micro_batch = k == 0;
        if (k == 2) job.layout.zero = 1;
        estimate(&job, &e);
        flight[k] = 0;
        for (int s = 0; s < 4; s++)
            flight[k] +=
                (8 * e.stages[s].shard_flight + e.stages[s].reduce + e.stages[s].reduce_behind +
                 e.stages[s].gather + e.stages[s].gather_first + e.updates[s].gather) /
                4;
        estimate_free(&e);
    }
    CHECK_CLOSE(flight[0] / more, 1.97, 0.005);
    CHECK_CLOSE(flight[1] / more, 1.39, 0.01);
    CHECK_CLOSE(flight[2] / more, 0.164, 0.005);
}

// 450, 1100, 1050 and 80 ms: 2,680 without overlap, 1,630 with all hidden, 1,945 with 70 %.
TEST(overlap_formulas_of_the_chapter) {
    CHECK_CLOSE(estimate_share_formula(450, 1100, 1050, 80, 0), 2680, 1e-12);
    CHECK_CLOSE(estimate_overlap_formula(450, 1100, 1050, 80), 1630, 1e-12);
    CHECK_CLOSE(estimate_share_formula(450, 1100, 1050, 80, 0.7), 1945, 1e-12);
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    estimate(&job, &e);
    CHECK_CLOSE(e.overlap_formula_seconds,
                estimate_overlap_formula(e.forward_seconds, e.backward_seconds, e.message_seconds,
                                         e.update_seconds),
                1e-12);
    CHECK(e.overlap_formula_seconds < e.step_seconds); // it knows no bubble
    estimate_free(&e);
}

// ---- sharded states

// weft's engine moves a unit at a time. On links without latency that changes no sum; with one,
// each of the 34 gathers (embedding, 32 layers, head) has its own.
TEST(own_shards_travel_by_unit) {
    struct test_layout l = {"llama3-8b", "h100-sxm:8", "weft", 1, 1, 1, 1, 1, 1, 4096,
                            8,           PIPELINE_1F1B};
    double seconds[2][2]; // latency, hidden or not
    for (int late = 0; late < 2; late++)
        for (int open = 0; open < 2; open++) {
            struct job job;
            struct estimate e;
            struct err err = {0};
            test_job(&l, &job);
            test_plain_links(&job);
            job.cluster.fast.start_seconds.value = late ? 1e-3 : 0;
            job.no_overlap = open;
            CHECK_OK(estimate_step(&job, true, &e, &err), err);
            const struct estimate_stage stage = e.stages[0];
            const struct estimate_update update = e.updates[0];
            estimate_free(&e);
            seconds[late][open] = open ? update.gather : stage.gather_first + stage.gather;
            if (!open) CHECK_EQ_INT(stage.gather_pieces, 33);
            CHECK((open ? stage.gather_first + stage.gather : update.gather) == 0);
        }
    // 8.03e9 weights in BF16, 7/8 of them over 450 GB/s
    CHECK_CLOSE(seconds[0][0], 8.03e9 * 2 * 7 / 8 / 450e9, 0.002);
    for (int open = 0; open < 2; open++) {
        CHECK_CLOSE(seconds[0][open], seconds[0][0], 1e-9);
        CHECK_CLOSE(seconds[1][open] - seconds[0][open], 34e-3, 1e-9);
    }
}

// Three units of 1e9 weights over 8 ranks at 450 GB/s: a gather of 7/8 x 2 GB takes 3.889 ms, a
// scatter of FP32 gradients 7.778 ms.
TEST(sharded_units_hide_behind_each_other) {
    struct test_layout l = {"llama3-8b", "h100-sxm:8", "fsdp", 1, 1, 1, 1, 3, 1, 4096,
                            8,           PIPELINE_1F1B};
    const struct {
        bool overlap;
        double compute, forward, backward;
    } cases[] = {
        // long enough: the first gather and the last scatter are seen
        {true, 20e-3, 3.889e-3, 7.778e-3},
        // 1 ms forward, so 3.889 + 2 x 2.889; backward 2 ms: 1.889, 9.667 and 5.778, then the last
        {true, 1e-3, 9.667e-3, 25.111e-3},
        // three gathers; two gathers and three scatters
        {false, 20e-3, 11.667e-3, 31.111e-3}};
    for (int k = 0; k < 3; k++) {
        struct job job;
        test_job(&l, &job);
        test_plain_links(&job);
        struct stack stack = *job.stack;
        stack.reduce = DTYPE_F32;
        stack.overlap_gather = stack.overlap_reduce = cases[k].overlap;
        job.stack = &stack;
        struct estimate_unit units[3];
        for (int u = 0; u < 3; u++)
            units[u] = (struct estimate_unit){
                cases[k].compute, cases[k].compute, cases[k].compute, {.dense = 1e9}};
        struct estimate_view view;
        struct estimate_stage stage = {0};
        estimate_view_open(&view, &job);
        estimate_states(&view, units, 3, 0, &stage);
        CHECK(fabs(stage.shard_forward - cases[k].forward) < 2e-6);
        CHECK(fabs(stage.shard_backward - cases[k].backward) < 2e-6);
    }
}
