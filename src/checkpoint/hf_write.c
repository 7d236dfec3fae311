// Writing a Hugging Face folder, from params that a callback fills or from another folder. See
// hf_folder.h.
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/hf_parts.h"
#include "model/hf_config.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int put_text(const char *folder, const char *name, const char *text, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    if (file_join(path, sizeof path, folder, name, err) != 0) return -1;
    return file_replace(path, text, strlen(text), err);
}

static int put_tree(const char *folder, const char *name, json_t *tree, struct err *err) {
    char *text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    int result = text ? put_text(folder, name, text, err)
                      : err_set(err, ERR_MEMORY, "%s/%s: no memory", folder, name);
    free(text);
    return result;
}

static int write_configs(const char *folder, const struct model_config *c, enum dtype type,
                         struct err *err) {
    struct text text = {0};
    int result = hf_config_write(c, hf_dtype_text(type), &text, err);
    if (result == 0) result = put_text(folder, "config.json", text.data, err);
    text_free(&text);
    if (result != 0 || (c->bos_id < 0 && c->eos_id < 0)) return result;
    json_t *tree = json_object();
    if (c->bos_id >= 0) json_object_set_new(tree, "bos_token_id", json_integer(c->bos_id));
    json_t *stops = json_array();
    if (c->eos_id >= 0) json_array_append_new(stops, json_integer(c->eos_id));
    for (int i = 0; i < c->stop_count; i++)
        json_array_append_new(stops, json_integer(c->stop_ids[i]));
    if (c->stop_count > 0)
        json_object_set(tree, "eos_token_id", stops);
    else if (c->eos_id >= 0)
        json_object_set(tree, "eos_token_id", json_array_get(stops, 0));
    json_decref(stops);
    result = put_tree(folder, "generation_config.json", tree, err);
    json_decref(tree);
    return result;
}

// The stored tensors as described memory; a tied head, when wanted, behind them.
static struct tensor *describe_all(const struct hf_tensor *list, int count,
                                   const struct model_config *c, bool head, int *total) {
    struct tensor *out = calloc((size_t)count + 1, sizeof *out);
    if (!out) return NULL;
    for (int i = 0; i < count; i++) {
        out[i].dims = list[i].dims;
        memcpy(out[i].shape, list[i].shape, sizeof list[i].shape);
        memcpy(out[i].name, list[i].name, sizeof out[i].name);
    }
    *total = count;
    if (head && c->tied_head) {
        out[count] = (struct tensor){.dims = 2, .shape = {c->vocab, c->hidden}};
        snprintf(out[count].name, sizeof out[count].name, "%s", hf_head_name(c));
        *total = count + 1;
    }
    return out;
}

enum { PIECE = 1 << 20 };

// Rows of a tensor to the sink in pieces: as they are, or turned (then all rows are there).
static int put_rows(struct hf_sink *sink, const struct hf_tensor *t, const float *values,
                    int64_t rows, enum dtype type, struct hf_cast_counts *counts, float *piece,
                    void *cast, struct err *err) {
    int64_t count = rows * t->columns;
    int64_t bad = safetensors_not_finite(values, DTYPE_F32, count);
    if (bad >= 0)
        return err_set(err, ERR_DATA, "%s: a value is not finite; the model is not exported",
                       t->name);
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t now = count - at < PIECE ? count - at : PIECE;
        const float *source = values + at;
        if (t->turned) { // element i of the stored tensor is [column i / rows][row i % rows]
            for (int64_t i = 0; i < now; i++)
                piece[i] = values[(at + i) % rows * t->columns + (at + i) / rows];
            source = piece;
        }
        hf_cast(source, now, type, cast, counts);
        if (hf_sink_put(sink, cast, (uint64_t)now * dtype_bytes(type), err) != 0) return -1;
    }
    return 0;
}

// Rows that are held at once.
static int64_t rows_at_once(const struct hf_tensor *t) {
    enum { ELEMENTS = 1 << 22 };
    if (t->turned || t->rows * t->columns <= ELEMENTS) return t->rows;
    return t->columns < ELEMENTS ? ELEMENTS / t->columns : 1;
}

struct export {
    struct hf_sink sink;
    enum dtype type;
    hf_fill *fill;
    void *context;
    float *values, *piece;
    void *cast;
};

static int put_tensor(struct export *e, const struct hf_tensor *t, struct hf_cast_counts *counts,
                      struct err *err) {
    int64_t most = rows_at_once(t);
    for (int64_t row = 0; row < t->rows; row += most) {
        int64_t now = t->rows - row < most ? t->rows - row : most;
        if (e->fill(e->context, t->param, t->first_row + row, now, e->values, err) != 0 ||
            put_rows(&e->sink, t, e->values, now, e->type, counts, e->piece, e->cast, err) != 0)
            return -1;
    }
    return 0;
}

