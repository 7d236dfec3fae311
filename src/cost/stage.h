// Operations of a layer, the embedding and the head, listed with their shapes as a stack performs
// them on one rank, and priced. The list is the explanation: reports print it, and a trace names
// the same parts.
#pragma once
#include "cost/network.h"
#include "cost/price.h"
#include "cost/shape.h"

enum cost_pass {
    COST_FORWARD,
    COST_INPUT,     // of backward: gradients of inputs
    COST_WEIGHT,    // of backward: gradients of weights
    COST_RECOMPUTE, // what a recomputation mode does again before backward
    COST_PASSES
};
enum cost_cause { // where the time of a pass goes
    CAUSE_PRODUCT,
    CAUSE_ATTENTION,
    CAUSE_KERNEL,
    CAUSE_HOST,   // the device waits for launches
    CAUSE_TENSOR, // exposed collectives of tensor parallelism
    CAUSE_CONTEXT,
    CAUSE_EXPERT, // all-to-all
    CAUSE_COUNT
};
const char *cost_cause_name(enum cost_cause cause);

enum cost_op_kind { COST_PRODUCT, COST_ATTENTION, COST_KERNEL, COST_MESSAGE };
struct cost_op {
    const char *name; // "qkv", "attention", "norm1": static text, the span names of traces
    enum cost_op_kind kind;
    int64_t m, n, k, batch;           // product
    struct price_attention attention; // attention
    enum hardware_kernel kernel;      // kernel
    double elements, bytes;           // kernel; message: bytes
    enum network_kind message;
    enum mesh_group_kind group;
    bool hidden;    // message: runs beside the compute of the same pass
    double flops;   // useful; recomputed ones are counted by the pass
    double seconds; // filled in by pricing
};
struct cost_ops {
    struct cost_op *ops;
    int count, capacity;
};
struct cost_sum {
    double seconds;            // of the pass
    double cause[CAUSE_COUNT]; // add up to it
    double flops, kernels;
};

// Appends the operations of one layer's pass; `layer` is the whole model's (windows, dense layers).
int cost_list_layer(const struct cost_shape *shape, int layer, enum cost_pass pass,
                    struct cost_ops *out, struct err *err);
int cost_list_embedding(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                        struct err *err);
// Final norm, head and loss.
int cost_list_head(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                   struct err *err);
// Prices the list in place and adds it up: compute in a row, hidden messages beside it, the host's
// launches as a lower bound.
struct cost_sum cost_price(const struct cost_shape *shape, struct cost_ops *ops);
void cost_ops_free(struct cost_ops *ops);

// The update of `parameters` on one rank (masters, moments, weights of the shard it owns), with the
// norm of `gradients`.
double cost_update_seconds(const struct cost_shape *shape, double parameters, double gradients);
