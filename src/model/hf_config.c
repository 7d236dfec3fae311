// Reading config.json; see hf_config.h. Defaults of absent keys are those of the transformers
// library, since files leave out what equals them.
#include "model/hf_config.h"
#include "base/file.h"
#include "model/families.h"
#include "model/hf_config_parts.h"
#include "model/hf_keys.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct type {
    const char *name, *config_class; // the latter for files that have no model_type
    double eps;                      // defaults, as those below
    int context, kv_heads, head_dim; // 0: heads, hidden / heads
    int bos, eos;
    bool may_slide;
} types[] = {
    {"gpt2", "transformers.GPT2Config", 1e-5, 1024, 0, 0, 50256, 50256, false},
    {"llama", "transformers.LlamaConfig", 1e-6, 2048, 0, 0, 1, 2, false},
    {"mistral", "transformers.MistralConfig", 1e-6, 131072, 8, 0, 1, 2, true},
    {"qwen2", "transformers.Qwen2Config", 1e-6, 32768, 32, 0, -1, -1, true},
    {"qwen3", "transformers.Qwen3Config", 1e-6, 32768, 32, 128, -1, -1, true},
    {"olmo2", "transformers.Olmo2Config", 1e-5, 2048, 0, 0, -1, 50279, false},
    {"mixtral", "transformers.MixtralConfig", 1e-5, 131072, 8, 0, 1, 2, true},
    {"qwen3_moe", "transformers.Qwen3MoeConfig", 1e-6, 32768, 4, 0, -1, -1, true},
    {"deepseek_v2", "transformers.DeepseekV2Config", 1e-6, 2048, 0, 0, 0, 1, false},
    {"deepseek_v3", "transformers.DeepseekV3Config", 1e-6, 4096, 0, 0, 0, 1, false},
};
enum {
    TYPE_COUNT = sizeof types / sizeof types[0],
    DEFAULT_WINDOW = 4096,
    DEFAULT_WINDOW_LAYERS = 28
};

int hf_config_get_int(struct json_at at, const char *key, bool required, int fallback, int *out,
                      struct err *err) {
    int64_t wide;
    if (json_get_int(at, key, required, fallback, &wide, err) != 0) return -1;
    if (wide < INT_MIN || wide > INT_MAX)
        return err_set(err, ERR_DATA, "%s: %s: %lld is out of range", at.where, key,
                       (long long)wide);
    *out = (int)wide;
    return 0;
}

static const struct type *find_type(struct json_at at, struct err *err) {
    const char *type, *class;
    if (json_get_string(at, "model_type", false, NULL, &type, err) != 0 ||
        json_get_string(at, "_hf_config_class", false, "", &class, err) != 0)
        return NULL;
    for (int i = 0; i < TYPE_COUNT; i++)
        if (type ? strcmp(type, types[i].name) == 0 : strcmp(class, types[i].config_class) == 0)
            return &types[i];
    err_set(err, ERR_DATA,
            "%s: model_type: found %s%.60s%s; weft knows gpt2, llama, mistral, qwen2, qwen3, "
            "olmo2, mixtral, qwen3_moe, deepseek_v2 and deepseek_v3",
            at.where, type ? "\"" : "", type ? type : "none", type ? "\"" : "");
    return NULL;
}

// The head on top must be the one that predicts tokens.
static int check_architectures(struct json_at at, struct err *err) {
    json_t *list = json_object_get(at.value, "architectures");
    if (!list || json_is_null(list)) return 0;
    size_t i;
    json_t *value;
    json_array_foreach(list, i, value) {
        const char *name = json_is_string(value) ? json_string_value(value) : "";
        size_t length = strlen(name);
        bool causal = strstr(name, "ForCausalLM") != NULL || strstr(name, "LMHeadModel") != NULL;
        bool bare =
            length > 5 && strcmp(name + length - 5, "Model") == 0 && !strstr(name, "DoubleHeads");
        if (!causal && !bare)
            return err_set(
                err, ERR_DATA,
                "%s: architectures: \"%.60s\" is not a model that predicts the next token",
                at.where, name);
    }
    return 0;
}

