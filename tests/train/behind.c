// Saves behind a run: what is kept in memory, what is told of saves, what happens without room,
// with a full disk, with a second folder, and when a run goes back.
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "run_fixture.h"
#include "test.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A tiny run is faster than its saves where the machine is busy: it waits for those that are to
// stay.
#define EACH_OF_4 "checkpoint.every=4", "checkpoint.keep_every=4"
#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static struct train_config config, other;
static struct run_result result;
static struct text lines;

// A writer that is held up until the run has said something often enough.
static struct brake {
    pthread_mutex_t lock;
    pthread_cond_t heard;
    const char *until;
    int times, count;
    char last[512];                // line that said it
    int under_way, most_under_way; // saves with a folder of staging
    int images[2];                 // of snapshots in memory, as the hold begins and ends
    uint64_t bytes[2];
    bool looks_at_steps;
    int steps[2]; // done as it ends, and a moment later
} brake = {.lock = PTHREAD_MUTEX_INITIALIZER, .heard = PTHREAD_COND_INITIALIZER};

static void listen(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    pthread_mutex_lock(&brake.lock);
    text_printf(&lines, "%s\n", line);
    if (brake.until && strstr(line, brake.until)) {
        brake.count++;
        snprintf(brake.last, sizeof brake.last, "%s", line);
        pthread_cond_broadcast(&brake.heard);
    }
    pthread_mutex_unlock(&brake.lock);
}

static int run(struct train_config *c, struct err *err) {
    *err = (struct err){0};
    text_free(&lines);
    log_to(listen, NULL, LOG_INFO);
    int status = train_run(c, NULL, &result, err);
    log_to(NULL, NULL, LOG_INFO);
    return status;
}

static void run_to_end(struct train_config *c) {
    struct err err;
    CHECK_OK(run(c, &err), err);
}

static bool memory_is_empty(const struct train_config *c) {
    char id[SNAPSHOT_RUN_BYTES], path[CHECKPOINT_PATH_BYTES];
    struct err err = {0};
    CHECK_OK(snapshot_run_id(c->folder, id, &err), err);
    CHECK_OK(snapshot_run_folder(c->snapshot_folder, id, path, &err), err);
    return !file_exists(path);
}

static bool has_step(const char *folder, int64_t step) {
    int64_t *steps;
    int count;
    bool found = false;
    CHECK_OK(checkpoint_list(folder, &steps, &count, NULL), (struct err){0});
    for (int i = 0; i < count; i++) found |= steps[i] == step;
    free(steps);
    return found;
}

// How many lines of metrics.jsonl are this event; the last one's member is put into *value.
static int events(const char *event, const char *member, double *value) {
    char path[4096], *text;
    size_t bytes;
    int count = 0;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", config.folder);
    CHECK_OK(file_read(path, 0, &text, &bytes, &err), err);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_parse(line, strlen(line), path, &err);
        CHECK(object != NULL);
        const char *name = json_string_value(json_object_get(object, "event"));
        if (name && strcmp(name, event) == 0) {
            count++;
            if (member) *value = json_number_value(json_object_get(object, member));
        }
        json_decref(object);
    }
    free(text);
    return count;
}

// Lines of steps in metrics.jsonl.
static int steps_told(void) {
    const char *all = fixture_column(&config, "learning_rate");
    int count = all[0] != 0;
    for (; *all; all++) count += *all == ' ';
    return count;
}

TEST(r57_a_save_is_requested_and_then_persisted) {
    double bytes = 0, seconds = -1, stall = -1;
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.every=6"));
    run_to_end(&config);
    CHECK_EQ_INT(events("checkpoint_requested", NULL, NULL), 2); // at 6, and the last one
    CHECK_EQ_INT(events("checkpoint_persisted", "bytes", &bytes), 2);
    events("checkpoint_persisted", "seconds", &seconds);
    events("checkpoint_persisted", "stall_seconds", &stall);
    CHECK_EQ_INT(events("checkpoint_failed", NULL, NULL), 0);
    CHECK(bytes > 100000 && seconds > 0 && stall >= 0);
    CHECK(has_step(config.checkpoint_folder, 6) && has_step(config.checkpoint_folder, 12));
    CHECK_EQ_INT(result.planned_bytes, result.allocated_bytes);
    CHECK_CONTAINS(lines.data, "snapshots ");
    CHECK(memory_is_empty(&config)); // the run is over
}

