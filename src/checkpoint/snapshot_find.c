// The newest state among memory and disk: which there are, in which order they are tried. Images in
// memory are found and put together in snapshot_gather.c. See snapshot.h.
#include "base/log.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/snapshot_gather.h"
#include "checkpoint/together.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum place_kind { IN_MEMORY, ON_DISK, ON_SECOND };

struct candidate {
    int64_t step, kind;
    uint64_t session, number; // in memory
    char name[64];            // on disk
    int64_t looks;            // complete, as far as can be seen without reading it
};

struct finding {
    const struct snapshot_places *places;
    const struct snapshot_choice *choice;
    struct comm_stream *world;
    struct gather gather;
    struct candidate *list; // the same on all ranks
    int64_t count, capacity;
    int damaged; // on disk; of rank 0
    struct err newest;
    char folder[CHECKPOINT_PATH_BYTES]; // of the newest damaged one
};

static int add(struct finding *f, struct candidate candidate, struct err *err) {
    if (f->count == f->capacity) {
        int64_t capacity = f->capacity ? 2 * f->capacity : 64;
        struct candidate *more = realloc(f->list, (size_t)capacity * sizeof *more);
        if (!more) return err_set(err, ERR_MEMORY, "no memory for the list of states");
        f->list = more;
        f->capacity = capacity;
    }
    f->list[f->count++] = candidate;
    return 0;
}

static const char *folder_of(const struct finding *f, int64_t kind) {
    return kind == ON_DISK ? f->places->disk : f->places->second;
}

static int add_folder(struct finding *f, enum place_kind kind, struct err *err) {
    const char *folder = folder_of(f, kind);
    struct checkpoint_place *places;
    int count, result = 0;
    if (!folder) return 0;
    if (checkpoint_places(folder, &places, &count, err) != 0) return -1;
    for (int i = 0; result == 0 && i < count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        struct candidate c = {.step = places[i].step, .kind = kind};
        memcpy(c.name, places[i].name, sizeof c.name);
        c.looks = file_join(path, sizeof path, folder, c.name, NULL) == 0 &&
                  checkpoint_looks_complete(path, c.step);
        result = add(f, c, err);
    }
    free(places);
    return result;
}

static int list_disk(void *context, const atomic_bool *stop, struct err *err) {
    struct finding *f = context;
    (void)stop;
    return add_folder(f, ON_DISK, err) != 0 || add_folder(f, ON_SECOND, err) != 0 ? -1 : 0;
}

// Rank 0 has looked; its list is everybody's.
static int share_list(struct finding *f, struct err *err) {
    if (together_size(f->world) == 1) return 0;
    int64_t count = f->count, lacking;
    if (together_wait(f->world, comm_broadcast(f->world, 0, &count, sizeof count), err) != 0)
        return -1;
    struct candidate *list = malloc(((size_t)count + 1) * sizeof *list);
    lacking = !list;
    comm_max_integers(f->world, &lacking, 1);
    if (lacking) {
        free(list);
        return err_set(err, ERR_MEMORY, "a rank has no memory for the list of states");
    }
    if (together_rank(f->world) == 0 && count > 0)
        memcpy(list, f->list, (size_t)count * sizeof *list);
    free(f->list);
    f->list = list;
    f->count = f->capacity = count;
    if (count == 0) return comm_check(comm_stream_comm(f->world), err);
    return together_wait(f->world,
                         comm_broadcast(f->world, 0, list, (uint64_t)count * sizeof *list), err);
}

// Newest first; of one step memory first, and of it what was saved last.
static int newest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->session != y->session) return x->session > y->session ? -1 : 1;
    if (x->number != y->number) return x->number > y->number ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int add_memory(void *context, const atomic_bool *stop, struct err *err) {
    struct finding *f = context;
    struct snapshot_image image;
    (void)stop;
    for (int i = 0; gather_state(&f->gather, i, &image); i++) {
        struct candidate c = {.step = image.step,
                              .kind = IN_MEMORY,
                              .session = image.session,
                              .number = image.number,
                              .looks = 1};
        if (add(f, c, err) != 0) return -1;
    }
    if (f->count > 0) qsort(f->list, (size_t)f->count, sizeof *f->list, newest_first);
    return 0;
}

