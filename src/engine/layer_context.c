// Attention of a layer: of a whole sequence, or of one that is spread over cp ranks (context.h).
#include "engine/state.h"

void layer_attend(struct engine *e, int layer, const struct batch *batch) {
    struct device_attention attention = layer_attention(e, layer, batch);
    e->device->attention_forward(e->device, &attention);
}

void layer_attend_backward(struct engine *e, int layer, const struct batch *batch, const void *dout,
                           void *dqkv) {
    const struct model_config *c = &e->model->config;
    size_t element = dtype_bytes(e->type);
    char *dq = dqkv;
    struct device_attention_backward attention = {
        .forward = layer_attention(e, layer, batch),
        .dout = dout,
        .dq = dq,
        .dk = dq + (size_t)model_q_width(c) * element,
        .dv = dq + (size_t)(model_q_width(c) + model_kv_width(c)) * element,
        .workspace = e->single[SINGLE_KERNELS]};
    e->device->attention_backward(e->device, &attention);
}

uint64_t layer_context_bytes(const struct engine *e) {
    (void)e;
    return 0;
}

int layer_context_share(struct engine *e, struct batch *const *batches, int count,
                        struct err *err) {
    (void)err;
    e->batches = batches;
    e->batch_count = count;
    return 0;
}
