// Attention over a sequence that is spread over the ranks of a group (context parallelism), forward
// and backward. Every rank holds the queries, keys and values of `tokens` positions of the
// micro-batch (data/batch_share.h says which); a query may see keys of all ranks.
//
// CONTEXT_RING: blocks of keys and values go round. In step s a rank works on the block of rank
// index - s while that block travels on and the next one arrives. Outputs of the blocks are merged
// in FP32 by their log-sum-exp, always in that order. Backward, blocks go round again, and their
// gradients follow one step behind on a ring of their own, in FP32: each rank adds its share to
// what arrives, so the gradient of a block is summed from its owner on, once round the ring, and
// comes home with the last hop. Memory: a few blocks, O(tokens), whatever the length of the
// sequence. A block that no query of the rank sees costs no work, but travels on.
//
// CONTEXT_GATHER: keys and values of all ranks are gathered and brought into the order of the
// sequence, one call computes with them; backward their gradients are reduce-scattered in FP32, in
// rank order. Simple and indifferent to masks; every rank holds the keys and values of the whole
// micro-batch for the time of the call.
//
// Neither order depends on timing, threads or `overlap`: the same inputs give the same bits.
#pragma once
#include "comm/comm.h"
#include "device/device.h"
#include "engine/tags.h"

enum context_kind { CONTEXT_RING, CONTEXT_GATHER };

struct context_shape {
    enum context_kind kind;
    enum dtype type;
    int cp;         // ranks
    int64_t tokens; // positions of each rank
    int heads, kv_heads, head_dim;
};
// Of the largest shape; it serves smaller ones, and every window.
uint64_t context_workspace_bytes(struct device *device, const struct context_shape *shape,
                                 bool backward);

struct context_attention {
    struct context_shape shape;
    struct device *device;
    struct comm *comm;
    struct comm_stream *stream;   // the cp ranks; NULL when cp is 1
    int previous_rank, next_rank; // world ranks of the neighbours in the group, which is a ring
    bool overlap;                 // false: waits for an exchange before it computes
    const int32_t *positions;     // [cp][tokens] places in the micro-batch (batch_share.position)
    const int32_t *attend_from, *attend_to; // [tokens] of this rank's queries, in such places
    double scale;
    int32_t window;        // 0: none, see struct device_attention
    const void *q, *k, *v; // [tokens] rows, heads side by side
    int64_t q_stride, kv_stride;
    void *out;  // [tokens, heads head_dim]
    float *lse; // [heads, tokens]
    void *workspace;
    struct record_lane *lane; // gets the waits; may be NULL
};
void context_forward(const struct context_attention *args);

struct context_attention_backward {
    struct context_attention forward; // out and lse filled
    const void *dout;                 // [tokens, heads head_dim]
    void *dq, *dk, *dv;               // strides q_stride and kv_stride; overwritten
};
void context_backward(const struct context_attention_backward *args);
