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

enum cost_op_kind { COST_PRODUCT, COST_ATTENTION, COST_KERNEL, COST_MESSAGE };
struct cost_op {
    const char *name; // "qkv", "attention", "norm": static text
    enum cost_op_kind kind;
    enum cost_cause cause;
    enum hardware_form form; // product: m tokens, n outputs, k inputs; attention: INPUT is backward
    enum hardware_precision precision;
    int64_t m, n, k, batch;           // product
    struct price_attention attention; // attention
    enum hardware_kernel kernel;      // kernel
    double elements;                  // kernel
    double bytes; // kernel: read and written; message: of the whole vector, see network.h; product:
                  // read and written beside its operands (sums in FP32)
    enum network_kind message;
    enum mesh_group_kind group;
    bool hidden;    // message: runs beside the compute of the same pass
    bool chunked;   // and that is the neighbouring product, chunk by chunk over the group: a gather
                    // beside the product behind it, a sum beside the one before it
    int launches;   // kernels that the host launches for it
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
    double device, host;       // seconds of the device alone, and of the host's launches
    double flops, kernels;     // kernels: launched by the host
    double hidden;             // seconds of messages beside compute
    bool blocking;             // the host waits for each kernel
};

// Appends the operations of one layer's pass; `layer` is the whole model's (windows, dense layers).
int cost_list_layer(const struct cost_shape *shape, int layer, enum cost_pass pass,
                    struct cost_ops *out, struct err *err);
int cost_list_embedding(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                        struct err *err);
// Final norm, head and loss. weft's engine makes the head's gradients with its loss, chunk by
// chunk: they stand in COST_FORWARD.
int cost_list_head(const struct cost_shape *shape, enum cost_pass pass, struct cost_ops *out,
                   struct err *err);
// Prices the list in place and adds it up: compute in a row, hidden messages beside it, the host's
// launches as a lower bound.
struct cost_sum cost_price(const struct cost_shape *shape, struct cost_ops *ops);
// Passes that one walk of the host launches (the halves of an unsplit backward pass; layers of a
// stage): the longer of device and host holds for all of them together.
struct cost_sum cost_sum_add(const struct cost_sum *a, const struct cost_sum *b);
void cost_ops_free(struct cost_ops *ops);

// The update of `parameters` on one rank (masters, moments, weights of the shard it owns), with the
// norm of `gradients`.
double cost_update_seconds(const struct cost_shape *shape, double parameters, double gradients);
