// What layers with experts add to the memory plan: buffers and products, from the rank's shape.
#include "engine/moe.h"
#include "engine/state.h"

static struct moe_shape shape_of(const struct model *model, const struct rank_shape *s) {
    const struct model_config *c = &model->config;
    int ep = s->ep > 0 ? s->ep : 1;
    struct moe_shape shape = {.type = s->compute,
                              .train = s->train,
                              .keeps_up = rank_keeps(c, s, ACT_UP),
                              .split_backward = s->split_backward,
                              .tokens = s->tokens,
                              .sequences = 1,
                              .hidden = c->hidden,
                              .expert_ffn = c->expert_ffn,
                              .shared_ffn = c->shared_ffn,
                              .experts = c->experts * ep,
                              .top_k = c->top_k,
                              .ep = ep,
                              .cp = 1};
    shape.wave = moe_wave_rows(&shape, 0);
    return shape;
}

static int first_layer(const struct model *model) {
    for (int l = 0; l < model->config.layers; l++)
        if (model_layer_has_experts(&model->config, l)) return l;
    return -1;
}

int engine_moe_prepare(struct device *device, const struct model *model,
                       const struct rank_shape *shape, const struct device_weight *weights,
                       int64_t tokens, uint64_t *bytes, struct err *err) {
    int layer = first_layer(model);
    if (layer < 0) return 0;
    struct moe_shape moe = shape_of(model, shape);
    moe.tokens = tokens;
    const struct param *p = &model->params[model_param(model, layer, PARAM_ROUTER)];
    struct device_weight router = {p->rows_padded, p->columns, DTYPE_F32, NULL, NULL, NULL};
    const struct device_weight *up = &weights[model_param(model, layer, PARAM_EXPERT_UP)];
    uint64_t most = 0;
    if (moe_prepare(device, &moe, &router, up, up + 1, NULL, NULL, &most, err) != 0) return -1;
    if (most > *bytes) *bytes = most;
    return 0;
}

int engine_moe_enumerate(struct engine *e, struct rank_expert_buffer *buffers,
                         struct moe_shape *out) {
    struct moe_shape shape = shape_of(e->model, &e->shape);
    shape.sequences = e->options.rows;
    shape.cp = e->cp;
    shape.wave = moe_wave_rows(&shape, e->options.experts.wave);
    *out = shape;
    if (first_layer(e->model) < 0) return 0;
    uint64_t router = (uint64_t)shape.experts * (uint64_t)shape.hidden * sizeof(float);
    int count = 0;
    for (; count < MOE_BUFFER_COUNT; count++) {
        static const enum rank_expert_place places[] = {[MOE_KEPT] = RANK_EXPERT_KEPT,
                                                        [MOE_FLOW] = RANK_EXPERT_FLOW,
                                                        [MOE_ONCE] = RANK_EXPERT_ONCE};
        buffers[count] = (struct rank_expert_buffer){
            .name = moe_buffer_name((enum moe_buffer)count),
            .bytes = moe_buffer_bytes(&shape, (enum moe_buffer)count),
            .place = places[moe_buffer_place(&shape, (enum moe_buffer)count)]};
    }
    // Behind them the router's weight in FP32, where the stored one is rounded.
    buffers[count++] = (struct rank_expert_buffer){
        "router weight", e->type == DTYPE_F32 ? 0 : router, RANK_EXPERT_ONCE};
    return count;
}
