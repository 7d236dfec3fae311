// A layer's experts forward and backward, wave by wave; see moe.h.
#include "engine/moe.h"
#include <string.h>

static size_t row_bytes(const struct moe_layer *m, int64_t width) {
    return (size_t)width * dtype_bytes(m->shape.type);
}

static void *row(const struct moe_layer *m, enum moe_buffer buffer, int64_t width, int64_t index) {
    return (char *)m->buffer[buffer] + (size_t)index * row_bytes(m, width);
}

// ---- rows on their way ------------------------------------------------------------------------

// Elements of `bytes` per row, from sorted order to received order, or back.
static struct comm_event exchange(const struct moe_layer *m, uint64_t bytes, void *sorted,
                                  void *received, bool back) {
    struct moe_small small = moe_small(m);
    for (int i = 0; i < m->shape.ep; i++) {
        uint64_t sorted_at = (uint64_t)small.send_first[i] * bytes;
        uint64_t sorted_bytes = (uint64_t)small.send_rows[i] * bytes;
        uint64_t received_at = (uint64_t)small.receive_first[i] * bytes;
        uint64_t received_bytes = (uint64_t)small.receive_rows[i] * bytes;
        small.from_offset[i] = back ? received_at : sorted_at;
        small.from_bytes[i] = back ? received_bytes : sorted_bytes;
        small.to_offset[i] = back ? sorted_at : received_at;
        small.to_bytes[i] = back ? sorted_bytes : received_bytes;
    }
    return comm_all_to_all(m->ep_stream, back ? received : sorted, small.from_offset,
                           small.from_bytes, back ? sorted : received, small.to_offset,
                           small.to_bytes);
}

// Rows of x [tokens, hidden] to the tiles of their experts.
static void dispatch(const struct moe_layer *m, const struct moe_wave *wave, const void *x,
                     void *tiles) {
    struct device *d = m->device;
    int64_t hidden = m->shape.hidden;
    if (!m->ep_stream) {
        d->experts.gather_rows(d, m->shape.type, wave->tile_rows, hidden, m->buffer[MOE_MAP_TOKEN],
                               x, tiles);
        return;
    }
    struct moe_small small = moe_small(m);
    const int32_t *token = m->buffer[MOE_TOKEN];
    for (int i = 0; i < m->shape.ep; i++)
        d->experts.gather_rows(d, m->shape.type, small.send_rows[i], hidden,
                               token + small.send_first[i], x,
                               row(m, MOE_ROWS, hidden, small.send_first[i]));
    comm_wait(
        exchange(m, row_bytes(m, hidden), m->buffer[MOE_ROWS], m->buffer[MOE_RECEIVED], false),
        d->lane);
    d->experts.gather_rows(d, m->shape.type, wave->tile_rows, hidden, m->buffer[MOE_MAP],
                           m->buffer[MOE_RECEIVED], tiles);
}

static void dispatch_weights(const struct moe_layer *m, const struct moe_wave *wave) {
    const int32_t *map = m->buffer[MOE_MAP];
    const float *from = m->buffer[MOE_ROW_WEIGHT];
    float *to = m->buffer[MOE_TILE_WEIGHT];
    if (m->ep_stream) {
        comm_wait(exchange(m, 4, m->buffer[MOE_ROW_WEIGHT], m->buffer[MOE_RECEIVED_WEIGHT], false),
                  m->device->lane);
        from = m->buffer[MOE_RECEIVED_WEIGHT];
    }
    for (int64_t i = 0; i < wave->tile_rows; i++) to[i] = map[i] < 0 ? 0 : from[map[i]];
}

// MOE_OUT back to sorted rows in MOE_ROWS; with backward the gradients of the weights too.
static void give_back(const struct moe_layer *m, const struct moe_wave *wave, bool weights) {
    struct device *d = m->device;
    const int32_t *map = m->buffer[MOE_MAP];
    const float *gradient = m->buffer[MOE_TILE_GRADIENT];
    void *rows = m->buffer[m->ep_stream ? MOE_RECEIVED : MOE_ROWS];
    float *sums = m->buffer[m->ep_stream ? MOE_RECEIVED_WEIGHT : MOE_ROW_WEIGHT];
    d->experts.scatter_rows(d, m->shape.type, wave->tile_rows, m->shape.hidden, map,
                            m->buffer[MOE_OUT], rows);
    for (int64_t i = 0; weights && i < wave->tile_rows; i++)
        if (map[i] >= 0) sums[map[i]] = gradient[i];
    if (!m->ep_stream) return;
    comm_wait(exchange(m, row_bytes(m, m->shape.hidden), m->buffer[MOE_ROWS], rows, true), d->lane);
    if (weights) comm_wait(exchange(m, 4, m->buffer[MOE_ROW_WEIGHT], sums, true), d->lane);
}

