// The end of a step: global gradient norm, clipping, optimizer.
#include "engine/state.h"
#include <math.h>

_Static_assert((int)RANK_NORM_BLOCK == (int)DEVICE_NORM_BLOCK,
               "the plan counts as many sums as the kernel writes");

// Sums of squares of blocks of DEVICE_NORM_BLOCK elements, counted from each param's start, added
// in param order: a norm that does not depend on how parameters are cut over ranks.
double engine_gradient_norm(struct engine *e) {
    double *sums = e->single[SINGLE_NORM_SUMS], total = 0;
    for (int i = 0; i < e->model->param_count; i++) {
        const struct param *p = &e->model->params[i];
        e->device->square_sums(e->device, param_elements_padded(p), engine_gradient(e, i), sums);
        for (int64_t b = 0; b < rank_norm_blocks(p); b++) total += sums[b];
    }
    return sqrt(total);
}

// One pass over each parameter, and its packed copies right behind, while the new weights are near.
void engine_update(struct engine *e, const struct engine_step *step) {
    const struct engine_options *o = &e->options;
    for (int i = 0; i < e->model->param_count; i++) {
        const struct param *p = &e->model->params[i];
        int64_t at = e->offset[i];
        struct device_adamw args = {
            .count = param_elements_padded(p),
            .master = engine_master(e, i),
            .moment1 = (float *)e->single[SINGLE_MOMENT1] + at,
            .moment2 = (float *)e->single[SINGLE_MOMENT2] + at,
            .gradient = engine_gradient(e, i),
            .weight = e->type == DTYPE_BF16 ? engine_weight(e, i) : NULL,
            .learning_rate = step->learning_rate,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .decay = p->decays ? o->weight_decay : 0,
            .gradient_scale = step->clip_factor,
            .step = step->update,
        };
        e->device->adamw(e->device, &args);
        engine_pack(e, i);
    }
}
