// What is made durable when: every call of a save that changes the file system is recorded, and
// gone through again with a model of a disk that forgets whatever was not synced.
#include "base/file.h"
#include "behind.h"
#include "test.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CALLS = 20000, MOST_PLACES = 500, PATH = 600 };

// ---- recording

static struct call { char call[12], path[PATH]; } calls[MOST_CALLS];
static int call_count;
static pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;

// The exchange of two names fails as on a file system that has none, when `context` names its
// target.
static int record(void *context, const char *call, const char *path) {
    struct call now;
    snprintf(now.call, sizeof now.call, "%s", call);
    snprintf(now.path, sizeof now.path, "%s", path);
    pthread_mutex_lock(&call_lock);
    const char **refused = context;
    bool refuses = *refused && strcmp(call, "rename") == 0 && strcmp(path, *refused) == 0;
    if (refuses)
        *refused = NULL;
    else if (call_count < MOST_CALLS)
        calls[call_count++] = now;
    pthread_mutex_unlock(&call_lock);
    return refuses ? EINVAL : 0;
}

static const char *no_exchange;

static void begin_record(bool anew) {
    if (anew) call_count = 0;
    file_hook_calls(record, &no_exchange);
}

static void end_record(void) {
    file_hook_calls(NULL, NULL);
    CHECK(call_count > 0 && call_count < MOST_CALLS);
}

// ---- the disk that forgets

struct place { // a file or folder below the disk, or the disk's folder, or what that lies in
    char path[PATH];
    bool dirty; // a file: what was written; a folder: the names in it
};
struct disk {
    const char *folder; // of checkpoints
    struct place places[MOST_PLACES];
    int count, saves;
    bool begun, named, safe; // the save under way: it has its name; and keeps it
};

static struct place *find(struct disk *d, const char *path) {
    for (int i = 0; i < d->count; i++)
        if (strcmp(d->places[i].path, path) == 0) return &d->places[i];
    return NULL;
}

static struct place *make(struct disk *d, const char *path) {
    struct place *p = find(d, path);
    if (p) return p;
    CHECK(d->count < MOST_PLACES);
    p = &d->places[d->count++];
    *p = (struct place){0};
    snprintf(p->path, sizeof p->path, "%s", path);
    return p;
}

