// The MLP of a layer with experts in the generator: each token's rows go to its experts in passes
// of the prepared sizes. The same kernels as the engine's, so the same sums; nothing is dropped.
#include "generate/generator_parts.h"
#include <string.h>

static void product(struct generator *g, int param, int64_t rows, const void *x, void *y) {
    const struct device_weight *w = &g->weights[param];
    g->device->linear_forward(g->device, w, rows, x, w->k, NULL, y, w->n, w->type);
}

static void route(struct generator *g, int rows, int layer, const void *x) {
    const struct model_config *c = &g->model->config;
    struct generator_experts *m = &g->experts;
    const void *input = x;
    if (g->options.compute != DTYPE_F32) {
        g->device->convert(g->device, (int64_t)rows * c->hidden, x, g->options.compute, m->input,
                           DTYPE_F32);
        input = m->input;
    }
    product(g, generator_param(g, layer, PARAM_ROUTER), rows, input, m->router_logits);
    struct device_route args = {.tokens = rows,
                                .experts = c->experts,
                                .top_k = c->top_k,
                                .logits = m->router_logits,
                                .bias = m->bias + (int64_t)layer * c->experts,
                                .normalise = c->norm_top_k,
                                .expert = m->expert,
                                .weight = m->weight,
                                .score = m->score,
                                .lse = m->lse};
    g->device->experts.route(g->device, &args);
}

// Rows in the order of their experts, tokens ascending: token and weight of each, and where the
// rows of an expert begin.
static void sort_rows(struct generator *g, int rows) {
    const struct model_config *c = &g->model->config;
    struct generator_experts *m = &g->experts;
    memset(m->first, 0, ((size_t)c->experts + 1) * sizeof *m->first);
    for (int i = 0; i < rows * c->top_k; i++) m->first[m->expert[i] + 1]++;
    for (int e = 0; e < c->experts; e++) m->first[e + 1] += m->first[e];
    for (int i = 0; i < rows * c->top_k; i++) {
        int32_t at = m->first[m->expert[i]]++; // afterwards first[e] is where e + 1 began
        m->slot[i] = at;
        m->token[at] = i / c->top_k;
        m->row_weight[at] = m->weight[i];
    }
    for (int e = c->experts; e > 0; e--) m->first[e] = m->first[e - 1];
    m->first[0] = 0;
}

// One pass of `rows` sorted rows from `first` on through an expert.
static void visit(struct generator *g, int up, int first, int rows, const void *x) {
    const struct model_config *c = &g->model->config;
    struct generator_experts *m = &g->experts;
    enum dtype type = g->options.compute;
    size_t row_bytes = (size_t)c->hidden * dtype_bytes(type);
    g->device->experts.gather_rows(g->device, type, rows, c->hidden, m->token + first, x,
                                   m->gathered);
    product(g, up, rows, m->gathered, g->up);
    g->device->experts.swiglu_forward(g->device, type, rows, c->expert_ffn, g->up,
                                      m->row_weight + first, g->activated);
    product(g, up + 1, rows, g->activated, (char *)m->rows + (size_t)first * row_bytes);
}

void generator_experts(struct generator *g, int rows, int layer, const void *x) {
    const struct model_config *c = &g->model->config;
    struct generator_experts *m = &g->experts;
    enum dtype type = g->options.compute;
    route(g, rows, layer, x);
    sort_rows(g, rows);
    int up = generator_param(g, layer, PARAM_EXPERT_UP);
    for (int e = 0; e < c->experts; e++, up += 2) {
        int size = g->options.chunk, done = m->first[e], end = m->first[e + 1];
        for (; done < end; done += size) {
            while (size > end - done) size = generator_next_size(size);
            visit(g, up, done, size, x);
        }
    }
    const void *base = NULL;
    if (c->shared_ffn > 0) {
        product(g, generator_param(g, layer, PARAM_SHARED_UP), rows, x, g->up);
        g->device->swiglu_forward(g->device, type, rows, c->shared_ffn, g->up, g->activated);
        product(g, generator_param(g, layer, PARAM_SHARED_DOWN), rows, g->activated, m->gathered);
        base = m->gathered;
    }
    g->device->experts.combine_rows(g->device, type, rows, c->hidden, c->top_k, m->slot, m->rows,
                                    base, NULL, g->delta);
}

void generator_set_expert_bias(struct generator *g, int layer, const float *values) {
    size_t experts = (size_t)g->model->config.experts;
    memcpy(g->experts.bias + (size_t)layer * experts, values, experts * sizeof *values);
}

int generator_plan_experts(struct generator *g, struct err *err) {
    const struct model_config *c = &g->model->config;
    struct generator_experts *m = &g->experts;
    if (c->experts == 0) return 0;
    uint64_t rows = (uint64_t)g->options.chunk, element = dtype_bytes(g->options.compute);
    uint64_t hidden = rows * (uint64_t)c->hidden, scores = rows * (uint64_t)c->experts * 4;
    uint64_t chosen = rows * (uint64_t)c->top_k;
    const struct {
        void *place;
        uint64_t bytes;
        const char *name;
    } list[] = {
        {&m->bias, (uint64_t)c->layers * (uint64_t)c->experts * 4, "bias of the choice of experts"},
        {&m->input, g->options.compute == DTYPE_F32 ? 0 : hidden * 4, "router input"},
        {&m->router_logits, scores, "router logits"},
        {&m->score, scores, "router scores"},
        {&m->lse, rows * 4, "router log-sum-exp"},
        {&m->expert, chosen * 4, "chosen experts"},
        {&m->weight, chosen * 4, "weights of experts"},
        {&m->slot, chosen * 4, "places of rows"},
        {&m->token, chosen * 4, "tokens of rows"},
        {&m->row_weight, chosen * 4, "weights of rows"},
        {&m->first, ((uint64_t)c->experts + 1) * 4, "first rows of experts"},
        {&m->gathered, hidden * element, "gathered rows"},
        {&m->rows, chosen * (uint64_t)c->hidden * element, "rows of experts"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].bytes && generator_want(g, list[i].place, BUFFER_SCRATCH, -1, list[i].bytes,
                                            list[i].name, err) != 0)
            return -1;
    return 0;
}
