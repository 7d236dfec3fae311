// The forward pass over a run of new tokens, with all earlier keys and values in the cache. The
// same calls as the engine's forward, so the same sums.
#include "generate/generator_parts.h"
#include <math.h>
#include <string.h>

// Normalises `rows` rows of x (+ delta, which joins the residual stream first).
static void norm(struct generator *g, int rows, int layer, enum param_role role, const void *x,
                 const void *delta, void *residual, void *y) {
    const struct model_config *c = &g->model->config;
    enum param_role bias = role == PARAM_ATTENTION_NORM ? PARAM_ATTENTION_NORM_BIAS
                           : role == PARAM_MLP_NORM     ? PARAM_MLP_NORM_BIAS
                                                        : PARAM_FINAL_NORM_BIAS;
    g->device->norm_forward(g->device,
                            &(struct device_norm){.type = g->options.compute,
                                                  .tokens = rows,
                                                  .width = c->hidden,
                                                  .centred = c->norm == NORM_LAYER,
                                                  .eps = c->norm_eps,
                                                  .x = x,
                                                  .delta = delta,
                                                  .residual = residual,
                                                  .y = y,
                                                  .weight = generator_vector(g, layer, role),
                                                  .bias = generator_vector(g, layer, bias)});
}

static void product(struct generator *g, int rows, int layer, enum param_role role, const void *x,
                    const float *bias, void *y) {
    const struct device_weight *w = &g->weights[generator_param(g, layer, role)];
    g->device->linear_forward(g->device, w, rows, x, w->k, bias, y, w->n, g->options.compute);
}

// Norms and turns q and k of the new rows, then appends their keys and values to the cache.
static void extend_cache(struct generator *g, int rows, int layer) {
    const struct model_config *c = &g->model->config;
    const float *q_norm = generator_vector(g, layer, PARAM_Q_NORM);
    if (g->cosine || q_norm) {
        struct device_rope rope = {.type = g->options.compute,
                                   .tokens = rows,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .head_dim = c->head_dim,
                                   .qkv_in = g->qkv,
                                   .qkv_out = g->qkv,
                                   .position = g->position,
                                   .cosine = g->cosine,
                                   .sine = g->sine,
                                   .q_norm = q_norm,
                                   .k_norm = generator_vector(g, layer, PARAM_K_NORM),
                                   .norm_over_all_heads = c->qk_norm == QK_NORM_FULL,
                                   .eps = c->norm_eps,
                                   .q_rstd = g->rstd,
                                   .k_rstd = g->rstd + (int64_t)rows * c->heads};
        g->device->rope_forward(g->device, &rope);
    }
    size_t element = dtype_bytes(g->options.compute);
    size_t q_bytes = (size_t)model_q_width(c) * element;
    size_t row_bytes = (size_t)model_qkv_width(c) * element, kv_bytes = row_bytes - q_bytes;
    char *to = (char *)g->cache[layer] + (size_t)g->length * kv_bytes;
    for (int i = 0; i < rows; i++)
        memcpy(to + (size_t)i * kv_bytes, (char *)g->qkv + (size_t)i * row_bytes + q_bytes,
               kv_bytes);
}

// delta = attention of the rows x
static void attention(struct generator *g, int rows, int layer, const void *x) {
    const struct model_config *c = &g->model->config;
    product(g, rows, layer, PARAM_QKV, x, generator_vector(g, layer, PARAM_QKV_BIAS), g->qkv);
    extend_cache(g, rows, layer);
    size_t kv_offset = (size_t)model_kv_width(c) * dtype_bytes(g->options.compute);
    struct device_attention args = {.type = g->options.compute,
                                    .queries = rows,
                                    .keys = g->length + rows,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->head_dim,
                                    .scale = 1 / sqrt((double)c->head_dim),
                                    .window = c->layer_window[layer],
                                    .q = g->qkv,
                                    .k = g->cache[layer],
                                    .v = (char *)g->cache[layer] + kv_offset,
                                    .q_stride = model_qkv_width(c),
                                    .kv_stride = 2 * model_kv_width(c),
                                    .attend_from = g->attend_from,
                                    .attend_to = g->attend_to,
                                    .out = g->attended,
                                    .out_stride = model_q_width(c),
                                    .workspace = g->attention_workspace};
    g->device->attention_forward(g->device, &args);
    product(g, rows, layer, PARAM_OUT, g->attended, generator_vector(g, layer, PARAM_OUT_BIAS),
            g->delta);
}

// delta = MLP of the rows x
static void mlp(struct generator *g, int rows, int layer, const void *x) {
    const struct model_config *c = &g->model->config;
    if (model_layer_has_experts(c, layer)) {
        generator_experts(g, rows, layer, x);
        return;
    }
    product(g, rows, layer, PARAM_UP, x, generator_vector(g, layer, PARAM_UP_BIAS), g->up);
    if (c->activation == ACTIVATION_SWIGLU)
        g->device->swiglu_forward(g->device, g->options.compute, rows, c->ffn, g->up, g->activated);
    else
        g->device->gelu_forward(g->device, g->options.compute, (int64_t)rows * c->ffn, g->up,
                                g->activated);
    product(g, rows, layer, PARAM_DOWN, g->activated, generator_vector(g, layer, PARAM_DOWN_BIAS),
            g->delta);
}

// Residual += norm(delta), where norms follow the block (OLMo-2).
static void join_normed(struct generator *g, int rows, int layer, enum param_role role) {
    norm(g, rows, layer, role, g->delta, NULL, NULL, g->normed);
    g->device->add(g->device, g->options.compute, (int64_t)rows * g->model->config.hidden,
                   g->residual, g->normed, g->residual);
}

