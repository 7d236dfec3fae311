// The search over layouts: the same answers as trying everything, invariants, pinned values,
// refusals.
#include "plan/search.h"
#include "model/families.h"
#include "plan/emit.h"
#include "plan/trail.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

struct world {
    struct catalogue *catalogue;
    struct cluster cluster;
    struct model_config model;
    struct search_request request;
};

static void open_world(struct world *w, const char *model, const char *cluster, int64_t batch,
                       int context) {
    struct err err = {0};
    memset(w, 0, sizeof *w);
    CHECK_OK(catalogue_open(&w->catalogue, &err), err);
    CHECK_OK(catalogue_cluster(w->catalogue, cluster, &w->cluster, &err), err);
    CHECK_OK(model_preset(model, &w->model, &err), err);
    w->request = (struct search_request){.model = &w->model,
                                         .cluster = &w->cluster,
                                         .stack = catalogue_stack(w->catalogue, "weft", &err),
                                         .batch = batch,
                                         .context = context,
                                         .best = 8};
    CHECK(w->request.stack != NULL);
}

static void pin(struct world *w, const char *text) {
    struct err err = {0};
    CHECK_OK(search_pin(&w->request.pins, text, &err), err);
}

static struct search_result *run(struct world *w) {
    struct err err = {0};
    struct search_result *result = calloc(1, sizeof *result);
    CHECK(result != NULL);
    CHECK_OK(search_run(&w->request, result, &err), err);
    return result;
}

// Every candidate is an answer or has its reason.
static void check_counted(const struct search_result *r) {
    int64_t layouts = r->count, meshes = 0;
    for (int k = 0; k < SEARCH_REASONS; k++) {
        layouts += r->rejected[k];
        meshes += r->rejected_meshes[k];
    }
    CHECK_EQ_INT(layouts, r->layouts);
    CHECK(meshes < r->meshes);
}

// Of every answer: it fits, the batch is whole, the bound holds, and a try by itself agrees.
static void check_answers(const struct world *w, const struct search_result *r) {
    struct err err = {0};
    for (int i = 0; i < r->count; i++) {
        const struct search_entry *e = &r->best[i];
        const int *v = e->choice.value;
        struct search_entry again;
        int64_t micro_batches = w->request.batch / v[SEARCH_DP] / v[SEARCH_MICRO];
        CHECK_EQ_INT(v[SEARCH_TP] * v[SEARCH_PP] * v[SEARCH_CP] * v[SEARCH_DP],
                     w->cluster.nodes * w->cluster.per_node);
        CHECK_EQ_INT(micro_batches * v[SEARCH_DP] * v[SEARCH_MICRO], w->request.batch);
        CHECK(e->memory_bytes > 0 && e->memory_bytes <= search_capacity(&w->request));
        CHECK(e->bound_seconds <= e->step_seconds * (1 + 1e-9));
        CHECK_OK(search_try(&w->request, &e->choice, &again, &err), err);
        CHECK_CLOSE(again.step_seconds, e->step_seconds, 1e-9);
        CHECK_CLOSE(again.memory_bytes, e->memory_bytes, 1e-9);
        if (i > 0) CHECK(r->best[i - 1].step_seconds <= e->step_seconds * (1 + 1e-6));
    }
}

static void check_equal(const struct search_result *a, const struct search_result *b) {
    CHECK_EQ_INT(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        char one[192], two[192];
        CHECK_STR(search_choice_text(&a->best[i].choice, one),
                  search_choice_text(&b->best[i].choice, two));
        CHECK_CLOSE(a->best[i].step_seconds, b->best[i].step_seconds, 1e-12);
    }
}

static void check_against_all(const char *model, const char *cluster, const char *stack,
                              int64_t batch, int context, const char *pins[], bool every) {
    struct world w;
    struct err err = {0};
    open_world(&w, model, cluster, batch, context);
    w.request.stack = catalogue_stack(w.catalogue, stack, &err);
    CHECK(w.request.stack != NULL);
    for (int i = 0; pins[i]; i++) pin(&w, pins[i]);
    w.request.every = every;
    struct search_result *quick = run(&w);
    w.request.exhaustive = true;
    struct search_result *all = run(&w);
    CHECK_EQ_INT(all->rejected[REASON_SLOW_BOUND], 0);
    CHECK(quick->estimated < all->estimated);
    CHECK(quick->count > 0);
    check_equal(quick, all);
    check_counted(quick);
    check_counted(all);
    check_answers(&w, quick);
    free(quick);
    free(all);
    catalogue_close(w.catalogue);
}

