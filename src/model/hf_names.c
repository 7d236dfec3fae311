// See hf_names.h. Two tables (GPT-2's and the Llama family's) give the name of each part of each
// role.
#include "model/hf_names.h"
#include "base/text.h"
#include "model/hf_config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct names {
    const char *parts[MODEL_MAX_PARTS];
    bool turned;
};

static const struct names gpt2_names[PARAM_ROLE_COUNT] = {
    [PARAM_EMBEDDING] = {{"transformer.wte.weight"}, false},
    [PARAM_POSITION] = {{"transformer.wpe.weight"}, false},
    [PARAM_FINAL_NORM] = {{"transformer.ln_f.weight"}, false},
    [PARAM_FINAL_NORM_BIAS] = {{"transformer.ln_f.bias"}, false},
    [PARAM_HEAD] = {{"lm_head.weight"}, false},
    [PARAM_ATTENTION_NORM] = {{"ln_1.weight"}, false},
    [PARAM_ATTENTION_NORM_BIAS] = {{"ln_1.bias"}, false},
    [PARAM_QKV] = {{"attn.c_attn.weight"}, true},
    [PARAM_QKV_BIAS] = {{"attn.c_attn.bias"}, false},
    [PARAM_OUT] = {{"attn.c_proj.weight"}, true},
    [PARAM_OUT_BIAS] = {{"attn.c_proj.bias"}, false},
    [PARAM_MLP_NORM] = {{"ln_2.weight"}, false},
    [PARAM_MLP_NORM_BIAS] = {{"ln_2.bias"}, false},
    [PARAM_UP] = {{"mlp.c_fc.weight"}, true},
    [PARAM_UP_BIAS] = {{"mlp.c_fc.bias"}, false},
    [PARAM_DOWN] = {{"mlp.c_proj.weight"}, true},
    [PARAM_DOWN_BIAS] = {{"mlp.c_proj.bias"}, false},
};

