// Steps foretold: sums that must hold whatever the prices are, and worked values.
#include "plan/estimate.h"
#include "base/random.h"
#include "plan/estimate_parts.h"
#include "plan/jobs.h"
#include <math.h>

static void estimate(const struct job *job, struct estimate *out) {
    struct err err = {0};
    CHECK_OK(estimate_step(job, true, out, &err), err);
}

static double seconds_of(const struct job *job) {
    struct estimate e;
    estimate(job, &e);
    double seconds = e.step_seconds;
    estimate_free(&e);
    return seconds;
}

// ---- what holds for every job

static const struct test_layout jobs[] = {
    {"gpt2-124m", "h100-sxm:1", "weft", 1, 1, 1, 1, 0, 4, 1024, 16, PIPELINE_1F1B},
    {"llama3-8b", "h100-sxm:8", "fsdp", 1, 1, 1, 1, 3, 1, 4096, 16, PIPELINE_1F1B},
    {"llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 1, 1, 2, 4096, 256, PIPELINE_1F1B},
    {"llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 5, 1, 1, 4096, 256,
     PIPELINE_INTERLEAVED},
    {"llama3-70b", "a100-80:256", "megatron-2021", 4, 8, 1, 1, 1, 1, 4096, 256, PIPELINE_GPIPE},
    {"llama3-70b", "h100-sxm:64", "megatron-core", 4, 8, 2, 1, 0, 1, 8192, 32, PIPELINE_ZB_H1},
    {"llama3-70b", "h100-sxm:64", "megatron-core", 8, 4, 1, 2, 1, 1, 8192, 32, PIPELINE_ZB_V},
    {"mixtral-8x7b", "h100-sxm:64", "megatron-core", 2, 4, 1, 1, 1, 1, 4096, 256, PIPELINE_1F1B}};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

TEST(waterfall_ends_at_mfu) {
    for (int k = 0; k < JOBS; k++)
        for (int variant = 0; variant < 3; variant++) {
            struct job job;
            struct estimate e;
            struct err err = {0};
            test_job(&jobs[k], &job);
            if (variant == 1) job.recompute = RECOMPUTE_FULL;
            job.no_overlap = variant == 2;
            job.data_seconds = 0.01;
            CHECK_OK(estimate_step(&job, false, &e, &err), err);
            double left = 1;
            for (int i = 0; i < e.waterfall_lines; i++) {
                left -= e.waterfall[i].share;
                if (e.waterfall[i].share < -1e-12)
                    test_fail(__FILE__, __LINE__, "job %d.%d: %s is %g", k, variant,
                              e.waterfall[i].name, e.waterfall[i].share);
            }
            CHECK_CLOSE(left, e.mfu_causal, 1e-9);
            CHECK(e.mfu_causal > 0.01 && e.mfu_causal < e.mfu_full && e.mfu_full < 1);
            CHECK(variant == 1 ? e.hfu > e.mfu_full : e.hfu >= e.mfu_full);
            CHECK(e.bubble > -1e-9 && e.bubble < 1);
            CHECK(e.bubble_without_messages > -1e-9 &&
                  e.bubble_without_messages <= e.bubble + 1e-9);
            estimate_free(&e);
        }
}

TEST(tokens_and_rates_agree) {
    for (int k = 0; k < JOBS; k++) {
        struct job job;
        struct estimate e;
        test_job(&jobs[k], &job);
        estimate(&job, &e);
        double tokens = (double)jobs[k].sequences * jobs[k].context;
        double ranks = mesh_ranks(&job.layout.mesh);
        CHECK_CLOSE(e.tokens_per_second * e.step_seconds, tokens, 1e-9);
        CHECK_CLOSE(e.mfu_full * e.step_seconds * ranks * e.rate, e.model_flops_full, 1e-9);
        estimate_free(&e);
    }
}

// What costs more must not be foretold as quicker.
TEST(steps_grow_with_their_parts) {
    for (int k = 0; k < JOBS; k++) {
        struct job job, other;
        test_job(&jobs[k], &job);
        double before = seconds_of(&job);
        other = job;
        other.recompute = RECOMPUTE_FULL;
        CHECK(seconds_of(&other) > 1.1 * before);
        other = job;
        other.no_overlap = true;
        CHECK(seconds_of(&other) >= before * (1 - 1e-9));
        other = job;
        other.micro_batches *= 2;
        double twice = seconds_of(&other);
        CHECK(twice > 1.2 * before && twice < 2.05 * before);
        other = job;
        other.checkpoint_seconds = 3;
        CHECK_CLOSE(seconds_of(&other), before + 3, 1e-9);
        other = job;
        other.cluster.slow.bandwidth.value /= 4;
        other.cluster.fast.bandwidth.value /= 4;
        CHECK(seconds_of(&other) >= before * (1 - 1e-9));
    }
}

TEST(messages_left_out_are_what_is_exposed) {
    struct job job;
    struct estimate e;
    struct err err = {0};
    test_job(&test_seventy, &job);
    job.no_overlap = true;
    CHECK_OK(estimate_step(&job, false, &e, &err), err);
    CHECK(e.exposed_reduce > 0 && e.exposed_gather > 0 && e.exposed_pipeline > 0);
    CHECK(e.exposed_tensor > 0);
    CHECK_EQ_INT(e.exposed_expert == 0 && e.exposed_context == 0, true);
    double sum = e.exposed_reduce + e.exposed_gather + e.exposed_pipeline + e.exposed_tensor;
    CHECK(sum < e.step_seconds);
    estimate_free(&e);
}

// Requirement 137: the head makes the last stage the slowest; two layers less on it, and the step
// is shorter.
TEST(layers_move_away_from_a_heavy_head) {
    struct job job, other;
    struct err err = {0};
    struct test_layout l = test_seventy;
    l.model = "llama3-8b";
    l.cluster = "h100-sxm:8";
    l.tp = 1;
    l.pp = 4;
    l.rows = 1;
    l.sequences = 16;
    test_job(&l, &job);
    CHECK_EQ_INT(job.micro_batches, 8);
    other = job;
    const int layers[4] = {9, 9, 8, 6};
    CHECK_OK(layout_split_layers(&other.layout, &other.model, layers, 4, false, &err), err);
    CHECK(seconds_of(&other) < 0.97 * seconds_of(&job));
}

// ---- what figures do

// Requirement 135: half the bandwidth between hosts, twice the time of what crosses them, and no
// other.
TEST(half_the_bandwidth_takes_twice_as_long) {
    struct job job, half;
    struct estimate e, slow;
    test_job(&test_seventy, &job);
    half = job;
    half.cluster.slow.bandwidth.value /= 2;
    estimate(&job, &e);
    estimate(&half, &slow);
    for (int s = 0; s < e.stage_count; s++) {
        CHECK_CLOSE(slow.stages[s].reduce / e.stages[s].reduce, 2, 0.05);
        CHECK(slow.stages[s].forward == e.stages[s].forward);
        CHECK(slow.stages[s].backward == e.stages[s].backward);
    }
    CHECK(slow.step_seconds > e.step_seconds);
    estimate_free(&slow);
    estimate_free(&e);
}

TEST(assumed_figures_are_said) {
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    struct stack stack = *job.stack;
    struct accelerator *a = &job.cluster.accelerator;
    struct figure *figures[] = {&a->memory_bandwidth,
                                &a->memory_share,
                                &a->kernel_seconds,
                                &stack.launch_seconds,
                                &stack.step_seconds,
                                &a->sustained[HARDWARE_BF16],
                                &a->dense[HARDWARE_BF16],
                                &a->fill_k,
                                &a->flash_forward,
                                &a->flash_backward,
                                &job.cluster.fast.bandwidth,
                                &job.cluster.fast.share,
                                &job.cluster.fast.latency_seconds,
                                &job.cluster.fast.half_bytes,
                                &job.cluster.fast.start_seconds,
                                &job.cluster.slow.bandwidth,
                                &job.cluster.slow.share,
                                &job.cluster.slow.latency_seconds,
                                &job.cluster.slow.half_bytes,
                                &job.cluster.slow.start_seconds};
    enum { FIGURES = sizeof figures / sizeof figures[0] };
    job.stack = &stack;
    for (int k = 0; k < FIGURES; k++) figures[k]->origin = FIGURE_MEASURED;
    estimate(&job, &e);
    CHECK(!e.assumed);
    estimate_free(&e);
    for (int k = 0; k < FIGURES; k++) {
        figures[k]->origin = FIGURE_ASSUMED;
        estimate(&job, &e);
        CHECK(e.assumed);
        estimate_free(&e);
        figures[k]->origin = FIGURE_MEASURED;
    }
}

// ---- long steps

// The prolonged steady state is the step of all micro-batches.
TEST(long_steps_are_prolonged_exactly) {
    static const enum pipeline_kind kinds[] = {PIPELINE_GPIPE, PIPELINE_1F1B, PIPELINE_INTERLEAVED,
                                               PIPELINE_ZB_H1, PIPELINE_ZB_V};
    uint64_t number = 0;
    for (int k = 0; k < 5; k++)
        for (int ranks = 1; ranks <= 8; ranks *= 2)
            for (int equal = 0; equal < 2; equal++) {
                struct job job;
                job_defaults(&job);
                job.schedule = kinds[k];
                job.layout.mesh.size[MESH_PP] = ranks;
                job.layout.chunks = k == 4 ? 2 : k == 2 ? 3 : 1;
                job.micro_batches = 150 + (int)(number % 5);
                struct pipeline_stage_costs stages[24];
                for (int s = 0; s < 24; s++) {
                    double f = equal ? 1 : 0.8 + 0.4 * random_uniform(7, number++);
                    stages[s] = (struct pipeline_stage_costs){.forward = f,
                                                              .input = 1.1 * f,
                                                              .weight = 0.9 * f,
                                                              .send_forward = 0.1,
                                                              .send_backward = 0.1};
                }
                struct pipeline_costs costs = {.stages = stages, .eager = true};
                struct pipeline folded, whole;
                struct pipeline_times times;
                struct err err = {0};
                double seconds;
                CHECK_OK(estimate_open_lists(&job, k % 2, false, &folded, &err), err);
                CHECK(folded.shape.micro_batches < job.micro_batches);
                CHECK_OK(estimate_simulate(&job, &folded, &costs, &seconds, NULL, &err), err);
                struct pipeline_shape shape = job_pipeline_shape(&job, job.micro_batches);
                CHECK_OK(pipeline_open(&whole, &shape, &err), err);
                CHECK_OK(pipeline_simulate(&whole, &costs, &times, &err), err);
                if (fabs(seconds / times.total - 1) > (kinds[k] == PIPELINE_ZB_V ? 3e-3 : 1e-9))
                    test_fail(__FILE__, __LINE__, "%s, %d ranks, %s: %.9g, whole %.9g",
                              pipeline_kind_name(kinds[k]), ranks, equal ? "equal" : "unequal",
                              seconds, times.total);
                pipeline_times_free(&times);
                pipeline_close(&whole);
                pipeline_close(&folded);
            }
}

// gpipe holds every micro-batch's activations, also of a long step.
TEST(folding_keeps_what_is_in_flight) {
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_1F1B; kind++) {
        struct job job;
        struct estimate e, quick;
        struct err err = {0};
        struct test_layout l = test_seventy;
        l.schedule = (enum pipeline_kind)kind;
        l.sequences = 2 * 16 * 100;
        test_job(&l, &job);
        CHECK_EQ_INT(job.micro_batches, 100);
        CHECK_OK(estimate_step(&job, false, &e, &err), err);
        estimate(&job, &quick);
        CHECK_EQ_INT(e.memory[0].in_flight, kind == PIPELINE_GPIPE ? 100 : 4);
        CHECK(quick.pipeline.shape.micro_batches < 100);
        CHECK_CLOSE(e.step_seconds, quick.step_seconds, 1e-9);
        estimate_free(&quick);
        estimate_free(&e);
    }
}

