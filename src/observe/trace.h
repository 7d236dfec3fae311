// A timeline file that chrome://tracing and Perfetto open: one row per lane, one bar per span,
// times in microseconds from the earliest span. A run of several ranks leaves one file per rank;
// trace_merge puts them side by side.
#pragma once
#include "base/error.h"
#include "base/record.h"
#include <stddef.h>
#include <stdint.h>

// Writes the spans of all lanes (NULL lanes are passed over). Spans that found no room are counted
// in the file's metadata.
int trace_write(const char *path, const struct record_lane *const *lanes, int count,
                struct err *err);

// The same for one rank of several: the file also says which rank, on which host, and what the
// wall clock showed at its time 0. `wall_offset_seconds`: wall clock less the clock of the spans
// (clock_wall_seconds() - clock_seconds()).
struct trace_rank {
    int rank, ranks;
    const char *host;
    double wall_offset_seconds;
};
int trace_write_rank(const char *path, const struct record_lane *const *lanes, int count,
                     const struct trace_rank *rank, struct err *err);
// "trace.json.rank3" of "trace.json"
int trace_rank_path(char *out, size_t out_bytes, const char *path, int rank, struct err *err);

// One timeline of several. Clocks of hosts differ, so the wall clocks are only where it begins: a
// collective ends on all its ranks at the same time, and the median of the differences between the
// ends of shared ones is how far a rank's clock is ahead. Shared are spans of RECORD_COMM of one
// name (kind, stream and group) and number, of kinds that wait for all members. A rank that shares
// none with those aligned so far keeps its wall clock.
struct trace_alignment {
    int rank;
    char host[256];
    double ahead_seconds; // taken off this rank's clock; 0 for the first rank
    uint64_t shared; // ends of collectives, one per pair of ranks, that it was found from; 0: none
    uint64_t spans;
};
// `out` may not be one of the inputs. Fills `found[0..count)` in ascending order of ranks.
// Errors name the file, and the line where it is not what trace_write_rank wrote.
int trace_merge(const char *out, const char *const *paths, int count, struct trace_alignment *found,
                struct err *err);
