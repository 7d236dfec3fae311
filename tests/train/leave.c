// A run that its supervisor asks to leave: for a restart that follows at once the state need only
// be in memory, for good it must be on disk. The test plays the supervisor.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "run_fixture.h"
#include "test.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
enum { RANKS = 2 };

static struct wire_key key;
static int listener, port;
static const char *order;
static struct train_config config[RANKS];
static struct run_result result[RANKS];
static struct err why[RANKS];
static int status[RANKS];
static struct comm *ends[RANKS];
static struct text lines;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void gather(enum log_level level, const char *line, void *context) {
    (void)level;
    pthread_mutex_lock(&lock);
    text_printf(context, "%s\n", line);
    pthread_mutex_unlock(&lock);
}

// Tells a rank that has done some steps to leave, then listens until it has left.
static void *supervise(void *context) {
    struct err err = {0};
    struct wire *rank = context;
    json_t *leave = json_loads(order, 0, NULL), *message;
    bool told = false;
    int taken = 0;
    for (int moved = 0; moved == 0 && taken >= 0; moved = wire_work(rank, &err)) {
        while ((taken = wire_take(rank, &message, NULL)) == 1) {
            bool works = json_integer_value(json_object_get(message, "step")) >= 3;
            if (works && !told) wire_put(rank, leave, NULL);
            told = told || works;
            json_decref(message);
        }
        struct pollfd watch = {wire_descriptor(rank), wire_events(rank), 0};
        poll(&watch, 1, 1000);
    }
    json_decref(leave);
    wire_close(rank);
    return NULL;
}

static void *train(void *context) {
    int i = (int)((struct train_config *)context - config);
    struct heartbeat_options o = {
        .address = "127.0.0.1", .port = port, .key = key, .rank = i, .host = "here"};
    struct run_control control = {.comm = ends[i]};
    struct err err = {0};
    CHECK_OK(heartbeat_open(&control.heartbeat, &o, &err), err);
    why[i] = (struct err){0};
    status[i] = train_run(&config[i], &control, &result[i], &why[i]);
    heartbeat_close(control.heartbeat);
    if (!result[i].broken) comm_close(ends[i]);
    return NULL;
}

static void listen_for(const char *what) {
    struct err err = {0};
    order = what;
    CHECK_OK(wire_key_make(&key, &err), err);
    CHECK_OK(wire_listen("127.0.0.1", 0, &listener, &port, &err), err);
}

// A run of endless steps until the supervisor asks it to leave.
static void run(const char *what, const char *const *words) {
    struct comm_options options = {.watchdog_seconds = 60};
    struct err err = {0};
    pthread_t rank[RANKS], supervisor[RANKS];
    text_free(&lines);
    text_puts(&lines, "");
    listen_for(what);
    CHECK_OK(comm_open_threads(ends, RANKS, &options, &err), err);
    for (int i = 0; i < RANKS; i++) fixture_config(&config[i], test_temp_dir(), "run", words);
    log_to(gather, &lines, LOG_INFO);
    for (int i = 0; i < RANKS; i++)
        CHECK_EQ_INT(pthread_create(&rank[i], NULL, train, &config[i]), 0);
    for (int i = 0; i < RANKS; i++) {
        struct pollfd watch = {listener, POLLIN, 0};
        CHECK(poll(&watch, 1, 60000) == 1);
        struct wire *w = wire_accept(listener, &key, &err);
        CHECK(w != NULL);
        CHECK_EQ_INT(pthread_create(&supervisor[i], NULL, supervise, w), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(rank[i], NULL);
    for (int i = 0; i < RANKS; i++) pthread_join(supervisor[i], NULL);
    close(listener);
    log_to(NULL, NULL, LOG_INFO);
    for (int i = 0; i < RANKS; i++)
        if (status[i] == 0 || err_exit_status(&why[i]) != 75)
            test_fail(__FILE__, __LINE__, "rank %d: %s\n%s", i, why[i].text, lines.data);
}

static bool on_disk(int64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    struct err err = {0};
    CHECK_OK(checkpoint_step_path(config[0].checkpoint_folder, step, path, &err), err);
    return file_exists(path);
}

static const char restart[] = "{\"type\":\"order\",\"order\":\"leave\",\"again\":true}";
static const char leave[] = "{\"type\":\"order\",\"order\":\"leave\"}";

static int no_disk(void *context, const char *call, const char *path) {
    (void)context, (void)call;
    return strstr(path, "/step_") ? EIO : 0;
}

// Not even a disk that fails keeps a planned restart from going on at its own step.
TEST(a_planned_restart_goes_through_memory) {
    char in_memory[80], resumed[80];
    const char *const *words = WORDS("parallel.dp=2", "train.steps=1000000", "checkpoint.every=7");
    file_hook_calls(no_disk, NULL);
    run(restart, words);
    int64_t step = result[0].step;
    snprintf(in_memory, sizeof in_memory, "step %lld is in memory after ", (long long)step);
    snprintf(resumed, sizeof resumed, "in memory: step %lld,", (long long)step);
    CHECK_CONTAINS(lines.data, in_memory);
    CHECK_CONTAINS(why[0].text, "which is in memory");
    CHECK(!on_disk(step));
    run(restart, words);
    file_hook_calls(NULL, NULL);
    CHECK_CONTAINS(lines.data, resumed);
    CHECK_EQ_INT(result[0].resumed_from, step);
    step = result[0].step;
    run(leave, words); // and what must be on disk is
    CHECK_EQ_INT(result[0].resumed_from, step);
    CHECK(on_disk(result[0].step));
    CHECK_CONTAINS(why[0].text, "which is saved");
}

// Steps that are to stay on disk are written before the ranks leave, and so is everything where
// there are no snapshots.
TEST(a_planned_restart_owes_the_disk_what_is_to_stay) {
    run(restart, WORDS("parallel.dp=2", "train.steps=1000000", "checkpoint.every=1",
                       "checkpoint.keep_every=1"));
    CHECK(on_disk(result[0].step));
    run(restart, WORDS("parallel.dp=2", "train.steps=1000000", "checkpoint.snapshot=false"));
    CHECK(on_disk(result[0].step));
}

// The next start may have nothing left to do, and still has to bring the state onto disk.
TEST(a_state_of_memory_alone_ends_on_disk) {
    char end[64];
    run(restart, WORDS("parallel.dp=2", "train.steps=1000000", "checkpoint.every=900000"));
    int64_t step = result[0].step;
    CHECK(!on_disk(step));
    snprintf(end, sizeof end, "train.stop_at=%lld", (long long)step);
    struct comm_options options = {.watchdog_seconds = 60};
    struct err err = {0};
    pthread_t rank[RANKS];
    listen_for(leave); // nobody answers there
    CHECK_OK(comm_open_threads(ends, RANKS, &options, &err), err);
    for (int i = 0; i < RANKS; i++) {
        fixture_config(
            &config[i], test_temp_dir(), "run",
            WORDS("parallel.dp=2", "train.steps=1000000", "checkpoint.every=900000", end));
        CHECK_EQ_INT(pthread_create(&rank[i], NULL, train, &config[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(rank[i], NULL);
    CHECK_OK(status[0], why[0]);
    CHECK_EQ_INT(result[0].resumed_from, step);
    CHECK(on_disk(step));
}
