// What one rank stores of a state: its share of every slice, cut into part files. The same list
// serves a save straight from the trainer's memory and a snapshot, so both write the same bytes.
// Inside the room only.
#pragma once
#include "base/slice.h"
#include "checkpoint/manifest.h"
#include "checkpoint/pieces.h"

struct part_piece { // of a slice, to be stored by this rank
    const struct tensor_slice *slice;
    struct box box;
    int order; // in which they were given
};

struct part { // a file: pieces [first, first + count) behind a header
    char name[sizeof((struct manifest_part *)0)->name];
    int first, count;
};

struct part_list {
    int rank;
    struct part_piece *pieces;
    struct tensor *stored; // each piece as it stands in a part
    int piece_count;
    struct part *parts;
    int part_count;
};

extern const uint64_t part_default_bytes; // of a file, unless a piece is larger

// Refers to `slices`, which must stay.
int part_list_open(struct part_list *l, const struct tensor_slice *slices, int count, int rank,
                   int ranks, uint64_t part_bytes, struct err *err);
void part_list_close(struct part_list *l);
// Every tensor that the slices are of, as lists for the manifest; parts are added when their hashes
// are known.
json_t *part_list_tensors(const struct tensor_slice *slices, int count, struct err *err);

// Where a piece lies in the slice's memory: `rows` rows of `row_bytes`, `stride_bytes` apart. One
// row where it is dense.
struct part_rows {
    const char *from;
    uint64_t rows, row_bytes, stride_bytes;
};
struct part_rows part_piece_rows(const struct part_piece *piece);