TEST(r57_the_end_waits_for_the_save_under_way) {
    struct err err;
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("checkpoint.every=11", "checkpoint.at_end=false"));
    CHECK_OK(run(&config, &err), err);
    CHECK(has_step(config.checkpoint_folder, 11));
    CHECK_EQ_INT(events("checkpoint_persisted", NULL, NULL), 1);
}

static int fails(void *context, const char *call, const char *path) {
    (void)call;
    return strstr(path, context) ? EIO : 0;
}

TEST(r57_a_save_that_fails_is_told_and_the_next_one_works) {
    double seconds = -1;
    struct err err;
    fixture_config(&config, test_temp_dir(), "run", WORDS(EACH_OF_4));
    file_hook_calls(fails, "step_00000004.tmp");
    CHECK_OK(run(&config, &err), err);
    file_hook_calls(NULL, NULL);
    CHECK_CONTAINS(lines.data, "checkpoint of step 4 failed, training goes on: ");
    CHECK_CONTAINS(lines.data, "Input/output error");
    CHECK_EQ_INT(events("checkpoint_failed", "seconds", &seconds), 1);
    CHECK(seconds >= 0);
    CHECK(!has_step(config.checkpoint_folder, 4) && has_step(config.checkpoint_folder, 8));
    CHECK(has_step(config.checkpoint_folder, 12));
}

TEST(a_full_disk_does_not_hinder_going_on_from_memory) {
    struct err err;
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.stop_at=4"));
    run_to_end(&config);
    fixture_config(&config, test_temp_dir(), "run", WORDS());
    file_hook_calls(fails, ".tmp/"); // no file in any staging
    CHECK(run(&config, &err) != 0);
    file_hook_calls(NULL, NULL);
    CHECK_CONTAINS(lines.data, "checkpoint of step 8 failed, training goes on");
    CHECK_CONTAINS(err.text, "the state of step 12 could not be saved");
    CHECK(!memory_is_empty(&config));
    run_to_end(&config);
    CHECK_EQ_INT(result.resumed_from, 8);
    CHECK_CONTAINS(lines.data, "in memory: step 8");
    fixture_config(&other, test_temp_dir(), "unbroken", WORDS());
    run_to_end(&other);
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
    CHECK_STR(fixture_column(&config, "loss_hex"), fixture_column(&other, "loss_hex"));
    CHECK(memory_is_empty(&config));
}

TEST(memory_alone_outlives_the_process) { // as when it is killed before anything is on disk
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("checkpoint.every=3", "checkpoint.keep_every=3"));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct err err;
        file_hook_calls(fails, "step_");
        run(&config, &err);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    run_to_end(&config);
    CHECK_EQ_INT(result.resumed_from, 9);
    fixture_config(&other, test_temp_dir(), "unbroken", WORDS("checkpoint.every=3"));
    run_to_end(&other);
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
}

TEST(without_room_in_memory_saves_go_to_disk) {
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("checkpoint.snapshot_folder=/proc/none", "checkpoint.every=4"));
    run_to_end(&config);
    CHECK_CONTAINS(lines.data, "no snapshots in memory: /proc/none: ");
    CHECK_CONTAINS(lines.data, "straight to disk");
    CHECK(strstr(lines.data, "snapshots 1") == NULL); // nothing is planned for them
    CHECK(has_step(config.checkpoint_folder, 8));
    CHECK_EQ_INT(events("checkpoint_persisted", NULL, NULL), 3);
    CHECK_EQ_INT(result.planned_bytes, result.allocated_bytes);
}

