// The model's shape: from a preset, a model folder or a family, then the model's own keys, then
// what follows from them. See config_table.h.
#include "checkpoint/hf_folder.h"
#include "data/tokenizer.h"
#include "model/families.h"
#include "train/config_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_model_key(int option) {
    return strncmp(config_options[option].key, "model.", 6) == 0 ||
           option == CONFIG_OPTION(model.aux_coefficient);
}

static int base_from_folder(struct train_config *config, struct err *err) {
    struct hf_folder *folder;
    if (hf_folder_open(config->from, &folder, err) != 0) return err_context(err, "model.from");
    config->model = hf_folder_model(folder)->config;
    hf_folder_close(folder);
    return 0;
}

void config_model_lists(struct train_config *config) {
    const struct model_config *m = &config->model;
    bool same = true;
    for (int i = 1; i < m->layers; i++) same = same && m->layer_window[i] == m->layer_window[0];
    size_t at = 0;
    for (int i = 0; i < (same ? 1 : m->layers) && at + 16 < sizeof config->windows; i++)
        at += (size_t)snprintf(config->windows + at, sizeof config->windows - at, "%s%d",
                               i ? "," : "", m->layer_window[i]);
    at = 0;
    config->stops[0] = 0;
    for (int i = 0; i < m->stop_count && at + 16 < sizeof config->stops; i++)
        at += (size_t)snprintf(config->stops + at, sizeof config->stops - at, "%s%d", i ? "," : "",
                               m->stop_ids[i]);
    at = 0;
    config->dense_layers[0] = 0;
    for (int i = 0; i < m->layers && m->experts > 0; i++)
        if (m->layer_dense[i])
            at += (size_t)snprintf(config->dense_layers + at, sizeof config->dense_layers - at,
                                   "%s%d", at ? "," : "", i);
}

int config_model_base(struct train_config *config, struct err *err) {
    enum model_family family = config->model.family;
    int family_key = CONFIG_OPTION(model.family);
    bool has_family = config_is_set(config, family_key);
    const char *reason = NULL;
    if (config->preset[0] && config->from[0])
        return err_set(err, ERR_USAGE,
                       "model.preset (%s) and model.from (%s) are both given; choose one of them",
                       config->preset, config->from);
    if (config->from[0]) {
        if (base_from_folder(config, err) != 0) return -1;
        reason = "model.from";
    } else if (config->preset[0]) {
        if (model_preset(config->preset, &config->model, err) != 0)
            return err_context(err, "model.preset");
        reason = "model.preset";
    } else {
        if (!has_family)
            return err_set(
                err, ERR_USAGE,
                "%s: no model is described; give model.preset (\"weft config presets\" lists "
                "them), model.from (a Hugging Face folder), or model.family with its sizes",
                config->path[0] ? config->path : "command line");
        model_family_defaults(family, &config->model);
        reason = "model.family";
    }
    if (has_family && family != config->model.family)
        return err_set(err, ERR_USAGE,
                       "model.family is %s, but %s gives a model of the other family",
                       family == FAMILY_GPT2 ? "gpt2" : "llama", reason);
    config_model_lists(config);
    config->base_experts = config->model.experts;
    for (int i = 0; i < config_option_count; i++)
        if (is_model_key(i) && !config_is_set(config, i) && i != CONFIG_OPTION(preset) &&
            i != CONFIG_OPTION(from))
            config->origin[i] = (struct config_origin){SOURCE_DERIVED, 0, reason};
    return 0;
}

int config_read_tokenizer(struct train_config *config, struct err *err) {
    if (!config->tokenizer[0] || config->tokenizer_vocab > 0) return 0;
    char place[1200];
    struct tokenizer *tokenizer = tokenizer_load(config->tokenizer, err);
    if (!tokenizer)
        return err_context(err, "%s: data.tokenizer",
                           config_place(config, CONFIG_OPTION(tokenizer), place));
    config->tokenizer_vocab = tokenizer_vocab_size(tokenizer);
    config->tokenizer_bos = tokenizer_bos(tokenizer);
    config->tokenizer_eos = tokenizer_eos(tokenizer);
    config->tokenizer_fingerprint = tokenizer_fingerprint(tokenizer);
    tokenizer_free(tokenizer);
    return 0;
}

// What the tokenizer knows better than a preset: the ids that begin and end a text; and the
// vocabulary where none is given.
static int follow_tokenizer(struct train_config *config, struct err *err) {
    struct model_config *m = &config->model;
    struct {
        int option, *field, value;
    } ids[] = {{CONFIG_OPTION(model.vocab), &m->vocab, 0},
               {CONFIG_OPTION(model.bos_id), &m->bos_id, 0},
               {CONFIG_OPTION(model.eos_id), &m->eos_id, 0}};
    bool all_set = true;
    for (int i = 0; i < 3; i++)
        all_set = all_set && (config_is_set(config, ids[i].option) || (i == 0 && m->vocab > 0));
    if (!config->tokenizer[0] || config->from[0] || all_set) return 0;
    if (config_read_tokenizer(config, err) != 0) return -1;
    ids[0].value = (int)config->tokenizer_vocab;
    ids[1].value = config->tokenizer_bos;
    ids[2].value = config->tokenizer_eos;
    for (int i = 0; i < 3; i++) {
        if (config_is_set(config, ids[i].option) || (i == 0 && m->vocab > 0)) continue;
        *ids[i].field = ids[i].value;
        config->origin[ids[i].option] = (struct config_origin){SOURCE_DERIVED, 0, "data.tokenizer"};
    }
    return 0;
}

