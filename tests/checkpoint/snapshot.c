// Snapshots in memory and saves behind the run: any layout loads them, wherever they lie; nothing
// that is damaged or half written is ever loaded.
#include "checkpoint/snapshot.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "behind.h"
#include "test.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct scene {
    struct spread from, to;
    char memory[4096], disk[4096], second[4096]; // memory: "%d" stands for the host
    int hosts;
    int64_t steps[3]; // that are saved, 0 ends
    uint64_t session;
    bool copies; // to the second folder
    enum saver_news news;
    char why[1024];
    void (*meanwhile)(void *context);
    void *context;
    // loading
    struct snapshot_choice choice;
    int64_t step; // that is expected; -1: none
    const char *where;
    atomic_int done;
};

static struct text lines;

static void listen(enum log_level level, const char *line, void *context) {
    (void)level, (void)context;
    text_printf(&lines, "%s\n", line);
}

static void host_folder(const struct scene *s, int rank, char out[4096]) {
    snprintf(out, 4096, "%.4000s/host-%d", s->memory, rank % s->hosts);
}

static void begin_scene(struct scene *s, const char *name) {
    *s = (struct scene){.hosts = 1, .session = 7, .news = SAVER_PERSISTED};
    snprintf(s->memory, sizeof s->memory, "%s/%s memory", test_temp_dir(), name);
    snprintf(s->disk, sizeof s->disk, "%s/%s disk", test_temp_dir(), name);
    snprintf(s->second, sizeof s->second, "%s/%s second", test_temp_dir(), name);
    s->choice = (struct snapshot_choice){.most_step = -1};
    text_free(&lines);
    log_to(listen, NULL, LOG_WARN);
}

static void end_scene(struct scene *s) {
    log_to(NULL, NULL, LOG_INFO);
    file_remove_tree(s->memory, NULL);
    file_remove_tree(s->disk, NULL);
    file_remove_tree(s->second, NULL);
}

// Every rank changes its own pieces; values follow from step and place.
static void fill_rank(struct scene *s, int rank, int64_t step) {
    struct spread one = s->from;
    one.ranks = 1;
    one.slices[0] = s->from.slices[rank];
    one.counts[0] = s->from.counts[rank];
    spread_fill(&one, step);
}

static void save_all(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct behind b;
    char memory[4096];
    host_folder(s, rank, memory);
    behind_open(&b, memory, s->disk, s->copies ? s->second : NULL, s->session, &s->from, rank);
    for (int i = 0; i < 3 && s->steps[i] > 0; i++) {
        fill_rank(s, rank, s->steps[i]);
        behind_begin(&b, s->steps[i]);
        fill_rank(s, rank, 9999); // the run goes on
        struct saver_result r = behind_end(b.saver, world, s->meanwhile, s->context);
        CHECK_EQ_INT(r.news, s->news);
        CHECK_EQ_INT(r.step, s->steps[i]);
        if (rank == 0) snprintf(s->why, sizeof s->why, "%s", r.why.text);
        if (!s->copies || r.news != SAVER_PERSISTED) continue;
        saver_begin(b.second, s->steps[i], -1, s->session, ++b.number);
        CHECK_EQ_INT(behind_end(b.second, world, NULL, NULL).news, SAVER_PERSISTED);
    }
    behind_close(&b);
    s->done++;
}

static void save(struct scene *s) {
    s->done = 0;
    run_ranks(s->from.ranks, 0, save_all, s);
    CHECK_EQ_INT(s->done, s->from.ranks);
}

static void load_all(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct checkpoint *c = NULL;
    char memory[4096];
    const char *from = "";
    struct err err = {0};
    host_folder(s, rank, memory);
    struct snapshot_places places = {.memory = memory,
                                     .run = "run",
                                     .disk = s->disk,
                                     .second = file_exists(s->second) ? s->second : NULL};
    CHECK_OK(snapshot_open_newest(&places, &s->choice, world, &c, &from, &err), err);
    if (s->step < 0) {
        CHECK(c == NULL);
    } else {
        CHECK(c != NULL);
        CHECK_EQ_INT(checkpoint_state(c)->step, s->step);
        CHECK_STR(from, s->where);
        CHECK_OK(checkpoint_load_slices(c, s->to.slices[rank], s->to.counts[rank], world, &err),
                 err);
        spread_check(&s->to, rank, s->step);
        checkpoint_close(c);
    }
    s->done++;
}