// The requirement: a world of 8. All layouts of a model with few layers, then one that fills the
// memory, with some values pinned to keep the number of trials low.
TEST_LIMIT(search_is_trying_everything_small, 300) {
    const char *pins[] = {"count_ends=false", "sequence=true", "micro=1", NULL};
    check_against_all("llama-15m", "h100-sxm:8", "weft", 32, 256, pins, true);
    check_against_all("llama-15m", "h100-sxm:8", "weft", 32, 256, pins, false);
}

TEST_LIMIT(search_is_trying_everything_tight, 300) {
    const char *pins[] = {"count_ends=false", "micro=1", "schedule=1f1b", NULL};
    check_against_all("llama3-8b", "h100-sxm:8", "weft", 64, 8192, pins, true);
}

TEST_LIMIT(search_is_trying_everything_with_experts, 300) {
    const char *pins[] = {"count_ends=false", "micro=1", "schedule=1f1b", "recompute=none", NULL};
    check_against_all("qwen3-30b-a3b", "h200:16", "weft", 32, 4096, pins, true);
}

// Two nodes, programs that hide nothing or wait for the host, a processor.
TEST_LIMIT(search_is_trying_everything_with_other_stacks, 300) {
    const char *pins[] = {"count_ends=false", "micro=2", "zero=1", NULL};
    const char *sharded[] = {"count_ends=true", "micro=1", "schedule=interleaved", NULL};
    check_against_all("llama-110m", "h100-sxm:2x4", "megatron-core", 32, 1024, pins, true);
    check_against_all("llama-110m", "h100-sxm:2x4", "nanotron", 32, 1024, pins, true);
    check_against_all("llama3.2-1b", "a100-80:2x4", "megatron-deepspeed", 16, 2048, pins, true);
    check_against_all("llama3.2-1b", "a100-80:2x4", "fsdp", 16, 2048, sharded, true);
    check_against_all("llama-15m", "xeon-8480-2s:4", "weft", 32, 256, sharded, true);
}

// 7B dense, 16 x 80 GB, sequences of 4096.
TEST(search_7b_on_16) {
    struct world w;
    open_world(&w, "llama2-7b", "h100-sxm:16", 512, 4096);
    struct search_result *r = run(&w);
    CHECK(r->count >= 5);
    for (int i = 0; i < r->count; i++) CHECK(r->best[i].memory_bytes <= 80e9);
    check_counted(r);
    check_answers(&w, r);
    CHECK(r->rejected[REASON_MEMORY] > 0);
    CHECK(r->rejected[REASON_SLOW_BOUND] > 0);
    for (int k = 0; k < SEARCH_REASONS; k++)
        if (r->rejected[k] + r->rejected_meshes[k] > 0)
            CHECK(r->example[k].value[SEARCH_TP] > 0 && search_reason_text(k)[0]);
    free(r);
    catalogue_close(w.catalogue);
}

// Pinned keys never change, the global batch is an invariant.
TEST(search_keeps_pins) {
    struct world w;
    open_world(&w, "llama2-7b", "h100-sxm:16", 64, 4096);
    pin(&w, "micro=2");
    struct search_result *r = run(&w);
    CHECK(r->count >= 3);
    check_answers(&w, r);
    for (int i = 0; i < r->count; i++) {
        struct job job;
        struct err err = {0};
        CHECK_EQ_INT(r->best[i].choice.value[SEARCH_MICRO], 2);
        CHECK_OK(search_job(&w.request, &r->best[i].choice, &job, &err), err);
        CHECK_EQ_INT(job_sequences(&job), 64);
        CHECK_EQ_INT(job.rows, 2);
    }
    free(r);
    pin(&w, "tp=4");
    pin(&w, "zero=1");
    r = run(&w);
    for (int i = 0; i < r->count; i++) {
        CHECK_EQ_INT(r->best[i].choice.value[SEARCH_TP], 4);
        CHECK_EQ_INT(r->best[i].choice.value[SEARCH_ZERO], 1);
        CHECK_EQ_INT(r->best[i].choice.value[SEARCH_MICRO], 2);
    }
    free(r);
    catalogue_close(w.catalogue);
}