static int put_all(struct export *e, const struct hf_tensor *list, int count, bool head,
                   struct hf_cast_counts *counts, struct err *err) {
    int64_t largest = 1;
    for (int i = 0; i < count; i++)
        if (rows_at_once(&list[i]) * list[i].columns > largest)
            largest = rows_at_once(&list[i]) * list[i].columns;
    e->values = malloc((size_t)largest * sizeof(float));
    e->piece = malloc(PIECE * sizeof(float));
    e->cast = malloc(PIECE * sizeof(float));
    int result = e->values && e->piece && e->cast
                     ? 0
                     : err_set(err, ERR_MEMORY, "no memory for %" PRId64 " elements", largest);
    for (int i = 0; i < count && result == 0; i++) result = put_tensor(e, &list[i], counts, err);
    if (head && result == 0)
        result = put_tensor(e, &list[0], NULL, err); // the embedding is the first
    free(e->values);
    free(e->piece);
    free(e->cast);
    return result;
}

int hf_folder_write(const char *path, const struct model *model,
                    const struct hf_write_options *options, hf_fill *fill, void *context,
                    struct hf_cast_counts *counts, struct err *err) {
    struct hf_tensor *list;
    int count, total;
    struct hf_cast_counts own = {0};
    if (options->type != DTYPE_F32 && options->type != DTYPE_BF16 && options->type != DTYPE_F16)
        return err_set(err, ERR_USAGE, "weights are stored as f32, bf16 or f16, not as %s",
                       dtype_name(options->type));
    if (!hf_config_type(&model->config, err) || hf_tensors(model, &list, &count, err) != 0)
        return -1;
    bool head = options->store_tied_head && model->config.tied_head;
    struct tensor *described = describe_all(list, count, &model->config, head, &total);
    if (!described) {
        free(list);
        return err_set(err, ERR_MEMORY, "%s: no memory", path);
    }
    for (int i = 0; i < total; i++) described[i].type = options->type;
    struct export e = {.type = options->type, .fill = fill, .context = context};
    int result = hf_sink_open(&e.sink, path, described, total, options->max_shard_bytes, err);
    if (result == 0) {
        result = put_all(&e, list, count, head, counts ? counts : &own, err);
        if (result == 0)
            result = hf_sink_close(&e.sink, err);
        else
            hf_sink_abandon(&e.sink);
    }
    if (result == 0) result = write_configs(path, &model->config, options->type, err);
    free(described);
    free(list);
    return result;
}

// --- folder to folder ---

static int copy_tensor(const struct hf_folder *f, int index, const struct tensor *target,
                       struct hf_sink *sink, struct hf_cast_counts *counts, float *piece,
                       void *cast, struct err *err) {
    const struct safetensors *file = &f->files[f->sources[index].file];
    int source = f->sources[index].index;
    enum dtype from = file->tensors[source].type;
    int64_t count = tensor_elements(target);
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t now = count - at < PIECE ? count - at : PIECE;
        size_t width = dtype_bytes(from);
        if (from == target->type) { // bit by bit
            if (safetensors_read(file, source, (uint64_t)at * width, (uint64_t)now * width, cast,
                                 err) != 0)
                return -1;
            if (counts) counts->values += (uint64_t)now;
        } else {
            if (safetensors_read_floats(file, source, at, now, piece, err) != 0) return -1;
            hf_cast(piece, now, target->type, cast, counts);
        }
        int64_t bad = from == target->type ? safetensors_not_finite(cast, from, now)
                                           : safetensors_not_finite(piece, DTYPE_F32, now);
        if (bad >= 0)
            return err_set(err, ERR_DATA,
                           "%s: tensor %s holds a value that is not finite at index %" PRId64,
                           f->path, target->name, at + bad);
        if (hf_sink_put(sink, cast, (uint64_t)now * dtype_bytes(target->type), err) != 0) return -1;
    }
    return 0;
}

// Wider types first, so that every tensor is aligned; else the order of the params.
static int *order_by_width(const struct tensor *list, int count) {
    int *order = calloc((size_t)count + 1, sizeof *order), used = 0;
    for (size_t width = 8; order && width >= 2; width /= 2)
        for (int i = 0; i < count; i++)
            if (dtype_bytes(list[i].type) == width) order[used++] = i;
    return order;
}

