#include "world.h"
#include "base/file.h"
#include "base/random.h"
#include "checkpoint/snapshot.h"
#include "data/batch_share.h"
#include "device/device.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model_config world_model(const char *kind) {
    struct model_config c = {.family = FAMILY_LLAMA,
                             .variant = "llama",
                             .layers = 4,
                             .hidden = 32,
                             .heads = 8,
                             .kv_heads = 2,
                             .head_dim = 4,
                             .ffn = 48,
                             .vocab = 90,
                             .context = WORLD_CONTEXT,
                             .norm = NORM_RMS,
                             .norm_eps = 1e-5,
                             .activation = ACTIVATION_SWIGLU,
                             .rope = {.theta = 10000},
                             .tied_head = true,
                             .init_std = 0.15,
                             .bos_id = -1,
                             .eos_id = -1};
    if (strcmp(kind, "gpt2") == 0) {
        c.family = FAMILY_GPT2;
        strcpy(c.variant, "gpt2");
        c.norm = NORM_LAYER;
        c.activation = ACTIVATION_GELU_TANH;
        c.learned_positions = c.qkv_bias = c.out_bias = c.mlp_bias = true;
        c.kv_heads = 8;
        c.ffn = 128;
    } else if (strcmp(kind, "untied") == 0) {
        c.tied_head = false;
        c.layer_window[1] = 7;
    } else if (strcmp(kind, "moe") == 0 || strcmp(kind, "shared") == 0) {
        strcpy(c.variant, "mixtral");
        c.tied_head = false;
        c.experts = 4;
        c.top_k = 2;
        c.expert_ffn = 24;
        c.norm_top_k = true;
        if (strcmp(kind, "shared") == 0) { // a dense layer between, a shared expert, tied
            c.norm_top_k = false;
            c.layer_dense[1] = true;
            c.shared_ffn = 16;
            c.tied_head = true;
        }
    } else {
        CHECK(strcmp(kind, "llama") == 0);
    }
    return c;
}

int world_ranks(const struct world_layout *l) {
    return l->pp * l->dp * l->cp * l->tp;
}

static int samples_of(const struct world_layout *l) {
    return l->samples ? l->samples : 8;
}

int world_micro_batches(const struct world_layout *l) {
    return samples_of(l) / (l->dp * l->rows);
}

const char *world_name(const struct world_layout *l, char out[160]) {
    snprintf(out, 160, "%s pp%d dp%d cp%d tp%d ep%d zero%d%s %s x%d rows%d%s%s%s%s", l->model,
             l->pp, l->dp, l->cp, l->tp, l->ep ? l->ep : 1, l->zero, l->shard ? " hybrid" : "",
             pipeline_kind_name(l->schedule), l->chunks, l->rows, l->no_sequence ? " no-sp" : "",
             l->per_micro_batch ? " per-micro-batch" : "", l->gather_keys ? " kv-gather" : "",
             l->bf16 ? " bf16" : "");
    return out;
}

// Sample `index` of the run: documents of some lengths packed into a row, the rest padding.
static void fill_row(struct batch *b, int row, int64_t index, int vocab) {
    uint64_t key = random_key(7, "world");
    int at = row * b->context, end = at + b->context;
    uint64_t draw = (uint64_t)index * 1000;
    while (end - at > 4) {
        int length = 3 + (int)(random_uniform(key, draw++) * (b->context * 0.7));
        if (length > end - at) length = end - at;
        int first = at;
        for (int i = 0; i < length; i++, at++) {
            b->input[at] = (int32_t)(random_uniform(key, draw++) * vocab);
            b->target[at] = i + 1 < length ? (int32_t)(random_uniform(key, draw) * vocab) : -1;
            b->position[at] = i;
            b->attend_from[at] = first;
            b->attend_to[at] = at + 1;
        }
        if (index % 3 == 2) break; // a short sample
    }
    b->non_pad += at - row * b->context;
    for (; at < end; at++) {
        b->input[at] = 0;
        b->target[at] = -1;
        b->position[at] = 0;
        b->attend_from[at] = at;
        b->attend_to[at] = at + 1;
    }
}