static void check_refused(struct world *w, const char *const parts[]) {
    struct err err = {0};
    struct search_result *r = calloc(1, sizeof *r);
    CHECK(r != NULL);
    CHECK_EQ_INT(search_run(&w->request, r, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK(strchr(err.text, '\n') == NULL);
    for (int i = 0; parts[i]; i++) CHECK_CONTAINS(err.text, parts[i]);
    free(r);
}

static void check_pin_refused(const char *pinned, const char *const parts[]) {
    struct world w;
    open_world(&w, "llama2-7b", "h100-sxm:16", 64, 4096);
    pin(&w, pinned);
    check_refused(&w, parts);
    catalogue_close(w.catalogue);
}

TEST(search_names_impossible_pins) {
    check_pin_refused("micro=3", (const char *[]){"micro_batch=3", "nearest that do: 1, 2", NULL});
    check_pin_refused("tp=3", (const char *[]){"tp=3", "1, 2", NULL});
    check_pin_refused("ep=2", (const char *[]){"ep=2", "experts", NULL});
    check_pin_refused("dp=128", (const char *[]){"dp=128", "nearest that do: 8 or 16", NULL});
    struct world w;
    open_world(&w, "llama2-7b", "h100-sxm:16", 64, 4096);
    pin(&w, "tp=8");
    pin(&w, "pp=4");
    check_refused(&w, (const char *[]){"tp=8", "pp=4", "with the others it can be", NULL});
    catalogue_close(w.catalogue);
}

TEST(search_reads_pins) {
    struct search_pins pins = {{0}, {0}};
    struct err err = {0};
    CHECK_OK(search_pin(&pins, "parallel.tp=8", &err), err);
    CHECK_OK(search_pin(&pins, "tp=8", &err), err);
    CHECK_OK(search_pin(&pins, "recompute=selective_mlp", &err), err);
    CHECK_OK(search_pin(&pins, "sp=false", &err), err);
    CHECK_EQ_INT(pins.value[SEARCH_TP], 8);
    CHECK_EQ_INT(pins.value[SEARCH_RECOMPUTE], RECOMPUTE_SELECTIVE_MLP);
    CHECK(pins.set[SEARCH_SEQUENCE] && pins.value[SEARCH_SEQUENCE] == 0);
    static const struct {
        const char *text, *part;
    } bad[] = {{"tp", "KEY=VALUE"},
               {"tq=8", "did you mean"},
               {"tp=x", "whole number from 1"},
               {"tp=0", "whole number from 1"},
               {"tp=4", "fixed to 8 already"},
               {"zero=4", "from 0 to 3"},
               {"schedule=zb", "gpipe, 1f1b, interleaved, zb-h1, zb-v"},
               {"pp=99999999999999999999", "whole number"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err fault = {0};
        CHECK_EQ_INT(search_pin(&pins, bad[i].text, &fault), -1);
        CHECK_CONTAINS(fault.text, bad[i].part);
    }
}

TEST(search_says_which_batch_and_world_would_do) {
    struct world w;
    open_world(&w, "llama2-7b", "h100-sxm:16", 64, 4096);
    w.cluster.nodes = 73; // 584 = 8 x 73: 73 divides neither heads, layers nor the batch
    check_refused(&w, (const char *[]){"584 accelerators", "a batch of 73", "576 accelerators (72",
                                       "tp does not divide the heads", NULL});
    w.request.batch = 0;
    check_refused(&w, (const char *[]){"global batch of 0", NULL});
    w.request.batch = 64;
    w.request.context = 0;
    check_refused(&w, (const char *[]){"context of 0", NULL});
    catalogue_close(w.catalogue);
}

// 70B on 8 accelerators: by how much, and how many nodes would do.
TEST(search_says_what_is_missing) {
    struct world w;
    struct err err = {0};
    struct search_shortage shortage;
    open_world(&w, "llama3-70b", "h100-sxm:8", 64, 8192);
    struct search_result *r = run(&w);
    CHECK_EQ_INT(r->count, 0);
    CHECK_EQ_INT(r->rejected[REASON_MEMORY], r->layouts);
    free(r);
    CHECK_OK(search_missing(&w.request, &shortage, &err), err);
    CHECK(shortage.short_bytes > 0);
    CHECK_CLOSE(shortage.short_bytes, shortage.least.memory_bytes - search_capacity(&w.request),
                1e-9);
    CHECK(shortage.nodes >= 2 && shortage.nodes <= 4); // 18 bytes x 70.6e9 are 16 x 79 GB
    w.cluster.nodes = shortage.nodes;
    r = run(&w);
    CHECK(r->count > 0);
    free(r);
    catalogue_close(w.catalogue);
}

TEST(search_is_deterministic_and_orders_ties) {
    struct world w;
    open_world(&w, "llama-110m", "h100-sxm:8", 64, 1024);
    struct search_result *a = run(&w), *b = run(&w);
    check_equal(a, b);
    check_counted(a);
    free(a);
    free(b);
    catalogue_close(w.catalogue);
}

// More memory or a quicker link never make the best step longer.
TEST(search_improves_with_the_machine) {
    struct world w;
    open_world(&w, "llama3-8b", "h100-sxm:16", 128, 8192);
    struct search_result *plain = run(&w);
    w.request.fill = 1;
    struct search_result *full = run(&w);
    CHECK(full->best[0].step_seconds <= plain->best[0].step_seconds);
    w.cluster.slow.bandwidth.value *= 4;
    struct search_result *quick = run(&w);
    CHECK(quick->best[0].step_seconds <= full->best[0].step_seconds);
    free(plain);
    free(full);
    free(quick);
    catalogue_close(w.catalogue);
}

// ---- the candidates are exactly those that the checks accept

// Orders of a pipeline that differ: without a pipeline there is one.
static bool is_order(int pp, int kind, int chunks) {
    if (pp == 1) return kind == PIPELINE_1F1B && chunks == 1;
    if (kind == PIPELINE_INTERLEAVED) return chunks >= 2;
    return chunks == (kind == PIPELINE_ZB_V ? 2 : 1);
}

static bool accepted(const struct world *w, const struct search_choice *choice) {
    struct job job;
    struct pipeline pipeline;
    if (search_job(&w->request, choice, &job, NULL) != 0) return false;
    struct pipeline_shape shape = job_pipeline_shape(&job, job.micro_batches);
    if (pipeline_open(&pipeline, &shape, NULL) != 0) return false;
    pipeline_close(&pipeline);
    return true;
}

static int64_t count_orders(const struct world *w, struct search_choice c) {
    int *v = c.value, layers = w->model.layers;
    int64_t count = 0;
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_ZB_V; kind++)
        for (int chunks = 1; chunks <= LAYOUT_MAX_CHUNKS; chunks++) {
            bool split = kind == PIPELINE_ZB_H1 || kind == PIPELINE_ZB_V;
            if (!is_order(v[SEARCH_PP], kind, chunks)) continue;
            if (split && v[SEARCH_RECOMPUTE] != RECOMPUTE_NONE) continue; // as config_check has it
            v[SEARCH_SCHEDULE] = kind;
            v[SEARCH_CHUNKS] = chunks;
            int ends = v[SEARCH_PP] > 1 && v[SEARCH_PP] * chunks < layers ? 2 : 1;
            int zeros = v[SEARCH_DP] * v[SEARCH_CP] > 1 ? 4 : 1;
            if (accepted(w, &c)) count += ends * zeros;
        }
    return count;
}

static int64_t count_nodes(const struct world *w, struct search_choice c) {
    int *v = c.value;
    int64_t count = 0;
    for (int micro = 1; micro <= w->request.batch; micro++)
        for (int sequence = 0; sequence <= (v[SEARCH_TP] > 1 ? 1 : 0); sequence++)
            for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
                if (w->request.batch % (v[SEARCH_DP] * micro) != 0) continue;
                v[SEARCH_MICRO] = micro;
                v[SEARCH_SEQUENCE] = sequence;
                v[SEARCH_RECOMPUTE] = mode;
                count += count_orders(w, c);
            }
    return count;
}

static void check_all_found(const char *model, const char *cluster, int64_t batch, int context) {
    struct world w;
    open_world(&w, model, cluster, batch, context);
    struct search_result *r = run(&w);
    int64_t count = 0;
    int world = w.cluster.nodes * w.cluster.per_node;
    for (int tp = 1; tp <= world; tp++)
        for (int pp = 1; pp <= world; pp++)
            for (int cp = 1; cp <= world; cp++)
                for (int ep = 1; ep <= world; ep++) {
                    if (world % (tp * pp * cp) != 0) continue;
                    struct search_choice c = {{HARDWARE_BF16, tp, pp, cp, world / (tp * pp * cp)}};
                    c.value[SEARCH_EP] = ep;
                    count += count_nodes(&w, c);
                }
    CHECK_EQ_INT(r->layouts, count);
    CHECK(count > 500);
    free(r);
    catalogue_close(w.catalogue);
}

TEST(search_has_every_candidate) {
    check_all_found("llama-15m", "h100-sxm:8", 8, 256);
    check_all_found("llama-15m", "h100-sxm:12x1", 12, 96);
    check_all_found("mixtral-8x7b", "h100-sxm:4x1", 8, 64);
}
