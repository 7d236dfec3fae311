// Clocks of the system as seconds, see clock.h.
#include "base/clock.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_seconds(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double clock_wall_seconds(void) {
    return read_clock(CLOCK_REALTIME);
}

double clock_process_cpu_seconds(void) {
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

double clock_since_exec_seconds(void) {
    // Field 22 of /proc/self/stat: start after boot in ticks of 1/100 s. The name in field 2 may
    // hold spaces and brackets, so count from the last bracket.
    FILE *file = fopen("/proc/self/stat", "r");
    if (!file) return 0;
    char line[2048];
    char *found = fgets(line, sizeof line, file);
    fclose(file);
    char *at = found ? strrchr(line, ')') : NULL;
    unsigned long long ticks = 0;
    if (!at ||
        sscanf(at + 1,
               " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &ticks) != 1)
        return 0;
    double since = read_clock(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    return since > 0 ? since : 0;
}
