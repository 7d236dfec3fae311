// Saves into memory by ranks whose hosts have seen different things before: a spare, a rank that
// was ended in the middle of a save, a state that was gone back to. What of it counts, and what is
// written over first.
#include "base/file.h"
#include "base/log.h"
#include "behind.h"
#include "test.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 2 }; // each on a host of its own

struct scene {
    struct spread state;
    char memory[2048];
    // what is done next
    uint64_t session, number; // number: of the save before the first one
    int64_t steps[3];         // that are saved, 0 ends
    bool joins[RANKS];        // takes part in saving
    bool resumes;             // goes on from the newest state first,
    int64_t most_step;        // of at most this step; 0: any
    int64_t found;            // step of the newest state; -1: none
    char from[32];
    uint64_t newest_session;
    atomic_int done;
};

static void quiet(enum log_level level, const char *line, void *context) {
    (void)level, (void)line, (void)context;
}

static void begin_scene(struct scene *s, const char *name) {
    unsigned state = 5;
    *s = (struct scene){.joins = {true, true}};
    snprintf(s->memory, sizeof s->memory, "%.2000s/%s", test_temp_dir(), name);
    spread_random(&s->state, RANKS, &state);
    log_to(quiet, NULL, LOG_WARN);
}

static void end_scene(struct scene *s) {
    log_to(NULL, NULL, LOG_INFO);
    spread_free(&s->state);
}

static const char *host(const struct scene *s, int rank, char out[2200]) {
    snprintf(out, 2200, "%s/host-%d", s->memory, rank);
    return out;
}

static const char *image(const struct scene *s, int rank, int generation, const char *end,
                         char out[2300]) {
    char folder[2200];
    snprintf(out, 2300, "%s/gen-%d/rank-%05d.%s", host(s, rank, folder), generation, rank, end);
    return out;
}

static struct checkpoint *open_newest(struct scene *s, struct comm_stream *world, int rank) {
    char folder[2200];
    const char *from = "";
    struct checkpoint *c = NULL;
    struct err err = {0};
    struct snapshot_choice newest = {.most_step = s->most_step > 0 ? s->most_step : -1};
    uint64_t session = 0;
    struct snapshot_places places = {.memory = host(s, rank, folder),
                                     .run = "run",
                                     .disk = test_path("disk"),
                                     .newest_session = &session};
    CHECK_OK(snapshot_open_newest(&places, &newest, world, &c, &from, &err), err);
    if (rank > 0) return c;
    s->found = c ? checkpoint_state(c)->step : -1;
    s->newest_session = session;
    snprintf(s->from, sizeof s->from, "%s", from);
    return c;
}

static void fill(struct scene *s, int rank, int64_t step) {
    struct spread one = {.ranks = 1};
    one.slices[0] = s->state.slices[rank];
    one.counts[0] = s->state.counts[rank];
    spread_fill(&one, step);
}

static void work(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct behind b;
    struct err err = {0};
    char folder[2200];
    behind_open(&b, host(s, rank, folder), test_path("disk"), NULL, s->session, &s->state, rank);
    b.number = s->number;
    if (s->resumes) {
        struct checkpoint *c = open_newest(s, world, rank);
        if (c) snapshot_keep(b.snapshot, c);
        checkpoint_close(c);
    }
    for (int i = 0; i < 3 && s->steps[i] > 0 && s->joins[rank]; i++) {
        struct checkpoint_state state = {.step = s->steps[i], .config = "a: 1\n"};
        fill(s, rank, s->steps[i]);
        int generation = behind_snapshot(&b, &state, &err);
        if (generation < 0) test_fail(__FILE__, __LINE__, "%s", err.text);
        atomic_bool stop = false;
        CHECK_OK(snapshot_settle(b.snapshot, generation, &stop, &err), err);
    }
    behind_close(&b);
    s->done++;
}

static void save(struct scene *s, uint64_t session, int64_t a, int64_t b) {
    s->session = session;
    s->steps[0] = a;
    s->steps[1] = b;
    s->done = 0;
    run_ranks(RANKS, 0, work, s);
    CHECK_EQ_INT(s->done, RANKS);
}

