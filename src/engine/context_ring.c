// Ring attention, see context.h. (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers
// for Near-Infinite Context", 2023; backward from the final log-sum-exp as in flash attention, so
// blocks do not depend on each other.)
#include "engine/context_parts.h"

uint64_t context_ring_place(struct context_ring *ring, struct device *device,
                            const struct context_shape *s, bool backward, void *memory) {
    struct context_carver c = {.memory = memory};
    uint64_t tokens = (uint64_t)s->tokens, row = tokens * (uint64_t)context_row(s);
    uint64_t wide = tokens * (uint64_t)context_width(s) * sizeof(float);
    struct device_attention block = {.type = s->type,
                                     .queries = s->tokens,
                                     .keys = s->tokens,
                                     .heads = s->heads,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->head_dim};
    *ring = (struct context_ring){.out = NULL};
    for (int i = 0; i < 2; i++) ring->block[i] = context_take(&c, row * dtype_bytes(s->type));
    ring->from = context_take(&c, tokens * sizeof(int32_t));
    ring->to = context_take(&c, tokens * sizeof(int32_t));
    if (!backward) {
        if (s->type != DTYPE_F32) ring->out = context_take(&c, wide); // else the caller's
        ring->part = context_take(&c, wide);
        ring->part_lse = context_take(&c, (uint64_t)s->heads * tokens * sizeof(float));
    } else {
        for (int i = 0; i < 2; i++) ring->gradient[i] = context_take(&c, row * sizeof(float));
        ring->block_gradient = context_take(&c, row * sizeof(float));
        ring->dq = context_take(&c, wide);
        ring->dq_part = context_take(&c, wide);
    }
    ring->attention = context_take(&c, device->attention_workspace_bytes(device, &block, backward));
    return c.used;
}

// ---- which keys of a block a query sees --------------------------------------------------------

// Intervals of the micro-batch, with the window applied, become intervals of the block's positions.
// Those ascend, so what lies in an interval is contiguous; intervals rise from query to query, so
// one walk finds all. False: no query sees any.
static bool cut_intervals(const struct context_attention *a, int owner,
                          const struct context_ring *ring) {
    int64_t tokens = a->shape.tokens, low = 0, high = 0;
    const int32_t *position = a->positions + owner * tokens;
    bool any = false;
    for (int64_t i = 0; i < tokens; i++) {
        int32_t from = a->attend_from[i], to = a->attend_to[i];
        if (a->window > 0 && to - from > a->window) from = to - a->window;
        while (low < tokens && position[low] < from) low++;
        while (high < tokens && position[high] < to) high++;
        ring->from[i] = (int32_t)low;
        ring->to[i] = (int32_t)(high > low ? high : low);
        any = any || high > low;
    }
    return any;
}

// ---- what travels ------------------------------------------------------------------------------

enum { KEYS, GRADIENTS }; // two rings

struct hop {
    struct comm_event sent, received;
};

static struct hop hop_begin(const struct context_attention *a, int ring, int step, const void *own,
                            void *next, uint64_t bytes) {
    struct hop hop = {.received = {0}};
    int tag = TAG_CONTEXT + 2 * step + ring;
    if (next) hop.received = comm_receive(a->comm, a->previous_rank, tag, next, bytes);
    if (own) hop.sent = comm_send(a->comm, a->next_rank, tag, own, bytes);
    return hop;
}

static void hop_end(const struct context_attention *a, const struct hop *hop) {
    comm_wait(hop->received, a->lane);
    comm_wait(hop->sent, a->lane);
}

// The block at work in `step` goes on and that of the next step arrives.
static struct hop pass_keys(const struct context_attention *a, const struct context_ring *ring,
                            int step) {
    uint64_t bytes =
        (uint64_t)(a->shape.tokens * context_row(&a->shape)) * dtype_bytes(a->shape.type);
    if (step + 1 == a->shape.cp) return (struct hop){.received = {0}};
    struct hop hop =
        hop_begin(a, KEYS, step, ring->block[step % 2], ring->block[(step + 1) % 2], bytes);
    if (!a->overlap) hop_end(a, &hop);
    return hop;
}

static int owner_in(const struct context_attention *a, int step) {
    int index = comm_stream_index(a->stream), cp = a->shape.cp;
    return (index - step + cp) % cp;
}

static struct device_attention block_attention(const struct context_attention *a,
                                               const struct context_ring *ring, int step) {
    struct device_attention block = context_device(a, ring->block[step % 2], a->shape.tokens);
    block.attend_from = ring->from;
    block.attend_to = ring->to;
    block.workspace = ring->attention;
    return block;
}

