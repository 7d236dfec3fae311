// The folder of a run's checkpoints: which there are, which is the newest valid one, which may go.
// See checkpoint.h.
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/together.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "step_" and digits, then `tail`. The step, or -1.
static int64_t step_of(const char *name, const char *tail) {
    if (strncmp(name, "step_", 5) != 0 || !isdigit((unsigned char)name[5]) ||
        strlen(name) >= sizeof((struct checkpoint_place *)0)->name)
        return -1;
    char *end;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && strcmp(end, tail) == 0 ? step : -1;
}

static int by_step(const void *a, const void *b) {
    const struct checkpoint_place *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return strcmp(x->name, y->name);
}

int checkpoint_places(const char *folder, struct checkpoint_place **out, int *count,
                      struct err *err) {
    *out = NULL;
    *count = 0;
    if (!file_exists(folder)) return 0;
    char **names;
    size_t name_count;
    if (file_list(folder, &names, &name_count, err) != 0) return -1;
    struct checkpoint_place *list = calloc(name_count + 1, sizeof *list);
    int used = 0;
    for (size_t i = 0; list && i < name_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        int64_t step = step_of(names[i], "");
        if (step < 0 || file_join(path, sizeof path, folder, names[i], NULL) != 0 ||
            !file_is_folder(path))
            continue;
        list[used].step = step;
        strcpy(list[used++].name, names[i]);
    }
    file_list_free(names, name_count);
    if (!list) return err_set(err, ERR_MEMORY, "%s: no memory for the list of checkpoints", folder);
    qsort(list, (size_t)used, sizeof *list, by_step);
    *out = list;
    *count = used;
    return 0;
}

bool checkpoint_looks_complete(const char *path, int64_t step) {
    struct manifest m;
    struct err ignored = {0};
    if (manifest_read(path, &m, &ignored) != 0) return false;
    bool good = m.state.step == step;
    for (int i = 0; i < m.part_count && good; i++) {
        char part[CHECKPOINT_PATH_BYTES];
        uint64_t bytes;
        good = file_join(part, sizeof part, path, m.parts[i].name, NULL) == 0 &&
               file_size(part, &bytes, NULL) == 0 && bytes == m.parts[i].bytes;
    }
    manifest_free(&m);
    return good;
}

int checkpoint_list(const char *folder, int64_t **steps, int *count, struct err *err) {
    struct checkpoint_place *places;
    int place_count, used = 0;
    if (checkpoint_places(folder, &places, &place_count, err) != 0) return -1;
    int64_t *list = calloc((size_t)place_count + 1, sizeof *list);
    for (int i = 0; list && i < place_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        if (file_join(path, sizeof path, folder, places[i].name, NULL) == 0 &&
            checkpoint_looks_complete(path, places[i].step))
            list[used++] = places[i].step;
    }
    free(places);
    if (!list) return err_set(err, ERR_MEMORY, "%s: no memory for the list of checkpoints", folder);
    *steps = list;
    *count = used;
    return 0;
}

// Folders whose checkpoint is not to be had, as far as they were tried.
struct search {
    const char *folder;
    struct checkpoint_place *places;
    int count, damaged;
    struct err newest; // why the newest damaged one is
};

static int list_places(void *context, const atomic_bool *stop, struct err *err) {
    struct search *s = context;
    (void)stop;
    return checkpoint_places(s->folder, &s->places, &s->count, err);
}

bool checkpoint_pass_over(const char *folder, const char *name, const struct err *why) {
    char path[CHECKPOINT_PATH_BYTES], manifest[CHECKPOINT_PATH_BYTES];
    log_line(LOG_WARN, "checkpoint %s is passed over: %s", name, why->text);
    // a folder that never had a manifest is somebody's, or of a save that did not finish: no loss
    return file_join(path, sizeof path, folder, name, NULL) != 0 ||
           file_join(manifest, sizeof manifest, path, MANIFEST_NAME, NULL) != 0 ||
           file_exists(manifest);
}

static void pass_over(struct search *s, const char *name, const struct err *why) {
    if (checkpoint_pass_over(s->folder, name, why) && s->damaged++ == 0) s->newest = *why;
}

// The next older place, from rank 0's list; an empty name at its end.
static int next_place(struct search *s, struct comm_stream *world, int i, char name[64],
                      struct err *err) {
    memset(name, 0, 64);
    if (i >= 0 && together_rank(world) == 0) strcpy(name, s->places[i].name);
    if (together_size(world) == 1) return 0;
    return together_wait(world, comm_broadcast(world, 0, name, 64), err);
}

// A checkpoint that cannot be opened is passed over; a communication that has failed ends the
// search.
static int try_places(struct search *s, struct comm_stream *world, struct checkpoint **out,
                      struct err *err) {
    for (int i = s->count - 1;; i--) {
        char name[64], path[CHECKPOINT_PATH_BYTES];
        struct err why = {0};
        if (next_place(s, world, i, name, err) != 0) return -1;
        if (name[0] == 0) return 0;
        int joined = file_join(path, sizeof path, s->folder, name, &why);
        if (checkpoint_open_world(joined == 0 ? path : s->folder, world, out, &why) == 0) return 0;
        if (world && comm_check(comm_stream_comm(world), err) != 0) return -1;
        if (together_rank(world) == 0) pass_over(s, name, &why);
    }
}