// Also a million micro-batches, and buckets of a few bytes, are a matter of moments.
TEST(absurd_numbers_take_no_longer) {
    struct job job;
    struct estimate e;
    test_job(&test_seventy, &job);
    double one = seconds_of(&job);
    job.micro_batches = 1000000;
    job.bucket_bytes = 64;
    estimate(&job, &e);
    CHECK(e.pipeline.shape.micro_batches < 100);
    CHECK(e.bubble_formula < 1e-5);
    CHECK(isfinite(e.step_seconds) && e.step_seconds > 80000 * one);
    estimate_free(&e);
}

// ---- bad input

static void refused(const struct job *job, const char *part) {
    struct estimate e;
    struct err err = {0};
    CHECK(estimate_step(job, true, &e, &err) != 0);
    CHECK_CONTAINS(err.text, part);
}

TEST(impossible_jobs_are_refused) {
    struct job job, bad;
    test_job(&test_seventy, &job);
    bad = job;
    bad.cluster.nodes = 63;
    refused(&bad, "512 ranks");
    bad = job;
    bad.micro_batches = 0;
    refused(&bad, "0 micro-batches");
    bad = job;
    bad.imbalance = 0.5;
    refused(&bad, "imbalance 0.5");
    bad = job;
    bad.data_seconds = NAN;
    refused(&bad, "stalls");
    bad = job;
    bad.schedule = PIPELINE_ZB_V;
    refused(&bad, "zb-v");
    bad = job;
    bad.layout.chunks = 3;
    refused(&bad, "1f1b");
    bad = job;
    bad.layout.mesh.size[MESH_TP] = 1 << 30;
    bad.layout.mesh.size[MESH_DP] = 1 << 30;
    refused(&bad, "ranks");
    bad = job;
    bad.precision = HARDWARE_FP4;
    refused(&bad, "fp4");
}