static void fill(struct batch *b, int64_t first_sample, int vocab) {
    b->non_pad = 0;
    for (int r = 0; r < b->rows; r++) fill_row(b, r, first_sample + r, vocab);
}

static void count(struct batch *b) {
    b->counted = b->attended_pairs = 0;
    for (int i = 0; i < b->tokens; i++) {
        b->counted += b->target[i] >= 0;
        b->attended_pairs += b->attend_to[i] - b->attend_from[i];
    }
}

// ---- routes -------------------------------------------------------------------------------------

static size_t routes_of_step(const struct world_layout *l, const struct model_config *c) {
    return (size_t)c->layers * (size_t)samples_of(l) * WORLD_CONTEXT * (size_t)c->top_k;
}

// Moves a rank's choices of a step between the engine's order and that of the global batch.
static void move_routes(const struct world_layout *l, const struct model_config *c, const int *at,
                        const struct batch *batches, int32_t *global, int32_t *local, bool out) {
    int micro_batches = world_micro_batches(l), each = WORLD_CONTEXT * l->rows / l->cp;
    size_t token = (size_t)c->top_k * sizeof *local;
    for (int m = 0; m < micro_batches; m++) {
        struct batch_share share;
        struct err err = {0};
        void *memory = malloc(batch_share_bytes(batches[m].tokens, l->cp));
        CHECK_OK(batch_share_make(&share, &batches[m], l->cp, at[MESH_CP],
                                  l->per_document ? BATCH_BALANCE_DOCUMENT : BATCH_BALANCE_ROW,
                                  memory, &err),
                 err);
        int64_t sample = (int64_t)(at[MESH_DP] * micro_batches + m) * l->rows;
        for (int layer = 0; layer < c->layers; layer++)
            for (int i = 0; i < each; i++) {
                int64_t place = (layer * (int64_t)samples_of(l) + sample) * WORLD_CONTEXT +
                                batch_share_global(&share, at[MESH_CP], i);
                int64_t own = ((int64_t)layer * micro_batches + m) * each + i;
                int32_t *g = global + place * c->top_k, *k = local + own * c->top_k;
                if (!out)
                    memcpy(k, g, token);
                else if (k[0] != INT32_MIN) // of this rank's layers
                    memcpy(g, k, token);
            }
        free(memory);
    }
}

// ---- one rank -----------------------------------------------------------------------------------

struct world {
    const struct world_layout *layout;
    struct world_result *result;
    struct model model;
    size_t *first; // [params] in the whole arrays
    pthread_mutex_t lock;
    float *saved[3];   // weights, first and second moments at the resume
    float *saved_bias; // [layers][experts]
};

struct rank {
    struct world *world;
    struct comm *comm;
    int rank;
    pthread_t thread;
};

static struct layout make_layout(const struct world_layout *l, const struct model_config *c) {
    struct err err = {0};
    struct layout layout = {.mesh = {.size = {l->pp, l->dp, l->cp, l->tp},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = l->ep ? l->ep : 1,
                                     .shard = l->shard ? l->shard : l->dp * l->cp},
                            .chunks = l->chunks ? l->chunks : 1,
                            .placement = l->schedule == PIPELINE_ZB_V ? PLACE_V : PLACE_LOOP,
                            .sequence_parallel = l->tp > 1 && !l->no_sequence,
                            .zero = l->zero};
    CHECK_OK(layout_split_layers(&layout, c, NULL, 0, false, &err), err);
    return layout;
}

enum movement { OUT_OF_ENGINE, INTO_ENGINE, COMPARE };

