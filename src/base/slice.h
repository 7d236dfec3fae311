// A piece of a stored matrix or vector that is spread over ranks, and the memory that holds it: a
// box of rows and columns of the whole, in logical coordinates (padding is never part of one).
#pragma once
#include "base/tensor.h"

struct tensor_slice {
    char name[TENSOR_NAME_BYTES]; // of the whole tensor
    enum dtype type;
    int dims;         // of the whole: 2, or 1 (then columns are 1)
    int64_t shape[2]; // of the whole
    int64_t row, rows, column, columns;
    int64_t stride; // elements between two rows of `data`
    void *data;
    // `copies` ranks hold the same piece and this one is number `copy`; each stored byte is
    // written by one of them, and the work is shared.
    int copy, copies;
};
