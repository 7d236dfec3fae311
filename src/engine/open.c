// Opening: the plan becomes memory, every pointer is set, every group of ranks gets its streams,
// and nothing is allocated afterwards.
#include "engine/seals.h"
#include "model/rope.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int take_buffers(struct engine *e, struct err *err) {
    if (arena_open(&e->arena, memory_plan_region_bytes(&e->plan), 1, err) != 0) return -1;
    for (int i = 0; i < e->plan.count; i++)
        if (e->plan.buffers[i].kind != BUFFER_SNAPSHOT &&
            arena_take(&e->arena, e->plan.buffers[i].bytes) !=
                e->arena.base + e->plan.buffers[i].offset_bytes)
            return err_set(err, ERR_INTERNAL, "buffer \"%s\" does not lie where the plan has it",
                           e->plan.buffers[i].name);
    return 0;
}

void *engine_buffer(const struct engine *e, int index) {
    if (index < 0 || e->plan.buffers[index].kind == BUFFER_SNAPSHOT) return NULL;
    return e->arena.base + e->plan.buffers[index].offset_bytes;
}

static void place_stage(struct engine *e, int index) {
    struct engine_stage *s = &e->stages[index];
    const int(*border)[RANK_MOST_SLOTS] = e->buffers.border[index];
    s->part = e->shape.stages[index].part;
    for (int i = 0; i < RANK_MOST_SLOTS; i++) {
        s->gradient[i] = engine_buffer(e, border[BORDER_GRADIENT][i]);
        if (i >= RANK_SEND_RING) continue;
        s->output[i] = engine_buffer(e, border[BORDER_OUTPUT][i]);
        s->back[i] = engine_buffer(e, border[BORDER_BACK][i]);
    }
    int stage = s->part.stage, stages = layout_stages(&e->layout);
    s->previous_rank = stage > 0 ? engine_rank_of_stage(e, stage - 1) : -1;
    s->next_rank = stage + 1 < stages ? engine_rank_of_stage(e, stage + 1) : -1;
}

static int whole_layer(const struct engine *e, int layer) {
    int i = 0;
    while (layer >= e->local.stages[i].layer_first + e->local.stages[i].layer_count) i++;
    const struct stage_part *part = &e->local.stages[i];
    return e->layout.layer_first[part->stage] + layer - part->layer_first;
}

static void place(struct engine *e) {
    const struct model *m = e->model;
    for (int i = 0; i < SINGLE_COUNT; i++) e->single[i] = engine_buffer(e, e->buffers.single[i]);
    for (int r = 0; r < PARAM_ROLE_COUNT; r++) e->param[r] = model_param(m, -1, r);
    for (int a = 0; a < ACT_COUNT; a++) e->keeps[a] = rank_keeps(&m->config, &e->shape, a);
    for (int l = 0; l < m->config.layers; l++) {
        struct engine_layer *layer = &e->layers[l];
        layer->window = m->config.layer_window[l];
        layer->whole = whole_layer(e, l);
        for (int r = 0; r < PARAM_ROLE_COUNT; r++) layer->param[r] = model_param(m, l, r);
    }
    for (int i = 0; i < e->shape.stage_count; i++) place_stage(e, i);
}

// ---- groups of ranks ----------------------------------------------------------------------------

static int open_stream(struct engine *e, enum mesh_group_kind kind, const char *name,
                       struct comm_stream **out, struct err *err) {
    int *members = malloc((size_t)mesh_ranks(&e->layout.mesh) * sizeof *members), index;
    if (!members) return err_set(err, ERR_MEMORY, "no memory for the list of ranks");
    int size =
        mesh_group(&e->layout.mesh, e->rank, kind, e->whole->config.kv_heads, members, &index);
    if (size > 1) {
        const char *engine = e->parallel.name ? e->parallel.name : "";
        char full[2 * COMM_GROUP_NAME_BYTES];
        snprintf(full, sizeof full, "%s%s%s", engine, engine[0] ? "." : "", name);
        *out = comm_stream_open(e->comm, full, members, size, err);
        if (*out) comm_stream_lane(*out, e->device->lane);
    }
    free(members);
    return size > 1 && !*out ? -1 : 0;
}

static void find_neighbours(struct engine *e) {
    int at[MESH_AXES];
    memcpy(at, e->local.at, sizeof at);
    at[MESH_CP] = (e->cp_index + e->cp - 1) % e->cp;
    e->cp_previous = mesh_rank(&e->layout.mesh, at);
    at[MESH_CP] = (e->cp_index + 1) % e->cp;
    e->cp_next = mesh_rank(&e->layout.mesh, at);
}

static int open_streams(struct engine *e, struct err *err) {
    static const enum mesh_group_kind all[FLAT_GROUPS] = {GROUP_DATA, GROUP_EXPERT_DATA};
    static const enum mesh_group_kind shard[FLAT_GROUPS] = {GROUP_SHARD, GROUP_EXPERT_SHARD};
    static const char *const reduce[FLAT_GROUPS] = {"reduce", "expert_reduce"};
    static const char *const gather[FLAT_GROUPS] = {"gather", "expert_gather"};
    if (!e->comm) return 0;
    find_neighbours(e);
    for (int k = 0; k < GROUP_KIND_COUNT; k++)
        if (open_stream(e, (enum mesh_group_kind)k, mesh_group_name((enum mesh_group_kind)k),
                        &e->stream[k], err) != 0)
            return -1;
    for (int g = 0; g < FLAT_GROUPS; g++) {
        enum mesh_group_kind kind = e->layout.zero > 0 ? shard[g] : all[g];
        if (open_stream(e, kind, reduce[g], &e->reduce[g], err) != 0 ||
            open_stream(e, kind, gather[g], &e->gather[g], err) != 0)
            return -1;
    }
    return 0;
}

