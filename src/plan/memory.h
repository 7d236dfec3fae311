// Bytes of a rank, item by item. For the stack "weft" this is the engine's own enumeration
// (memory/rank.h), byte for byte what engine_open takes; for others the same items by what the
// stack keeps.
#pragma once
#include "plan/job.h"

enum plan_memory_item {
    PLAN_WEIGHTS,
    PLAN_GRADIENTS,
    PLAN_MASTERS,
    PLAN_MOMENTS,
    PLAN_ACTIVATIONS, // kept between forward and backward, all micro-batches in flight
    PLAN_WORKING,     // of one layer while it is worked on: results that are not kept, gradients
    PLAN_LOGITS,      // and what the loss needs
    PLAN_MESSAGES,    // communication buffers, gathered weights, gradients on their way
    PLAN_WORKSPACE,   // of kernels; packed copies of weights; tables; batches
    PLAN_SNAPSHOTS, // of the state, in memory that outlives the process
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

// What many jobs share: the list of a model's parameters, the device whose sizes are asked. For one
// thread.
struct plan_memory_cache;
struct plan_memory_cache *plan_memory_cache_open(struct err *err);
void plan_memory_cache_close(struct plan_memory_cache *cache);

// Of every pipeline rank (room for pp of them), its fullest tensor and data rank. `pipeline`: the
// job's, where the caller has it open; NULL: opened for the call. `cache` may be NULL.
int plan_memory_with(const struct job *job, const struct pipeline *pipeline,
                     struct plan_memory_cache *cache, struct plan_memory *ranks, struct err *err);
int plan_memory(const struct job *job, struct plan_memory *ranks, struct err *err);
// The fullest of `count`: index.
int plan_memory_fullest(const struct plan_memory *ranks, int count);
// At most the total of the fullest rank, in microseconds: what a search looks at first. Counts
// matrices, their states and what the first and last stage certainly keep.
double plan_memory_bound(const struct job *job);
// Closer, with the places that the job's lists have; NULL: as above.
double plan_memory_bound_with(const struct job *job, const struct pipeline *lists);
