// Snapshots of a run of several ranks: what counts when their hosts have seen different things,
// what stays when a save fails, when there is room for them, and whose folder they lie in.
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/snapshot.h"
#include "run_fixture.h"
#include "test.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

enum { RANKS = 2 };
struct rank {
    struct comm *comm;
    struct train_config *config;
    struct run_result result;
    struct err err;
    int status;
};
static struct rank rank[RANKS];
static struct text lines;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void gather(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    pthread_mutex_lock(&lock);
    text_printf(&lines, "%s\n", line);
    pthread_mutex_unlock(&lock);
}

static void *train(void *context) {
    struct rank *r = context;
    struct run_control control = {.comm = r->comm};
    r->status = train_run(r->config, &control, &r->result, &r->err);
    if (!r->result.broken) comm_close(r->comm);
    return NULL;
}

// Ranks as threads; 0, or rank 0's status.
static int run(const char *const *words) {
    struct comm *ends[RANKS];
    struct comm_options options = {.watchdog_seconds = 60};
    pthread_t thread[RANKS];
    struct err err = {0};
    text_free(&lines);
    text_puts(&lines, "");
    CHECK_OK(comm_open_threads(ends, RANKS, &options, &err), err);
    log_to(gather, NULL, LOG_INFO);
    for (int i = 0; i < RANKS; i++) {
        free(rank[i].config);
        rank[i] = (struct rank){.comm = ends[i], .config = calloc(1, sizeof *rank[i].config)};
        fixture_config(rank[i].config, test_temp_dir(), "run", words);
    }
    for (int i = 0; i < RANKS; i++)
        CHECK_EQ_INT(pthread_create(&thread[i], NULL, train, &rank[i]), 0);
    for (int i = 0; i < RANKS; i++) pthread_join(thread[i], NULL);
    log_to(NULL, NULL, LOG_INFO);
    return rank[0].status;
}

static void run_to_end(const char *const *words) {
    if (run(words) != 0) test_fail(__FILE__, __LINE__, "%s\n%s", rank[0].err.text, lines.data);
}

static int no_disk(void *context, const char *call, const char *path) {
    (void)call;
    return strstr(path, context) ? EIO : 0;
}

// Everything is left in memory, as if the run had been killed before anything came to the disk.
static void run_without_disk(const char *const *words, file_hook *hook) {
    file_hook_calls(hook, "step_");
    CHECK(run(words) != 0);
    file_hook_calls(NULL, NULL);
}

static const char *memory_of(const char *name) {
    static char path[8192];
    char id[SNAPSHOT_RUN_BYTES], folder[CHECKPOINT_PATH_BYTES];
    struct err err = {0};
    CHECK_OK(snapshot_run_id(rank[0].config->folder, id, &err), err);
    CHECK_OK(snapshot_run_folder(rank[0].config->snapshot_folder, id, folder, &err), err);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// Rank 1 goes on from a spare that has no snapshots; what both save then is one state.
TEST(a_rank_on_a_spare_saves_with_the_others) {
    static const char *const gone[] = {"gen-0/rank-00001.part", "gen-0/rank-00001.json",
                                       "gen-1/rank-00001.part", "gen-1/rank-00001.json"};
    run_to_end(WORDS("train.stop_at=4"));
    run_without_disk(WORDS(), no_disk);
    for (int i = 0; i < 4; i++)
        if (file_exists(memory_of(gone[i]))) file_remove(memory_of(gone[i]), NULL);
    run_without_disk(WORDS(), no_disk);
    CHECK_CONTAINS(lines.data, "step_00000004: step 4");
    run_to_end(WORDS());
    CHECK_CONTAINS(lines.data, "in memory: step 8");
}

static atomic_int renamed;

// From its second image on rank 1 completes none.
static int one_image(void *context, const char *call, const char *path) {
    if (strcmp(call, "rename") == 0 && strstr(path, "rank-00001.json") &&
        atomic_fetch_add(&renamed, 1) > 0)
        return EIO;
    return no_disk(context, call, path);
}

TEST(a_state_stays_until_a_newer_one_is_complete_on_all_ranks) {
    static const char said[] = "is not complete: ";
    // A save that is late begins some steps later, but there are many.
    run_without_disk(WORDS("checkpoint.every=3", "train.steps=60"), one_image);
    const char *first = strstr(lines.data, said);
    CHECK(first && strstr(first + 1, said)); // behind the second one there would be none left
    run_to_end(WORDS("checkpoint.every=3", "train.steps=60"));
    CHECK_CONTAINS(lines.data, "in memory: step 3");
}

TEST(room_for_snapshots_is_that_of_all_ranks_of_a_host) {
    run_to_end(WORDS("train.stop_at=4"));
    uint64_t each = rank[0].result.planned_bytes;
    snapshot_pretend_available(each + each / 2); // enough for any of them alone
    run_to_end(WORDS("train.stop_at=8"));
    snapshot_pretend_available(0);
    CHECK_CONTAINS(lines.data, "no snapshots in memory: ");
    CHECK_CONTAINS(lines.data, "of 2 ranks here need ");
    CHECK_CONTAINS(lines.data, "straight to disk");
    CHECK(!file_exists(memory_of("gen-0/rank-00000.part")));
    snapshot_pretend_available(3 * each);
    run_to_end(WORDS());
    snapshot_pretend_available(0);
    CHECK(strstr(lines.data, "no snapshots in memory") == NULL);
}

TEST(snapshots_in_a_folder_of_somebody_else_are_not_used) {
    char home[4200], elsewhere[4200];
    struct err err = {0};
    snprintf(home, sizeof home, "%s/memory/weft-%lu", test_temp_dir(), (unsigned long)getuid());
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", test_temp_dir());
    run_without_disk(WORDS(), no_disk); // leaves snapshots
    CHECK(rename(home, elsewhere) == 0 && symlink(elsewhere, home) == 0);
    run_to_end(WORDS("train.stop_at=4"));
    CHECK_CONTAINS(lines.data, "no snapshots in memory: ");
    CHECK_CONTAINS(lines.data, "not to be trusted");
    CHECK(strstr(lines.data, "resumed") == NULL);
    CHECK(unlink(home) == 0);
    CHECK_OK(file_make_folders(elsewhere, &err), err); // nothing there was touched
}
