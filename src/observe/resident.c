// Reads /proc; see resident.h.
#include "observe/resident.h"
#include <stdio.h>
#include <string.h>

static uint64_t kilobytes_of(const char *path, const char *key) {
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char line[256];
    unsigned long long kilobytes = 0;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%llu", &kilobytes) == 1)
            break;
    fclose(file);
    return kilobytes;
}

uint64_t resident_pss_bytes(void) {
    return kilobytes_of("/proc/self/smaps_rollup", "Pss:") * 1024;
}

uint64_t resident_peak_pss_bytes(void) {
    uint64_t peak = kilobytes_of("/proc/self/status", "VmHWM:") * 1024;
    uint64_t now = kilobytes_of("/proc/self/status", "VmRSS:") * 1024;
    return resident_pss_bytes() + (peak > now ? peak - now : 0);
}
