// The machine's own error counters (silent data corruption, layer 4): EDAC of the processor's
// memory (/sys/devices/system/edac/mc/mc*/{ce_count,ue_count}), ECC counts of NVIDIA GPUs through
// NVML, loaded when it is there, and XID messages of the kernel log.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct counters_places { // for tests; NULL: the machine's own
    const char *edac_folder, *nvml_library, *kernel_log;
};
struct counters {
    bool has_edac, has_gpu, has_log; // was read
    // Why GPUs, or the kernel log, are there and were not read; "": they were, or are not there.
    char gpu_unread[160], log_unread[160];
    int64_t corrected, uncorrected; // memory errors since the machine was started
    int64_t gpu_corrected, gpu_uncorrected;
    // XIDs that the kernel log holds; places count in the log, which forgets its oldest lines.
    int64_t xid_count;
    int last_xid, serious_xid;           // newest ones; 0: none
    int64_t last_xid_at, serious_xid_at; // their places; -1: none
    char last_xid_text[160], serious_text[160];
};
// What is not there, or cannot be read (now, or by this user), has its `has_` false: one GPU that
// does not answer leaves out all, for a sum without it would say nothing. What is there and cannot
// be understood is an error that names it. Where there is a GPU this takes up to a second.
int counters_read(const struct counters_places *places, struct counters *out, struct err *err);
// What is worse than before: 0 nothing, 1 worth a record (corrected errors, other XIDs), 2 the host
// should go: uncorrected errors, XID 48 (double-bit ECC), 63 and 64 (a row was remapped, or could
// not be), 74 (NVLink), 79 (fallen off the bus), 94 and 95 (contained and uncontained ECC).
// Only what was read both times is compared. `why`: one sentence.
int counters_compare(const struct counters *before, const struct counters *now, char why[300]);
// Takes over into `known` what was read now, the larger of both counts: an accelerator that is away
// for a while has not begun anew when it is back.
void counters_learn(struct counters *known, const struct counters *now);

// A thread that reads them every `seconds` and keeps what got worse. Opening reads them once. What
// cannot be read is said in the log, once each.
struct counters_watch;
int counters_watch_open(struct counters_watch **out, const struct counters_places *places,
                        double seconds, struct err *err);
void counters_watch_close(struct counters_watch *w); // NULL is allowed
// The worst change since the last call, 0 as above when there is none. Does not wait.
int counters_watch_take(struct counters_watch *w, char why[300]);
