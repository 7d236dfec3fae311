// A YAML file as a flat list of scalar leaves with dotted keys and their places: what a
// configuration reader needs.
//   model:            ->  { "model.layers", "12", line 2 }
//     layers: 12
// Sequences of scalars become one leaf whose text is "a,b,c"; sequences of maps become keys with an
// index
// ("data.sets.0.weight"). Duplicate keys, tabs, anchors loops and anything else YAML forbids are
// refused with file and line.
#pragma once
#include "base/error.h"
#include <stddef.h>

struct yaml_leaf {
    char *key;
    char *text; // scalar as written, quotes removed
    int line;   // from 1
    int is_null, is_quoted, is_list;
};
struct yaml_leaves {
    struct yaml_leaf *leaf;
    size_t count;
};
int yaml_read(const char *path, struct yaml_leaves *out, struct err *err);
int yaml_parse(const char *text, size_t bytes, const char *name, struct yaml_leaves *out,
               struct err *err);
void yaml_free(struct yaml_leaves *leaves);
