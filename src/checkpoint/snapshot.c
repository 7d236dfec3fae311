// The memory of snapshots, and what lies where in it. Copying stands in snapshot_copy.c. See
// snapshot.h.
#include "base/text.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot_state.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 1 << 20,      // that a thread copies at a time
    PAGE_BYTES = 4096,          // where large parts begin, so that they can be written directly
    LARGE_PART_BYTES = 1 << 20, // see rank_snapshot_bytes, which plans for the gaps
    SMALL_ALIGN = 64
};

// ---- memory

static atomic_uint_least64_t pretended;

void snapshot_pretend_available(uint64_t bytes) {
    pretended = bytes;
}

uint64_t snapshot_available_bytes(void) {
    if (pretended > 0) return pretended;
    char line[256];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kilobytes) == 1) break;
    fclose(file);
    return kilobytes * 1024;
}

static int name_part(const struct snapshot_options *o, int generation,
                     char out[CHECKPOINT_PATH_BYTES], struct err *err) {
    char name[64];
    snprintf(name, sizeof name, SNAPSHOT_GENERATION "/rank-%05d.part", generation, o->rank);
    return file_join(out, CHECKPOINT_PATH_BYTES, o->folder, name, err);
}

void snapshot_room(const struct snapshot_options *o, struct snapshot_room *out) {
    *out = (struct snapshot_room){
        .besides_bytes = o->other_bytes, .available_bytes = snapshot_available_bytes(), .ranks = 1};
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        char part[CHECKPOINT_PATH_BYTES];
        uint64_t size = 0;
        if (name_part(o, g, part, NULL) != 0 || file_size(part, &size, NULL) != 0) size = 0;
        if (size < o->generation_bytes) out->missing_bytes += o->generation_bytes - size;
    }
}

void snapshot_room_add(struct snapshot_room *sum, const struct snapshot_room *more) {
    sum->missing_bytes += more->missing_bytes;
    sum->besides_bytes += more->besides_bytes;
    if (more->available_bytes < sum->available_bytes) sum->available_bytes = more->available_bytes;
    sum->ranks += more->ranks;
}

static int check_room(const struct snapshot *s, struct err *err) {
    struct snapshot_room r = s->options.room;
    char need[32], besides[32], has[32], who[48] = "";
    if (r.ranks == 0) snapshot_room(&s->options, &r);
    if (r.available_bytes == 0 || r.missing_bytes == 0 ||
        r.missing_bytes + r.besides_bytes <= r.available_bytes)
        return 0;
    if (r.ranks > 1) snprintf(who, sizeof who, " of %d ranks here", (int)r.ranks);
    return err_set(err, ERR_MEMORY,
                   "%s: two generations of snapshots%s need %s and the run %s besides; the "
                   "machine has %s left",
                   s->folder, who, text_bytes(r.missing_bytes, need),
                   text_bytes(r.besides_bytes, besides), text_bytes(r.available_bytes, has));
}

static int name_files(struct snapshot *s, struct err *err) {
    for (int g = 0; g < SNAPSHOT_GENERATIONS; g++) {
        struct generation *generation = &s->generations[g];
        if (name_part(&s->options, g, generation->part, err) != 0) return -1;
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
        generation->made = !file_exists(generation->part);
        if (file_make_folders(folder, err) == 0 &&
            file_shared_open(&generation->memory, generation->part, s->options.generation_bytes,
                             err) == 0)
            continue;
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
    if (image[0].ranks > 0 || image[1].ranks > 0) s->generations[second].order = s->orders = 1;
}

int snapshot_open(struct snapshot **out, const struct snapshot_options *options, struct err *err) {
    struct snapshot *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, ERR_MEMORY, "no memory for snapshots");
    s->options = *options;
    snprintf(s->folder, sizeof s->folder, "%s", options->folder);
    s->options.folder = s->folder;
    snprintf(s->run, sizeof s->run, "%s", options->run);
    s->current = s->newest = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int result = take_memory(s, err);
    if (result == 0) look_back(s);
    if (result == 0 && pthread_create(&s->thread, NULL, snapshot_serve, s) != 0)
        result = err_set(err, ERR_MEMORY, "no thread for snapshots could be started");
    if (result != 0) {
        snapshot_give_back(s);
        return -1;
    }
    s->threaded = true;
    *out = s;
    return 0;
}

void snapshot_set_session(struct snapshot *s, uint64_t session) {
    s->options.session = session;
}

void snapshot_keep(struct snapshot *s, const struct checkpoint *c) {
    const json_t *all = json_object_get(c->manifest.tree, SNAPSHOT_GENERATIONS_KEY);
    const json_t *own = json_array_get(all, (size_t)s->options.rank);
    if (!own) return; // of a disk, or of fewer ranks
    s->generations[json_integer_value(own) > 0].order = ++s->orders;
    s->newest = -1; // what was begun is of the past
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

void snapshot_give_back(struct snapshot *s) {
    for (int g = 0; s && g < SNAPSHOT_GENERATIONS; g++)
        if (s->generations[g].made) file_remove(s->generations[g].part, NULL);
    snapshot_close(s);
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
