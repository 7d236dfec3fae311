// The model as a description: its shape (struct model_config) and the list of its parameters
// (struct param), made before any memory exists. The engine executes it, the memory plan and the
// planner count it, checkpoints name their parts by it.
//
// A `param` is a matrix as the engine multiplies by it. What other programs store as several
// tensors (query, key, value; gate, up) is one param with several parts, because one wide product
// is faster than three narrow ones.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum { MODEL_MAX_LAYERS = 512, MODEL_MAX_PARTS = 3, MODEL_MAX_STOPS = 8, PARAM_NAME_BYTES = 64 };

enum model_family { FAMILY_GPT2, FAMILY_LLAMA };
enum model_norm { NORM_LAYER, NORM_RMS };
enum model_norm_place { NORM_BEFORE, NORM_AFTER }; // AFTER: OLMo-2, x + norm(block(x))
enum model_qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,
    QK_NORM_FULL
}; // per head (Qwen 3); over all heads (OLMo-2)
enum model_activation { ACTIVATION_GELU_TANH, ACTIVATION_SWIGLU };
enum model_rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_DYNAMIC_NTK, ROPE_LLAMA3, ROPE_YARN };

struct model_rope {
    enum model_rope_scaling scaling;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    double attention_factor;                  // yarn: multiplies cos and sin; 0: from the factor
    bool truncate;                            // yarn: round the correction range
    int original_context;                     // dynamic, llama3, yarn
};

struct model_config {
    enum model_family family;
    char variant[16]; // "gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "mixtral",
                      // "qwen3_moe": the Hugging Face model_type on export; "": chosen then
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    enum model_norm norm;
    enum model_norm_place norm_place;
    double norm_eps;
    enum model_qk_norm qk_norm;
    enum model_activation activation;
    bool learned_positions; // else rotary
    struct model_rope rope;
    bool qkv_bias, out_bias, mlp_bias;
    bool tied_head;
    // Multi-head latent attention (DeepSeek-V2 and V3): keys and values come from a latent of
    // kv_lora_rank features per token, which all heads share; kv_lora_rank 0: none. head_dim is
    // then the width of a query and key, of which qk_rope_head_dim are rotated (of keys, shared by
    // all heads), v_head_dim that of a value. q_lora_rank 0: queries without a latent. Described
    // and planned; the engine refuses to train it.
    int q_lora_rank, kv_lora_rank, qk_rope_head_dim, v_head_dim;
    // Mixture of experts: experts 0 is a dense model. In an expert layer the MLP is a router and
    // `experts` SwiGLU MLPs of inner width expert_ffn, of which each token visits top_k, and, where
    // shared_ffn > 0, one of that width that every token visits.
    int experts, top_k, expert_ffn, shared_ffn;
    bool norm_top_k; // weights of the chosen experts are divided by their sum (Mixtral always)
    double aux_coefficient; // of the load-balancing loss, as Hugging Face files carry it; a run
                            // may choose another
    bool layer_dense[MODEL_MAX_LAYERS]; // of a model with experts: this layer has a dense MLP of
                                        // width ffn
    double init_std; // of matrices; output projections of a block divide it by sqrt(2 layers)
    int32_t layer_window[MODEL_MAX_LAYERS]; // keys that a query of this layer sees, itself
                                            // included; 0: all
    int bos_id, eos_id;                     // -1: none
    int stop_ids[MODEL_MAX_STOPS];          // further ids that end a text beside eos_id
    int stop_count;
};

enum param_role {
    // outside the layers
    PARAM_EMBEDDING,  // [vocab, hidden]
    PARAM_POSITION,   // [context, hidden]
    PARAM_FINAL_NORM, // [hidden]
    PARAM_FINAL_NORM_BIAS,
    PARAM_HEAD, // [vocab, hidden]; absent when tied
    // in each layer
    PARAM_ATTENTION_NORM, // [hidden]
    PARAM_ATTENTION_NORM_BIAS,
    PARAM_QKV, // [(heads + 2 kv_heads) head_dim, hidden], parts q, k, v
    PARAM_QKV_BIAS,
    PARAM_Q_NORM, // [head_dim] or [heads head_dim]
    PARAM_K_NORM,
    // with latent attention, in place of PARAM_QKV
    PARAM_Q_DOWN,       // [q_lora_rank, hidden]
    PARAM_Q_DOWN_NORM,  // [q_lora_rank]
    PARAM_Q_UP,         // [heads head_dim, q_lora_rank, or hidden without a latent]
    PARAM_KV_DOWN,      // [kv_lora_rank + qk_rope_head_dim, hidden]
    PARAM_KV_DOWN_NORM, // [kv_lora_rank]
    PARAM_KV_UP,        // [heads (head_dim - qk_rope_head_dim + v_head_dim), kv_lora_rank]
    PARAM_OUT, // [hidden, heads head_dim]; [hidden, heads v_head_dim] with latent attention
    PARAM_OUT_BIAS,
    PARAM_MLP_NORM, // [hidden]
    PARAM_MLP_NORM_BIAS,
    PARAM_UP, // SwiGLU: [2 ffn, hidden], parts gate, up; GELU: [ffn, hidden]
    PARAM_UP_BIAS,
    PARAM_DOWN, // [hidden, ffn]
    PARAM_DOWN_BIAS,
    // in each layer with experts, in place of PARAM_UP and PARAM_DOWN
    PARAM_ROUTER,      // [experts, hidden], multiplied in FP32
    PARAM_EXPERT_UP,   // of each expert: [2 expert_ffn, hidden], parts gate, up
    PARAM_EXPERT_DOWN, // of each expert: [hidden, expert_ffn]
    PARAM_SHARED_UP,   // [2 shared_ffn, hidden], parts gate, up
    PARAM_SHARED_DOWN, // [hidden, shared_ffn]
    PARAM_ROLE_COUNT
};

