// Training checkpoints: durable, verified, never half; and what a kill, a full disk or a flipped
// bit does to them.
#include "checkpoint/checkpoint.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "model/families.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 5 };
static float memory[TENSORS][3000];

static struct tensor *tensors_of(int64_t step) {
    static struct tensor list[TENSORS];
    static const int64_t sizes[TENSORS] = {3000, 1200, 32, 2000, 7};
    for (int i = 0; i < TENSORS; i++) {
        list[i] = (struct tensor){
            .type = DTYPE_F32, .dims = i % 2 ? 1 : 2, .shape = {sizes[i], 1}, .data = memory[i]};
        snprintf(list[i].name, sizeof list[i].name, "layers.%d.weight", i);
        for (int64_t k = 0; k < sizes[i]; k++)
            memory[i][k] = (float)(100 * step + i) + (float)k / 4096;
    }
    return list;
}

static struct model_config model_of(void) {
    struct model_config c;
    CHECK_OK(model_preset("llama-15m", &c, NULL), (struct err){0});
    return c;
}

static int save(const char *folder, int64_t step, struct err *err) {
    struct model_config model = model_of();
    json_t *extra = json_pack("{s:f}", "average", 0.1);
    struct checkpoint_state state = {.step = step,
                                     .samples = 8 * step,
                                     .tokens = 64 * step,
                                     .seed = UINT64_MAX,
                                     .config = "a: 1\nb: \"\xc3\xa9\"\n",
                                     .binary = "abc",
                                     .gemm = "oneDNN",
                                     .isa = "avx2",
                                     .extra = extra};
    int result =
        checkpoint_save(folder, &model, tensors_of(step), TENSORS, &state, 10000, NULL, err);
    json_decref(extra);
    return result;
}

// Loads the newest; the step, 0 when there is none, -1 on an error. Checks that the values are
// those of that step.
static int64_t load(const char *folder, struct err *err) {
    struct checkpoint *c;
    if (checkpoint_open_newest(folder, &c, err) != 0) return -1;
    if (!c) return 0;
    int64_t step = checkpoint_state(c)->step;
    struct tensor *list = tensors_of(-1);
    CHECK_OK(checkpoint_load(c, list, TENSORS, err), *err);
    CHECK_CLOSE(memory[3][1999], (double)(100 * step + 3) + 1999.0 / 4096, 1e-6);
    CHECK_CLOSE(memory[4][0], (double)(100 * step + 4), 0);
    checkpoint_close(c);
    return step;
}

static char log_lines[8192];
static void keep_line(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    size_t used = strlen(log_lines);
    snprintf(log_lines + used, sizeof log_lines - used, "%s\n", line);
}

static const char *inside(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void change_byte(const char *path, long offset, bool cut) {
    uint64_t size;
    CHECK_OK(file_size(path, &size, NULL), (struct err){0});
    if (cut) {
        CHECK(truncate(path, (off_t)size - 1) == 0);
        return;
    }
    FILE *f = fopen(path, "r+b");
    fseek(f, offset < 0 ? (long)size + offset : offset, SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
}

TEST(what_was_saved_comes_back) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    CHECK_EQ_INT(load(folder, &err), 0);
    CHECK_EQ_INT(load(inside(folder, "absent"), &err), 0);
    CHECK_OK(save(folder, 20, &err), err);
    CHECK_EQ_INT(load(folder, &err), 20);
    struct checkpoint *c;
    CHECK_OK(checkpoint_open(inside(folder, "step_00000020"), &c, &err), err);
    const struct checkpoint_state *s = checkpoint_state(c);
    CHECK_EQ_INT(s->samples, 160);
    CHECK_EQ_INT(s->tokens, 1280);
    CHECK(s->seed == UINT64_MAX);
    CHECK_STR(s->config, "a: 1\nb: \"\xc3\xa9\"\n");
    CHECK_STR(s->isa, "avx2");
    CHECK_CLOSE(json_real_value(json_object_get(s->extra, "average")), 0.1, 0);
    CHECK_EQ_INT(checkpoint_model(c)->hidden, 288);
    CHECK(checkpoint_find(c, "layers.2.weight") != NULL &&
          checkpoint_find(c, "layers.9.weight") == NULL);
    checkpoint_close(c);
    CHECK(file_exists(inside(folder, "step_00000020/part-00003.safetensors"))); // split by size
    CHECK(!file_exists(inside(folder, "step_00000020.tmp")));
}

TEST(leftovers_of_a_killed_save_are_replaced) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    CHECK_OK(file_make_folders(inside(folder, "step_00000030.tmp/deep"), &err), err);
    CHECK_OK(file_make_folders(inside(folder, "step_00000030"), &err), err);
    CHECK_OK(file_replace(inside(folder, "step_00000030/part-00001.safetensors"), "x", 1, &err),
             err);
    CHECK_EQ_INT(load(folder, &err), 0); // nothing that a run could have lost: it begins anew
    CHECK_OK(save(folder, 30, &err), err);
    CHECK_EQ_INT(load(folder, &err), 30);
    CHECK(!file_exists(inside(folder, "step_00000030.tmp")));
    CHECK_OK(save(folder, 30, &err), err); // the same step again
    CHECK_EQ_INT(load(folder, &err), 30);
}

