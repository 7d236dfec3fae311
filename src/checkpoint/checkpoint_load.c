// Reading from an opened checkpoint: boxes of stored tensors, put together from the pieces that
// hold them. See checkpoint.h.
#include "base/text.h"
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/together.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- files

// The first few stay open; what is open survives a removal of the folder by another process. A job
// of thousands of ranks has more parts than a process may have descriptors.
int checkpoint_open_part(struct checkpoint *c, int part, struct safetensors *out, uint64_t *offset,
                         bool *temporary, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    const struct checkpoint_source *source = c->sources ? &c->sources[part] : NULL;
    *offset = source ? source->offset : 0;
    if (source && !source->path)
        return err_set(err, ERR_INTERNAL, "%s: a part of rank %d is on another host", c->path,
                       c->manifest.parts[part].rank);
    if (source)
        snprintf(path, sizeof path, "%s", source->path);
    else if (checkpoint_part_path(c, part, path, err) != 0)
        return -1;
    pthread_mutex_lock(&c->lock);
    int fd = c->files[part];
    *temporary = false;
    if (fd < 0) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
        *temporary = fd < 0 || c->files_open >= CHECKPOINT_MOST_FILES;
        if (!*temporary) {
            c->files[part] = fd;
            c->files_open++;
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (fd < 0)
        return err_set_errno(err, "part of rank %d cannot be opened: %s",
                             c->manifest.parts[part].rank, path);
    *out = (struct safetensors){.fd = fd, .path = strdup(path)};
    if (out->path) return 0;
    if (*temporary) close(fd);
    return err_set(err, ERR_MEMORY, "%s: no memory", path);
}

// ---- boxes

struct target { // where the box goes
    char *data;
    uint64_t row_bytes; // from row to row
};

static int read_bytes(struct checkpoint *c, const struct safetensors *file, uint64_t at,
                      uint64_t bytes, void *out, struct err *err) {
    c->read_bytes += bytes;
    return safetensors_read_file(file, at, bytes, out, err);
}

// Whole rows of the piece into rows that lie apart: blocks of the file, then row by row.
static int spread_rows(struct checkpoint *c, const struct safetensors *file, uint64_t at,
                       int64_t rows, uint64_t bytes, struct target to, struct err *err) {
    enum { BLOCK_BYTES = 1 << 20 };
    int64_t block = bytes >= BLOCK_BYTES ? 1 : (int64_t)(BLOCK_BYTES / bytes);
    if (block > rows) block = rows;
    char *room = malloc((size_t)block * bytes);
    int result = room ? 0 : err_set(err, ERR_MEMORY, "%s: no memory to read rows", file->path);
    for (int64_t row = 0; row < rows && result == 0; row += block) {
        int64_t now = rows - row < block ? rows - row : block;
        result = read_bytes(c, file, at + (uint64_t)row * bytes, (uint64_t)now * bytes, room, err);
        for (int64_t k = 0; result == 0 && k < now; k++)
            memcpy(to.data + (uint64_t)(row + k) * to.row_bytes, room + (uint64_t)k * bytes, bytes);
    }
    free(room);
    return result;
}

// `part` is the part of the wanted box that this piece holds. No byte beside it is read.
static int read_from_piece(struct checkpoint *c, const struct manifest_piece *piece,
                           struct box part, struct target to, struct err *err) {
    uint64_t width = dtype_bytes(c->manifest.tensors[piece->tensor].type);
    uint64_t bytes = (uint64_t)part.columns * width, step = (uint64_t)piece->box.columns * width;
    uint64_t at = piece->begin + (uint64_t)(part.row - piece->box.row) * step +
                  (uint64_t)(part.column - piece->box.column) * width;
    struct safetensors file;
    uint64_t offset;
    bool temporary;
    if (checkpoint_open_part(c, piece->part, &file, &offset, &temporary, err) != 0) return -1;
    at += offset;
    int result = 0;
    if (bytes == step && bytes == to.row_bytes)
        result = read_bytes(c, &file, at, bytes * (uint64_t)part.rows, to.data, err);
    else if (bytes == step)
        result = spread_rows(c, &file, at, part.rows, bytes, to, err);
    else
        for (int64_t row = 0; row < part.rows && result == 0; row++)
            result = read_bytes(c, &file, at + (uint64_t)row * step, bytes,
                                to.data + (uint64_t)row * to.row_bytes, err);
    if (temporary) close(file.fd);
    free(file.path);
    return result;
}

static int check_finite(const struct checkpoint *c, int tensor, struct box box, struct target from,
                        struct err *err) {
    const struct tensor *t = &c->manifest.tensors[tensor];
    if (!safetensors_is_floating(t->type)) return 0;
    int64_t columns = box_whole(t).columns, rows = box.rows, length = box.columns;
    if (from.row_bytes == (uint64_t)length * dtype_bytes(t->type)) { // all in one go
        length *= rows;
        rows = 1;
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t bad =
            safetensors_not_finite(from.data + (uint64_t)row * from.row_bytes, t->type, length);
        if (bad < 0) continue;
        int64_t index =
            (box.row + row + bad / box.columns) * columns + box.column + bad % box.columns;
        return err_set(err, ERR_DATA,
                       "%s: tensor %s holds a value that is not finite at index %" PRId64
                       "; go back to an earlier checkpoint",
                       c->path, t->name, index);
    }
    return 0;
}

static struct target target_of(const struct checkpoint *c, int tensor, struct box box, void *out,
                               int64_t stride) {
    uint64_t width = dtype_bytes(c->manifest.tensors[tensor].type);
    struct target whole = {out, (uint64_t)stride * width};
    if (box.rows == 1) whole.row_bytes = (uint64_t)box.columns * width;
    return whole;
}

// `elsewhere`: pieces that lie with other ranks are left out.
static int read_pieces(struct checkpoint *c, int tensor, struct box box, struct target whole,
                       bool elsewhere, struct err *err) {
    const struct manifest *m = &c->manifest;
    uint64_t width = dtype_bytes(m->tensors[tensor].type);
    for (int i = m->first_piece[tensor]; i < m->first_piece[tensor + 1]; i++) {
        const struct manifest_piece *piece = &m->pieces[i];
        if (piece->box.row >= box.row + box.rows) break; // they ascend by row
        struct box part = box_intersect(piece->box, box);
        if (box_elements(part) == 0) continue;
        if (elsewhere && c->sources && !c->sources[piece->part].path) continue;
        struct target to = whole;
        to.data += (uint64_t)(part.row - box.row) * whole.row_bytes +
                   (uint64_t)(part.column - box.column) * width;
        if (read_from_piece(c, piece, part, to, err) != 0) return -1;
    }
    return 0;
}

int checkpoint_read_box(const struct checkpoint *opened, int tensor, struct box box, void *out,
                        int64_t stride, struct err *err) {
    struct checkpoint *c = (struct checkpoint *)opened; // its descriptors and counters
    if (box_elements(box) == 0) return 0;
    struct target whole = target_of(c, tensor, box, out, stride);
    if (read_pieces(c, tensor, box, whole, false, err) != 0) return -1;
    return check_finite(c, tensor, box, whole, err);
}

int checkpoint_read_range(const struct checkpoint *c, const char *name, int64_t first,
                          int64_t count, void *out, struct err *err) {
    int index = manifest_find(&c->manifest, name);
    if (index < 0) return err_set(err, ERR_DATA, "%s: there is no tensor %s", c->path, name);
    const struct tensor *t = &c->manifest.tensors[index];
    if (first < 0 || count < 0 || first > tensor_elements(t) - count)
        return err_set(err, ERR_INTERNAL, "%s: elements beyond the end of tensor %s were asked for",
                       c->path, t->name);
    struct box parts[3];
    char *to = out;
    for (int i = 0, boxes = box_range(box_whole(t), first, count, parts); i < boxes; i++) {
        if (checkpoint_read_box(c, index, parts[i], to, parts[i].columns, err) != 0) return -1;
        to += (uint64_t)box_elements(parts[i]) * dtype_bytes(t->type);
    }
    return 0;
}

int checkpoint_read(const struct checkpoint *c, const char *name, void *out, struct err *err) {
    const struct tensor *t = checkpoint_find(c, name);
    return checkpoint_read_range(c, name, 0, t ? tensor_elements(t) : 0, out, err);
}

// ---- slices

struct load {
    const struct checkpoint *c;
    const struct tensor_slice *slices;
    int count;
    uint8_t *wanted, *scratch; // [tensors] by any rank
    bool check;                // what was loaded, else load it
};

static void put_shape(struct text *out, enum dtype type, int dims, const int64_t *shape) {
    text_printf(out, "%s [", dtype_name(type));
    for (int i = 0; i < dims; i++) text_printf(out, "%s%" PRId64, i ? ", " : "", shape[i]);
    text_puts(out, "]");
}

static bool same_shape(const struct tensor *t, const struct tensor_slice *s) {
    bool same = t->type == s->type && t->dims == s->dims;
    for (int i = 0; same && i < t->dims; i++) same = t->shape[i] == s->shape[i];
    return same;
}

enum { MOST_NAMED = 4 };

static void name_one(struct text *out, int *named, const char *what, const char *name) {
    if ((*named)++ < MOST_NAMED) text_printf(out, "%s%s %s", *named > 1 ? "; " : "", what, name);
}

static void compare_slice(const struct load *l, const struct tensor_slice *s, struct text *list,
                          int *named) {
    const struct tensor *stored = checkpoint_find(l->c, s->name);
    char where[120];
    if (!stored) {
        name_one(list, named, "missing:", s->name);
    } else if (!same_shape(stored, s)) {
        name_one(list, named, "wrong shape or type:", s->name);
        if (*named > MOST_NAMED) return;
        text_puts(list, " (stored ");
        put_shape(list, stored->type, stored->dims, stored->shape);
        text_puts(list, ", expected ");
        put_shape(list, s->type, s->dims, s->shape);
        text_puts(list, ")");
    } else if (!box_inside(box_of_slice(s), box_whole(stored))) {
        name_one(list, named, "outside the tensor:", s->name);
        text_printf(list, " (%s)", box_text(box_of_slice(s), where));
    }
}

// Compares what is stored with what is asked for, both ways.
static int compare(const struct load *l, struct err *err) {
    struct text list = {0};
    int named = 0, result = 0;
    for (int i = 0; i < l->count; i++)
        if (i == 0 || strcmp(l->slices[i - 1].name, l->slices[i].name) != 0)
            compare_slice(l, &l->slices[i], &list, &named);
    for (int t = 0; t < l->c->manifest.tensor_count; t++)
        if (!l->wanted[t]) name_one(&list, &named, "unexpected:", l->c->manifest.tensors[t].name);
    if (named > MOST_NAMED) text_printf(&list, "; and %d more", named - MOST_NAMED);
    if (named > 0)
        result = err_set(err, ERR_DATA, "%s: the stored tensors are not those of this model: %s",
                         l->c->path, list.data ? list.data : "(no memory)");
    text_free(&list);
    return result;
}

// Reading, or the look at what was read, of one slice.
static int load_one(const struct load *l, const struct tensor_slice *s, struct err *err) {
    struct checkpoint *c = (struct checkpoint *)l->c; // its descriptors and counters
    struct box box = box_of_slice(s);
    int tensor = manifest_find(&c->manifest, s->name);
    if (box_elements(box) == 0) return 0;
    struct target whole = target_of(c, tensor, box, s->data, s->stride);
    return l->check ? check_finite(c, tensor, box, whole, err)
                    : read_pieces(c, tensor, box, whole, true, err);
}

static int load_all(void *context, const atomic_bool *stop, struct err *err) {
    struct load *l = context;
    if (!l->check && compare(l, err) != 0) return -1;
    int bad = l->count; // the first faulty slice, whatever thread met it
    struct err why = {0};
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < l->count; i++) {
        struct err mine = {0};
        int result = *stop ? err_set(&mine, ERR_IO, "another rank has failed")
                           : load_one(l, &l->slices[i], &mine);
        if (result == 0) continue;
#pragma omp critical(checkpoint_load)
        if (i < bad) {
            bad = i;
            why = mine;
        }
    }
    return bad == l->count ? 0 : err_set(err, why.kind, "%s", why.text);
}