static int none_whole(void *context, const atomic_bool *stop, struct err *err) {
    const struct search *s = context;
    (void)stop;
    if (s->damaged == 0) return 0;
    return err_set(err, ERR_DATA,
                   "%s: none of the %d checkpoints is complete and undamaged; the newest: %.700s",
                   s->folder, s->damaged, s->newest.text);
}

int checkpoint_open_newest_world(const char *folder, struct comm_stream *world,
                                 struct checkpoint **out, struct err *err) {
    struct search s = {.folder = folder};
    struct checkpoint *found = NULL;
    bool first = together_rank(world) == 0;
    int result = together_run(world, NULL, first ? list_places : NULL, &s, err);
    if (result == 0) result = try_places(&s, world, &found, err);
    if (result == 0 && !found) // on all ranks or on none
        result = together_run(world, NULL, first ? none_whole : NULL, &s, err);
    free(s.places);
    if (result == 0) *out = found;
    return result;
}

int checkpoint_open_newest(const char *folder, struct checkpoint **out, struct err *err) {
    return checkpoint_open_newest_world(folder, NULL, out, err);
}

// First out of the way under another name, so that a kill in between leaves no half checkpoint
// behind.
static bool remove_one(const char *path) {
    char gone[CHECKPOINT_PATH_BYTES + sizeof CHECKPOINT_REMOVING];
    struct err err = {0};
    snprintf(gone, sizeof gone, "%s%s", path, CHECKPOINT_REMOVING);
    if (file_rename(path, gone, &err) == 0 && file_remove_tree(gone, &err) == 0) return true;
    log_line(LOG_WARN, "an old checkpoint could not be removed: %s", err.text);
    return false;
}

static void remove_named(const char *folder, const char *tail, int64_t most_step) {
    char **names, path[CHECKPOINT_PATH_BYTES];
    size_t count;
    struct err err = {0};
    if (file_list(folder, &names, &count, NULL) != 0) return;
    for (size_t i = 0; i < count; i++) {
        int64_t step = step_of(names[i], tail);
        if (step >= 0 && step <= most_step &&
            file_join(path, sizeof path, folder, names[i], NULL) == 0 &&
            file_remove_tree(path, &err) != 0)
            log_line(LOG_WARN, "the rest of an old checkpoint could not be removed: %s", err.text);
    }
    file_list_free(names, count);
}

static const char aside[] = ".aside";

int checkpoint_set_aside(const char *folder, int64_t step, struct err *err) {
    struct checkpoint_place *places;
    int count, result = 0;
    if (checkpoint_places(folder, &places, &count, err) != 0) return -1;
    for (int i = 0; i < count && result == 0; i++) {
        char path[CHECKPOINT_PATH_BYTES], other[CHECKPOINT_PATH_BYTES + sizeof aside];
        if (places[i].step <= step) continue;
        result = file_join(path, sizeof path, folder, places[i].name, err);
        if (result != 0) break;
        snprintf(other, sizeof other, "%s%s", path, aside);
        if (file_exists(other)) result = file_remove_tree(other, err);
        if (result == 0) result = file_rename(path, other, err);
        if (result == 0) log_line(LOG_WARN, "%s is put aside: the run goes on before it", path);
    }
    free(places);
    return result;
}

void checkpoint_drop_aside(const char *folder, int64_t step) {
    remove_named(folder, aside, step);
}

static bool exempt(const struct checkpoint_retention *keep, int64_t step) {
    for (int i = 0; i < keep->pinned_count; i++)
        if (keep->pinned[i] == step) return true;
    return keep->keep_every > 0 && step % keep->keep_every == 0;
}

static bool verified(const char *path) {
    struct checkpoint *c;
    struct err why = {0};
    if (checkpoint_open(path, &c, &why) != 0) {
        log_line(LOG_WARN, "checkpoint %s is damaged: %s", path, why.text);
        return false;
    }
    checkpoint_close(c);
    return true;
}

int checkpoint_retain(const char *folder, const struct checkpoint_retention *keep) {
    struct checkpoint_place *places;
    int count, kept = 0, removed = 0, keep_last = keep->keep_last < 1 ? 1 : keep->keep_last;
    struct err err = {0};
    bool have_valid = false; // one that was read, or has just been written
    if (checkpoint_places(folder, &places, &count, &err) != 0) {
        log_line(LOG_WARN, "old checkpoints were not looked through: %s", err.text);
        return 0;
    }
    for (int i = count - 1; i >= 0; i--) {
        char path[CHECKPOINT_PATH_BYTES];
        if (file_join(path, sizeof path, folder, places[i].name, NULL) != 0 ||
            !checkpoint_looks_complete(path, places[i].step))
            continue;
        bool valid = !have_valid && (places[i].step == keep->saved_step || verified(path));
        if (kept < keep_last || valid) {
            have_valid |= valid;
            kept++;
        } else if (have_valid && !exempt(keep, places[i].step)) {
            removed += remove_one(path);
        }
    }
    free(places);
    remove_named(folder, CHECKPOINT_REMOVING, INT64_MAX);
    return removed;
}
