// Attention of a layer: of whole sequences, or of sequences that are spread over cp ranks
// (context.h). With several cp ranks every rank is handed whole sequences and computes with its
// part of them, which data/batch_share.h cuts.
#include "data/batch_share.h"
#include "engine/context.h"
#include "engine/state.h"

static uint64_t round_64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static int32_t full_tokens(const struct engine *e) {
    return (int32_t)(e->options.rows * e->options.context);
}

uint64_t layer_context_batches_bytes(const struct engine *e) {
    if (e->cp == 1) return 0;
    int32_t full = full_tokens(e);
    return (uint64_t)e->options.micro_batches *
           (round_64(batch_bytes(full / e->cp)) + round_64(batch_share_bytes(full, e->cp)));
}

int layer_context_share(struct engine *e, struct batch *const *batches, int count,
                        struct err *err) {
    e->batches = batches;
    e->batch_count = count;
    if (e->cp == 1) return 0;
    int32_t full = full_tokens(e);
    unsigned char *at = e->single[SINGLE_BATCHES];
    enum batch_balance balance =
        e->parallel.per_document ? BATCH_BALANCE_DOCUMENT : BATCH_BALANCE_ROW;
    for (int m = 0; m < count; m++) {
        const struct batch *whole = batches[m];
        struct batch *own = &e->shared[m];
        if (whole->context % (2 * e->cp) != 0) return batch_share_check(whole->context, e->cp, err);
        batch_place(own, at, whole->rows, whole->context / e->cp);
        at += round_64(batch_bytes(full / e->cp));
        if (batch_share_make(&e->shares[m], whole, e->cp, e->cp_index, balance, at, err) != 0)
            return -1;
        at += round_64(batch_share_bytes(full, e->cp));
        batch_share_take(&e->shares[m], whole, own);
        e->shared_list[m] = own;
    }
    e->batches = e->shared_list;
    return 0;
}

static struct context_shape shape_of(const struct engine *e, int64_t tokens) {
    const struct model_config *c = &e->model->config;
    return (struct context_shape){.kind = e->parallel.gather_keys ? CONTEXT_GATHER : CONTEXT_RING,
                                  .type = e->type,
                                  .cp = e->cp,
                                  .tokens = tokens,
                                  .heads = c->heads,
                                  .kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim};
}

uint64_t layer_context_bytes(const struct engine *e) {
    if (e->cp == 1) return 0;
    struct context_shape shape = shape_of(e, e->shape.tokens);
    uint64_t forward = context_workspace_bytes(e->device, &shape, false);
    if (!e->options.train) return forward;
    uint64_t backward = context_workspace_bytes(e->device, &shape, true);
    return forward > backward ? forward : backward;
}

static struct context_attention spread(struct engine *e, int layer, const struct batch *batch) {
    struct device_attention own = layer_attention(e, layer, batch);
    return (struct context_attention){.shape = shape_of(e, batch->tokens),
                                      .device = e->device,
                                      .comm = e->comm,
                                      .stream = e->stream[GROUP_CP],
                                      .previous_rank = e->cp_previous,
                                      .next_rank = e->cp_next,
                                      .overlap = !e->parallel.no_overlap,
                                      .positions = e->shares[batch - e->shared].position,
                                      .attend_from = batch->attend_from,
                                      .attend_to = batch->attend_to,
                                      .scale = own.scale,
                                      .window = own.window,
                                      .q = own.q,
                                      .k = own.k,
                                      .v = own.v,
                                      .q_stride = own.q_stride,
                                      .kv_stride = own.kv_stride,
                                      .out = own.out,
                                      .lse = own.lse,
                                      .workspace = e->single[SINGLE_CONTEXT],
                                      .lane = e->device->lane};
}

void layer_attend(struct engine *e, int layer, const struct batch *batch) {
    if (e->cp > 1) {
        struct context_attention attention = spread(e, layer, batch);
        context_forward(&attention);
        return;
    }
    struct device_attention attention = layer_attention(e, layer, batch);
    e->device->attention_forward(e->device, &attention);
}

void layer_attend_backward(struct engine *e, int layer, const struct batch *batch, const void *dout,
                           void *dqkv) {
    const struct model_config *c = &e->model->config;
    size_t element = dtype_bytes(e->type);
    char *dq = dqkv, *dk = dq + (size_t)model_q_width(c) * element;
    char *dv = dk + (size_t)model_kv_width(c) * element;
    if (e->cp > 1) {
        struct context_attention_backward attention = {
            .forward = spread(e, layer, batch), .dout = dout, .dq = dq, .dk = dk, .dv = dv};
        context_backward(&attention);
        return;
    }
    struct device_attention_backward attention = {.forward = layer_attention(e, layer, batch),
                                                  .dout = dout,
                                                  .dq = dq,
                                                  .dk = dk,
                                                  .dv = dv,
                                                  .workspace = e->single[SINGLE_KERNELS]};
    e->device->attention_backward(e->device, &attention);
}
