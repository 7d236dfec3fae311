// Seconds of single operations on an accelerator: matrix products by shape, attention, and work
// bound by memory.
#pragma once
#include "cost/shape.h"

// [m, k] x [k, n], `batch` times. Measured products: interpolated between the nearest shapes.
// Otherwise tiles: the quickest of the accelerator's tile shapes, waves of tiles over its
// processors, with the start of each tile (fill_k), the memory's bandwidth as a lower bound, and
// the fixed cost of a kernel. Dimensions off the multiples that the units want cost a copy or a
// slower kernel, see price.c.
double price_product(const struct accelerator *a, enum hardware_precision precision, int64_t m,
                     int64_t n, int64_t k, int64_t batch);

struct price_attention {
    enum hardware_precision precision;
    int64_t rows, queries, keys; // keys: that exist; pairs: that are attended, per head and row
    double pairs;
    int64_t heads, kv_heads, head_dim, value_dim; // value_dim 0: head_dim
    bool causal;
};
double price_attention(const struct accelerator *a, const struct price_attention *shape,
                       bool backward);

// `elements` of the largest operand, `bytes` read and written in all.
double price_kernel(const struct accelerator *a, enum hardware_kernel kernel, double elements,
                    double bytes, enum hardware_precision precision);