static void load(struct scene *s, int64_t step, const char *where) {
    s->step = step;
    s->where = where;
    s->done = 0;
    spread_clear(&s->to);
    run_ranks(s->to.ranks, 0, load_all, s);
    CHECK_EQ_INT(s->done, s->to.ranks);
}

// ---- layouts and hosts --------------------------------------------------------------------------

TEST(a_snapshot_is_loaded_under_any_layout) {
    static const int ranks[] = {1, 2, 3, 4, 6, 8};
    unsigned state = 3;
    for (int round = 0; round < 12; round++) {
        struct scene s;
        begin_scene(&s, "any");
        int a = ranks[round % 6], b = ranks[(round / 6 + 2 * round + 1) % 6];
        s.hosts = 1 + round % 3;
        if (s.hosts > a) s.hosts = a;
        if (s.hosts > b) s.hosts = b; // else nobody sees the others' memory
        spread_random(&s.from, a, &state);
        if (round % 2)
            spread_random(&s.to, b, &state);
        else
            spread_runs(&s.to, b);
        s.steps[0] = 10;
        s.steps[1] = 20;
        save(&s);
        load(&s, 20, "memory");
        CHECK_OK(file_remove_tree(s.memory, NULL), (struct err){0});
        load(&s, 20, "disk"); // the same bytes
        CHECK_STR(lines.data ? lines.data : "", "");
        spread_free(&s.from);
        spread_free(&s.to);
        end_scene(&s);
    }
}

// Copies a host's images to another, as an agent does.
static void bring(const struct scene *s, int from, int to, bool move) {
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char folder[4200], path[4400], other[4400], **names, *data;
        size_t count, bytes;
        struct err err = {0};
        snprintf(folder, sizeof folder, "%s/host-%d/gen-%d", s->memory, from, g);
        CHECK_OK(file_list(folder, &names, &count, &err), err);
        for (size_t i = 0; i < count; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
            snprintf(other, sizeof other, "%s/host-%d/gen-%d/buddy-%s", s->memory, to, g, names[i]);
            CHECK_OK(file_read(path, 0, &data, &bytes, &err), err);
            CHECK_OK(file_replace(other, data, bytes, &err), err);
            if (move) CHECK_OK(file_remove(path, &err), err);
            free(data);
        }
        file_list_free(names, count);
    }
}

static void spread_both(struct scene *s, int from, int to) {
    unsigned state = 11;
    spread_random(&s->from, from, &state);
    spread_random(&s->to, to, &state);
}

static void free_both(struct scene *s) {
    spread_free(&s->from);
    spread_free(&s->to);
    end_scene(s);
}

TEST(a_lost_hosts_state_comes_from_its_buddy) {
    struct scene s;
    begin_scene(&s, "lost");
    spread_both(&s, 4, 3);
    s.hosts = 2;
    s.steps[0] = 10;
    save(&s);
    bring(&s, 0, 1, true);
    file_remove_tree(s.disk, NULL);
    load(&s, 10, "buddy");
    free_both(&s);
}

TEST(without_one_hosts_images_the_disk_is_next) {
    struct scene s;
    char path[4200];
    begin_scene(&s, "gone");
    spread_both(&s, 4, 4);
    s.hosts = 2;
    s.steps[0] = 10;
    save(&s);
    s.steps[0] = 0;
    snprintf(path, sizeof path, "%s/host-1", s.memory);
    CHECK_OK(file_remove_tree(path, NULL), (struct err){0});
    load(&s, 10, "disk");
    free_both(&s);
}

TEST(the_newest_of_memory_and_disk_is_taken) {
    struct scene s;
    char keep[4200];
    struct err err = {0};
    begin_scene(&s, "newest");
    spread_both(&s, 2, 3);
    s.steps[0] = 10;
    s.steps[1] = 20;
    s.steps[2] = 30;
    s.copies = true;
    save(&s); // disks keep two: 20 and 30; memory too
    load(&s, 30, "memory");
    s.choice.back = 1;
    load(&s, 20, "memory");
    s.choice.back = 2; // states, not copies of them
    load(&s, -1, "");
    s.choice = (struct snapshot_choice){.most_step = 25};
    load(&s, 20, "memory");
    s.choice.most_step = -1;
    snprintf(keep, sizeof keep, "%s/host-0", s.memory);
    CHECK_OK(snapshot_discard_newer(keep, 20, s.session, 99, &err), err);
    load(&s, 30, "disk"); // is newer than what memory has left
    CHECK_OK(checkpoint_set_aside(s.disk, 20, &err), err);
    load(&s, 30, "second folder");
    CHECK_OK(checkpoint_set_aside(s.second, 20, &err), err);
    load(&s, 20, "memory");
    s.steps[0] = 25; // behind a step that was put aside it comes again
    s.steps[1] = 30;
    s.steps[2] = 0;
    s.session = 8;
    save(&s);
    load(&s, 30, "memory");
    snprintf(keep, sizeof keep, "%s/step_00000030.aside", s.disk);
    CHECK(!file_exists(keep));
    free_both(&s);
}

