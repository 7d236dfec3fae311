// What ranks tell of themselves while the run waits for a save: the one whose own part is not done
// is busy, the others are not, so that a disk that is gone is found at the rank that stands before
// it.
#include "base/clock.h"
#include "base/file.h"
#include "run_fixture.h"
#include "test.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
enum { RANKS = 2 };

static struct comm *ends[RANKS];
static struct train_config config[RANKS];
static struct run_result result[RANKS];
static struct err why[RANKS];
static int status[RANKS];
static atomic_int held, seen;
static const char *wanted;

// Holds rank 1 until both ranks tell what they should.
static int hold(void *context, const char *call, const char *path) {
    (void)context, (void)call;
    if (!strstr(path, "/rank-00001-part") || atomic_exchange(&held, 1)) return 0;
    for (double until = clock_seconds() + 60; clock_seconds() < until && !seen;) {
        struct comm_status first, second;
        struct timespec moment = {0, 2000000};
        comm_status(ends[0], &first);
        comm_status(ends[1], &second);
        seen = strcmp(second.busy, wanted) == 0 && first.busy[0] == 0;
        nanosleep(&moment, NULL);
    }
    return 0;
}

static void *train(void *context) {
    int i = (int)((struct train_config *)context - config);
    struct run_control control = {.comm = ends[i]};
    status[i] = train_run(&config[i], &control, &result[i], &why[i]);
    return NULL;
}

static void check(const char *name, const char *busy, const char *const *words) {
    struct comm_options options = {.watchdog_seconds = 60};
    struct comm_status s;
    struct err err = {0};
    pthread_t rank[RANKS];
    wanted = busy;
    held = seen = 0;
    CHECK_OK(comm_open_threads(ends, RANKS, &options, &err), err);
    file_hook_calls(hold, NULL);
    for (int i = 0; i < RANKS; i++) {
        fixture_config(&config[i], test_temp_dir(), name, words);
        CHECK_EQ_INT(pthread_create(&rank[i], NULL, train, &config[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(rank[i], NULL);
    file_hook_calls(NULL, NULL);
    for (int i = 0; i < RANKS; i++) {
        CHECK_OK(status[i], why[i]);
        comm_status(ends[i], &s);
        CHECK_STR(s.busy, "");
    }
    for (int i = 0; i < RANKS; i++) comm_close(ends[i]);
    CHECK(held);
    if (!seen) test_fail(__FILE__, __LINE__, "%s: nobody told \"%s\" alone", name, busy);
}

TEST(the_rank_whose_save_is_not_done_is_busy) {
    check("behind", "writes a checkpoint",
          WORDS("parallel.dp=2", "checkpoint.every=11", "checkpoint.at_end=false"));
    check("straight", "saves a checkpoint",
          WORDS("parallel.dp=2", "checkpoint.snapshot=false", "checkpoint.every=5"));
}
