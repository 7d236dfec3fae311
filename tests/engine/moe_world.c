// Bodies of moe_world.h.
#include "moe_world.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int64_t moe_weight_offset(const struct moe_case *c, int part) {
    int64_t up = 2LL * c->ffn * c->hidden, down = (int64_t)c->ffn * c->hidden;
    int64_t router = (int64_t)c->experts * c->hidden;
    if (part == 0) return 0;
    int64_t expert = (part - 1) / 2;
    if (expert < c->experts) return router + expert * (up + down) + (part % 2 ? 0 : up);
    int64_t base = router + c->experts * (up + down), shared = 2LL * c->shared * c->hidden;
    int beyond = part - 1 - 2 * c->experts;
    return base + (beyond > 0 ? shared : 0) + (beyond > 1 ? shared / 2 : 0);
}

int64_t moe_weight_count(const struct moe_case *c) {
    return moe_weight_offset(c, 1 + 2 * c->experts + 2);
}

static double wave_of(double i) { // no two alike, about uniform in [-1, 1]
    double x = sin(i * 12.9898 + 4.1) * 43758.5453;
    return 2 * (x - floor(x)) - 1;
}

float moe_input(int64_t token, int column) {
    return (float)wave_of((double)(token * 131 + column) + 0.5);
}

float moe_gradient_of(int64_t token, int column) {
    return (float)(0.5 * wave_of((double)(token * 177 + column) + 0.25));
}

void moe_make_weights(const struct moe_case *c, float *out) {
    int64_t router = (int64_t)c->experts * c->hidden;
    for (int64_t i = 0; i < moe_weight_count(c); i++)
        out[i] = (float)((i < router ? (c->calm ? 0 : 1.0) : 1.5) * wave_of((double)i + 0.75) /
                         sqrt(c->hidden));
}

struct rank {
    const struct moe_case *c;
    struct moe_result *out;
    struct comm *comm;
    int index, ep;
    int64_t first, tokens; // of the whole micro-batch
    struct device device;
    struct device_weight weight[256];
    float *gradients;
    struct moe_layer layer;
    pthread_t thread;
    void *owned[1024];
    int owned_count;
};

static struct moe_gradient gradient(void *context, int param) {
    struct rank *r = context;
    const struct moe_case *c = r->c;
    int local = c->experts / r->ep, part = param;
    if (param > 2 * local) // shared
        part = param - 2 * local + 2 * c->experts;
    else if (param > 0)
        part = param + 2 * local * r->index;
    return (struct moe_gradient){r->gradients + moe_weight_offset(c, part), true};
}

static void *memory(struct rank *r, size_t bytes) {
    void *p = NULL;
    CHECK(r->owned_count < 1024);
    CHECK(posix_memalign(&p, 64, bytes + 64) == 0);
    memset(p, 0xff, bytes + 64); // NaN: what is read was written
    return r->owned[r->owned_count++] = p;
}

static void place_weight(struct rank *r, int param, int part, int64_t n, int64_t k,
                         const float *weights, enum dtype type) {
    int64_t count = n * k;
    void *plain = memory(r, (size_t)count * 4);
    dtype_convert(plain, type, weights + moe_weight_offset(r->c, part), DTYPE_F32, (size_t)count);
    struct device_weight *w = &r->weight[param];
    *w = (struct device_weight){n, k, type, plain, NULL, NULL};
    uint64_t forward = r->device.pack_bytes(&r->device, w, false);
    uint64_t backward = r->device.pack_bytes(&r->device, w, true);
    if (forward) {
        w->packed_forward = memory(r, forward);
        r->device.pack(&r->device, w, false);
    }
    if (backward) {
        w->packed_backward = memory(r, backward);
        r->device.pack(&r->device, w, true);
    }
}

static void place_weights(struct rank *r) {
    const struct moe_case *c = r->c;
    int local = c->experts / r->ep;
    float *made = memory(r, (size_t)moe_weight_count(c) * 4);
    if (c->weights)
        memcpy(made, c->weights, (size_t)moe_weight_count(c) * 4);
    else
        moe_make_weights(c, made);
    CHECK(2 * local + 3 <= 256);
    place_weight(r, 0, 0, c->experts, c->hidden, made, DTYPE_F32);
    for (int e = 0; e < local; e++) {
        int part = 1 + 2 * (e + local * r->index);
        place_weight(r, 1 + 2 * e, part, 2 * c->ffn, c->hidden, made, c->type);
        place_weight(r, 2 + 2 * e, part + 1, c->hidden, c->ffn, made, c->type);
    }
    if (c->shared) {
        int part = 1 + 2 * c->experts, param = 1 + 2 * local;
        place_weight(r, param, part, 2 * c->shared, c->hidden, made, c->type);
        place_weight(r, param + 1, part + 1, c->hidden, c->shared, made, c->type);
    }
}

