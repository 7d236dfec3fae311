// Why a layout is as it is: traps with their figures and remedies, rules of thumb beside what
// holds.
#include "plan/trail.h"
#include "model/families.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct told {
    struct catalogue *catalogue;
    struct cluster cluster;
    struct model_config model;
    struct search_request request;
    struct search_entry entry;
    struct job job;
    struct estimate estimate;
    struct trail trail;
};

// The one layout that the pins leave, or the best of them.
static struct told *tell(const char *model, const char *cluster, int64_t batch, int context,
                         const char *const pins[], double checkpoint_seconds) {
    struct told *t = calloc(1, sizeof *t);
    struct search_result *r = calloc(1, sizeof *r);
    struct err err = {0};
    CHECK(t != NULL && r != NULL);
    CHECK_OK(catalogue_open(&t->catalogue, &err), err);
    CHECK_OK(catalogue_cluster(t->catalogue, cluster, &t->cluster, &err), err);
    CHECK_OK(model_preset(model, &t->model, &err), err);
    t->request = (struct search_request){.model = &t->model,
                                         .cluster = &t->cluster,
                                         .stack = catalogue_stack(t->catalogue, "weft", &err),
                                         .batch = batch,
                                         .context = context,
                                         .best = 1};
    for (int i = 0; pins[i]; i++) CHECK_OK(search_pin(&t->request.pins, pins[i], &err), err);
    CHECK_OK(search_run(&t->request, r, &err), err);
    CHECK_EQ_INT(r->count, 1);
    t->entry = r->best[0];
    free(r);
    CHECK_OK(search_job(&t->request, &t->entry.choice, &t->job, &err), err);
    CHECK_OK(estimate_step(&t->job, false, &t->estimate, &err), err);
    struct trail_subject subject = {&t->request,  &t->entry,          &t->job,
                                    &t->estimate, checkpoint_seconds, 100000};
    CHECK_OK(trail_make(&subject, &t->trail, &err), err);
    return t;
}

static void forget(struct told *t) {
    estimate_free(&t->estimate);
    catalogue_close(t->catalogue);
    free(t);
}

static const char *line(const struct told *t, enum trail_kind kind, const char *name) {
    for (int i = 0; i < t->trail.count; i++)
        if (t->trail.lines[i].kind == kind && strcmp(t->trail.lines[i].name, name) == 0)
            return t->trail.lines[i].text;
    return NULL;
}

static const char *found(const struct told *t, enum trail_kind kind, const char *name) {
    const char *text = line(t, kind, name);
    if (!text) test_fail(__FILE__, __LINE__, "the trail says nothing of %s", name);
    return text;
}

// The chapters' example: 70B, tp 8, pp 4, dp 16, 8 micro-batches; bubble 3/11 = 27.3 %, 8.6 % by
// the rule.
TEST(trail_of_the_chapters_layout) {
    struct told *t = tell(
        "llama3-70b", "dgx-h100:512", 512, 4096,
        (const char *[]){"tp=8", "pp=4", "dp=16", "micro=4", "schedule=1f1b", "zero=3", NULL}, 0);
    const char *bubble = found(t, TRAIL_CHAPTER, "bubble");
    CHECK_CONTAINS(bubble, "32 micro-batches and a bubble of 8.6 %");
    CHECK_CONTAINS(bubble, "= 8, (p-1)/(p-1+m) is 27.3 %");
    const char *few = found(t, TRAIL_TRAP, "micro_batches");
    CHECK_CONTAINS(few, "8 in each pipeline of 4 ranks");
    CHECK_CONTAINS(few, "at least 28, a batch of 1792");
    CHECK_CONTAINS(found(t, TRAIL_CHAPTER, "zero3"), "2.2");
    CHECK_CONTAINS(found(t, TRAIL_CHAPTER, "link"), "900 GB/s, both directions together: 450");
    CHECK_CONTAINS(found(t, TRAIL_CHOICE, "tp"), "inside the fast domain of 8");
    CHECK_CONTAINS(found(t, TRAIL_CHOICE, "tp"), "tp 16");
    CHECK(line(t, TRAIL_TRAP, "tp_across_hosts") == NULL);
    CHECK(line(t, TRAIL_TRAP, "checkpoint_interval") == NULL);
    forget(t);
}

// M >= 4 PP does not keep the bubble below 10 %.
TEST(trail_of_four_times_the_ranks) {
    struct told *t =
        tell("llama3-8b", "dgx-h100:32", 128, 4096,
             (const char *[]){"tp=1", "pp=4", "dp=8", "micro=1", "schedule=1f1b", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_CHAPTER, "micro_batches"), "leave 15.8 %");
    CHECK_CONTAINS(found(t, TRAIL_CHAPTER, "micro_batches"), "9 (PP - 1) = 27");
    forget(t);
}

