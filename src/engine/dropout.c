// Dropout of the embedding and of what attention and MLP add to the residual stream, while
// training. An element's fate is a function of seed, step, layer, place and its index in the global
// batch: the same whatever the layout, in recomputation, backward and after a resume.
#include "base/random.h"
#include "engine/state.h"
#include <stdio.h>

void layer_dropout(struct engine *e, int layer, enum dropout_place place, const struct batch *batch,
                   const void *x, void *out) {
    static const char *const names[] = {"embedding", "attention", "mlp"};
    if (!e->drops) return;
    char name[64];
    snprintf(name, sizeof name, "dropout.%d.%s",
             place == DROPOUT_EMBEDDING ? 0 : e->layers[layer].whole, names[place]);
    int data_rank = (e->local.at[MESH_DP] + e->data_shift) % e->layout.mesh.size[MESH_DP];
    int64_t m = engine_micro_batch(e, batch), rows = engine_residual(e, batch);
    int64_t whole = (int64_t)batch->tokens * e->cp, shift = e->sequence ? e->tp_index * rows : 0;
    struct device_dropout args = {.type = e->type,
                                  .rows = rows,
                                  .width = e->model->config.hidden,
                                  .key = random_key(e->dropout_key, name),
                                  .first_row = (data_rank * (int64_t)e->batch_count + m) * whole,
                                  .rate = e->options.dropout,
                                  .x = x,
                                  .out = out};
    if (e->cp > 1)
        args.row = e->shares[m].position + (int64_t)e->cp_index * batch->tokens + shift;
    else
        args.first_row += shift;
    e->device->dropout(e->device, &args);
}
