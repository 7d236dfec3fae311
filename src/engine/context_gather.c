// Attention over gathered keys and values, see context.h.
#include "engine/context_parts.h"
#include <string.h>

uint64_t context_gather_place(struct context_gather *gather, struct device *device,
                              const struct context_shape *s, bool backward, void *memory) {
    struct context_carver c = {.memory = memory};
    uint64_t block = (uint64_t)(s->tokens * context_row(s)), all = (uint64_t)s->cp * block;
    struct device_attention whole = {.type = s->type,
                                     .queries = s->tokens,
                                     .keys = s->tokens * s->cp,
                                     .heads = s->heads,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->head_dim};
    *gather = (struct context_gather){.scratch = NULL};
    gather->gathered = context_take(&c, all * dtype_bytes(s->type));
    gather->ordered = context_take(&c, all * dtype_bytes(s->type));
    if (backward) {
        gather->ordered_gradient = context_take(&c, all * sizeof(float));
        gather->gradient = context_take(&c, all * sizeof(float));
        gather->own_gradient = context_take(&c, block * sizeof(float));
        gather->dq = context_take(&c, (uint64_t)(s->tokens * context_width(s)) * sizeof(float));
        // what comm_reduce_scatter_scratch says, which needs an open stream
        gather->scratch = context_take(&c, (all - block) * sizeof(float));
    }
    gather->attention =
        context_take(&c, device->attention_workspace_bytes(device, &whole, backward));
    return c.used;
}

// Rows in rank order from, or to, the order of the sequence.
static void order_rows(const struct context_attention *a, const void *from, void *to, size_t size,
                       bool to_ranks) {
    size_t row = (size_t)context_row(&a->shape) * size;
    int64_t count = a->shape.cp * a->shape.tokens;
    const char *source = from;
    char *target = to;
#pragma omp parallel for schedule(static) num_threads(a->device->threads)
    for (int64_t i = 0; i < count; i++) {
        size_t here = (size_t)i * row, there = (size_t)a->positions[i] * row;
        memcpy(target + (to_ranks ? here : there), source + (to_ranks ? there : here), row);
    }
}

static struct device_attention gather_keys(const struct context_attention *a,
                                           const struct context_gather *gather) {
    const struct context_shape *s = &a->shape;
    size_t size = dtype_bytes(s->type);
    uint64_t bytes = (uint64_t)(s->tokens * context_row(s)) * size;
    void *own = (char *)gather->gathered + (uint64_t)comm_stream_index(a->stream) * bytes;
    context_pack(a, own);
    comm_wait(comm_all_gather(a->stream, own, gather->gathered, bytes), a->lane);
    order_rows(a, gather->gathered, gather->ordered, size, false);
    struct device_attention whole = context_device(a, gather->ordered, s->cp * s->tokens);
    whole.window = a->window;
    whole.attend_from = a->attend_from;
    whole.attend_to = a->attend_to;
    whole.out = a->out;
    whole.lse = a->lse;
    whole.workspace = gather->attention;
    return whole;
}

void context_gather_forward(const struct context_attention *a) {
    struct context_gather gather;
    context_gather_place(&gather, a->device, &a->shape, false, a->workspace);
    struct device_attention whole = gather_keys(a, &gather);
    a->device->attention_forward(a->device, &whole);
}

void context_gather_backward(const struct context_attention_backward *b) {
    const struct context_attention *a = &b->forward;
    const struct context_shape *s = &a->shape;
    struct context_gather gather;
    context_gather_place(&gather, a->device, s, true, a->workspace);
    struct device_attention_backward whole = {.forward = gather_keys(a, &gather),
                                              .dout = b->dout,
                                              .dq = gather.dq,
                                              .dk = gather.ordered_gradient,
                                              .dv = gather.ordered_gradient + context_row(s) / 2,
                                              .dq_stride = context_width(s),
                                              .gradients_f32 = true,
                                              .workspace = gather.attention};
    struct device *d = a->device;
    d->attention_backward(d, &whole);
    d->convert_rows(d, s->tokens, context_width(s), gather.dq, DTYPE_F32, context_width(s), b->dq,
                    s->type, a->q_stride);
    order_rows(a, gather.ordered_gradient, gather.gradient, sizeof(float), true);
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    comm_wait(comm_reduce_scatter(a->stream, gather.gradient, gather.scratch, gather.own_gradient,
                                  s->tokens * context_row(s), &sum),
              a->lane);
    context_unpack(b, gather.own_gradient);
}
