// Writing config.json; see hf_config.h.
#include "base/json.h"
#include "model/hf_config.h"
#include "model/hf_config_parts.h"
#include <stdlib.h>
#include <string.h>

static const struct class_name {
    const char *type, *class;
} classes[] = {
    {"gpt2", "GPT2LMHeadModel"},       {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},     {"olmo2", "Olmo2ForCausalLM"},
    {"mixtral", "MixtralForCausalLM"}, {"qwen3_moe", "Qwen3MoeForCausalLM"},
};

// The one window of all layers that slide; -1 when there are several.
static int one_window(const struct model_config *c, int *sliding_layers) {
    int window = 0;
    *sliding_layers = 0;
    for (int i = 0; i < c->layers; i++) {
        if (c->layer_window[i] == 0) continue;
        if (window != 0 && window != c->layer_window[i]) return -1;
        window = c->layer_window[i];
        ++*sliding_layers;
    }
    return window;
}

// Whether a type can hold the description; `why` names the first thing that it cannot.
static bool holds(const char *type, const struct model_config *c, const char **why) {
    bool mixtral = strcmp(type, "mixtral") == 0, qwen3_moe = strcmp(type, "qwen3_moe") == 0;
    bool llama = strcmp(type, "llama") == 0, mistral = strcmp(type, "mistral") == 0 || mixtral,
         qwen2 = strcmp(type, "qwen2") == 0;
    bool qwen3 = strcmp(type, "qwen3") == 0 || qwen3_moe, olmo2 = strcmp(type, "olmo2") == 0,
         gpt2 = strcmp(type, "gpt2") == 0;
    int sliding, window = one_window(c, &sliding);
    if (!hf_config_holds_experts(type, c, why)) return false;
    if (model_is_latent(c))
        *why = "latent attention (such models are planned, not trained)";
    else if (gpt2 != (c->family == FAMILY_GPT2))
        *why = "the family";
    else if (gpt2 && (!c->qkv_bias || !c->out_bias || !c->mlp_bias))
        *why = "missing biases";
    else if (gpt2 && (c->kv_heads != c->heads || (int64_t)c->heads * c->head_dim != c->hidden))
        *why = "kv_heads or head_dim";
    else if (!gpt2 && (c->norm_place == NORM_AFTER) != olmo2)
        *why = "the place of the norms";
    else if (!gpt2 && (c->qk_norm == QK_NORM_FULL) != olmo2)
        *why = "the norm of queries and keys";
    else if (!gpt2 && (c->qk_norm == QK_NORM_HEAD) != qwen3)
        *why = "the norm of queries and keys";
    else if (c->mlp_bias && !llama && !gpt2)
        *why = "mlp_bias";
    else if (qwen2 && (!c->qkv_bias || c->out_bias))
        *why = "the attention's biases";
    else if (mistral && (c->qkv_bias || c->out_bias))
        *why = "the attention's biases";
    else if (!gpt2 && !qwen2 && c->qkv_bias != c->out_bias)
        *why = "a bias on only some of the attention's projections";
    else if (window < 0)
        *why = "sliding windows of several widths";
    else if (window > 0 && (llama || olmo2 || gpt2))
        *why = "a sliding window";
    else if ((mistral || qwen3_moe) && window > 0 && sliding != c->layers)
        *why = "a sliding window in only some layers";
    return *why == NULL;
}

const char *hf_config_type(const struct model_config *config, struct err *err) {
    const char *why, *first_why = NULL;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i].type, config->variant) == 0) {
            if (holds(classes[i].type, config, &why)) return classes[i].type;
            if ((config->experts > 0) == hf_config_has_experts(config->variant)) first_why = why;
        }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (holds(classes[i].type, config, &why)) return classes[i].type;
        bool near = (config->family == FAMILY_GPT2) == (i == 0) &&
                    (config->experts > 0) == hf_config_has_experts(classes[i].type);
        if (!first_why && near) first_why = why;
    }
    err_set(err, ERR_USAGE,
            "no Hugging Face model type that weft knows can hold this model: %s stands in the way",
            first_why ? first_why : "its kind");
    return NULL;
}

