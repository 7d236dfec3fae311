// Weights into one safetensors file or into shards with an index; see hf_parts.h.
#include "base/file.h"
#include "checkpoint/hf_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t default_shard_bytes = 5000000000;
static const char partial[] = ".partial"; // a file that is not complete has another name

static void shard_name(const struct hf_sink *s, int shard, char out[64]) {
    if (s->shard_count == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, s->shard_count);
}

static int shard_path(const struct hf_sink *s, int shard, const char *tail,
                      char out[CHECKPOINT_PATH_BYTES], struct err *err) {
    char name[64], whole[80];
    shard_name(s, shard, name);
    snprintf(whole, sizeof whole, "%s%s", name, tail);
    return file_join(out, CHECKPOINT_PATH_BYTES, s->folder, whole, err);
}

static int begin_shard(struct hf_sink *s, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    int first = 0, end;
    while (s->shard_of[first] < s->shard) first++;
    for (end = first; end < s->count && s->shard_of[end] == s->shard;) end++;
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    int result = shard_path(s, s->shard, partial, path, err);
    if (result == 0)
        result = safetensors_write_begin(&s->writer, path, s->tensors + first, end - first,
                                         metadata, err);
    json_decref(metadata);
    s->put_bytes = 0;
    s->open = result == 0;
    return result;
}

int hf_sink_open(struct hf_sink *s, const char *folder, const struct tensor *tensors, int count,
                 uint64_t max_shard_bytes, struct err *err) {
    *s = (struct hf_sink){.tensors = tensors, .count = count};
    if (max_shard_bytes == 0) max_shard_bytes = default_shard_bytes;
    if (strlen(folder) >= sizeof s->folder)
        return err_set(err, ERR_IO, "path too long: %.100s...", folder);
    strcpy(s->folder, folder);
    s->shard_of = calloc((size_t)count + 1, sizeof *s->shard_of);
    s->shard_bytes = calloc((size_t)count + 1, sizeof *s->shard_bytes);
    if (!s->shard_of || !s->shard_bytes) {
        hf_sink_abandon(s);
        return err_set(err, ERR_MEMORY, "%s: no memory for %d tensors", folder, count);
    }
    for (int i = 0; i < count; i++) {
        uint64_t bytes = tensor_bytes(&tensors[i]);
        if (s->shard_count == 0 || (s->shard_bytes[s->shard_count - 1] > 0 &&
                                    s->shard_bytes[s->shard_count - 1] + bytes > max_shard_bytes))
            s->shard_count++;
        s->shard_of[i] = s->shard_count - 1;
        s->shard_bytes[s->shard_count - 1] += bytes;
    }
    if (file_make_folders(folder, err) == 0 && begin_shard(s, err) == 0) return 0;
    hf_sink_abandon(s);
    return -1;
}

int hf_sink_put(struct hf_sink *s, const void *data, uint64_t bytes, struct err *err) {
    if (s->put_bytes == s->shard_bytes[s->shard] && bytes > 0) { // the open one is full
        s->open = false;
        if (safetensors_write_end(&s->writer, true, NULL, err) != 0) return -1;
        s->shard++;
        if (begin_shard(s, err) != 0) return -1;
    }
    s->put_bytes += bytes;
    return safetensors_write_put(&s->writer, data, bytes, err);
}

static int write_index(const struct hf_sink *s, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], name[64];
    uint64_t total = 0;
    json_t *map = json_object();
    for (int i = 0; i < s->count; i++) {
        shard_name(s, s->shard_of[i], name);
        json_object_set_new(map, s->tensors[i].name, json_string(name));
        total += tensor_bytes(&s->tensors[i]);
    }
    json_t *tree =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = json_dumps(tree, JSON_INDENT(2));
    json_decref(tree);
    int result = text ? file_join(path, sizeof path, s->folder, "model.safetensors.index.json", err)
                      : err_set(err, ERR_MEMORY, "%s: no memory", s->folder);
    if (result == 0) result = file_replace(path, text, strlen(text), err);
    free(text);
    return result;
}

// Weights of an earlier export would be read beside the new ones, or instead of them.
static int remove_old(const struct hf_sink *s, struct err *err) {
    char **names, path[CHECKPOINT_PATH_BYTES];
    size_t count;
    if (file_list(s->folder, &names, &count, err) != 0) return -1;
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        size_t length = strlen(names[i]);
        bool weights = strncmp(names[i], "model", 5) == 0 && length > 12 &&
                       strcmp(names[i] + length - 12, ".safetensors") == 0;
        if (!weights && strcmp(names[i], "model.safetensors.index.json") != 0) continue;
        result = file_join(path, sizeof path, s->folder, names[i], err);
        if (result == 0) result = file_remove_tree(path, err);
    }
    file_list_free(names, count);
    return result;
}

int hf_sink_close(struct hf_sink *s, struct err *err) {
    int result = -1;
    s->open = false;
    if (safetensors_write_end(&s->writer, true, NULL, err) == 0 && remove_old(s, err) == 0) {
        result = 0;
        for (int i = 0; i < s->shard_count && result == 0; i++) {
            char from[CHECKPOINT_PATH_BYTES], to[CHECKPOINT_PATH_BYTES];
            result = shard_path(s, i, partial, from, err) != 0 || shard_path(s, i, "", to, err) != 0
                         ? -1
                         : file_rename(from, to, err);
        }
        if (result == 0 && s->shard_count > 1) result = write_index(s, err);
    }
    hf_sink_abandon(s);
    return result;
}

// Also after a close that failed: what is not complete is removed.
void hf_sink_abandon(struct hf_sink *s) {
    if (s->open) safetensors_write_abandon(&s->writer);
    for (int i = 0; s->shard_of && i <= s->shard && i < s->shard_count; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        if (shard_path(s, i, partial, path, NULL) == 0) unlink(path);
    }
    free(s->shard_of);
    free(s->shard_bytes);
    *s = (struct hf_sink){0};
}
