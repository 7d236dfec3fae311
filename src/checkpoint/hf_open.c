// Opening a Hugging Face folder: files, index, and the match of every stored tensor with the model.
// See hf_folder.h.
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/hf_parts.h"
#include "model/hf_config.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char single_name[] = "model.safetensors",
                  index_name[] = "model.safetensors.index.json";

static int add_file(struct hf_folder *f, const char *name, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    char **names = realloc(f->file_names, ((size_t)f->file_count + 1) * sizeof *names);
    if (names) f->file_names = names;
    struct safetensors *files = realloc(f->files, ((size_t)f->file_count + 1) * sizeof *files);
    if (files) f->files = files;
    char *copy = strdup(name);
    if (!names || !files || !copy) {
        free(copy);
        return err_set(err, ERR_MEMORY, "%s: no memory", f->path);
    }
    if (file_join(path, sizeof path, f->path, name, err) != 0 ||
        safetensors_open(path, &files[f->file_count], err) != 0) {
        free(copy);
        return -1;
    }
    names[f->file_count++] = copy;
    return 0;
}

static int file_of(const struct hf_folder *f, const char *name) {
    for (int i = 0; i < f->file_count; i++)
        if (strcmp(f->file_names[i], name) == 0) return i;
    return -1;
}

// Opens the files that the index names and compares its entries with their headers, both ways.
static int read_map(struct hf_folder *f, json_t *map, const char *path, struct err *err) {
    const char *tensor;
    json_t *value;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(err, ERR_DATA, "%s: weight_map: expected an object with tensors", path);
    json_object_foreach(map, tensor, value) {
        const char *name = json_is_string(value) ? json_string_value(value) : "";
        if (name[0] == 0 || name[0] == '.' || strchr(name, '/'))
            return err_set(err, ERR_DATA,
                           "%s: weight_map: %.100s: expected the name of a file in this folder, "
                           "found \"%.60s\"",
                           path, tensor, name);
        if (file_of(f, name) < 0 && add_file(f, name, err) != 0)
            return err_context(err, "%s", path);
        if (safetensors_find(&f->files[file_of(f, name)], tensor) < 0)
            return err_set(err, ERR_DATA,
                           "%s: weight_map: %.100s is said to be in %s, which does not hold it",
                           path, tensor, name);
    }
    for (int i = 0; i < f->file_count; i++)
        for (int k = 0; k < f->files[i].count; k++) {
            const char *name = f->files[i].tensors[k].name;
            json_t *entry = json_object_get(map, name);
            if (!json_is_string(entry) || strcmp(json_string_value(entry), f->file_names[i]) != 0)
                return err_set(err, ERR_DATA,
                               "%s: weight_map: %s is in %s, but the index does not say so", path,
                               name, f->file_names[i]);
        }
    return 0;
}

static int check_total(const struct hf_folder *f, json_t *tree, const char *path, struct err *err) {
    json_t *value = json_object_get(json_object_get(tree, "metadata"), "total_size");
    if (!value) return 0;
    uint64_t sum = 0;
    for (int i = 0; i < f->file_count; i++)
        for (int k = 0; k < f->files[i].count; k++) sum += safetensors_bytes(&f->files[i], k);
    double found = json_number_value(value); // some programs write it as 1.0e9
    if (!json_is_number(value) || found != (double)sum)
        return err_set(err, ERR_DATA,
                       "%s: metadata.total_size is %.0f, but the tensors have %" PRIu64 " bytes",
                       path, found, sum);
    return 0;
}