static void parent_of(const char *path, char out[PATH]) {
    snprintf(out, PATH, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
}

static void touch_parent(struct disk *d, const char *path) {
    char folder[PATH];
    parent_of(path, folder);
    make(d, folder)->dirty = true;
}

static bool is_in(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

static bool ends(const char *path, const char *tail) {
    size_t a = strlen(path), b = strlen(tail);
    return a >= b && strcmp(path + a - b, tail) == 0;
}

static void must(bool good, int call, const char *rule, const char *path) {
    if (!good)
        test_fail(__FILE__, __LINE__, "call %d, \"%s %s\": %s: %s", call, calls[call].call,
                  calls[call].path, rule, path);
}

// The folder, and all in it.
static void must_be_clean(struct disk *d, int call, const char *folder, const char *rule) {
    for (int i = 0; i < d->count; i++)
        if (is_in(d->places[i].path, folder) || strcmp(d->places[i].path, folder) == 0)
            must(!d->places[i].dirty, call, rule, d->places[i].path);
}

static void forget(struct disk *d, const char *path) {
    struct place *p = find(d, path);
    if (p) *p = d->places[--d->count];
}

static void move(struct disk *d, const char *from, const char *to) {
    for (int i = 0; i < d->count; i++) {
        char tail[PATH], *path = d->places[i].path;
        if (strcmp(path, from) != 0 && !is_in(path, from)) continue;
        snprintf(tail, sizeof tail, "%s", path + strlen(from));
        CHECK(snprintf(path, PATH, "%s%s", to, tail) < PATH);
    }
}

// FOLDER/step_N
static bool is_final(const struct disk *d, const char *path) {
    return is_in(path, d->folder) && strncmp(path + strlen(d->folder), "/step_", 6) == 0 &&
           strspn(path + strlen(d->folder) + 6, "0123456789") ==
               strlen(path) - strlen(d->folder) - 6;
}

static void see_name(struct disk *d, int call, const char *staging, const char *final) {
    char manifest[PATH + 20], above[PATH], other[PATH + 20];
    snprintf(manifest, sizeof manifest, "%.580s/manifest.json", staging);
    must(find(d, manifest) != NULL, call, "there is no manifest yet", staging);
    must_be_clean(d, call, staging, "gets its name before this is durable");
    parent_of(d->folder, above);
    must(!make(d, above)->dirty, call, "the folder of checkpoints is not durable itself", above);
    snprintf(other, sizeof other, "%.580s exchanged", final);
    if (find(d, final)) move(d, final, other);
    move(d, staging, final);
    move(d, other, staging);
    d->named = true;
    d->safe = false;
    d->saves++;
}

static void see_rename(struct disk *d, int call, const char *to) {
    char from[PATH + 8];
    snprintf(from, sizeof from, "%s.tmp", to);
    if (is_final(d, to)) {
        see_name(d, call, from, to);
    } else if (ends(to, ".removing")) {
        // the one of the same step makes room where names cannot be exchanged
        from[strlen(to) - strlen(".removing")] = 0;
        char staging[PATH + 20];
        snprintf(staging, sizeof staging, "%.580s.tmp", from);
        must((d->named && d->safe) || find(d, staging), call, "an old one goes too early", from);
        move(d, from, to);
    } else {
        must(find(d, from) && !find(d, from)->dirty, call, "is not durable when it is renamed", to);
        forget(d, to);
        move(d, from, to);
    }
    touch_parent(d, to);
}

static void see_removal(struct disk *d, int call, const char *path) {
    char folder[PATH], manifest[PATH + 20];
    parent_of(path, folder);
    snprintf(manifest, sizeof manifest, "%.580s/manifest.json", folder);
    // a complete checkpoint, whatever its name, and not the one that is still being made
    if (find(d, manifest) && (d->named || !ends(folder, ".tmp")))
        must(d->named && d->safe, call, "something old is removed too early", path);
    forget(d, path);
    touch_parent(d, path);
}

static void see(struct disk *d, int call, const char *path) {
    const char *what = calls[call].call;
    char staging[PATH];
    parent_of(path, staging);
    if (strcmp(what, "open") == 0) {
        if (ends(path, "/manifest.json") || ends(path, "/manifest.json.tmp"))
            must_be_clean(d, call, staging, "the manifest is begun before this is durable");
        if (!find(d, path)) touch_parent(d, path);
        make(d, path)->dirty = true;
    } else if (strcmp(what, "write") == 0) {
        make(d, path)->dirty = true;
    } else if (strcmp(what, "fsync") == 0) {
        make(d, path)->dirty = false;
        if (strcmp(path, d->folder) == 0 && d->named) d->safe = true;
    } else if (strcmp(what, "mkdir") == 0) {
        make(d, path);
        touch_parent(d, path);
        if (ends(path, ".tmp")) d->named = d->safe = false; // the next save
    } else if (strcmp(what, "rename") == 0) {
        see_rename(d, call, path);
    } else if (strcmp(what, "unlink") == 0 || strcmp(what, "rmdir") == 0) {
        see_removal(d, call, path);
    }
}

// All that was recorded of `folder`, into which `saves` checkpoints went.
static void replay(const char *folder, int saves) {
    static struct disk d;
    char above[PATH];
    d = (struct disk){.folder = folder};
    parent_of(folder, above);
    for (int i = 0; i < call_count; i++)
        if (is_in(calls[i].path, folder) || strcmp(calls[i].path, folder) == 0 ||
            strcmp(calls[i].path, above) == 0)
            see(&d, i, calls[i].path);
    CHECK_EQ_INT(d.saves, saves);
    CHECK(d.named && d.safe); // before the save counted as done
}

// ---- saves

struct scene {
    struct spread spread;
    char memory[PATH - 100], disk[PATH - 100], second[PATH - 100];
    atomic_int done;
};

static void begin_scene(struct scene *s, int ranks) {
    unsigned state = (unsigned)ranks;
    *s = (struct scene){0};
    spread_random(&s->spread, ranks, &state);
    spread_fill(&s->spread, 1);
    snprintf(s->memory, sizeof s->memory, "%.400s/memory %d", test_temp_dir(), ranks);
    snprintf(s->disk, sizeof s->disk, "%.400s/disk %d", test_temp_dir(), ranks);
    snprintf(s->second, sizeof s->second, "%.400s/second %d", test_temp_dir(), ranks);
    no_exchange = NULL;
}

static void save_straight(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    for (int64_t step = 10; step <= 30; step += 10) {
        struct checkpoint_retention keep = {.keep_last = 1, .saved_step = step};
        struct err err = {0};
        CHECK_OK(spread_save(s->disk, &s->spread, rank, step, 700, world, NULL, &err), err);
        if (rank == 0) CHECK_EQ_INT(checkpoint_retain(s->disk, &keep), step > 10);
    }
    s->done++;
}

static void save_again(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct err err = {0};
    CHECK_OK(spread_save(s->disk, &s->spread, rank, 30, 700, world, NULL, &err), err);
    s->done++;
}

static void save_behind(void *context, struct comm_stream *world, int rank) {
    struct scene *s = context;
    struct behind b;
    behind_open(&b, s->memory, s->disk, s->second, 7, &s->spread, rank);
    for (int64_t step = 10; step <= 30; step += 10) {
        CHECK_EQ_INT(behind_begin(&b, step), 0);
        CHECK_EQ_INT(behind_end(b.saver, world, NULL, NULL).news, SAVER_PERSISTED);
        saver_begin(b.second, step, -1, 7, ++b.number);
        CHECK_EQ_INT(behind_end(b.second, world, NULL, NULL).news, SAVER_PERSISTED);
    }
    behind_close(&b);
    s->done++;
}

static void work_recorded(struct scene *s, rank_work *work, bool anew) {
    s->done = 0;
    begin_record(anew);
    run_ranks(s->spread.ranks, 0, work, s);
    end_record();
    CHECK_EQ_INT(s->done, s->spread.ranks);
}

static void removes(const char *folder, int step, bool expected) { // was it removed in the record?
    char path[PATH];
    bool found = false;
    snprintf(path, sizeof path, "%.500s/step_%08d.removing", folder, step);
    for (int i = 0; i < call_count; i++)
        found |= strcmp(calls[i].call, "unlink") == 0 && is_in(calls[i].path, path);
    CHECK_EQ_INT(found, expected);
}

TEST(r52_a_save_syncs_all_it_names_before_it_counts_and_before_old_ones_go) {
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        struct scene s;
        char final[PATH + 40];
        begin_scene(&s, ranks);
        work_recorded(&s, save_straight, true);
        replay(s.disk, 3);
        removes(s.disk, 20, true);
        snprintf(final, sizeof final, "%s/step_%08d", s.disk, 30);
        for (int exchanges = 0; exchanges < 2; exchanges++) { // the same step, over what is there
            char **names;
            size_t count;
            no_exchange = exchanges ? NULL : final;
            work_recorded(&s, save_again, false);
            CHECK(no_exchange == NULL);
            replay(s.disk, 4 + exchanges);
            CHECK_OK(file_list(s.disk, &names, &count, NULL), (struct err){0});
            CHECK_EQ_INT(count, 1); // the one that was there is gone
            file_list_free(names, count);
        }
        spread_free(&s.spread);
    }
}

TEST(r52_a_save_behind_the_run_and_its_copy_sync_all_before_they_count) {
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        struct scene s;
        begin_scene(&s, ranks);
        work_recorded(&s, save_behind, true);
        replay(s.disk, 3);
        replay(s.second, 3);
        removes(s.disk, 10, true);
        removes(s.second, 10, true);
        removes(s.disk, 20, false);
        spread_free(&s.spread);
    }
}
