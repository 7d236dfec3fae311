// The machine's own error counters (silent data corruption, layer 4): EDAC of the processor's
// memory (/sys/devices/system/edac/mc/mc*/{ce_count,ue_count}), ECC counts of NVIDIA GPUs through
// NVML, loaded when it is there, and XID messages of the kernel log (48, 63, 74, 79, 94 ...).
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct counters_places { // for tests; NULL: the machine's own
    const char *edac_folder, *nvml_library, *kernel_log;
};
struct counters {
    bool has_edac, has_gpu;
    int64_t corrected, uncorrected; // memory errors
    int64_t gpu_corrected, gpu_uncorrected;
    int64_t xid_count;
    int last_xid;
    char last_xid_text[160];
};
int counters_read(const struct counters_places *places, struct counters *out, struct err *err);
// What is worse than before: 0 nothing, 1 worth a record (corrected errors), 2 the host should go
// (uncorrected errors, XID 48, 63, 74, 79, 94, 95). `why`: one sentence.
int counters_compare(const struct counters *before, const struct counters *now, char why[300]);
