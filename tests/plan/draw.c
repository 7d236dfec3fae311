// Pictures of plans: what must stand in them, and that they stay light.
#include "plan/draw.h"
#include "plan/draw_chart.h"
#include "plan/jobs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct test_layout seventy = {
    "llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 1, 1, 2, 4096, 256, PIPELINE_1F1B};

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) count++;
    return count;
}

// One picture, whole, without values that are no numbers, below 200 KB.
static void check_svg(const struct text *out) {
    CHECK(strncmp(out->data, "<svg ", 5) == 0);
    CHECK_STR(out->data + out->size - 7, "</svg>\n");
    CHECK_EQ_INT(count_of(out->data, "<svg "), 1);
    CHECK_EQ_INT(count_of(out->data, "<text "), count_of(out->data, "</text>"));
    CHECK(!strstr(out->data, "nan") && !strstr(out->data, "inf"));
    CHECK(out->size < 200000);
}

static void plan(struct job *job, struct estimate *estimate) {
    struct err err = {0};
    test_job(&seventy, job);
    CHECK_OK(estimate_step(job, false, estimate, &err), err);
}

TEST(draw_waterfall_adds_up) {
    struct job job;
    struct estimate e;
    struct err err = {0};
    struct text out = {0};
    char mfu[32];
    plan(&job, &e);
    CHECK_OK(draw_waterfall(&e, "70B <1>", &out, &err), err);
    check_svg(&out);
    CHECK_CONTAINS(out.data, "70B &lt;1&gt;");
    snprintf(mfu, sizeof mfu, "%.1f %%", 100 * e.mfu_causal);
    CHECK_CONTAINS(out.data, mfu);
    CHECK_CONTAINS(out.data, "T_fwd + max(T_bwd, T_comm) + T_opt");
    for (int i = 0; i < e.waterfall_lines; i++)
        if (e.waterfall[i].share >= 0.0005) CHECK_CONTAINS(out.data, e.waterfall[i].name);
    text_free(&out);
    estimate_free(&e);
}

TEST(draw_memory_rows) {
    struct job job;
    struct estimate e;
    struct err err = {0};
    struct text out = {0};
    plan(&job, &e);
    double limit = job.cluster.accelerator.memory_bytes.value;
    CHECK_OK(draw_memory(e.memory, e.memory_ranks, limit, "memory", &out, &err), err);
    check_svg(&out);
    CHECK_EQ_INT(count_of(out.data, "in flight"), 4);
    CHECK_EQ_INT(count_of(out.data, "class=\"limit\""), 1);
    CHECK_CONTAINS(out.data, "weights");
    text_free(&out);
    CHECK_OK(draw_memory(e.memory, e.memory_ranks, 0, "memory", &out, &err), err);
    CHECK_EQ_INT(count_of(out.data, "class=\"limit\""), 0);
    text_free(&out);
    CHECK_EQ_INT(draw_memory(e.memory, 0, 0, "memory", &out, &err), -1);
    CHECK_CONTAINS(err.text, "nothing to draw");
    estimate_free(&e);
}

TEST(draw_scaling_has_each_tuning) {
    struct job job;
    struct err err = {0};
    struct text out = {0};
    int worlds[DRAW_SCALING_MOST];
    test_job(&seventy, &job);
    CHECK_EQ_INT(draw_scaling_worlds(&job, worlds), 7);
    CHECK_EQ_INT(worlds[0], 32); // one replica
    CHECK_EQ_INT(worlds[6], 2048);
    CHECK_OK(draw_scaling(&job, SCALING_WEAK, "scaling", &out, &err), err);
    check_svg(&out);
    for (int t = 0; t < SCALING_TUNINGS; t++)
        CHECK_CONTAINS(out.data, scaling_tuning_name((enum scaling_tuning)t));
    CHECK_CONTAINS(out.data, ">2048<");
    text_free(&out);
    // a layout without tensor ranks cannot spread them over hosts: no line, no legend
    job.layout.mesh.size[MESH_DP] *= job.layout.mesh.size[MESH_TP];
    job.layout.mesh.shard = job.layout.mesh.size[MESH_DP];
    job.layout.mesh.size[MESH_TP] = 1;
    CHECK_OK(draw_scaling(&job, SCALING_WEAK, "scaling", &out, &err), err);
    check_svg(&out);
    CHECK(!strstr(out.data, scaling_tuning_name(SCALING_TENSOR_ACROSS)));
    CHECK_CONTAINS(out.data, scaling_tuning_name(SCALING_NO_OVERLAP));
    text_free(&out);
}

