// Weights in and out: initial values, rounding and gathering after a change, and the state of one
// process as described tensors.
#include "engine/seals.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INITIAL_CHUNK = 1 << 16 };

// Values of local elements [first, first + count) of a parameter, by their places in the whole one.
// Padding is zero.
static void initial_values(const struct engine *e, int param, uint64_t seed, int64_t first,
                           int64_t count, float *out) {
    const struct param *p = &e->model->params[param];
    const struct param_slice *slice = &e->local.slices[param];
    const struct param *whole = &e->whole->params[slice->whole];
    memset(out, 0, (size_t)count * sizeof *out);
    int64_t begin = 0, whole_begin = 0; // rows
    for (int part = 0; part < p->parts; part++) {
        int64_t end = begin + p->part_rows[part];
        int64_t at = first > begin * p->columns ? first : begin * p->columns;
        int64_t stop = first + count < end * p->columns ? first + count : end * p->columns;
        while (at < stop) {
            int64_t row = at / p->columns, column = at % p->columns;
            int64_t to = (whole_begin + slice->row[part] + row - begin) * whole->columns +
                         slice->column + column;
            int64_t n = p->columns == whole->columns ? stop - at : p->columns - column;
            if (n > stop - at) n = stop - at;
            model_initial_values(e->whole, slice->whole, seed, to, n, out + (at - first));
            at += n;
        }
        begin = end;
        whole_begin += whole->part_rows[part];
    }
}

void engine_initialise(struct engine *engine, uint64_t seed) {
    for (int i = 0; i < engine->model->param_count; i++) {
        const struct state_piece *piece = &states_of(engine)->pieces[i];
        int64_t chunks = (piece->count + INITIAL_CHUNK - 1) / INITIAL_CHUNK;
        float *master = state_master(engine, i);
#pragma omp parallel for schedule(static) num_threads(engine->device->threads)
        for (int64_t c = 0; c < chunks; c++) {
            int64_t at = c * INITIAL_CHUNK;
            int64_t n = piece->count - at < INITIAL_CHUNK ? piece->count - at : INITIAL_CHUNK;
            initial_values(engine, i, seed, piece->first + at, n, master + at);
        }
    }
    engine_weights_changed(engine);
}

void engine_weights_changed(struct engine *engine) {
    states_settle(engine);
    seals_changed(engine);
    for (int i = 0; i < engine->model->param_count; i++) {
        bf16 *rounded = state_rounded(engine, i);
        if (rounded)
            engine->device->convert(engine->device, states_of(engine)->pieces[i].count,
                                    state_master(engine, i), DTYPE_F32, rounded, DTYPE_BF16);
        states_of(engine)->stale[i] = true;
        if (!state_sharded(engine)) states_freshen(engine, i);
    }
    states_publish(engine);
}

void engine_settle(struct engine *engine) {
    states_settle(engine);
}

void engine_clear_state(struct engine *engine) {
    states_settle(engine);
    for (int i = 0; i < engine->model->param_count; i++) {
        int64_t moment = state_at(engine, i, state_sharded(engine));
        size_t bytes = (size_t)states_of(engine)->pieces[i].count * sizeof(float);
        memset(state_master(engine, i), 0, bytes);
        memset((float *)engine->single[SINGLE_MOMENT1] + moment, 0, bytes);
        memset((float *)engine->single[SINGLE_MOMENT2] + moment, 0, bytes);
    }
    for (int l = 0; engine->moe && l < engine->model->config.layers; l++) {
        float *bias = engine_expert_bias(engine, l);
        if (bias) memset(bias, 0, (size_t)engine->whole->config.experts * sizeof *bias);
    }
}

static void describe(struct tensor *t, const struct param *p, const char *suffix, enum dtype type,
                     void *data) {
    *t = (struct tensor){.type = type, .data = data};
    snprintf(t->name, sizeof t->name, "%s%s", p->name, suffix);
    t->dims = param_is_matrix(p) ? 2 : 1;
    t->shape[0] = p->rows;
    if (t->dims == 2) t->shape[1] = p->columns;
}

static int check_whole(const struct engine *e, enum engine_part part, struct err *err) {
    const int *size = e->layout.mesh.size;
    if (part != ENGINE_MASTER && !e->options.train)
        return err_set(err, ERR_INTERNAL,
                       "gradients and moments were asked of an engine that was opened without "
                       "training");
    if (size[MESH_PP] > 1 || size[MESH_TP] > 1 || e->layout.mesh.ep > 1 || state_sharded(e))
        return err_set(err, ERR_INTERNAL,
                       "whole tensors were asked of rank %d, which holds a part of the model: "
                       "engine_slices describes it",
                       e->rank);
    return 0;
}

int engine_tensors(struct engine *engine, enum engine_part part, struct tensor **tensors,
                   int *count, struct err *err) {
    const struct model *m = engine->model;
    int each = part == ENGINE_MOMENTS ? 2 : 1;
    if (check_whole(engine, part, err) != 0) return -1;
    struct tensor *list = calloc((size_t)m->param_count * (size_t)each, sizeof *list);
    if (!list)
        return err_set(err, ERR_MEMORY, "no memory for the list of %d tensors", m->param_count);
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        int64_t at = engine->flat.offset[i];
        float *moment1 = engine->single[SINGLE_MOMENT1], *moment2 = engine->single[SINGLE_MOMENT2];
        if (part == ENGINE_MASTER) describe(&list[i], p, "", DTYPE_F32, state_master(engine, i));
        if (part == ENGINE_GRADIENTS)
            describe(&list[i], p, "", states_of(engine)->shape.accumulate,
                     state_gradient(engine, i));
        if (part != ENGINE_MOMENTS) continue;
        describe(&list[2 * i], p, ".moment1", DTYPE_F32, moment1 + at);
        describe(&list[2 * i + 1], p, ".moment2", DTYPE_F32, moment2 + at);
    }
    *tensors = list;
    *count = m->param_count * each;
    return 0;
}
