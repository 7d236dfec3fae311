// Opening and verifying one checkpoint; see checkpoint.h. Reading from it is in checkpoint_load.c.
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/together.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct opening {
    struct checkpoint *c;
    const char *path;
    struct comm_stream *world;
};

int checkpoint_part_path(const struct checkpoint *c, int part, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err) {
    return file_join(out, CHECKPOINT_PATH_BYTES, c->path, c->manifest.parts[part].name, err);
}

// ---- the manifest

// Version 1 leaves it to the parts to say what they hold.
static int read_headers(struct checkpoint *c, struct err *err) {
    for (int i = 0; i < c->manifest.part_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        struct safetensors file;
        if (checkpoint_part_path(c, i, path, err) != 0 || safetensors_open(path, &file, err) != 0)
            return -1;
        c->verified_bytes += file.offsets[0];
        int result =
            manifest_add_header(&c->manifest, i, file.tensors, file.count, file.offsets[0], err);
        safetensors_close(&file);
        if (result != 0) return err_context(err, "%s", c->path);
    }
    return manifest_complete(&c->manifest, c->path, err);
}

static int open_manifest(void *context, const atomic_bool *stop, struct err *err) {
    struct opening *o = context;
    struct checkpoint *c = o->c;
    (void)stop;
    if (strlen(o->path) >= sizeof c->path)
        return err_set(err, ERR_IO, "path too long: %.100s...", o->path);
    if (manifest_read(strcpy(c->path, o->path), &c->manifest, err) != 0 ||
        (c->manifest.version == 1 && read_headers(c, err) != 0))
        return -1;
    c->files = malloc((size_t)c->manifest.part_count * sizeof *c->files);
    if (!c->files)
        return err_set(err, ERR_MEMORY, "%s: no memory for %d parts", c->path,
                       c->manifest.part_count);
    for (int i = 0; i < c->manifest.part_count; i++) c->files[i] = -1;
    return 0;
}

// ---- which parts are there

// "the part of rank 3 ... is missing; it held rows ... of X and 11 other pieces"
static void name_missing(const struct checkpoint *c, int part, struct text *out) {
    const struct manifest *m = &c->manifest;
    const struct manifest_piece *first = NULL;
    char where[120];
    int count = 0;
    for (int i = 0; i < m->piece_count; i++)
        if (m->pieces[i].part == part && count++ == 0) first = &m->pieces[i];
    text_printf(out, "part of rank %d is missing: %s", m->parts[part].rank, m->parts[part].name);
    if (first)
        text_printf(out, " (it held %s of %s", box_text(first->box, where),
                    m->tensors[first->tensor].name);
    if (count > 1) text_printf(out, " and %d other pieces", count - 1);
    if (first) text_puts(out, ")");
}

static int check_presence(const struct checkpoint *c, struct err *err) {
    enum { MOST_NAMED = 3 };
    struct text list = {0};
    int missing = 0, result = 0;
    for (int i = 0; i < c->manifest.part_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        if (checkpoint_part_path(c, i, path, err) != 0) return -1;
        if (file_exists(path) || missing++ >= MOST_NAMED) continue;
        if (missing > 1) text_puts(&list, "; ");
        name_missing(c, i, &list);
    }
    if (missing > MOST_NAMED) text_printf(&list, "; and %d more", missing - MOST_NAMED);
    if (missing > 0)
        result = err_set(err, ERR_DATA, "%s: %s", c->path, list.data ? list.data : "(no memory)");
    text_free(&list);
    return result;
}

// ---- what is in them

static int hash_part(struct checkpoint *c, const struct safetensors *part,
                     const struct manifest_part *expected, const atomic_bool *stop,
                     struct err *err) {
    enum { PIECE = 1 << 20 };
    char *piece = malloc(PIECE);
    if (!piece) return err_set(err, ERR_MEMORY, "%s: no memory", part->path);
    struct hash_stream hash;
    hash_begin(&hash);
    int result = 0;
    for (uint64_t at = 0; at < expected->bytes && result == 0; at += PIECE) {
        uint64_t now = expected->bytes - at < PIECE ? expected->bytes - at : PIECE;
        result = *stop ? err_set(err, ERR_IO, "another rank has failed")
                       : safetensors_read_file(part, at, now, piece, err);
        c->verified_bytes += now;
        if (result == 0) hash_put(&hash, piece, (size_t)now);
    }
    free(piece);
    if (result == 0 && hash_end(&hash) != expected->hash)
        return err_set(
            err, ERR_DATA,
            "%s: the content does not have the hash that the manifest names; the file is damaged",
            part->path);
    return result;
}

