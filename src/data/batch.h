// One micro-batch as the engine sees it: a flat row of tokens. Rows of the batch, packed documents
// and windows need no special case: each query knows the half-open interval of keys that it may
// see.
#pragma once
#include <stdint.h>

struct batch {
    int32_t tokens;         // positions held, rows * context
    int32_t rows;           // sequences in it
    int32_t context;        // positions per row
    int32_t *input;         // [tokens] ids
    int32_t *target;        // [tokens] ids, or -1: not counted in the loss
    int32_t *position;      // [tokens] position inside the document (rotary angle, position table)
    int32_t *attend_from;   // [tokens] first key that query i may see (index into the flat row)
    int32_t *attend_to;     // [tokens] one past the last; i + 1 in causal training
    int64_t counted;        // targets >= 0
    int64_t non_pad;        // positions that hold a token of a document
    int64_t attended_pairs; // sum of attend_to - attend_from
};

// Bytes of the five arrays of a batch of `tokens` positions, and laying them out in `memory`.
uint64_t batch_bytes(int32_t tokens);
void batch_place(struct batch *batch, void *memory, int32_t rows, int32_t context);
