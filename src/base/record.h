// What a step leaves behind for later diagnosis: seconds by kind, and, when a trace is wanted, one
// span per event. A lane belongs to one thread (single writer, no atomics); whoever does timed work
// holds a pointer to its lane. Cheap enough to be always compiled in. `observe/` turns it into
// figures and trace files.
#pragma once
#include <stdint.h>

enum record_kind {
    RECORD_FORWARD,
    RECORD_BACKWARD,
    RECORD_OPTIMIZER,
    RECORD_CHECKPOINT,
    RECORD_EVALUATE,
    RECORD_DATA_WAIT, // the compute thread stood still for a micro-batch
    RECORD_GEMM,
    RECORD_ATTENTION,
    RECORD_KERNEL, // all other device work
    RECORD_SHARD_OPEN,
    RECORD_SHARD_READ,
    RECORD_PACK,      // weight copies in the GEMM library's layout
    RECORD_COMM_WAIT, // the compute thread stood still for a message (exposed)
    RECORD_COMM,      // an operation in flight (communication thread)
    RECORD_KIND_COUNT
};
const char *record_kind_name(enum record_kind kind);

struct record_span {
    const char *name; // static text
    int64_t argument; // layer, micro-batch, step; -1: none
    double begin_seconds, end_seconds;
    enum record_kind kind;
};

struct record_lane {
    const char *name;
    double seconds[RECORD_KIND_COUNT];
    uint64_t events[RECORD_KIND_COUNT];
    struct record_span *spans; // NULL: no trace wanted
    uint64_t span_count, span_capacity, spans_dropped;
};

// A lane with room for `span_capacity` spans (0: counters only). 0 or -1 when memory is short.
int record_lane_open(struct record_lane *lane, const char *name, uint64_t span_capacity);
void record_lane_close(struct record_lane *lane);

// Both take a NULL lane.
double record_begin(const struct record_lane *lane);
void record_end(struct record_lane *lane, enum record_kind kind, const char *name, int64_t argument,
                double begin_seconds);