TEST(a_second_folder_gets_complete_checkpoints) {
    char word[700], second[600];
    snprintf(second, sizeof second, "%.500s/second", test_temp_dir());
    snprintf(word, sizeof word, "checkpoint.second_folder=%s", second);
    for (int behind = 0; behind < 2; behind++) {
        fixture_config(
            &config, test_temp_dir(), behind ? "behind" : "straight",
            WORDS(word, behind ? "checkpoint.snapshot=true" : "checkpoint.snapshot=false"));
        run_to_end(&config);
        CHECK(has_step(second, 12)); // the end waits for it
        CHECK(events("checkpoint_copied", NULL, NULL) >= 1);
        CHECK_CONTAINS(lines.data, "copied to ");
        file_remove_tree(config.checkpoint_folder, NULL);
        run_to_end(&config); // the first folder is lost
        CHECK_CONTAINS(lines.data, "(second folder): step 12");
        file_remove_tree(second, NULL);
    }
}

TEST(a_run_goes_back_by_states) {
    struct err err;
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.every=4", "train.stop_at=8"));
    run_to_end(&config);
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("checkpoint.every=4", "checkpoint.back=1", "train.stop_at=5"));
    run_to_end(&config);
    CHECK_EQ_INT(result.resumed_from, 4);
    CHECK_CONTAINS(lines.data, "is put aside");
    CHECK(!has_step(config.checkpoint_folder, 8) && has_step(config.checkpoint_folder, 5));
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.every=4"));
    run_to_end(&config); // not from 8, which was left behind
    CHECK_EQ_INT(result.resumed_from, 5);
    fixture_config(&other, test_temp_dir(), "unbroken", WORDS());
    run_to_end(&other);
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.back=9"));
    CHECK_OK(run(&config, &err), err);
    CHECK_EQ_INT(result.resumed_from, 0);
    CHECK_CONTAINS(lines.data, "no state so far back as checkpoint.back=9");
}

// Also where no saver writes behind the run: what was put aside goes when the run is past it.
TEST(states_put_aside_go_without_snapshots_too) {
    char aside[4200];
    const char *straight = "checkpoint.snapshot=false";
    fixture_config(&config, test_temp_dir(), "run", WORDS(straight, "train.stop_at=8"));
    run_to_end(&config);
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS(straight, "checkpoint.back=1", "train.stop_at=5"));
    run_to_end(&config);
    snprintf(aside, sizeof aside, "%s/step_00000008.aside", config.checkpoint_folder);
    CHECK(file_exists(aside));
    fixture_config(&config, test_temp_dir(), "run", WORDS(straight));
    run_to_end(&config);
    CHECK(!file_exists(aside));
}

TEST(the_interval_follows_from_what_saves_cost) {
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("checkpoint.interval=auto", "checkpoint.every=2", "checkpoint.mtbf=1e-9",
                         "train.steps=60"));
    run_to_end(&config);
    int often = events("checkpoint_requested", NULL, NULL);
    CHECK(often >= 3); // as often as the disk bears
    fixture_config(&config, test_temp_dir(), "rare",
                   WORDS("checkpoint.interval=auto", "checkpoint.every=2", "checkpoint.mtbf=1e9",
                         "train.steps=60"));
    run_to_end(&config);
    CHECK(events("checkpoint_requested", NULL, NULL) <= 4); // failures are rare
    CHECK(events("checkpoint_requested", NULL, NULL) >= 2);
}

// ---- a disk that is slower than saves come ------------------------------------------------------

static void count_images(const char *folder, int *images, uint64_t *bytes) {
    char **names, path[CHECKPOINT_PATH_BYTES];
    size_t count;
    struct err err = {0};
    CHECK_OK(file_list(folder, &names, &count, &err), err);
    for (size_t i = 0; i < count; i++) {
        uint64_t size;
        CHECK_OK(file_join(path, sizeof path, folder, names[i], &err), err);
        if (file_is_folder(path)) {
            count_images(path, images, bytes);
        } else if (strstr(names[i], ".part")) {
            CHECK_OK(file_size(path, &size, &err), err);
            *images += 1;
            *bytes += size;
        }
    }
    file_list_free(names, count);
}