TEST(another_runs_snapshots_do_not_count) {
    struct scene s;
    char path[4200], *text;
    size_t bytes;
    struct err err = {0};
    begin_scene(&s, "other");
    spread_both(&s, 1, 1);
    s.steps[0] = 10;
    save(&s);
    file_remove_tree(s.disk, NULL);
    snprintf(path, sizeof path, "%s/host-0/gen-0/rank-00000.json", s.memory);
    CHECK_OK(file_read(path, 0, &text, &bytes, &err), err);
    CHECK_CONTAINS(text, "\"run\":\"run\"");
    free(text);
    struct snapshot_places places = {.memory = NULL, .run = "another", .disk = s.disk};
    struct checkpoint *c;
    const char *from;
    snprintf(path, sizeof path, "%s/host-0", s.memory);
    places.memory = path;
    CHECK_OK(snapshot_open_newest(&places, &s.choice, NULL, &c, &from, &err), err);
    CHECK(c == NULL);
    free_both(&s);
}

static bool never(void *context, const struct checkpoint *c) {
    (void)context;
    return checkpoint_state(c)->step < 0;
}

TEST(a_snapshot_of_another_shape_is_passed_over) {
    struct scene s;
    char path[4200];
    struct err err = {0};
    struct checkpoint *c;
    const char *from = "";
    begin_scene(&s, "shape");
    spread_both(&s, 1, 1);
    s.steps[0] = 10;
    save(&s);
    snprintf(path, sizeof path, "%s/host-0", s.memory);
    struct snapshot_places places = {.memory = path, .run = "run", .disk = s.disk, .fits = never};
    CHECK_OK(snapshot_open_newest(&places, &s.choice, NULL, &c, &from, &err), err);
    CHECK(c != NULL);
    CHECK_STR(from, "disk");
    CHECK_CONTAINS(lines.data, "another shape");
    checkpoint_close(c);
    free_both(&s);
}

TEST(the_run_of_a_folder_is_its_path_and_its_id) {
    char a[SNAPSHOT_RUN_BYTES], b[SNAPSHOT_RUN_BYTES], path[4096];
    struct err err = {0};
    const char *folder = test_path("run"), *other = test_path("copy");
    CHECK(snapshot_run_id(folder, a, &err) != 0); // there is none
    CHECK_OK(file_make_folders(folder, &err), err);
    CHECK_OK(file_make_folders(other, &err), err);
    CHECK_OK(snapshot_run_id(folder, a, &err), err);
    snprintf(path, sizeof path, "%s/../run/.", folder);
    CHECK_OK(snapshot_run_id(path, b, &err), err);
    CHECK_STR(a, b);
    char *id;
    size_t bytes;
    snprintf(path, sizeof path, "%s/run-id", folder);
    CHECK_OK(file_read(path, 0, &id, &bytes, &err), err);
    CHECK_EQ_INT(bytes, 16);
    snprintf(path, sizeof path, "%s/run-id", other);
    CHECK_OK(file_replace(path, id, bytes, &err), err);
    free(id);
    CHECK_OK(snapshot_run_id(other, b, &err), err); // a copy of the folder is another run
    CHECK(strcmp(a, b) != 0);
    CHECK_OK(file_replace(path, "nonsense", 8, &err), err);
    err = (struct err){0};
    CHECK(snapshot_run_id(other, b, &err) != 0);
    CHECK_CONTAINS(err.text, "16 hex digits");
}

