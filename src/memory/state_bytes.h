// The bytes of a rank's states as its plan has them, sorted the way that formulas count: matrices
// of the padded flat order (P elements, of which the rank's shards are P / N), vectors, and what
// exists only while something is on its way.
#pragma once
#include "memory/rank.h"

struct state_bytes {
    int64_t matrices, shard, vectors; // elements: P, this rank's shards of it, padded vectors
    // of the matrices: 2, 4, 4 and 8 bytes for each element of P, or of the shard, in bf16 mode
    uint64_t weights, gradients, masters, moments;
    uint64_t vector_bytes; // of the same arrays, whole on every rank
    uint64_t transient;    // gathered weights, gradients of units, contributions of other ranks
};

// Reads of `shape` what concerns states: compute, tp, flat, zero, ranks, ep, types, and how
// gradients are reduced. Packed copies and workspaces are no states.
int state_bytes(struct state_bytes *out, const struct local_model *local,
                const struct rank_shape *shape, struct err *err);