static int read_ids(struct json_at at, const struct type *type, struct model_config *c,
                    struct err *err) {
    if (hf_config_get_int(at, "bos_token_id", false,
                          json_object_get(at.value, "bos_token_id") ? -1 : type->bos, &c->bos_id,
                          err) != 0)
        return -1;
    json_t *eos = json_object_get(at.value, "eos_token_id");
    if (!json_is_array(eos))
        return hf_config_get_int(at, "eos_token_id", false, eos ? -1 : type->eos, &c->eos_id, err);
    c->eos_id = -1;
    for (size_t i = 0; i < json_array_size(eos); i++) {
        json_t *value = json_array_get(eos, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT_MAX)
            return err_set(err, ERR_DATA, "%s: eos_token_id: expected token ids", at.where);
        int id = (int)json_integer_value(value);
        if (i == 0) {
            c->eos_id = id;
        } else if (c->stop_count == MODEL_MAX_STOPS) {
            return err_set(err, ERR_DATA, "%s: eos_token_id: more than %d ids", at.where,
                           MODEL_MAX_STOPS + 1);
        } else {
            c->stop_ids[c->stop_count++] = id;
        }
    }
    return 0;
}

// A key that may only hold one value here; another one would change the model.
static int demand_bool(struct json_at at, const char *key, bool wanted, struct err *err) {
    bool value;
    if (json_get_bool(at, key, false, wanted, &value, err) != 0) return -1;
    if (value == wanted) return 0;
    return err_set(err, ERR_DATA, "%s: %s: weft supports only %s", at.where, key,
                   wanted ? "true" : "false");
}

static int demand_activation(struct json_at at, const char *key, const char *fallback,
                             const char *const *allowed, struct err *err) {
    const char *name;
    if (json_get_string(at, key, false, fallback, &name, err) != 0) return -1;
    for (int i = 0; allowed[i]; i++)
        if (strcmp(allowed[i], name) == 0) return 0;
    return err_set(err, ERR_DATA, "%s: %s: \"%.40s\" is not supported; expected \"%s\"", at.where,
                   key, name, allowed[0]);
}

static int read_gpt2(struct json_at at, struct model_config *c, struct err *err) {
    static const char *const used[] = {"vocab_size",
                                       "n_positions",
                                       "n_ctx",
                                       "n_embd",
                                       "n_layer",
                                       "n_head",
                                       "n_inner",
                                       "activation_function",
                                       "layer_norm_epsilon",
                                       "initializer_range",
                                       "scale_attn_weights",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "scale_attn_by_inverse_layer_idx",
                                       "add_cross_attention",
                                       "tie_word_embeddings",
                                       NULL};
    static const char *const activations[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", NULL};
    if (hf_keys_check(at.value, at.where, used, err) != 0 ||
        hf_config_get_int(at, "vocab_size", true, 0, &c->vocab, err) != 0 ||
        hf_config_get_int(at, "n_positions", false, 1024, &c->context, err) != 0 ||
        hf_config_get_int(at, "n_embd", true, 0, &c->hidden, err) != 0 ||
        hf_config_get_int(at, "n_layer", true, 0, &c->layers, err) != 0 ||
        hf_config_get_int(at, "n_head", true, 0, &c->heads, err) != 0 ||
        hf_config_get_int(at, "n_inner", false, 0, &c->ffn, err) != 0 ||
        json_get_double(at, "layer_norm_epsilon", false, 1e-5, &c->norm_eps, err) != 0 ||
        json_get_bool(at, "tie_word_embeddings", false, true, &c->tied_head, err) != 0 ||
        demand_activation(at, "activation_function", "gelu_new", activations, err) != 0 ||
        demand_bool(at, "scale_attn_weights", true, err) != 0 ||
        demand_bool(at, "add_cross_attention", false, err) != 0 ||
        demand_bool(at, "scale_attn_by_inverse_layer_idx", false, err) != 0)
        return -1;
    if (c->ffn == 0 && c->hidden <= INT_MAX / 4) c->ffn = 4 * c->hidden;
    if (c->heads < 1 || c->hidden % c->heads != 0)
        return err_set(err, ERR_DATA, "%s: n_embd (%d) is not a multiple of n_head (%d)", at.where,
                       c->hidden, c->heads);
    c->kv_heads = c->heads;
    c->head_dim = c->hidden / c->heads;
    return 0;
}

// --- rotary positions ---

// Which keys a scaling kind reads; what stands there beyond them would be dropped in silence.
static const struct scaling {
    const char *name;
    enum model_rope_scaling kind;
    const char *keys[9];
} scalings[] = {
    {"default", ROPE_PLAIN, {NULL}},
    {"linear", ROPE_LINEAR, {"factor", NULL}},
    {"dynamic", ROPE_DYNAMIC_NTK, {"factor", NULL}},
    {"llama3",
     ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL}},
    {"yarn",
     ROPE_YARN,
     {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
      "mscale", "mscale_all_dim", "truncate", NULL}},
};

