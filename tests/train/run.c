// Runs in this process: resuming to the last bit, figures of a step, refusals, full disks.
#include "train/run.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "run_fixture.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static struct train_config config, other;
static struct run_result result;

static void quiet(enum log_level level, const char *line, void *context) {
    (void)level;
    struct text *lines = context;
    if (lines) text_printf(lines, "%s\n", line);
}

static void run_to_end(struct train_config *c) {
    struct err err = {0};
    log_to(quiet, NULL, LOG_INFO);
    CHECK_OK(train_run(c, NULL, &result, &err), err);
    log_to(NULL, NULL, LOG_INFO);
}

static void check_same_run(const char *const *words) {
    static const int cuts[] = {1, 7};
    const char *stop[16] = {0}, *go_on[16] = {0};
    int count = 0;
    for (; words[count]; count++) stop[count] = go_on[count] = words[count];
    fixture_config(&config, test_temp_dir(), "whole", go_on);
    run_to_end(&config);
    const char *losses = fixture_column(&config, "loss_hex"),
               *norms = fixture_column(&config, "grad_norm_hex");
    const char *rates = fixture_column(&config, "learning_rate");
    uint64_t hash = fixture_checkpoint_hash(&config, 12);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        char word[64], name[64];
        snprintf(word, sizeof word, "train.stop_at=%d", cuts[i]);
        snprintf(name, sizeof name, "cut at %d", cuts[i]);
        stop[count] = word;
        fixture_config(&other, test_temp_dir(), name, stop);
        run_to_end(&other);
        CHECK_EQ_INT(result.step, cuts[i]);
        fixture_config(&other, test_temp_dir(), name, go_on);
        run_to_end(&other);
        CHECK_EQ_INT(result.resumed_from, cuts[i]);
        CHECK_STR(fixture_column(&other, "loss_hex"), losses);
        CHECK_STR(fixture_column(&other, "grad_norm_hex"), norms);
        CHECK_STR(fixture_column(&other, "learning_rate"), rates);
        CHECK(fixture_checkpoint_hash(&other, 12) == hash);
    }
    file_remove_tree(test_temp_dir(), NULL);
    struct err err = {0};
    CHECK_OK(file_make_folders(test_temp_dir(), &err), err);
}

TEST(a_resumed_run_has_the_same_bits) {
    check_same_run(WORDS("train.precision=bf16", "schedule.warmup=5"));
    check_same_run(WORDS("train.precision=fp32", "train.recompute=full"));
    check_same_run(WORDS("data.mode=pack", "train.micro_batch=1", "data.shuffle=shard"));
    check_same_run(WORDS("train.batch_ramp=[2@6]", "schedule.kind=wsd", "schedule.decay=4"));
    check_same_run(WORDS("model.family=gpt2", "model.kv_heads=4", "optimizer.clip=0.01"));
}

TEST(another_seed_is_another_run) { // the control of the test above
    fixture_config(&config, test_temp_dir(), "one", WORDS("train.seed=1"));
    run_to_end(&config);
    fixture_config(&other, test_temp_dir(), "two", WORDS("train.seed=2"));
    run_to_end(&other);
    CHECK(strcmp(fixture_column(&config, "loss_hex"), fixture_column(&other, "loss_hex")) != 0);
    CHECK(fixture_checkpoint_hash(&config, 12) != fixture_checkpoint_hash(&other, 12));
}

TEST(threads_change_no_bit) {
    fixture_config(&config, test_temp_dir(), "one", WORDS("device.threads=1"));
    run_to_end(&config);
    fixture_config(&other, test_temp_dir(), "two", WORDS("device.threads=2", "data.readers=3"));
    run_to_end(&other);
    CHECK_STR(fixture_column(&config, "loss_hex"), fixture_column(&other, "loss_hex"));
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
}

static double first_number(const struct train_config *c, const char *member) {
    return strtod(fixture_column(c, member), NULL);
}

