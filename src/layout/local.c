// A rank's own model: the parameters of its stages and experts, cut over tp; see layout.h.
#include "layout/layout.h"
#include "layout/layout_parts.h"
#include <stdlib.h>
#include <string.h>

enum { VOCAB_MULTIPLE = 64 };

// The rank's place and what it holds, while the list is made.
struct cutting {
    const struct layout *layout;
    const struct model *whole;
    int tp, t;                         // size, index
    int64_t vocab_padded;              // rows of a table held by each tp rank
    bool first, last;                  // holds that stage of the whole pipeline
    int local_layer[MODEL_MAX_LAYERS]; // -1: not here
    int expert_first, expert_count;
};

enum mesh_group_kind layout_partial_group(const struct layout *layout,
                                          const struct model_config *model, enum param_role role) {
    int tp = layout->mesh.size[MESH_TP];
    if (tp == 1) return GROUP_KIND_COUNT;
    switch (role) {
    case PARAM_Q_NORM: // each rank norms its own heads
    case PARAM_K_NORM:
    case PARAM_ROUTER: // and sees its part of the experts' outputs that the router weighs
        return GROUP_TP;
    case PARAM_QKV:
    case PARAM_QKV_BIAS:
        return model->kv_heads < tp ? GROUP_KV : GROUP_KIND_COUNT;
    case PARAM_POSITION: // what reads or writes the residual stream, of which a rank has some
                         // tokens
    case PARAM_FINAL_NORM:
    case PARAM_FINAL_NORM_BIAS:
    case PARAM_ATTENTION_NORM:
    case PARAM_ATTENTION_NORM_BIAS:
    case PARAM_Q_DOWN: // the latents are made of a rank's own tokens
    case PARAM_Q_DOWN_NORM:
    case PARAM_KV_DOWN:
    case PARAM_KV_DOWN_NORM:
    case PARAM_MLP_NORM:
    case PARAM_MLP_NORM_BIAS:
        return layout->sequence_parallel ? GROUP_TP : GROUP_KIND_COUNT;
    default: // cut over tp; or biases of output projections, whose gradients see all tokens
        return GROUP_KIND_COUNT;
    }
}

static bool is_held(const struct cutting *c, const struct param *p) {
    switch (p->role) {
    case PARAM_EMBEDDING:
        return c->first || (c->last && c->whole->config.tied_head);
    case PARAM_POSITION:
        return c->first;
    case PARAM_FINAL_NORM:
    case PARAM_FINAL_NORM_BIAS:
    case PARAM_HEAD:
        return c->last;
    default:
        break;
    }
    if (c->local_layer[p->layer] < 0) return false;
    return p->expert < 0 ||
           (p->expert >= c->expert_first && p->expert < c->expert_first + c->expert_count);
}

// The next parameter from `i` on that the rank holds; the model's count when there is none. Layers
// of other ranks, and their experts, are stepped over by halving: a model of many experts has tens
// of thousands of parameters.
static int next_held(const struct cutting *c, int i) {
    const struct model *whole = c->whole;
    while (i < whole->param_count && !is_held(c, &whole->params[i])) {
        const struct param *p = &whole->params[i];
        bool layer_here = p->layer >= 0 && c->local_layer[p->layer] >= 0;
        int low = i, high = p->layer < 0 ? i + 1 : whole->param_count;
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            const struct param *q = &whole->params[middle];
            bool alike = q->layer == p->layer;
            if (layer_here)
                alike = alike && q->expert >= 0 &&
                        (q->expert < c->expert_first) == (p->expert < c->expert_first);
            if (alike)
                low = middle;
            else
                high = middle;
        }
        i = high;
    }
    return i;
}

// Rows part by part; a key or value head that several ranks share is held by each.
static void cut_rows(const struct cutting *c, struct param *p, struct param_slice *s) {
    const struct model_config *config = &c->whole->config;
    bool qkv = p->role == PARAM_QKV || p->role == PARAM_QKV_BIAS;
    int share = config->kv_heads < c->tp ? c->tp / config->kv_heads : 1;
    p->rows = 0;
    for (int part = 0; part < p->parts; part++) {
        bool shared = qkv && part > 0 && share > 1;
        p->part_rows[part] = shared ? config->head_dim : p->part_rows[part] / c->tp;
        s->row[part] = p->part_rows[part] * (shared ? c->t / share : c->t);
        p->rows += p->part_rows[part];
    }
    p->rows_padded = p->rows;
    if (qkv) {
        s->copies_kv = share;
        s->copy_kv = c->t % share;
    }
}

static void cut_vocabulary(const struct cutting *c, struct param *p, struct param_slice *s) {
    int64_t begin = c->vocab_padded * c->t, vocab = c->whole->config.vocab;
    s->row[0] = begin < vocab ? begin : vocab;
    p->rows = vocab - s->row[0] < c->vocab_padded ? vocab - s->row[0] : c->vocab_padded;
    p->part_rows[0] = p->rows;
    p->rows_padded = c->vocab_padded;
}

