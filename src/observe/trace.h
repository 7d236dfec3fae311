// A Chrome/Perfetto trace: one row per lane (base/record.h), one box per span. The file is an array
// of events that readers also accept without its end, so a killed run leaves a usable trace.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include "base/record.h"

struct trace {
    struct file_writer file;
    double zero_seconds; // of the clock, at the left edge
    uint64_t spans, dropped;
};

int trace_open(struct trace *t, const char *path, struct err *err);
// Names the row `row` (from 1).
int trace_row(struct trace *t, int row, const char *name, struct err *err);
// Writes the lane's spans and empties it. The lane's thread must not record meanwhile.
int trace_drain(struct trace *t, int row, struct record_lane *lane, struct err *err);
int trace_close(struct trace *t, struct err *err);