// Each token once, whatever the split; loss and norm of the global batch, the norm before clipping.
TEST(figures_do_not_depend_on_the_split) {
    double loss = 0, norm = 0;
    static const char *const splits[] = {"train.micro_batch=4", "train.micro_batch=2",
                                         "train.micro_batch=1"};
    for (int i = 0; i < 3; i++) {
        fixture_config(&config, test_temp_dir(), splits[i],
                       WORDS(splits[i], "train.steps=1", "train.precision=fp32"));
        run_to_end(&config);
        CHECK_EQ_INT(first_number(&config, "processed_tokens"), 128);
        CHECK_EQ_INT(first_number(&config, "non_pad_tokens"), 128);
        CHECK_EQ_INT(first_number(&config, "supervised_tokens"), 128);
        if (i == 0) {
            loss = first_number(&config, "loss");
            norm = first_number(&config, "grad_norm");
            CHECK_CLOSE(loss, log(100), 0.05);
        }
        CHECK_CLOSE(first_number(&config, "loss") / loss, 1, 1e-5);
        CHECK_CLOSE(first_number(&config, "grad_norm") / norm, 1, 1e-4);
    }
    fixture_config(&other, test_temp_dir(), "clipped",
                   WORDS("train.micro_batch=2", "train.steps=1", "train.precision=fp32",
                         "optimizer.clip=0.1"));
    run_to_end(&other);
    CHECK_CLOSE(first_number(&other, "grad_norm") / norm, 1, 1e-4);
    CHECK_CLOSE(first_number(&other, "clip_factor"), 0.1 / first_number(&other, "grad_norm"), 1e-6);
}

TEST(planned_bytes_are_allocated_bytes) {
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=1"));
    run_to_end(&config);
    CHECK(result.planned_bytes > 100000);
    CHECK_EQ_INT(result.planned_bytes, result.allocated_bytes);
}

TEST(a_run_learns) {
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("train.steps=60", "data.shuffle=none", "train.batch=2",
                         "checkpoint.every=0", "optimizer.learning_rate=0.01", "data.context=16"));
    run_to_end(&config);
    CHECK(result.loss < log(100) - 0.1);
    CHECK(isfinite(result.validation_loss));
}

TEST(another_shape_is_refused_with_both_values) {
    struct err err = {0};
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=2"));
    run_to_end(&config);
    fixture_config(&config, test_temp_dir(), "run", WORDS("model.layers=3"));
    log_to(quiet, NULL, LOG_INFO);
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, "model.layers: 2 in the checkpoint, 3 now");
    CHECK_EQ_INT(err_exit_status(&err), 2);
    err = (struct err){0};
    fixture_config(&config, test_temp_dir(), "run", WORDS("model.layers=3", "model.vocab=130"));
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, " now;"); // several in one line
    CHECK(strchr(err.text, '\n') == NULL);
    err = (struct err){0};
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.resume=false"));
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, "train.resume is false");
}

TEST(changes_that_fit_are_told) {
    struct text lines = {0};
    struct err err = {0};
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.stop_at=2"));
    run_to_end(&config);
    fixture_config(&config, test_temp_dir(), "run", WORDS("optimizer.learning_rate=0.5"));
    log_to(quiet, &lines, LOG_INFO);
    CHECK_OK(train_run(&config, NULL, &result, &err), err);
    CHECK_CONTAINS(lines.data, "optimizer.learning_rate: 0.001 in the checkpoint, 0.5 now");
    text_free(&lines);
}

TEST(a_full_disk_costs_only_the_save) {
    struct err err = {0};
    struct text lines = {0};
    int64_t *steps;
    int count;
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.stop_at=4"));
    run_to_end(&config);
    uint64_t hash = fixture_checkpoint_hash(&config, 4);
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("train.steps=12", "checkpoint.snapshot=false"));
    log_to(quiet, &lines, LOG_INFO);
    file_fail_after(40000, ENOSPC); // the journal fits, a checkpoint does not
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    file_fail_after(0, 0);
    CHECK_CONTAINS(lines.data, "checkpoint of step 8 failed, training goes on");
    CHECK_EQ_INT(result.step, 12); // all steps were done; only the last save is a failure
    CHECK_CONTAINS(err.text, "the state of step 12 could not be saved");
    CHECK_EQ_INT(err_exit_status(&err), 4);
    CHECK_OK(checkpoint_list(config.checkpoint_folder, &steps, &count, &err), err);
    CHECK_EQ_INT(count, 1);
    CHECK_EQ_INT(steps[0], 4);
    CHECK(fixture_checkpoint_hash(&config, 4) == hash);
    run_to_end(&config); // with room again it goes on from there
    CHECK_EQ_INT(result.resumed_from, 4);
    fixture_config(&other, test_temp_dir(), "unbroken", WORDS("train.steps=12"));
    run_to_end(&other);
    CHECK(fixture_checkpoint_hash(&config, 12) == fixture_checkpoint_hash(&other, 12));
    CHECK_STR(fixture_column(&config, "loss_hex"), fixture_column(&other, "loss_hex"));
    free(steps);
    text_free(&lines);
}

