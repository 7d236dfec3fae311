// How a stored matrix or vector is cut: boxes of rows and columns of the whole, and the names under
// which they stand in files. Inside the room only.
//
// A piece that is the whole tensor has its plain name; any other is named by its place,
// "embedding.weight@12:24,0:64" (rows 12 to 23, columns 0 to 63), a part of a vector
// "norm.weight@12:24".
#pragma once
#include "base/error.h"
#include "base/slice.h"
#include "base/tensor.h"
#include <stdbool.h>
#include <stdint.h>

struct box {
    int64_t row, rows, column, columns;
};

// The tensor as a matrix: a vector is a column, leading dimensions count as rows.
struct box box_whole(const struct tensor *t);
struct box box_of_slice(const struct tensor_slice *s);
static inline int64_t box_elements(struct box b) {
    return b.rows * b.columns;
}
bool box_same(struct box a, struct box b);
bool box_inside(struct box inner, struct box outer);
struct box box_intersect(struct box a, struct box b); // without elements where they do not meet
// The elements [first, first + count) of `whole` in row-major order, as up to three boxes; returns
// how many.
int box_range(struct box whole, int64_t first, int64_t count, struct box out[3]);
// "rows [0, 12), columns [0, 64)" for messages.
const char *box_text(struct box b, char out[120]);

// Do the boxes tile `target`? They must lie inside it and hold elements; they are reordered.
// *fault is a region that none (COVER_HOLE) or more than one (COVER_TWICE) of them holds.
enum box_cover { COVER_EXACT, COVER_HOLE, COVER_TWICE };
enum box_cover box_cover(struct box *boxes, int count, struct box target, struct box *fault);

// Which part of its piece a rank writes when `copies` ranks hold the same one: up to three boxes;
// returns how many. Every holder comes to the same division, from name, box and number alone.
int piece_share(const struct tensor_slice *s, struct box out[3]);

int piece_name(const struct tensor *whole, struct box box, char out[TENSOR_NAME_BYTES],
               struct err *err);
// The length of the tensor's name in a piece's. *has_box is false for a plain name. -1: malformed.
int piece_parse(const char *stored, bool *has_box, struct box *box);