// ---- products ---------------------------------------------------------------------------------

static const struct device_weight *expert_weight(const struct moe_layer *m, int expert, bool down) {
    return &m->weight[m->expert_up + 2 * expert + (down ? 1 : 0)];
}

static int64_t padded(int64_t rows) {
    return (rows + MOE_PAD - 1) / MOE_PAD * MOE_PAD;
}

// A chunk of the wave's tiles.
struct chunk {
    int expert;
    int64_t first, rows; // padding included
};

// The next chunk behind `c`, which begins as {-1}; false behind the last.
static bool next_chunk(const struct moe_layer *m, struct chunk *c, int64_t *left) {
    struct moe_small small = moe_small(m);
    int local = m->shape.experts / m->shape.ep;
    if (*left > 0) {
        c->first += c->rows;
    } else {
        do {
            if (++c->expert == local) return false;
        } while (small.tile_rows[c->expert] == 0);
        c->first = small.tile_first[c->expert];
        *left = padded(small.tile_rows[c->expert]);
    }
    c->rows = *left < MOE_CHUNK ? *left : MOE_CHUNK;
    *left -= c->rows;
    return true;
}

static void forward_products(const struct moe_layer *m, enum moe_buffer from, enum moe_buffer to,
                             bool down) {
    struct chunk c = {.expert = -1};
    for (int64_t left = 0; next_chunk(m, &c, &left);) {
        const struct device_weight *w = expert_weight(m, c.expert, down);
        m->device->linear_forward(m->device, w, c.rows, row(m, from, w->k, c.first), w->k, NULL,
                                  row(m, to, w->n, c.first), w->n, m->shape.type);
    }
}

static void backward_products(const struct moe_layer *m, enum moe_buffer from, enum moe_buffer to,
                              bool down) {
    struct chunk c = {.expert = -1};
    for (int64_t left = 0; next_chunk(m, &c, &left);) {
        const struct device_weight *w = expert_weight(m, c.expert, down);
        m->device->linear_backward_input(m->device, w, c.rows, row(m, from, w->n, c.first), w->n,
                                         row(m, to, w->k, c.first), w->k);
    }
}

// Adds a chunk's part of a weight gradient: one product of a shape that the chunk alone decides, in
// the order of chunks.
static void add_gradient(const struct moe_layer *m, const struct chunk *c, bool down,
                         struct moe_gradient *g) {
    const struct device_weight *w = expert_weight(m, c->expert, down);
    enum moe_buffer dy = down ? MOE_DOWN : MOE_UP, x = down ? MOE_ACTIVATED : MOE_TILES;
    if (!g->data) *g = m->gradient(m->context, m->expert_up + 2 * c->expert + (down ? 1 : 0));
    m->device->linear_backward_weight(m->device, w, c->rows, row(m, dy, w->n, c->first), w->n,
                                      row(m, x, w->k, c->first), w->k, g->data, g->store);
    g->store = false;
}

static void weight_products(const struct moe_layer *m) {
    struct moe_small small = moe_small(m);
    struct chunk c = {.expert = -1};
    for (int64_t left = 0; next_chunk(m, &c, &left);) {
        add_gradient(m, &c, false, &small.up[c.expert]);
        add_gradient(m, &c, true, &small.down[c.expert]);
    }
}

static void forget_gradients(const struct moe_layer *m) {
    struct moe_small small = moe_small(m);
    size_t bytes = (size_t)(m->shape.experts / m->shape.ep) * sizeof *small.up;
    memset(small.up, 0, bytes);
    memset(small.down, 0, bytes);
}

// ---- shared expert ----------------------------------------------------------------------------

