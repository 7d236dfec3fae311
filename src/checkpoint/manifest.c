// See manifest.h.
#include "checkpoint/manifest.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/config_json.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "weft checkpoint";
enum { FORMAT_VERSION = 1, LARGEST_MANIFEST = 64 << 20 };

// Hash of the tree as compact text with sorted keys: independent of how the file is laid out.
static int tree_hash(json_t *tree, char text[17]) {
    char *compact = json_dumps(tree, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    if (!compact) return -1;
    hash_text(hash_string(compact), text);
    free(compact);
    return 0;
}

static void put_text(json_t *object, const char *key, const char *text) {
    json_object_set_new(object, key, json_string(text ? text : ""));
}

static json_t *state_tree(const struct checkpoint_state *s) {
    char seed[32];
    snprintf(seed, sizeof seed, "%" PRIu64, s->seed); // beyond what a JSON integer holds
    json_t *out = json_object();
    json_object_set_new(out, "step", json_integer(s->step));
    json_object_set_new(out, "samples", json_integer(s->samples));
    json_object_set_new(out, "tokens", json_integer(s->tokens));
    put_text(out, "seed", seed);
    put_text(out, "config", s->config);
    put_text(out, "binary", s->binary);
    put_text(out, "gemm", s->gemm);
    put_text(out, "isa", s->isa);
    json_object_set_new(out, "extra", s->extra ? json_deep_copy(s->extra) : json_object());
    return out;
}

static json_t *manifest_tree(const struct checkpoint_state *state, const struct model_config *model,
                             const struct manifest_part *parts, int part_count) {
    json_t *tree = json_object(), *list = json_array();
    put_text(tree, "format", format_name);
    json_object_set_new(tree, "version", json_integer(FORMAT_VERSION));
    json_object_set_new(tree, "state", state_tree(state));
    json_object_set_new(tree, "model", model_config_to_json(model));
    for (int i = 0; i < part_count; i++) {
        char hash[17];
        hash_text(parts[i].hash, hash);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "file", parts[i].name, "bytes",
                                              (json_int_t)parts[i].bytes, "xxh3", hash));
    }
    json_object_set_new(tree, "parts", list);
    return tree;
}

int manifest_write(const char *folder, const struct checkpoint_state *state,
                   const struct model_config *model, const struct manifest_part *parts,
                   int part_count, uint64_t *bytes, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], hash[17], *text = NULL;
    if (file_join(path, sizeof path, folder, MANIFEST_NAME, err) != 0) return -1;
    json_t *tree = manifest_tree(state, model, parts, part_count);
    if (tree_hash(tree, hash) == 0) {
        put_text(tree, "hash", hash);
        text = json_dumps(tree, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    }
    json_decref(tree);
    if (!text) return err_set(err, ERR_MEMORY, "%s: no memory, or a text that is not UTF-8", path);
    struct file_writer w;
    size_t length = strlen(text);
    int result = file_writer_open(&w, path, err);
    if (result == 0) {
        result = file_writer_put(&w, text, length, err);
        if (result == 0)
            result = file_writer_close(&w, true, err);
        else
            file_writer_abandon(&w);
    }
    free(text);
    *bytes = length;
    return result;
}

static int read_part(json_t *value, const char *path, struct manifest_part *part, struct err *err) {
    struct json_at at = {value, path};
    const char *name, *hash;
    int64_t bytes;
    if (json_get_string(at, "file", true, NULL, &name, err) != 0 ||
        json_get_string(at, "xxh3", true, NULL, &hash, err) != 0 ||
        json_get_int(at, "bytes", true, 0, &bytes, err) != 0)
        return -1;
    if (strlen(name) >= sizeof part->name || strchr(name, '/') || name[0] == '.' || name[0] == 0)
        return err_set(err, ERR_DATA, "%s: parts: \"%.80s\" is no plain file name", path, name);
    strcpy(part->name, name);
    part->bytes = (uint64_t)bytes;
    if (bytes < 0 || hash_parse(hash, &part->hash) != 0)
        return err_set(err, ERR_DATA, "%s: parts: %s: size or hash is malformed", path, name);
    return 0;
}

