// A timeline file that chrome://tracing and Perfetto open: one row per lane, one bar per span,
// times in microseconds from the earliest span.
#pragma once
#include "base/error.h"
#include "base/record.h"

// Writes the spans of all lanes (NULL lanes are passed over). Spans that found no room are counted
// in the file's metadata.
int trace_write(const char *path, const struct record_lane *const *lanes, int count,
                struct err *err);
