// The memory of snapshots, and copying into it. See snapshot.h.
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot_parts.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 1 << 20,      // that a thread copies at a time
    PAGE_BYTES = 4096,          // where large parts begin, so that they can be written directly
    LARGE_PART_BYTES = 1 << 20, // see rank_snapshot_bytes, which plans for the gaps
    SMALL_ALIGN = 64
};

struct block { // to be copied
    const char *from;
    uint64_t to; // in the image
    struct part_rows rows;
};

struct image_part {
    struct text header;
    uint64_t at, bytes; // in the image
};

enum generation_state { GENERATION_EMPTY, GENERATION_COPY, GENERATION_SEAL, GENERATION_WHOLE };

struct generation {
    char part[CHECKPOINT_PATH_BYTES], json[CHECKPOINT_PATH_BYTES];
    struct file_shared memory;
    enum generation_state state;
    uint64_t number;
    int64_t step;
    int held;
    json_t *tree;
    struct err why; // it is EMPTY again
};

struct snapshot {
    struct snapshot_options options;
    char folder[CHECKPOINT_PATH_BYTES], run[SNAPSHOT_RUN_BYTES];
    struct tensor_slice *slices;
    int count;
    struct part_list parts;
    struct image_part *images; // [parts]
    struct block *blocks;
    int block_count, block_capacity;
    uint64_t image_bytes, numbers;
    struct generation generations[SNAPSHOT_GENERATIONS];

    pthread_t thread;
    bool threaded, leave;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int current;                  // generation that is copied or sealed; -1: none
    atomic_int next, done;        // blocks
    double begin, copied, sealed; // clock; seconds
};

// ---- memory

// What the machine can still give, by its own estimate; 0: unknown.
static uint64_t available_bytes(void) {
    char line[256];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kilobytes) == 1) break;
    fclose(file);
    return kilobytes * 1024;
}

static int check_room(const struct snapshot *s, struct err *err) {
    uint64_t there = available_bytes(), missing = 0, size;
    char need[32], besides[32], has[32];
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        bool old = file_size(s->generations[g].part, &size, NULL) == 0;
        if (!old) size = 0;
        if (size < s->options.generation_bytes) missing += s->options.generation_bytes - size;
    }
    if (there == 0 || missing == 0 || missing + s->options.other_bytes <= there) return 0;
    return err_set(err, ERR_MEMORY,
                   "%s: two generations of snapshots need %s and the run %s besides; the machine "
                   "has %s left",
                   s->folder, text_bytes(missing, need),
                   text_bytes(s->options.other_bytes, besides), text_bytes(there, has));
}

static int name_files(struct snapshot *s, struct err *err) {
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char name[64];
        struct generation *generation = &s->generations[g];
        snprintf(name, sizeof name, SNAPSHOT_GENERATION "/rank-%05d.part", g, s->options.rank);
        if (file_join(generation->part, sizeof generation->part, s->folder, name, err) != 0)
            return -1;
        memcpy(generation->json, generation->part, sizeof generation->json);
        strcpy(strrchr(generation->json, '.'), ".json");
    }
    return 0;
}

static int take_memory(struct snapshot *s, struct err *err) {
    if (name_files(s, err) != 0 || check_room(s, err) != 0) return -1;
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char folder[CHECKPOINT_PATH_BYTES];
        struct generation *generation = &s->generations[g];
        memcpy(folder, generation->part, sizeof folder);
        *strrchr(folder, '/') = 0;
        bool old = file_exists(generation->part);
        if (file_make_folders(folder, err) == 0 &&
            file_shared_open(&generation->memory, generation->part, s->options.generation_bytes,
                             err) == 0)
            continue;
        if (!old) file_remove(generation->part, NULL);
        if (err) err->kind = ERR_MEMORY;
        return err_context(err, "no room for snapshots");
    }
    return 0;
}

// Of what an earlier process left the newer stays longer.
static void look_back(struct snapshot *s) {
    struct snapshot_image image[SNAPSHOT_GENERATIONS] = {0};
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char *text;
        size_t size;
        const char *json = s->generations[g].json;
        if (file_read(json, 0, &text, &size, NULL) != 0) continue;
        snapshot_read_image(text, size, json, &image[g], NULL);
        free(text);
    }
    bool second = image[1].session != image[0].session ? image[1].session > image[0].session
                                                       : image[1].number > image[0].number;
    if (image[0].ranks > 0 || image[1].ranks > 0) s->generations[second].number = s->numbers = 1;
}

static void *serve(void *argument);

int snapshot_open(struct snapshot **out, const struct snapshot_options *options, struct err *err) {
    struct snapshot *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, ERR_MEMORY, "no memory for snapshots");
    s->options = *options;
    snprintf(s->folder, sizeof s->folder, "%s", options->folder);
    snprintf(s->run, sizeof s->run, "%s", options->run);
    s->current = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int result = take_memory(s, err);
    if (result == 0) look_back(s);
    if (result == 0 && pthread_create(&s->thread, NULL, serve, s) != 0)
        result = err_set(err, ERR_MEMORY, "no thread for snapshots could be started");
    if (result != 0) {
        snapshot_close(s);
        return -1;
    }
    s->threaded = true;
    *out = s;
    return 0;
}

uint64_t snapshot_bytes(const struct snapshot *s) {
    return SNAPSHOT_GENERATIONS * s->options.generation_bytes;
}

uint64_t snapshot_image_bytes(const struct snapshot *s) {
    return s->image_bytes;
}