TEST(snapshots_of_runs_that_are_gone_are_swept) {
    struct err err = {0};
    char memory[2][CHECKPOINT_PATH_BYTES];
    const char *folder = test_path("memory"), *runs[] = {test_path("runs/a"), test_path("runs/b")};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(snapshot_run_folder(folder, i ? "b" : "a", memory[i], &err), err);
        CHECK_OK(file_make_folders(memory[i], &err), err);
        CHECK_OK(file_make_folders(runs[i], &err), err);
        snapshot_mark(memory[i], runs[i]);
    }
    CHECK_OK(file_remove_tree(runs[0], &err), err);
    snapshot_sweep(folder);
    CHECK(!file_exists(memory[0]) && file_exists(memory[1]));
    CHECK_OK(file_remove_tree(test_path("runs"), &err), err); // as if it were not mounted
    snapshot_sweep(folder);
    CHECK(file_exists(memory[1]));
}

TEST(no_room_takes_nothing) {
    struct snapshot *s;
    struct err err = {0};
    struct snapshot_options options = {.folder = test_path("none"),
                                       .run = "run",
                                       .ranks = 1,
                                       .generation_bytes = (uint64_t)1 << 50};
    CHECK(snapshot_open(&s, &options, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_MEMORY);
    options.generation_bytes = 4096;
    options.other_bytes = (uint64_t)1 << 50; // what else the run takes leaves no room
    err = (struct err){0};
    CHECK(snapshot_open(&s, &options, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_MEMORY);
    CHECK_CONTAINS(err.text, "two generations");
    char path[4200];
    snprintf(path, sizeof path, "%s/gen-0/rank-00000.part", options.folder);
    CHECK(!file_exists(path));
}

TEST(large_parts_go_past_the_cache) {
    enum { ROWS = 3001, COLUMNS = 724 }; // a little more than what is written at once
    static float values[ROWS * COLUMNS], read[ROWS * COLUMNS];
    struct scene s;
    struct behind b;
    struct err err = {0};
    char path[4200];
    begin_scene(&s, "large");
    s.from = (struct spread){.ranks = 1, .counts = {1}};
    struct tensor t = {
        .name = "wide", .type = DTYPE_F32, .dims = 2, .shape = {ROWS, COLUMNS}, .data = values};
    struct tensor_slice slice = checkpoint_whole_slice(&t);
    struct snapshot_options options = {.folder = s.memory,
                                       .run = "run",
                                       .ranks = 1,
                                       .session = 7,
                                       .threads = 2,
                                       .generation_bytes = 12 << 20};
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)i;
    CHECK_OK(snapshot_open(&b.snapshot, &options, &err), err);
    CHECK_OK(snapshot_slices(b.snapshot, &slice, 1, &err), err);
    struct saver_options to = {.folder = s.disk, .snapshot = b.snapshot, .ranks = 1};
    CHECK_OK(saver_open(&b.saver, &to, &err), err);
    b.second = NULL;
    b.number = 0;
    CHECK_EQ_INT(behind_begin(&b, 5), 0);
    memset(values, 0, sizeof values); // the run goes on
    CHECK_EQ_INT(behind_end(b.saver, NULL, NULL, NULL).news, SAVER_PERSISTED);
    behind_close(&b);
    struct checkpoint *c;
    CHECK_OK(checkpoint_step_path(s.disk, 5, path, &err), err);
    CHECK_OK(checkpoint_open(path, &c, &err), err);
    CHECK_OK(checkpoint_read(c, "wide", read, &err), err);
    for (int i = 0; i < ROWS * COLUMNS; i++) CHECK(read[i] == (float)i);
    checkpoint_close(c);
    end_scene(&s);
}

// ---- damage -------------------------------------------------------------------------------------

static void flip(const char *path, uint64_t at) {
    char *data;
    size_t bytes;
    struct err err = {0};
    CHECK_OK(file_read(path, 0, &data, &bytes, &err), err);
    data[at % bytes] ^= (char)(1 << at % 8);
    FILE *f = fopen(path, "r+b");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
    free(data);
}

static uint64_t size_of(const char *path) {
    uint64_t bytes = 0;
    CHECK_OK(file_size(path, &bytes, NULL), (struct err){0});
    return bytes;
}

// Bytes of an image that count.
static uint64_t image_bytes(const char *json) {
    char *text;
    size_t bytes;
    struct snapshot_image image;
    struct err err = {0};
    CHECK_OK(file_read(json, 0, &text, &bytes, &err), err);
    CHECK_OK(snapshot_read_image(text, bytes, json, &image, &err), err);
    free(text);
    return image.bytes;
}

TEST(a_flipped_bit_in_memory_is_never_loaded) {
    enum { PLACES = 60 };
    struct scene s;
    char json[4200], part[4200];
    begin_scene(&s, "flip");
    spread_both(&s, 2, 2);
    file_remove_tree(s.disk, NULL);
    s.steps[0] = 10;
    s.steps[1] = 20;
    save(&s);
    file_remove_tree(s.disk, NULL);
    snprintf(json, sizeof json, "%s/host-0/gen-1/rank-00001.json", s.memory);
    snprintf(part, sizeof part, "%s/host-0/gen-1/rank-00001.part", s.memory);
    for (int i = 0; i < PLACES; i++)
        for (int text = 0; text < 2; text++) {
            const char *path = text ? json : part;
            uint64_t bytes = text ? size_of(json) : image_bytes(json);
            uint64_t at = bytes * (uint64_t)i / PLACES + (uint64_t)i % 7;
            text_free(&lines);
            flip(path, at);
            load(&s, 10, "memory");
            CHECK_CONTAINS(lines.data, text ? "snapshot" : "an image of a snapshot is damaged");
            flip(path, at);
        }
    load(&s, 20, "memory"); // all bits are back
    free_both(&s);
}

TEST(a_flipped_bit_on_disk_is_never_loaded) {
    enum { PLACES = 30 };
    struct scene s;
    char folder[4200], path[4400], **names;
    size_t count;
    struct err err = {0};
    begin_scene(&s, "disk");
    spread_both(&s, 2, 2);
    s.steps[0] = 10;
    s.steps[1] = 20;
    save(&s);
    file_remove_tree(s.memory, NULL);
    snprintf(folder, sizeof folder, "%s/step_00000020", s.disk);
    CHECK_OK(file_list(folder, &names, &count, &err), err);
    CHECK(count > 3);
    for (size_t k = 0; k < count; k++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[k]);
        uint64_t bytes = size_of(path);
        for (int i = 0; i < PLACES; i++) {
            uint64_t at = bytes * (uint64_t)i / PLACES + (uint64_t)i % 7;
            char *before, *now;
            size_t size;
            CHECK_OK(file_read(path, 0, &before, &size, &err), err);
            flip(path, at);
            CHECK_OK(file_read(path, 0, &now, &size, &err), err);
            bool space = strchr(" \n", before[at % bytes]) && strchr(" \n", now[at % bytes]);
            free(before);
            free(now);
            text_free(&lines);
            if (!space) load(&s, 10, "disk"); // a blank for another in JSON changes nothing
            if (!space) CHECK_CONTAINS(lines.data, "step_00000020 is passed over");
            flip(path, at);
        }
    }
    file_list_free(names, count);
    load(&s, 20, "disk");
    free_both(&s);
}

