// Checkpoints of several ranks when something goes wrong: on one rank, on the disk, in the files.
#include "base/file.h"
#include "base/log.h"
#include "spread.h"
#include "test.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3 };

struct scene {
    const char *folder;
    struct spread spread;
    int64_t step;
    int odd; // rank to which `odd_folder` or `odd_step` applies; -1: none
    const char *odd_folder;
    int64_t odd_step;
    int results[RANKS];
    struct err errors[RANKS];
    int64_t loaded[RANKS];
};

static struct scene scene_of(unsigned state) {
    struct scene scene = {.folder = test_temp_dir(), .odd = -1};
    spread_random(&scene.spread, RANKS, &state);
    return scene;
}

static void save_one(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    bool odd = rank == s->odd;
    s->errors[rank] = (struct err){0};
    s->results[rank] = spread_save(odd && s->odd_folder ? s->odd_folder : s->folder, &s->spread,
                                   rank, odd && s->odd_step ? s->odd_step : s->step, 2000, world,
                                   NULL, &s->errors[rank]);
}

// All ranks must agree, and say the same.
static int save(struct scene *s, int64_t step) {
    s->step = step;
    spread_fill(&s->spread, step);
    run_ranks(RANKS, 0, save_one, s);
    for (int i = 1; i < RANKS; i++) {
        CHECK_EQ_INT(s->results[i], s->results[0]);
        CHECK_STR(s->errors[i].text, s->errors[0].text);
        CHECK_EQ_INT(s->errors[i].kind, s->errors[0].kind);
    }
    return s->results[0];
}

static void load_one(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct checkpoint *c = NULL;
    s->errors[rank] = (struct err){0};
    s->loaded[rank] = -1;
    s->results[rank] = checkpoint_open_newest_world(s->folder, world, &c, &s->errors[rank]);
    if (s->results[rank] != 0 || !c) return;
    s->results[rank] = checkpoint_load_slices(c, s->spread.slices[rank], s->spread.counts[rank],
                                              world, &s->errors[rank]);
    s->loaded[rank] = checkpoint_state(c)->step;
    if (s->results[rank] == 0) spread_check(&s->spread, rank, s->loaded[rank]);
    checkpoint_close(c);
}

// The step of which all have the values; -1: none or an error.
static int64_t load(struct scene *s) {
    spread_clear(&s->spread);
    run_ranks(RANKS, 0, load_one, s);
    for (int i = 1; i < RANKS; i++) {
        CHECK_EQ_INT(s->loaded[i], s->loaded[0]);
        CHECK_EQ_INT(s->results[i], s->results[0]);
        CHECK_STR(s->errors[i].text, s->errors[0].text);
    }
    return s->results[0] == 0 ? s->loaded[0] : -1;
}