static void put(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static void put_ids(json_t *out, const struct model_config *c) {
    put(out, "bos_token_id", c->bos_id < 0 ? json_null() : json_integer(c->bos_id));
    if (c->stop_count == 0) {
        put(out, "eos_token_id", c->eos_id < 0 ? json_null() : json_integer(c->eos_id));
        return;
    }
    json_t *list = json_array();
    json_array_append_new(list, json_integer(c->eos_id));
    for (int i = 0; i < c->stop_count; i++)
        json_array_append_new(list, json_integer(c->stop_ids[i]));
    put(out, "eos_token_id", list);
}

static json_t *scaling(const struct model_config *c) {
    static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
    const struct model_rope *r = &c->rope;
    if (r->scaling == ROPE_PLAIN) return json_null();
    json_t *out = json_object();
    put(out, "rope_type", json_string(names[r->scaling]));
    put(out, "factor", json_real(r->factor));
    if (r->scaling == ROPE_LLAMA3 || r->scaling == ROPE_YARN)
        put(out, "original_max_position_embeddings", json_integer(r->original_context));
    if (r->scaling == ROPE_LLAMA3) {
        put(out, "low_freq_factor", json_real(r->low_freq_factor));
        put(out, "high_freq_factor", json_real(r->high_freq_factor));
    }
    if (r->scaling == ROPE_YARN) {
        put(out, "beta_fast", json_real(r->beta_fast));
        put(out, "beta_slow", json_real(r->beta_slow));
        if (r->attention_factor > 0) put(out, "attention_factor", json_real(r->attention_factor));
        if (!r->truncate) put(out, "truncate", json_false());
    }
    return out;
}

static void put_windows(json_t *out, const char *type, const struct model_config *c) {
    int sliding, window = one_window(c, &sliding);
    json_t *value = window > 0 ? json_integer(window) : json_null();
    if (strcmp(type, "mistral") == 0 || strcmp(type, "mixtral") == 0) {
        put(out, "sliding_window", value);
    } else if (strcmp(type, "qwen3_moe") == 0) {
        put(out, "use_sliding_window", json_boolean(window > 0));
        put(out, "sliding_window", value);
    } else if (strncmp(type, "qwen", 4) == 0) {
        int from =
            c->layers; // the pattern that older programs read: full below, sliding from here on
        while (from > 0 && c->layer_window[from - 1] > 0) from--;
        put(out, "use_sliding_window", json_boolean(window > 0));
        put(out, "sliding_window", value);
        put(out, "max_window_layers", json_integer(from));
        json_t *list = json_array();
        for (int i = 0; i < c->layers; i++)
            json_array_append_new(
                list, json_string(c->layer_window[i] ? "sliding_attention" : "full_attention"));
        put(out, "layer_types", list);
    } else {
        json_decref(value);
    }
}

static void put_gpt2(json_t *out, const struct model_config *c) {
    put(out, "vocab_size", json_integer(c->vocab));
    put(out, "n_positions", json_integer(c->context));
    put(out, "n_ctx", json_integer(c->context));
    put(out, "n_embd", json_integer(c->hidden));
    put(out, "n_layer", json_integer(c->layers));
    put(out, "n_head", json_integer(c->heads));
    put(out, "n_inner", json_integer(c->ffn));
    put(out, "activation_function", json_string("gelu_new"));
    put(out, "layer_norm_epsilon", json_real(c->norm_eps));
}

static void put_llama(json_t *out, const char *type, const struct model_config *c) {
    put(out, "vocab_size", json_integer(c->vocab));
    put(out, "hidden_size", json_integer(c->hidden));
    put(out, "intermediate_size", json_integer(c->ffn));
    put(out, "num_hidden_layers", json_integer(c->layers));
    put(out, "num_attention_heads", json_integer(c->heads));
    put(out, "num_key_value_heads", json_integer(c->kv_heads));
    put(out, "head_dim", json_integer(c->head_dim));
    put(out, "hidden_act", json_string("silu"));
    put(out, "max_position_embeddings",
        json_integer(c->rope.scaling == ROPE_DYNAMIC_NTK ? c->rope.original_context : c->context));
    put(out, "rms_norm_eps", json_real(c->norm_eps));
    put(out, "rope_theta", json_real(c->rope.theta));
    put(out, "rope_scaling", scaling(c));
    if (strcmp(type, "mistral") != 0 && strcmp(type, "mixtral") != 0 && strcmp(type, "qwen2") != 0)
        put(out, "attention_bias", json_boolean(c->qkv_bias));
    if (strcmp(type, "llama") == 0) put(out, "mlp_bias", json_boolean(c->mlp_bias));
    put(out, "attention_dropout", json_real(0));
    hf_config_write_experts(out, type, c);
    put_windows(out, type, c);
}

int hf_config_write(const struct model_config *config, const char *dtype, struct text *out,
                    struct err *err) {
    const char *type = hf_config_type(config, err);
    if (!type) return -1;
    json_t *tree = json_object(), *list = json_array();
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i].type, type) == 0)
            json_array_append_new(list, json_string(classes[i].class));
    put(tree, "architectures", list);
    put(tree, "model_type", json_string(type));
    if (config->family == FAMILY_GPT2)
        put_gpt2(tree, config);
    else
        put_llama(tree, type, config);
    put_ids(tree, config);
    put(tree, "initializer_range", json_real(config->init_std));
    put(tree, "tie_word_embeddings", json_boolean(config->tied_head));
    put(tree, "torch_dtype", json_string(dtype));
    put(tree, "use_cache", json_true());
    char *text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(tree);
    int result = text ? text_puts(out, text) | text_puts(out, "\n") : -1;
    free(text);
    return result == 0 ? 0 : err_set(err, ERR_MEMORY, "no memory for a configuration");
}
