// How a rank holds weights, masters, gradients and moments: which arrays exist, of which type, and
// how long they are. The enumeration of buffers and the engine both follow from this.
//
// Whole or sharded. Masters and moments are sharded from ZeRO 1 on, accumulated gradients from
// ZeRO 2 on, weights with ZeRO 3: such an array holds the rank's shards of all buckets, one behind
// the other. Vectors are always whole.
//
// Gradients are made either in one FP32 array that lasts for the step ("whole"), or by unit: those
// of a unit's matrices are made in a place that units share, and move on after each micro-batch
// into accumulators of their own. By unit: from ZeRO 2 on, when every micro-batch is reduced, and
// when gradients are kept in BF16. Vectors and a tied table keep FP32 gradients for the whole step
// in either case ("late" buckets: final at the step's end only).
#pragma once
#include "memory/rank.h"

enum { STATE_WIRE_PLACES = 2 };

struct rank_state {
    int zero;         // 0 where nothing has more than one shard
    bool by_unit;     // how gradients are made
    bool every_batch; // by unit, and reduced over ranks after each micro-batch
    bool masters;     // FP32 masters apart from the weights
    bool gathers;     // weights are gathered after an update (zero 1, 2) or before use (zero 3)
    bool accumulators_sharded;
    enum dtype stored;     // of the weights array
    enum dtype gathered;   // of weights on the wire
    enum dtype accumulate; // of accumulators
    enum dtype wire;       // of gradients on the wire
    int64_t late_elements;
    int64_t unit_elements; // of the largest unit's buckets that are not late
    int64_t wire_elements; // of the largest bucket whose contributions are rounded
    int gradient_places;   // by unit
    // ZeRO 3: a place holds a gathered unit, packed copies of its matrices, and what arrives in a
    // narrower type
    int weight_places;
    uint64_t place_weights_bytes, place_packed_bytes, place_wire_bytes;
    // scratch of sums over ranks; partial: over tp and over GROUP_KV, each
    uint64_t reduce_bytes[FLAT_GROUPS], replica_bytes[FLAT_GROUPS], partial_bytes;
    int64_t partial_elements;         // of vectors that are added over tp ranks
    int64_t norm_blocks[FLAT_GROUPS]; // of local parameters
    uint64_t norm_scratch_bytes;
};
void rank_state_describe(struct rank_state *state, const struct local_model *local,
                         const struct rank_shape *shape, const uint64_t *pack_forward,
                         const uint64_t *pack_backward);

// Places in SINGLE_SEALS, in words of 8 bytes; -1: not kept. Blocks are those of the norm, counted
// from each parameter's start: a seal belongs to one parameter however shards are cut.
struct rank_seals {
    int64_t blocks;                 // of the local parameters: dense, then of experts
    int64_t lookup_blocks;          // of the look-up's own accumulator
    int64_t state_blocks;           // at most so many hold something of the rank's own pieces
    int64_t states;                 // [3][state_blocks] x RANK_SEAL_WORDS: after the last update,
                                    // as the next one found them, and as it left them
    int64_t gradients, lookup;      // [blocks], [lookup_blocks]
    int64_t weights;                // [blocks of the flat order] of gathered weights
    int64_t packed;                 // [params][2] of packed copies
    int64_t products, widest;       // rows of a sampled product, of so many elements at most
    int64_t scratch, scratch_words; // as many as the largest comparison needs
    int64_t words;
};
enum { RANK_SEAL_WORDS = 4, RANK_SEAL_ROWS = 2 };
void rank_seals_describe(struct rank_seals *seals, const struct rank_state *state,
                         const struct local_model *local, const struct rank_shape *shape);
bool rank_state_late(const struct flat_bucket *bucket);
uint64_t rank_state_place_bytes(const struct rank_state *state); // of one place of weights
