// Reading JSON with messages that name the file and the path of the key ("model.json:
// rope_scaling.factor: expected a number, found a string"). Built on jansson; the tree is a
// `json_t`.
#pragma once
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

// Parses text of `bytes` length; rejects duplicate keys and nesting beyond 512 levels. `name` is
// the file for messages.
json_t *json_parse(const char *text, size_t bytes, const char *name, struct err *err);
json_t *json_parse_file(const char *path, struct err *err);
// As above with every number a real: for files that hold integers beyond 64 bits (model_max_length
// of tokenizers).
json_t *json_parse_file_reals(const char *path, struct err *err);

// Member access. `where` is the file and path for messages. A missing key: required -> error, else
// the fallback.
struct json_at {
    json_t *value;
    const char *where;
};
int json_get_int(struct json_at at, const char *key, bool required, int64_t fallback, int64_t *out,
                 struct err *err);
int json_get_double(struct json_at at, const char *key, bool required, double fallback, double *out,
                    struct err *err);
int json_get_bool(struct json_at at, const char *key, bool required, bool fallback, bool *out,
                  struct err *err);
// The string stays owned by the tree. Fallback may be NULL.
int json_get_string(struct json_at at, const char *key, bool required, const char *fallback,
                    const char **out, struct err *err);