static void drop_slices(struct snapshot *s) {
    for (int i = 0; s->images && i < s->parts.part_count; i++) text_free(&s->images[i].header);
    free(s->images);
    free(s->blocks);
    free(s->slices);
    part_list_close(&s->parts);
    s->images = NULL;
    s->blocks = NULL;
    s->slices = NULL;
    s->block_count = s->block_capacity = 0;
}

void snapshot_close(struct snapshot *s) {
    if (!s) return;
    if (s->threaded) {
        pthread_mutex_lock(&s->lock);
        s->leave = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        file_shared_close(&s->generations[g].memory);
        json_decref(s->generations[g].tree);
    }
    drop_slices(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

void snapshot_remove(struct snapshot *s) {
    snapshot_wait(s);
    pthread_mutex_lock(&s->lock);
    while (s->current >= 0) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        if (file_exists(s->generations[g].json)) file_remove(s->generations[g].json, NULL);
        file_remove(s->generations[g].part, NULL);
        char folder[CHECKPOINT_PATH_BYTES];
        memcpy(folder, s->generations[g].part, sizeof folder);
        *strrchr(folder, '/') = 0;
        rmdir(folder); // the last rank of the host succeeds
    }
    rmdir(s->folder);
}

// ---- what is copied where

static int add_block(struct snapshot *s, struct block block, struct err *err) {
    if (s->block_count == s->block_capacity) {
        int capacity = s->block_capacity ? 2 * s->block_capacity : 256;
        struct block *more = realloc(s->blocks, (size_t)capacity * sizeof *more);
        if (!more) return err_set(err, ERR_MEMORY, "no memory for the list of what is copied");
        s->blocks = more;
        s->block_capacity = capacity;
    }
    s->blocks[s->block_count++] = block;
    return 0;
}

// In blocks, cut between rows, or within a dense piece anywhere.
static int add_piece(struct snapshot *s, const struct part_piece *piece, uint64_t to,
                     struct err *err) {
    struct part_rows r = part_piece_rows(piece);
    uint64_t at_once =
        r.row_bytes >= BLOCK_BYTES ? 1 : BLOCK_BYTES / (r.row_bytes ? r.row_bytes : 1);
    if (r.rows == 1) {
        for (uint64_t at = 0; at < r.row_bytes; at += BLOCK_BYTES) {
            struct part_rows part = {.from = r.from + at, .rows = 1, .row_bytes = BLOCK_BYTES};
            if (part.row_bytes > r.row_bytes - at) part.row_bytes = r.row_bytes - at;
            if (add_block(s, (struct block){part.from, to + at, part}, err) != 0) return -1;
        }
        return 0;
    }
    for (uint64_t row = 0; row < r.rows; row += at_once) {
        struct part_rows part = r;
        part.from += row * r.stride_bytes;
        if (r.rows - row < at_once) at_once = r.rows - row;
        part.rows = at_once;
        if (add_block(s, (struct block){part.from, to + row * r.row_bytes, part}, err) != 0)
            return -1;
    }
    return 0;
}

static int place_part(struct snapshot *s, int index, struct err *err) {
    const struct part *part = &s->parts.parts[index];
    const struct tensor *stored = s->parts.stored + part->first;
    struct image_part *image = &s->images[index];
    uint64_t data;
    if (safetensors_header(stored, part->count, NULL, part->name, &image->header, &data, err) != 0)
        return -1;
    image->bytes = image->header.size + data;
    uint64_t align = image->bytes >= LARGE_PART_BYTES ? PAGE_BYTES : SMALL_ALIGN;
    image->at = (s->image_bytes + align - 1) / align * align;
    s->image_bytes = image->at + image->bytes;
    uint64_t to = image->at + image->header.size;
    for (int i = 0; i < part->count; i++) {
        if (add_piece(s, &s->parts.pieces[part->first + i], to, err) != 0) return -1;
        to += tensor_bytes(&stored[i]);
    }
    return 0;
}

static int place_all(struct snapshot *s, struct err *err) {
    if (part_list_open(&s->parts, s->slices, s->count, s->options.rank, s->options.ranks,
                       s->options.part_bytes, err) != 0)
        return -1;
    s->images = calloc((size_t)s->parts.part_count + 1, sizeof *s->images);
    if (!s->images) return err_set(err, ERR_MEMORY, "no memory for the list of parts");
    for (int i = 0; i < s->parts.part_count; i++)
        if (place_part(s, i, err) != 0) return -1;
    if (s->image_bytes <= s->options.generation_bytes) return 0;
    return err_set(err, ERR_INTERNAL,
                   "a snapshot of rank %d needs %" PRIu64 " bytes, planned were %" PRIu64,
                   s->options.rank, s->image_bytes, s->options.generation_bytes);
}

int snapshot_slices(struct snapshot *s, const struct tensor_slice *slices, int count,
                    struct err *err) {
    s->slices = calloc((size_t)count + 1, sizeof *s->slices);
    if (!s->slices) return err_set(err, ERR_MEMORY, "no memory for the list of tensors");
    memcpy(s->slices, slices, (size_t)count * sizeof *slices);
    s->count = count;
    s->image_bytes = 0;
    if (place_all(s, err) == 0) return 0;
    drop_slices(s);
    return -1;
}

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
static void *serve(void *argument) {
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
        if (best < 0 || one->number < s->generations[best].number) best = g;
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
                   const struct model_config *model, struct err *err) {
    pthread_mutex_lock(&s->lock);
    int chosen = s->current < 0 ? choose(s) : -1;
    pthread_mutex_unlock(&s->lock);
    if (chosen < 0 || !s->slices)
        return err_set(err, ERR_INTERNAL, "no generation of snapshots is free");
    struct generation *g = &s->generations[chosen];
    s->begin = clock_seconds();
    g->number = ++s->numbers;
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
