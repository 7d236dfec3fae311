// Finding and reading a model, see model_source.h.
#include "cli/model_source.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "train/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool holds(const char *folder, const char *name) {
    char path[4096];
    return file_join(path, sizeof path, folder, name, NULL) == 0 && file_exists(path);
}

static bool holds_tokenizer(const char *folder) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json",
                                        "tokenizer.model"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (holds(folder, names[i])) return true;
    char **list;
    size_t count;
    bool found = false;
    if (file_list(folder, &list, &count, NULL) != 0) return false;
    for (size_t i = 0; i < count; i++) found |= text_ends_with(list[i], ".tiktoken");
    file_list_free(list, count);
    return found;
}

// The folder itself, the one around it (checkpoints/), or the one around that (the run).
static void find_tokenizer(struct model_source *source, const char *folder) {
    static const char *const around[] = {"", "/..", "/../.."};
    for (int i = 0; i < 3; i++) {
        char path[sizeof source->tokenizer];
        if ((size_t)snprintf(path, sizeof path, "%s%s", folder, around[i]) >= sizeof path) return;
        if (!holds_tokenizer(path)) continue;
        memcpy(source->tokenizer, path, sizeof path);
        return;
    }
}

static int use_checkpoint(struct model_source *source, struct err *err) {
    snprintf(source->path, sizeof source->path, "%s", checkpoint_path(source->checkpoint));
    if (model_describe(&source->described, checkpoint_model(source->checkpoint), err) != 0)
        return err_context(err, "%s", source->path);
    source->model = &source->described;
    return 0;
}

static int open_newest(struct model_source *source, const char *folder, struct err *err) {
    if (checkpoint_open_newest(folder, &source->checkpoint, err) != 0) return -1;
    if (source->checkpoint) return use_checkpoint(source, err);
    return err_set(err, ERR_DATA, "%s: no checkpoint in it yet", folder);
}

// The checkpoints of a run lie where its configuration says.
static int open_run(struct model_source *source, const char *folder, struct err *err) {
    char path[4096];
    if (file_join(path, sizeof path, folder, "checkpoints", err) != 0) return -1;
    if (file_is_folder(path)) return open_newest(source, path, err);
    struct train_config *config = malloc(sizeof *config);
    if (!config) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    if (file_join(path, sizeof path, folder, "config.yaml", err) != 0 ||
        config_load(config, path, NULL, 0, err) != 0) {
        free(config);
        return -1;
    }
    snprintf(path, sizeof path, "%s", config->checkpoint_folder);
    free(config);
    return open_newest(source, path, err);
}

static bool holds_checkpoints(const char *folder) {
    int64_t *steps = NULL;
    int count = 0;
    bool found = checkpoint_list(folder, &steps, &count, NULL) == 0 && count > 0;
    free(steps);
    return found;
}

int model_source_open(struct model_source *source, const char *path, struct err *err) {
    memset(source, 0, sizeof *source);
    int result;
    if (!file_exists(path))
        return err_set(err, ERR_USAGE, "%s: there is no such model folder", path);
    if (!file_is_folder(path))
        return err_set(err, ERR_USAGE,
                       "%s: a file; expected a folder: of a run, a checkpoint, or a Hugging Face "
                       "model",
                       path);
    snprintf(source->path, sizeof source->path, "%s", path);
    if (holds(path, "manifest.json")) {
        result = checkpoint_open(path, &source->checkpoint, err);
        if (result == 0) result = use_checkpoint(source, err);
    } else if (holds(path, "config.json")) {
        result = hf_folder_open(path, &source->hf, err);
        if (result == 0) source->model = hf_folder_model(source->hf);
    } else if (holds(path, "config.yaml") || holds(path, "checkpoints")) {
        result = open_run(source, path, err);
    } else if (holds_checkpoints(path)) {
        result = open_newest(source, path, err);
    } else {
        result = err_set(err, ERR_USAGE,
                         "%s: no model in it; expected config.json (Hugging Face), config.yaml (a "
                         "run), or manifest.json (a checkpoint)",
                         path);
    }
    if (result != 0) {
        model_source_close(source);
        return -1;
    }
    find_tokenizer(source, path);
    return 0;
}

void model_source_close(struct model_source *source) {
    if (source->hf) hf_folder_close(source->hf);
    if (source->checkpoint) checkpoint_close(source->checkpoint);
    model_free(&source->described);
    source->hf = NULL;
    source->checkpoint = NULL;
}