// Copies slices into whole arrays, or out of them, or notes where they differ.
static void move_slices(struct world *w, struct engine *e, enum engine_part part, float *whole,
                        float *second, enum movement movement) {
    struct err err = {0};
    struct tensor_slice *slices;
    int count;
    CHECK_OK(engine_slices(e, part, &slices, &count, &err), err);
    for (int i = 0; i < count; i++) {
        struct tensor_slice *s = &slices[i];
        char name[TENSOR_NAME_BYTES];
        snprintf(name, sizeof name, "%s", s->name);
        float *to = whole;
        char *suffix = part == ENGINE_MOMENTS ? strstr(name, ".moment") : NULL;
        if (suffix) {
            if (suffix[7] == '2') to = second;
            *suffix = 0;
        }
        int p = 0;
        while (strcmp(w->model.params[p].name, name) != 0) p++;
        int64_t columns = w->model.params[p].columns;
        CHECK(s->row + s->rows <= w->model.params[p].rows && s->column + s->columns <= columns);
        for (int64_t r = 0; r < s->rows; r++) {
            float *here = to + w->first[p] + (size_t)((s->row + r) * columns + s->column);
            float *there = (float *)s->data + r * s->stride;
            if (movement == INTO_ENGINE)
                memcpy(there, here, (size_t)s->columns * sizeof *here);
            else if (movement == COMPARE)
                w->result->copies_are_equal =
                    w->result->copies_are_equal &&
                    memcmp(here, there, (size_t)s->columns * sizeof *here) == 0;
            else if (s->copy == 0)
                memcpy(here, there, (size_t)s->columns * sizeof *here);
        }
    }
    free(slices);
}

static void move_bias(struct world *w, struct engine *e, enum movement movement) {
    struct err err = {0};
    struct tensor_slice *slices;
    int count;
    CHECK_OK(engine_slices(e, ENGINE_EXPERT_BIAS, &slices, &count, &err), err);
    for (int i = 0; i < count; i++) {
        int layer = atoi(slices[i].name + strlen("layers."));
        float *here = w->saved_bias + (size_t)layer * (size_t)w->model.config.experts;
        size_t bytes = (size_t)slices[i].rows * sizeof *here;
        CHECK_EQ_INT(slices[i].rows, w->model.config.experts);
        if (movement == INTO_ENGINE)
            memcpy(slices[i].data, here, bytes);
        else if (slices[i].copy == 0)
            memcpy(here, slices[i].data, bytes);
    }
    free(slices);
}

static void collect(struct world *w, struct engine *e, float *weights, float *first,
                    float *second) {
    pthread_mutex_lock(&w->lock);
    move_slices(w, e, ENGINE_MASTER, weights, NULL, OUT_OF_ENGINE);
    if (first) move_slices(w, e, ENGINE_MOMENTS, first, second, OUT_OF_ENGINE);
    move_bias(w, e, OUT_OF_ENGINE);
    pthread_mutex_unlock(&w->lock);
}

// ---- snapshots ----------------------------------------------------------------------------------

static void state_slices(struct engine *e, struct tensor_slice **out, int *out_count) {
    static const enum engine_part parts[] = {ENGINE_MASTER, ENGINE_MOMENTS, ENGINE_EXPERT_BIAS};
    struct tensor_slice *all = NULL;
    struct err err = {0};
    int count = 0;
    for (int i = 0; i < 3; i++) {
        struct tensor_slice *some;
        int more;
        CHECK_OK(engine_slices(e, parts[i], &some, &more, &err), err);
        all = realloc(all, ((size_t)(count + more) + 1) * sizeof *all);
        if (more > 0) memcpy(all + count, some, (size_t)more * sizeof *all);
        count += more;
        free(some);
    }
    *out = all;
    *out_count = count;
}

static struct comm_stream *all_ranks(struct rank *r) {
    struct err err = {0};
    int members[64], n = comm_size(r->comm);
    for (int i = 0; i < n; i++) members[i] = i;
    struct comm_stream *s = comm_stream_open(r->comm, "test", members, n, &err);
    if (!s) test_fail(__FILE__, __LINE__, "%s", err.text);
    return s;
}

// Rank 0 has a host of its own, which is lost; its images are on the other host.
static void host_folder(const struct rank *r, char out[4096]) {
    snprintf(out, 4096, "%s/host-%d", r->world->layout->snapshots, r->rank > 0);
}

