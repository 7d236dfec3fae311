// See pieces.h.
#include "checkpoint/pieces.h"
#include "base/hash.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A share below this is not worth a header entry and a read of its own.
enum { SHARE_LEAST_BYTES = 4096 };
// With so many rows per share, cutting between rows is even enough (6 %).
enum { ROWS_PER_SHARE = 16 };

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

struct box box_whole(const struct tensor *t) {
    struct box b = {0, 1, 0, 1};
    for (int i = 0; i < t->dims; i++) {
        if (i > 0 && i == t->dims - 1)
            b.columns = t->shape[i];
        else
            b.rows *= t->shape[i];
    }
    return b;
}

struct box box_of_slice(const struct tensor_slice *s) {
    return (struct box){s->row, s->rows, s->column, s->columns};
}

bool box_same(struct box a, struct box b) {
    return a.row == b.row && a.rows == b.rows && a.column == b.column && a.columns == b.columns;
}

bool box_inside(struct box inner, struct box outer) {
    return inner.rows >= 0 && inner.columns >= 0 && inner.row >= outer.row &&
           inner.column >= outer.column && inner.rows <= outer.rows &&
           inner.columns <= outer.columns && inner.row - outer.row <= outer.rows - inner.rows &&
           inner.column - outer.column <= outer.columns - inner.columns;
}

struct box box_intersect(struct box a, struct box b) {
    struct box out = {.row = larger(a.row, b.row), .column = larger(a.column, b.column)};
    out.rows = larger(0, smaller(a.row + a.rows, b.row + b.rows) - out.row);
    out.columns = larger(0, smaller(a.column + a.columns, b.column + b.columns) - out.column);
    return out;
}

int box_range(struct box whole, int64_t first, int64_t count, struct box out[3]) {
    int used = 0;
    while (count > 0) {
        int64_t row = first / whole.columns, column = first % whole.columns;
        struct box b = {whole.row + row, 1, whole.column + column, 0};
        if (column == 0 && count >= whole.columns) {
            b.rows = count / whole.columns;
            b.columns = whole.columns;
        } else {
            b.columns = smaller(count, whole.columns - column);
        }
        first += box_elements(b);
        count -= box_elements(b);
        out[used++] = b;
    }
    return used;
}

const char *box_text(struct box b, char out[120]) {
    snprintf(out, 120, "rows [%" PRId64 ", %" PRId64 "), columns [%" PRId64 ", %" PRId64 ")", b.row,
             b.row + b.rows, b.column, b.column + b.columns);
    return out;
}

static int by_row(const void *a, const void *b) {
    const struct box *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->column == y->column ? 0 : x->column < y->column ? -1 : 1;
}

// Do these boxes, ascending by column, tile the columns of `band`?
static enum box_cover cover_band(const struct box *active, int count, struct box band,
                                 struct box *fault) {
    int64_t at = band.column, end = band.column + band.columns;
    for (int i = 0; i <= count; i++) {
        int64_t next = i < count ? active[i].column : end;
        if (next != at) {
            *fault = band;
            fault->column = smaller(at, next);
            fault->columns = next > at ? next - at : smaller(at - next, active[i].columns);
            return next > at ? COVER_HOLE : COVER_TWICE;
        }
        if (i < count) at += active[i].columns;
    }
    return COVER_EXACT;
}

// A sweep over the rows: between two rows where a box begins or ends, the boxes that cross must
// tile the columns. Those that cross stand in front of the array, ascending by column; the ones
// still to come stand from `next` on.
enum box_cover box_cover(struct box *boxes, int count, struct box target, struct box *fault) {
    int64_t row = target.row, end = target.row + target.rows;
    int crossing = 0, next = 0;
    if (box_elements(target) == 0) return COVER_EXACT;
    qsort(boxes, (size_t)count, sizeof *boxes, by_row);
    while (row < end) {
        int kept = 0;
        for (int i = 0; i < crossing; i++)
            if (boxes[i].row + boxes[i].rows > row) boxes[kept++] = boxes[i];
        for (crossing = kept; next < count && boxes[next].row == row; next++) {
            struct box b = boxes[next];
            int at = crossing++;
            for (; at > 0 && boxes[at - 1].column > b.column; at--) boxes[at] = boxes[at - 1];
            boxes[at] = b;
        }
        int64_t stop = next < count ? smaller(end, boxes[next].row) : end;
        for (int i = 0; i < crossing; i++) stop = smaller(stop, boxes[i].row + boxes[i].rows);
        struct box band = {row, stop - row, target.column, target.columns};
        enum box_cover found = cover_band(boxes, crossing, band, fault);
        if (found != COVER_EXACT) return found;
        row = stop;
    }
    return COVER_EXACT;
}

