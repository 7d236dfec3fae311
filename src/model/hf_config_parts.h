// What the files that read and write config.json share.
#pragma once
#include "base/json.h"
#include "model/model.h"

// Keys of the types with experts (mixtral, qwen3_moe); each type uses its own ones of them.
#define HF_EXPERT_KEYS                                                                             \
    "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size",            \
        "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef",        \
        "router_jitter_noise", "output_router_logits"
// Keys of the types with latent attention (deepseek_v2, deepseek_v3).
#define HF_LATENT_KEYS                                                                             \
    "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",           \
        "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size",    \
        "first_k_dense_replace", "moe_layer_freq", "norm_topk_prob", "aux_loss_alpha", "seq_aux",  \
        "n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor",           \
        "num_nextn_predict_layers", "ep_size", "quantization_config", "rope_interleave",           \
        "auto_map"

int hf_config_get_int(struct json_at at, const char *key, bool required, int fallback, int *out,
                      struct err *err);
bool hf_config_has_experts(const char *type);
// Fills the settings of experts (nothing for other types). The sizes of the dense model have been
// read.
int hf_config_read_experts(struct json_at at, const char *type, struct model_config *c,
                           struct err *err);
bool hf_config_has_latent(const char *type);
// Fills attention and experts of the types with latent attention.
int hf_config_read_latent(struct json_at at, const char *type, struct model_config *c,
                          struct err *err);
void hf_config_write_experts(json_t *out, const char *type, const struct model_config *c);
// Whether a type with experts holds them; *why names what it cannot.
bool hf_config_holds_experts(const char *type, const struct model_config *c, const char **why);
