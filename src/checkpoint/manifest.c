// See manifest.h. The lists of tensors and pieces are in manifest_lists.c.
#include "checkpoint/manifest.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest_parts.h"
#include "model/config_json.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "weft checkpoint";
enum { FORMAT_VERSION = 2, LARGEST_MANIFEST = 1 << 30 };

// Hash of the tree as compact text with sorted keys: independent of how the file is laid out.
static int tree_hash(json_t *tree, uint64_t *hash) {
    char *compact = json_dumps(tree, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    if (!compact) return -1;
    *hash = hash_string(compact);
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

json_t *manifest_tree(const struct checkpoint_state *state, const struct model_config *model,
                      const json_t *lists) {
    json_t *tree = json_object();
    put_text(tree, "format", format_name);
    json_object_set_new(tree, "version", json_integer(FORMAT_VERSION));
    json_object_set_new(tree, "state", state_tree(state));
    json_object_set_new(tree, "model", model_config_to_json(model));
    json_object_set(tree, "tensors", json_object_get(lists, "tensors"));
    json_object_set(tree, "parts", json_object_get(lists, "parts"));
    return tree;
}

// The reader's own checks, before anything counts as saved. Sums up the parts.
static int check_lists(json_t *tree, const char *path, uint64_t *bytes, struct err *err) {
    struct manifest m = {.version = FORMAT_VERSION, .tree = json_incref(tree)};
    int result = manifest_read_parts(tree, path, &m, err);
    if (result == 0) result = manifest_complete(&m, path, err);
    *bytes = 0;
    for (int i = 0; result == 0 && i < m.part_count; i++) *bytes += m.parts[i].bytes;
    manifest_free(&m);
    return result;
}

static int write_text(const char *path, const char *text, size_t length, struct err *err) {
    struct file_writer w;
    if (file_writer_open(&w, path, err) != 0) return -1;
    if (file_writer_put(&w, text, length, err) == 0) return file_writer_close(&w, true, err);
    file_writer_abandon(&w);
    return -1;
}

char *manifest_seal(json_t *tree, bool compact) {
    uint64_t value;
    char hash[17];
    if (tree_hash(tree, &value) != 0) return NULL;
    hash_text(value, hash);
    put_text(tree, "hash", hash);
    return json_dumps(tree, (compact ? JSON_COMPACT : JSON_INDENT(1)) | JSON_REAL_PRECISION(17));
}

int manifest_write_tree(const char *folder, json_t *tree, uint64_t *bytes, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t part_bytes;
    if (file_join(path, sizeof path, folder, MANIFEST_NAME, err) != 0 ||
        check_lists(tree, path, &part_bytes, err) != 0)
        return -1;
    char *text = manifest_seal(tree, false);
    if (!text) return err_set(err, ERR_MEMORY, "%s: no memory, or a text that is not UTF-8", path);
    size_t length = strlen(text);
    int result = write_text(path, text, length, err);
    free(text);
    *bytes = part_bytes + length;
    return result;
}

int manifest_write(const char *folder, const struct checkpoint_state *state,
                   const struct model_config *model, const json_t *lists, uint64_t *bytes,
                   struct err *err) {
    json_t *tree = manifest_tree(state, model, lists);
    int result = tree ? manifest_write_tree(folder, tree, bytes, err)
                      : err_set(err, ERR_MEMORY, "%s: no memory for the manifest", folder);
    json_decref(tree);
    return result;
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

int manifest_unseal(json_t *tree, const char *where, uint64_t *hash, struct err *err) {
    const char *text;
    uint64_t expected;
    char found_text[17], expected_text[17];
    if (json_get_string((struct json_at){tree, where}, "hash", true, NULL, &text, err) != 0)
        return -1;
    if (hash_parse(text, &expected) != 0)
        return err_set(err, ERR_DATA, "%s: hash: \"%.40s\" is not one", where, text);
    json_object_del(tree, "hash");
    if (tree_hash(tree, hash) != 0) return err_set(err, ERR_MEMORY, "%s: no memory", where);
    if (*hash == expected) return 0;
    hash_text(*hash, found_text);
    hash_text(expected, expected_text);
    return err_set(err, ERR_DATA, "%s: its own hash is %s, expected %s; it is damaged", where,
                   found_text, expected_text);
}

// Format and version.
static int read_frame(json_t *tree, const char *path, struct manifest *m, struct err *err) {
    struct json_at at = {tree, path};
    const char *format;
    int64_t version;
    if (json_get_string(at, "format", true, NULL, &format, err) != 0 ||
        json_get_int(at, "version", true, 0, &version, err) != 0)
        return -1;
    if (strcmp(format, format_name) != 0)
        return err_set(err, ERR_DATA, "%s: format: expected \"%s\", found \"%.60s\"", path,
                       format_name, format);
    if (version < 1 || version > FORMAT_VERSION)
        return err_set(err, ERR_DATA, "%s: version %lld; this program reads versions 1 to %d", path,
                       (long long)version, FORMAT_VERSION);
    m->version = (int)version;
    return 0;
}

int manifest_from_tree(json_t *tree, const char *where, struct manifest *m, struct err *err) {
    m->tree = json_incref(tree);
    if (read_frame(tree, where, m, err) != 0 ||
        read_state(json_object_get(tree, "state"), where, &m->state, err) != 0 ||
        model_config_from_json(json_object_get(tree, "model"), where, &m->model, err) != 0 ||
        manifest_read_parts(tree, where, m, err) != 0)
        return -1;
    return m->version == 1 ? 0 : manifest_complete(m, where, err);
}

int manifest_read(const char *folder, struct manifest *out, struct err *err) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t bytes;
    if (file_join(path, sizeof path, folder, MANIFEST_NAME, err) != 0 ||
        file_read(path, LARGEST_MANIFEST, &text, &bytes, err) != 0)
        return -1;
    struct manifest m = {0};
    json_t *tree = json_parse(text, bytes, path, err);
    free(text);
    int result = tree ? manifest_unseal(tree, path, &m.hash, err) : -1;
    if (result == 0) result = manifest_from_tree(tree, path, &m, err);
    json_decref(tree);
    if (result != 0) {
        manifest_free(&m);
        return -1;
    }
    *out = m;
    return 0;
}

void manifest_free(struct manifest *m) {
    free(m->parts);
    free(m->tensors);
    free(m->pieces);
    free(m->first_piece);
    json_decref(m->tree);
    *m = (struct manifest){0};
}