static void hold(void) {
    enum { LIMIT_SECONDS = 60, MOMENT = 300000 };
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LIMIT_SECONDS;
    count_images(config.snapshot_folder, &brake.images[0], &brake.bytes[0]);
    pthread_mutex_lock(&brake.lock);
    while (brake.count < brake.times &&
           pthread_cond_timedwait(&brake.heard, &brake.lock, &limit) == 0) {
    }
    pthread_mutex_unlock(&brake.lock);
    count_images(config.snapshot_folder, &brake.images[1], &brake.bytes[1]);
    for (int i = 0; i < 2 && brake.looks_at_steps; i++) {
        brake.steps[i] = steps_told();
        usleep(MOMENT);
    }
}

// The first save is held up as it opens its part; of all it is counted how many write at once.
static int slow(void *context, const char *call, const char *path) {
    (void)context;
    size_t length = strlen(path);
    const char *name = strrchr(path, '/');
    bool of_step = name && strncmp(name, "/step_", 6) == 0 && strstr(path, "/checkpoints/");
    pthread_mutex_lock(&brake.lock);
    if (of_step && strcmp(call, "mkdir") == 0) brake.under_way++;
    if (brake.under_way > brake.most_under_way) brake.most_under_way = brake.under_way;
    if (of_step && strcmp(call, "rename") == 0 && path[length - 1] != 'g') // not "removing"
        brake.under_way--;
    pthread_mutex_unlock(&brake.lock);
    if (strcmp(call, "open") == 0 && strstr(path, "step_00000001.tmp/part")) hold();
    return 0;
}

static void run_held(const char *until, int times) {
    brake.until = until;
    brake.times = times;
    brake.count = 0;
    file_hook_calls(slow, NULL);
    run_to_end(&config);
    file_hook_calls(NULL, NULL);
    brake.until = NULL;
    CHECK(brake.count >= times);
    CHECK_EQ_INT(brake.most_under_way, 1);
    CHECK_EQ_INT(brake.images[0], SNAPSHOT_GENERATIONS);
    CHECK_EQ_INT(brake.images[1], SNAPSHOT_GENERATIONS);
    CHECK_EQ_INT(brake.bytes[1], brake.bytes[0]); // however many saves have come meanwhile
    CHECK_EQ_INT(result.planned_bytes, result.allocated_bytes);
    CHECK_EQ_INT(events("checkpoint_requested", NULL, NULL),
                 events("checkpoint_persisted", NULL, NULL) +
                     events("checkpoint_replaced", NULL, NULL));
}

TEST(a_slow_disk_holds_up_neither_the_run_nor_more_memory) {
    double by_step = 0;
    fixture_config(&config, test_temp_dir(), "slow", WORDS("checkpoint.every=1"));
    run_held("is replaced by that of step", 3);
    CHECK(events("checkpoint_replaced", "by_step", &by_step) >= 3);
    CHECK(by_step >= 5); // while the first was held up, 2, 3 and 4 made way
    CHECK(events("checkpoint_waits", NULL, NULL) >= 1);
    CHECK_CONTAINS(lines.data, "a save is due while that of step 1 is ");
    CHECK(strstr(lines.data, "the run waits too") == NULL);
    CHECK(!has_step(config.checkpoint_folder, 2));
    fixture_config(&other, test_temp_dir(), "calm", WORDS("checkpoint.every=1"));
    run_to_end(&other);
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
    CHECK_STR(fixture_column(&config, "loss_hex"), fixture_column(&other, "loss_hex"));
}

TEST(the_run_waits_for_steps_that_are_to_stay) {
    static const int64_t stay[] = {3, 6, 7, 12};
    fixture_config(
        &config, test_temp_dir(), "run",
        WORDS("checkpoint.every=1", "checkpoint.keep_every=6", "checkpoint.keep_steps=[3, 7]"));
    brake.looks_at_steps = true;
    run_held("the run waits too", 1);
    CHECK_CONTAINS(brake.last, "a save is due while that of step 3 waits for the disk");
    CHECK_EQ_INT(brake.steps[0], atoi(brake.last + strlen("step ")));
    CHECK_EQ_INT(brake.steps[1], brake.steps[0]); // it stood still
    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++)
        CHECK(has_step(config.checkpoint_folder, stay[i]));
    CHECK(!has_step(config.checkpoint_folder, 1));
}

// ---- which checkpoints stay ---------------------------------------------------------------------