// A size that is still missing: from another one, unless it was written.
static void follow(struct train_config *config, int option, int *field, bool changed, int value,
                   const char *reason) {
    if (config_is_set(config, option) || (*field > 0 && !changed)) return;
    *field = value;
    config->origin[option] = (struct config_origin){SOURCE_DERIVED, 0, reason};
}

// A model that becomes one of experts, or no longer is one, by its keys.
static void follow_experts(struct train_config *config) {
    struct model_config *m = &config->model;
    const char *reason = "model.experts";
    bool none = m->experts == 0;
    if (!config_is_set(config, CONFIG_OPTION(model.experts))) return;
    follow(config, CONFIG_OPTION(model.top_k), &m->top_k, none, none ? 0 : 2, reason);
    follow(config, CONFIG_OPTION(model.expert_ffn), &m->expert_ffn, none, none ? 0 : m->ffn,
           "model.ffn");
    if (none) follow(config, CONFIG_OPTION(model.shared_ffn), &m->shared_ffn, true, 0, reason);
    if (config->base_experts > 0) return;
    if (!config_is_set(config, CONFIG_OPTION(model.norm_top_k))) {
        m->norm_top_k = !none;
        config->origin[CONFIG_OPTION(model.norm_top_k)] =
            (struct config_origin){SOURCE_DERIVED, 0, reason};
    }
    if (!config_is_set(config, CONFIG_OPTION(model.aux_coefficient)))
        m->aux_coefficient = none ? 0 : 0.01;
}

static int sizes(struct train_config *config, struct err *err) {
    struct model_config *m = &config->model;
    bool hidden = config_is_set(config, CONFIG_OPTION(model.hidden));
    bool heads = config_is_set(config, CONFIG_OPTION(model.heads));
    if (follow_tokenizer(config, err) != 0) return -1;
    if (m->heads > 0 && m->hidden > 0) {
        follow(config, CONFIG_OPTION(model.kv_heads), &m->kv_heads, heads, m->heads, "model.heads");
        if (m->hidden % m->heads == 0)
            follow(config, CONFIG_OPTION(model.head_dim), &m->head_dim, heads || hidden,
                   m->hidden / m->heads, "model.hidden and model.heads");
        int ffn = m->family == FAMILY_GPT2 ? 4 * m->hidden : (8 * m->hidden / 3 + 63) / 64 * 64;
        follow(config, CONFIG_OPTION(model.ffn), &m->ffn, hidden, ffn, "model.hidden");
    }
    follow_experts(config);
    const struct {
        const char *key;
        int value;
    } needed[] = {{"model.layers", m->layers}, {"model.hidden", m->hidden},
                  {"model.heads", m->heads},   {"model.head_dim", m->head_dim},
                  {"model.vocab", m->vocab},   {"model.context", m->context}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (needed[i].value == 0)
            return err_set(
                err, ERR_USAGE, "%s%s%s is not given%s", config->path, config->path[0] ? ": " : "",
                needed[i].key,
                strcmp(needed[i].key, "model.head_dim") == 0
                    ? " and does not follow: model.hidden is not a multiple of model.heads"
                : strcmp(needed[i].key, "model.vocab") == 0
                    ? ", and there is no data.tokenizer that it could follow from"
                    : "");
    return 0;
}

// "4096,0" over 5 layers: 4096 0 4096 0 4096.
static int windows(struct train_config *config, struct err *err) {
    struct model_config *m = &config->model;
    int pattern[MODEL_MAX_LAYERS], count = 0;
    for (char *at = config->windows; *at && count < MODEL_MAX_LAYERS; at += *at == ',')
        pattern[count++] = (int)strtol(at, &at, 10);
    if (count > m->layers)
        return err_set(err, ERR_USAGE, "model.window has %d values, the model only %d layers",
                       count, m->layers);
    memset(m->layer_window, 0, sizeof m->layer_window);
    for (int i = 0; i < m->layers && count > 0; i++) m->layer_window[i] = pattern[i % count];
    m->stop_count = 0;
    for (char *at = config->stops; *at; at += *at == ',') {
        if (m->stop_count == MODEL_MAX_STOPS)
            return err_set(err, ERR_USAGE, "model.stops: at most %d ids are possible",
                           MODEL_MAX_STOPS);
        m->stop_ids[m->stop_count++] = (int32_t)strtol(at, &at, 10);
    }
    return 0;
}

static int dense_layers(struct train_config *config, struct err *err) {
    struct model_config *m = &config->model;
    memset(m->layer_dense, 0, sizeof m->layer_dense);
    for (char *at = config->dense_layers; *at && m->experts > 0; at += *at == ',') {
        double layer = strtod(at, &at);
        if (layer != (int)layer || layer >= m->layers)
            return err_set(err, ERR_USAGE,
                           "model.dense_layers: %g is not one of the %d layers, which count from 0",
                           layer, m->layers);
        m->layer_dense[(int)layer] = true;
    }
    return 0;
}

// Keys of experts that a dense model would leave unheard.
static int check_experts(const struct train_config *config, struct err *err) {
    char place[1200];
    for (int i = 0; i < config_option_count && config->model.experts == 0; i++)
        if (config_is_set(config, i) && config_needs_experts(&config_options[i]))
            return err_set(err, ERR_USAGE,
                           "%s: %s is for models with experts, and this one has none; set "
                           "model.experts, or leave the key away",
                           config_place(config, i, place), config_options[i].key);
    return 0;
}

int config_model_finish(struct train_config *config, struct err *err) {
    if (sizes(config, err) != 0 || windows(config, err) != 0 || dense_layers(config, err) != 0)
        return -1;
    if (check_experts(config, err) != 0) return -1;
    config_model_lists(config);
    return model_config_check(&config->model, err);
}
