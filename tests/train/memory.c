// What a run says of its memory: the plan item by item before anything is taken, and beside what
// was allocated once two steps are done (user requirement 80).
#include "base/log.h"
#include "base/text.h"
#include "cli/predict.h"
#include "run_fixture.h"
#include "test.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void gather(enum log_level level, const char *line, void *context) {
    (void)level;
    pthread_mutex_lock(&lock);
    text_printf(context, "%s\n", line);
    pthread_mutex_unlock(&lock);
}

struct rank {
    struct comm *comm;
    struct train_config *config;
    struct run_result result;
    struct err err;
    int status;
};

static void *train(void *context) {
    struct rank *r = context;
    struct run_control control = {.comm = r->comm};
    r->status = train_run(r->config, r->comm ? &control : NULL, &r->result, &r->err);
    if (r->comm) comm_close(r->comm);
    return NULL;
}

enum { MOST_RANKS = 2 };

static void check_run(const char *name, int ranks, const char *const *words) {
    struct comm *ends[MOST_RANKS] = {NULL};
    struct comm_options options = {.watchdog_seconds = 60};
    struct rank rank[MOST_RANKS];
    pthread_t thread[MOST_RANKS];
    struct text lines = {0};
    struct err err = {0};
    if (ranks > 1) CHECK_OK(comm_open_threads(ends, ranks, &options, &err), err);
    for (int i = 0; i < ranks; i++) {
        rank[i] = (struct rank){.comm = ends[i], .config = calloc(1, sizeof *rank[i].config)};
        fixture_config(rank[i].config, test_temp_dir(), name, words);
    }
    log_to(gather, &lines, LOG_INFO);
    for (int i = 0; i < ranks; i++)
        CHECK_EQ_INT(pthread_create(&thread[i], NULL, train, &rank[i]), 0);
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    log_to(NULL, NULL, LOG_INFO);
    for (int i = 0; i < ranks; i++) {
        if (rank[i].status != 0) test_fail(__FILE__, __LINE__, "%s: %s", name, rank[i].err.text);
        CHECK_EQ_INT(rank[i].result.planned_bytes, rank[i].result.allocated_bytes);
        free(rank[i].config);
    }
    const char *line = strstr(lines.data, "memory after step 2: planned ");
    if (!line) test_fail(__FILE__, __LINE__, "%s: no line after step 2 in\n%s", name, lines.data);
    static const char *const items[] = {"weights ",     "gradients ", "moments ",
                                        "activations ", "scratch ",   "data "};
    const char *end = strchr(line, '\n');
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        const char *item = strstr(line, items[i]);
        if (!item || item > end) test_fail(__FILE__, __LINE__, "%s: no %s", name, items[i]);
    }
    CHECK_CONTAINS(line, "allocated ");
    CHECK_CONTAINS(line, "resident ");
    text_free(&lines);
}

TEST(r80_memory_is_compared_after_two_steps) {
    check_run("dense", 1, WORDS("train.stop_at=3"));
    check_run("recompute", 1, WORDS("train.stop_at=3", "train.recompute=full"));
    check_run("tp2", 2, WORDS("train.stop_at=3", "parallel.tp=2"));
    check_run("pp2", 2, WORDS("train.stop_at=3", "parallel.pp=2"));
    check_run("zero1", 2, WORDS("train.stop_at=3", "parallel.dp=2", "parallel.zero=1"));
    check_run("zero3", 2, WORDS("train.stop_at=3", "parallel.dp=2", "parallel.zero=3"));
    check_run("experts", 1,
              WORDS("train.stop_at=3", "model.experts=4", "model.top_k=2", "model.expert_ffn=32"));
}

// What weft plan --this-machine foretells of a configuration is what the run allocates, to the
// byte.
static void check_foretold(const char *name, int ranks, const char *const *words) {
    static struct prediction p;
    struct plan_memory planned[MOST_RANKS];
    struct train_config *config = calloc(1, sizeof *config);
    struct comm *ends[MOST_RANKS] = {NULL};
    struct comm_options options = {.watchdog_seconds = 60};
    struct rank rank[MOST_RANKS];
    pthread_t thread[MOST_RANKS];
    struct text lines = {0};
    struct err err = {0};
    fixture_config(config, test_temp_dir(), name, words);
    p = (struct prediction){.ranks = ranks, .threads = 1};
    CHECK_OK(catalogue_open(&p.file.catalogue, &err), err);
    CHECK_OK(catalogue_cluster(p.file.catalogue, "genoa-hdr", &p.machine.cluster, &err), err);
    CHECK_OK(predict_job(config, &p, &err), err);
    CHECK_OK(plan_memory(&p.job, planned, &err), err);
    if (ranks > 1) CHECK_OK(comm_open_threads(ends, ranks, &options, &err), err);
    log_to(gather, &lines, LOG_INFO);
    for (int i = 0; i < ranks; i++) {
        rank[i] = (struct rank){.comm = ends[i], .config = calloc(1, sizeof *rank[i].config)};
        fixture_config(rank[i].config, test_temp_dir(), name, words);
        CHECK_EQ_INT(pthread_create(&thread[i], NULL, train, &rank[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    log_to(NULL, NULL, LOG_INFO);
    for (int i = 0; i < ranks; i++) {
        if (rank[i].status != 0) test_fail(__FILE__, __LINE__, "%s: %s", name, rank[i].err.text);
        int pp = p.job.layout.mesh.size[MESH_PP] > 1 ? i : 0; // the tests' ranks lie along one axis
        CHECK_EQ_INT((uint64_t)planned[pp].allocated, rank[i].result.allocated_bytes);
        free(rank[i].config);
    }
    catalogue_close(p.file.catalogue);
    free(config);
    text_free(&lines);
}

TEST(memory_of_a_configuration_is_foretold_to_the_byte) {
    check_foretold("one", 1, WORDS("train.stop_at=1"));
    check_foretold("full", 1, WORDS("train.stop_at=1", "train.recompute=full"));
    check_foretold("stages", 2, WORDS("train.stop_at=1", "parallel.pp=2"));
    check_foretold(
        "shards", 2,
        WORDS("train.stop_at=1", "zero.gathers_in_flight=1", "parallel.dp=2", "parallel.zero=3"));
    check_foretold("experts", 1,
                   WORDS("train.stop_at=1", "model.experts=4", "model.top_k=2",
                         "model.expert_ffn=32", "moe.wave=256"));
}