static void shared_up(const struct moe_layer *m, const void *x) {
    const struct device_weight *w = &m->weight[m->shared_up];
    m->device->linear_forward(m->device, w, m->batch->tokens, x, w->k, NULL,
                              m->buffer[MOE_SHARED_UP], w->n, m->shape.type);
}

static const void *shared_forward(const struct moe_layer *m, const void *x) {
    if (m->shape.shared_ffn == 0) return NULL;
    struct device *d = m->device;
    const struct device_weight *w = &m->weight[m->shared_down];
    shared_up(m, x);
    d->swiglu_forward(d, m->shape.type, m->batch->tokens, m->shape.shared_ffn,
                      m->buffer[MOE_SHARED_UP], m->buffer[MOE_SHARED_WIDE]);
    d->linear_forward(d, w, m->batch->tokens, m->buffer[MOE_SHARED_WIDE], w->k, NULL,
                      m->buffer[MOE_SHARED_OUT], w->n, m->shape.type);
    return m->buffer[MOE_SHARED_OUT];
}

static const void *shared_backward(const struct moe_layer *m, const void *x, const void *dy) {
    if (m->shape.shared_ffn == 0) return NULL;
    struct device *d = m->device;
    const struct device_weight *up = &m->weight[m->shared_up], *down = &m->weight[m->shared_down];
    int64_t tokens = m->batch->tokens;
    if (!m->shape.keeps_up) shared_up(m, x);
    d->linear_backward_input(d, down, tokens, dy, down->n, m->buffer[MOE_SHARED_WIDE], down->k);
    d->swiglu_backward(d, m->shape.type, tokens, m->shape.shared_ffn, m->buffer[MOE_SHARED_UP],
                       m->buffer[MOE_SHARED_WIDE], m->buffer[MOE_SHARED_UP],
                       m->buffer[MOE_SHARED_ACTIVATED]);
    d->linear_backward_input(d, up, tokens, m->buffer[MOE_SHARED_UP], up->n,
                             m->buffer[MOE_SHARED_OUT], up->k);
    return m->buffer[MOE_SHARED_OUT];
}

static void weight_gradient(const struct moe_layer *m, const struct device_weight *w, int param,
                            const void *dy, const void *x) {
    struct moe_gradient g = m->gradient(m->context, param);
    m->device->linear_backward_weight(m->device, w, m->batch->tokens, dy, w->n, x, w->k, g.data,
                                      g.store);
}

// ---- forward ----------------------------------------------------------------------------------

// Rows, their weights and the up projection of a wave.
static void load_wave(const struct moe_layer *m, const struct moe_wave *wave, const void *x) {
    dispatch(m, wave, x, m->buffer[MOE_TILES]);
    dispatch_weights(m, wave);
    forward_products(m, MOE_TILES, MOE_UP, false);
}

// Writes to no flow: one may wait for the weight half of another micro-batch.
void moe_forward(const struct moe_layer *m, const void *x, void *y) {
    struct device *d = m->device;
    struct moe_wave wave;
    moe_route(m, x);
    moe_sorted_rows(m);
    int waves = moe_wave_count(m);
    for (int i = 0; i < waves; i++) {
        moe_wave_begin(m, i, &wave);
        load_wave(m, &wave, x);
        d->experts.swiglu_forward(d, m->shape.type, wave.tile_rows, m->shape.expert_ffn,
                                  m->buffer[MOE_UP], m->buffer[MOE_TILE_WEIGHT],
                                  m->buffer[MOE_WIDE]);
        forward_products(m, MOE_WIDE, MOE_OUT, true);
        give_back(m, &wave, false);
    }
    d->experts.combine_rows(d, m->shape.type, m->batch->tokens, m->shape.hidden, m->shape.top_k,
                            m->buffer[MOE_SLOT], m->buffer[MOE_ROWS], shared_forward(m, x), NULL,
                            y);
}

// ---- backward ---------------------------------------------------------------------------------

// From the gradient of a wave's output to that of its up projection. `redo`: the wave's rows and up
// projection are not there.
static void wave_backward(const struct moe_layer *m, const struct moe_wave *wave, const void *x,
                          const void *dy, bool redo) {
    struct device *d = m->device;
    if (redo) load_wave(m, wave, x);
    dispatch(m, wave, dy, m->buffer[MOE_DOWN]);
    backward_products(m, MOE_DOWN, MOE_WIDE, true);
    d->experts.swiglu_backward(d, m->shape.type, wave->tile_rows, m->shape.expert_ffn,
                               m->buffer[MOE_UP], m->buffer[MOE_TILE_WEIGHT], m->buffer[MOE_WIDE],
                               m->buffer[MOE_UP], m->buffer[MOE_TILE_GRADIENT],
                               m->buffer[MOE_ACTIVATED]);
}

