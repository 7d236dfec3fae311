// Memory and weights of the generator: what it holds is listed in a plan first, then taken at once.
#include "generate/generator_parts.h"
#include "model/rope.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CHUNK = 256, OTHER_SLOTS = 64 };

int generator_want(struct generator *g, void *place, enum buffer_kind kind, int layer,
                   uint64_t bytes, const char *name, struct err *err) {
    int buffer = memory_plan_add(&g->plan, kind, layer, -1, bytes, "%s", name);
    if (buffer < 0) return err_set(err, ERR_MEMORY, "generator: no memory for the plan");
    g->slots[g->slot_count++] = (struct generator_slot){place, buffer};
    return 0;
}

static bool is_product(enum param_role role) {
    switch (role) {
    case PARAM_QKV:
    case PARAM_OUT:
    case PARAM_UP:
    case PARAM_DOWN:
    case PARAM_ROUTER:
    case PARAM_EXPERT_UP:
    case PARAM_EXPERT_DOWN:
    case PARAM_SHARED_UP:
    case PARAM_SHARED_DOWN:
        return true;
    default:
        return false;
    }
}

// Vectors and the router stay FP32.
static enum dtype param_type(const struct generator *g, const struct param *p) {
    return param_is_matrix(p) && p->role != PARAM_ROUTER ? g->options.compute : DTYPE_F32;
}

static int plan_weights(struct generator *g, struct err *err) {
    const struct model *m = g->model;
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        uint64_t bytes = (uint64_t)param_elements_padded(p) * dtype_bytes(param_type(g, p));
        if (generator_want(g, &g->values[i], BUFFER_WEIGHT, p->layer, bytes, p->name, err) != 0)
            return -1;
    }
    for (int i = 0; i < m->param_count; i++) {
        const struct param *p = &m->params[i];
        bool head = i == g->head_param;
        if (!head && !is_product(p->role)) continue;
        struct device_weight *w = head ? &g->head : &g->weights[i];
        *w = (struct device_weight){.n = p->rows_padded, .k = p->columns, .type = param_type(g, p)};
        uint64_t bytes = g->device->pack_bytes(g->device, w, false);
        if (bytes && generator_want(g, &w->packed_forward, BUFFER_PACKED, p->layer, bytes, p->name,
                                    err) != 0)
            return -1;
    }
    return 0;
}

static int plan_cache(struct generator *g, struct err *err) {
    const struct model_config *c = &g->model->config;
    uint64_t element = dtype_bytes(g->options.compute), context = (uint64_t)g->options.context;
    for (int layer = 0; layer < c->layers; layer++)
        if (generator_want(g, &g->cache[layer], BUFFER_ACTIVATION, layer,
                           context * 2 * (uint64_t)model_kv_width(c) * element, "key/value cache",
                           err) != 0)
            return -1;
    if (c->learned_positions) return 0;
    uint64_t table = context * (uint64_t)(c->head_dim / 2) * 4;
    if (generator_want(g, &g->cosine, BUFFER_TABLE, -1, table, "rotary cosine", err) != 0)
        return -1;
    return generator_want(g, &g->sine, BUFFER_TABLE, -1, table, "rotary sine", err);
}