// No larger than planned, and no smaller than the state.
static void save_to_memory(struct rank *r, struct engine *e, int64_t step) {
    char folder[4096];
    struct err err = {0};
    struct snapshot *s;
    struct tensor_slice *slices;
    int count;
    const struct memory_plan *plan = engine_memory(e);
    host_folder(r, folder);
    struct snapshot_options options = {
        .folder = folder,
        .run = "test",
        .rank = r->rank,
        .ranks = world_ranks(r->world->layout),
        .session = 7,
        .part_bytes = 50000,
        .generation_bytes = memory_plan_kind_bytes(plan, BUFFER_SNAPSHOT) / SNAPSHOT_GENERATIONS};
    CHECK_OK(snapshot_open(&s, &options, &err), err);
    CHECK_EQ_INT(snapshot_bytes(s), memory_plan_kind_bytes(plan, BUFFER_SNAPSHOT));
    state_slices(e, &slices, &count);
    CHECK_OK(snapshot_slices(s, slices, count, &err), err);
    struct checkpoint_state state = {.step = step, .config = "a: 1\n"};
    CHECK(snapshot_begin(s, &state, &r->world->model.config, 1, &err) >= 0);
    snapshot_wait(s);
    snapshot_close(s); // behind its completion
    free(slices);
}

static void lose_host(const struct rank *r) {
    char from[4096], to[4096], *data;
    struct err err = {0};
    size_t bytes;
    for (int i = 0; i < 2 && world_ranks(r->world->layout) > 1; i++) {
        const char *end = i ? ".json" : ".part";
        snprintf(from, sizeof from, "%.4000s/host-0/gen-0/rank-00000%s",
                 r->world->layout->snapshots, end);
        snprintf(to, sizeof to, "%.4000s/host-1/gen-0/buddy-rank-00000%s",
                 r->world->layout->snapshots, end);
        CHECK_OK(file_read(from, 0, &data, &bytes, &err), err);
        CHECK_OK(file_replace(to, data, bytes, &err), err);
        CHECK_OK(file_remove(from, &err), err);
        free(data);
    }
}

static void load_from_memory(struct rank *r, struct engine *e, int64_t step) {
    char folder[4096];
    struct err err = {0};
    struct checkpoint *c = NULL;
    struct tensor_slice *slices;
    int count;
    const char *from;
    struct comm_stream *world = all_ranks(r);
    host_folder(r, folder);
    struct snapshot_places places = {.memory = folder, .run = "test"};
    struct snapshot_choice newest = {.most_step = -1};
    CHECK_OK(snapshot_open_newest(&places, &newest, world, &c, &from, &err), err);
    CHECK(c != NULL);
    CHECK_STR(from, world_ranks(r->world->layout) > 1 ? "buddy" : "memory");
    CHECK_EQ_INT(checkpoint_state(c)->step, step);
    state_slices(e, &slices, &count);
    CHECK_OK(checkpoint_load_slices(c, slices, count, world, &err), err);
    checkpoint_close(c);
    free(slices);
    comm_stream_close(world);
}

struct session { // device and engine of one rank
    struct device device;
    struct layout layout;
    struct engine_parallel parallel;
    struct engine *engine;
};