// Every piece in the header is one of the manifest's, at its place. Both lists fill the file
// without holes, so then they are the same.
static int compare_header(const struct checkpoint *c, int index, const struct safetensors *part,
                          struct err *err) {
    const struct manifest *m = &c->manifest;
    for (int i = 0; i < part->count; i++) {
        const struct tensor *t = &part->tensors[i];
        if (tensor_elements(t) == 0) continue;
        const struct manifest_piece *piece = manifest_find_piece(m, t->name);
        if (!piece || piece->part != index || piece->begin != part->offsets[i] ||
            m->tensors[piece->tensor].type != t->type ||
            box_elements(piece->box) != tensor_elements(t))
            return err_set(err, ERR_DATA, "%s: %s is not what the manifest says of it", part->path,
                           t->name);
    }
    return 0;
}

static int verify_part(struct checkpoint *c, int index, const atomic_bool *stop, struct err *err) {
    const struct manifest_part *expected = &c->manifest.parts[index];
    char path[CHECKPOINT_PATH_BYTES];
    struct safetensors part;
    uint64_t bytes;
    if (checkpoint_part_path(c, index, path, err) != 0 || file_size(path, &bytes, err) != 0)
        return -1;
    if (bytes != expected->bytes)
        return err_set(err, ERR_DATA,
                       "%s: %" PRIu64 " bytes, but the manifest says %" PRIu64
                       "; the file is truncated or was changed",
                       path, bytes, expected->bytes);
    if (safetensors_open(path, &part, err) != 0) return -1;
    if (part.count > 0) c->verified_bytes += part.offsets[0]; // the header
    int result = hash_part(c, &part, expected, stop, err);
    if (result == 0) result = compare_header(c, index, &part, err);
    safetensors_close(&part);
    return result;
}

// This rank's share of the parts, side by side: reading is what takes the time. The first rank
// looks for absent ones; as the lowest that can fail, its message is the one that all give.
static int verify_parts(void *context, const atomic_bool *stop, struct err *err) {
    struct opening *o = context;
    struct checkpoint *c = o->c;
    int rank = together_rank(o->world), ranks = together_size(o->world);
    int failed = 0;
    struct err first = {0};
    if (rank == 0 && check_presence(c, err) != 0) return -1;
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = rank; i < c->manifest.part_count; i += ranks) {
        struct err mine = {0};
        if (verify_part(c, i, stop, &mine) == 0) continue;
#pragma omp critical(checkpoint_verify)
        if (!failed) {
            failed = 1;
            first = mine;
        }
    }
    return failed ? err_set(err, first.kind, "%s", first.text) : 0;
}

// ---- opening

static int open_phases(struct opening *o, struct err *err) {
    if (together_run(o->world, "seen by rank", open_manifest, o, err) != 0) return -1;
    int same = together_same(o->world, o->c->manifest.hash, err);
    if (same < 0) return -1;
    if (!same)
        return err_set(err, ERR_DATA,
                       "%s: the ranks see different manifests; all must see one folder", o->path);
    return together_run(o->world, "seen by rank", verify_parts, o, err);
}

int checkpoint_open_world(const char *path, struct comm_stream *world, struct checkpoint **out,
                          struct err *err) {
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ERR_MEMORY, "%s: no memory", path);
    pthread_mutex_init(&c->lock, NULL);
    struct opening opening = {.c = c, .path = path, .world = world};
    if (open_phases(&opening, err) != 0) {
        checkpoint_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

int checkpoint_open(const char *path, struct checkpoint **out, struct err *err) {
    return checkpoint_open_world(path, NULL, out, err);
}

void checkpoint_close(struct checkpoint *c) {
    if (!c) return;
    for (int i = 0; c->files && i < c->manifest.part_count; i++)
        if (c->files[i] >= 0) close(c->files[i]);
    for (int i = 0; c->sources && i < c->manifest.part_count; i++) free(c->sources[i].path);
    free(c->sources);
    free(c->files);
    manifest_free(&c->manifest);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const char *checkpoint_path(const struct checkpoint *c) {
    return c->path;
}
const struct checkpoint_state *checkpoint_state(const struct checkpoint *c) {
    return &c->manifest.state;
}
const struct model_config *checkpoint_model(const struct checkpoint *c) {
    return &c->manifest.model;
}
const struct tensor *checkpoint_tensors(const struct checkpoint *c, int *count) {
    *count = c->manifest.tensor_count;
    return c->manifest.tensors;
}
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    int index = manifest_find(&c->manifest, name);
    return index < 0 ? NULL : &c->manifest.tensors[index];
}
uint64_t checkpoint_read_bytes(const struct checkpoint *c) {
    return c->read_bytes + c->verified_bytes;
}
uint64_t checkpoint_verified_bytes(const struct checkpoint *c) {
    return c->verified_bytes;
}
