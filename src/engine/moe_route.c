// From the router's input to rows in order: choices, capacity, sorting, and what every source sends
// to every expert; see moe.h. Whole numbers and the router's FP32 product; no row moves here.
#include "engine/moe.h"
#include <math.h>
#include <string.h>

void moe_mark_tokens(const struct moe_layer *m) {
    const struct batch *b = m->batch;
    int32_t *sequence = m->buffer[MOE_SEQUENCE];
    uint8_t *idle = m->buffer[MOE_IDLE];
    int64_t padding = b->tokens - b->non_pad;
    memset(idle, 0, (size_t)b->tokens);
    for (int32_t i = 0; i < b->tokens; i++) sequence[i] = i / b->context;
    // Padding stands at the end of a row: no label, sees only itself.
    for (int32_t row = 0; row < b->rows && padding > 0; row++)
        for (int32_t i = (row + 1) * b->context - 1; i >= row * b->context && padding > 0; i--) {
            if (b->target[i] >= 0 || b->attend_to[i] - b->attend_from[i] != 1) break;
            idle[i] = 1;
            padding--;
        }
}

// FP32 of the router's input.
static const float *router_input(const struct moe_layer *m, const void *x) {
    if (m->shape.type == DTYPE_F32) return x;
    m->device->convert(m->device, (int64_t)m->batch->tokens * m->shape.hidden, x, m->shape.type,
                       m->buffer[MOE_INPUT], DTYPE_F32);
    return m->buffer[MOE_INPUT];
}

static void choose(const struct moe_layer *m, const void *x) {
    const struct device_weight *w = &m->router;
    int64_t tokens = m->batch->tokens;
    m->device->linear_forward(m->device, w, tokens, router_input(m, x), w->k, NULL,
                              m->buffer[MOE_LOGITS], w->n, DTYPE_F32);
    if (m->chosen) memcpy(m->buffer[MOE_EXPERT], m->chosen, (size_t)(tokens * m->shape.top_k) * 4);
    struct device_route args = {.tokens = tokens,
                                .experts = m->shape.experts,
                                .top_k = m->shape.top_k,
                                .logits = m->buffer[MOE_LOGITS],
                                .bias = m->bias,
                                .idle = m->buffer[MOE_IDLE],
                                .normalise = m->normalise,
                                .chosen = m->chosen != NULL,
                                .expert = m->buffer[MOE_EXPERT],
                                .weight = m->buffer[MOE_WEIGHT],
                                .score = m->buffer[MOE_SCORE],
                                .lse = m->buffer[MOE_LSE]};
    m->device->experts.route(m->device, &args);
}

// Choices per sequence; under context parallelism those of all its parts.
static void count_loads(const struct moe_layer *m) {
    int experts = m->shape.experts, top_k = m->shape.top_k;
    int64_t *loads = m->buffer[MOE_LOADS];
    const int32_t *expert = m->buffer[MOE_EXPERT], *sequence = m->buffer[MOE_SEQUENCE];
    memset(loads, 0, (size_t)m->batch->rows * (size_t)experts * sizeof *loads);
    for (int64_t i = 0; i < (int64_t)m->batch->tokens * top_k; i++)
        if (expert[i] >= 0) loads[(int64_t)sequence[i / top_k] * experts + expert[i]]++;
}

// ---- capacity ---------------------------------------------------------------------------------

static int64_t capacity(const struct moe_layer *m) {
    double even = (double)m->shape.top_k * (double)m->sequence_tokens / m->shape.experts;
    return (int64_t)ceil(m->capacity_factor * even - 1e-9);
}

// The choices of this rank's tokens that stand beyond an expert's capacity in their sequence become
// -1 in MOE_SLOT, the others 0. An expert takes tokens in the order of their place.
static int64_t drop_alone(const struct moe_layer *m, int64_t most) {
    int experts = m->shape.experts, top_k = m->shape.top_k;
    const int32_t *expert = m->buffer[MOE_EXPERT], *sequence = m->buffer[MOE_SEQUENCE];
    int32_t *slot = m->buffer[MOE_SLOT], *load = moe_small(m).load;
    int64_t dropped = 0;
    memset(load, 0, (size_t)m->batch->rows * (size_t)experts * sizeof *load);
    for (int64_t i = 0; i < (int64_t)m->batch->tokens * top_k; i++) {
        if (expert[i] < 0) continue;
        int32_t *taken = &load[(int64_t)sequence[i / top_k] * experts + expert[i]];
        bool full = *taken >= most;
        slot[i] = full ? -1 : 0;
        dropped += full;
        *taken += !full;
    }
    return dropped;
}

