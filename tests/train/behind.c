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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static struct train_config config, other;
static struct run_result result;
static struct text lines;

static void listen(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    text_printf(&lines, "%s\n", line);
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
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.every=4"));
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
    fixture_config(&config, test_temp_dir(), "run", WORDS("checkpoint.every=3"));
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