TEST(draw_cost_points) {
    const struct draw_layout layouts[] = {{"tp 8", 0.45, 100, true},
                                          {"", 0.40, 112, true},
                                          {"", 0.30, 150, true},
                                          {"", 0.47, 95, false}};
    struct err err = {0};
    struct text out = {0};
    CHECK_OK(draw_cost(layouts, 4, "dollars", "cost", &out, &err), err);
    check_svg(&out);
    CHECK_EQ_INT(count_of(out.data, "r=\"3.5\""), 4);
    CHECK_CONTAINS(out.data, "too large for memory");
    CHECK_CONTAINS(out.data, "the plan: tp 8");
    text_free(&out);
    CHECK_OK(draw_cost(layouts, 1, "dollars", "cost", &out, &err), err);
    CHECK_EQ_INT(count_of(out.data, "r=\"3.5\""), 1);
    CHECK(!strstr(out.data, "too large"));
    text_free(&out);
}

TEST(draw_interval_curves) {
    struct runs runs;
    struct err err = {0};
    struct text out = {0};
    runs_defaults(&runs);
    runs.nodes = 64;
    runs.step_seconds = 2;
    runs.steps = 1296000;
    runs.spares = 4;
    CHECK_OK(draw_interval(&runs, 20, 1, "interval", &out, &err), err);
    check_svg(&out);
    CHECK_EQ_INT(count_of(out.data, "r=\"3.5\""), 9);
    CHECK_CONTAINS(out.data, "1 % per accelerator-week");
    CHECK(!strstr(out.data, "given rate")); // the run's is the default
    text_free(&out);
    runs.failures_per_node_day = 0.002;
    CHECK_OK(draw_interval(&runs, 20, 1, "interval", &out, &err), err);
    CHECK_CONTAINS(out.data, "given rate");
    text_free(&out);
    runs.failures_per_node_day = 0; // nothing ever fails: still a picture
    CHECK_OK(draw_interval(&runs, 20, 1, "interval", &out, &err), err);
    check_svg(&out);
    text_free(&out);
    runs.nodes = 0;
    CHECK_EQ_INT(draw_interval(&runs, 20, 1, "interval", &out, &err), -1);
    CHECK_CONTAINS(err.text, "nodes 0");
}

TEST(draw_chart_leaves_out_what_is_no_number) {
    const double x[] = {1, 2, 3, 4}, y[] = {1, NAN, 3, 4};
    const struct draw_series series = {"s", x, y, NULL, NULL, 4, DRAW_LINE, 0};
    const struct draw_chart chart = {
        .title = "t", .x_label = "x", .y_label = "y", .series = &series, .count = 1};
    struct err err = {0};
    struct text out = {0};
    CHECK_OK(draw_chart(&chart, &out, &err), err);
    check_svg(&out);
    // the curve is broken at the missing point
    const char *path = strstr(out.data, "class=\"l s0\"");
    CHECK(path && strchr(path, 'M'));
    CHECK(count_of(path, "M") >= 2);
    text_free(&out);
    const double none[] = {NAN, NAN, NAN, NAN};
    const struct draw_series empty = {"s", x, none, NULL, NULL, 4, DRAW_LINE, 0};
    struct draw_chart nothing = chart;
    nothing.series = &empty;
    CHECK_EQ_INT(draw_chart(&nothing, &out, &err), -1);
    CHECK_CONTAINS(err.text, "nothing to draw");
}
