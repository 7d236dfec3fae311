// The settings of DeepSeek-V2 and V3 in config.json: latent attention, experts of which the first
// layers have none, a shared expert; see hf_config.h. Such models are described for planning. Keys
// that only say how the router scores (groups, scaling) change no size and no operation counted.
#include "model/hf_config_parts.h"
#include <limits.h>
#include <string.h>

bool hf_config_has_latent(const char *type) {
    return strcmp(type, "deepseek_v2") == 0 || strcmp(type, "deepseek_v3") == 0;
}

static int read_attention(struct json_at at, struct model_config *c, struct err *err) {
    int plain;
    if (hf_config_get_int(at, "kv_lora_rank", false, 512, &c->kv_lora_rank, err) != 0 ||
        hf_config_get_int(at, "q_lora_rank", false,
                          json_object_get(at.value, "q_lora_rank") ? 0 : 1536, &c->q_lora_rank,
                          err) != 0 ||
        hf_config_get_int(at, "qk_rope_head_dim", false, 64, &c->qk_rope_head_dim, err) != 0 ||
        hf_config_get_int(at, "qk_nope_head_dim", false, 128, &plain, err) != 0 ||
        hf_config_get_int(at, "v_head_dim", false, 128, &c->v_head_dim, err) != 0)
        return -1;
    if (c->kv_lora_rank < 1 || plain < 0 || plain > INT_MAX / 2 || c->qk_rope_head_dim < 0 ||
        c->qk_rope_head_dim > INT_MAX / 2)
        return err_set(err, ERR_DATA,
                       "%s: kv_lora_rank %d, qk_nope_head_dim %d and qk_rope_head_dim %d: a rank "
                       "of at least 1 and two widths of 0 or more are needed",
                       at.where, c->kv_lora_rank, plain, c->qk_rope_head_dim);
    c->head_dim = plain + c->qk_rope_head_dim;
    return 0;
}

int hf_config_read_latent(struct json_at at, const char *type, struct model_config *c,
                          struct err *err) {
    int first, every, shared;
    bool normed = strcmp(type, "deepseek_v3") == 0;
    if (read_attention(at, c, err) != 0 ||
        hf_config_get_int(at, "n_routed_experts", false, 0, &c->experts, err) != 0 ||
        hf_config_get_int(at, "num_experts_per_tok", false, 8, &c->top_k, err) != 0 ||
        hf_config_get_int(at, "moe_intermediate_size", false, 2048, &c->expert_ffn, err) != 0 ||
        hf_config_get_int(at, "n_shared_experts", false, 0, &shared, err) != 0 ||
        hf_config_get_int(at, "first_k_dense_replace", false, 0, &first, err) != 0 ||
        hf_config_get_int(at, "moe_layer_freq", false, 1, &every, err) != 0 ||
        json_get_bool(at, "norm_topk_prob", false, normed, &c->norm_top_k, err) != 0 ||
        json_get_double(at, "aux_loss_alpha", false, 0, &c->aux_coefficient, err) != 0)
        return -1;
    if (every < 1 || shared < 0 || (shared > 0 && c->expert_ffn > INT_MAX / shared))
        return err_set(err, ERR_DATA,
                       "%s: moe_layer_freq %d and n_shared_experts %d: expected 1 or more, and 0 "
                       "or more",
                       at.where, every, shared);
    if (c->experts == 0) {
        c->top_k = c->expert_ffn = 0;
        c->aux_coefficient = 0;
        c->norm_top_k = false;
        return 0;
    }
    c->shared_ffn = shared * c->expert_ffn;
    for (int i = 0; i < c->layers && i < MODEL_MAX_LAYERS; i++)
        c->layer_dense[i] = i < first || i % every != 0;
    return 0;
}
