// The two ends of the model: the look-up below the layers; final norm, head and loss above them.
//
// Head and cross-entropy run in chunks of DEVICE_TOKEN_CHUNK tokens, forward and gradient of a
// chunk together, so that full-precision logits exist for one chunk only. The gradient needs
// nothing but the loss scale, which is known before.
//
// A tied table gets gradients from both ends. They have an accumulator each, added once when the
// step's last backward is done: the order that holds when the ends lie on different pipeline
// stages. The look-up's accumulator has rows only for the ids that occur in the step.
#include "engine/state.h"
#include <string.h>

void embedding_forward(struct engine *e, const struct batch *batch) {
    int position = e->param[PARAM_POSITION];
    e->device->embedding_forward(e->device, e->type, batch->tokens, e->model->config.hidden,
                                 engine_weight(e, e->param[PARAM_EMBEDDING]),
                                 position < 0 ? NULL : engine_weight(e, position), batch->input,
                                 batch->position, e->layers[0].act[ACT_INPUT]);
}

void embedding_backward(struct engine *e, const struct batch *batch) {
    int64_t hidden = e->model->config.hidden, tokens = batch->tokens;
    int table = e->param[PARAM_EMBEDDING], position = e->param[PARAM_POSITION];
    const void *dout = e->layers[0].flow[FLOW_IN];
    if (e->model->config.tied_head) {
        int32_t *rows = e->single[SINGLE_LOOKUP_ROWS];
        const int32_t *slot = e->single[SINGLE_LOOKUP_SLOT];
        for (int64_t i = 0; i < tokens; i++) rows[i] = slot[batch->input[i]];
        e->device->embedding_backward(e->device, e->type, tokens, hidden, e->looked_up, dout, rows,
                                      e->single[SINGLE_LOOKUP], !e->lookup_written);
        e->lookup_written = true;
    } else {
        e->device->embedding_backward(e->device, e->type, tokens, hidden,
                                      e->model->params[table].rows_padded, dout, batch->input,
                                      engine_gradient(e, table), engine_first(e, table));
    }
    if (position >= 0)
        e->device->embedding_backward(e->device, e->type, tokens, hidden,
                                      e->model->params[position].rows_padded, dout, batch->position,
                                      engine_gradient(e, position), engine_first(e, position));
}

void lookup_begin(struct engine *e, struct batch *const *batches, int count) {
    int32_t *slot = e->single[SINGLE_LOOKUP_SLOT], *ids = e->single[SINGLE_LOOKUP_IDS];
    e->looked_up = 0;
    e->lookup_written = false;
    if (!slot) return;
    memset(slot, -1, (size_t)e->model->config.vocab * sizeof *slot);
    for (int b = 0; b < count; b++)
        for (int32_t i = 0; i < batches[b]->tokens; i++) {
            int32_t id = batches[b]->input[i];
            if (slot[id] >= 0) continue;
            ids[e->looked_up] = id;
            slot[id] = e->looked_up++;
        }
}

void lookup_end(struct engine *e) {
    if (!e->model->config.tied_head) return;
    e->device->embedding_backward(e->device, DTYPE_F32, e->looked_up, e->model->config.hidden, 0,
                                  e->single[SINGLE_LOOKUP], e->single[SINGLE_LOOKUP_IDS],
                                  engine_gradient(e, e->head), false);
}

void final_norm_forward(struct engine *e, const struct batch *batch) {
    const struct model_config *c = &e->model->config;
    struct device_norm norm =
        layer_norm(e, e->param[PARAM_FINAL_NORM], e->param[PARAM_FINAL_NORM_BIAS],
                   e->single[SINGLE_FINAL_INPUT], e->single[SINGLE_FINAL_NORM],
                   e->single[SINGLE_FINAL_RSTD], e->single[SINGLE_FINAL_MEAN], batch->tokens);
    if (c->norm_place == NORM_BEFORE) {
        norm.x = e->layers[c->layers - 1].act[ACT_MIDDLE];
        norm.delta = e->single[SINGLE_DELTA];
        norm.residual = e->single[SINGLE_FINAL_INPUT];
    }
    e->device->norm_forward(e->device, &norm);
}

void final_norm_backward(struct engine *e, const struct batch *batch) {
    void *flow = e->layers[e->model->config.layers - 1].flow[FLOW_OUT];
    layer_norm_backward(e, e->param[PARAM_FINAL_NORM], e->param[PARAM_FINAL_NORM_BIAS],
                        e->single[SINGLE_FINAL_INPUT], flow, e->single[SINGLE_FINAL_RSTD],
                        e->single[SINGLE_FINAL_MEAN], NULL, flow, batch->tokens);
}

// Sum of the token losses in double, in token order. With gradients: that of the head's weight, and
// that of the final norm's output, left where the last layer's backward begins.
double head_loss(struct engine *e, const struct batch *batch, bool gradients) {
    const struct model_config *c = &e->model->config;
    const struct device_weight *w = &e->weight[e->head];
    size_t row = (size_t)c->hidden * dtype_bytes(e->type);
    char *x = e->single[SINGLE_FINAL_NORM];
    char *dx = gradients ? e->layers[c->layers - 1].flow[FLOW_OUT] : NULL;
    float *logits = e->single[SINGLE_LOGITS], *loss = e->single[SINGLE_LOSS];
    for (int64_t from = 0; from < batch->tokens; from += e->shape.chunk) {
        int64_t tokens =
            batch->tokens - from < e->shape.chunk ? batch->tokens - from : e->shape.chunk;
        e->device->linear_forward(e->device, w, tokens, x + (size_t)from * row, w->k, NULL, logits,
                                  w->n, DTYPE_F32);
        e->device->cross_entropy(e->device, e->type, tokens, c->vocab, w->n, logits,
                                 batch->target + from, e->loss_scale, loss + from,
                                 gradients ? logits : NULL);
        if (!gradients) continue;
        e->device->linear_backward_weight(e->device, w, tokens, logits, w->n,
                                          x + (size_t)from * row, w->k, engine_gradient(e, e->head),
                                          engine_first(e, e->head));
        e->device->linear_backward_input(e->device, w, tokens, logits, w->n,
                                         dx + (size_t)from * row, w->k);
    }
    double sum = 0;
    for (int32_t i = 0; i < batch->tokens; i++) sum += (double)loss[i];
    return sum;
}