// Gradient of the logits from those of the weights and the router's own losses.
static void router_backward(const struct moe_layer *m) {
    int64_t pairs = (int64_t)m->batch->tokens * m->shape.top_k;
    const int32_t *slot = m->buffer[MOE_SLOT];
    const float *row_gradient = m->buffer[MOE_ROW_WEIGHT];
    float *gradient = m->buffer[MOE_CHOICE_GRADIENT];
    for (int64_t i = 0; i < pairs; i++) gradient[i] = slot[i] < 0 ? 0 : row_gradient[slot[i]];
    bool first = m->tp_index == 0, aux = moe_aux_rows(m);
    bool groups = m->aux_scope == MOE_AUX_SEQUENCE;
    struct device_route_backward args = {.tokens = m->batch->tokens,
                                         .experts = m->shape.experts,
                                         .top_k = m->shape.top_k,
                                         .normalise = m->normalise,
                                         .idle = m->buffer[MOE_IDLE],
                                         .expert = m->buffer[MOE_EXPERT],
                                         .weight = m->buffer[MOE_WEIGHT],
                                         .score = m->buffer[MOE_SCORE],
                                         .lse = m->buffer[MOE_LSE],
                                         .dweight = gradient,
                                         .aux = aux ? m->buffer[MOE_AUX] : NULL,
                                         .group = groups ? m->buffer[MOE_SEQUENCE] : NULL,
                                         .z_scale = first ? (float)m->z_scale : 0,
                                         .dlogits = m->buffer[MOE_DLOGITS]};
    m->device->experts.route_backward(m->device, &args);
}

void moe_backward_input(const struct moe_layer *m, const void *x, const void *dy, void *dx) {
    struct device *d = m->device;
    struct moe_wave wave;
    moe_mark_tokens(m);
    moe_sorted_rows(m);
    int waves = moe_wave_count(m);
    for (int i = 0; i < waves; i++) {
        moe_wave_begin(m, i, &wave);
        wave_backward(m, &wave, x, dy, waves > 1 || !m->shape.keeps_up);
        backward_products(m, MOE_UP, MOE_OUT, false);
        give_back(m, &wave, true);
    }
    router_backward(m);
    const struct device_weight *router = &m->router;
    d->linear_backward_input(d, router, m->batch->tokens, m->buffer[MOE_DLOGITS], router->n,
                             m->buffer[MOE_INPUT], router->k);
    d->experts.combine_rows(d, m->shape.type, m->batch->tokens, m->shape.hidden, m->shape.top_k,
                            m->buffer[MOE_SLOT], m->buffer[MOE_ROWS], shared_backward(m, x, dy),
                            m->buffer[MOE_INPUT], dx);
}

void moe_backward_weight(const struct moe_layer *m, const void *x, const void *dy) {
    struct moe_wave wave;
    moe_sorted_rows(m);
    forget_gradients(m);
    int waves = moe_wave_count(m);
    for (int i = 0; i < waves; i++) {
        moe_wave_begin(m, i, &wave);
        if (waves > 1) wave_backward(m, &wave, x, dy, true);
        weight_products(m);
    }
    const void *input = x;
    if (m->shape.type != DTYPE_F32) {
        m->device->convert(m->device, (int64_t)m->batch->tokens * m->shape.hidden, x, m->shape.type,
                           m->buffer[MOE_INPUT], DTYPE_F32);
        input = m->buffer[MOE_INPUT];
    }
    weight_gradient(m, &m->router, m->router_param, m->buffer[MOE_DLOGITS], input);
    if (m->shape.shared_ffn == 0) return;
    weight_gradient(m, &m->weight[m->shared_up], m->shared_up, m->buffer[MOE_SHARED_UP], x);
    weight_gradient(m, &m->weight[m->shared_down], m->shared_down, dy,
                    m->buffer[MOE_SHARED_ACTIVATED]);
}