static const struct names llama_names[PARAM_ROLE_COUNT] = {
    [PARAM_EMBEDDING] = {{"model.embed_tokens.weight"}, false},
    [PARAM_FINAL_NORM] = {{"model.norm.weight"}, false},
    [PARAM_HEAD] = {{"lm_head.weight"}, false},
    [PARAM_ATTENTION_NORM] = {{"input_layernorm.weight"}, false},
    [PARAM_QKV] = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                    "self_attn.v_proj.weight"},
                   false},
    [PARAM_QKV_BIAS] = {{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                        false},
    [PARAM_Q_NORM] = {{"self_attn.q_norm.weight"}, false},
    [PARAM_K_NORM] = {{"self_attn.k_norm.weight"}, false},
    [PARAM_OUT] = {{"self_attn.o_proj.weight"}, false},
    [PARAM_OUT_BIAS] = {{"self_attn.o_proj.bias"}, false},
    [PARAM_MLP_NORM] = {{"post_attention_layernorm.weight"}, false},
    [PARAM_UP] = {{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, false},
    [PARAM_UP_BIAS] = {{"mlp.gate_proj.bias", "mlp.up_proj.bias"}, false},
    [PARAM_DOWN] = {{"mlp.down_proj.weight"}, false},
    [PARAM_DOWN_BIAS] = {{"mlp.down_proj.bias"}, false},
    [PARAM_ROUTER] = {{"mlp.gate.weight"}, false},
    [PARAM_EXPERT_UP] = {{"gate_proj.weight", "up_proj.weight"}, false},
    [PARAM_EXPERT_DOWN] = {{"down_proj.weight"}, false},
};

static bool is_mixtral(const struct model_config *c) {
    const char *type = c->experts > 0 ? hf_config_type(c, NULL) : NULL;
    return type && strcmp(type, "mixtral") == 0;
}

// Mixtral counts the matrices of an expert: w1 gate, w2 down, w3 up.
static const char *mixtral_name(enum param_role role, int part) {
    if (role == PARAM_ROUTER) return "block_sparse_moe.gate.weight";
    if (role == PARAM_EXPERT_UP) return part == 0 ? "w1.weight" : "w3.weight";
    if (role == PARAM_EXPERT_DOWN) return "w2.weight";
    return NULL;
}

static const char *part_name(const struct model_config *c, enum param_role role, int part) {
    if (c->family == FAMILY_GPT2) return gpt2_names[role].parts[part];
    if (c->norm_place == NORM_AFTER) { // OLMo-2 names its norms by what they follow
        if (role == PARAM_ATTENTION_NORM) return "post_attention_layernorm.weight";
        if (role == PARAM_MLP_NORM) return "post_feedforward_layernorm.weight";
    }
    return llama_names[role].parts[part];
}

static void describe(struct hf_tensor *t, const struct model_config *c, const struct param *p,
                     int index, int part, int64_t first_row, int64_t rows, bool mixtral) {
    bool gpt2 = c->family == FAMILY_GPT2;
    *t = (struct hf_tensor){
        .param = index, .first_row = first_row, .rows = rows, .columns = p->columns};
    t->turned = gpt2 && gpt2_names[p->role].turned;
    t->dims = param_is_matrix(p) ? 2 : 1;
    t->shape[0] = t->turned ? p->columns : rows;
    t->shape[1] = t->turned ? rows : p->columns;
    const char *name = mixtral ? mixtral_name(p->role, part) : NULL;
    if (!name) name = part_name(c, p->role, part);
    if (p->layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else if (p->expert >= 0)
        snprintf(t->name, sizeof t->name, "model.layers.%d.%s.experts.%d.%s", p->layer,
                 mixtral ? "block_sparse_moe" : "mlp", p->expert, name);
    else
        snprintf(t->name, sizeof t->name, "%s.%d.%s", gpt2 ? "transformer.h" : "model.layers",
                 p->layer, name);
}

int hf_tensors(const struct model *model, struct hf_tensor **list, int *count, struct err *err) {
    const struct model_config *c = &model->config;
    size_t most = (size_t)model->param_count * MODEL_MAX_PARTS;
    struct hf_tensor *made = calloc(most, sizeof *made);
    if (!made) return err_set(err, ERR_MEMORY, "no memory for the names of %zu tensors", most);
    if (model_is_latent(c)) {
        free(made);
        return err_set(err, ERR_DATA,
                       "a model with latent attention (%s) can be planned, not loaded or saved",
                       c->variant);
    }
    bool mixtral = is_mixtral(c);
    int used = 0;
    for (int i = 0; i < model->param_count; i++) {
        const struct param *p = &model->params[i];
        // GPT-2 keeps the fused matrix whole
        int parts = c->family == FAMILY_GPT2 ? 1 : p->parts;
        int64_t row = 0;
        for (int part = 0; part < parts; part++) {
            int64_t rows = parts == 1 ? p->rows : p->part_rows[part];
            if (!part_name(c, p->role, part)) {
                free(made);
                return err_set(err, ERR_INTERNAL, "%s has no Hugging Face name", p->name);
            }
            describe(&made[used++], c, p, i, part, row, rows, mixtral);
            row += rows;
        }
    }
    *list = made;
    *count = used;
    return 0;
}

const char *hf_head_name(const struct model_config *config) {
    return part_name(config, PARAM_HEAD, 0);
}

static const char *without_prefix(const char *name) {
    static const char *const prefixes[] = {"model.", "transformer."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return name + strlen(prefixes[i]);
    return name;
}

int hf_tensor_find(const struct hf_tensor *list, int count, const char *stored_name) {
    const char *bare = without_prefix(stored_name);
    for (int i = 0; i < count; i++)
        if (strcmp(without_prefix(list[i].name), bare) == 0) return i;
    return -1;
}

bool hf_name_ignorable(const char *name) {
    return text_ends_with(name, ".attn.bias") || text_ends_with(name, ".attn.masked_bias") ||
           text_ends_with(name, "rotary_emb.inv_freq") ||
           text_ends_with(name, "rotary_emb.cos_cached") ||
           text_ends_with(name, "rotary_emb.sin_cached");
}