static int read_state(json_t *value, const char *path, struct checkpoint_state *s,
                      struct err *err) {
    struct json_at at = {value, path};
    const char *seed;
    if (json_get_int(at, "step", true, 0, &s->step, err) != 0 ||
        json_get_int(at, "samples", true, 0, &s->samples, err) != 0 ||
        json_get_int(at, "tokens", true, 0, &s->tokens, err) != 0 ||
        json_get_string(at, "seed", true, NULL, &seed, err) != 0 ||
        json_get_string(at, "config", true, NULL, &s->config, err) != 0 ||
        json_get_string(at, "binary", true, NULL, &s->binary, err) != 0 ||
        json_get_string(at, "gemm", true, NULL, &s->gemm, err) != 0 ||
        json_get_string(at, "isa", true, NULL, &s->isa, err) != 0)
        return -1;
    char *end;
    s->seed = strtoull(seed, &end, 10);
    if (s->step < 0 || s->samples < 0 || s->tokens < 0 || *end != 0 || end == seed)
        return err_set(err, ERR_DATA,
                       "%s: state: step, samples, tokens or seed is no whole number of 0 or more",
                       path);
    s->extra = json_object_get(value, "extra");
    if (!json_is_object(s->extra))
        return err_set(err, ERR_DATA, "%s: state: extra: expected an object", path);
    return 0;
}

static int read_tree(json_t *tree, const char *path, struct manifest *m, struct err *err) {
    struct json_at at = {tree, path};
    const char *format, *hash;
    int64_t version;
    char found[17];
    if (json_get_string(at, "format", true, NULL, &format, err) != 0 ||
        json_get_int(at, "version", true, 0, &version, err) != 0 ||
        json_get_string(at, "hash", true, NULL, &hash, err) != 0)
        return -1;
    if (strcmp(format, format_name) != 0)
        return err_set(err, ERR_DATA, "%s: format: expected \"%s\", found \"%.60s\"", path,
                       format_name, format);
    if (version != FORMAT_VERSION)
        return err_set(err, ERR_DATA, "%s: version %lld; this program reads version %d", path,
                       (long long)version, FORMAT_VERSION);
    char expected[17];
    snprintf(expected, sizeof expected, "%s", hash);
    json_object_del(tree, "hash");
    if (tree_hash(tree, found) != 0) return err_set(err, ERR_MEMORY, "%s: no memory", path);
    if (strcmp(found, expected) != 0)
        return err_set(err, ERR_DATA,
                       "%s: the manifest's own hash is %s, expected %s; it is damaged", path, found,
                       expected);
    if (read_state(json_object_get(tree, "state"), path, &m->state, err) != 0 ||
        model_config_from_json(json_object_get(tree, "model"), path, &m->model, err) != 0)
        return -1;
    json_t *list = json_object_get(tree, "parts");
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > 1000000)
        return err_set(err, ERR_DATA, "%s: parts: expected a list of files", path);
    m->part_count = (int)json_array_size(list);
    m->parts = calloc((size_t)m->part_count, sizeof *m->parts);
    if (!m->parts)
        return err_set(err, ERR_MEMORY, "%s: no memory for %d parts", path, m->part_count);
    for (int i = 0; i < m->part_count; i++)
        if (read_part(json_array_get(list, (size_t)i), path, &m->parts[i], err) != 0) return -1;
    return 0;
}

int manifest_read(const char *folder, struct manifest *out, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t bytes;
    if (file_join(path, sizeof path, folder, MANIFEST_NAME, err) != 0 ||
        file_read(path, LARGEST_MANIFEST, &text, &bytes, err) != 0)
        return -1;
    struct manifest m = {.tree = json_parse(text, bytes, path, err)};
    free(text);
    if (!m.tree || read_tree(m.tree, path, &m, err) != 0) {
        manifest_free(&m);
        return -1;
    }
    *out = m;
    return 0;
}

void manifest_free(struct manifest *m) {
    free(m->parts);
    json_decref(m->tree);
    *m = (struct manifest){0};
}
