// A machine that was measured (plan/measure.h), written down as a cluster, and as a run of so many
// ranks and threads finds it.
#pragma once
#include "base/error.h"
#include "hardware/hardware.h"
#include <stdint.h>

// What the figures of a measurement depend on. The digest is that of processor, cores and
// instruction set: not of the host's name, so that equal nodes share a file.
struct machine_identity {
    char host[256], date[32], processor[128], isa[96];
    int cores;
    char digest[17];
};
// `isa`: as the device names itself, without its threads. Never fails: what the system does not
// tell is "unknown".
void machine_identify(int cores, const char *device_name, struct machine_identity *out);

// False: `measured` is of another machine; `out` says so in one line, with both digests.
bool machine_same(const struct cluster *measured, const struct machine_identity *here, char *out,
                  size_t out_bytes);

// The measured machine as `ranks` ranks of `threads` threads each: only the points of the crew that
// is nearest to them, ranks that share cores slowed down accordingly. What the cluster lacks is
// told in `lacks` ("" : nothing): such a figure is assumed.
struct machine {
    struct cluster cluster; // its lists belong to this structure
    int crew_ranks, crew_threads;
    double slowdown; // of computing, because there are more threads than cores
    char lacks[160];
};
int machine_select(const struct cluster *measured, int ranks, int threads, struct machine *out,
                   struct err *err);
// Takes the slowdown back: whoever simulates the ranks lets them take turns (job.processors).
void machine_share(struct machine *machine);
void machine_free(struct machine *machine);
