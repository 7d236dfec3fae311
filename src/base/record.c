// Counters and spans of one thread, see record.h.
#include "base/record.h"
#include "base/clock.h"
#include <stdlib.h>

static const char *const kind_names[RECORD_KIND_COUNT] = {
    [RECORD_FORWARD] = "forward",
    [RECORD_BACKWARD] = "backward",
    [RECORD_OPTIMIZER] = "optimizer",
    [RECORD_CHECKPOINT] = "checkpoint",
    [RECORD_EVALUATE] = "evaluate",
    [RECORD_DATA_WAIT] = "data_wait",
    [RECORD_GEMM] = "gemm",
    [RECORD_ATTENTION] = "attention",
    [RECORD_KERNEL] = "kernel",
    [RECORD_SHARD_OPEN] = "shard_open",
    [RECORD_SHARD_READ] = "shard_read",
    [RECORD_PACK] = "pack",
    [RECORD_COMM_WAIT] = "comm_wait",
    [RECORD_COMM] = "comm",
};

const char *record_kind_name(enum record_kind kind) {
    return (unsigned)kind < RECORD_KIND_COUNT ? kind_names[kind] : "unknown";
}

int record_lane_open(struct record_lane *lane, const char *name, uint64_t span_capacity) {
    *lane = (struct record_lane){.name = name};
    if (span_capacity == 0) return 0;
    if (span_capacity > SIZE_MAX / 2 / sizeof *lane->spans) return -1;
    lane->spans = calloc(span_capacity, sizeof *lane->spans);
    if (!lane->spans) return -1;
    lane->span_capacity = span_capacity;
    return 0;
}

void record_lane_close(struct record_lane *lane) {
    free(lane->spans);
    *lane = (struct record_lane){.name = NULL};
}

double record_begin(const struct record_lane *lane) {
    return lane ? clock_seconds() : 0;
}

void record_end(struct record_lane *lane, enum record_kind kind, const char *name, int64_t argument,
                double begin_seconds) {
    if (!lane) return;
    double end = clock_seconds();
    lane->seconds[kind] += end - begin_seconds;
    lane->events[kind]++;
    if (!lane->spans) return;
    if (lane->span_count == lane->span_capacity) {
        lane->spans_dropped++;
        return;
    }
    lane->spans[lane->span_count++] =
        (struct record_span){name, argument, begin_seconds, end, kind};
}
