// The rank's buffers: every one with its bytes, kind and layer, enumerated from the model, the
// run's shape and the schedule before anything is allocated. Planned bytes are the sum over this
// list; an arena of that size is what the engine takes. Scratch that different actions use one
// after the other shares one region, whose size is the largest need.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum buffer_kind {
    BUFFER_WEIGHT,
    BUFFER_PACKED,
    BUFFER_GRADIENT,
    BUFFER_MASTER,
    BUFFER_MOMENT,
    BUFFER_ACTIVATION,
    BUFFER_SCRATCH,
    BUFFER_LOGITS,
    BUFFER_WORKSPACE,
    BUFFER_DATA,
    BUFFER_TABLE,
    BUFFER_COMM,     // what is on its way between ranks
    BUFFER_SNAPSHOT, // of the state, in memory that outlives the process: outside of the arena
    BUFFER_KIND_COUNT
};
const char *buffer_kind_name(enum buffer_kind kind);

struct buffer {
    char name[64];
    enum buffer_kind kind;
    int layer;      // -1 outside the layers
    int slot;       // micro-batch in flight; -1: one for all
    uint64_t bytes; // rounded up to the arena's alignment
    uint64_t offset_bytes;
};

struct memory_plan {
    struct buffer *buffers;
    int count, capacity;
    uint64_t total_bytes;
    uint64_t kind_bytes[BUFFER_KIND_COUNT];
    bool totals_only; // buffers are counted and added up, not listed: for who looks at thousands
};

// Appends a buffer behind the ones there; returns its index or -1 when memory is short.
int memory_plan_add(struct memory_plan *plan, enum buffer_kind kind, int layer, int slot,
                    uint64_t bytes, const char *format, ...) __attribute__((format(printf, 6, 7)));
// Of the region that holds them: all but snapshots, which are the last.
uint64_t memory_plan_region_bytes(const struct memory_plan *plan);
uint64_t memory_plan_kind_bytes(const struct memory_plan *plan, enum buffer_kind kind);
void memory_plan_free(struct memory_plan *plan);
