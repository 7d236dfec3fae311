// Attention over a spread sequence: what ring and gather share, see context.h.
#include "base/arena.h"
#include "engine/context_parts.h"

void *context_take(struct context_carver *carver, uint64_t bytes) {
    void *piece = carver->memory ? carver->memory + carver->used : NULL;
    carver->used += arena_round(bytes);
    return piece;
}

void context_pack(const struct context_attention *a, void *block) {
    struct device *d = a->device;
    const struct context_shape *s = &a->shape;
    int64_t row = context_row(s), half = row / 2;
    void *values = (char *)block + (size_t)half * dtype_bytes(s->type);
    d->convert_rows(d, s->tokens, half, a->k, s->type, a->kv_stride, block, s->type, row);
    d->convert_rows(d, s->tokens, half, a->v, s->type, a->kv_stride, values, s->type, row);
}

void context_unpack(const struct context_attention_backward *b, const float *gradient) {
    const struct context_attention *a = &b->forward;
    struct device *d = a->device;
    const struct context_shape *s = &a->shape;
    int64_t row = context_row(s), half = row / 2;
    d->convert_rows(d, s->tokens, half, gradient, DTYPE_F32, row, b->dk, s->type, a->kv_stride);
    d->convert_rows(d, s->tokens, half, gradient + half, DTYPE_F32, row, b->dv, s->type,
                    a->kv_stride);
}

struct device_attention context_device(const struct context_attention *a, const void *block,
                                       int64_t keys) {
    const struct context_shape *s = &a->shape;
    return (struct device_attention){
        .type = s->type,
        .queries = s->tokens,
        .keys = keys,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .scale = a->scale,
        .q = a->q,
        .k = block,
        .v = (const char *)block + (size_t)(context_row(s) / 2) * dtype_bytes(s->type),
        .q_stride = a->q_stride,
        .kv_stride = context_row(s),
        .out_stride = context_width(s),
    };
}

// ---- one rank: the device alone ----------------------------------------------------------------

static struct device_attention alone(const struct context_attention *a) {
    struct device_attention one = context_device(a, a->k, a->shape.tokens);
    one.v = a->v;
    one.kv_stride = a->kv_stride;
    one.window = a->window;
    one.attend_from = a->attend_from;
    one.attend_to = a->attend_to;
    one.out = a->out;
    one.lse = a->lse;
    one.workspace = a->workspace;
    return one;
}

static uint64_t alone_bytes(struct device *device, const struct context_shape *s, bool backward) {
    struct device_attention one = {.type = s->type,
                                   .queries = s->tokens,
                                   .keys = s->tokens,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim};
    return device->attention_workspace_bytes(device, &one, backward);
}

// ---- entry -------------------------------------------------------------------------------------

uint64_t context_workspace_bytes(struct device *device, const struct context_shape *shape,
                                 bool backward) {
    struct context_ring ring;
    struct context_gather gather;
    if (shape->cp == 1) return alone_bytes(device, shape, backward);
    return shape->kind == CONTEXT_RING
               ? context_ring_place(&ring, device, shape, backward, NULL)
               : context_gather_place(&gather, device, shape, backward, NULL);
}

void context_forward(const struct context_attention *a) {
    if (a->shape.cp == 1) {
        struct device_attention one = alone(a);
        a->device->attention_forward(a->device, &one);
    } else if (a->shape.kind == CONTEXT_RING) {
        context_ring_forward(a);
    } else {
        context_gather_forward(a);
    }
}

void context_backward(const struct context_attention_backward *b) {
    const struct context_attention *a = &b->forward;
    if (a->shape.cp == 1) {
        struct device_attention_backward one = {.forward = alone(a),
                                                .dout = b->dout,
                                                .dq = b->dq,
                                                .dk = b->dk,
                                                .dv = b->dv,
                                                .workspace = a->workspace};
        a->device->attention_backward(a->device, &one);
    } else if (a->shape.kind == CONTEXT_RING) {
        context_ring_backward(b);
    } else {
        context_gather_backward(b);
    }
}
