// Seconds of single operations on an accelerator: matrix products by shape, attention, and work
// bound by memory.
#pragma once
#include "cost/shape.h"

// A linear map with m tokens, n outputs and k inputs: FORWARD y = x w^T [m, n], INPUT dx = dy w
// [m, k], WEIGHT dw = dy^T x [n, k]. `batch` times, in one kernel where the device has processors
// for it. Measured products: interpolated between the nearest shapes. Otherwise tiles: the quickest
// of the accelerator's tile shapes, waves of tiles over its processors, with the start of each tile
// (fill_k), the memory's bandwidth as a lower bound, and the fixed cost of a kernel; the long
// dimension is split where tiles are few. Rows that do not begin at multiples of 16 bytes cost a
// slower kernel, see price.c.
double price_product_form(const struct accelerator *a, enum hardware_form form,
                          enum hardware_precision precision, int64_t m, int64_t n, int64_t k,
                          int64_t batch);
// [m, k] x [k, n]: the FORWARD form.
double price_product(const struct accelerator *a, enum hardware_precision precision, int64_t m,
                     int64_t n, int64_t k, int64_t batch);

struct price_attention {
    enum hardware_precision precision;
    int64_t rows, queries, keys; // keys: that exist; pairs: that are attended, per head and row
    double pairs;
    int64_t heads, kv_heads, head_dim, value_dim; // value_dim 0: head_dim
    bool causal;
    bool older;   // FlashAttention-2, where the accelerator has kernels of its own generation
    double share; // of the rate that the accelerator's kernels reach; 0: all of it
};
// Fused attention. Forward two products over the pairs, backward four (and the scores again).
double price_attention(const struct accelerator *a, const struct price_attention *shape,
                       bool backward);

// `elements` of the largest operand, `bytes` read and written in all.
double price_kernel(const struct accelerator *a, enum hardware_kernel kernel, double elements,
                    double bytes, enum hardware_precision precision);
// Seconds of moving so many bytes through the accelerator's memory.
double price_bytes(const struct accelerator *a, double bytes);