// ---- forward -----------------------------------------------------------------------------------

void context_ring_forward(const struct context_attention *a) {
    struct device *d = a->device;
    const struct context_shape *s = &a->shape;
    struct context_ring ring;
    context_ring_place(&ring, d, s, false, a->workspace);
    if (!ring.out) ring.out = a->out;
    context_pack(a, ring.block[0]);
    for (int step = 0; step < s->cp; step++) {
        struct hop hop = pass_keys(a, &ring, step);
        // The first block is computed in any case: it gives queries that see nothing their zeros.
        if (cut_intervals(a, owner_in(a, step), &ring) || step == 0) {
            struct device_attention block = block_attention(a, &ring, step);
            block.out_f32 = true;
            block.out = step == 0 ? ring.out : ring.part;
            block.lse = step == 0 ? a->lse : ring.part_lse;
            d->attention_forward(d, &block);
            struct device_attention_merge merge = {.queries = s->tokens,
                                                   .heads = s->heads,
                                                   .head_dim = s->head_dim,
                                                   .out = ring.out,
                                                   .lse = a->lse,
                                                   .part = ring.part,
                                                   .part_lse = ring.part_lse};
            if (step > 0) d->attention_merge(d, &merge);
        }
        hop_end(a, &hop);
    }
    if (s->type != DTYPE_F32)
        d->convert(d, s->tokens * context_width(s), ring.out, DTYPE_F32, a->out, s->type);
}

// ---- backward ----------------------------------------------------------------------------------

// Gradients of the block at work: this rank's share to `to`, that of the queries to `dq`.
static void block_backward(const struct context_attention_backward *b,
                           const struct context_ring *ring, int step, float *to, float *dq) {
    const struct context_attention *a = &b->forward;
    const struct context_shape *s = &a->shape;
    struct device_attention_backward block = {.forward = block_attention(a, ring, step),
                                              .dout = b->dout,
                                              .dq = dq,
                                              .dk = to,
                                              .dv = to + context_row(s) / 2,
                                              .dq_stride = context_width(s),
                                              .gradients_f32 = true,
                                              .workspace = ring->attention};
    block.forward.out = a->out;
    block.forward.lse = a->lse;
    a->device->attention_backward(a->device, &block);
}

void context_ring_backward(const struct context_attention_backward *b) {
    const struct context_attention *a = &b->forward;
    struct device *d = a->device;
    const struct context_shape *s = &a->shape;
    int64_t elements = s->tokens * context_row(s), width = context_width(s);
    uint64_t bytes = (uint64_t)elements * sizeof(float);
    struct context_ring ring;
    struct hop gradients[2] = {{.received = {0}}}; // on their way out of, or into, gradient[i]
    context_ring_place(&ring, d, s, true, a->workspace);
    context_pack(a, ring.block[0]);
    for (int step = 0; step < s->cp; step++) {
        struct hop keys = pass_keys(a, &ring, step), *hop = &gradients[step % 2];
        float *sum = ring.gradient[step % 2];
        hop_end(a, hop); // what left this place two steps ago
        // The previous rank has worked on this block in its last step; its sum follows.
        if (step > 0) *hop = hop_begin(a, GRADIENTS, step - 1, NULL, sum, bytes);
        if (!a->overlap) { // all ranks have posted their receives: nobody waits for a send in vain
            hop_end(a, hop);
            hop_end(a, &gradients[(step + 1) % 2]);
        }
        bool seen = cut_intervals(a, owner_in(a, step), &ring);
        if (step == 0) {
            block_backward(b, &ring, step, sum, ring.dq);
        } else if (seen) {
            block_backward(b, &ring, step, ring.block_gradient, ring.dq_part);
            d->add(d, DTYPE_F32, s->tokens * width, ring.dq, ring.dq_part, ring.dq);
        }
        hop_end(a, hop);
        if (step > 0 && seen) d->add(d, DTYPE_F32, elements, sum, ring.block_gradient, sum);
        *hop = hop_begin(a, GRADIENTS, step, sum, NULL, bytes);
        hop_end(a, &keys);
    }
    int home = s->cp % 2; // the next rank's last block is this rank's
    hop_end(a, &gradients[home]);
    gradients[home] = hop_begin(a, GRADIENTS, s->cp - 1, NULL, ring.gradient[home], bytes);
    d->convert_rows(d, s->tokens, width, ring.dq, DTYPE_F32, width, b->dq, s->type, a->q_stride);
    hop_end(a, &gradients[home]);
    context_unpack(b, ring.gradient[home]);
    hop_end(a, &gradients[1 - home]);
}
