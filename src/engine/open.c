// Opening: the plan becomes memory, every pointer is set, and nothing is allocated afterwards.
#include "engine/state.h"
#include "model/rope.h"
#include <stdlib.h>
#include <string.h>

static int take_buffers(struct engine *e, struct err *err) {
    if (arena_open(&e->arena, e->plan.total_bytes, 1, err) != 0) return -1;
    for (int i = 0; i < e->plan.count; i++)
        if (arena_take(&e->arena, e->plan.buffers[i].bytes) !=
            e->arena.base + e->plan.buffers[i].offset_bytes)
            return err_set(err, ERR_INTERNAL, "buffer \"%s\" does not lie where the plan has it",
                           e->plan.buffers[i].name);
    return 0;
}

static void *buffer_memory(const struct engine *e, int index) {
    return index < 0 ? NULL : e->arena.base + e->plan.buffers[index].offset_bytes;
}

static void place(struct engine *e) {
    const struct model *m = e->model;
    for (int i = 0; i < SINGLE_COUNT; i++) e->single[i] = buffer_memory(e, e->buffers.single[i]);
    void *masters = e->single[SINGLE_MASTERS];
    e->master = masters ? masters : e->single[SINGLE_WEIGHTS];
    for (int i = 0; i < m->param_count; i++) {
        e->weight[i].plain = engine_weight(e, i);
        e->weight[i].packed_forward = buffer_memory(e, e->buffers.packed_forward[i]);
        e->weight[i].packed_backward = buffer_memory(e, e->buffers.packed_backward[i]);
    }
    for (int r = 0; r < PARAM_ROLE_COUNT; r++) e->param[r] = model_param(m, -1, r);
    e->head = e->param[m->config.tied_head ? PARAM_EMBEDDING : PARAM_HEAD];
    for (int a = 0; a < ACT_COUNT; a++) e->keeps[a] = rank_keeps(&m->config, &e->shape, a);
    for (int l = 0; l < m->config.layers; l++) {
        struct engine_layer *layer = &e->layers[l];
        layer->window = m->config.layer_window[l];
        for (int r = 0; r < PARAM_ROLE_COUNT; r++) layer->param[r] = model_param(m, l, r);
        for (int a = 0; a < ACT_COUNT; a++)
            layer->act[a] = buffer_memory(e, e->buffers.activation[l][a]);
        for (int f = 0; f < FLOW_COUNT; f++)
            layer->flow[f] = buffer_memory(e, e->buffers.flow[l][f]);
    }
}

static int open_parts(struct engine *e, struct err *err) {
    const struct model *m = e->model;
    size_t params = (size_t)m->param_count;
    e->weight = calloc(params, sizeof *e->weight);
    e->offset = calloc(params + 1, sizeof *e->offset);
    e->written = calloc(params, sizeof *e->written);
    e->layers = calloc((size_t)m->config.layers, sizeof *e->layers);
    e->batch_loss = calloc((size_t)e->options.micro_batches, sizeof *e->batch_loss);
    uint64_t *pack = calloc(2 * params, sizeof *pack);
    bool complete = e->weight && e->offset && e->written && e->layers && e->batch_loss && pack;
    if (complete) {
        rank_param_offsets(m, e->offset);
        engine_describe_weights(m, e->device, &e->shape, e->weight, pack, pack + params);
    }
    free(pack);
    if (!complete) return err_set(err, ERR_MEMORY, "no memory for the engine's tables");
    if (schedule_open(&e->schedule, e->options.micro_batches, err) != 0) return -1;
    if (take_buffers(e, err) != 0) return -1;
    place(e);
    e->prepared[0] = e->shape.tokens;
    e->prepared_count = 1;
    if (e->single[SINGLE_PRODUCTS])
        e->device->set_workspace(e->device, e->single[SINGLE_PRODUCTS],
                                 e->plan.buffers[e->buffers.single[SINGLE_PRODUCTS]].bytes);
    const struct model_config *c = &m->config;
    if (e->single[SINGLE_COSINE])
        rope_tables(&c->rope, c->head_dim, e->options.context, e->options.context,
                    e->single[SINGLE_COSINE], e->single[SINGLE_SINE]);
    return 0;
}

struct engine *engine_open(const struct model *model, struct device *device,
                           const struct engine_options *options, struct err *err) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        err_set(err, ERR_MEMORY, "no memory for the engine");
        return NULL;
    }
    e->model = model;
    e->device = device;
    e->options = *options;
    e->type = options->compute;
    e->shape = engine_shape(options);
    if (engine_enumerate(&e->plan, &e->buffers, model, device, &e->shape, err) != 0) {
        free(e);
        return NULL;
    }
    if (open_parts(e, err) != 0) {
        engine_close(e);
        return NULL;
    }
    return e;
}

void engine_close(struct engine *engine) {
    if (!engine) return;
    engine->device->set_workspace(engine->device, NULL, 0);
    schedule_close(&engine->schedule);
    arena_close(&engine->arena);
    rank_buffers_free(&engine->buffers);
    memory_plan_free(&engine->plan);
    free(engine->weight);
    free(engine->offset);
    free(engine->written);
    free(engine->layers);
    free(engine->batch_loss);
    free(engine);
}

const struct memory_plan *engine_memory(const struct engine *engine) {
    return &engine->plan;
}

uint64_t engine_allocated_bytes(const struct engine *engine) {
    return engine->arena.used_bytes;
}

void *engine_other_memory(struct engine *engine) {
    return engine->single[SINGLE_OTHER];
}
