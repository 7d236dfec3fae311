// Opening, verifying and loading one checkpoint; see checkpoint.h.
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checkpoint {
    char path[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    struct safetensors *parts;
    int parts_open;
    struct tensor *tensors; // of all parts, by name
    struct place *places;   // where each of them lies
    int count;
};

struct place {
    const struct tensor *tensor; // in its part's list
    int part, index;
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct place *)a)->tensor->name, ((const struct place *)b)->tensor->name);
}

// Reads a whole file once, in pieces, and compares size and hash with the manifest's.
static int verify_part(const struct safetensors *part, const struct manifest_part *expected,
                       struct err *err) {
    enum { PIECE = 1 << 20 };
    if (part->file_bytes != expected->bytes)
        return err_set(err, ERR_DATA,
                       "%s: %" PRIu64 " bytes, but the manifest says %" PRIu64
                       "; the file is truncated or was changed",
                       part->path, part->file_bytes, expected->bytes);
    char *piece = malloc(PIECE);
    if (!piece) return err_set(err, ERR_MEMORY, "%s: no memory", part->path);
    struct hash_stream hash;
    hash_begin(&hash);
    int result = 0;
    for (uint64_t at = 0; at < expected->bytes && result == 0; at += PIECE) {
        uint64_t now = expected->bytes - at < PIECE ? expected->bytes - at : PIECE;
        result = safetensors_read_file(part, at, now, piece, err);
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

// All files side by side: reading is what takes the time.
static int verify_files(const struct checkpoint *c, struct err *err) {
    int failed = 0;
    struct err first = {0};
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < c->parts_open; i++) {
        struct err mine = {0};
        if (verify_part(&c->parts[i], &c->manifest.parts[i], &mine) == 0) continue;
#pragma omp critical(checkpoint_verify)
        if (!failed) {
            failed = 1;
            first = mine;
        }
    }
    return failed ? err_set(err, first.kind, "%s", first.text) : 0;
}

static int open_parts(struct checkpoint *c, struct err *err) {
    int count = c->manifest.part_count, total = 0;
    c->parts = calloc((size_t)count, sizeof *c->parts);
    if (!c->parts) return err_set(err, ERR_MEMORY, "%s: no memory for %d parts", c->path, count);
    for (int i = 0; i < count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        if (file_join(path, sizeof path, c->path, c->manifest.parts[i].name, err) != 0 ||
            safetensors_open(path, &c->parts[i], err) != 0)
            return -1;
        c->parts_open = i + 1;
        total += c->parts[i].count;
    }
    c->tensors = calloc((size_t)total + 1, sizeof *c->tensors);
    c->places = calloc((size_t)total + 1, sizeof *c->places);
    if (!c->tensors || !c->places)
        return err_set(err, ERR_MEMORY, "%s: no memory for %d tensors", c->path, total);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < c->parts[i].count; k++)
            c->places[c->count++] = (struct place){&c->parts[i].tensors[k], i, k};
    qsort(c->places, (size_t)c->count, sizeof *c->places, by_name);
    for (int i = 0; i < c->count; i++) {
        c->tensors[i] = *c->places[i].tensor;
        if (i > 0 && strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0)
            return err_set(err, ERR_DATA, "%s: tensor %s is in two parts", c->path,
                           c->tensors[i].name);
    }
    return 0;
}

int checkpoint_open(const char *path, struct checkpoint **out, struct err *err) {
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ERR_MEMORY, "%s: no memory", path);
    int result = -1;
    if (strlen(path) >= sizeof c->path)
        err_set(err, ERR_IO, "path too long: %.100s...", path);
    else
        result = manifest_read(strcpy(c->path, path), &c->manifest, err);
    if (result == 0) result = open_parts(c, err);
    if (result == 0) result = verify_files(c, err);
    if (result != 0) {
        checkpoint_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c) return;
    for (int i = 0; i < c->parts_open; i++) safetensors_close(&c->parts[i]);
    free(c->parts);
    free(c->tensors);
    free(c->places);
    manifest_free(&c->manifest);
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
    *count = c->count;
    return c->tensors;
}