enum shard_axis {
    SHARD_NONE,   // replicated over tensor-parallel ranks
    SHARD_COLUMN, // output features: rows of the matrix, part by part
    SHARD_ROW,    // input features: columns of the matrix
    SHARD_VOCAB   // rows of the vocabulary
};

struct param {
    char name[PARAM_NAME_BYTES]; // "layers.3.attention.qkv.weight"
    enum param_role role;
    int layer;             // -1 outside the layers
    int expert;            // of the layer's experts; -1: none
    int64_t rows, columns; // logical [rows, columns]; a vector has columns 1
    int64_t rows_padded;   // rows held in memory (vocabularies round up to 64); padding is zero and
                           // never stored
    enum shard_axis axis;
    bool decays; // weight decay applies: matrices and tables, not norms and biases
    double init_mean, init_std;
    int parts;
    int64_t part_rows[MODEL_MAX_PARTS];
    const char
        *part_name[MODEL_MAX_PARTS]; // "q", "k", "v"; "gate", "up"; "" when there is one part
};

struct model {
    struct model_config config;
    struct param *params; // embedding first, layers ascending, final norm, head
    int param_count;
};

// Refuses shapes that cannot be (names the key, the value and what would do), fills nothing in.
int model_config_check(const struct model_config *config, struct err *err);
int model_describe(struct model *model, const struct model_config *config, struct err *err);
void model_free(struct model *model);

// Index of a param, or -1 when this model has none of that role. `layer` is -1 outside the layers.
// Of the roles that each expert has, that of the layer's first expert; the others follow in the
// order up 0, down 0, up 1, down 1 and so on.
int model_param(const struct model *model, int layer, enum param_role role);
int model_param_expert(const struct model *model, int layer, enum param_role role, int expert);
// Whether the MLP of this layer is a mixture of experts.
static inline bool model_layer_has_experts(const struct model_config *c, int layer) {
    return c->experts > 0 && !c->layer_dense[layer];
}
static inline bool param_is_matrix(const struct param *p) {
    return p->columns > 1;
}
static inline int64_t param_elements(const struct param *p) {
    return p->rows * p->columns;
}
static inline int64_t param_elements_padded(const struct param *p) {
    return p->rows_padded * p->columns;
}

// Name of one part: "layers.3.attention.qkv.weight" has the parts "layers.3.attention.q.weight" and
// so on; with one part the param's own name.
void param_part_full_name(const struct param *param, int part, char out[PARAM_NAME_BYTES]);

// Element `i` (row-major, logical) of the initial weights: a pure function of (seed, part name,
// index inside the part), so that no layout and no padding changes it. `out` gets `count` elements
// from `first` on.
void model_initial_values(const struct model *model, int param, uint64_t seed, int64_t first,
                          int64_t count, float *out);

// Sizes of a fused qkv row.
static inline int64_t model_q_width(const struct model_config *c) {
    return (int64_t)c->heads * c->head_dim;
}
static inline int64_t model_kv_width(const struct model_config *c) {
    return (int64_t)c->kv_heads * c->head_dim;
}
static inline bool model_is_latent(const struct model_config *c) {
    return c->kv_lora_rank > 0;
}
// Of what attention puts out: heads x width of a value.
static inline int64_t model_value_width(const struct model_config *c) {
    return (int64_t)c->heads * (model_is_latent(c) ? c->v_head_dim : c->head_dim);
}
static inline int64_t model_qkv_width(const struct model_config *c) {
    return model_q_width(c) + model_kv_width(c) +
           (model_is_latent(c) ? model_value_width(c) : model_kv_width(c));
}
// Of the latents of latent attention, the rotated part of the keys with them.
static inline int64_t model_latent_width(const struct model_config *c) {
    return model_is_latent(c) ? c->q_lora_rank + c->kv_lora_rank + c->qk_rope_head_dim : 0;
}
