// Weights in and out: initial values, rounding and packing after a change, and the state as
// described tensors.
#include "engine/state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INITIAL_CHUNK = 1 << 16 };

void engine_initialise(struct engine *engine, uint64_t seed) {
    const struct model *m = engine->model;
    for (int i = 0; i < m->param_count; i++) {
        int64_t count = param_elements(&m->params[i]);
        int64_t chunks = (count + INITIAL_CHUNK - 1) / INITIAL_CHUNK;
        float *master = engine_master(engine, i);
#pragma omp parallel for schedule(static) num_threads(engine->device->threads)
        for (int64_t c = 0; c < chunks; c++) {
            int64_t first = c * INITIAL_CHUNK;
            int64_t n = count - first < INITIAL_CHUNK ? count - first : INITIAL_CHUNK;
            model_initial_values(m, i, seed, first, n, master + first);
        }
    }
    engine_weights_changed(engine);
}

void engine_pack(struct engine *e, int param) {
    const struct device_weight *w = &e->weight[param];
    if (w->packed_forward) e->device->pack(e->device, w, false);
    if (w->packed_backward) e->device->pack(e->device, w, true);
}

void engine_weights_changed(struct engine *engine) {
    for (int i = 0; i < engine->model->param_count; i++) {
        if (engine->type == DTYPE_BF16)
            engine->device->convert(engine->device, engine->offset[i + 1] - engine->offset[i],
                                    engine_master(engine, i), DTYPE_F32, engine_weight(engine, i),
                                    DTYPE_BF16);
        engine_pack(engine, i);
    }
}

static void describe(struct tensor *t, const struct param *p, const char *suffix, float *data) {
    *t = (struct tensor){.type = DTYPE_F32, .data = data};
    snprintf(t->name, sizeof t->name, "%s%s", p->name, suffix);
    t->dims = param_is_matrix(p) ? 2 : 1;
    t->shape[0] = p->rows;
    if (t->dims == 2) t->shape[1] = p->columns;
}

int engine_tensors(struct engine *engine, enum engine_part part, struct tensor **tensors,
                   int *count, struct err *err) {
    const struct model *m = engine->model;
    int each = part == ENGINE_MOMENTS ? 2 : 1;
    if (part != ENGINE_MASTER && !engine->options.train)
        return err_set(err, ERR_INTERNAL,
                       "gradients and moments were asked of an engine that was opened without "
                       "training");
    struct tensor *list = calloc((size_t)(m->param_count * each), sizeof *list);
    if (!list)
        return err_set(err, ERR_MEMORY, "no memory for the list of %d tensors", m->param_count);
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        int64_t at = engine->offset[i];
        if (part == ENGINE_MASTER) describe(&list[i], p, "", engine_master(engine, i));
        if (part == ENGINE_GRADIENTS) describe(&list[i], p, "", engine_gradient(engine, i));
        if (part != ENGINE_MOMENTS) continue;
        describe(&list[2 * i], p, ".moment1", (float *)engine->single[SINGLE_MOMENT1] + at);
        describe(&list[2 * i + 1], p, ".moment2", (float *)engine->single[SINGLE_MOMENT2] + at);
    }
    *tensors = list;
    *count = m->param_count * each;
    return 0;
}
