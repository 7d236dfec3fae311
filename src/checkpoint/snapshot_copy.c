// Copying a state into a snapshot, hashing it, and what the saver does with it. See snapshot.h.
#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/snapshot_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// ---- copying

static void copy_block(const struct block *b, char *image) {
    char *to = image + b->to;
    for (uint64_t row = 0; row < b->rows.rows; row++)
        memcpy(to + row * b->rows.row_bytes, b->from + row * b->rows.stride_bytes,
               b->rows.row_bytes);
}

// Any number of threads, until no block is left to begin.
static void copy_some(struct snapshot *s, char *image) {
    for (int i; (i = atomic_fetch_add(&s->next, 1)) < s->block_count;) {
        copy_block(&s->blocks[i], image);
        atomic_fetch_add(&s->done, 1);
    }
}

static int hash_parts(struct snapshot *s, struct generation *g, struct err *err) {
    json_t *lists = part_list_tensors(s->slices, s->count, err);
    int result = lists ? 0 : -1;
    for (int i = 0; result == 0 && i < s->parts.part_count; i++) {
        const struct part *part = &s->parts.parts[i];
        const struct image_part *image = &s->images[i];
        struct manifest_part listed = {.bytes = image->bytes, .rank = s->options.rank};
        memcpy(listed.name, part->name, sizeof listed.name);
        result = snapshot_hash(g->memory.data + image->at, image->bytes, NULL, &listed.hash, err);
        if (result == 0)
            result = manifest_lists_part(lists, &listed, image->header.size,
                                         s->parts.stored + part->first, part->count, err);
        json_t *all = json_object_get(lists, "parts");
        if (result == 0)
            json_object_set_new(json_array_get(all, json_array_size(all) - 1), "offset",
                                json_integer((json_int_t)image->at));
    }
    if (result == 0) result = json_object_update(g->tree, lists);
    json_decref(lists);
    return result;
}

// The hashes, and with them the snapshot is complete.
static int seal(struct snapshot *s, struct generation *g, struct err *err) {
    if (hash_parts(s, g, err) != 0) return -1;
    char *text = manifest_seal(g->tree, true);
    json_object_del(g->tree, "hash");
    if (!text) return err_set(err, ERR_MEMORY, "%s: no memory", g->json);
    int result = file_replace(g->json, text, strlen(text), err);
    free(text);
    return result;
}