static int list_all(struct finding *f, struct err *err) {
    bool first = together_rank(f->world) == 0;
    if (together_run(f->world, NULL, first ? list_disk : NULL, f, err) != 0 ||
        share_list(f, err) != 0)
        return -1;
    if (f->places->run &&
        gather_images(&f->gather, f->places->memory, f->places->run, f->world, err) != 0)
        return -1;
    for (int64_t i = 0; f->places->newest_session && i < f->gather.count; i++)
        if (f->gather.records[i].image.session > *f->places->newest_session)
            *f->places->newest_session = f->gather.records[i].image.session;
    return together_run(f->world, "rank", add_memory, f, err);
}

static int open_one(struct finding *f, const struct candidate *c, struct checkpoint **out,
                    const char **from, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES] = "";
    if (c->kind == IN_MEMORY) {
        struct snapshot_image image = {.session = c->session, .number = c->number, .step = c->step};
        bool buddy;
        if (gather_open(&f->gather, &image, out, &buddy, err) != 0) return -1;
        *from = buddy ? "buddy" : "memory";
        if (!f->places->fits || f->places->fits(f->places->context, *out)) return 0;
        checkpoint_close(*out);
        *out = NULL;
        return err_set(err, ERR_DATA, "the model there has another shape");
    }
    *from = c->kind == ON_DISK ? "disk" : "second folder";
    if (file_join(path, sizeof path, folder_of(f, c->kind), c->name, err) != 0) return -1;
    return checkpoint_open_world(path, f->world, out, err);
}

static void pass_over(struct finding *f, const struct candidate *c, const struct err *why) {
    if (together_rank(f->world) != 0) return;
    if (c->kind == IN_MEMORY) {
        log_line(LOG_WARN, "the snapshot of step %" PRId64 " in memory is passed over: %s", c->step,
                 why->text);
        return;
    }
    const char *folder = folder_of(f, c->kind);
    if (!checkpoint_pass_over(folder, c->name, why) || f->damaged++ > 0) return;
    f->newest = *why;
    snprintf(f->folder, sizeof f->folder, "%s", folder);
}

// Index behind the states that the choice leaves out.
static int64_t first_wanted(const struct finding *f) {
    int64_t at = 0, last = -1;
    int left = f->choice->back;
    for (; at < f->count; at++) {
        const struct candidate *c = &f->list[at];
        if (f->choice->most_step >= 0 && c->step > f->choice->most_step) continue;
        if (!c->looks || c->step == last) continue;
        if (left-- <= 0) break;
        last = c->step;
    }
    return at;
}

static int try_all(struct finding *f, struct checkpoint **out, const char **from, struct err *err) {
    int64_t first = f->choice->back > 0 || f->choice->most_step >= 0 ? first_wanted(f) : 0;
    for (int64_t i = first; i < f->count; i++) {
        struct err why = {0};
        if (open_one(f, &f->list[i], out, from, &why) == 0) return 0;
        if (f->world && comm_check(comm_stream_comm(f->world), err) != 0) return -1;
        pass_over(f, &f->list[i], &why);
    }
    return 0;
}

static int none_whole(void *context, const atomic_bool *stop, struct err *err) {
    const struct finding *f = context;
    (void)stop;
    if (f->damaged == 0) return 0;
    return err_set(err, ERR_DATA,
                   "%s: none of the %d checkpoints is complete and undamaged; the newest: %.700s",
                   f->folder, f->damaged, f->newest.text);
}

int snapshot_open_newest(const struct snapshot_places *places, const struct snapshot_choice *choice,
                         struct comm_stream *world, struct checkpoint **out, const char **from,
                         struct err *err) {
    struct finding f = {.places = places, .choice = choice, .world = world};
    struct checkpoint *found = NULL;
    if (places->newest_session) *places->newest_session = 0;
    int result = list_all(&f, err);
    if (result == 0) result = try_all(&f, &found, from, err);
    if (result == 0 && !found) // on all ranks or on none
        result = together_run(world, NULL, together_rank(world) == 0 ? none_whole : NULL, &f, err);
    free(f.list);
    gather_close(&f.gather);
    if (result == 0) *out = found;
    return result;
}