static void make_batch(struct rank *r, struct batch *b) {
    const struct moe_case *c = r->c;
    int32_t rows = (int32_t)(r->tokens / c->context);
    batch_place(b, memory(r, batch_bytes((int32_t)r->tokens)), rows, c->context);
    b->non_pad = b->tokens;
    for (int32_t i = 0; i < b->tokens; i++) {
        b->target[i] = 1;
        b->attend_from[i] = i / c->context * c->context;
        b->attend_to[i] = i + 1;
        if (r->first + i < (int64_t)c->rows * c->context - c->padding) continue;
        b->target[i] = -1;
        b->attend_from[i] = i;
        b->non_pad--;
    }
}

static void open_layer(struct rank *r, struct batch *batch) {
    const struct moe_case *c = r->c;
    struct moe_layer *m = &r->layer;
    struct err err = {0};
    int local = c->experts / r->ep;
    *m = (struct moe_layer){.shape = {.type = c->type,
                                      .train = true,
                                      .keeps_up = c->keeps_up,
                                      .split_backward = c->split,
                                      .tokens = r->tokens,
                                      .sequences = (int)(r->tokens / c->context),
                                      .hidden = c->hidden,
                                      .expert_ffn = c->ffn,
                                      .shared_ffn = c->shared,
                                      .experts = c->experts,
                                      .top_k = c->top_k,
                                      .ep = r->ep,
                                      .cp = 1},
                            .device = &r->device,
                            .ep_index = r->index,
                            .weight = r->weight,
                            .router = r->weight[0],
                            .router_param = 0,
                            .expert_up = 1,
                            .shared_up = c->shared ? 1 + 2 * local : -1,
                            .shared_down = c->shared ? 2 + 2 * local : -1,
                            .normalise = c->normalise,
                            .gradient = gradient,
                            .context = r,
                            .batch = batch,
                            .sequence_tokens = c->context,
                            .capacity_factor = c->capacity_factor,
                            .bias = c->bias,
                            .chosen = c->chosen ? c->chosen + r->first * c->top_k : NULL,
                            .aux_scope = c->scope,
                            .aux_scale = c->aux,
                            .z_scale = c->z};
    m->shape.wave = moe_wave_rows(&m->shape, c->wave);
    for (int i = 0; i < MOE_BUFFER_COUNT; i++) {
        uint64_t bytes = moe_buffer_bytes(&m->shape, i);
        m->buffer[i] = bytes ? memory(r, bytes) : NULL;
    }
    bool shared = c->shared > 0;
    uint64_t bytes;
    CHECK_OK(moe_prepare(&r->device, &m->shape, &r->weight[0], &r->weight[1], &r->weight[2],
                         shared ? &r->weight[m->shared_up] : NULL,
                         shared ? &r->weight[m->shared_down] : NULL, &bytes, &err),
             err);
    r->device.set_workspace(&r->device, memory(r, bytes), bytes);
    if (r->ep > 1) {
        int members[16];
        for (int i = 0; i < r->ep; i++) members[i] = i;
        m->ep_stream = comm_stream_open(r->comm, "ep", members, r->ep, &err);
        CHECK(m->ep_stream != NULL);
    }
}

static void hand_over(struct rank *r, const struct moe_statistics *s, const void *y,
                      const void *dx) {
    const struct moe_case *c = r->c;
    struct moe_result *out = r->out;
    size_t values = (size_t)(r->tokens * c->hidden), at = (size_t)(r->first * c->hidden);
    size_t pairs = (size_t)(r->tokens * c->top_k), pair = (size_t)(r->first * c->top_k);
    dtype_convert(out->y + at, DTYPE_F32, y, c->type, values);
    dtype_convert(out->dx + at, DTYPE_F32, dx, c->type, values);
    memcpy(out->expert + pair, r->layer.buffer[MOE_EXPERT], pairs * 4);
    memcpy(out->slot + pair, r->layer.buffer[MOE_SLOT], pairs * 4);
    if (r->index > 0) {
        free(s->counts);
        free(s->score_sum);
        return;
    }
    out->statistics = *s;
    out->waves = moe_wave_count(&r->layer);
}

static void sum_statistics(struct moe_statistics *s, int experts, struct comm_stream *data) {
    if (!data) return;
    int64_t integers[2] = {s->tokens, s->dropped};
    double sums[2] = {s->aux, s->z};
    comm_sum_integers(data, s->counts, experts);
    comm_sum_integers(data, integers, 2);
    comm_sum_doubles(data, sums, 2);
    comm_sum_doubles(data, s->score_sum, experts);
    s->tokens = integers[0], s->dropped = integers[1];
    s->aux = sums[0], s->z = sums[1];
}