static void cut(const struct cutting *c, int index, struct param *p, struct param_slice *s) {
    *p = c->whole->params[index];
    *s = (struct param_slice){.whole = index, .copies = 1, .copies_kv = 1};
    if (p->layer >= 0) p->layer = c->local_layer[p->layer];
    if (p->expert >= 0) p->expert -= c->expert_first;
    switch (p->axis) {
    case SHARD_NONE:
        s->copies = s->copies_kv = c->tp;
        s->copy = s->copy_kv = c->t;
        break;
    case SHARD_COLUMN:
        cut_rows(c, p, s);
        break;
    case SHARD_ROW:
        p->columns /= c->tp;
        s->column = p->columns * c->t;
        break;
    case SHARD_VOCAB:
        cut_vocabulary(c, p, s);
        break;
    }
    s->partial = layout_partial_group(c->layout, &c->whole->config, p->role);
    s->tied_copy = p->role == PARAM_EMBEDDING && !c->first;
}

// The stages of pipeline rank `at`, and with them the layers.
static void take_stages(struct local_model *local, struct cutting *c, int at) {
    const struct layout *layout = c->layout;
    struct model_config *config = &local->model.config;
    int stages = layout_stages(layout), layers = 0;
    for (int stage = 0; stage < stages; stage++) {
        if (layout_stage_rank(layout, stage) != at) continue;
        struct stage_part *part = &local->stages[local->stage_count++];
        *part = (struct stage_part){.stage = stage,
                                    .layer_first = layers,
                                    .first = stage == 0,
                                    .last = stage == stages - 1};
        for (int layer = layout->layer_first[stage]; layer < layout->layer_first[stage + 1];
             layer++) {
            config->layer_window[layers] = c->whole->config.layer_window[layer];
            config->layer_dense[layers] = c->whole->config.layer_dense[layer];
            c->local_layer[layer] = layers++;
        }
        part->layer_count = layers - part->layer_first;
        c->first = c->first || part->first;
        c->last = c->last || part->last;
    }
    config->layers = layers;
}

void layout_local_sizes(struct model_config *config, const struct layout *layout) {
    int tp = layout->mesh.size[MESH_TP];
    config->heads /= tp;
    config->kv_heads = config->kv_heads < tp ? 1 : config->kv_heads / tp;
    config->ffn /= tp;
    config->expert_ffn /= tp;
    config->shared_ffn /= tp;
    config->experts /= layout->mesh.ep;
}

static void set_sizes(struct local_model *local, struct cutting *c) {
    const struct model_config *whole = &c->whole->config;
    struct model_config *config = &local->model.config;
    int ep = c->layout->mesh.ep;
    layout_local_sizes(config, c->layout);
    c->expert_count = config->experts;
    c->expert_first = mesh_data_index(&c->layout->mesh, local->rank) % ep * config->experts;
    local->expert_first = c->expert_first;
    int64_t multiple = (int64_t)VOCAB_MULTIPLE * c->tp, vocab = whole->vocab;
    c->vocab_padded = (vocab + multiple - 1) / multiple * VOCAB_MULTIPLE;
    int64_t begin = c->vocab_padded * c->t;
    local->vocab_first = begin < vocab ? begin : vocab;
    local->vocab_rows =
        vocab - local->vocab_first < c->vocab_padded ? vocab - local->vocab_first : c->vocab_padded;
}

int layout_local(struct local_model *local, const struct model *whole, const struct layout *layout,
                 int rank, struct err *err) {
    if (rank < 0 || rank >= mesh_ranks(&layout->mesh))
        return err_set(err, ERR_INTERNAL, "layout: rank %d is not one of the mesh's %d", rank,
                       mesh_ranks(&layout->mesh));
    if (layout_fits_model(layout, &whole->config, err) != 0) return -1;
    struct local_model made = {.rank = rank, .model.config = whole->config};
    mesh_at(&layout->mesh, rank, made.at);
    struct cutting c = {
        .layout = layout, .whole = whole, .tp = layout->mesh.size[MESH_TP], .t = made.at[MESH_TP]};
    memset(c.local_layer, -1, sizeof c.local_layer);
    take_stages(&made, &c, made.at[MESH_PP]);
    set_sizes(&made, &c);

    int count = 0;
    int end = whole->param_count;
    for (int i = next_held(&c, 0); i < end; i = next_held(&c, i + 1)) count++;
    made.model.params = calloc((size_t)count + 1, sizeof *made.model.params);
    made.slices = calloc((size_t)count + 1, sizeof *made.slices);
    if (!made.model.params || !made.slices) {
        local_model_free(&made);
        return err_set(err, ERR_MEMORY, "layout: no memory for the list of %d parameters", count);
    }
    for (int i = next_held(&c, 0); i < end; i = next_held(&c, i + 1)) {
        cut(&c, i, &made.model.params[made.model.param_count],
            &made.slices[made.model.param_count]);
        made.model.param_count++;
    }
    *local = made;
    return 0;
}

void local_model_free(struct local_model *local) {
    model_free(&local->model);
    free(local->slices);
    local->slices = NULL;
}