TEST(damage_to_any_file_falls_back_and_says_why) {
    static const char *const files[] = {"manifest.json", "part-00001.safetensors",
                                        "part-00002.safetensors", "part-00003.safetensors"};
    const char *folder = test_temp_dir();
    struct err err = {0};
    log_to(keep_line, NULL, LOG_DEBUG);
    CHECK_OK(save(folder, 10, &err), err);
    for (int file = 0; file < 4; file++)
        for (int kind = 0; kind < 4; kind++) {
            char path[4096];
            CHECK_OK(save(folder, 20, &err), err);
            snprintf(path, sizeof path, "%s/step_00000020/%s", folder, files[file]);
            if (kind < 3)
                change_byte(path, kind == 0 ? 5 : -60, kind == 2);
            else
                CHECK(unlink(path) == 0);
            log_lines[0] = 0;
            CHECK_EQ_INT(load(folder, &err), 10);
            CHECK_CONTAINS(log_lines, "step_00000020 is passed over");
            CHECK_CONTAINS(log_lines, files[file]);
        }
    // nothing valid left is an error, not an empty start
    change_byte(inside(folder, "step_00000010/part-00001.safetensors"), -9, false);
    CHECK_EQ_INT(load(folder, &err), -1);
    CHECK_CONTAINS(err.text, "none of the 2 checkpoints");
}

TEST(a_full_disk_leaves_the_previous_one) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    CHECK_OK(save(folder, 10, &err), err);
    int failures = 0;
    for (uint64_t bytes = 0; bytes < 40000; bytes += bytes < 200 ? 37 : 911) {
        struct err full = {0};
        file_fail_after(bytes, ENOSPC);
        int result = save(folder, 20, &full);
        file_fail_after(0, 0);
        if (result == 0) break;
        failures++;
        CHECK_EQ_INT(full.kind, ERR_IO);
        CHECK_CONTAINS(full.text, "No space left");
        CHECK_CONTAINS(full.text, "step 20");
        CHECK(!file_exists(inside(folder, "step_00000020")));
        CHECK(!file_exists(inside(folder, "step_00000020.tmp")));
    }
    CHECK(failures > 20);
    struct err again = {0};
    CHECK_EQ_INT(load(folder, &again), 20);
}

TEST(a_folder_that_cannot_be_written) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    CHECK_OK(file_replace(inside(folder, "file"), "x", 1, &err), err);
    CHECK(save(inside(folder, "file/below"), 10, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_IO);
    CHECK_CONTAINS(err.text, "file");
}

TEST_LIMIT(kill_at_any_moment_leaves_a_checkpoint, 100) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    CHECK_OK(save(folder, 10, &err), err);
    unsigned state = 7;
    int64_t newest = 10;
    int advanced = 0;
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int64_t step = newest + 10;; step += 10) {
                struct checkpoint_retention keep = {.keep_last = 2, .saved_step = step};
                if (save(folder, step, NULL) != 0) _exit(1);
                checkpoint_retain(folder, &keep);
            }
        }
        state = state * 1664525u + 1013904223u;
        usleep(200 + (state >> 8) % 20000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status));
        int64_t step = load(folder, &err);
        if (step < newest)
            test_fail(__FILE__, __LINE__, "after step %lld the newest is %lld: %s",
                      (long long)newest, (long long)step, err.text);
        advanced += step > newest;
        newest = step;
    }
    CHECK(advanced > 0);
}

static void names_are(const char *folder, const char *expected) {
    char **names;
    size_t count;
    struct text all = {0};
    CHECK_OK(file_list(folder, &names, &count, NULL), (struct err){0});
    for (size_t i = 0; i < count; i++) text_printf(&all, "%s ", names[i]);
    CHECK_STR(all.data, expected);
    file_list_free(names, count);
    text_free(&all);
}

TEST(retention_is_numeric_and_touches_only_its_own) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    int64_t pinned[] = {9};
    struct checkpoint_retention keep = {
        .keep_last = 2, .pinned = pinned, .pinned_count = 1, .saved_step = -1};
    CHECK_OK(file_make_folders(inside(folder, "notes"), &err), err);
    CHECK_OK(file_make_folders(inside(folder, "step_200.tmp"), &err), err);
    CHECK_OK(file_make_folders(inside(folder, "step_5"), &err),
             err); // somebody's folder without a manifest
    CHECK_OK(save(folder, 9, &err), err);
    CHECK_OK(save(folder, 10, &err), err);
    CHECK_OK(save(folder, 100, &err), err);
    CHECK_EQ_INT(checkpoint_retain(folder, &keep), 0);
    names_are(folder, "notes step_00000009 step_00000010 step_00000100 step_200.tmp step_5 ");
    CHECK_OK(save(folder, 110, &err), err);
    CHECK_EQ_INT(checkpoint_retain(folder, &keep), 1);
    names_are(folder, "notes step_00000009 step_00000100 step_00000110 step_200.tmp step_5 ");
    int64_t *steps;
    int count;
    CHECK_OK(checkpoint_list(folder, &steps, &count, &err), err);
    CHECK_EQ_INT(count, 3);
    CHECK_EQ_INT(steps[0], 9);
    CHECK_EQ_INT(steps[2], 110);
    free(steps);
    // every hundredth stays whatever its age
    keep.pinned_count = 0;
    keep.keep_every = 100;
    keep.keep_last = 1;
    CHECK_EQ_INT(checkpoint_retain(folder, &keep), 1);
    names_are(folder, "notes step_00000100 step_00000110 step_200.tmp step_5 ");
}