static const char *inside(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static char log_lines[16384];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void keep_line(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_lines);
    snprintf(log_lines + used, sizeof log_lines - used, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}

TEST(what_one_rank_cannot_do_all_leave) {
    struct scene s = scene_of(3);
    struct err err = {0};
    CHECK_EQ_INT(save(&s, 10), 0);
    CHECK_OK(file_replace(inside(s.folder, "file"), "x", 1, &err), err);
    char elsewhere[4096];
    snprintf(elsewhere, sizeof elsewhere, "%s", inside(s.folder, "elsewhere"));
    for (s.odd = 0; s.odd < RANKS; s.odd++) {
        char expected[64];
        s.odd_folder = s.odd == 0 ? "/proc/absent" : elsewhere;
        CHECK_EQ_INT(save(&s, 20), -1);
        snprintf(expected, sizeof expected, "rank %d: %s", s.odd, s.odd_folder);
        CHECK_CONTAINS(s.errors[0].text, "step 20 was not saved");
        CHECK_CONTAINS(s.errors[0].text, expected);
        CHECK_EQ_INT(s.errors[0].kind, ERR_IO);
        CHECK(!file_exists(inside(s.folder, "step_00000020")));
        CHECK(!file_exists(inside(s.folder, "step_00000020.tmp")));
    }
    s.odd_folder = NULL;
    s.odd_step = 21;
    s.odd = 1;
    s.step = 20;
    run_ranks(RANKS, 0, save_one, &s);
    for (int i = 0; i < RANKS; i++) CHECK_CONTAINS(s.errors[i].text, "not at the same step");
    s.odd = -1;
    CHECK_EQ_INT(load(&s), 10);
    CHECK_EQ_INT(save(&s, 20), 0);
    CHECK_EQ_INT(load(&s), 20);
    spread_free(&s.spread);
}

TEST(leftovers_do_not_hinder_several_ranks) {
    struct scene s = scene_of(4);
    struct err err = {0};
    CHECK_OK(file_make_folders(inside(s.folder, "step_00000030.tmp/deep"), &err), err);
    CHECK_OK(file_make_folders(inside(s.folder, "step_00000030"), &err), err);
    CHECK_EQ_INT(load(&s), -1);
    CHECK_EQ_INT(s.results[0], 0); // none is no error
    CHECK_EQ_INT(save(&s, 30), 0);
    CHECK_EQ_INT(load(&s), 30);
    CHECK_EQ_INT(save(&s, 30), 0);
    CHECK_EQ_INT(load(&s), 30);
    CHECK(!file_exists(inside(s.folder, "step_00000030.tmp")));
    spread_free(&s.spread);
}

TEST(a_full_disk_is_everybodys) {
    struct scene s = scene_of(6);
    int failures = 0;
    CHECK_EQ_INT(save(&s, 10), 0);
    for (uint64_t bytes = 0;; bytes += 1733) {
        file_fail_after(bytes, ENOSPC);
        int result = save(&s, 20);
        file_fail_after(0, 0);
        if (result == 0) break;
        failures++;
        CHECK_CONTAINS(s.errors[0].text, "No space left");
        CHECK_CONTAINS(s.errors[0].text, "rank ");
        CHECK(!file_exists(inside(s.folder, "step_00000020")));
        CHECK(!file_exists(inside(s.folder, "step_00000020.tmp")));
        if (failures % 8 == 1) CHECK_EQ_INT(load(&s), 10);
    }
    CHECK(failures > 5);
    CHECK_EQ_INT(load(&s), 20);
    spread_free(&s.spread);
}

TEST(absent_and_cut_parts_fall_back_and_name_the_rank) {
    struct scene s = scene_of(7);
    log_to(keep_line, NULL, LOG_DEBUG);
    CHECK_EQ_INT(save(&s, 10), 0);
    for (int kind = 0; kind < 3; kind++) {
        char part[4096];
        struct checkpoint *c;
        struct err err = {0};
        uint64_t size;
        CHECK_EQ_INT(save(&s, 20), 0);
        snprintf(part, sizeof part, "%s/step_00000020/rank-00002-part-00001.safetensors", s.folder);
        CHECK_OK(file_size(part, &size, &err), err);
        CHECK((kind == 0 ? unlink(part) : truncate(part, (off_t)size - 1)) == 0);
        if (kind == 2) { // both a missing and a cut one
            snprintf(part, sizeof part, "%s/step_00000020/rank-00001-part-00001.safetensors",
                     s.folder);
            CHECK(unlink(part) == 0);
        }
        CHECK(checkpoint_open(inside(s.folder, "step_00000020"), &c, &err) != 0);
        if (kind == 1) CHECK_CONTAINS(err.text, "truncated");
        log_lines[0] = 0;
        CHECK_EQ_INT(load(&s), 10);
        CHECK_CONTAINS(log_lines, "step_00000020 is passed over");
        const char *wanted[] = {"part of rank 2 is missing: rank-00002-part-00001.safetensors (it "
                                "held rows [",
                                "rank-00002-part-00001.safetensors: ",
                                "part of rank 1 is missing: rank-00001-part-00001.safetensors"};
        CHECK_CONTAINS(log_lines, wanted[kind]);
        CHECK_CONTAINS(kind == 1 ? log_lines : err.text, wanted[kind]);
    }
    CHECK(unlink(inside(s.folder, "step_00000010/rank-00000-part-00001.safetensors")) == 0);
    CHECK_EQ_INT(load(&s), -1);
    CHECK_EQ_INT(s.results[0], -1);
    CHECK_CONTAINS(s.errors[0].text, "none of the 2 checkpoints");
    spread_free(&s.spread);
}

TEST(elements_that_nobody_or_two_ranks_give_are_named) {
    struct scene s = scene_of(8);
    struct tensor_slice *first = &s.spread.slices[1][0], before = *first;
    while (first->rows < 2 || first->columns < 2 || first->copies > 1) first++;
    before = *first;
    first->rows--; // the last row of it is now nobody's
    char expected[200];
    snprintf(expected, sizeof expected, "no part holds rows [%lld, %lld)",
             (long long)(before.row + before.rows - 1), (long long)(before.row + before.rows));
    CHECK_EQ_INT(save(&s, 10), -1);
    CHECK_CONTAINS(s.errors[0].text, expected);
    CHECK_CONTAINS(s.errors[0].text, before.name);
    *first = before;
    s.spread.slices[2][s.spread.counts[2]++] = before; // and now it is two ranks'
    CHECK_EQ_INT(save(&s, 10), -1);
    CHECK_CONTAINS(s.errors[0].text, "more than one part holds");
    s.spread.counts[2]--;
    first->shape[0]++; // one rank has another idea of the whole
    CHECK_EQ_INT(save(&s, 10), -1);
    CHECK_CONTAINS(s.errors[0].text, "type or shape");
    *first = before;
    first->row = 10000;
    CHECK_EQ_INT(save(&s, 10), -1);
    CHECK_CONTAINS(s.errors[0].text, "rank 1: tensor");
    CHECK_CONTAINS(s.errors[0].text, "lie outside of it");
    *first = before;
    for (int i = 0; i < s.spread.counts[2]; i++) // another rank has it of them all
        s.spread.slices[2][i].shape[0]++;
    CHECK_EQ_INT(save(&s, 10), -1);
    CHECK_CONTAINS(s.errors[0].text, "rank 2 gives tensor");
    for (int i = 0; i < s.spread.counts[2]; i++) s.spread.slices[2][i].shape[0]--;
    CHECK(!file_exists(inside(s.folder, "step_00000010.tmp")));
    CHECK_EQ_INT(save(&s, 10), 0);
    CHECK_EQ_INT(load(&s), 10);
    spread_free(&s.spread);
}

TEST(what_no_rank_wants_and_what_none_stored_is_named) {
    struct scene s = scene_of(9);
    CHECK_EQ_INT(save(&s, 10), 0);
    struct tensor_slice kept = s.spread.slices[2][0];
    strcpy(s.spread.slices[2][0].name, "layers.9.weight");
    run_ranks(RANKS, 0, load_one, &s);
    for (int i = 0; i < RANKS; i++) CHECK_CONTAINS(s.errors[i].text, "missing: layers.9.weight");
    CHECK_CONTAINS(s.errors[0].text, "rank 2: ");
    s.spread.slices[2][0] = kept;
    for (int i = 0; i < RANKS; i++) // nobody asks for the vector of norms any more
        for (int k = 0; k < s.spread.counts[i]; k++)
            if (strcmp(s.spread.slices[i][k].name, "layers.0.norm.weight") == 0) {
                struct tensor_slice *list = s.spread.slices[i];
                free(list[k].data);
                list[k--] = list[--s.spread.counts[i]];
            }
    run_ranks(RANKS, 0, load_one, &s);
    for (int i = 0; i < RANKS; i++) {
        CHECK_EQ_INT(s.results[i], -1);
        CHECK_CONTAINS(s.errors[i].text, "unexpected: layers.0.norm.weight");
    }
    spread_free(&s.spread);
}

TEST(values_that_are_not_finite_are_found_in_any_piece) {
    struct scene s = scene_of(10);
    struct tensor_slice *slice = NULL;
    int holder = 0;
    s.step = 10;
    spread_fill(&s.spread, 10);
    for (int i = 0; i < RANKS && !slice; i++)
        for (int k = 0; k < s.spread.counts[i] && !slice; k++)
            if (s.spread.slices[i][k].copies == 1 && s.spread.slices[i][k].dims == 2 &&
                s.spread.slices[i][k].type == DTYPE_F32 && s.spread.slices[i][k].rows > 1 &&
                s.spread.slices[i][k].stride > s.spread.slices[i][k].columns) {
                slice = &s.spread.slices[i][k];
                holder = i;
            }
    CHECK(slice != NULL);
    ((float *)slice->data)[slice->stride] = INFINITY;
    run_ranks(RANKS, 0, save_one, &s);
    CHECK_EQ_INT(s.results[0], 0);
    char expected[64];
    snprintf(expected, sizeof expected, "not finite at index %lld",
             (long long)((slice->row + 1) * slice->shape[1] + slice->column));
    CHECK_EQ_INT(load(&s), -1);
    CHECK_CONTAINS(s.errors[0].text, expected);
    CHECK_CONTAINS(s.errors[0].text, slice->name);
    snprintf(expected, sizeof expected, "rank %d: ", holder);
    CHECK_CONTAINS(s.errors[0].text, expected);
    spread_free(&s.spread);
}

static void save_on(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    for (int64_t step = s->step + 10;; step += 10) {
        struct checkpoint_retention keep = {.keep_last = 2, .saved_step = step};
        // the values are those of the step before the first, whatever the step: they stay unchanged
        if (spread_save(s->folder, &s->spread, rank, step, 2000, world, NULL, NULL) != 0) _exit(1);
        if (rank == 0) checkpoint_retain(s->folder, &keep);
    }
}

TEST_LIMIT(kill_of_several_ranks_leaves_a_checkpoint, 100) {
    struct scene s = scene_of(12);
    CHECK_EQ_INT(save(&s, 10), 0);
    unsigned state = 7;
    int64_t newest = 10;
    int advanced = 0;
    // a busy machine gets longer until a save comes through
    for (int round = 0; round < 25 || advanced == 0; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            s.step = newest;
            spread_fill(&s.spread, 0);
            run_ranks(RANKS, 0, save_on, &s);
        }
        usleep(500 + next_random(&state) % (60000u << (round < 25 ? 0 : round - 24)));
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status));
        struct checkpoint *c;
        struct err err = {0};
        CHECK_OK(checkpoint_open_newest(s.folder, &c, &err), err);
        CHECK(c != NULL);
        int64_t step = checkpoint_state(c)->step;
        CHECK(step >= newest);
        advanced += step > newest;
        newest = step;
        checkpoint_close(c);
    }
    CHECK(advanced > 0);
    int64_t *steps;
    int count;
    checkpoint_retain(s.folder, &(struct checkpoint_retention){.keep_last = 1, .saved_step = -1});
    CHECK_OK(checkpoint_list(s.folder, &steps, &count, NULL), (struct err){0});
    CHECK(count == 1 && steps[0] == newest);
    free(steps);
    spread_free(&s.spread);
}