static int plan_pass(struct generator *g, struct err *err) {
    const struct model_config *c = &g->model->config;
    uint64_t rows = (uint64_t)g->options.chunk, element = dtype_bytes(g->options.compute);
    uint64_t hidden = rows * (uint64_t)c->hidden * element;
    int widest = c->ffn > c->expert_ffn ? c->ffn : c->expert_ffn;
    if (c->shared_ffn > widest) widest = c->shared_ffn;
    uint64_t ffn = rows * (uint64_t)widest * element;
    bool swiglu = c->activation == ACTIVATION_SWIGLU;
    uint64_t padded = (uint64_t)g->head.n;
    const struct {
        void *place;
        enum buffer_kind kind;
        uint64_t bytes;
        const char *name;
    } list[] = {
        {&g->ids, BUFFER_DATA, rows * 4, "ids"},
        {&g->position, BUFFER_DATA, rows * 4, "positions"},
        {&g->attend_from, BUFFER_DATA, rows * 4, "first keys"},
        {&g->attend_to, BUFFER_DATA, rows * 4, "last keys"},
        {&g->residual, BUFFER_SCRATCH, hidden, "residual"},
        {&g->normed, BUFFER_SCRATCH, hidden, "normed"},
        {&g->delta, BUFFER_SCRATCH, hidden, "delta"},
        {&g->qkv, BUFFER_SCRATCH, rows * (uint64_t)model_qkv_width(c) * element, "qkv"},
        {&g->attended, BUFFER_SCRATCH, rows * (uint64_t)model_q_width(c) * element, "attended"},
        {&g->up, BUFFER_SCRATCH, swiglu ? 2 * ffn : ffn, "up"},
        {&g->activated, BUFFER_SCRATCH, ffn, "activated"},
        {&g->rstd, BUFFER_SCRATCH, rows * (uint64_t)(c->heads + c->kv_heads) * 4, "rstd of q, k"},
        {&g->logits, BUFFER_LOGITS, GENERATOR_HEAD_ROWS * padded * 4, "logits"},
        {&g->targets, BUFFER_DATA, GENERATOR_HEAD_ROWS * 4, "targets"},
        {&g->losses, BUFFER_DATA, GENERATOR_HEAD_ROWS * 4, "losses"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (generator_want(g, list[i].place, list[i].kind, -1, list[i].bytes, list[i].name, err) !=
            0)
            return -1;
    return 0;
}

static int prepare(struct generator *g, const struct device_weight *w, int rows, enum dtype out,
                   struct err *err) {
    uint64_t bytes = 0;
    if (g->device->prepare_linear(g->device, w, 'f', rows, w->k, w->n, out, &bytes, err) != 0)
        return -1;
    if (bytes > g->workspace_bytes) g->workspace_bytes = bytes;
    return 0;
}

// Makes every product that a pass can ask for, and reserves what products and attention need.
static int plan_workspace(struct generator *g, struct err *err) {
    const struct model_config *c = &g->model->config;
    enum dtype type = g->options.compute;
    uint64_t attention_bytes = 0;
    for (int rows = g->options.chunk; rows > 0; rows = generator_next_size(rows)) {
        for (int i = 0; i < g->model->param_count; i++)
            if (g->weights[i].n && prepare(g, &g->weights[i], rows, g->weights[i].type, err) != 0)
                return -1;
        for (int layer = 0; layer < c->layers; layer++) {
            struct device_attention shape = {.type = type,
                                             .queries = rows,
                                             .keys = g->options.context,
                                             .heads = c->heads,
                                             .kv_heads = c->kv_heads,
                                             .head_dim = c->head_dim,
                                             .window = c->layer_window[layer]};
            uint64_t bytes = g->device->attention_workspace_bytes(g->device, &shape, false);
            if (bytes > attention_bytes) attention_bytes = bytes;
        }
    }
    for (int rows = GENERATOR_HEAD_ROWS; rows > 0; rows = generator_next_size(rows))
        if (prepare(g, &g->head, rows, DTYPE_F32, err) != 0) return -1;
    if (generator_want(g, &g->attention_workspace, BUFFER_WORKSPACE, -1, attention_bytes,
                       "attention workspace", err) != 0)
        return -1;
    return generator_want(g, &g->workspace, BUFFER_WORKSPACE, -1, g->workspace_bytes,
                          "product workspace", err);
}

static int make_lists(struct generator *g, struct err *err) {
    const struct model *m = g->model;
    size_t params = (size_t)m->param_count, layers = (size_t)m->config.layers;
    size_t roles = (layers + 1) * PARAM_ROLE_COUNT;
    g->slots = calloc(2 * params + layers + OTHER_SLOTS, sizeof *g->slots);
    g->index = calloc(roles, sizeof *g->index);
    g->values = calloc(params, sizeof *g->values);
    g->weights = calloc(params, sizeof *g->weights);
    g->cache = calloc(layers, sizeof *g->cache);
    if (!g->slots || !g->index || !g->values || !g->weights || !g->cache)
        return err_set(err, ERR_MEMORY, "generator: no memory for the lists of %zu params", params);
    for (size_t i = 0; i < roles; i++) g->index[i] = -1;
    for (int i = m->param_count - 1; i >= 0; i--) // of experts the first one counts
        g->index[(m->params[i].layer + 1) * PARAM_ROLE_COUNT + (int)m->params[i].role] = i;
    g->head_param = generator_param(g, -1, m->config.tied_head ? PARAM_EMBEDDING : PARAM_HEAD);
    return 0;
}

static int set_options(struct generator *g, const struct generator_options *options,
                       struct err *err) {
    const struct model_config *c = &g->model->config;
    bool stretches = !c->learned_positions && c->rope.scaling == ROPE_DYNAMIC_NTK;
    int most = stretches ? (int)(c->context * c->rope.factor) : c->context;
    g->options = *options;
    if (options->compute != DTYPE_BF16 && options->compute != DTYPE_F32)
        return err_set(err, ERR_USAGE, "precision %s: expected bf16 or f32",
                       dtype_name(options->compute));
    if (options->context > most)
        return err_set(err, ERR_USAGE,
                       "a context of %d positions is longer than the model's, which is %d",
                       options->context, most);
    if (g->options.context <= 0) g->options.context = c->context;
    if (g->options.chunk <= 0) g->options.chunk = DEFAULT_CHUNK;
    if (g->options.chunk > g->options.context) g->options.chunk = g->options.context;
    return 0;
}

static int take(struct generator *g, struct err *err) {
    if (arena_open(&g->arena, g->plan.total_bytes, 0, err) != 0)
        return err_context(err, "memory of the generator");
    for (int i = 0; i < g->slot_count; i++) {
        void *address = g->arena.base + g->plan.buffers[g->slots[i].buffer].offset_bytes;
        memcpy(g->slots[i].place, &address, sizeof address);
    }
    for (int i = 0; i < g->model->param_count; i++)
        if (g->weights[i].n) g->weights[i].plain = g->values[i];
    if (g->experts.bias)
        memset(g->experts.bias, 0,
               (size_t)g->model->config.layers * (size_t)g->model->config.experts * sizeof(float));
    g->head.plain = g->values[g->head_param];
    g->device->set_workspace(g->device, g->workspace, g->workspace_bytes);
    const struct model_config *c = &g->model->config;
    // Dynamic NTK: frequencies of the longest text that fits, so that cached keys stay comparable.
    if (g->cosine)
        rope_tables(&c->rope, c->head_dim, g->options.context, g->options.context, g->cosine,
                    g->sine);
    return 0;
}

struct generator *generator_open(const struct model *model, struct device *device,
                                 const struct generator_options *options, struct err *err) {
    struct generator *g = calloc(1, sizeof *g);
    if (!g) {
        (void)err_set(err, ERR_MEMORY, "generator: no memory");
        return NULL;
    }
    g->model = model;
    g->device = device;
    if (set_options(g, options, err) != 0 || make_lists(g, err) != 0 || plan_weights(g, err) != 0 ||
        plan_cache(g, err) != 0 || plan_pass(g, err) != 0 || generator_plan_experts(g, err) != 0 ||
        plan_workspace(g, err) != 0 || take(g, err) != 0) {
        generator_close(g);
        return NULL;
    }
    return g;
}

void generator_close(struct generator *g) {
    if (!g) return;
    if (g->arena.base) {
        g->device->set_workspace(g->device, NULL, 0);
        arena_close(&g->arena);
    }
    memory_plan_free(&g->plan);
    free(g->slots);
    free(g->index);
    free(g->values);
    free(g->weights);
    free(g->cache);
    free(g);
}

int generator_set_param(struct generator *g, int param, const float *values, struct err *err) {
    const struct param *p = &g->model->params[param];
    int64_t count = param_elements(p);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_DATA,
                           "%s: element %lld is %f; the weights are damaged or their training "
                           "diverged",
                           p->name, (long long)i, (double)values[i]);
    bool rounds = param_is_matrix(p) && g->options.compute == DTYPE_BF16;
    if (rounds && p->role == PARAM_ROUTER) // as the engine: stored rounded, multiplied in FP32
        for (int64_t i = 0; i < count; i++)
            ((float *)g->values[param])[i] = bf16_to_float(bf16_from_float(values[i]));
    else if (rounds)
        g->device->convert(g->device, count, values, DTYPE_F32, g->values[param], DTYPE_BF16);
    else
        memcpy(g->values[param], values, (size_t)count * 4);
    g->weights_ready = false;
    return 0;
}

void generator_weights_changed(struct generator *g) {
    for (int i = 0; i < g->model->param_count; i++)
        if (g->weights[i].packed_forward) g->device->pack(g->device, &g->weights[i], false);
    if (g->head.packed_forward) g->device->pack(g->device, &g->head, false);
    g->weights_ready = true;
    g->length = 0;
}

const struct memory_plan *generator_memory(const struct generator *g) {
    return &g->plan;
}

uint64_t generator_allocated_bytes(const struct generator *g) {
    return g->arena.capacity_bytes;
}

const struct model *generator_model(const struct generator *g) {
    return g->model;
}

int generator_context(const struct generator *g) {
    return g->options.context;
}

int generator_length(const struct generator *g) {
    return g->length;
}

void generator_rewind(struct generator *g, int length) {
    if (length < g->length) g->length = length < 0 ? 0 : length;
}
