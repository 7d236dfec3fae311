// The optimizer: each rank updates its piece of every parameter.
#include "engine/seals.h"

enum { WIDEN_CHUNK = 1 << 18 }; // elements, of gradients kept in BF16

// FP32 gradients of elements [at, at + count) of a piece.
const float *states_wide_gradient(struct engine *e, int param, int64_t at, int64_t count) {
    const struct rank_state *r = &states_of(e)->shape;
    char *kept = state_gradient(e, param);
    if (r->accumulate == DTYPE_F32) return (float *)(void *)kept + at;
    float *wide = e->single[SINGLE_UNIT_GRADIENTS];
    e->device->convert(e->device, count, kept + (size_t)at * sizeof(bf16), DTYPE_BF16, wide,
                       DTYPE_F32);
    return wide;
}

int64_t states_chunk(const struct engine *e) {
    const struct rank_state *r = &states_of(e)->shape;
    if (r->accumulate == DTYPE_F32) return INT64_MAX;
    int64_t room = r->unit_elements / RANK_NORM_BLOCK * RANK_NORM_BLOCK;
    return room < WIDEN_CHUNK ? room : WIDEN_CHUNK;
}

static void update_piece(struct engine *e, int param, const struct engine_step *step) {
    const struct engine_options *o = &e->options;
    const struct param *p = &e->model->params[param];
    int64_t total = states_of(e)->pieces[param].count, chunk = states_chunk(e);
    int64_t moment = state_at(e, param, state_sharded(e));
    bf16 *rounded = state_rounded(e, param);
    for (int64_t at = 0; at < total;) {
        int64_t count = total - at < chunk ? total - at : chunk;
        struct device_adamw args = {
            .count = count,
            .master = state_master(e, param) + at,
            .moment1 = (float *)e->single[SINGLE_MOMENT1] + moment + at,
            .moment2 = (float *)e->single[SINGLE_MOMENT2] + moment + at,
            .gradient = states_wide_gradient(e, param, at, count),
            .weight = rounded ? rounded + at : NULL,
            .learning_rate = step->learning_rate,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .decay = p->decays ? o->weight_decay : 0,
            .gradient_scale = step->clip_factor,
            .step = step->update,
        };
        seals_of_update(e, param, at, &args);
        e->device->adamw(e->device, &args);
        at += count;
    }
    seals_updated(e, param);
}

void states_update(struct engine *e, const struct engine_step *step) {
    states_settle(e);
    for (int i = 0; i < e->model->param_count; i++) {
        update_piece(e, i, step);
        states_of(e)->stale[i] = true;
        if (!state_sharded(e)) states_freshen(e, i); // packed while the new weights are near
    }
    e->seals->turn++;
    states_publish(e);
}