TEST(trail_warns_of_hosts) {
    struct told *t = tell("llama3-70b", "dgx-h100:64", 64, 8192,
                          (const char *[]){"tp=16", "pp=1", "cp=2", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "tp_across_hosts"), "tp 16, but 8 accelerators");
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "tp_across_hosts"), "tp 8 stays inside");
    CHECK(found(t, TRAIL_TRAP, "context_across_hosts") != NULL);
    forget(t);
    t = tell("mixtral-8x7b", "dgx-h100:64", 64, 4096, (const char *[]){"tp=4", "ep=8", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "experts_across_hosts"), "ep 8 x tp 4");
    CHECK(found(t, TRAIL_TRAP, "expert_balance") != NULL);
    CHECK_CONTAINS(found(t, TRAIL_CHOICE, "ep"), "1 of 8 experts");
    forget(t);
}

// GPT-2 XL: 1600 = 25 x 64 wide, 50257 ids; and a model whose width no unit likes.
TEST(trail_warns_of_dimensions) {
    struct told *t = tell("gpt2-1558m", "dgx-h100:8", 64, 1024, (const char *[]){"tp=1", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "vocabulary"), "50257 is padded to 50304");
    CHECK(line(t, TRAIL_TRAP, "dimension") == NULL);
    forget(t);
    t = tell("llama-42m", "dgx-h100:8", 64, 1024, (const char *[]){"tp=8", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "dimension"), "ffn is 1376 and, cut, 172 on a rank");
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "dimension"), "no multiple of 16");
    forget(t);
}

// The head of a small model with a large vocabulary: layers move away from the last stage, and the
// step gets shorter.
// weft computes on processors; what it would do on another accelerator is no run of its own.
TEST(trail_says_what_no_run_has_shown) {
    struct told *t = tell("llama-42m", "dgx-h100:8", 64, 1024, (const char *[]){"tp=1", NULL}, 0);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "program"), "no run has shown");
    forget(t);
    t = tell("llama-42m", "epyc-9654-2s:2", 64, 1024, (const char *[]){"tp=1", NULL}, 0);
    CHECK(line(t, TRAIL_TRAP, "program") == NULL);
    forget(t);
}

TEST(trail_moves_layers_from_the_head) {
    const char *text, *says;
    struct told *t =
        tell("qwen2.5-1.5b", "dgx-h100:8", 256, 4096,
             (const char *[]){"pp=4", "dp=2", "micro=1", "schedule=1f1b", "ends=false", NULL}, 0);
    text = found(t, TRAIL_TRAP, "imbalance");
    CHECK_CONTAINS(text, "it holds the head");
    says = strstr(text, "pipeline.layers=");
    if (!says) test_fail(__FILE__, __LINE__, "no list of layers: %s", text);
    int layers[4], sum = 0;
    double seconds;
    CHECK_EQ_INT(sscanf(says, "pipeline.layers=%d,%d,%d,%d would take %lf", &layers[0], &layers[1],
                        &layers[2], &layers[3], &seconds),
                 5);
    for (int i = 0; i < 4; i++) sum += layers[i];
    CHECK_EQ_INT(sum, 28);
    CHECK(layers[3] < 7);
    CHECK(seconds < t->estimate.step_seconds);
    forget(t);
}

TEST(trail_judges_the_checkpoint_interval) {
    const char *const pins[] = {"tp=8", NULL};
    struct told *t = tell("llama3-70b", "dgx-h100:512", 512, 8192, pins, 1e5);
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "checkpoint_interval"), "every 100000 s is rare for 64");
    CHECK_CONTAINS(found(t, TRAIL_TRAP, "checkpoint_interval"), "loses 50000 s");
    forget(t);
}

// What the runners-up lose is a difference of the two waterfalls in seconds.
TEST(trail_finds_the_costliest_line) {
    struct estimate a = {.step_seconds = 2, .waterfall_lines = 2}, b = a;
    a.waterfall[0] = (struct waterfall_line){"bubble", 0.1};
    a.waterfall[1] = (struct waterfall_line){"optimizer", 0.2};
    b.step_seconds = 3;
    b.waterfall[0] = (struct waterfall_line){"bubble", 0.3};
    b.waterfall[1] = (struct waterfall_line){"optimizer", 0.2};
    double seconds;
    CHECK_STR(trail_costliest(&a, &b, &seconds), "bubble");
    CHECK_CLOSE(seconds, 0.7, 1e-12);
    CHECK(trail_costliest(&b, &a, &seconds) == NULL);
    CHECK_CLOSE(seconds, 0, 1e-12);
}