static void load_all(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct err err = {0};
    struct checkpoint *c = open_newest(s, world, rank);
    if (c) {
        CHECK_OK(
            checkpoint_load_slices(c, s->state.slices[rank], s->state.counts[rank], world, &err),
            err);
        spread_check(&s->state, rank, checkpoint_state(c)->step);
    }
    checkpoint_close(c);
    s->done++;
}

// The newest state, with the values of its step.
static void expect(struct scene *s, int64_t step, const char *from) {
    spread_clear(&s->state);
    s->done = 0;
    run_ranks(RANKS, 0, load_all, s);
    CHECK_EQ_INT(s->done, RANKS);
    CHECK_EQ_INT(s->found, step);
    CHECK_STR(s->from, from);
}

TEST(ranks_of_different_histories_make_one_state) {
    struct scene s;
    char folder[2200];
    begin_scene(&s, "spare");
    save(&s, 7, 10, 0);
    CHECK_OK(file_remove_tree(host(&s, 1, folder), NULL), (struct err){0}); // a spare in its place
    save(&s, 8, 20, 0);
    expect(&s, 20, "memory");
    end_scene(&s);
}

// One rank was killed before its first image of all was complete.
TEST(a_kill_in_the_first_save_is_made_good) {
    struct scene s;
    begin_scene(&s, "first");
    s.joins[1] = false;
    save(&s, 7, 10, 0);
    expect(&s, -1, "");
    s.joins[1] = true;
    save(&s, 8, 10, 0);
    expect(&s, 10, "memory");
    end_scene(&s);
}

// Behind a restart, or when a run goes back, a step is saved again; ranks that are ended in the
// middle of that have images of it from two saves.
TEST(two_saves_of_one_step_never_mix) {
    struct scene s;
    begin_scene(&s, "twice");
    save(&s, 7, 10, 20);
    s.resumes = true;
    s.most_step = 10;
    s.number = 2;
    for (int restart = 0; restart < 2; restart++) {
        s.joins[0] = !restart; // first rank 0 alone saves step 20 again, then rank 1
        s.joins[1] = restart;
        save(&s, restart ? 8 : 7, 20, 0);
        CHECK_EQ_INT(s.found, 10);
    }
    s.most_step = 0;
    expect(&s, 10, "memory"); // rank 0 has 20 of the first session, rank 1 of the second
    end_scene(&s);
}

TEST(sessions_are_told_so_that_the_next_is_newer) {
    struct scene s;
    begin_scene(&s, "clock");
    save(&s, 70, 10, 0);
    save(&s, 9, 20, 0); // a clock that is behind
    expect(&s, 20, "memory");
    CHECK_EQ_INT(s.newest_session, 70);
    end_scene(&s);
}

// ---- what is written over first -----------------------------------------------------------------

static void remove_image(const struct scene *s, int rank, int generation) {
    char path[2300];
    struct err err = {0};
    CHECK_OK(file_remove(image(s, rank, generation, "json", path), &err), err);
}

// Rank 1 was ended before it completed step 20: both go on from 10, and during the next save that
// is the only state.
TEST(the_state_that_was_loaded_is_written_over_last) {
    struct scene s;
    char path[2300];
    begin_scene(&s, "kept");
    save(&s, 7, 10, 20);
    remove_image(&s, 1, 1);
    s.resumes = true;
    s.joins[1] = false; // again ended before it begins
    save(&s, 8, 20, 0);
    CHECK_EQ_INT(s.found, 10);
    s.resumes = false;
    expect(&s, 10, "memory");
    CHECK(file_exists(image(&s, 0, 1, "json", path)));
    end_scene(&s);
}

