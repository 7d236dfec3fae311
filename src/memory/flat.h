// Places of parameters in a rank's flat buffers, and how those are cut into buckets and shards.
// Masters, moments, gradients and weights of a rank are arrays of one common order; sharded states
// (ZeRO) are contiguous parts of each bucket.
//
// Two kinds of parameters: matrices (tables included) and vectors (norm weights, biases), which are
// few, are read in FP32 by every rank and stay whole on every rank whatever the stage. Vectors fill
// the last bucket of their group.
//
// Grid. The gradient norm sums blocks of RANK_NORM_BLOCK elements counted from each parameter's
// start. A parameter of a block or more begins on a multiple of the block; smaller ones never lie
// across one. Buckets are padded with zeros to size x block, so that shard borders never cut a
// block, and the norm's summands are the same however states are sharded.
#pragma once
#include "base/error.h"
#include "layout/layout.h"
#include <stdbool.h>
#include <stdint.h>

enum flat_group {
    FLAT_DENSE,
    FLAT_EXPERT,
    FLAT_GROUPS
}; // reduced over GROUP_DATA; over GROUP_EXPERT_DATA

struct flat_bucket {
    int64_t begin, end; // elements in the flat order; (end - begin) divides by shards x block
    enum flat_group group;
    bool vectors;
    bool tied;  // the table of a tied head, alone: final, and reduced, at the step's end only
    int unit;   // -1: of several units; else the unit that it belongs to
    int shards; // ranks that share it; 1 for vectors
    int64_t shard_begin; // of this rank's shard in the array of all its shards
};
// A unit is what ZeRO-3 gathers at once: local layer l is unit l; the ends that this rank holds are
// units of their own (embedding with position table; final norm with head, also where that is the
// copy of a tied table).
struct flat {
    int64_t *offset;          // [params] first element in the flat order
    int *bucket_of, *unit_of; // [params]
    struct flat_bucket *buckets;
    int bucket_count, unit_count;
    int unit_embedding, unit_head;            // -1: not on this rank
    int64_t elements;                         // of all buckets
    int64_t matrix_elements, vector_elements; // logical, without padding
    int64_t shard_elements;                   // of this rank's shards of all buckets
    int64_t largest_bucket;                   // of matrices; elements with padding
    int64_t vectors_begin[FLAT_GROUPS], vectors_end[FLAT_GROUPS]; // of the vectors' buckets
};

struct flat_options {
    int zero;
    int shards[FLAT_GROUPS]; // size of GROUP_SHARD and GROUP_EXPERT_SHARD; 1: buckets only serve
                             // the reduction (zero 0, or a caller that wants a bucket per unit
                             // without sharding); they are padded for `ranks`
    int ranks[FLAT_GROUPS];  // size of GROUP_DATA and GROUP_EXPERT_DATA
    int index[FLAT_GROUPS];  // of this rank in its shard group
    uint64_t bucket_bytes;   // of FP32 gradients; zero >= 2: one bucket per unit
    bool by_unit;            // one bucket per unit at the other stages too
};
// As the layout says for a rank.
struct flat_options flat_options_for(const struct layout *layout, int rank, uint64_t bucket_bytes);
// Buckets stand in the order in which backward finishes them: head, layers from the last to the
// first, embedding, the table of a tied head, then vectors.
int flat_open(struct flat *flat, const struct local_model *local,
              const struct flat_options *options, struct err *err);
void flat_close(struct flat *flat);
// This rank's shard of a bucket, in flat elements.
void flat_shard(const struct flat *flat, int bucket, int index, int64_t *begin, int64_t *end);
