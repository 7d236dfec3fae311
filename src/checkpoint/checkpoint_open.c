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
    int count;
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

// Sizes and hashes of all files, the latter side by side: reading is what takes the time.
static int verify_files(const struct checkpoint *c, struct err *err) {
    int count = c->manifest.part_count, failed = 0;
    struct err first = {0};
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) {
        const struct manifest_part *part = &c->manifest.parts[i];
        char path[CHECKPOINT_PATH_BYTES];
        struct err mine = {0};
        struct file_map map = {0};
        if (file_join(path, sizeof path, c->path, part->name, &mine) == 0 &&
            file_map_open(&map, path, &mine) == 0) {
            if (map.size != part->bytes)
                err_set(&mine, ERR_DATA,
                        "%s: %zu bytes, but the manifest says %" PRIu64
                        "; the file is truncated or was changed",
                        path, map.size, part->bytes);
            else if (hash_bytes(map.data, map.size) != part->hash)
                err_set(&mine, ERR_DATA,
                        "%s: the content does not have the hash that the manifest names; the file "
                        "is damaged",
                        path);
            file_map_close(&map);
        }
        if (mine.kind == ERR_NONE) continue;
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
    if (!c->tensors)
        return err_set(err, ERR_MEMORY, "%s: no memory for %d tensors", c->path, total);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < c->parts[i].count; k++) c->tensors[c->count++] = c->parts[i].tensors[k];
    qsort(c->tensors, (size_t)c->count, sizeof *c->tensors, by_name);
    for (int i = 1; i < c->count; i++)
        if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0)
            return err_set(err, ERR_DATA, "%s: tensor %s is in two parts", c->path,
                           c->tensors[i].name);
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
    if (result == 0) result = verify_files(c, err);
    if (result == 0) result = open_parts(c, err);
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

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    struct tensor key = {0};
    snprintf(key.name, sizeof key.name, "%s", name);
    return c->count ? bsearch(&key, c->tensors, (size_t)c->count, sizeof *c->tensors, by_name)
                    : NULL;
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
    int64_t bad_index = -1;
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < count; i++) {
        const struct tensor *stored = checkpoint_find(c, tensors[i].name);
        bool floating = stored->type == DTYPE_F32 || stored->type == DTYPE_BF16 ||
                        stored->type == DTYPE_F16 || stored->type == DTYPE_F64;
        int64_t index = floating ? safetensors_not_finite(stored) : -1;
        if (index < 0) {
            if (tensor_bytes(stored) > 0)
                memcpy(tensors[i].data, stored->data, tensor_bytes(stored));
            continue;
        }
#pragma omp critical(checkpoint_load)
        if (i < bad) {
            bad = i;
            bad_index = index;
        }
    }
    if (bad == count) return 0;
    return err_set(err, ERR_DATA,
                   "%s: tensor %s holds a value that is not finite at index %" PRId64
                   "; go back to an earlier checkpoint",
                   c->path, tensors[bad].name, bad_index);
}