// The same for a sequence in parts: every rank gets the places and choices of all parts. Whether a
// choice fits is how many choices of that expert stand at smaller places.
static int64_t drop_spread(const struct moe_layer *m, int64_t most) {
    int top_k = m->shape.top_k;
    int64_t tokens = m->batch->tokens, width = 1 + top_k, dropped = 0, context = m->batch->context;
    int32_t *all = m->buffer[MOE_PLACES], *own = all + m->shape.cp * tokens * width;
    const int32_t *expert = m->buffer[MOE_EXPERT];
    int32_t *slot = m->buffer[MOE_SLOT];
    for (int64_t t = 0; t < tokens; t++) {
        own[t * width] = m->place[t];
        memcpy(own + t * width + 1, expert + t * top_k, (size_t)top_k * 4);
    }
    comm_wait(comm_all_gather(m->cp_stream, own, all, (uint64_t)(tokens * width) * 4),
              m->device->lane);
    // Places ascend in a row of every part: a merge of the parts walks the sequence in order.
    int experts = m->shape.experts, index = comm_stream_index(m->cp_stream);
    int32_t *load = moe_small(m).load;
    int64_t *at = moe_small(m).at;
    for (int32_t row = 0; row < m->batch->rows; row++) {
        memset(load, 0, (size_t)experts * sizeof *load);
        for (int p = 0; p < m->shape.cp; p++) at[p] = row * context;
        for (int64_t n = 0; n < context * m->shape.cp; n++) {
            int part = -1;
            for (int p = 0; p < m->shape.cp; p++)
                if (at[p] < (row + 1) * context &&
                    (part < 0 ||
                     all[(p * tokens + at[p]) * width] < all[(part * tokens + at[part]) * width]))
                    part = p;
            int64_t t = at[part]++;
            const int32_t *chosen = &all[(part * tokens + t) * width + 1];
            for (int k = 0; k < top_k; k++) {
                if (chosen[k] < 0) continue;
                bool full = load[chosen[k]] >= most;
                load[chosen[k]] += !full;
                if (part != index) continue;
                slot[t * top_k + k] = full ? -1 : 0;
                dropped += full;
            }
        }
    }
    return dropped;
}

static int64_t mark_dropped(const struct moe_layer *m) {
    int64_t pairs = (int64_t)m->batch->tokens * m->shape.top_k;
    const int32_t *expert = m->buffer[MOE_EXPERT];
    int32_t *slot = m->buffer[MOE_SLOT];
    for (int64_t i = 0; i < pairs; i++) slot[i] = expert[i] < 0 ? -1 : 0;
    if (m->capacity_factor <= 0) return 0;
    return m->cp_stream ? drop_spread(m, capacity(m)) : drop_alone(m, capacity(m));
}

// ---- sorting ----------------------------------------------------------------------------------

// Places by expert, then token; counts of this rank into its row of MOE_COUNTS.
static void sort(const struct moe_layer *m) {
    int experts = m->shape.experts;
    int64_t pairs = (int64_t)m->batch->tokens * m->shape.top_k, before = 0;
    const int32_t *expert = m->buffer[MOE_EXPERT];
    int32_t *slot = m->buffer[MOE_SLOT], *next = moe_small(m).load;
    int64_t *counts = (int64_t *)m->buffer[MOE_COUNTS] + (int64_t)m->ep_index * experts;
    memset(counts, 0, (size_t)experts * sizeof *counts);
    for (int64_t i = 0; i < pairs; i++)
        if (slot[i] >= 0) counts[expert[i]]++;
    for (int e = 0; e < experts; e++) {
        next[e] = (int32_t)before;
        before += counts[e];
    }
    for (int64_t i = 0; i < pairs; i++)
        if (slot[i] >= 0) slot[i] = next[expert[i]]++;
}

void moe_sorted_rows(const struct moe_layer *m) {
    int top_k = m->shape.top_k;
    const int32_t *slot = m->buffer[MOE_SLOT];
    const float *weight = m->buffer[MOE_WEIGHT];
    int32_t *token = m->buffer[MOE_TOKEN];
    float *row_weight = m->buffer[MOE_ROW_WEIGHT];
    for (int64_t i = 0; i < (int64_t)m->batch->tokens * top_k; i++) {
        if (slot[i] < 0) continue;
        token[slot[i]] = (int32_t)(i / top_k);
        row_weight[slot[i]] = weight[i];
    }
}

// ---- statistics -------------------------------------------------------------------------------

static void count(const struct moe_layer *m, int64_t dropped) {
    struct moe_statistics *s = m->statistics;
    int experts = m->shape.experts, top_k = m->shape.top_k;
    const int32_t *expert = m->buffer[MOE_EXPERT], *sequence = m->buffer[MOE_SEQUENCE];
    const float *score = m->buffer[MOE_SCORE], *lse = m->buffer[MOE_LSE];
    const uint8_t *idle = m->buffer[MOE_IDLE];
    const int64_t *loads = m->buffer[MOE_LOADS];
    int64_t before = -1, total = 0;
    for (int64_t t = 0; t < m->batch->tokens; t++) {
        if (idle[t]) continue;
        const int64_t *load = loads + (int64_t)sequence[t] * experts;
        if (sequence[t] != before) {
            before = sequence[t];
            total = 0;
            for (int e = 0; e < experts; e++) total += load[e];
        }
        double aux = 0;
        for (int e = 0; e < experts; e++) {
            double p = (double)score[t * experts + e];
            s->score_sum[e] += p;
            aux += (double)load[e] * p;
        }
        for (int k = 0; k < top_k; k++) s->counts[expert[t * top_k + k]]++;
        s->aux += experts * aux / (double)total;
        s->z += (double)lse[t] * (double)lse[t];
        s->tokens++;
    }
    s->dropped += dropped;
}

void moe_route(const struct moe_layer *m, const void *x) {
    moe_mark_tokens(m);
    choose(m, x);
    count_loads(m);
    if (m->cp_stream)
        comm_sum_integers(m->cp_stream, m->buffer[MOE_LOADS], m->batch->rows * m->shape.experts);
    int64_t dropped = mark_dropped(m);
    if (m->statistics) count(m, dropped);
    sort(m);
    if (m->ep_stream) {
        uint64_t bytes = (uint64_t)m->shape.experts * 8;
        char *counts = m->buffer[MOE_COUNTS];
        comm_wait(
            comm_all_gather(m->ep_stream, counts + (uint64_t)m->ep_index * bytes, counts, bytes),
            m->device->lane);
    }
}
