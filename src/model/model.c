// The list of parameters of a model, in the one order that every reader shares; see model.h.
#include "model/model.h"
#include "base/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a role is, apart from its size: its name, how it is cut, and whether it decays.
static const struct role {
    const char *name; // behind "layers.N." inside a layer, "layers.N.experts.M." of an expert
    enum shard_axis axis;
    bool decays;
    bool closes_block;    // its product is added to the residual stream: smaller initial values
    const char *parts[3]; // as the engine fuses them
} roles[PARAM_ROLE_COUNT] = {
    [PARAM_EMBEDDING] = {"embedding.weight", SHARD_VOCAB, true, false, {""}},
    [PARAM_POSITION] = {"position.weight", SHARD_NONE, true, false, {""}},
    [PARAM_FINAL_NORM] = {"final_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_FINAL_NORM_BIAS] = {"final_norm.bias", SHARD_NONE, false, false, {""}},
    [PARAM_HEAD] = {"head.weight", SHARD_VOCAB, true, false, {""}},
    [PARAM_ATTENTION_NORM] = {"attention_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_ATTENTION_NORM_BIAS] = {"attention_norm.bias", SHARD_NONE, false, false, {""}},
    [PARAM_QKV] = {"attention.qkv.weight", SHARD_COLUMN, true, false, {"q", "k", "v"}},
    [PARAM_QKV_BIAS] = {"attention.qkv.bias", SHARD_COLUMN, false, false, {"q", "k", "v"}},
    [PARAM_Q_NORM] = {"attention.q_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_K_NORM] = {"attention.k_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_Q_DOWN] = {"attention.q_down.weight", SHARD_NONE, true, false, {""}},
    [PARAM_Q_DOWN_NORM] = {"attention.q_down_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_Q_UP] = {"attention.q_up.weight", SHARD_COLUMN, true, false, {""}},
    [PARAM_KV_DOWN] = {"attention.kv_down.weight", SHARD_NONE, true, false, {""}},
    [PARAM_KV_DOWN_NORM] = {"attention.kv_down_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_KV_UP] = {"attention.kv_up.weight", SHARD_COLUMN, true, false, {""}},
    [PARAM_OUT] = {"attention.out.weight", SHARD_ROW, true, true, {""}},
    [PARAM_OUT_BIAS] = {"attention.out.bias", SHARD_NONE, false, false, {""}},
    [PARAM_MLP_NORM] = {"mlp_norm.weight", SHARD_NONE, false, false, {""}},
    [PARAM_MLP_NORM_BIAS] = {"mlp_norm.bias", SHARD_NONE, false, false, {""}},
    [PARAM_UP] = {"mlp.up.weight", SHARD_COLUMN, true, false, {"gate", "up"}},
    [PARAM_UP_BIAS] = {"mlp.up.bias", SHARD_COLUMN, false, false, {"gate", "up"}},
    [PARAM_DOWN] = {"mlp.down.weight", SHARD_ROW, true, true, {""}},
    [PARAM_DOWN_BIAS] = {"mlp.down.bias", SHARD_NONE, false, false, {""}},
    [PARAM_ROUTER] = {"router.weight", SHARD_NONE, true, false, {""}},
    [PARAM_EXPERT_UP] = {"up.weight", SHARD_COLUMN, true, false, {"gate", "up"}},
    [PARAM_EXPERT_DOWN] = {"down.weight", SHARD_ROW, true, true, {""}},
    [PARAM_SHARED_UP] = {"shared.up.weight", SHARD_COLUMN, true, false, {"gate", "up"}},
    [PARAM_SHARED_DOWN] = {"shared.down.weight", SHARD_ROW, true, true, {""}},
};

enum { VOCAB_MULTIPLE = 64 };

static bool is_norm(enum param_role role) {
    return role == PARAM_FINAL_NORM || role == PARAM_ATTENTION_NORM || role == PARAM_Q_NORM ||
           role == PARAM_K_NORM || role == PARAM_MLP_NORM || role == PARAM_Q_DOWN_NORM ||
           role == PARAM_KV_DOWN_NORM;
}

// Of latent attention. Returns 0 rows where the model has none.
static int64_t latent_rows(const struct model_config *c, enum param_role role, int64_t *columns) {
    if (!model_is_latent(c)) return 0;
    switch (role) {
    case PARAM_Q_DOWN:
        *columns = c->hidden;
        return c->q_lora_rank;
    case PARAM_Q_DOWN_NORM:
        return c->q_lora_rank;
    case PARAM_Q_UP:
        *columns = c->q_lora_rank > 0 ? c->q_lora_rank : c->hidden;
        return model_q_width(c);
    case PARAM_KV_DOWN:
        *columns = c->hidden;
        return c->kv_lora_rank + c->qk_rope_head_dim;
    case PARAM_KV_DOWN_NORM:
        return c->kv_lora_rank;
    case PARAM_KV_UP:
        *columns = c->kv_lora_rank;
        return (int64_t)c->heads * (c->head_dim - c->qk_rope_head_dim + c->v_head_dim);
    default:
        return 0;
    }
}

// Rows and columns of a role; rows 0: this model has none.
static void role_shape(const struct model_config *c, enum param_role role, int64_t *rows,
                       int64_t *columns) {
    bool centred = c->norm == NORM_LAYER, swiglu = c->activation == ACTIVATION_SWIGLU;
    int64_t up = swiglu ? 2 * (int64_t)c->ffn : c->ffn;
    int64_t r = 0, k = 1;
    switch (role) {
    case PARAM_EMBEDDING:
        r = c->vocab, k = c->hidden;
        break;
    case PARAM_POSITION:
        r = c->learned_positions ? c->context : 0, k = c->hidden;
        break;
    case PARAM_FINAL_NORM:
    case PARAM_ATTENTION_NORM:
    case PARAM_MLP_NORM:
        r = c->hidden;
        break;
    case PARAM_FINAL_NORM_BIAS:
    case PARAM_ATTENTION_NORM_BIAS:
    case PARAM_MLP_NORM_BIAS:
        r = centred ? c->hidden : 0;
        break;
    case PARAM_HEAD:
        r = c->tied_head ? 0 : c->vocab, k = c->hidden;
        break;
    case PARAM_QKV:
        r = model_is_latent(c) ? 0 : model_qkv_width(c), k = c->hidden;
        break;
    case PARAM_QKV_BIAS:
        r = c->qkv_bias ? model_qkv_width(c) : 0;
        break;
    case PARAM_Q_NORM:
    case PARAM_K_NORM:
        if (c->qk_norm == QK_NORM_HEAD) r = c->head_dim;
        if (c->qk_norm == QK_NORM_FULL)
            r = role == PARAM_Q_NORM ? model_q_width(c) : model_kv_width(c);
        break;
    case PARAM_Q_DOWN:
    case PARAM_Q_DOWN_NORM:
    case PARAM_Q_UP:
    case PARAM_KV_DOWN:
    case PARAM_KV_DOWN_NORM:
    case PARAM_KV_UP:
        r = latent_rows(c, role, &k);
        break;
    case PARAM_OUT:
        r = c->hidden, k = model_value_width(c);
        break;
    case PARAM_OUT_BIAS:
        r = c->out_bias ? c->hidden : 0;
        break;
    case PARAM_UP:
        r = up, k = c->hidden;
        break;
    case PARAM_UP_BIAS:
        r = c->mlp_bias ? up : 0;
        break;
    case PARAM_DOWN:
        r = c->hidden, k = c->ffn;
        break;
    case PARAM_DOWN_BIAS:
        r = c->mlp_bias ? c->hidden : 0;
        break;
    case PARAM_ROUTER:
        r = c->experts, k = c->hidden;
        break;
    case PARAM_EXPERT_UP:
        r = 2 * (int64_t)c->expert_ffn, k = c->hidden;
        break;
    case PARAM_EXPERT_DOWN:
        r = c->hidden, k = c->expert_ffn;
        break;
    case PARAM_SHARED_UP:
        r = 2 * (int64_t)c->shared_ffn, k = c->hidden;
        break;
    case PARAM_SHARED_DOWN:
        r = c->shared_ffn > 0 ? c->hidden : 0, k = c->shared_ffn;
        break;
    case PARAM_ROLE_COUNT:
        break;
    }
    *rows = r;
    *columns = k;
}

static void set_parts(struct param *p, const struct model_config *c) {
    const struct role *role = &roles[p->role];
    bool qkv = p->role == PARAM_QKV || p->role == PARAM_QKV_BIAS;
    bool up =
        (p->role == PARAM_UP || p->role == PARAM_UP_BIAS) && c->activation == ACTIVATION_SWIGLU;
    up = up || p->role == PARAM_EXPERT_UP || p->role == PARAM_SHARED_UP;
    p->parts = qkv ? 3 : up ? 2 : 1;
    for (int i = 0; i < p->parts; i++) p->part_name[i] = p->parts == 1 ? "" : role->parts[i];
    p->part_rows[0] = p->rows;
    if (qkv) {
        p->part_rows[0] = model_q_width(c);
        p->part_rows[1] = p->part_rows[2] = model_kv_width(c);
    }
    if (up) p->part_rows[0] = p->part_rows[1] = p->rows / 2;
}

static void put(struct model *model, enum param_role kind, int layer, int expert) {
    const struct model_config *c = &model->config;
    const struct role *role = &roles[kind];
    int64_t rows, columns;
    role_shape(c, kind, &rows, &columns);
    if (rows == 0) return;
    struct param *p = &model->params[model->param_count++];
    *p = (struct param){.role = kind,
                        .layer = layer,
                        .expert = expert,
                        .rows = rows,
                        .columns = columns,
                        .rows_padded = rows};
    p->axis = role->axis;
    p->decays = role->decays;
    if (layer < 0)
        snprintf(p->name, sizeof p->name, "%s", role->name);
    else if (expert < 0)
        snprintf(p->name, sizeof p->name, "layers.%d.%s", layer, role->name);
    else
        snprintf(p->name, sizeof p->name, "layers.%d.experts.%d.%s", layer, expert, role->name);
    if (role->axis == SHARD_VOCAB)
        p->rows_padded = (rows + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE * VOCAB_MULTIPLE;
    if (is_norm(kind)) p->init_mean = 1;
    if (role->decays)
        p->init_std = role->closes_block ? c->init_std / sqrt(2.0 * c->layers) : c->init_std;
    set_parts(p, c);
}

static void put_experts(struct model *model, int layer) {
    const struct model_config *c = &model->config;
    put(model, PARAM_ROUTER, layer, -1);
    for (int expert = 0; expert < c->experts; expert++) {
        put(model, PARAM_EXPERT_UP, layer, expert);
        put(model, PARAM_EXPERT_DOWN, layer, expert);
    }
    put(model, PARAM_SHARED_UP, layer, -1);
    put(model, PARAM_SHARED_DOWN, layer, -1);
}

static void put_layer(struct model *model, int layer) {
    bool experts = model_layer_has_experts(&model->config, layer);
    int end = experts ? PARAM_UP : PARAM_ROUTER;
    for (int role = PARAM_ATTENTION_NORM; role < end; role++)
        put(model, (enum param_role)role, layer, -1);
    if (experts) put_experts(model, layer);
}

int model_describe(struct model *model, const struct model_config *config, struct err *err) {
    if (model_config_check(config, err) != 0) return -1;
    struct model made = {.config = *config};
    size_t most = ((size_t)config->layers + 1) * PARAM_ROLE_COUNT;
    for (int layer = 0; layer < config->layers; layer++)
        if (model_layer_has_experts(config, layer)) most += 2 * (size_t)config->experts;
    made.params = calloc(most, sizeof *made.params);
    if (!made.params)
        return err_set(err, ERR_MEMORY, "model: no memory for the list of %zu parameters", most);
    put(&made, PARAM_EMBEDDING, -1, -1);
    put(&made, PARAM_POSITION, -1, -1);
    for (int layer = 0; layer < config->layers; layer++) put_layer(&made, layer);
    put(&made, PARAM_FINAL_NORM, -1, -1);
    put(&made, PARAM_FINAL_NORM_BIAS, -1, -1);
    put(&made, PARAM_HEAD, -1, -1);
    *model = made;
    return 0;
}

void model_free(struct model *model) {
    free(model->params);
    model->params = NULL;
    model->param_count = 0;
}

int model_param(const struct model *model, int layer, enum param_role role) {
    for (int i = 0; i < model->param_count; i++)
        if (model->params[i].role == role && model->params[i].layer == layer) return i;
    return -1;
}

int model_param_expert(const struct model *model, int layer, enum param_role role, int expert) {
    for (int i = 0; i < model->param_count; i++)
        if (model->params[i].role == role && model->params[i].layer == layer &&
            model->params[i].expert == expert)
            return i;
    return -1;
}

void param_part_full_name(const struct param *param, int part, char out[PARAM_NAME_BYTES]) {
    memcpy(out, param->name, sizeof param->name);
    if (param->parts == 1) return;
    // the last word but one is the fused name; the part's stands for it
    const char *tail = strrchr(param->name, '.');
    int head = (int)(tail - param->name);
    while (head > 0 && param->name[head - 1] != '.') head--;
    snprintf(out, PARAM_NAME_BYTES, "%.*s%s%s", head, param->name, param->part_name[part], tail);
}

void model_initial_values(const struct model *model, int index, uint64_t seed, int64_t first,
                          int64_t count, float *out) {
    const struct param *p = &model->params[index];
    int64_t begin = 0;
    for (int part = 0; part < p->parts; part++) {
        int64_t end = begin + p->part_rows[part] * p->columns;
        int64_t from = first > begin ? first : begin,
                to = first + count < end ? first + count : end;
        if (from < to) {
            float *values = out + (from - first);
            if (p->init_std > 0) {
                char name[PARAM_NAME_BYTES];
                param_part_full_name(p, part, name);
                random_normals(random_key(seed, name), (uint64_t)(from - begin),
                               (uint64_t)(to - from), values);
                for (int64_t i = 0; i < to - from; i++)
                    values[i] = (float)(p->init_mean + p->init_std * (double)values[i]);
            } else {
                for (int64_t i = 0; i < to - from; i++) values[i] = (float)p->init_mean;
            }
        }
        begin = end;
    }
}
