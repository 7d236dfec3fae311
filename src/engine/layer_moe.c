// The place of a mixture of experts in the engine: its options and statistics, and a layer as moe.h
// wants to see it. Sizes: layer_moe_plan.c.
#include "engine/moe.h"
#include "engine/state.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Arrays have a row per local layer; those of dense layers stay unused.
struct engine_moe {
    struct moe_shape shape;
    int layers, experts;
    struct moe_statistics *statistics; // [layers] of the step
    int64_t *counts;                   // [layers][experts]
    double *score_sum;
    float *bias;     // state, see engine_expert_bias
    int64_t *global; // choices of the whole step (scope global)
    bool *known;     // [layers] `global` has been summed over ranks
    double aux_scale, z_scale;
    bool counts_now, counts_ahead; // forward passes are counted; they are the pass before the step
    struct engine_routes *routes;
};

// ---- opening ----------------------------------------------------------------------------------

int engine_moe_open(struct engine *e, struct err *err) {
    struct rank_expert_buffer unused[MOE_BUFFER_COUNT + 1];
    struct moe_shape shape;
    if (engine_moe_enumerate(e, unused, &shape) == 0) return 0;
    struct engine_moe *m = calloc(1, sizeof *m);
    e->moe = m;
    if (!m) return err_set(err, ERR_MEMORY, "no memory for the tables of experts");
    m->shape = shape;
    m->layers = e->model->config.layers;
    m->experts = m->shape.experts;
    size_t layers = (size_t)m->layers, all = layers * (size_t)m->experts;
    m->statistics = calloc(layers, sizeof *m->statistics);
    m->known = calloc(layers, sizeof *m->known);
    m->counts = calloc(all, sizeof *m->counts);
    m->global = calloc(all, sizeof *m->global);
    m->score_sum = calloc(all, sizeof *m->score_sum);
    m->bias = calloc(all, sizeof *m->bias);
    if (!m->statistics || !m->known || !m->counts || !m->global || !m->score_sum || !m->bias)
        return err_set(err, ERR_MEMORY, "no memory for the tables of experts");
    return 0;
}

void engine_moe_close(struct engine *e) {
    struct engine_moe *m = e->moe;
    if (!m) return;
    free(m->statistics);
    free(m->known);
    free(m->counts);
    free(m->global);
    free(m->score_sum);
    free(m->bias);
    free(m);
    e->moe = NULL;
}

void engine_moe_enter(struct engine *e, int layer, int slot, int flow) {
    e->layers[layer].slot = slot;
    e->layers[layer].flow_number = flow;
}

// ---- a layer ----------------------------------------------------------------------------------

static struct moe_gradient gradient(void *context, int param) {
    struct engine *e = context;
    return (struct moe_gradient){engine_gradient(e, param), engine_first(e, param)};
}

static void *expert_buffer(const struct engine *e, int which, int layer) {
    const struct engine_layer *l = &e->layers[layer];
    return engine_buffer(e, rank_expert_buffer(&e->buffers, which, l->slot, l->flow_number, layer));
}

static struct device_weight router_weight(struct engine *e, int layer, int param) {
    const struct param *p = &e->model->params[param];
    struct device_weight w = {p->rows_padded,          p->columns, DTYPE_F32,
                              engine_weight(e, param), NULL,       NULL};
    if (e->type == DTYPE_F32) return w;
    void *wide = expert_buffer(e, MOE_BUFFER_COUNT, layer);
    e->device->convert(e->device, w.n * w.k, w.plain, e->type, wide, DTYPE_F32);
    w.plain = wide;
    return w;
}

static struct moe_layer layer_of(struct engine *e, int layer, const struct batch *batch) {
    struct engine_moe *moe = e->moe;
    const struct engine_layer *l = &e->layers[layer];
    const struct engine_experts *o = &e->options.experts;
    struct moe_layer m = {.shape = moe->shape,
                          .device = e->device,
                          .ep_stream = e->stream[GROUP_EP],
                          .cp_stream = e->stream[GROUP_CP],
                          .tp_index = e->tp_index,
                          .weight = e->weight,
                          .router_param = l->param[PARAM_ROUTER],
                          .expert_up = l->param[PARAM_EXPERT_UP],
                          .shared_up = l->param[PARAM_SHARED_UP],
                          .shared_down = l->param[PARAM_SHARED_DOWN],
                          .normalise = e->model->config.norm_top_k,
                          .gradient = gradient,
                          .context = e,
                          .batch = batch,
                          .sequence_tokens = e->options.context,
                          .capacity_factor = o->capacity_factor,
                          .aux_scope = o->aux_global ? MOE_AUX_GLOBAL : MOE_AUX_SEQUENCE,
                          .aux_scale = moe->aux_scale,
                          .z_scale = moe->z_scale,
                          .global_counts = moe->global + (size_t)layer * (size_t)moe->experts};
    m.ep_index = m.ep_stream ? comm_stream_index(m.ep_stream) : 0;
    m.router = router_weight(e, layer, m.router_param);
    if (o->bias_rate > 0) m.bias = moe->bias + (size_t)layer * (size_t)moe->experts;
    if (e->cp > 1) {
        const struct batch_share *share = &e->shares[engine_micro_batch(e, batch)];
        m.place = share->position + (int64_t)share->index * share->each;
    }
    for (int i = 0; i < MOE_BUFFER_COUNT; i++) m.buffer[i] = expert_buffer(e, i, layer);
    return m;
}