static void names_are(const char *folder, const char *expected) {
    char **names;
    size_t count;
    struct text all = {0};
    struct err err = {0};
    CHECK_OK(file_list(folder, &names, &count, &err), err);
    for (size_t i = 0; i < count; i++) text_printf(&all, "%s%s", i ? " " : "", names[i]);
    CHECK_STR(all.data, expected);
    file_list_free(names, count);
    text_free(&all);
}

TEST(r55_pinned_steps_stay) {
    char word[700], second[600];
    snprintf(second, sizeof second, "%.500s/second", test_temp_dir());
    snprintf(word, sizeof word, "checkpoint.second_folder=%s", second);
    for (int behind = 0; behind < 2; behind++) {
        file_remove_tree(second, NULL);
        fixture_config(&config, test_temp_dir(), behind ? "behind" : "straight",
                       WORDS(word, "checkpoint.every=3", "checkpoint.keep_last=1",
                             "checkpoint.keep_steps=1,3",
                             behind ? "checkpoint.snapshot=true" : "checkpoint.snapshot=false"));
        run_to_end(&config);
        names_are(config.checkpoint_folder, "step_00000003 step_00000012"); // nobody saved 1
        if (has_step(second, 3)) names_are(second, "step_00000003 step_00000012");
        fixture_config(&config, test_temp_dir(), behind ? "behind" : "straight",
                       WORDS("checkpoint.every=3", "checkpoint.keep_last=1", "train.steps=15",
                             behind ? "checkpoint.snapshot=true" : "checkpoint.snapshot=false"));
        run_to_end(&config);
        names_are(config.checkpoint_folder, "step_00000015"); // no longer pinned
    }
}

struct stubborn {
    const char *call;
    bool gives_way, stayed;
};

// The oldest checkpoint cannot be removed until the save of step 16 begins.
static int refuse_removal(void *context, const char *call, const char *path) {
    struct stubborn *s = context;
    char left[CHECKPOINT_PATH_BYTES];
    if (strstr(path, "step_00000016.tmp") && !s->gives_way) {
        s->gives_way = true;
        snprintf(left, sizeof left, "%s/step_00000004%s", config.checkpoint_folder,
                 strcmp(s->call, "rename") == 0 ? "" : ".removing");
        s->stayed = file_exists(left);
    }
    return !s->gives_way && strcmp(call, s->call) == 0 && strstr(path, "step_00000004.removing")
               ? EACCES
               : 0;
}

TEST(r55_a_checkpoint_that_cannot_be_removed_goes_with_the_next_save) {
    static const char *const refused[] = {"unlink", "rmdir", "rename"};
    for (int i = 0; i < 6; i++) {
        struct stubborn stubborn = {.call = refused[i / 2]};
        char name[32];
        snprintf(name, sizeof name, "run-%d", i);
        fixture_config(&config, test_temp_dir(), name,
                       WORDS("train.steps=16", "checkpoint.every=4", "checkpoint.keep_steps=8,12",
                             i % 2 ? "checkpoint.snapshot=true" : "checkpoint.snapshot=false"));
        file_hook_calls(refuse_removal, &stubborn);
        run_to_end(&config);
        file_hook_calls(NULL, NULL);
        CHECK(stubborn.gives_way && stubborn.stayed);
        CHECK_CONTAINS(lines.data, "an old checkpoint could not be removed: ");
        CHECK_CONTAINS(lines.data, "step_00000004.removing");
        CHECK_CONTAINS(lines.data, "Permission denied");
        CHECK_EQ_INT(events("checkpoint_persisted", NULL, NULL), 4); // all count
        CHECK_EQ_INT(events("checkpoint_failed", NULL, NULL), 0);
        names_are(config.checkpoint_folder, "step_00000008 step_00000012 step_00000016");
    }
}

// ---- the process ends in a save -----------------------------------------------------------------

struct death {
    const char *call, *path, *there; // at which call; and only when this is in the folder
};

static int die(void *context, const char *call, const char *path) {
    const struct death *d = context;
    char there[CHECKPOINT_PATH_BYTES];
    snprintf(there, sizeof there, "%s/%s", config.checkpoint_folder, d->there ? d->there : "");
    if (strcmp(call, d->call) == 0 && strstr(path, d->path) && file_exists(there)) _exit(9);
    return 0;
}