static int open_files(struct hf_folder *f, bool strict, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    if (file_join(path, sizeof path, f->path, single_name, err) != 0) return -1;
    bool single = file_exists(path);
    if (file_join(path, sizeof path, f->path, index_name, err) != 0) return -1;
    if (!file_exists(path)) {
        if (single) return add_file(f, single_name, err);
        return err_set(
            err, ERR_IO,
            "%s: found neither %s nor %s; other weight formats (pytorch_model.bin) are not read",
            f->path, single_name, index_name);
    }
    if (single && strict)
        return err_set(err, ERR_DATA,
                       "%s: holds both %s and %s; programs disagree on which one counts", f->path,
                       single_name, index_name);
    if (single) return add_file(f, single_name, err);
    json_t *tree = json_parse_file(path, err);
    if (!tree) return -1;
    int result = read_map(f, json_object_get(tree, "weight_map"), path, err);
    if (result == 0 && strict) result = check_total(f, tree, path, err);
    json_decref(tree);
    return result;
}

enum { MOST_NAMED = 4 };

static void name_one(struct text *out, int *named, const char *what, const char *name) {
    if ((*named)++ < MOST_NAMED) text_printf(out, "%s%s %s", *named > 1 ? "; " : "", what, name);
}

static void check_shape(const struct hf_tensor *t, const struct tensor *stored, struct text *faults,
                        int *named) {
    bool same = stored->dims == t->dims;
    for (int i = 0; same && i < t->dims; i++) same = stored->shape[i] == t->shape[i];
    if (!same) {
        name_one(faults, named, "wrong shape:", t->name);
        if (*named > MOST_NAMED) return;
        text_puts(faults, " (stored [");
        for (int i = 0; i < stored->dims; i++)
            text_printf(faults, "%s%" PRId64, i ? ", " : "", stored->shape[i]);
        text_printf(faults, "], the configuration needs [%" PRId64, t->shape[0]);
        if (t->dims == 2) text_printf(faults, ", %" PRId64, t->shape[1]);
        text_puts(faults, "])");
    } else if (!safetensors_is_floating(stored->type)) {
        name_one(faults, named, "not a floating type:", t->name);
    }
}

// A tied model's file may hold the head as a copy of the embedding, or instead of it.
static int settle_tied_head(struct hf_folder *f, struct hf_source head, struct err *err) {
    int embedding = -1;
    for (int i = 0; i < f->count && embedding < 0; i++)
        if (f->model.params[f->tensors[i].param].role == PARAM_EMBEDDING) embedding = i;
    if (embedding < 0 || head.file < 0) return 0;
    struct hf_source *source = &f->sources[embedding];
    if (source->file < 0) {
        *source = head;
        return 0;
    }
    const struct safetensors *a = &f->files[source->file], *b = &f->files[head.file];
    uint64_t bytes = safetensors_bytes(a, source->index);
    enum { PIECE = 1 << 20 };
    char *piece = malloc(2 * PIECE);
    if (!piece) return err_set(err, ERR_MEMORY, "%s: no memory", f->path);
    bool same = bytes == safetensors_bytes(b, head.index);
    int result = 0;
    for (uint64_t at = 0; at < bytes && same && result == 0; at += PIECE) {
        uint64_t now = bytes - at < PIECE ? bytes - at : PIECE;
        result = safetensors_read(a, source->index, at, now, piece, err) != 0 ||
                         safetensors_read(b, head.index, at, now, piece + PIECE, err) != 0
                     ? -1
                     : 0;
        same = memcmp(piece, piece + PIECE, now) == 0;
    }
    free(piece);
    if (result == 0 && !same)
        return err_set(err, ERR_DATA,
                       "%s: tie_word_embeddings is true, but %s differs from %s; set it to false "
                       "if the head has weights of its own",
                       f->path, hf_head_name(&f->model.config), f->tensors[embedding].name);
    return result;
}