static int check_rope_keys(struct json_at at, const struct scaling *s, struct err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(at.value, key, value) {
        bool known = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0 ||
                     strcmp(key, "rope_theta") == 0 || strcmp(key, "partial_rotary_factor") == 0;
        for (int i = 0; s->keys[i] && !known; i++) known = strcmp(key, s->keys[i]) == 0;
        if (!known && !json_is_null(value))
            return err_set(err, ERR_DATA,
                           "%s: %s: the scaling type \"%s\" does not use this key; remove it, or "
                           "correct the type",
                           at.where, key, s->name);
    }
    return 0;
}

static double yarn_scale(double factor, double weight) {
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

static int read_yarn(struct json_at at, struct model_config *c, struct err *err) {
    struct model_rope *r = &c->rope;
    double scale, scale_all;
    if (json_get_double(at, "factor", false, (double)c->context / r->original_context, &r->factor,
                        err) != 0 ||
        json_get_double(at, "beta_fast", false, 32, &r->beta_fast, err) != 0 ||
        json_get_double(at, "beta_slow", false, 1, &r->beta_slow, err) != 0 ||
        json_get_double(at, "attention_factor", false, 0, &r->attention_factor, err) != 0 ||
        json_get_double(at, "mscale", false, 0, &scale, err) != 0 ||
        json_get_double(at, "mscale_all_dim", false, 0, &scale_all, err) != 0 ||
        json_get_bool(at, "truncate", false, true, &r->truncate, err) != 0)
        return -1;
    if (r->attention_factor == 0 && scale != 0 && scale_all != 0)
        r->attention_factor = yarn_scale(r->factor, scale) / yarn_scale(r->factor, scale_all);
    return 0;
}

static int read_scaling(struct json_at at, struct model_config *c, struct err *err) {
    struct model_rope *r = &c->rope;
    const char *name;
    if (json_get_string(at, "rope_type", false, NULL, &name, err) != 0) return -1;
    if (!name && json_get_string(at, "type", false, "default", &name, err) != 0) return -1;
    const struct scaling *s = NULL;
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++)
        if (strcmp(scalings[i].name, name) == 0) s = &scalings[i];
    if (!s)
        return err_set(err, ERR_DATA,
                       "%s: rope_type: \"%.40s\" is not supported; weft knows default, linear, "
                       "dynamic, llama3 and yarn",
                       at.where, name);
    double partial;
    if (check_rope_keys(at, s, err) != 0 ||
        json_get_double(at, "rope_theta", false, r->theta, &r->theta, err) != 0 ||
        json_get_double(at, "partial_rotary_factor", false, 1, &partial, err) != 0)
        return -1;
    if (partial != 1)
        return err_set(err, ERR_DATA, "%s: partial_rotary_factor: %g is not supported, only 1",
                       at.where, partial);
    r->scaling = s->kind;
    if (s->kind == ROPE_PLAIN) return 0;
    if (s->kind != ROPE_YARN && json_get_double(at, "factor", true, 0, &r->factor, err) != 0)
        return -1;
    if (s->kind == ROPE_LLAMA3 || s->kind == ROPE_YARN) {
        if (hf_config_get_int(at, "original_max_position_embeddings", false, c->context,
                              &r->original_context, err) != 0)
            return -1;
    }
    if (s->kind == ROPE_YARN) return read_yarn(at, c, err);
    if (s->kind == ROPE_LLAMA3)
        return json_get_double(at, "low_freq_factor", true, 0, &r->low_freq_factor, err) != 0 ||
                       json_get_double(at, "high_freq_factor", true, 0, &r->high_freq_factor,
                                       err) != 0
                   ? -1
                   : 0;
    if (s->kind == ROPE_DYNAMIC_NTK) {
        // here max_position_embeddings is the trained length, and the factor says how far the model
        // shall reach
        double reach = c->context * r->factor;
        if (!(reach >= 1 && reach <= INT_MAX))
            return err_set(err, ERR_DATA, "%s: factor: %g is out of range", at.where, r->factor);
        r->original_context = c->context;
        c->context = (int)reach;
    }
    return 0;
}

