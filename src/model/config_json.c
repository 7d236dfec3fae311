// See config_json.h. One table of fields serves both directions.
#include "model/config_json.h"
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum field_type { INT, DOUBLE, BOOL, ENUM };
#define FIELD(name, type)                                                                          \
    { #name, type, offsetof(struct model_config, name) }
#define ROPE(name, type)                                                                           \
    { "rope_" #name, type, offsetof(struct model_config, rope.name) }
static const struct field {
    const char *key;
    enum field_type type;
    size_t offset;
} fields[] = {
    FIELD(family, ENUM),
    FIELD(layers, INT),
    FIELD(hidden, INT),
    FIELD(heads, INT),
    FIELD(kv_heads, INT),
    FIELD(head_dim, INT),
    FIELD(ffn, INT),
    FIELD(vocab, INT),
    FIELD(context, INT),
    FIELD(norm, ENUM),
    FIELD(norm_place, ENUM),
    FIELD(norm_eps, DOUBLE),
    FIELD(qk_norm, ENUM),
    FIELD(activation, ENUM),
    FIELD(learned_positions, BOOL),
    ROPE(scaling, ENUM),
    ROPE(theta, DOUBLE),
    ROPE(factor, DOUBLE),
    ROPE(low_freq_factor, DOUBLE),
    ROPE(high_freq_factor, DOUBLE),
    ROPE(beta_fast, DOUBLE),
    ROPE(beta_slow, DOUBLE),
    ROPE(attention_factor, DOUBLE),
    ROPE(truncate, BOOL),
    ROPE(original_context, INT),
    FIELD(qkv_bias, BOOL),
    FIELD(out_bias, BOOL),
    FIELD(mlp_bias, BOOL),
    FIELD(tied_head, BOOL),
    FIELD(init_std, DOUBLE),
    FIELD(bos_id, INT),
    FIELD(eos_id, INT),
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

// Present in models with experts only, with the list of dense layers beside them.
static const struct field expert_fields[] = {
    FIELD(experts, INT),    FIELD(top_k, INT),       FIELD(expert_ffn, INT),
    FIELD(shared_ffn, INT), FIELD(norm_top_k, BOOL), FIELD(aux_coefficient, DOUBLE),
};
enum { EXPERT_FIELD_COUNT = sizeof expert_fields / sizeof expert_fields[0] };

// Names of the enumerations' values, in their order.
static const char *const *value_names(const char *key) {
    static const struct {
        const char *key;
        const char *names[8];
    } table[] = {
        {"family", {"gpt2", "llama"}},
        {"norm", {"layer", "rms"}},
        {"norm_place", {"before", "after"}},
        {"qk_norm", {"none", "head", "full"}},
        {"activation", {"gelu_tanh", "swiglu"}},
        {"rope_scaling", {"plain", "linear", "dynamic", "llama3", "yarn"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].key, key) == 0) return table[i].names;
    return NULL;
}

static json_t *integers(const int32_t *values, int count) {
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++) json_array_append_new(list, json_integer(values[i]));
    return list;
}

static json_t *field_to_json(const struct field *f, const struct model_config *config) {
    const void *at = (const char *)config + f->offset;
    switch (f->type) {
    case INT:
        return json_integer(*(const int *)at);
    case DOUBLE:
        return json_real(*(const double *)at);
    case BOOL:
        return json_boolean(*(const bool *)at);
    case ENUM:
        break;
    }
    return json_string(value_names(f->key)[*(const unsigned *)at]);
}

static json_t *dense_layers(const struct model_config *config) {
    json_t *list = json_array();
    for (int i = 0; i < config->layers; i++)
        if (config->layer_dense[i]) json_array_append_new(list, json_integer(i));
    return list;
}

json_t *model_config_to_json(const struct model_config *config) {
    json_t *out = json_object();
    json_object_set_new(out, "variant", json_string(config->variant));
    for (int i = 0; i < FIELD_COUNT; i++)
        json_object_set_new(out, fields[i].key, field_to_json(&fields[i], config));
    for (int i = 0; config->experts > 0 && i < EXPERT_FIELD_COUNT; i++)
        json_object_set_new(out, expert_fields[i].key, field_to_json(&expert_fields[i], config));
    if (config->experts > 0) json_object_set_new(out, "dense_layers", dense_layers(config));
    json_object_set_new(out, "layer_window", integers(config->layer_window, config->layers));
    json_object_set_new(out, "stop_ids", integers(config->stop_ids, config->stop_count));
    return out;
}

static int read_field(struct json_at at, const struct field *f, void *to, struct err *err) {
    if (f->type == BOOL) return json_get_bool(at, f->key, true, false, (bool *)to, err);
    if (f->type == DOUBLE) return json_get_double(at, f->key, true, 0, (double *)to, err);
    if (f->type == INT) {
        int64_t wide;
        if (json_get_int(at, f->key, true, 0, &wide, err) != 0) return -1;
        if (wide < INT_MIN || wide > INT_MAX)
            return err_set(err, ERR_DATA, "%s: %s: %lld does not fit", at.where, f->key,
                           (long long)wide);
        *(int *)to = (int)wide;
        return 0;
    }
    const char *text;
    if (json_get_string(at, f->key, true, NULL, &text, err) != 0) return -1;
    const char *const *names = value_names(f->key);
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *(unsigned *)to = i;
            return 0;
        }
    return err_set(err, ERR_DATA, "%s: %s: unknown value \"%s\"", at.where, f->key, text);
}

static int read_integers(struct json_at at, const char *key, int32_t *out, int most, int *count,
                         struct err *err) {
    json_t *list = json_object_get(at.value, key);
    if (!json_is_array(list) || json_array_size(list) > (size_t)most)
        return err_set(err, ERR_DATA, "%s: %s: expected a list of at most %d integers", at.where,
                       key, most);
    *count = (int)json_array_size(list);
    for (int i = 0; i < *count; i++) {
        json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_integer(value) || json_integer_value(value) < INT_MIN ||
            json_integer_value(value) > INT_MAX)
            return err_set(err, ERR_DATA, "%s: %s: element %d is no integer of 32 bits", at.where,
                           key, i);
        out[i] = (int32_t)json_integer_value(value);
    }
    return 0;
}