// The image of a rank whose host is lost lies with its buddy, and the next copy of that rank's
// generation would go over it: the spare leaves it free too.
TEST(a_spare_leaves_the_generation_free_that_its_buddy_holds) {
    static const char *const ends[] = {"part", "json"};
    struct scene s;
    char path[2300], buddy[2400], folder[2200];
    struct err err = {0};
    begin_scene(&s, "buddy");
    save(&s, 7, 10, 0);
    for (int i = 0; i < 2; i++) {
        char *data;
        size_t bytes;
        CHECK_OK(file_read(image(&s, 1, 0, ends[i], path), 0, &data, &bytes, &err), err);
        snprintf(buddy, sizeof buddy, "%s/gen-0/buddy-00001.%s", host(&s, 0, folder), ends[i]);
        CHECK_OK(file_replace(buddy, data, bytes, &err), err);
        free(data);
    }
    CHECK_OK(file_remove_tree(host(&s, 1, folder), &err), err);
    expect(&s, 10, "buddy");
    s.resumes = true;
    save(&s, 8, 20, 0);
    CHECK(file_exists(image(&s, 1, 1, "json", path)));
    CHECK(!file_exists(image(&s, 1, 0, "json", path)));
    expect(&s, 20, "memory");
    end_scene(&s);
}

static int fails(void *context, const char *call, const char *path) {
    (void)call;
    return strstr(path, context) ? EIO : 0;
}

// Where a save is not complete on every rank, the one before it is all there is.
TEST(a_snapshot_that_failed_is_written_over_next) {
    struct scene s;
    struct behind b;
    struct err err = {0};
    char folder[2200], path[2300];
    atomic_bool stop = false;
    begin_scene(&s, "failed");
    behind_open(&b, host(&s, 0, folder), test_path("disk"), NULL, 7, &s.state, 0);
    struct checkpoint_state state = {.step = 10, .config = "a: 1\n"};
    CHECK_OK(snapshot_settle(b.snapshot, behind_snapshot(&b, &state, &err), &stop, &err), err);
    CHECK(!snapshot_failed(b.snapshot));
    state.step = 20;
    file_hook_calls(fails, "gen-1/rank-00000.json");
    CHECK(snapshot_settle(b.snapshot, behind_snapshot(&b, &state, &err), &stop, &err) != 0);
    file_hook_calls(NULL, NULL);
    CHECK(snapshot_failed(b.snapshot));
    snapshot_keep_older(b.snapshot);
    state.step = 30;
    err = (struct err){0};
    CHECK_EQ_INT(behind_snapshot(&b, &state, &err), 1);
    CHECK(file_exists(image(&s, 0, 0, "json", path)));
    behind_close(&b);
    end_scene(&s);
}

// ---- states that were gone back behind ----------------------------------------------------------

TEST(newer_states_are_discarded_up_to_a_save) {
    struct scene s;
    char folder[2200], path[2300];
    struct err err = {0};
    begin_scene(&s, "aside");
    save(&s, 7, 10, 20);
    save(&s, 8, 30, 0); // in place of 10
    host(&s, 0, folder);
    CHECK_OK(snapshot_discard_newer(folder, 10, 7, 2, &err), err); // late: 30 is newer than that
    CHECK(!file_exists(image(&s, 0, 1, "json", path)));
    CHECK(file_exists(image(&s, 0, 0, "json", path)));
    struct snapshot_image old = {.session = 7, .number = 2, .step = 20}, next = old, earlier = old;
    next.number = 3;
    earlier.step = 10;
    CHECK(snapshot_is_discarded(folder, &old)); // should it still come
    CHECK(!snapshot_is_discarded(folder, &next));
    CHECK(!snapshot_is_discarded(folder, &earlier));
    old.session = 6;
    old.number = 99;
    CHECK(snapshot_is_discarded(folder, &old));
    end_scene(&s);
}

// ---- room ---------------------------------------------------------------------------------------

