// The keys fault.*: what they mean, what is refused; and faults that a run of its own survives to
// tell.
#include "guard/fault.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "run_fixture.h"
#include "test.h"
#include "train/run.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct train_config config;

static int load(const char *const *more, struct err *err) {
    static const char *const base[] = {"model.family=llama", "model.layers=2", "model.hidden=32",
                                       "model.heads=4",      "model.vocab=64", "model.context=16",
                                       "train.batch=4",      "train.steps=9"};
    char *words[32];
    int count = 0;
    for (size_t i = 0; i < sizeof base / sizeof base[0]; i++) words[count++] = strdup(base[i]);
    for (; *more; more++) words[count++] = strdup(*more);
    int result = config_load(&config, NULL, words, count, err);
    while (count > 0) free(words[--count]);
    return result;
}

TEST(fault_keys_are_lists_of_one_length_or_one_value) {
    struct fault list[FAULT_MOST];
    int count = -1;
    struct err err = {0};
    CHECK_OK(load((const char *[]){NULL}, &err), err);
    CHECK_OK(config_faults(&config, list, &count, &err), err);
    CHECK_EQ_INT(count, 0);
    CHECK_OK(load((const char *[]){"fault.kind=kill,slow,link_flap", "fault.rank=1,-1,0",
                                   "fault.step=4,5,6", "fault.factor=0,3,0.5", "fault.steps=7",
                                   "fault.attempt=-1", "fault.when=save,step,step",
                                   "fault.peer=-1,-1,3", "fault.bit=30", "fault.seed=11", NULL},
                  &err),
             err);
    CHECK_OK(config_faults(&config, list, &count, &err), err);
    CHECK_EQ_INT(count, 3);
    CHECK_EQ_INT(list[0].kind, FAULT_KILL);
    CHECK_EQ_INT(list[0].rank, 1);
    CHECK_EQ_INT(list[0].step, 4);
    CHECK(list[0].in_save && !list[1].in_save);
    CHECK_EQ_INT(list[1].rank, -1);
    CHECK(list[1].factor == 3 && list[2].factor == 0.5);
    CHECK_EQ_INT(list[2].peer, 3);
    CHECK_EQ_INT(list[2].step, 6);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(list[i].attempt, -1);
        CHECK_EQ_INT(list[i].steps, 7);
        CHECK_EQ_INT(list[i].bit, 30);
        CHECK_EQ_INT(list[i].seed, 11 + i);
        CHECK(!list[i].done);
    }
}

TEST(fault_keys_that_are_refused) {
    static const char *const cases[][4] = {
        {"fault.kind=kil", NULL, NULL, "\"kil\" is no kind of fault; did you mean \"kill\"?"},
        {"fault.kind=kill,stop", "fault.rank=1,2,3", NULL,
         "fault.rank has 3 values, fault.kind 2: expected one for all, or one for each"},
        {"fault.kind=kill,stop", "fault.when=soon", NULL, "fault.when: expected step or save"},
        {"fault.kind=nan", "fault.when=save", NULL, "save is for exit, abort, kill, stop and hang"},
        {"fault.kind=kill", "fault.rank=0.5", NULL, "fault.rank: expected whole numbers"},
        {"fault.kind=kill", "fault.step=0", NULL, "fault.step: expected"},
        {"fault.kind=kill", "fault.bit=32", NULL, "fault.bit: expected"},
        {"fault.kind=kill", "fault.steps=-1", NULL, "fault.steps: expected"},
        {"fault.knid=kill", NULL, NULL, "did you mean \"fault.kind\"?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        const char *words[3] = {cases[i][0], cases[i][1], cases[i][2]};
        CHECK_EQ_INT(load(words, &err), -1);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, cases[i][3]);
    }
    char many[CONFIG_TEXT_BYTES] = "fault.kind=kill";
    for (int i = 0; i < FAULT_MOST; i++) strcat(many, ",kill");
    struct err err = {0};
    CHECK_EQ_INT(load((const char *[]){many, NULL}, &err), -1);
    CHECK_CONTAINS(err.text, "at most 64");
}

// ---- runs ---------------------------------------------------------------------------------------

static int train(const char *name, const char *const *words, int attempt, struct err *err) {
    struct run_result result;
    struct run_control control = {.attempt = attempt};
    fixture_config(&config, test_temp_dir(), name, words);
    return train_run(&config, &control, &result, err);
}

static int status_of_train(const char *name, const char *const *words) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct err err = {0};
        _exit(train(name, words, 0, &err) == 0 ? 0 : err_exit_status(&err));
    }
    int status = 0;
    CHECK_EQ_INT(waitpid(child, &status, 0), child);
    return status;
}

TEST(fault_of_a_rank_that_is_not_there) {
    struct err err = {0};
    CHECK_EQ_INT(train("r", (const char *[]){"fault.kind=kill", "fault.rank=1", NULL}, 0, &err),
                 -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, "fault.rank: the run has ranks 0 to 0, found 1");
    // fewer ranks in a later launch are no mistake
    err = (struct err){0};
    CHECK_OK(train("r2", (const char *[]){"fault.kind=kill", "fault.rank=1", NULL}, 1, &err), err);
}

// A killed run, started again, ends as one that was not.
TEST(fault_kills_and_the_run_goes_on) {
    struct err err = {0};
    CHECK_OK(train("calm", (const char *[]){NULL}, 0, &err), err);
    char *calm = strdup(fixture_column(&config, "loss_hex"));
    uint64_t weights = fixture_checkpoint_hash(&config, 12);
    static const char *const faults[][3] = {
        {"fault.kind=kill", "fault.step=7", NULL},
        {"fault.kind=kill", "fault.step=7", "fault.when=save"},
        {"fault.kind=exit", "fault.step=6", NULL},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "run%zu", i);
        const char *words[] = {faults[i][0], faults[i][1], faults[i][2], NULL};
        int status = status_of_train(name, words);
        if (strcmp(faults[i][0], "fault.kind=exit") == 0)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        else
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK_OK(train(name, words, 1, &err), err); // its second launch
        CHECK_STR(fixture_column(&config, "loss_hex"), calm);
        CHECK(fixture_checkpoint_hash(&config, 12) == weights);
    }
    free(calm);
}

// Saves fail for some steps; the run goes on and the later ones are there.
TEST(fault_of_the_disk_lasts_as_long_as_asked) {
    static const char *const kinds[] = {"fault.kind=disk_full", "fault.kind=disk_fail"};
    for (size_t i = 0; i < 2; i++) {
        struct err err = {0};
        const char *words[] = {kinds[i],
                               "fault.step=3",
                               "fault.steps=4",
                               "checkpoint.keep_last=9",
                               "checkpoint.snapshot=false",
                               NULL};
        CHECK_OK(train(kinds[i] + 11, words, 0, &err), err);
        char path[CHECKPOINT_PATH_BYTES];
        CHECK_OK(checkpoint_step_path(config.checkpoint_folder, 4, path, &err), err);
        CHECK(!file_exists(path));
        CHECK_OK(checkpoint_step_path(config.checkpoint_folder, 8, path, &err), err);
        CHECK(file_exists(path));
    }
}
