// Flash attention of the CPU (Dao et al. 2022, 2023): scores are made, weighed and used tile by
// tile and never stored.
//
// The queries are cut into segments: maximal runs whose key intervals overlap from one query to the
// next. Packed documents and the rows of a batch are segments of their own, because their intervals
// are disjoint. Every tile border counts from its segment's first query and first key, so nothing
// outside a segment can change a bit of it. A unit is one segment (forward: at most
// ATTENTION_UNIT_QUERIES queries of it) of one key head; it is one thread's work from beginning to
// end, so the number of threads changes no bit either.
//
// Two kinds of arithmetic share one template (attention_kernel.h): FP32, for every instruction set
// and both types; and bf16 pairs with FP32 sums, for AVX512_BF16.
#pragma once
#include "device/device.h"

enum {
    ATTENTION_TILE = 64,           // queries and keys of a tile
    ATTENTION_UNIT_QUERIES = 1024, // of a forward unit
    ATTENTION_FEW_QUERIES = 4,     // at most so many in a unit: keys are read in place
    ATTENTION_FEW_ROWS = 64        // queries x query heads per key head of such a unit
};

struct attention_unit {
    int32_t query_begin, query_end;
    int32_t key_origin; // first key of the segment; tiles begin at key_origin + n ATTENTION_TILE
    int32_t key_begin, key_end; // keys that these queries see; key_begin is a tile border
};

// How the parts of a thread's scratch are laid out; an element ("unit of depth") is 4 bytes: one
// float or two bf16.
struct attention_shape {
    int head_dim;
    int depth;       // elements along head_dim: head_dim, or head_dim / 2 for pairs
    int width;       // head_dim rounded up to whole vectors of 16 floats
    int row;         // elements of a row of Q and dO: width, or depth for pairs
    int group;       // query heads per key head
    int64_t keys;    // most keys of a unit, whole tiles
    int64_t queries; // most queries of a unit, whole tiles
    bool pairs;
};

struct attention_job {
    const struct device_attention *args;
    const struct device_attention_backward *backward; // NULL forward
    enum dtype out_type;                              // of what is written
    int64_t dq_stride;
    const int32_t *from, *to; // [queries] intervals after the window was applied
    struct attention_shape shape;
};

typedef void attention_unit_function(const struct attention_job *job,
                                     const struct attention_unit *unit, int kv_head, void *scratch);

// One per instruction set; `pairs` exists only where the processor multiplies bf16 pairs.
attention_unit_function attention_forward_portable, attention_backward_portable,
    attention_few_portable;
attention_unit_function attention_forward_avx2, attention_backward_avx2, attention_few_avx2;
attention_unit_function attention_forward_avx512, attention_backward_avx512, attention_few_avx512;
attention_unit_function attention_forward_avx512bf16, attention_backward_avx512bf16;

bool attention_can_pair(void); // this processor has the instructions for pairs
// Sets attention_forward, attention_backward and attention_workspace_bytes of a device whose state
// holds its instruction set; and attention_pairs of that state, which a test may change.
void attention_fill(struct device *device);