int model_source_read_rows(struct model_source *source, int param, int64_t first_row, int64_t rows,
                           float *out, struct err *err) {
    if (source->hf) return hf_folder_read_rows(source->hf, param, first_row, rows, out, err);
    const struct param *p = &source->model->params[param];
    const struct tensor *t = checkpoint_find(source->checkpoint, p->name);
    if (!t) return err_set(err, ERR_DATA, "%s: no tensor %s in it", source->path, p->name);
    if (tensor_elements(t) != param_elements(p) || t->type != DTYPE_F32)
        return err_set(err, ERR_DATA,
                       "%s: %s has %lld elements of type %s, expected %lld of type f32",
                       source->path, p->name, (long long)tensor_elements(t), dtype_name(t->type),
                       (long long)param_elements(p));
    return checkpoint_read_range(source->checkpoint, p->name, first_row * p->columns,
                                 rows * p->columns, out, err);
}

int model_source_expert_bias(struct model_source *source, int layer, float *out, struct err *err) {
    const struct model_config *c = &source->model->config;
    char name[PARAM_NAME_BYTES];
    if (!source->checkpoint || !model_layer_has_experts(c, layer)) return 0;
    snprintf(name, sizeof name, "layers.%d.router.bias", layer);
    const struct tensor *t = checkpoint_find(source->checkpoint, name);
    if (!t) return 0;
    if (tensor_elements(t) != c->experts || t->type != DTYPE_F32)
        return err_set(err, ERR_DATA,
                       "%s: %s has %lld elements of type %s, expected %d of type f32", source->path,
                       name, (long long)tensor_elements(t), dtype_name(t->type), c->experts);
    if (checkpoint_read(source->checkpoint, name, out, err) != 0) return -1;
    for (int e = 0; e < c->experts; e++)
        if (out[e] != 0) return 1;
    return 0;
}

int model_source_read(struct model_source *source, int param, float *out, struct err *err) {
    return model_source_read_rows(source, param, 0, source->model->params[param].rows, out, err);
}

struct tokenizer *cli_tokenizer(const char *found, const char *given, int vocab, struct err *err) {
    if (!given && found[0] == 0) {
        (void)err_set(err, ERR_USAGE,
                      "no tokenizer beside the model; give --tokenizer PATH (a tokenizer.json or "
                      "its folder)");
        return NULL;
    }
    struct tokenizer *tok = tokenizer_load(given ? given : found, err);
    if (!tok || tokenizer_vocab_size(tok) <= (uint32_t)vocab) return tok;
    (void)err_set(
        err, ERR_USAGE,
        "%s: the tokenizer has %u ids, the model's vocabulary only %d: they do not belong "
        "together",
        given ? given : found, tokenizer_vocab_size(tok), vocab);
    tokenizer_free(tok);
    return NULL;
}

static int fill_bias(struct loaded_model *loaded, struct err *err) {
    const struct model_config *c = &loaded->source.model->config;
    float *bias = malloc(((size_t)c->experts + 1) * sizeof *bias);
    int found = bias ? 0 : err_set(err, ERR_MEMORY, "no memory to read the weights");
    for (int l = 0; l < c->layers && found >= 0; l++) {
        found = model_source_expert_bias(&loaded->source, l, bias, err);
        if (found > 0) generator_set_expert_bias(loaded->generator, l, bias);
    }
    free(bias);
    return found < 0 ? -1 : 0;
}

static int fill(struct loaded_model *loaded, struct err *err) {
    const struct model *model = loaded->source.model;
    int64_t most = 0;
    for (int i = 0; i < model->param_count; i++)
        if (param_elements(&model->params[i]) > most) most = param_elements(&model->params[i]);
    float *values = malloc((size_t)most * sizeof *values);
    if (!values) return err_set(err, ERR_MEMORY, "no memory to read the weights");
    int result = 0;
    for (int i = 0; i < model->param_count && result == 0; i++) {
        result = model_source_read(&loaded->source, i, values, err);
        if (result == 0 && generator_set_param(loaded->generator, i, values, err) != 0)
            result = err_context(err, "%s", loaded->source.path);
    }
    free(values);
    if (result == 0) result = fill_bias(loaded, err);
    if (result == 0) generator_weights_changed(loaded->generator);
    return result;
}

int loaded_model_open(struct loaded_model *loaded, const char *precision, int context, int threads,
                      struct err *err) {
    struct generator_options options = {.context = context};
    if (dtype_from_name(precision, &options.compute) != 0)
        return err_set(err, ERR_USAGE, "--precision %.40s: expected bf16 or f32", precision);
    if (device_cpu_open(&loaded->device, &(struct device_cpu_options){.threads = threads}, err) !=
        0)
        return -1;
    loaded->generator = generator_open(loaded->source.model, &loaded->device, &options, err);
    if (loaded->generator && fill(loaded, err) == 0) return 0;
    loaded_model_close(loaded);
    return -1;
}

void loaded_model_close(struct loaded_model *loaded) {
    if (!loaded->device.close) return;
    generator_close(loaded->generator);
    loaded->device.close(&loaded->device);
    loaded->generator = NULL;
    loaded->device.close = NULL;
}