static int carry_configs(const struct hf_folder *f, const char *to, enum dtype type,
                         struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    if (file_join(path, sizeof path, f->path, "config.json", err) != 0) return -1;
    json_t *tree = json_parse_file(path, err);
    if (!tree) return -1;
    const char *key = json_object_get(tree, "dtype") ? "dtype" : "torch_dtype";
    json_object_set_new(tree, key, json_string(hf_dtype_text(type)));
    int result = put_tree(to, "config.json", tree, err);
    json_decref(tree);
    if (result != 0 || file_join(path, sizeof path, f->path, "generation_config.json", err) != 0)
        return result;
    if (!file_exists(path)) return 0;
    char *text;
    size_t bytes;
    if (file_read(path, 0, &text, &bytes, err) != 0 ||
        file_join(path, sizeof path, to, "generation_config.json", err) != 0)
        return -1;
    result = file_replace(path, text, bytes, err);
    free(text);
    return result;
}

static int convert_weights(const struct hf_folder *f, const char *to, struct tensor *described,
                           int total, uint64_t max_shard_bytes, struct hf_cast_counts *counts,
                           struct err *err) {
    int *order = order_by_width(described, total);
    struct tensor *sorted = calloc((size_t)total + 1, sizeof *sorted);
    float *piece = malloc(PIECE * sizeof(float));
    void *cast = malloc(PIECE * sizeof(double));
    struct hf_sink sink;
    int result =
        order && sorted && piece && cast ? 0 : err_set(err, ERR_MEMORY, "%s: no memory", to);
    for (int i = 0; i < total && result == 0; i++) sorted[i] = described[order[i]];
    if (result == 0) result = hf_sink_open(&sink, to, sorted, total, max_shard_bytes, err);
    if (result == 0) {
        for (int i = 0; i < total && result == 0; i++) {
            bool head = order[i] == f->count; // a tied head has the embedding's values
            result = copy_tensor(f, head ? 0 : order[i], &sorted[i], &sink, head ? NULL : counts,
                                 piece, cast, err);
        }
        if (result == 0)
            result = hf_sink_close(&sink, err);
        else
            hf_sink_abandon(&sink);
    }
    free(order);
    free(sorted);
    free(piece);
    free(cast);
    return result;
}

int hf_folder_convert(const char *from, const char *to, const struct hf_write_options *options,
                      struct hf_cast_counts *counts, struct err *err) {
    struct hf_folder *f;
    int total = 0;
    if (hf_folder_open(from, &f, err) != 0) return -1;
    struct tensor *described =
        describe_all(f->tensors, f->count, &f->model.config, options->store_tied_head, &total);
    int result = described ? 0 : err_set(err, ERR_MEMORY, "%s: no memory", to);
    for (int i = 0; i < total && result == 0; i++) {
        const struct hf_source *source = &f->sources[i < f->count ? i : 0];
        described[i].type = options->type == DTYPE_COUNT
                                ? f->files[source->file].tensors[source->index].type
                                : options->type;
    }
    if (result == 0)
        result = convert_weights(f, to, described, total, options->max_shard_bytes, counts, err);
    if (result == 0)
        result = carry_configs(
            f, to, options->type == DTYPE_COUNT ? hf_folder_dtype(f) : options->type, err);
    if (result == 0 && hf_folder_copy_tokenizer(from, to, err) < 0) result = -1;
    free(described);
    hf_folder_close(f);
    return result;
}

// --- tokenizer files ---

static bool is_tokenizer_file(const char *name) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "encoder.json",
                                        "vocab.bpe",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        NULL};
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return true;
    size_t length = strlen(name);
    return length > 9 && strcmp(name + length - 9, ".tiktoken") == 0;
}

int hf_folder_copy_tokenizer(const char *from, const char *to, struct err *err) {
    char **names;
    size_t count;
    int copied = 0, result = 0;
    if (file_make_folders(to, err) != 0 || file_list(from, &names, &count, err) != 0) return -1;
    for (size_t i = 0; i < count && result == 0; i++) {
        char source[CHECKPOINT_PATH_BYTES], target[CHECKPOINT_PATH_BYTES], *text;
        size_t bytes;
        if (!is_tokenizer_file(names[i])) continue;
        if (file_join(source, sizeof source, from, names[i], err) != 0 ||
            file_join(target, sizeof target, to, names[i], err) != 0 ||
            file_read(source, 0, &text, &bytes, err) != 0) {
            result = -1;
            break;
        }
        result = file_replace(target, text, bytes, err);
        free(text);
        copied++;
    }
    file_list_free(names, count);
    return result == 0 ? copied : -1;
}
