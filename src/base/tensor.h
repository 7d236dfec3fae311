// A described piece of memory: what checkpoints, exporters and guards see of somebody else's state.
#pragma once
#include "base/dtype.h"
#include <stdint.h>

enum { TENSOR_MAX_DIMS = 4, TENSOR_NAME_BYTES = 128 };

struct tensor {
    char name[TENSOR_NAME_BYTES];
    enum dtype type;
    int dims;
    int64_t shape[TENSOR_MAX_DIMS]; // row-major, outermost first
    void *data;                     // NULL: described only
};

static inline int64_t tensor_elements(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->dims; i++) n *= t->shape[i];
    return n;
}
static inline uint64_t tensor_bytes(const struct tensor *t) {
    return (uint64_t)tensor_elements(t) * dtype_bytes(t->type);
}