// Runs `rows` tokens, already in g->ids, through all layers. The residual stream is then complete
// but for the last block's delta, which is returned (NULL: nothing is pending).
static const void *run_layers(struct generator *g, int rows) {
    const struct model_config *c = &g->model->config;
    for (int i = 0; i < rows; i++) {
        g->position[i] = g->length + i;
        g->attend_from[i] = 0;
        g->attend_to[i] = g->length + i + 1;
    }
    g->device->embedding_forward(
        g->device, g->options.compute, rows, c->hidden,
        g->values[generator_param(g, -1, PARAM_EMBEDDING)],
        c->learned_positions ? g->values[generator_param(g, -1, PARAM_POSITION)] : NULL, g->ids,
        g->position, g->residual);
    const void *delta = NULL;
    for (int layer = 0; layer < c->layers; layer++) {
        if (c->norm_place == NORM_AFTER) {
            attention(g, rows, layer, g->residual);
            join_normed(g, rows, layer, PARAM_ATTENTION_NORM);
            mlp(g, rows, layer, g->residual);
            join_normed(g, rows, layer, PARAM_MLP_NORM);
        } else {
            norm(g, rows, layer, PARAM_ATTENTION_NORM, g->residual, delta, g->residual, g->normed);
            attention(g, rows, layer, g->normed);
            norm(g, rows, layer, PARAM_MLP_NORM, g->residual, g->delta, g->residual, g->normed);
            mlp(g, rows, layer, g->normed);
            delta = g->delta;
        }
    }
    return delta;
}

// What becomes of the logits of a pass: all of them wanted (losses or values), or the last row's.
struct sink {
    const int32_t *targets;
    float *losses;
    float *values;
};

// Logits of the rows first .. first + rows - 1 of the pass, delivered into the sink.
static void deliver(struct generator *g, int first, int rows, const struct sink *sink) {
    const struct model_config *c = &g->model->config;
    const struct device_weight *head = &g->head;
    const char *x = (const char *)g->normed +
                    (size_t)first * (size_t)c->hidden * dtype_bytes(g->options.compute);
    g->device->linear_forward(g->device, head, rows, x, head->k, NULL, g->logits, head->n,
                              DTYPE_F32);
    g->last_logits = g->logits + (int64_t)(rows - 1) * head->n;
    if (sink->losses) {
        memcpy(g->targets, sink->targets + first, (size_t)rows * 4);
        g->device->cross_entropy(g->device, g->options.compute, rows, c->vocab, head->n, g->logits,
                                 g->targets, 0, g->losses, NULL);
        memcpy(sink->losses + first, g->losses, (size_t)rows * 4);
    }
    for (int i = 0; sink->values && i < rows; i++)
        memcpy(sink->values + (int64_t)(first + i) * c->vocab, g->logits + (int64_t)i * head->n,
               (size_t)c->vocab * 4);
}

static void run_head(struct generator *g, int rows, const void *delta, const struct sink *sink) {
    norm(g, rows, -1, PARAM_FINAL_NORM, g->residual, delta, g->residual, g->normed);
    if (!sink->losses && !sink->values) {
        deliver(g, rows - 1, 1, sink);
        return;
    }
    int size = GENERATOR_HEAD_ROWS;
    for (int done = 0; done < rows; done += size) {
        while (size > rows - done) size = generator_next_size(size);
        deliver(g, done, size, sink);
    }
}

static int check_feed(const struct generator *g, const int32_t *ids, int count, struct err *err) {
    const struct model_config *c = &g->model->config;
    if (!g->weights_ready)
        return err_set(err, ERR_INTERNAL, "generator: weights were set but not announced");
    if (count < 1) return err_set(err, ERR_USAGE, "generator: no tokens to read");
    if (count > g->options.context - g->length)
        return err_set(err, ERR_USAGE,
                       "%d tokens behind the %d already read do not fit into the context of %d",
                       count, g->length, g->options.context);
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return err_set(err, ERR_DATA,
                           "token %d is id %d, but the model's vocabulary has %d ids: this "
                           "tokenizer belongs to another model",
                           i, ids[i], c->vocab);
    return 0;
}

static int feed(struct generator *g, const int32_t *ids, int count, const struct sink *sink,
                struct err *err) {
    if (check_feed(g, ids, count, err) != 0) return -1;
    int size = g->options.chunk;
    bool all = sink->losses || sink->values;
    for (int done = 0; done < count; done += size) {
        while (size > count - done) size = generator_next_size(size);
        memcpy(g->ids, ids + done, (size_t)size * 4);
        const void *delta = run_layers(g, size);
        struct sink part = *sink;
        if (sink->losses) part.targets += done, part.losses += done;
        if (sink->values) part.values += (int64_t)done * g->model->config.vocab;
        if (all || done + size == count) run_head(g, size, delta, &part);
        if (device_check(g->device, err) != 0) return -1;
        g->length += size;
    }
    return 0;
}

int generator_feed(struct generator *g, const int32_t *ids, int count, struct err *err) {
    return feed(g, ids, count, &(struct sink){0}, err);
}

int generator_score(struct generator *g, const int32_t *ids, const int32_t *targets, int count,
                    float *losses, struct err *err) {
    return feed(g, ids, count, &(struct sink){.targets = targets, .losses = losses}, err);
}

int generator_feed_all(struct generator *g, const int32_t *ids, int count, float *logits,
                       struct err *err) {
    return feed(g, ids, count, &(struct sink){.values = logits}, err);
}

float *generator_logits(struct generator *g) {
    return g->last_logits;
}