// Index in the list by name, or -1.
static int find(const struct checkpoint *c, const char *name) {
    int low = 0, high = c->count - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = strcmp(c->tensors[middle].name, name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    int index = find(c, name);
    return index < 0 ? NULL : &c->tensors[index];
}

static int read_range(const struct checkpoint *c, int index, int64_t first, int64_t count,
                      void *out, struct err *err) {
    const struct place *place = &c->places[index];
    const struct tensor *t = &c->tensors[index];
    if (t->type == DTYPE_COUNT)
        return err_set(err, ERR_DATA, "%s: tensor %s has a type that is not read", c->path,
                       t->name);
    if (first < 0 || count < 0 || first > tensor_elements(t) - count)
        return err_set(err, ERR_INTERNAL, "%s: elements beyond the end of tensor %s were asked for",
                       c->path, t->name);
    uint64_t width = dtype_bytes(t->type);
    if (safetensors_read(&c->parts[place->part], place->index, (uint64_t)first * width,
                         (uint64_t)count * width, out, err) != 0)
        return -1;
    int64_t bad =
        safetensors_is_floating(t->type) ? safetensors_not_finite(out, t->type, count) : -1;
    if (bad < 0) return 0;
    return err_set(err, ERR_DATA,
                   "%s: tensor %s holds a value that is not finite at index %" PRId64
                   "; go back to an earlier checkpoint",
                   c->path, t->name, first + bad);
}

int checkpoint_read_range(const struct checkpoint *c, const char *name, int64_t first,
                          int64_t count, void *out, struct err *err) {
    int index = find(c, name);
    if (index < 0) return err_set(err, ERR_DATA, "%s: there is no tensor %s", c->path, name);
    return read_range(c, index, first, count, out, err);
}

int checkpoint_read(const struct checkpoint *c, const char *name, void *out, struct err *err) {
    int index = find(c, name);
    if (index < 0) return err_set(err, ERR_DATA, "%s: there is no tensor %s", c->path, name);
    return read_range(c, index, 0, tensor_elements(&c->tensors[index]), out, err);
}

static void put_shape(struct text *out, const struct tensor *t) {
    text_printf(out, "%s [", dtype_name(t->type));
    for (int i = 0; i < t->dims; i++) text_printf(out, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    text_puts(out, "]");
}

static bool same_shape(const struct tensor *a, const struct tensor *b) {
    bool same = a->type == b->type && a->dims == b->dims;
    for (int i = 0; same && i < a->dims; i++) same = a->shape[i] == b->shape[i];
    return same;
}

enum { MOST_NAMED = 4 };

static void name_one(struct text *out, int *named, const char *what, const char *name) {
    if ((*named)++ < MOST_NAMED) text_printf(out, "%s%s %s", *named > 1 ? "; " : "", what, name);
}

// Compares what is stored with what is asked for, both ways.
static int compare(const struct checkpoint *c, const struct tensor *wanted, int count,
                   struct err *err) {
    struct text list = {0};
    int named = 0, found = 0;
    for (int i = 0; i < count; i++) {
        const struct tensor *stored = checkpoint_find(c, wanted[i].name);
        found += stored != NULL;
        if (!stored) {
            name_one(&list, &named, "missing:", wanted[i].name);
        } else if (!same_shape(stored, &wanted[i])) {
            name_one(&list, &named, "wrong shape or type:", wanted[i].name);
            if (named > MOST_NAMED) continue;
            text_puts(&list, " (stored ");
            put_shape(&list, stored);
            text_puts(&list, ", expected ");
            put_shape(&list, &wanted[i]);
            text_puts(&list, ")");
        }
    }
    for (int k = 0; k < c->count && found < c->count; k++) {
        bool asked = false;
        for (int i = 0; i < count && !asked; i++)
            asked = strcmp(wanted[i].name, c->tensors[k].name) == 0;
        if (!asked) name_one(&list, &named, "unexpected:", c->tensors[k].name);
    }
    int result = 0;
    if (named > MOST_NAMED) text_printf(&list, "; and %d more", named - MOST_NAMED);
    if (named > 0)
        result = err_set(err, ERR_DATA, "%s: the stored tensors are not those of this model: %s",
                         c->path, list.data ? list.data : "(no memory)");
    text_free(&list);
    return result;
}

int checkpoint_load(const struct checkpoint *c, const struct tensor *tensors, int count,
                    struct err *err) {
    if (compare(c, tensors, count, err) != 0) return -1;
    int bad = count; // the first faulty tensor, whatever thread met it
    struct err why = {0};
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) {
        struct err mine = {0};
        if (checkpoint_read(c, tensors[i].name, tensors[i].data, &mine) == 0) continue;
#pragma omp critical(checkpoint_load)
        if (i < bad) {
            bad = i;
            why = mine;
        }
    }
    return bad == count ? 0 : err_set(err, why.kind, "%s", why.text);
}
