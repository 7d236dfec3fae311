// The two ends of the model: the look-up below the layers; final norm, head and loss above them.
//
// Head and cross-entropy run in chunks of DEVICE_TOKEN_CHUNK tokens, forward and gradient of a
// chunk together, so that full-precision logits exist for one chunk only. The gradient needs
// nothing but the loss scale, which is known before.
//
// Table and head are cut over tp by rows of the vocabulary. A look-up gives zeros for ids of other
// ranks, and the sum over tp is the row; the softmax meets in three numbers per token (largest
// logit, sum of exponentials, logit of the target).
//
// A tied table gets gradients from both ends. They have an accumulator each, added once when the
// step's last backward is done: the order that holds when the ends lie on different pipeline
// stages. The look-up's accumulator has rows only for the ids that occur in the step.
#include "engine/seals.h"
#include <string.h>

void embedding_forward(struct engine *e, int layer, const struct batch *batch) {
    int position = e->param[PARAM_POSITION];
    void *out = e->layers[layer].act[ACT_INPUT], *partial = tensor_partial(e, out);
    bool adds_positions = position >= 0 && e->tp_index == 0; // once in the sum
    e->device->embedding_forward(e->device, e->type, batch->tokens, e->model->config.hidden,
                                 engine_weight(e, e->param[PARAM_EMBEDDING]),
                                 adds_positions ? engine_weight(e, position) : NULL,
                                 tensor_local_ids(e, batch->input, batch->tokens), batch->position,
                                 partial);
    tensor_reduce(e, batch, partial, out);
    layer_dropout(e, layer, DROPOUT_EMBEDDING, batch, out, out);
}

void embedding_backward(struct engine *e, int layer, const struct batch *batch) {
    int64_t hidden = e->model->config.hidden, tokens = batch->tokens;
    int table = e->param[PARAM_EMBEDDING], position = e->param[PARAM_POSITION];
    void *own = e->layers[layer].flow[FLOW_IN];
    layer_dropout(e, layer, DROPOUT_EMBEDDING, batch, own, own);
    const void *dout = tensor_gather(e, batch, own, e->single[SINGLE_GATHERED]);
    const int32_t *ids = tensor_local_ids(e, batch->input, tokens);
    if (e->model->config.tied_head) {
        int32_t *rows = e->single[SINGLE_LOOKUP_ROWS];
        const int32_t *slot = e->single[SINGLE_LOOKUP_SLOT];
        seals_lookup(e, true);
        for (int64_t i = 0; i < tokens; i++) rows[i] = ids[i] < 0 ? -1 : slot[ids[i]];
        e->device->embedding_backward(e->device, e->type, tokens, hidden, e->looked_up, dout, rows,
                                      e->single[SINGLE_LOOKUP], !e->lookup_written);
        e->lookup_written = true;
        seals_lookup(e, false);
    } else {
        e->device->embedding_backward(e->device, e->type, tokens, hidden,
                                      e->model->params[table].rows_padded, dout, ids,
                                      engine_gradient(e, table), engine_first(e, table));
    }
    if (position < 0) return;
    int64_t residual = engine_residual(e, batch);
    e->device->embedding_backward(e->device, e->type, residual, hidden,
                                  e->model->params[position].rows_padded, own,
                                  batch->position + (e->sequence ? e->tp_index * residual : 0),
                                  engine_gradient(e, position), engine_first(e, position));
}

// Numbers the ids of the step in the order in which they occur.
void lookup_begin(struct engine *e) {
    int32_t *slot = e->single[SINGLE_LOOKUP_SLOT], *list = e->single[SINGLE_LOOKUP_IDS];
    e->looked_up = 0;
    e->lookup_written = false;
    if (!slot) return;
    memset(slot, -1, (size_t)e->model->config.vocab * sizeof *slot);
    for (int b = 0; b < e->batch_count; b++) {
        const struct batch *batch = e->batches[b];
        const int32_t *ids = tensor_local_ids(e, batch->input, batch->tokens);
        for (int32_t i = 0; i < batch->tokens; i++) {
            if (ids[i] < 0 || slot[ids[i]] >= 0) continue;
            list[e->looked_up] = ids[i];
            slot[ids[i]] = e->looked_up++;
        }
    }
}

