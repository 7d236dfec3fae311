// JSON through jansson, with messages that name file and key; see json.h.
#include "base/json.h"
#include "base/file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 512 };

// Nesting is counted before the parser sees the text: it recurses, and a hostile file must not
// choose the stack depth.
static int deepest_level(const char *text, size_t bytes) {
    int level = 0, deepest = 0, in_string = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '[' || c == '{') {
            if (++level > deepest) deepest = level;
        } else if (c == ']' || c == '}') {
            level--;
        }
        if (deepest > DEEPEST) break;
    }
    return deepest;
}

static json_t *parse(const char *text, size_t bytes, const char *name, size_t flags,
                     struct err *err) {
    if (deepest_level(text, bytes) > DEEPEST) {
        err_set(err, ERR_DATA, "%s: nested deeper than %d levels; no such file is expected here",
                name, DEEPEST);
        return NULL;
    }
    json_error_t error;
    flags |= JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *tree = json_loadb(text, bytes, flags, &error);
    if (!tree)
        err_set(err, ERR_DATA, "%s: line %d, column %d: not valid JSON: %s", name, error.line,
                error.column, error.text);
    return tree;
}

json_t *json_parse(const char *text, size_t bytes, const char *name, struct err *err) {
    return parse(text, bytes, name, 0, err);
}

static json_t *parse_file(const char *path, size_t flags, struct err *err) {
    char *text;
    size_t bytes;
    if (file_read(path, 0, &text, &bytes, err) != 0) return NULL;
    json_t *tree = parse(text, bytes, path, flags, err);
    free(text);
    return tree;
}

json_t *json_parse_file(const char *path, struct err *err) {
    return parse_file(path, 0, err);
}

json_t *json_parse_file_reals(const char *path, struct err *err) {
    return parse_file(path, JSON_DECODE_INT_AS_REAL, err);
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "something unknown";
}

// The member, or NULL with *status 0 (absent or null where that is allowed) or -1.
static json_t *member(struct json_at at, const char *key, bool required, const char *wanted,
                      int *status, struct err *err) {
    *status = 0;
    if (!json_is_object(at.value)) {
        *status = err_set(err, ERR_DATA, "%s: expected an object with the key \"%s\", found %s",
                          at.where, key, at.value ? type_name(at.value) : "nothing");
        return NULL;
    }
    json_t *value = json_object_get(at.value, key);
    if (value && !json_is_null(value)) return value;
    if (required)
        *status = err_set(err, ERR_DATA, "%s: %s: expected %s, found %s", at.where, key, wanted,
                          value ? "null" : "no such key");
    return NULL;
}

static int wrong(struct json_at at, const char *key, const char *wanted, const json_t *value,
                 struct err *err) {
    return err_set(err, ERR_DATA, "%s: %s: expected %s, found %s", at.where, key, wanted,
                   type_name(value));
}

int json_get_int(struct json_at at, const char *key, bool required, int64_t fallback, int64_t *out,
                 struct err *err) {
    int status;
    json_t *value = member(at, key, required, "an integer", &status, err);
    if (status != 0) return -1;
    if (!value) {
        *out = fallback;
        return 0;
    }
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return 0;
    }
    // 1e6 and 2048.0 are integers too
    double real = json_is_real(value) ? json_real_value(value) : 0.5;
    if (fabs(real) > 0x1p53 || real != (double)(int64_t)real)
        return wrong(at, key, "an integer", value, err);
    *out = (int64_t)real;
    return 0;
}

int json_get_double(struct json_at at, const char *key, bool required, double fallback, double *out,
                    struct err *err) {
    int status;
    json_t *value = member(at, key, required, "a number", &status, err);
    if (status != 0) return -1;
    if (value && !json_is_number(value)) return wrong(at, key, "a number", value, err);
    *out = value ? json_number_value(value) : fallback;
    return 0;
}

int json_get_bool(struct json_at at, const char *key, bool required, bool fallback, bool *out,
                  struct err *err) {
    int status;
    json_t *value = member(at, key, required, "true or false", &status, err);
    if (status != 0) return -1;
    if (value && !json_is_boolean(value)) return wrong(at, key, "true or false", value, err);
    *out = value ? json_is_true(value) : fallback;
    return 0;
}

int json_get_string(struct json_at at, const char *key, bool required, const char *fallback,
                    const char **out, struct err *err) {
    int status;
    json_t *value = member(at, key, required, "a string", &status, err);
    if (status != 0) return -1;
    if (value && !json_is_string(value)) return wrong(at, key, "a string", value, err);
    if (value && strlen(json_string_value(value)) != json_string_length(value))
        return err_set(err, ERR_DATA,
                       "%s: %s: the string holds a NUL character, which cannot be used here",
                       at.where, key);
    *out = value ? json_string_value(value) : fallback;
    return 0;
}