static void open_session(struct session *s, struct rank *r, const struct world_layout *l) {
    struct err err = {0};
    struct world *w = r->world;
    struct device_cpu_options cpu = {.threads = l->threads ? l->threads : 1};
    CHECK_OK(device_cpu_open(&s->device, &cpu, &err), err);
    s->layout = make_layout(l, &w->model.config);
    s->parallel =
        (struct engine_parallel){.comm = r->comm,
                                 .rank = r->rank,
                                 .layout = &s->layout,
                                 .schedule = l->schedule,
                                 .schedule_csv = l->schedule_csv,
                                 .bucket_bytes = l->bucket_bytes,
                                 .reduce_per_micro_batch = l->per_micro_batch,
                                 .gather_type = l->bf16 || l->bf16_gather ? DTYPE_BF16 : DTYPE_F32,
                                 .reduce_type = l->bf16_wire ? DTYPE_BF16 : DTYPE_F32,
                                 .accumulate_type = l->bf16_gradients ? DTYPE_BF16 : DTYPE_F32,
                                 .prefetch = l->prefetch ? l->prefetch : 1,
                                 .gathers_in_flight = l->in_flight ? l->in_flight : 2,
                                 .gather_keys = l->gather_keys,
                                 .per_document = l->per_document,
                                 .no_overlap = l->no_overlap};
    struct engine_options o = {.parallel = world_ranks(l) > 1 || l->schedule != PIPELINE_1F1B ||
                                                   l->bf16_gradients
                                               ? &s->parallel
                                               : NULL,
                               .compute = l->bf16 ? DTYPE_BF16 : DTYPE_F32,
                               .recompute = l->recompute,
                               .rows = l->rows,
                               .context = WORLD_CONTEXT,
                               .micro_batches = world_micro_batches(l),
                               .train = true,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .dropout = l->dropout,
                               .experts = l->experts,
                               .snapshots = l->snapshots != NULL,
                               .guards = l->guards};
    s->engine = engine_open(&w->model, &s->device, &o, &err);
    if (!s->engine) test_fail(__FILE__, __LINE__, "rank %d: %s", r->rank, err.text);
}

static void close_session(struct session *s) {
    engine_close(s->engine);
    s->device.close(&s->device);
}

static void wait_for_all(struct rank *r) {
    struct comm_stream *s = all_ranks(r);
    comm_wait(comm_barrier(s), NULL);
    comm_stream_close(s);
}