static int mark_wanted(void *context, const atomic_bool *stop, struct err *err) {
    struct load *l = context;
    size_t tensors = (size_t)l->c->manifest.tensor_count;
    (void)stop;
    l->wanted = calloc(tensors + 1, 1);
    if (!l->wanted) return err_set(err, ERR_MEMORY, "%s: no memory", l->c->path);
    for (int i = 0; i < l->count; i++) {
        int index = manifest_find(&l->c->manifest, l->slices[i].name);
        if (index >= 0) l->wanted[index] = 1;
    }
    return 0;
}

static void any_of(void *context, const void *const *parts, int count, int64_t elements,
                   void *out) {
    (void)context;
    for (int64_t i = 0; i < elements; i++) {
        uint8_t any = 0;
        for (int k = 0; k < count; k++) any |= ((const uint8_t *)parts[k])[i];
        ((uint8_t *)out)[i] = any;
    }
}

// What some rank wants, every rank knows.
static int share_wanted(struct load *l, struct comm_stream *world, struct err *err) {
    static const struct comm_reduction any = {.sum = any_of, .wire_bytes = 1, .out_bytes = 1};
    int64_t tensors = l->c->manifest.tensor_count;
    if (together_size(world) == 1) return 0;
    l->scratch = malloc(comm_all_reduce_scratch(world, tensors, &any) + 1);
    int64_t lacking = !l->scratch;
    comm_max_integers(world, &lacking, 1);
    if (lacking) return err_set(err, ERR_MEMORY, "%s: a rank has no memory", l->c->path);
    return together_wait(world, comm_all_reduce(world, l->wanted, l->scratch, tensors, &any), err);
}

int checkpoint_load_slices(const struct checkpoint *c, const struct tensor_slice *slices, int count,
                           struct comm_stream *world, struct err *err) {
    struct load l = {.c = c, .slices = slices, .count = count};
    int result = together_run(world, "rank", mark_wanted, &l, err);
    if (result == 0) result = share_wanted(&l, world, err);
    if (result == 0) result = together_run(world, "rank", load_all, &l, err);
    if (result == 0 && c->sources)
        result = checkpoint_exchange((struct checkpoint *)c, slices, count, world, err);
    l.check = true;
    if (result == 0) result = together_run(world, "rank", load_all, &l, err);
    free(l.wanted);
    free(l.scratch);
    return result;
}

int checkpoint_load(const struct checkpoint *c, const struct tensor *tensors, int count,
                    struct err *err) {
    struct tensor_slice *slices = calloc((size_t)count + 1, sizeof *slices);
    if (!slices) return err_set(err, ERR_MEMORY, "%s: no memory", c->path);
    for (int i = 0; i < count; i++) slices[i] = checkpoint_whole_slice(&tensors[i]);
    int result = checkpoint_load_slices(c, slices, count, NULL, err);
    free(slices);
    return result;
}