TEST(losses_that_are_not_finite_change_nothing_and_stop_the_run) {
    struct err err = {0};
    struct text lines = {0};
    fixture_config(&config, test_temp_dir(), "run",
                   WORDS("train.max_bad_steps=3", "optimizer.learning_rate=1000", "train.steps=200",
                         "checkpoint.every=0", "optimizer.weight_decay=100"));
    log_to(quiet, &lines, LOG_INFO);
    CHECK(train_run(&config, NULL, &result, &err) != 0); // decay of 1e5 a step leaves the floats
    CHECK_CONTAINS(err.text, "3 steps in a row");
    CHECK_CONTAINS(lines.data, "samples");
    text_free(&lines);
}

TEST(weights_that_are_not_finite_are_refused) {
    struct err err = {0};
    struct checkpoint *c;
    int count;
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=4"));
    run_to_end(&config);
    CHECK_OK(checkpoint_open_newest(config.checkpoint_folder, &c, &err), err);
    const struct tensor *stored = checkpoint_tensors(c, &count);
    struct tensor *copies = calloc((size_t)count, sizeof *copies);
    for (int i = 0; i < count; i++) {
        copies[i] = stored[i];
        copies[i].data = malloc(tensor_bytes(&stored[i]));
        CHECK_OK(checkpoint_read(c, stored[i].name, copies[i].data, &err), err);
    }
    ((float *)copies[3].data)[5] = NAN;
    struct checkpoint_state state = *checkpoint_state(c);
    state.step = 5;
    CHECK_OK(checkpoint_save(config.checkpoint_folder, &config.model, copies, count, &state, 0,
                             NULL, &err),
             err);
    checkpoint_close(c);
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=12"));
    log_to(quiet, NULL, LOG_INFO);
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, copies[3].name);
    for (int i = 0; i < count; i++) free(copies[i].data);
    free(copies);
}

TEST(data_that_is_not_there_or_does_not_fit) {
    struct err err = {0};
    log_to(quiet, NULL, LOG_INFO);
    fixture_config(&config, test_temp_dir(), "run", WORDS("data.train=/nowhere/a.weft"));
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, "/nowhere/a.weft");
    err = (struct err){0};
    fixture_config(&config, test_temp_dir(), "run2", WORDS("model.vocab=50"));
    CHECK(train_run(&config, NULL, &result, &err) != 0); // ids up to 99 are in the data
    err = (struct err){0};
    fixture_config(&config, test_temp_dir(), "run3", WORDS("data.train=", "data.weights="));
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, "data.train is not given");
    err = (struct err){0};
    fixture_config(&config, test_temp_dir(), "run4", WORDS("train.folder=/proc/none"));
    CHECK(train_run(&config, NULL, &result, &err) != 0);
    CHECK_CONTAINS(err.text, "/proc/none");
    CHECK_EQ_INT(err_exit_status(&err), 4);
}

TEST(a_trace_is_written) {
    char word[4200], path[4100], *text;
    size_t size;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/trace.json", test_temp_dir());
    snprintf(word, sizeof word, "train.trace=%s", path);
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=2", word));
    run_to_end(&config);
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    CHECK_CONTAINS(text, "\"traceEvents\"");
    CHECK_CONTAINS(text, "\"cat\":\"checkpoint\"");
    CHECK_CONTAINS(text, "\"cat\":\"data_wait\"");
    CHECK_CONTAINS(text, "\"cat\":\"forward\"");
    CHECK_CONTAINS(text, "\"cat\":\"gemm\"");
    free(text);
}

TEST(a_stop_saves_and_says_where) {
    static volatile sig_atomic_t stop = 1;
    struct run_control control = {.stop = &stop};
    struct err err = {0};
    fixture_config(&config, test_temp_dir(), "run", WORDS("train.steps=12"));
    log_to(quiet, NULL, LOG_INFO);
    CHECK(train_run(&config, &control, &result, &err) != 0);
    CHECK_EQ_INT(err_exit_status(&err), 130);
    CHECK_EQ_INT(result.step, 0);
}