static void *rank_main(void *argument) {
    struct rank *r = argument;
    struct world *w = r->world;
    const struct world_layout *l = w->layout;
    struct err err = {0};
    struct session s;
    open_session(&s, r, l);
    engine_initialise(s.engine, 1);
    if (l->start) {
        move_slices(w, s.engine, ENGINE_MASTER, (float *)l->start, NULL, INTO_ENGINE);
        engine_weights_changed(s.engine);
    }
    if (memory_plan_region_bytes(engine_memory(s.engine)) != engine_allocated_bytes(s.engine))
        w->result->planned_is_allocated = false;
    collect(w, s.engine, w->result->initial, NULL, NULL);
    if (l->at_start) l->at_start(s.engine, r->comm);
    int micro_batches = world_micro_batches(l);
    void *memory = malloc((size_t)micro_batches * batch_bytes(l->rows * WORLD_CONTEXT));
    struct batch batches[WORLD_MOST_SAMPLES], *list[WORLD_MOST_SAMPLES];
    for (int m = 0; m < micro_batches; m++) {
        batch_place(&batches[m], (char *)memory + (size_t)m * batch_bytes(l->rows * WORLD_CONTEXT),
                    l->rows, WORLD_CONTEXT);
        list[m] = &batches[m];
    }
    int at[MESH_AXES];
    mesh_at(&s.layout.mesh, r->rank, at);
    int steps = l->steps ? l->steps : WORLD_STEPS;
    for (int step = 0; step < steps; step++) {
        if (l->resume_at && step == l->resume_at) {
            collect(w, s.engine, w->saved[0], w->saved[1], w->saved[2]);
            if (l->snapshots) save_to_memory(r, s.engine, step);
            wait_for_all(r);
            if (l->snapshots && r->rank == 0) lose_host(r);
            wait_for_all(r);
            close_session(&s);
            open_session(&s, r, l->resume_as ? l->resume_as : l);
            mesh_at(&s.layout.mesh, r->rank, at);
            if (l->snapshots) {
                load_from_memory(r, s.engine, step);
            } else {
                pthread_mutex_lock(&w->lock);
                move_slices(w, s.engine, ENGINE_MASTER, w->saved[0], NULL, INTO_ENGINE);
                move_slices(w, s.engine, ENGINE_MOMENTS, w->saved[1], w->saved[2], INTO_ENGINE);
                move_bias(w, s.engine, INTO_ENGINE);
                pthread_mutex_unlock(&w->lock);
            }
            wait_for_all(r);
            engine_weights_changed(s.engine);
        }
        for (int m = 0; m < micro_batches; m++) {
            int index = at[MESH_DP] * micro_batches + m;
            batches[m].context = WORLD_CONTEXT;
            batches[m].tokens = WORLD_CONTEXT * l->rows;
            fill(&batches[m], (int64_t)step * samples_of(l) + index * l->rows,
                 w->model.config.vocab);
            if (l->edit) l->edit(&batches[m], step, index);
            count(&batches[m]);
        }
        struct engine_routes routes = {.mode = l->replay    ? ROUTES_REPLAY
                                               : l->compare ? ROUTES_COMPARE
                                                            : ROUTES_RECORD};
        const struct world_result *given = l->replay ? l->replay : l->compare;
        size_t step_routes = routes_of_step(l, &w->model.config);
        int64_t own_routes = engine_route_count(s.engine);
        if (own_routes > 0) {
            routes.expert = malloc((size_t)own_routes * sizeof *routes.expert);
            for (int64_t i = 0; i < own_routes; i++) routes.expert[i] = INT32_MIN;
            if (given)
                move_routes(l, &w->model.config, at, batches,
                            given->routes + (size_t)step * step_routes, routes.expert, false);
            engine_use_routes(s.engine, &routes);
        }
        struct engine_step es = {.learning_rate = l->frozen ? 0 : 0.003,
                                 .clip_norm = l->clip > 0 ? l->clip : 1.0,
                                 .update = step + 1,
                                 .dropout_seed = (uint64_t)step + 7};
        if (l->before_step) l->before_step(s.engine, r->rank, step, &es);
        if (engine_run_step(s.engine, list, micro_batches, &es, &err) != 0)
            test_fail(__FILE__, __LINE__, "rank %d, step %d: %s", r->rank, step, err.text);
        if (l->after_step) l->after_step(s.engine, r->rank, step, &es);
        pthread_mutex_lock(&w->lock);
        struct world_result *out = w->result;
        if (r->rank == 0) {
            out->loss[step] = es.loss;
            out->norm[step] = es.gradient_norm;
            out->last = es;
            out->counted = es.counted;
            out->balance = es.expert_balance;
            out->dropped += es.dropped;
        }
        if (own_routes > 0 && routes.mode == ROUTES_RECORD)
            move_routes(l, &w->model.config, at, batches, out->routes + (size_t)step * step_routes,
                        routes.expert, true);
        out->flipped += routes.flipped;
        out->gap = fmax(out->gap, routes.gap);
        free(routes.expert);
        pthread_mutex_unlock(&w->lock);
        wait_for_all(r);
        // every rank has the same figures
        if (!l->ranks_differ && (memcmp(&out->loss[step], &es.loss, sizeof es.loss) != 0 ||
                                 memcmp(&out->norm[step], &es.gradient_norm, sizeof es.loss) != 0))
            test_fail(__FILE__, __LINE__, "rank %d, step %d: loss %a, norm %a; rank 0: %a, %a",
                      r->rank, step, es.loss, es.gradient_norm, out->loss[step], out->norm[step]);
    }
    collect(w, s.engine, w->result->weights, w->result->moments, w->saved[2]);
    wait_for_all(r);
    pthread_mutex_lock(&w->lock);
    move_slices(w, s.engine, ENGINE_MASTER, w->result->weights, NULL, COMPARE);
    move_slices(w, s.engine, ENGINE_MOMENTS, w->result->moments, w->saved[2], COMPARE);
    pthread_mutex_unlock(&w->lock);
    wait_for_all(r);
    close_session(&s);
    free(memory);
    return NULL;
}

// ---- all of them --------------------------------------------------------------------------------

// GPT-2's key biases shift all scores of a query alike: their gradient is rounding and nothing
// else.
static void mark_ignored(const struct world *w, unsigned char *ignored) {
    for (int p = 0; p < w->model.param_count; p++) {
        const struct param *param = &w->model.params[p];
        if (param->role == PARAM_QKV_BIAS)
            memset(ignored + w->first[p] + param->part_rows[0], 1, (size_t)param->part_rows[1]);
    }
}

