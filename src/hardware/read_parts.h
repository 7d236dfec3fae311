// Reading a hardware file: entries (read.c), the values of their keys (read_values.c) and lists of
// measurements (read_lists.c).
#pragma once
#include "hardware/parts.h"

struct file_reader {
    struct catalogue *catalogue;
    const struct yaml_leaves *leaves;
    const char *name; // of the file
    const char *kept; // the same, living as long as the catalogue: the source of plain figures
    bool *used;       // leaves that have been read
    struct err *err;
};

// "FILE: line N: KEY: WHAT"; -1.
int read_refuse(const struct file_reader *r, const struct yaml_leaf *leaf, const char *what);
// Leaf `at` into the field of an entry. `rest`: what stands behind the field's key, "" or ".value".
int read_field(const struct file_reader *r, size_t at, const struct field *field, const char *rest,
               char *entry);
int read_list(const struct file_reader *r, const struct yaml_leaf *leaf, const struct field *field,
              char *entry);