static void close_streams(struct engine *e) {
    for (int k = 0; k < GROUP_KIND_COUNT; k++) comm_stream_close(e->stream[k]);
    for (int g = 0; g < FLAT_GROUPS; g++) {
        comm_stream_close(e->reduce[g]);
        comm_stream_close(e->gather[g]);
    }
}

// ---- all together -------------------------------------------------------------------------------

static int open_tables(struct engine *e, struct err *err) {
    size_t params = (size_t)e->model->param_count, batches = (size_t)e->options.micro_batches;
    e->weight = calloc(params, sizeof *e->weight);
    e->param_at = calloc(params, sizeof *e->param_at);
    e->layers = calloc((size_t)e->model->config.layers, sizeof *e->layers);
    e->batch_loss = calloc(batches, sizeof *e->batch_loss);
    e->shared = calloc(batches, sizeof *e->shared);
    e->shares = calloc(batches, sizeof *e->shares);
    e->shared_list = calloc(batches, sizeof *e->shared_list);
    uint64_t *pack = calloc(2 * params, sizeof *pack);
    bool complete = e->weight && e->param_at && e->layers && e->batch_loss && e->shared &&
                    e->shares && e->shared_list && pack;
    for (int i = 0; i < e->shape.stage_count && complete; i++) {
        e->stages[i].slot_of = calloc(batches, sizeof *e->stages[i].slot_of);
        complete = e->stages[i].slot_of != NULL;
    }
    if (complete)
        engine_describe_weights(e->model, e->head, e->device, &e->shape, e->weight, pack,
                                pack + params);
    free(pack);
    return complete ? 0 : err_set(err, ERR_MEMORY, "no memory for the engine's tables");
}

static int open_parts(struct engine *e, struct err *err) {
    if (open_tables(e, err) != 0 || take_buffers(e, err) != 0) return -1;
    place(e);
    if (open_streams(e, err) != 0 || states_open(e, err) != 0 || seals_open(e, err) != 0 ||
        engine_moe_open(e, err) != 0)
        return -1;
    e->prepared[0] = e->shape.tokens;
    e->prepared_count = 1;
    if (e->single[SINGLE_PRODUCTS])
        e->device->set_workspace(e->device, e->single[SINGLE_PRODUCTS],
                                 e->plan.buffers[e->buffers.single[SINGLE_PRODUCTS]].bytes);
    const struct model_config *c = &e->model->config;
    if (e->single[SINGLE_COSINE])
        rope_tables(&c->rope, c->head_dim, e->options.context, e->options.context,
                    e->single[SINGLE_COSINE], e->single[SINGLE_SINE]);
    return 0;
}

static int check_world(const struct engine *e, struct err *err) {
    int ranks = mesh_ranks(&e->layout.mesh);
    if (ranks > 1 && !e->comm)
        return err_set(err, ERR_INTERNAL,
                       "a layout of %d ranks was given no communication; it can only be planned",
                       ranks);
    if (e->comm && (comm_size(e->comm) != ranks || comm_rank(e->comm) != e->rank))
        return err_set(err, ERR_INTERNAL, "rank %d of %d in the world, %d of %d in the layout",
                       comm_rank(e->comm), comm_size(e->comm), e->rank, ranks);
    return 0;
}

struct engine *engine_open(const struct model *model, struct device *device,
                           const struct engine_options *options, struct err *err) {
    struct engine *e = NULL;
    if (model_is_latent(&model->config))
        err_set(err, ERR_USAGE,
                "a model with latent attention (model.kv_lora_rank %d) can be planned, not "
                "trained or run",
                model->config.kv_lora_rank);
    else if (!(e = calloc(1, sizeof *e)))
        err_set(err, ERR_MEMORY, "no memory for the engine");
    if (!e) return NULL;
    e->whole = model;
    e->device = device;
    e->options = *options;
    if (engine_enumerate(e, err) != 0) {
        free(e);
        return NULL;
    }
    if (mesh_ranks(&e->layout.mesh) > 1) e->comm = e->parallel.comm;
    if (check_world(e, err) != 0 || open_parts(e, err) != 0) {
        engine_close(e);
        return NULL;
    }
    return e;
}

void engine_close(struct engine *engine) {
    if (!engine) return;
    engine->device->set_workspace(engine->device, NULL, 0);
    seals_close(engine);
    states_close(engine);
    engine_moe_close(engine);
    close_streams(engine);
    arena_close(&engine->arena);
    engine_describe_close(engine);
    for (int i = 0; i < LAYOUT_MAX_CHUNKS; i++) free(engine->stages[i].slot_of);
    free(engine->weight);
    free(engine->param_at);
    free(engine->layers);
    free(engine->batch_loss);
    free(engine->shared);
    free(engine->shares);
    free(engine->shared_list);
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

const struct pipeline *engine_pipeline(const struct engine *engine) {
    return &engine->pipeline;
}