static int read_experts(struct json_at at, struct model_config *c, struct err *err) {
    int32_t dense[MODEL_MAX_LAYERS];
    int count;
    for (int i = 0; i < EXPERT_FIELD_COUNT; i++)
        if (read_field(at, &expert_fields[i], (char *)c + expert_fields[i].offset, err) != 0)
            return -1;
    if (read_integers(at, "dense_layers", dense, MODEL_MAX_LAYERS, &count, err) != 0) return -1;
    for (int i = 0; i < count; i++) {
        if (dense[i] < 0 || dense[i] >= c->layers || dense[i] >= MODEL_MAX_LAYERS)
            return err_set(err, ERR_DATA, "%s: dense_layers: there is no layer %d", at.where,
                           dense[i]);
        c->layer_dense[dense[i]] = true;
    }
    return 0;
}

int model_config_from_json(json_t *value, const char *where, struct model_config *out,
                           struct err *err) {
    struct json_at at = {value, where};
    struct model_config made = {0};
    const char *variant;
    if (json_get_string(at, "variant", true, NULL, &variant, err) != 0) return -1;
    if (strlen(variant) >= sizeof made.variant)
        return err_set(err, ERR_DATA, "%s: variant: \"%.40s\" is too long", where, variant);
    strcpy(made.variant, variant);
    for (int i = 0; i < FIELD_COUNT; i++)
        if (read_field(at, &fields[i], (char *)&made + fields[i].offset, err) != 0) return -1;
    bool experts = json_object_get(value, "experts") != NULL;
    if (experts && read_experts(at, &made, err) != 0) return -1;
    int windows;
    if (read_integers(at, "layer_window", made.layer_window, MODEL_MAX_LAYERS, &windows, err) !=
            0 ||
        read_integers(at, "stop_ids", made.stop_ids, MODEL_MAX_STOPS, &made.stop_count, err) != 0)
        return -1;
    if (windows != made.layers)
        return err_set(err, ERR_DATA, "%s: layer_window has %d elements for %d layers", where,
                       windows, made.layers);
    if (json_object_size(value) != FIELD_COUNT + 3 + (experts ? EXPERT_FIELD_COUNT + 1 : 0))
        return err_set(err, ERR_DATA, "%s: the model has keys that this version does not know",
                       where);
    if (model_config_check(&made, err) != 0) return err_context(err, "%s", where);
    *out = made;
    return 0;
}