static int match(struct hf_folder *f, struct err *err) {
    struct text faults = {0};
    struct hf_source head = {-1, -1};
    int named = 0;
    f->sources = calloc((size_t)f->count, sizeof *f->sources);
    if (!f->sources) return err_set(err, ERR_MEMORY, "%s: no memory", f->path);
    for (int i = 0; i < f->count; i++) f->sources[i].file = -1;
    for (int i = 0; i < f->file_count; i++)
        for (int k = 0; k < f->files[i].count; k++) {
            const struct tensor *stored = &f->files[i].tensors[k];
            int index = hf_tensor_find(f->tensors, f->count, stored->name);
            if (index >= 0 && f->sources[index].file >= 0) {
                name_one(&faults, &named, "stored twice:", stored->name);
            } else if (index >= 0) {
                f->sources[index] = (struct hf_source){i, k};
                check_shape(&f->tensors[index], stored, &faults, &named);
            } else if (f->model.config.tied_head &&
                       strcmp(stored->name, hf_head_name(&f->model.config)) == 0) {
                head = (struct hf_source){i, k};
                struct hf_tensor shape = {.dims = 2,
                                          .shape = {f->model.config.vocab, f->model.config.hidden}};
                strcpy(shape.name, stored->name);
                check_shape(&shape, stored, &faults, &named);
            } else if (!hf_name_ignorable(stored->name)) {
                name_one(&faults, &named, "unexpected:", stored->name);
            }
        }
    int result = named == 0 ? settle_tied_head(f, head, err) : 0;
    for (int i = 0; i < f->count; i++)
        if (f->sources[i].file < 0) name_one(&faults, &named, "missing:", f->tensors[i].name);
    if (named > MOST_NAMED) text_printf(&faults, "; and %d more", named - MOST_NAMED);
    if (result == 0 && named > 0)
        result = err_set(err, ERR_DATA,
                         "%s: the stored tensors are not those that config.json describes: %s",
                         f->path, faults.data ? faults.data : "");
    text_free(&faults);
    return result;
}

static int open_folder(const char *path, bool strict, struct hf_folder *f, struct err *err) {
    char config_path[CHECKPOINT_PATH_BYTES];
    struct model_config config;
    if (strlen(path) >= sizeof f->path)
        return err_set(err, ERR_IO, "path too long: %.100s...", path);
    strcpy(f->path, path);
    if (file_exists(path) && !file_is_folder(path))
        return err_set(err, ERR_IO, "%s: expected a folder with config.json and safetensors", path);
    if (file_join(config_path, sizeof config_path, path, "config.json", err) != 0 ||
        hf_config_read(config_path, &config, err) != 0 ||
        model_describe(&f->model, &config, err) != 0 ||
        hf_tensors(&f->model, &f->tensors, &f->count, err) != 0 || open_files(f, strict, err) != 0)
        return -1;
    return match(f, err);
}

static int open_any(const char *path, bool strict, struct hf_folder **out, struct err *err) {
    struct hf_folder *f = calloc(1, sizeof *f);
    if (!f) return err_set(err, ERR_MEMORY, "%s: no memory", path);
    if (open_folder(path, strict, f, err) != 0) {
        hf_folder_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

int hf_folder_open(const char *path, struct hf_folder **out, struct err *err) {
    return open_any(path, false, out, err);
}

int hf_folder_validate(const char *path, struct err *err) {
    struct hf_folder *f;
    struct hf_cast_counts counts = {0};
    if (open_any(path, true, &f, err) != 0) return -1;
    int result =
        hf_folder_count_cast(f, DTYPE_COUNT, &counts, err); // reads all, refuses what is not finite
    hf_folder_close(f);
    return result;
}

void hf_folder_close(struct hf_folder *f) {
    if (!f) return;
    for (int i = 0; i < f->file_count; i++) {
        safetensors_close(&f->files[i]);
        free(f->file_names[i]);
    }
    free(f->files);
    free(f->file_names);
    free(f->sources);
    free(f->tensors);
    model_free(&f->model);
    free(f);
}

const struct model *hf_folder_model(const struct hf_folder *f) {
    return &f->model;
}

enum dtype hf_folder_dtype(const struct hf_folder *f) {
    const struct hf_source *source = &f->sources[0]; // the embedding
    return f->files[source->file].tensors[source->index].type;
}