TEST(room_is_judged_for_all_ranks_of_a_host) {
    struct snapshot *s;
    struct err err = {0};
    struct snapshot_room room, one;
    struct snapshot_options options = {.folder = test_path("room"),
                                       .run = "run",
                                       .ranks = 4,
                                       .generation_bytes = 4096,
                                       .other_bytes = 10000};
    char path[4200];
    snapshot_pretend_available(50000); // two ranks have room, four have not
    snapshot_room(&options, &room);
    CHECK_EQ_INT(room.missing_bytes, 8192);
    one = room;
    one.available_bytes = 50001;
    for (int i = 1; i < 4; i++) snapshot_room_add(&room, &one);
    CHECK_EQ_INT(room.available_bytes, 50000);
    options.room = room;
    CHECK(snapshot_open(&s, &options, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_MEMORY);
    CHECK_CONTAINS(err.text, "two generations of snapshots of 4 ranks here need 32.8 kB");
    options.room.ranks = 0;
    CHECK_OK(snapshot_open(&s, &options, &err), (struct err){0});
    snprintf(path, sizeof path, "%s/gen-0/rank-00000.part", options.folder);
    CHECK(file_exists(path));
    snapshot_give_back(s); // another rank got none
    CHECK(!file_exists(path));
    snapshot_pretend_available(0);
}

// ---- whose folder it is -------------------------------------------------------------------------

static void check_refused(const char *folder, const char *why) {
    struct err err = {0};
    CHECK(snapshot_home(folder, &err) != 0);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, why);
    CHECK_CONTAINS(err.text, "not to be trusted");
}

TEST(a_folder_that_others_could_have_filled_is_refused) {
    char home[4096], run[CHECKPOINT_PATH_BYTES], path[4200];
    struct err err = {0};
    struct stat status;
    const char *folder = test_path("shm");
    snprintf(home, sizeof home, "%s/weft-%lu", folder, (unsigned long)getuid());
    CHECK_OK(snapshot_home(folder, &err), err);
    CHECK(stat(home, &status) == 0 && (status.st_mode & 0777) == 0700);
    CHECK(chmod(home, 0755) == 0); // of an earlier version
    CHECK_OK(snapshot_home(folder, &err), err);
    CHECK(stat(home, &status) == 0 && (status.st_mode & 0777) == 0700);
    CHECK_OK(snapshot_run_folder(folder, "run", run, &err), err);
    CHECK_OK(file_make_folders(run, &err), err);
    CHECK(chmod(home, 0777) == 0);
    check_refused(folder, "can be written by others");
    CHECK(snapshot_forget(folder, "run", NULL) != 0); // whatever else may lie there
    CHECK(file_exists(run));
    CHECK(chmod(home, 0700) == 0);
    if (geteuid() == 0) {
        CHECK(chown(home, 12345, 12345) == 0);
        check_refused(folder, "belongs to another user");
        CHECK(chown(home, 0, 0) == 0);
    }
    snprintf(path, sizeof path, "%s/elsewhere", test_temp_dir());
    CHECK(rename(home, path) == 0 && symlink(path, home) == 0);
    check_refused(folder, "is no folder");
    CHECK(unlink(home) == 0);
    CHECK_OK(file_replace(home, "x", 1, &err), err);
    check_refused(folder, "is no folder");
}

TEST(links_in_the_place_of_images_are_not_followed) {
    struct snapshot *s;
    struct err err = {0};
    char part[4200], victim[4200], *text;
    size_t bytes;
    struct snapshot_options options = {
        .folder = test_path("links"), .run = "run", .ranks = 1, .generation_bytes = 4096};
    snprintf(part, sizeof part, "%s/gen-0/", options.folder);
    CHECK_OK(file_make_folders(part, &err), err);
    snprintf(victim, sizeof victim, "%s/victim", test_temp_dir());
    CHECK_OK(file_replace(victim, "mine", 4, &err), err);
    snprintf(part, sizeof part, "%s/gen-0/rank-00000.part", options.folder);
    CHECK(symlink(victim, part) == 0);
    CHECK(snapshot_open(&s, &options, &err) != 0);
    CHECK_OK(file_read(victim, 0, &text, &bytes, &err), (struct err){0});
    CHECK_EQ_INT(bytes, 4);
    free(text);
}