static void run_to_death(struct death death) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct err err;
        file_hook_calls(die, &death);
        run(&config, &err);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 9);
    CHECK(events("checkpoint_requested", NULL, NULL) >= 2);
    CHECK_EQ_INT(events("checkpoint_failed", NULL, NULL), 0);
}

static const struct death in_step_8 = {"open", "step_00000008.tmp/manifest.json", NULL};

static bool has_reason(const char *why) {
    char path[CHECKPOINT_PATH_BYTES], wanted[200], *text;
    size_t bytes;
    struct err err = {0};
    CHECK_OK(file_join(path, sizeof path, config.folder, "metrics.jsonl", &err), err);
    CHECK_OK(file_read(path, 0, &text, &bytes, &err), err);
    snprintf(wanted, sizeof wanted, "\"why\":\"%.100s\"", why);
    bool found = strstr(text, wanted) != NULL;
    free(text);
    return found;
}

TEST(r57_a_save_that_ended_with_its_process_is_told_by_the_next) {
    double step = 0, requested = 0;
    for (int kind = 0; kind < 3; kind++) { // goes on from memory, from disk, and without memory
        char name[32];
        snprintf(name, sizeof name, "run-%d", kind);
        fixture_config(
            &config, test_temp_dir(), name,
            WORDS(EACH_OF_4, kind < 2 ? "checkpoint.snapshot=true" : "checkpoint.snapshot=false"));
        run_to_death(in_step_8);
        if (kind == 1) CHECK_OK(file_remove_tree(config.snapshot_folder, NULL), (struct err){0});
        for (int start = 0; start < 2; start++) { // told once
            run_to_end(&config);
            CHECK_EQ_INT(result.resumed_from, start ? 12 : kind == 0 ? 8 : 4);
            CHECK(start == (strstr(lines.data, "interrupted") == NULL));
            CHECK_EQ_INT(events("checkpoint_failed", "for_step", &step), 1);
            CHECK_EQ_INT(events("checkpoint_failed", "requested", &requested), 1);
            CHECK(step == 8 && requested > 1e9);
            // also what was told behind the step from which it went on
            CHECK_EQ_INT(events("checkpoint_requested", NULL, NULL),
                         events("checkpoint_persisted", NULL, NULL) + (kind == 0));
            CHECK(strstr(lines.data, "is complete, though") == NULL);
        }
        CHECK(has_reason("interrupted"));
        names_are(config.checkpoint_folder, kind == 0
                                                ? "step_00000004 step_00000012"
                                                : "step_00000004 step_00000008 step_00000012");
    }
}

TEST(r57_staging_tells_of_a_save_whose_request_is_lost) {
    char path[CHECKPOINT_PATH_BYTES];
    double step = 0;
    struct err err = {0};
    fixture_config(&config, test_temp_dir(), "run", WORDS(EACH_OF_4));
    run_to_death(in_step_8);
    CHECK_OK(file_join(path, sizeof path, config.folder, "metrics.jsonl", &err), err);
    CHECK_OK(file_remove(path, &err), err);
    run_to_end(&config);
    CHECK_CONTAINS(lines.data, "the save of step 8 was interrupted: ");
    CHECK_EQ_INT(events("checkpoint_failed", "for_step", &step), 1);
    CHECK_EQ_INT(step, 8);
}

TEST(r57_a_save_that_was_complete_when_its_process_ended_is_no_failure) {
    double step = 0;
    struct death death = {"fsync", "/checkpoints", "step_00000008/manifest.json"};
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.snapshot=false"));
    run_to_death(death);
    run_to_end(&config);
    CHECK_EQ_INT(result.resumed_from, 8);
    CHECK_CONTAINS(lines.data, "the save of step 8, requested on ");
    CHECK_CONTAINS(lines.data, "is complete, though its process ended");
    CHECK_EQ_INT(events("checkpoint_failed", NULL, NULL), 0);
    CHECK_EQ_INT(events("checkpoint_persisted", "for_step", &step), 3); // 4, 8, 12
}