// ---- routes of earlier runs -------------------------------------------------------------------

int64_t engine_route_count(const struct engine *e) {
    const struct engine_moe *m = e->moe;
    if (!m) return 0;
    return (int64_t)e->whole->config.layers * e->options.micro_batches * m->shape.tokens *
           m->shape.top_k;
}

void engine_use_routes(struct engine *e, struct engine_routes *routes) {
    if (e->moe) e->moe->routes = routes;
}

static int32_t *routes_of(const struct engine *e, int layer, const struct batch *batch) {
    const struct engine_moe *m = e->moe;
    int64_t row =
        (int64_t)e->layers[layer].whole * e->options.micro_batches + engine_micro_batch(e, batch);
    return m->routes->expert + row * m->shape.tokens * m->shape.top_k;
}

// A choice that the recorded run did not make counts as flipped; the gap is how much better its
// score is here than that of the best recorded choice that is missing.
static void compare_routes(struct engine_routes *r, const struct moe_layer *m,
                           const int32_t *recorded) {
    const int32_t *expert = m->buffer[MOE_EXPERT];
    const float *score = m->buffer[MOE_SCORE];
    int top_k = m->shape.top_k;
    for (int64_t t = 0; t < m->batch->tokens; t++) {
        const int32_t *own = expert + t * top_k, *other = recorded + t * top_k;
        const float *s = score + t * m->shape.experts;
        if (own[0] < 0) continue;
        for (int k = 0; k < top_k; k++) {
            bool found = false;
            double nearest = HUGE_VAL;
            for (int j = 0; j < top_k; j++) found = found || other[j] == own[k];
            if (found) continue;
            for (int j = 0; j < top_k; j++) {
                bool shared = false;
                for (int i = 0; i < top_k; i++) shared = shared || own[i] == other[j];
                if (!shared) nearest = fmin(nearest, fabs((double)(s[own[k]] - s[other[j]])));
            }
            r->flipped++;
            r->gap = fmax(r->gap, nearest);
        }
    }
}

static void keep_routes(struct engine *e, int layer, const struct moe_layer *m) {
    struct engine_routes *r = e->moe->routes;
    if (!r || e->moe->counts_ahead) return;
    int32_t *place = routes_of(e, layer, m->batch);
    if (r->mode == ROUTES_RECORD)
        memcpy(place, m->buffer[MOE_EXPERT],
               (size_t)m->batch->tokens * (size_t)m->shape.top_k * sizeof *place);
    if (r->mode == ROUTES_COMPARE) compare_routes(r, m, place);
}

// ---- passes -----------------------------------------------------------------------------------

void layer_moe_forward(struct engine *e, int layer, const struct batch *batch, const void *x,
                       void *y, bool again) {
    struct moe_layer m = layer_of(e, layer, batch);
    struct engine_moe *moe = e->moe;
    if (moe->counts_now && !again) m.statistics = &moe->statistics[layer];
    if (moe->routes && moe->routes->mode == ROUTES_REPLAY) m.chosen = routes_of(e, layer, batch);
    moe_forward(&m, x, y);
    if (moe->counts_now && !again) keep_routes(e, layer, &m);
}

// Scope global: the choices of all ranks, once per step and layer. Every rank comes here with the
// same layers in the same order.
static void know_counts(struct engine *e, int layer) {
    struct engine_moe *m = e->moe;
    if (!e->options.experts.aux_global || m->aux_scale == 0 || m->known[layer]) return;
    int64_t *global = m->global + (size_t)layer * (size_t)m->experts;
    memcpy(global, m->statistics[layer].counts, (size_t)m->experts * sizeof *global);
    moe_sum_counts(global, m->experts, e->stream[GROUP_DATA]);
    m->known[layer] = true;
}

void layer_moe_backward_input(struct engine *e, int layer, const struct batch *batch, const void *x,
                              const void *dy, void *dx) {
    know_counts(e, layer);
    struct moe_layer m = layer_of(e, layer, batch);
    moe_backward_input(&m, x, dy, dx);
}

void layer_moe_backward_weight(struct engine *e, int layer, const struct batch *batch,
                               const void *x, const void *dy) {
    struct moe_layer m = layer_of(e, layer, batch);
    moe_backward_weight(&m, x, dy);
}

// ---- step -------------------------------------------------------------------------------------