static void set_state(struct snapshot *s, struct generation *g, enum generation_state state) {
    pthread_mutex_lock(&s->lock);
    g->state = state;
    double seconds = clock_seconds() - s->begin;
    if (state == GENERATION_SEAL) {
        s->copied = seconds;
    } else {
        s->sealed = seconds;
        s->current = -1;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void copy_all(struct snapshot *s, struct generation *g) {
    copy_some(s, g->memory.data);
    while (s->done < s->block_count) { // the last blocks are in the trainer's hands
        struct timespec moment = {0, 50000};
        nanosleep(&moment, NULL);
    }
    set_state(s, g, GENERATION_SEAL);
    struct err err = {0};
    int result = seal(s, g, &err);
    if (result != 0) {
        g->why = err;
        log_line(LOG_WARN, "the snapshot of step %" PRId64 " is not complete: %s", g->step,
                 err.text);
    }
    set_state(s, g, result == 0 ? GENERATION_WHOLE : GENERATION_EMPTY);
}

// Computing threads come first; what is not copied when they need it, they copy themselves.
void *snapshot_serve(void *argument) {
    enum { NICE = 19 };
    struct snapshot *s = argument;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->current < 0 && !s->leave) pthread_cond_wait(&s->changed, &s->lock);
        if (s->current < 0) break;
        pthread_mutex_unlock(&s->lock);
        copy_all(s, &s->generations[s->current]);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// The older one of those that nobody needs.
static int choose(struct snapshot *s) {
    int best = -1;
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        const struct generation *one = &s->generations[g];
        if (one->held > 0 || g == s->current) continue;
        if (best < 0 || one->order < s->generations[best].order) best = g;
    }
    return best;
}

static int make_tree(struct snapshot *s, struct generation *g, const struct checkpoint_state *state,
                     const struct model_config *model, struct err *err) {
    json_decref(g->tree);
    g->tree = manifest_tree(state, model, NULL);
    if (g->tree && json_object_set_new(g->tree, "run", json_string(s->run)) == 0 &&
        json_object_set_new(g->tree, "session", json_integer((json_int_t)s->options.session)) ==
            0 &&
        json_object_set_new(g->tree, "number", json_integer((json_int_t)g->number)) == 0 &&
        json_object_set_new(g->tree, "rank", json_integer(s->options.rank)) == 0 &&
        json_object_set_new(g->tree, "ranks", json_integer(s->options.ranks)) == 0 &&
        json_object_set_new(g->tree, "image", json_integer((json_int_t)s->image_bytes)) == 0)
        return 0;
    return err_set(err, ERR_MEMORY, "no memory for the description of a snapshot");
}

// Nobody must take it for complete while it is written over.
static int clear(struct snapshot *s, struct generation *g, struct err *err) {
    uint64_t size;
    if (file_exists(g->json) && file_remove(g->json, err) != 0) return -1;
    if (file_size(g->part, &size, err) != 0) return -1; // somebody has removed it
    if (size > s->options.generation_bytes)             // of an earlier layout
        return file_cut(g->part, s->options.generation_bytes, err);
    return 0;
}

int snapshot_begin(struct snapshot *s, const struct checkpoint_state *state,
                   const struct model_config *model, uint64_t number, struct err *err) {
    pthread_mutex_lock(&s->lock);
    int chosen = s->current < 0 ? choose(s) : -1;
    pthread_mutex_unlock(&s->lock);
    if (chosen < 0 || !s->slices)
        return err_set(err, ERR_INTERNAL, "no generation of snapshots is free");
    struct generation *g = &s->generations[chosen];
    s->begin = clock_seconds();
    g->number = number;
    g->order = ++s->orders;
    s->newest = chosen;
    g->step = state->step;
    g->state = GENERATION_EMPTY;
    g->why = (struct err){0};
    if (make_tree(s, g, state, model, err) != 0 || clear(s, g, err) != 0) return -1;
    for (int i = 0; i < s->parts.part_count; i++)
        memcpy(g->memory.data + s->images[i].at, s->images[i].header.data,
               s->images[i].header.size);
    atomic_store(&s->done, 0);
    atomic_store(&s->next, 0);
    pthread_mutex_lock(&s->lock);
    g->state = GENERATION_COPY;
    s->current = chosen;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return chosen;
}

bool snapshot_failed(struct snapshot *s) {
    pthread_mutex_lock(&s->lock);
    bool failed = s->newest >= 0 && s->newest != s->current &&
                  s->generations[s->newest].state != GENERATION_WHOLE;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

void snapshot_keep_older(struct snapshot *s) {
    if (s->newest >= 0) s->generations[s->newest].order = 0;
}

double snapshot_wait(struct snapshot *s) {
    pthread_mutex_lock(&s->lock);
    int current = s->current;
    bool copies = current >= 0 && s->generations[current].state == GENERATION_COPY;
    pthread_mutex_unlock(&s->lock);
    if (!copies) return 0;
    double begin = clock_seconds();
    char *image = s->generations[current].memory.data;
#pragma omp parallel num_threads(s->options.threads > 0 ? s->options.threads : 1)
    copy_some(s, image);
    pthread_mutex_lock(&s->lock);
    while (s->current == current && s->generations[current].state == GENERATION_COPY)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return clock_seconds() - begin;
}

bool snapshot_busy(struct snapshot *s) {
    pthread_mutex_lock(&s->lock);
    bool busy = s->current >= 0;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

static double locked(struct snapshot *s, const double *value) {
    pthread_mutex_lock(&s->lock);
    double out = *value;
    pthread_mutex_unlock(&s->lock);
    return out;
}

double snapshot_copy_seconds(struct snapshot *s) {
    return locked(s, &s->copied);
}

double snapshot_seal_seconds(struct snapshot *s) {
    return locked(s, &s->sealed);
}

// ---- for the saver

void snapshot_hold(struct snapshot *s, int generation) {
    pthread_mutex_lock(&s->lock);
    s->generations[generation].held++;
    pthread_mutex_unlock(&s->lock);
}

void snapshot_release(struct snapshot *s, int generation) {
    pthread_mutex_lock(&s->lock);
    s->generations[generation].held--;
    pthread_mutex_unlock(&s->lock);
}

int snapshot_settle(struct snapshot *s, int generation, const atomic_bool *stop, struct err *err) {
    const struct generation *g = &s->generations[generation];
    pthread_mutex_lock(&s->lock);
    while (s->current == generation && !*stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++; // `stop` wakes nobody
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    bool whole = g->state == GENERATION_WHOLE;
    pthread_mutex_unlock(&s->lock);
    if (whole) return 0;
    return err_set(err, ERR_IO, "%s", g->why.text[0] ? g->why.text : "another rank has failed");
}

bool snapshot_part(const struct snapshot *s, int generation, int index, struct snapshot_part *out) {
    if (index >= s->parts.part_count) return false;
    *out =
        (struct snapshot_part){.name = s->parts.parts[index].name,
                               .data = s->generations[generation].memory.data + s->images[index].at,
                               .bytes = s->images[index].bytes};
    return true;
}

const json_t *snapshot_tree(const struct snapshot *s, int generation) {
    return s->generations[generation].tree;
}