static int read_rope(struct json_at at, struct model_config *c, struct err *err) {
    double theta = strcmp(c->variant, "mixtral") == 0 ? 1e6 : 1e4;
    if (json_get_double(at, "rope_theta", false, theta, &c->rope.theta, err) != 0) return -1;
    json_t *old = json_object_get(at.value, "rope_scaling"),
           *new = json_object_get(at.value, "rope_parameters");
    if (json_is_null(old)) old = NULL;
    if (json_is_null(new)) new = NULL;
    if (old && new && !json_equal(old, new))
        return err_set(err, ERR_DATA,
                       "%s: rope_scaling and rope_parameters are both given and differ; keep one",
                       at.where);
    if (!old && !new) return 0;
    char where[512];
    snprintf(where, sizeof where, "%.450s: %s", at.where, new ? "rope_parameters" : "rope_scaling");
    return read_scaling((struct json_at){new ? new : old, where}, c, err);
}

// --- attention windows ---

static int read_layer_types(struct json_at at, json_t *list, int window, struct model_config *c,
                            struct err *err) {
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return err_set(err, ERR_DATA, "%s: layer_types: expected a list of %d names, one per layer",
                       at.where, c->layers);
    for (int i = 0; i < c->layers; i++) {
        json_t *value = json_array_get(list, (size_t)i);
        const char *name = json_is_string(value) ? json_string_value(value) : "";
        bool slides = strcmp(name, "sliding_attention") == 0;
        if (!slides && strcmp(name, "full_attention") != 0)
            return err_set(err, ERR_DATA,
                           "%s: layer_types: layer %d is \"%.40s\"; expected \"full_attention\" or "
                           "\"sliding_attention\"",
                           at.where, i, name);
        if (slides && window <= 0)
            return err_set(err, ERR_DATA,
                           "%s: layer_types: layer %d slides, but no sliding_window is in force",
                           at.where, i);
        c->layer_window[i] = slides ? window : 0;
    }
    return 0;
}

static int read_windows(struct json_at at, const struct type *type, struct model_config *c,
                        struct err *err) {
    bool qwen = strncmp(type->name, "qwen", 4) == 0, use = type->may_slide;
    int window = 0, from = 0;
    if (qwen &&
        (json_get_bool(at, "use_sliding_window", false, false, &use, err) != 0 ||
         hf_config_get_int(at, "max_window_layers", false, DEFAULT_WINDOW_LAYERS, &from, err) != 0))
        return -1;
    if (strcmp(type->name, "qwen3_moe") == 0) from = 0; // it slides in all layers or in none
    if (!type->may_slide && demand_bool(at, "use_sliding_window", false, err) != 0) return -1;
    // null switches it off, and Mixtral has none unless one is given
    bool given =
        json_object_get(at.value, "sliding_window") != NULL || strcmp(type->name, "mixtral") == 0;
    if (hf_config_get_int(at, "sliding_window", false, given ? 0 : DEFAULT_WINDOW, &window, err) !=
        0)
        return -1;
    if (!type->may_slide && given && window != 0)
        return err_set(
            err, ERR_DATA,
            "%s: sliding_window: models of type %s have none; remove it or set it to null",
            at.where, type->name);
    if (window < 0 ||
        (given && window == 0 && json_is_integer(json_object_get(at.value, "sliding_window"))))
        return err_set(err, ERR_DATA,
                       "%s: sliding_window: %d; expected a positive number of keys or null",
                       at.where, window);
    if (!use) window = 0;
    if (c->layers > MODEL_MAX_LAYERS) return 0; // refused by the check of the whole
    json_t *list = json_object_get(at.value, "layer_types");
    if (list && !json_is_null(list) && c->layers > 0)
        return read_layer_types(at, list, window, c, err);
    for (int i = from < 0 ? 0 : from; i < c->layers; i++) c->layer_window[i] = window;
    return 0;
}