static void run_rank(struct rank *r) {
    const struct moe_case *c = r->c;
    struct err err = {0};
    struct batch batch;
    struct device_cpu_options options = {.threads = c->threads ? c->threads : 1};
    CHECK_OK(device_cpu_open(&r->device, &options, &err), err);
    place_weights(r);
    make_batch(r, &batch);
    open_layer(r, &batch);
    size_t values = (size_t)(r->tokens * c->hidden);
    void *x = memory(r, values * 4), *y = memory(r, values * 4), *dy = memory(r, values * 4),
         *dx = memory(r, values * 4);
    float *wide = memory(r, values * 4);
    for (size_t i = 0; i < values; i++)
        wide[i] = moe_input(r->first + (int64_t)i / c->hidden, (int)(i % (size_t)c->hidden));
    dtype_convert(x, c->type, wide, DTYPE_F32, values);
    for (size_t i = 0; i < values; i++)
        wide[i] = c->no_loss ? 0
                             : moe_gradient_of(r->first + (int64_t)i / c->hidden,
                                               (int)(i % (size_t)c->hidden));
    dtype_convert(dy, c->type, wide, DTYPE_F32, values);
    r->gradients = calloc((size_t)moe_weight_count(c) + 1, 4);
    struct moe_statistics s = {.counts = calloc((size_t)c->experts, 8),
                               .score_sum = calloc((size_t)c->experts, 8)};
    r->layer.statistics = &s;
    moe_forward(&r->layer, x, y);
    r->layer.statistics = NULL;
    sum_statistics(&s, c->experts, r->layer.ep_stream);
    r->layer.global_counts = s.counts;
    // What is not kept must not be read: another layer may have used it.
    for (int i = 0; i < MOE_BUFFER_COUNT; i++)
        if (r->layer.buffer[i] && moe_buffer_place(&r->layer.shape, i) != MOE_KEPT)
            memset(r->layer.buffer[i], 0xff, moe_buffer_bytes(&r->layer.shape, i));
    moe_backward_input(&r->layer, x, dy, dx);
    for (int i = 0; c->split && i < MOE_BUFFER_COUNT; i++)
        if (r->layer.buffer[i] && moe_buffer_place(&r->layer.shape, i) == MOE_ONCE)
            memset(r->layer.buffer[i], 0xff, moe_buffer_bytes(&r->layer.shape, i));
    moe_backward_weight(&r->layer, x, dy);
    CHECK_OK(device_check(&r->device, &err), err);
    CHECK_EQ_INT(device_cpu_late_products(&r->device), 0);
    hand_over(r, &s, y, dx);
    if (r->comm) CHECK_OK(comm_check(r->comm, &err), err);
    comm_stream_close(r->layer.ep_stream);
    r->device.close(&r->device);
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

static void *run_thread(void *rank) {
    run_rank(rank);
    return NULL;
}

static void add_up_loss(const struct moe_case *c, struct moe_result *out) {
    for (int64_t i = 0; i < out->tokens * c->hidden; i++)
        out->loss +=
            (double)out->y[i] * (double)moe_gradient_of(i / c->hidden, (int)(i % c->hidden));
    if (c->no_loss) out->loss = 0;
    double aux = c->scope == MOE_AUX_SEQUENCE
                     ? out->statistics.aux
                     : moe_balance(&out->statistics, c->experts) * (double)out->statistics.tokens;
    out->loss += c->aux * aux + c->z * out->statistics.z;
}

void moe_run(const struct moe_case *c, struct moe_result *out) {
    int ep = c->ep ? c->ep : 1;
    int64_t tokens = (int64_t)c->rows * c->context;
    struct rank ranks[16];
    struct comm *ends[16] = {0};
    struct err err = {0};
    CHECK(ep <= 16 && c->rows % ep == 0 && c->experts % ep == 0);
    *out = (struct moe_result){.tokens = tokens,
                               .y = calloc((size_t)(tokens * c->hidden) + 1, 4),
                               .dx = calloc((size_t)(tokens * c->hidden) + 1, 4),
                               .gradients = calloc((size_t)moe_weight_count(c) + 1, 4),
                               .expert = calloc((size_t)(tokens * c->top_k) + 1, 4),
                               .slot = calloc((size_t)(tokens * c->top_k) + 1, 4)};
    struct comm_options options = {.watchdog_seconds = 30};
    if (ep > 1) CHECK_OK(comm_open_threads(ends, ep, &options, &err), err);
    for (int i = 0; i < ep; i++)
        ranks[i] = (struct rank){.c = c,
                                 .out = out,
                                 .comm = ends[i],
                                 .index = i,
                                 .ep = ep,
                                 .first = tokens / ep * i,
                                 .tokens = tokens / ep};
    if (ep == 1) run_rank(&ranks[0]);
    for (int i = 0; ep > 1 && i < ep; i++)
        CHECK(pthread_create(&ranks[i].thread, NULL, run_thread, &ranks[i]) == 0);
    for (int i = 0; ep > 1 && i < ep; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; ep > 1 && i < ep; i++) comm_close(ends[i]);
    for (int i = 0; i < ep; i++) { // in the order of ranks, not of arrival
        for (int64_t k = 0; k < moe_weight_count(c); k++)
            out->gradients[k] += ranks[i].gradients[k];
        free(ranks[i].gradients);
    }
    add_up_loss(c, out);
}

void moe_free(struct moe_result *r) {
    free(r->y);
    free(r->dx);
    free(r->gradients);
    free(r->expert);
    free(r->slot);
    free(r->statistics.counts);
    free(r->statistics.score_sum);
}
