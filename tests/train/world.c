// Ranks that do not belong together are told before they take memory; where they stand is told.
#include "train/world.h"
#include "base/hash.h"
#include "base/log.h"
#include "run_fixture.h"
#include "test.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4 };

struct place {
    struct comm *comm;
    struct train_config *config;
    struct launch_environment launch;
    int threads, result;
    struct err err;
    const struct mesh *mesh; // NULL: no warnings wanted
};

static void *be_a_rank(void *context) {
    struct place *p = context;
    int members[RANKS] = {0, 1, 2, 3};
    struct comm_stream *world = comm_stream_open(p->comm, "world", members, RANKS, &p->err);
    if (!world) return NULL;
    p->result = world_check(p->comm, world, p->config, &p->err);
    if (p->mesh) world_warn(p->comm, world, p->mesh, &p->launch, p->threads);
    comm_stream_close(world);
    comm_close(p->comm);
    return NULL;
}

static void run(struct place places[RANKS]) {
    struct comm *ends[RANKS];
    struct comm_options options = {.watchdog_seconds = 60};
    struct err err = {0};
    pthread_t thread[RANKS];
    CHECK_OK(comm_open_threads(ends, RANKS, &options, &err), err);
    for (int i = 0; i < RANKS; i++) {
        places[i].comm = ends[i];
        places[i].result = -2;
        CHECK_EQ_INT(pthread_create(&thread[i], NULL, be_a_rank, &places[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(thread[i], NULL);
}

// A configuration with one further word.
static struct train_config *configured(const char *word) {
    struct train_config *config = calloc(1, sizeof *config);
    CHECK(config != NULL);
    const char *const words[] = {word, NULL};
    fixture_config(config, test_temp_dir(), "run", words);
    return config;
}

static const char *hash_of(const struct train_config *config) {
    static char text[17];
    hash_text(config_digest(config), text);
    return text;
}

TEST(world_of_equals) {
    struct place places[RANKS] = {0};
    struct train_config *config = configured("train.steps=12");
    for (int i = 0; i < RANKS; i++) places[i].config = config;
    run(places);
    for (int i = 0; i < RANKS; i++)
        if (places[i].result != 0) test_fail(__FILE__, __LINE__, "%s", places[i].err.text);
    free(config);
}

TEST(world_with_another_configuration) {
    struct place places[RANKS] = {0};
    struct train_config *usual = configured("train.steps=12"),
                        *other = configured("train.steps=20");
    for (int i = 0; i < RANKS; i++) places[i].config = i == 2 ? other : usual;
    run(places);
    for (int i = 0; i < RANKS; i++) {
        CHECK_EQ_INT(places[i].result, -1);
        CHECK_EQ_INT(err_exit_status(&places[i].err), 2);
        CHECK_CONTAINS(places[i].err.text, "rank 2 (");
        CHECK_CONTAINS(places[i].err.text, hash_of(other));
        CHECK_CONTAINS(places[i].err.text, "train.steps is 20 there, 12 elsewhere");
        CHECK_STR(places[i].err.text, places[0].err.text);
    }
    // two against two: rank 0's side counts as the usual one
    places[1].config = other;
    places[2].config = usual;
    places[3].config = other;
    for (int i = 0; i < RANKS; i++) places[i].err = (struct err){0};
    run(places);
    CHECK_CONTAINS(places[3].err.text, "rank 1, 3 (");
    free(usual);
    free(other);
}

TEST(world_ranks_as_text) {
    bool marked[1000] = {false};
    char out[64], small[40];
    CHECK_STR(world_ranks_text(marked, 1000, out, sizeof out), "");
    marked[0] = marked[1] = marked[2] = marked[5] = marked[999] = true;
    CHECK_STR(world_ranks_text(marked, 1000, out, sizeof out), "0-2, 5, 999");
    for (int i = 0; i < 1000; i += 2) marked[i] = true;
    world_ranks_text(marked, 1000, small, sizeof small);
    CHECK_CONTAINS(small, "0-2, 4-6");
    CHECK_CONTAINS(small, " and ");
    CHECK(strlen(small) < sizeof small);
}

TEST(world_crossing_of_tensor_parallelism) {
    struct mesh mesh = {
        .size = {1, 2, 1, 2}, .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP}, .ep = 1, .shard = 2};
    const char *inside[] = {"a", "a", "b", "b"}, *across[] = {"a", "b", "b", "b"};
    char out[1024];
    world_crossing_text(&mesh, inside, out, sizeof out);
    CHECK_STR(out, "");
    world_crossing_text(&mesh, across, out, sizeof out);
    CHECK_CONTAINS(out, "crosses hosts in 1 of 2 groups (ranks 0 on a and 1 on b)");
    // tp outermost: every group has a rank on both
    mesh.order[0] = MESH_TP, mesh.order[3] = MESH_PP;
    world_crossing_text(&mesh, inside, out, sizeof out);
    CHECK_CONTAINS(out, "in 2 of 2 groups");
}

static char lines[4096];
static void keep_line(enum log_level level, const char *line, void *context) {
    (void)context;
    if (level != LOG_WARN) return;
    size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
}

TEST(world_warns_once_of_threads_without_cores) {
    struct place places[RANKS] = {0};
    struct mesh mesh = {
        .size = {1, 4, 1, 1}, .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP}, .ep = 1, .shard = 4};
    struct train_config *config = configured("train.steps=12");
    for (int i = 0; i < RANKS; i++) {
        places[i].config = config;
        places[i].mesh = &mesh;
        places[i].threads = 2;
        places[i].launch = (struct launch_environment){.launcher = LAUNCHER_OPEN_MPI,
                                                       .ranks = RANKS,
                                                       .rank = i,
                                                       .local_ranks = RANKS,
                                                       .cpus = i == 1 || i == 2 ? 1 : 2,
                                                       .host_cpus = 8};
    }
    log_to(keep_line, NULL, LOG_DEBUG);
    run(places);
    CHECK_CONTAINS(lines, "threads and cores differ on rank 1-2 (rank 1 on ");
    CHECK_CONTAINS(lines, "2 threads, bound to 1 of 8 cores");
    CHECK(strchr(lines, '\n') == lines + strlen(lines) - 1);
    lines[0] = 0;
    for (int i = 0; i < RANKS; i++) places[i].launch.cpus = 2;
    run(places);
    CHECK_STR(lines, "");
    // not bound, but more ranks than cores: the user's choice
    for (int i = 0; i < RANKS; i++) places[i].launch.cpus = places[i].launch.host_cpus = 2;
    run(places);
    CHECK_CONTAINS(lines, "more threads than cores on the hosts of rank 0-3");
    CHECK_CONTAINS(lines, "4 ranks x 2 threads on 2 cores");
    CHECK(strstr(lines, "--bind-to") == NULL);
    log_to(NULL, NULL, LOG_INFO);
    free(config);
}