TEST(the_only_valid_one_stays) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    log_to(keep_line, NULL, LOG_DEBUG);
    for (int64_t step = 10; step <= 40; step += 10) CHECK_OK(save(folder, step, &err), err);
    change_byte(inside(folder, "step_00000040/part-00001.safetensors"), -5, false);
    change_byte(inside(folder, "step_00000030/part-00002.safetensors"), -5, false);
    struct checkpoint_retention keep = {.keep_last = 1, .saved_step = -1};
    CHECK_EQ_INT(checkpoint_retain(folder, &keep), 1);
    CHECK_EQ_INT(load(folder, &err), 20);
    CHECK_CONTAINS(log_lines, "damaged");
    keep.keep_last = 0; // the least is 1
    checkpoint_retain(folder, &keep);
    CHECK_EQ_INT(load(folder, &err), 20);
}

TEST(tensors_that_do_not_fit_are_named) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    struct checkpoint *c;
    CHECK_OK(save(folder, 10, &err), err);
    CHECK_OK(checkpoint_open_newest(folder, &c, &err), err);
    struct tensor list[TENSORS + 1];
    memcpy(list, tensors_of(1), TENSORS * sizeof *list);
    CHECK(checkpoint_load(c, list, TENSORS - 1, &err) != 0);
    CHECK_CONTAINS(err.text, "unexpected: layers.4.weight");
    list[TENSORS] = list[0];
    strcpy(list[TENSORS].name, "layers.77.weight");
    err = (struct err){0};
    CHECK(checkpoint_load(c, list, TENSORS + 1, &err) != 0);
    CHECK_CONTAINS(err.text, "missing: layers.77.weight");
    list[1].shape[0] = 1201;
    err = (struct err){0};
    CHECK(checkpoint_load(c, list, TENSORS, &err) != 0);
    CHECK_CONTAINS(err.text, "layers.1.weight (stored f32 [1200], expected f32 [1201])");
    checkpoint_close(c);
}

TEST(values_that_are_not_finite_are_refused) {
    const char *folder = test_temp_dir();
    struct err err = {0};
    struct tensor *list = tensors_of(10);
    struct model_config model = model_of();
    struct checkpoint_state state = {.step = 10};
    memory[3][1234] = NAN;
    CHECK_OK(checkpoint_save(folder, &model, list, TENSORS, &state, 0, NULL, &err), err);
    struct checkpoint *c;
    CHECK_OK(checkpoint_open_newest(folder, &c, &err), err);
    CHECK(checkpoint_load(c, list, TENSORS, &err) != 0);
    CHECK_CONTAINS(err.text, "layers.3.weight");
    CHECK_CONTAINS(err.text, "1234");
    checkpoint_close(c);
}

TEST(random_changes_of_a_manifest_never_crash) {
    const char *folder = test_temp_dir();
    char path[4096], *text;
    size_t bytes;
    struct err err = {0};
    CHECK_OK(save(folder, 10, &err), err);
    snprintf(path, sizeof path, "%s/step_00000010/manifest.json", folder);
    CHECK_OK(file_read(path, 0, &text, &bytes, &err), err);
    unsigned state = 3;
    for (int round = 0; round < 1000; round++) {
        char *copy = malloc(bytes);
        size_t length = bytes;
        memcpy(copy, text, bytes);
        for (int k = 0; k < 1 + round % 3; k++) {
            state = state * 1664525u + 1013904223u;
            size_t at = (state >> 8) % bytes;
            if ((state & 7) == 0)
                length = at;
            else
                copy[at] = (state & 1) ? "0123456789,[]{}\":"[(state >> 24) % 17]
                                       : (char)(copy[at] ^ (char)(1u << (state >> 29)));
        }
        FILE *f = fopen(path, "wb");
        fwrite(copy, 1, length, f);
        fclose(f);
        free(copy);
        struct checkpoint *c;
        struct err why = {0};
        char one[4096];
        snprintf(one, sizeof one, "%s/step_00000010", folder);
        if (checkpoint_open(one, &c, &why) == 0)
            checkpoint_close(c); // a change of white space
        else
            CHECK(why.kind != ERR_NONE);
    }
    free(text);
}