// --- the llama family ---

static const char *const llama_keys[] = {"vocab_size",
                                         "hidden_size",
                                         "intermediate_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "hidden_act",
                                         "max_position_embeddings",
                                         "initializer_range",
                                         "rms_norm_eps",
                                         "tie_word_embeddings",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         "rope_interleaved",
                                         "partial_rotary_factor",
                                         "attention_bias",
                                         "mlp_bias",
                                         "sliding_window",
                                         "layer_types",
                                         "use_sliding_window",
                                         "max_window_layers",
                                         "bos_token_id",
                                         "eos_token_id",
                                         NULL};

// Biases and norms that the type fixes or lets a key choose.
static int read_type_settings(struct json_at at, const struct type *type, struct model_config *c,
                              struct err *err) {
    bool attention, mlp;
    if (json_get_bool(at, "attention_bias", false, false, &attention, err) != 0 ||
        json_get_bool(at, "mlp_bias", false, false, &mlp, err) != 0)
        return -1;
    bool is_llama = strcmp(type->name, "llama") == 0, is_qwen2 = strcmp(type->name, "qwen2") == 0;
    bool is_qwen3 = strcmp(type->name, "qwen3") == 0 || strcmp(type->name, "qwen3_moe") == 0;
    bool takes_attention = is_llama || is_qwen3 || strcmp(type->name, "olmo2") == 0;
    if (attention && !takes_attention)
        return err_set(err, ERR_DATA, "%s: attention_bias: models of type %s do not have this key",
                       at.where, type->name);
    if (mlp && !is_llama)
        return err_set(err, ERR_DATA, "%s: mlp_bias: models of type %s do not have this key",
                       at.where, type->name);
    c->qkv_bias = attention || is_qwen2;
    c->out_bias = attention;
    c->mlp_bias = mlp;
    if (is_qwen3) c->qk_norm = QK_NORM_HEAD;
    if (strcmp(type->name, "olmo2") == 0) {
        c->qk_norm = QK_NORM_FULL;
        c->norm_place = NORM_AFTER;
    }
    return 0;
}

// What all types of the family use, and behind it what this one uses beside.
static int check_keys(struct json_at at, const struct type *type, struct err *err) {
    static const char *const expert_keys[] = {HF_EXPERT_KEYS, NULL};
    static const char *const latent_keys[] = {HF_LATENT_KEYS, NULL};
    static const char *const no_keys[] = {NULL};
    enum { SHARED = sizeof llama_keys / sizeof llama_keys[0] - 1, MOST_OWN = 32 };
    _Static_assert(sizeof latent_keys <= MOST_OWN * sizeof latent_keys[0], "room for own keys");
    const char *const *own = hf_config_has_experts(type->name)  ? expert_keys
                             : hf_config_has_latent(type->name) ? latent_keys
                                                                : no_keys;
    const char *used[SHARED + MOST_OWN] = {NULL};
    memcpy(used, llama_keys, SHARED * sizeof used[0]);
    for (int i = 0; own[i]; i++) used[SHARED + i] = own[i];
    return hf_keys_check(at.value, at.where, used, err);
}