void final_norm_forward(struct engine *e, const void *carried, int64_t tokens) {
    struct device_norm norm =
        layer_norm(e, e->param[PARAM_FINAL_NORM], e->param[PARAM_FINAL_NORM_BIAS], e->final_input,
                   e->single[SINGLE_FINAL_NORM], e->final_rstd, e->final_mean, tokens);
    if (carried) {
        norm.x = carried;
        norm.delta = e->single[SINGLE_DELTA];
        norm.residual = e->final_input;
    }
    e->device->norm_forward(e->device, &norm);
}

void final_norm_backward(struct engine *e, void *flow, int64_t tokens) {
    layer_norm_backward(e, e->param[PARAM_FINAL_NORM], e->param[PARAM_FINAL_NORM_BIAS],
                        e->final_input, flow, e->final_rstd, e->final_mean, NULL, flow, tokens);
}

// A chunk's losses, and where `gradients`, its logits turned into their gradients.
static void chunk_loss(struct engine *e, int64_t tokens, const int32_t *target,
                       const int32_t *local, float *loss, bool gradients) {
    const struct device_weight *w = &e->weight[e->head];
    float *logits = e->single[SINGLE_LOGITS];
    void *dlogits = gradients ? logits : NULL;
    if (e->tp == 1) {
        e->device->cross_entropy(e->device, e->type, tokens, e->model->config.vocab, w->n, logits,
                                 target, e->loss_scale, loss, dlogits);
        return;
    }
    enum { NUMBERS = 3 };
    float *own = e->single[SINGLE_STATISTICS], *all = own + (size_t)e->shape.chunk * NUMBERS;
    e->device->cross_entropy_statistics(e->device, tokens, e->local.vocab_rows, w->n, logits, local,
                                        own);
    comm_wait(
        comm_all_gather(e->stream[GROUP_TP], own, all, (uint64_t)tokens * NUMBERS * sizeof *own),
        e->device->lane);
    e->device->cross_entropy_finish(e->device, e->type, tokens, e->local.vocab_rows, w->n, logits,
                                    local, target, all, e->tp, e->loss_scale, loss, dlogits);
}

double head_loss(struct engine *e, const struct batch *batch, void *gradient) {
    const struct device_weight *w = &e->weight[e->head];
    size_t row = (size_t)w->k * dtype_bytes(e->type);
    const char *x =
        tensor_gather(e, batch, e->single[SINGLE_FINAL_NORM], e->single[SINGLE_GATHERED]);
    char *dx = gradient ? tensor_partial(e, gradient) : NULL;
    const int32_t *local = tensor_local_ids(e, batch->target, batch->tokens);
    float *logits = e->single[SINGLE_LOGITS], *loss = e->single[SINGLE_LOSS];
    for (int64_t from = 0; from < batch->tokens; from += e->shape.chunk) {
        int64_t tokens =
            batch->tokens - from < e->shape.chunk ? batch->tokens - from : e->shape.chunk;
        const char *rows = x + (size_t)from * row;
        e->device->linear_forward(e->device, w, tokens, rows, w->k, NULL, logits, w->n, DTYPE_F32);
        products_forward(e, e->head, tokens, rows, NULL, logits, DTYPE_F32);
        chunk_loss(e, tokens, batch->target + from, local + from, loss + from, gradient != NULL);
        if (!gradient) continue;
        e->device->linear_backward_weight(e->device, w, tokens, logits, w->n, rows, w->k,
                                          engine_gradient(e, e->head), engine_first(e, e->head));
        e->device->linear_backward_input(e->device, w, tokens, logits, w->n,
                                         dx + (size_t)from * row, w->k);
    }
    if (gradient) tensor_reduce(e, batch, dx, gradient);
    double sum = 0;
    for (int32_t i = 0; i < batch->tokens; i++) sum += (double)loss[i];
    return sum;
}
