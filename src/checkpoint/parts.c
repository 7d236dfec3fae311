// See parts.h.
#include "checkpoint/parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t part_default_bytes = 512000000;

static struct tensor whole_of(const struct tensor_slice *s) {
    struct tensor t = {.type = s->type, .dims = s->dims, .shape = {s->shape[0], s->shape[1]}};
    memcpy(t.name, s->name, sizeof t.name);
    return t;
}

static int check_slice(const struct tensor_slice *s, struct err *err) {
    char text[120];
    struct tensor whole = whole_of(s);
    struct box box = box_of_slice(s);
    if (s->dims < 1 || s->dims > 2 || s->name[0] == 0 || strchr(s->name, '@'))
        return err_set(err, ERR_INTERNAL,
                       "tensor \"%.100s\": expected a name without @, and one or two dimensions, "
                       "found %d",
                       s->name, s->dims);
    if (!box_inside(box, box_whole(&whole)))
        return err_set(err, ERR_INTERNAL, "tensor %s: %s lie outside of it", s->name,
                       box_text(box, text));
    if (box_elements(box) == 0) return 0;
    if (!s->data)
        return err_set(err, ERR_INTERNAL, "tensor %s has no memory to save from", s->name);
    if (s->copies < 1 || s->copy < 0 || s->copy >= s->copies)
        return err_set(err, ERR_INTERNAL, "tensor %s: copy %d of %d", s->name, s->copy, s->copies);
    return 0;
}

// Wider types in front, so that each piece is aligned in its file.
static int by_width(const void *a, const void *b) {
    const struct part_piece *x = a, *y = b;
    size_t wide = dtype_bytes(x->slice->type), other = dtype_bytes(y->slice->type);
    if (wide != other) return wide > other ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

// As it stands in the file: dense, and whole tensors with their own shape.
static int describe_piece(const struct part_piece *piece, struct tensor *out, struct err *err) {
    struct tensor whole = whole_of(piece->slice);
    *out = whole;
    if (!box_same(piece->box, box_whole(&whole))) {
        out->shape[0] = piece->box.rows;
        if (whole.dims == 2) out->shape[1] = piece->box.columns;
    }
    return piece_name(&whole, piece->box, out->name, err);
}

static int list_pieces(struct part_list *l, const struct tensor_slice *slices, int count,
                       struct err *err) {
    for (int i = 0; i < count; i++) {
        struct box share[3];
        if (check_slice(&slices[i], err) != 0) return -1;
        for (int k = 0, boxes = piece_share(&slices[i], share); k < boxes; k++) {
            l->pieces[l->piece_count] = (struct part_piece){&slices[i], share[k], l->piece_count};
            l->piece_count++;
        }
    }
    qsort(l->pieces, (size_t)l->piece_count, sizeof *l->pieces, by_width);
    for (int i = 0; i < l->piece_count; i++)
        if (describe_piece(&l->pieces[i], &l->stored[i], err) != 0) return -1;
    return 0;
}

// As many pieces from `first` on share one part as fit, at least one.
static int pieces_of_part(const struct part_list *l, int first, uint64_t part_bytes) {
    uint64_t sum = tensor_bytes(&l->stored[first]);
    int used = 1;
    while (first + used < l->piece_count &&
           sum + tensor_bytes(&l->stored[first + used]) <= part_bytes)
        sum += tensor_bytes(&l->stored[first + used++]);
    return used;
}

static void list_parts(struct part_list *l, int ranks, uint64_t part_bytes) {
    for (int first = 0; first < l->piece_count;) {
        struct part *part = &l->parts[l->part_count++];
        part->first = first;
        part->count = pieces_of_part(l, first, part_bytes);
        first += part->count;
        if (ranks == 1)
            snprintf(part->name, sizeof part->name, "part-%05d.safetensors", l->part_count);
        else
            snprintf(part->name, sizeof part->name, "rank-%05d-part-%05d.safetensors", l->rank,
                     l->part_count);
    }
}

int part_list_open(struct part_list *l, const struct tensor_slice *slices, int count, int rank,
                   int ranks, uint64_t part_bytes, struct err *err) {
    size_t most = 3 * (size_t)count + 1;
    *l = (struct part_list){.rank = rank};
    l->pieces = calloc(most, sizeof *l->pieces);
    l->stored = calloc(most, sizeof *l->stored);
    l->parts = calloc(most, sizeof *l->parts);
    int result = l->pieces && l->stored && l->parts
                     ? list_pieces(l, slices, count, err)
                     : err_set(err, ERR_MEMORY, "no memory for the list of pieces");
    if (result == 0)
        list_parts(l, ranks, part_bytes ? part_bytes : part_default_bytes);
    else
        part_list_close(l);
    return result;
}

void part_list_close(struct part_list *l) {
    free(l->pieces);
    free(l->stored);
    free(l->parts);
    *l = (struct part_list){0};
}

json_t *part_list_tensors(const struct tensor_slice *slices, int count, struct err *err) {
    json_t *lists = manifest_lists();
    if (!lists) err_set(err, ERR_MEMORY, "no memory for the list of tensors");
    for (int i = 0; lists && i < count; i++) {
        struct tensor whole = whole_of(&slices[i]);
        if (manifest_lists_tensor(lists, &whole, err) == 0) continue;
        json_decref(lists);
        return NULL;
    }
    return lists;
}

struct part_rows part_piece_rows(const struct part_piece *piece) {
    const struct tensor_slice *s = piece->slice;
    struct box b = piece->box;
    uint64_t width = dtype_bytes(s->type), row_bytes = (uint64_t)b.columns * width;
    struct part_rows rows = {
        .from = (const char *)s->data +
                width * (uint64_t)((b.row - s->row) * s->stride + (b.column - s->column)),
        .rows = (uint64_t)b.rows,
        .row_bytes = row_bytes,
        .stride_bytes = (uint64_t)s->stride * width};
    if (s->stride == b.columns) {
        rows.row_bytes *= rows.rows;
        rows.rows = 1;
    }
    return rows;
}
