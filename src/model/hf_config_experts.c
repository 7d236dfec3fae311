// The settings of experts in config.json: Mixtral's and Qwen3-MoE's names for them; see
// hf_config.h.
#include "model/hf_config_parts.h"
#include <string.h>

bool hf_config_has_experts(const char *type) {
    return strcmp(type, "mixtral") == 0 || strcmp(type, "qwen3_moe") == 0;
}

// A key that belongs to the other type would be dropped in silence.
static int refuse_foreign(struct json_at at, const char *type, bool mixtral, struct err *err) {
    static const char *const of_qwen[] = {"moe_intermediate_size", "norm_topk_prob",
                                          "decoder_sparse_step", "mlp_only_layers"};
    for (int i = 0; mixtral && i < 4; i++) {
        json_t *value = json_object_get(at.value, of_qwen[i]);
        if (value && !json_is_null(value) && !json_is_false(value))
            return err_set(err, ERR_DATA, "%s: %s: models of type %s do not have this key",
                           at.where, of_qwen[i], type);
    }
    return 0;
}

// The count has two names: older files of qwen3_moe say num_experts, newer ones may say
// num_local_experts.
static int read_count(struct json_at at, bool mixtral, struct model_config *c, struct err *err) {
    bool local = json_object_get(at.value, "num_local_experts") != NULL;
    bool plain = json_object_get(at.value, "num_experts") != NULL;
    if (local && plain &&
        !json_equal(json_object_get(at.value, "num_local_experts"),
                    json_object_get(at.value, "num_experts")))
        return err_set(err, ERR_DATA,
                       "%s: num_local_experts and num_experts are both given and differ; keep one",
                       at.where);
    return hf_config_get_int(at, plain ? "num_experts" : "num_local_experts", false,
                             mixtral ? 8 : 128, &c->experts, err);
}

static int read_dense_layers(struct json_at at, struct model_config *c, struct err *err) {
    int step;
    if (hf_config_get_int(at, "decoder_sparse_step", false, 1, &step, err) != 0) return -1;
    if (step < 1)
        return err_set(err, ERR_DATA,
                       "%s: decoder_sparse_step: %d; every how many layers there are experts: 1 or "
                       "more",
                       at.where, step);
    if (c->layers > MODEL_MAX_LAYERS) return 0; // refused by the check of the whole
    for (int i = 0; i < c->layers; i++) c->layer_dense[i] = (i + 1) % step != 0;
    json_t *list = json_object_get(at.value, "mlp_only_layers"), *value;
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_DATA, "%s: mlp_only_layers: expected a list of layer numbers",
                       at.where);
    size_t at_value;
    json_array_foreach(list, at_value, value) {
        json_int_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
        if (layer < 0 || layer >= c->layers)
            return err_set(err, ERR_DATA,
                           "%s: mlp_only_layers: element %zu is not a layer number between 0 and "
                           "%d",
                           at.where, at_value, c->layers - 1);
        c->layer_dense[layer] = true;
    }
    return 0;
}

int hf_config_read_experts(struct json_at at, const char *type, struct model_config *c,
                           struct err *err) {
    if (!hf_config_has_experts(type)) return 0;
    bool mixtral = strcmp(type, "mixtral") == 0;
    double jitter;
    if (refuse_foreign(at, type, mixtral, err) != 0 || read_count(at, mixtral, c, err) != 0 ||
        hf_config_get_int(at, "num_experts_per_tok", false, mixtral ? 2 : 8, &c->top_k, err) != 0 ||
        json_get_double(at, "router_aux_loss_coef", false, 0.001, &c->aux_coefficient, err) != 0 ||
        json_get_double(at, "router_jitter_noise", false, 0, &jitter, err) != 0)
        return -1;
    if (jitter != 0)
        return err_set(err, ERR_DATA,
                       "%s: router_jitter_noise: %g is not supported, only 0 (it is noise of "
                       "training)",
                       at.where, jitter);
    if (c->experts == 0)
        return err_set(err, ERR_DATA, "%s: a model of type %s needs at least one expert", at.where,
                       type);
    if (mixtral) {
        c->expert_ffn = c->ffn;
        c->norm_top_k = true;
        return 0;
    }
    if (hf_config_get_int(at, "moe_intermediate_size", false, 768, &c->expert_ffn, err) != 0 ||
        json_get_bool(at, "norm_topk_prob", false, false, &c->norm_top_k, err) != 0)
        return -1;
    return read_dense_layers(at, c, err);
}

static void put(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

void hf_config_write_experts(json_t *out, const char *type, const struct model_config *c) {
    if (!hf_config_has_experts(type)) return;
    put(out, "num_experts_per_tok", json_integer(c->top_k));
    put(out, "router_aux_loss_coef", json_real(c->aux_coefficient));
    put(out, "output_router_logits", json_false());
    if (strcmp(type, "mixtral") == 0) {
        put(out, "num_local_experts", json_integer(c->experts));
        put(out, "intermediate_size", json_integer(c->expert_ffn));
        put(out, "router_jitter_noise", json_real(0));
        return;
    }
    json_t *dense = json_array();
    for (int i = 0; i < c->layers; i++)
        if (c->layer_dense[i]) json_array_append_new(dense, json_integer(i));
    put(out, "num_experts", json_integer(c->experts));
    put(out, "moe_intermediate_size", json_integer(c->expert_ffn));
    put(out, "norm_topk_prob", json_boolean(c->norm_top_k));
    put(out, "decoder_sparse_step", json_integer(1));
    put(out, "mlp_only_layers", dense);
}

bool hf_config_holds_experts(const char *type, const struct model_config *c, const char **why) {
    bool mixtral = strcmp(type, "mixtral") == 0, some_dense = false;
    for (int i = 0; i < c->layers; i++) some_dense = some_dense || c->layer_dense[i];
    *why = NULL;
    if ((c->experts > 0) != hf_config_has_experts(type))
        *why = "experts";
    else if (c->experts > 0 && c->shared_ffn > 0)
        *why = "a shared expert";
    else if (mixtral && some_dense)
        *why = "dense layers between those of experts";
    else if (mixtral && !c->norm_top_k)
        *why = "norm_top_k (weights of experts that are not divided by their sum)";
    return *why == NULL;
}