static void damage_list(void *context) {
    char path[4400];
    snprintf(path, sizeof path, "%s/step_00000010.tmp/rank-00001.list", (const char *)context);
    flip(path, size_of(path) / 2);
}

TEST(a_damaged_list_of_a_rank_is_dropped_by_all) {
    struct scene s;
    begin_scene(&s, "list");
    spread_both(&s, 3, 2);
    s.steps[0] = 10;
    s.news = SAVER_FAILED;
    s.meanwhile = damage_list;
    s.context = s.disk;
    save(&s);
    CHECK_CONTAINS(s.why, "rank 0: ");
    CHECK_CONTAINS(s.why, "rank-00001.list");
    char **names;
    size_t count;
    struct err err = {0};
    CHECK_OK(file_list(s.disk, &names, &count, &err), err);
    CHECK_EQ_INT(count, 0); // nor is anything left of it
    file_list_free(names, count);
    load(&s, 10, "memory"); // which is whole all the same
    s.meanwhile = NULL;
    s.news = SAVER_PERSISTED;
    s.steps[0] = 20;
    save(&s);
    file_remove_tree(s.memory, NULL);
    load(&s, 20, "disk");
    free_both(&s);
}

// ---- calls of the system ------------------------------------------------------------------------

struct fault {
    atomic_int left; // calls until it strikes
    int error;       // errno; 0: the process ends there
    bool lasts;      // all calls behind it fail too
    char call[512];
};

static int strike(void *context, const char *call, const char *path) {
    struct fault *f = context;
    int left = atomic_fetch_sub(&f->left, 1);
    if (left > 1 || (left < 1 && !f->lasts)) return 0;
    if (left == 1) snprintf(f->call, sizeof f->call, "%s %s", call, path);
    if (f->error == 0) _exit(9);
    return f->error;
}

