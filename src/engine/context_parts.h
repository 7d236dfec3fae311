// What the two ways of attention over a spread sequence share: places in the workspace, and calls
// of the device. A block is the keys and values of one rank, a row [k, v] per position.
#pragma once
#include "engine/context.h"

// Hands out pieces of a workspace, or only counts them (`memory` NULL).
struct context_carver {
    unsigned char *memory;
    uint64_t used;
};
void *context_take(struct context_carver *carver, uint64_t bytes);

struct context_ring {
    void *block[2];        // compute type: at work, and arriving
    float *out, *part;     // forward: [tokens, heads head_dim] merged, of one block
    float *part_lse;       // [heads, tokens]
    float *gradient[2];    // backward: of the block at work, and on its way
    float *block_gradient; // this rank's share
    float *dq, *dq_part;   // [tokens, heads head_dim]
    int32_t *from, *to;    // [tokens] visible keys in the block
    void *attention;       // workspace of the device
};
uint64_t context_ring_place(struct context_ring *ring, struct device *device,
                            const struct context_shape *shape, bool backward, void *memory);
void context_ring_forward(const struct context_attention *args);
void context_ring_backward(const struct context_attention_backward *args);

struct context_gather {
    void *gathered, *ordered;           // [cp tokens] blocks in rank order, in the sequence's order
    float *ordered_gradient, *gradient; // backward: the same, FP32
    float *own_gradient;                // [tokens] the sum for this rank's block
    float *dq;                          // [tokens, heads head_dim]
    void *scratch;                      // of the reduction
    void *attention;
};
uint64_t context_gather_place(struct context_gather *gather, struct device *device,
                              const struct context_shape *shape, bool backward, void *memory);
void context_gather_forward(const struct context_attention *args);
void context_gather_backward(const struct context_attention_backward *args);

static inline int64_t context_row(const struct context_shape *shape) { // elements of a block's row
    return 2 * (int64_t)shape->kv_heads * shape->head_dim;
}
static inline int64_t context_width(const struct context_shape *shape) {
    return (int64_t)shape->heads * shape->head_dim;
}
// This rank's keys and values, side by side.
void context_pack(const struct context_attention *args, void *block);
// Gradients of a block to where the caller wants those of k and v.
void context_unpack(const struct context_attention_backward *args, const float *gradient);
// Arguments of the device but for keys, intervals and results; keys are those of a block.
struct device_attention context_device(const struct context_attention *args, const void *block,
                                       int64_t keys);