static int read_llama(struct json_at at, const struct type *type, struct model_config *c,
                      struct err *err) {
    static const char *const activations[] = {"silu", "swish", NULL};
    double partial;
    if (check_keys(at, type, err) != 0 ||
        hf_config_get_int(at, "vocab_size", true, 0, &c->vocab, err) != 0 ||
        hf_config_get_int(at, "hidden_size", true, 0, &c->hidden, err) != 0 ||
        hf_config_get_int(at, "intermediate_size", true, 0, &c->ffn, err) != 0 ||
        hf_config_get_int(at, "num_hidden_layers", true, 0, &c->layers, err) != 0 ||
        hf_config_get_int(at, "num_attention_heads", true, 0, &c->heads, err) != 0 ||
        hf_config_get_int(at, "num_key_value_heads", false, type->kv_heads, &c->kv_heads, err) !=
            0 ||
        hf_config_get_int(at, "head_dim", false, type->head_dim, &c->head_dim, err) != 0 ||
        hf_config_get_int(at, "max_position_embeddings", false, type->context, &c->context, err) !=
            0 ||
        json_get_double(at, "rms_norm_eps", false, type->eps, &c->norm_eps, err) != 0 ||
        json_get_bool(at, "tie_word_embeddings", false, false, &c->tied_head, err) != 0 ||
        json_get_double(at, "partial_rotary_factor", false, 1, &partial, err) != 0 ||
        demand_bool(at, "rope_interleaved", false, err) != 0 ||
        demand_activation(at, "hidden_act", "silu", activations, err) != 0)
        return -1;
    if (partial != 1)
        return err_set(err, ERR_DATA, "%s: partial_rotary_factor: %g is not supported, only 1",
                       at.where, partial);
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (hf_config_has_latent(type->name)) {
        if (hf_config_read_latent(at, type->name, c, err) != 0) return -1;
    } else if (c->head_dim == 0) {
        if (c->heads < 1 || c->hidden % c->heads != 0)
            return err_set(err, ERR_DATA,
                           "%s: hidden_size (%d) is not a multiple of num_attention_heads (%d), "
                           "and there is no head_dim",
                           at.where, c->hidden, c->heads);
        c->head_dim = c->hidden / c->heads;
    }
    if (read_type_settings(at, type, c, err) != 0 || read_windows(at, type, c, err) != 0 ||
        hf_config_read_experts(at, type->name, c, err) != 0)
        return -1;
    return read_rope(at, c, err);
}

static int read_tree(json_t *tree, const char *name, struct model_config *out, struct err *err) {
    struct json_at at = {tree, name};
    if (!json_is_object(tree)) return err_set(err, ERR_DATA, "%s: expected an object", name);
    const struct type *type = find_type(at, err);
    if (!type || check_architectures(at, err) != 0) return -1;
    struct model_config c;
    bool gpt2 = type == &types[0];
    model_family_defaults(gpt2 ? FAMILY_GPT2 : FAMILY_LLAMA, &c);
    snprintf(c.variant, sizeof c.variant, "%s", type->name);
    if ((gpt2 ? read_gpt2(at, &c, err) : read_llama(at, type, &c, err)) != 0 ||
        read_ids(at, type, &c, err) != 0 ||
        json_get_double(at, "initializer_range", false, 0.02, &c.init_std, err) != 0)
        return -1;
    if (model_config_check(&c, err) != 0) {
        if (err) err->kind = ERR_DATA;
        return err_context(err, "%s", name);
    }
    *out = c;
    return 0;
}

int hf_config_parse(const char *text, size_t bytes, const char *name, struct model_config *out,
                    struct err *err) {
    json_t *tree = json_parse(text, bytes, name, err);
    if (!tree) return -1;
    int result = read_tree(tree, name, out, err);
    json_decref(tree);
    return result;
}

int hf_config_read(const char *path, struct model_config *out, struct err *err) {
    char *text;
    size_t bytes;
    if (file_read(path, (size_t)16 << 20, &text, &bytes, err) != 0) return -1;
    int result = hf_config_parse(text, bytes, path, out, err);
    free(text);
    return result;
}
