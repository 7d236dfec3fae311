// The journal: what a resume keeps, what a full disk leaves, exact numbers; and rates.
#include "observe/metrics.h"
#include "base/json.h"
#include "base/log.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *journal(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_temp_dir());
    return path;
}

static void put_steps(int64_t keep, int64_t from, int64_t to) {
    struct metrics m;
    struct err err = {0};
    CHECK_OK(metrics_open(&m, journal(), keep, &err), err);
    for (int64_t step = from; step <= to; step++) {
        struct metrics_step s = {.step = step, .loss = 1.0 / (double)step, .gradient_norm = 0.1};
        metrics_put_step(&m, &s);
        if (step % 5 == 0) metrics_put_event(&m, "evaluation", step, "\"loss\":%g", 3.5);
    }
    metrics_close(&m);
}

// Steps in the file, in order, as "1 2 3e 3"; every line must be an object.
static const char *steps_in_file(void) {
    static char list[4000];
    char *text;
    size_t size;
    struct err err = {0};
    CHECK_OK(file_read(journal(), 0, &text, &size, &err), err);
    list[0] = 0;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        char *end = strchr(line, '\n');
        CHECK(end != NULL);
        json_t *value = json_parse(line, (size_t)(end - line), "line", &err);
        if (!value) test_fail(__FILE__, __LINE__, "%s", err.text);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%lld%s", list[0] ? " " : "",
                 (long long)json_integer_value(json_object_get(value, "step")),
                 json_object_get(value, "event") ? "e" : "");
        json_decref(value);
    }
    free(text);
    return list;
}

TEST(metrics_cut_on_resume) {
    put_steps(0, 1, 8);
    CHECK_STR(steps_in_file(), "1 2 3 4 5 5e 6 7 8");
    put_steps(5, 6, 7);
    CHECK_STR(steps_in_file(), "1 2 3 4 5 5e 6 7");
    put_steps(0, 1, 2); // a run from the beginning
    CHECK_STR(steps_in_file(), "1 2");
}

TEST(metrics_half_a_line_is_dropped) {
    struct file_writer w;
    struct err err = {0};
    put_steps(0, 1, 3);
    CHECK_OK(file_writer_open(&w, journal(), &err), err);
    const char text[] = "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"lo";
    CHECK_OK(file_writer_put(&w, text, sizeof text - 1, &err), err);
    CHECK_OK(file_writer_close(&w, false, &err), err);
    put_steps(3, 3, 4);
    CHECK_STR(steps_in_file(), "1 2 3 4");
}

TEST(metrics_numbers_are_exact_and_valid_json) {
    struct metrics m;
    struct err err = {0};
    char *text;
    size_t size;
    double loss = 1.0 / 3;
    CHECK_OK(metrics_open(&m, journal(), 0, &err), err);
    struct metrics_step s = {.step = 1,
                             .loss = loss,
                             .gradient_norm = INFINITY,
                             .learning_rate = 0.001,
                             .processed = 128,
                             .non_pad = 64,
                             .supervised = 60,
                             .mfu = {.full = 0.7, .causal = 0.6}};
    metrics_put_step(&m, &s);
    metrics_close(&m);
    CHECK_OK(file_read(journal(), 0, &text, &size, &err), err);
    json_t *value = json_parse(text, size, "line", &err);
    CHECK(value != NULL);
    double back = strtod(json_string_value(json_object_get(value, "loss_hex")), NULL);
    CHECK_BYTES(&back, &loss, sizeof loss);
    CHECK(json_is_null(json_object_get(value, "grad_norm")));
    CHECK_STR(json_string_value(json_object_get(value, "grad_norm_hex")), "inf");
    CHECK_EQ_INT(json_integer_value(json_object_get(value, "processed_tokens")), 128);
    CHECK_EQ_INT(json_integer_value(json_object_get(value, "non_pad_tokens")), 64);
    CHECK_EQ_INT(json_integer_value(json_object_get(value, "supervised_tokens")), 60);
    CHECK_CLOSE(json_real_value(json_object_get(value, "mfu")), 0.7, 1e-9);
    json_decref(value);
    free(text);
}

static void count_line(enum log_level level, const char *line, void *context) {
    (void)level, (void)line;
    ++*(int *)context;
}

TEST(metrics_full_disk_loses_nothing) {
    struct metrics m;
    struct err err = {0};
    int complaints = 0;
    log_to(count_line, &complaints, LOG_WARN);
    CHECK_OK(metrics_open(&m, journal(), 0, &err), err);
    for (int64_t step = 1; step <= 6; step++) {
        struct metrics_step s = {.step = step, .loss = 2};
        if (step == 3) file_fail_after(40, ENOSPC);
        if (step == 5) file_fail_after(0, 0);
        metrics_put_step(&m, &s);
    }
    metrics_close(&m);
    log_to(NULL, NULL, LOG_INFO);
    CHECK_STR(steps_in_file(), "1 2 3 4 5 6");
    CHECK_EQ_INT(complaints, 1);
}

TEST(mfu_two_conventions) { // the model of model/flops tests: N 90112, causal 638976, full 737280
    struct model_config c = {.family = FAMILY_LLAMA,
                             .layers = 2,
                             .hidden = 64,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .ffn = 128,
                             .vocab = 256,
                             .context = 128,
                             .norm = NORM_RMS,
                             .activation = ACTIVATION_SWIGLU};
    struct mfu_step step = {.processed = 128,
                            .attended_pairs = 128 * 129 / 2,
                            .seconds = 0.5,
                            .gemm_rate = 1e9,
                            .recomputed_flops = 100000};
    struct mfu m = mfu_of_step(&c, 128, &step);
    CHECK_CLOSE(m.tokens_per_second, 256, 1e-12);
    CHECK_CLOSE(m.flops_full, 737280.0 * 256, 1e-12);
    CHECK_CLOSE(m.full, 737280.0 * 256 / 1e9, 1e-12);
    CHECK_CLOSE(m.causal, (540672 + 12.0 * 2 * 64 * 64.5) * 256 / 1e9, 1e-12);
    CHECK_CLOSE(m.hfu, (737280.0 + 100000) * 256 / 1e9, 1e-12);
    CHECK(m.hfu > m.full && m.full > m.causal);
    step.gemm_rate = 0;
    CHECK_EQ_INT(mfu_of_step(&c, 128, &step).full, 0);
    step.seconds = 0;
    CHECK_EQ_INT(mfu_of_step(&c, 128, &step).tokens_per_second, 0);
}