// floor(whole * i / n) without overflow
static int64_t border(int64_t whole, int64_t i, int64_t n) {
    return (int64_t)((__int128)whole * i / n);
}

int piece_share(const struct tensor_slice *s, struct box out[3]) {
    struct box whole = box_of_slice(s);
    int64_t elements = box_elements(whole), copies = larger(1, s->copies);
    int64_t shares = elements * (int64_t)dtype_bytes(s->type) / SHARE_LEAST_BYTES;
    shares = larger(1, smaller(shares, copies));
    if (elements == 0) return 0;
    // Who begins changes from piece to piece, so that small ones do not all fall to the first copy.
    char name[TENSOR_NAME_BYTES + 64];
    snprintf(name, sizeof name, "%s@%" PRId64 ",%" PRId64, s->name, s->row, s->column);
    int64_t start = (int64_t)(hash_string(name) % (uint64_t)copies);
    int64_t share = (s->copy - start + copies) % copies;
    if (share >= shares) return 0;
    if (whole.rows >= ROWS_PER_SHARE * shares) {
        int64_t begin = border(whole.rows, share, shares);
        out[0] = whole;
        out[0].row += begin;
        out[0].rows = border(whole.rows, share + 1, shares) - begin;
        return 1;
    }
    int64_t begin = border(elements, share, shares);
    return box_range(whole, begin, border(elements, share + 1, shares) - begin, out);
}

int piece_name(const struct tensor *whole, struct box b, char out[TENSOR_NAME_BYTES],
               struct err *err) {
    int length;
    if (box_same(b, box_whole(whole)))
        length = snprintf(out, TENSOR_NAME_BYTES, "%s", whole->name);
    else if (whole->dims == 1)
        length = snprintf(out, TENSOR_NAME_BYTES, "%s@%" PRId64 ":%" PRId64, whole->name, b.row,
                          b.row + b.rows);
    else
        length = snprintf(out, TENSOR_NAME_BYTES, "%s@%" PRId64 ":%" PRId64 ",%" PRId64 ":%" PRId64,
                          whole->name, b.row, b.row + b.rows, b.column, b.column + b.columns);
    if (length < TENSOR_NAME_BYTES) return 0;
    return err_set(err, ERR_INTERNAL,
                   "the name of tensor %.90s... leaves no room for a place in it", whole->name);
}

// Reads "begin:end" and moves on behind it.
static int parse_range(const char **at, int64_t *begin, int64_t *count) {
    int64_t value[2];
    for (int i = 0; i < 2; i++) {
        char *end;
        if (!isdigit((unsigned char)**at)) return -1;
        errno = 0;
        value[i] = strtoll(*at, &end, 10);
        if (errno != 0) return -1;
        *at = end;
        if (i == 0 && *(*at)++ != ':') return -1;
    }
    if (value[1] < value[0]) return -1;
    *begin = value[0];
    *count = value[1] - value[0];
    return 0;
}

int piece_parse(const char *stored, bool *has_box, struct box *b) {
    const char *mark = strrchr(stored, '@'), *at = mark;
    *has_box = mark != NULL;
    if (!mark) return (int)strlen(stored);
    *b = (struct box){0, 0, 0, 1};
    at++;
    if (parse_range(&at, &b->row, &b->rows) != 0) return -1;
    if (*at == ',' && (at++, parse_range(&at, &b->column, &b->columns) != 0)) return -1;
    return *at == 0 ? (int)(mark - stored) : -1;
}
