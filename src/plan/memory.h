// Bytes of a rank, item by item. For the stack "weft" this is the engine's own enumeration
// (memory/rank.h); for others the same items by what the stack keeps.
#pragma once
#include "plan/job.h"

enum plan_memory_item {
    PLAN_WEIGHTS,
    PLAN_GRADIENTS,
    PLAN_MASTERS,
    PLAN_MOMENTS,
    PLAN_ACTIVATIONS, // kept between forward and backward, all micro-batches in flight
    PLAN_LOGITS,      // and what the loss needs
    PLAN_MESSAGES,    // communication buffers, gathered weights, gradients on their way
    PLAN_WORKSPACE,   // of kernels; packed copies of weights; tables
    PLAN_FRAGMENTATION,
    PLAN_CONTEXT, // driver and libraries
    PLAN_ITEMS
};
const char *plan_memory_item_name(enum plan_memory_item item);
struct plan_memory {
    int pipeline_rank;
    int in_flight; // micro-batches whose activations are held at once, see pipeline_in_flight
    double bytes[PLAN_ITEMS];
    double total;     // what the device must have: all items
    double allocated; // live tensors at the peak: without fragmentation and context
};
// Of every pipeline rank (room for pp of them), its fullest tensor and data rank.
int plan_memory(const struct job *job, struct plan_memory *ranks, struct err *err);