static void clear(struct engine_moe *m) {
    size_t all = (size_t)m->layers * (size_t)m->experts;
    memset(m->counts, 0, all * sizeof *m->counts);
    memset(m->score_sum, 0, all * sizeof *m->score_sum);
    for (int l = 0; l < m->layers; l++)
        m->statistics[l] =
            (struct moe_statistics){.counts = m->counts + (size_t)l * (size_t)m->experts,
                                    .score_sum = m->score_sum + (size_t)l * (size_t)m->experts};
}

// Whether a stage of this rank begins its backward before its last forward.
static bool interleaves(const struct schedule *s) {
    for (int i = 0; i < s->count; i++) {
        const struct action *a = &s->actions[i];
        if (!action_is_first_of_backward(a->kind)) continue;
        for (int k = i + 1; k < s->count; k++)
            if (s->actions[k].kind == ACTION_FORWARD && s->actions[k].stage == a->stage)
                return true;
    }
    return false;
}

void engine_moe_begin(struct engine *e, int64_t tokens) {
    struct engine_moe *m = e->moe;
    if (!m) return;
    const struct engine_experts *o = &e->options.experts;
    m->aux_scale = o->aux_coefficient / (double)tokens;
    m->z_scale = o->z_coefficient / (double)tokens;
    m->counts_now = true;
    memset(m->known, 0, (size_t)m->layers * sizeof *m->known);
    clear(m);
}

bool engine_moe_counts_ahead(const struct engine *e) {
    const struct engine_experts *o = &e->options.experts;
    if (e->whole->config.experts == 0 || !o->aux_global || o->aux_coefficient == 0) return false;
    for (int r = 0; r < e->pipeline.shape.ranks; r++)
        if (interleaves(&e->pipeline.ranks[r])) return true;
    return false;
}

void engine_moe_ahead(struct engine *e, bool begin) {
    struct engine_moe *m = e->moe;
    if (!m) return;
    m->counts_ahead = begin;
    if (begin) return;
    for (int l = 0; l < m->layers; l++)
        if (model_layer_has_experts(&e->model->config, l)) know_counts(e, l);
    clear(m);
}

// Of the local layers with experts.
struct figures {
    double balance; // added up
    int layers;
    double max_load;
    int64_t dropped;
};

// Whole numbers of all layers in one sum, then a double per layer. The balance is linear in the
// scores once the counts are those of all ranks.
static struct figures sum_up(struct engine *e, int64_t tokens) {
    enum { ROUND = 64 };
    struct engine_moe *m = e->moe;
    struct comm_stream *data = e->stream[GROUP_DATA];
    struct figures f = {.layers = 0};
    moe_sum_counts(m->counts, m->layers * m->experts, data);
    for (int first = 0; first < m->layers; first += ROUND) {
        int count = m->layers - first < ROUND ? m->layers - first : ROUND;
        double balance[ROUND];
        for (int i = 0; i < count; i++) {
            m->statistics[first + i].tokens = tokens;
            balance[i] = moe_balance(&m->statistics[first + i], m->experts);
        }
        if (data) comm_sum_doubles(data, balance, count);
        for (int i = 0; i < count; i++) {
            const struct moe_statistics *s = &m->statistics[first + i];
            if (!model_layer_has_experts(&e->model->config, first + i)) continue;
            f.layers++;
            f.balance += balance[i];
            f.max_load = fmax(f.max_load, moe_max_load(s, m->experts));
            f.dropped += s->dropped;
        }
    }
    return f;
}

// Every rank takes part in the sums, also one without such layers.
void engine_moe_end(struct engine *e, struct engine_step *step) {
    const double load_unit = 1e-6; // the largest is found among whole numbers
    struct figures f = {.layers = 0};
    if (e->whole->config.experts == 0) return;
    if (e->moe) {
        e->moe->counts_now = false;
        f = sum_up(e, step->non_pad);
    }
    int64_t load = (int64_t)llround(f.max_load / load_unit);
    double parts[2] = {f.balance, f.layers};
    if (e->stream[GROUP_DATA]) comm_sum_integers(e->stream[GROUP_DATA], &f.dropped, 1);
    if (e->stream[GROUP_PP]) {
        comm_sum_doubles(e->stream[GROUP_PP], parts, 2);
        comm_sum_integers(e->stream[GROUP_PP], &f.dropped, 1);
        comm_max_integers(e->stream[GROUP_PP], &load, 1);
    }
    step->expert_balance = parts[1] > 0 ? parts[0] / parts[1] : 0;
    step->expert_max_load = (double)load * load_unit;
    step->dropped = f.dropped;
}

void engine_moe_update(struct engine *e) {
    struct engine_moe *m = e->moe;
    double rate = e->options.experts.bias_rate;
    if (!m || rate <= 0) return;
    for (int l = 0; l < m->layers; l++)
        if (model_layer_has_experts(&e->model->config, l))
            moe_update_bias(m->bias + (size_t)l * (size_t)m->experts, m->statistics[l].counts,
                            m->experts, rate);
}

float *engine_expert_bias(struct engine *e, int layer) {
    return e->moe ? e->moe->bias + (size_t)layer * (size_t)e->moe->experts : NULL;
}