void world_run(const struct world_layout *layout, struct world_result *out) {
    struct err err = {0};
    struct model_config config = world_model(layout->model);
    struct world w = {.layout = layout, .result = out};
    int ranks = world_ranks(layout);
    *out = (struct world_result){.planned_is_allocated = true, .copies_are_equal = true};
    CHECK_OK(model_describe(&w.model, &config, &err), err);
    w.first = calloc((size_t)w.model.param_count + 1, sizeof *w.first);
    for (int p = 0; p < w.model.param_count; p++)
        w.first[p + 1] = w.first[p] + (size_t)param_elements(&w.model.params[p]);
    size_t count = out->weight_count = w.first[w.model.param_count];
    out->ignored = calloc(count, 1);
    mark_ignored(&w, out->ignored);
    out->routes =
        calloc(WORLD_MOST_STEPS * routes_of_step(layout, &config) + 1, sizeof *out->routes);
    out->weights = calloc(count, sizeof(float));
    out->moments = calloc(count, sizeof(float));
    out->initial = calloc(count, sizeof(float));
    for (int i = 0; i < 3; i++) w.saved[i] = calloc(count, sizeof(float));
    w.saved_bias = calloc((size_t)(config.layers * config.experts) + 1, sizeof(float));
    pthread_mutex_init(&w.lock, NULL);
    struct comm **ends = calloc((size_t)ranks, sizeof *ends);
    struct rank *all = calloc((size_t)ranks, sizeof *all);
    struct comm_options options = {.watchdog_seconds = 60};
    CHECK_OK(comm_open_threads(ends, ranks, &options, &err), err);
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){.world = &w, .comm = ends[r], .rank = r};
        CHECK(pthread_create(&all[r].thread, NULL, rank_main, &all[r]) == 0);
    }
    for (int r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
    for (int r = 0; r < ranks; r++) comm_close(ends[r]);
    for (int i = 0; i < 3; i++) free(w.saved[i]);
    free(w.saved_bias);
    free(ends);
    free(all);
    free(w.first);
    pthread_mutex_destroy(&w.lock);
    model_free(&w.model);
}

void world_free(struct world_result *r) {
    free(r->weights);
    free(r->moments);
    free(r->initial);
    free(r->ignored);
    free(r->routes);
}

bool world_same(const struct world_result *a, const struct world_result *b, int steps) {
    size_t doubles = (size_t)steps * sizeof a->loss[0], floats = a->weight_count * sizeof(float);
    return a->weight_count == b->weight_count && memcmp(a->loss, b->loss, doubles) == 0 &&
           memcmp(a->norm, b->norm, doubles) == 0 && memcmp(a->weights, b->weights, floats) == 0;
}

const char *world_apart(const struct world_result *a, const struct world_result *b, int steps,
                        char out[200]) {
    for (int s = 0; s < steps; s++) {
        if (!(fabs(a->loss[s] - b->loss[s]) <= 1e-5 * fabs(b->loss[s]))) {
            snprintf(out, 200, "loss of step %d: %.9g and %.9g", s + 1, a->loss[s], b->loss[s]);
            return out;
        }
        if (!(fabs(a->norm[s] - b->norm[s]) <= 1e-4 * fabs(b->norm[s]))) {
            snprintf(out, 200, "gradient norm of step %d: %.9g and %.9g", s + 1, a->norm[s],
                     b->norm[s]);
            return out;
        }
    }
    double difference = 0, update = 0;
    for (size_t i = 0; i < a->weight_count; i++) {
        if (a->ignored[i]) continue;
        double d = (double)a->weights[i] - (double)b->weights[i];
        double u = (double)b->weights[i] - (double)b->initial[i];
        difference += d * d;
        update += u * u;
    }
    if (sqrt(difference) <= 1e-3 * sqrt(update)) return NULL;
    snprintf(out, 200, "weights: norm of the difference %.3g, of the update %.3g", sqrt(difference),
             sqrt(update));
    return out;
}