// In a process of its own, so that it may end anywhere: step 10 is durable, then 20 is saved under
// the fault. The exit status is 0 when the fault came too late to strike, 1 when the save failed,
// 2 when it did not.
static int save_in_child(struct scene *s, struct fault *fault) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20); // nothing may hang
        s->steps[0] = 10;
        s->steps[1] = 0;
        save(s);
        s->steps[0] = 20;
        s->session = 8;
        s->news = SAVER_NOTHING;
        file_hook_calls(strike, fault);
        int ranks = s->from.ranks;
        s->done = 0;
        run_ranks(ranks, 0, (rank_work *)s->context, s);
        file_hook_calls(NULL, NULL);
        _exit(fault->left > 0 ? 0 : s->news == SAVER_FAILED ? 1 : 2);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void try_behind(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct behind b;
    char memory[4096];
    host_folder(s, rank, memory);
    behind_open(&b, memory, s->disk, NULL, s->session, &s->from, rank);
    fill_rank(s, rank, 20);
    behind_begin(&b, 20);
    fill_rank(s, rank, 9999);
    struct saver_result r = behind_end(b.saver, world, NULL, NULL);
    if (rank == 0) s->news = r.news;
    behind_close(&b);
}

static void try_straight(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct err err = {0};
    fill_rank(s, rank, 20);
    int result = spread_save(s->disk, &s->from, rank, 20, 3000, world, NULL, &err);
    if (rank == 0) s->news = result == 0 ? SAVER_PERSISTED : SAVER_FAILED;
}

// What is found afterwards, in a process of its own too.
static void load_in_child(struct scene *s, bool must_be_new, const char *call) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct checkpoint *c = NULL;
        char memory[4096];
        const char *from;
        struct err err = {0};
        alarm(20);
        host_folder(s, 0, memory);
        struct snapshot_places places = {.memory = memory, .run = "run", .disk = s->disk};
        CHECK_OK(snapshot_open_newest(&places, &s->choice, NULL, &c, &from, &err), err);
        int64_t step = c ? checkpoint_state(c)->step : -1;
        if (step != 20 && (step != 10 || must_be_new)) _exit(1);
        s->step = step;
        CHECK_OK(checkpoint_load_slices(c, s->to.slices[0], s->to.counts[0], NULL, &err), err);
        spread_check(&s->to, 0, step);
        checkpoint_close(c);
        _exit(step == 20 ? 20 : 10);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 10 && WEXITSTATUS(status) != 20))
        test_fail(__FILE__, __LINE__, "behind \"%s\": status %d", call, status);
}

// Every call in turn, until one is behind the last.
static void strike_everywhere(rank_work *work, int ranks, int error, bool lasts, bool memory_stays,
                              int least) {
    unsigned state = 5;
    int calls = 0;
    for (int n = 1;; n++) {
        struct scene s;
        struct fault fault = {.left = n, .error = error, .lasts = lasts};
        begin_scene(&s, "strike");
        spread_random(&s.from, ranks, &state);
        spread_runs(&s.to, 1);
        s.context = (void *)work;
        int status = save_in_child(&s, &fault);
        if (!memory_stays) file_remove_tree(s.memory, NULL);
        spread_clear(&s.to);
        load_in_child(&s, status == 0 || status == 2, fault.call);
        spread_free(&s.from);
        spread_free(&s.to);
        end_scene(&s);
        if (status == 0) break;
        calls++;
        CHECK(status == 1 || status == 2 || (status == 9 && error == 0));
    }
    CHECK(calls >= least);
}

TEST(the_process_ends_at_any_call_of_a_save_behind_the_run) {
    strike_everywhere(try_behind, 1, 0, false, true, 20);
    strike_everywhere(try_behind, 1, 0, false, false, 20); // the machine went down: only the disk
}

TEST(the_process_ends_at_any_call_of_a_save_of_two_ranks) {
    strike_everywhere(try_behind, 2, 0, false, false, 30);
}

TEST(any_call_of_a_save_behind_the_run_fails) {
    strike_everywhere(try_behind, 2, EIO, false, true, 30);
    strike_everywhere(try_behind, 1, ENOSPC, true, false, 20);
}

TEST(any_call_of_a_save_that_is_waited_for_fails_or_is_the_last) {
    strike_everywhere(try_straight, 2, 0, false, false, 10);
    strike_everywhere(try_straight, 1, EIO, false, false, 10);
    strike_everywhere(try_straight, 1, ENOSPC, true, false, 10);
}
