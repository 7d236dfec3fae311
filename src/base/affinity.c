// See affinity.h.
#include "base/affinity.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int cpus_of(pid_t process) { // 0: cannot be asked
    // The set grows until the system's mask fits: more than 1,024 cores are not unheard of.
    for (int most = 1024; most <= 1 << 20; most *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)most);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)most);
        int status = sched_getaffinity(process, bytes, set);
        int error = errno, count = status == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
        if (error != EINVAL) break;
    }
    return 0;
}

int affinity_cpus(void) {
    int count = cpus_of(0);
    if (count > 0) return count;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

static pid_t parent_of(pid_t process) {
    char path[64], line[128];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    FILE *file = fopen(path, "r");
    while (file && parent == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "PPid: %d", &parent) == 1) break;
    if (file) fclose(file);
    return parent;
}

int affinity_host_cpus(void) {
    enum { LEVELS = 2 }; // the daemon, or the keeper of a rank and then the daemon
    int most = affinity_cpus();
    pid_t process = getpid();
    for (int i = 0; i < LEVELS; i++) {
        process = parent_of(process);
        if (process <= 0) break;
        int count = cpus_of(process);
        if (count > most) most = count;
    }
    return most;
}

// A rank that may use every core of the host shares them with the host's other ranks; one with
// fewer was given them for itself.
static bool is_bound(const struct launch_environment *l) {
    return l->cpus < l->host_cpus;
}

static int local_ranks(const struct launch_environment *l) {
    if (l->local_ranks > 0) return l->local_ranks;
    return l->launcher == LAUNCHER_NONE ? 1 : l->ranks; // not told: the worst
}

enum affinity_verdict affinity_compare(const struct launch_environment *l, int threads) {
    if (is_bound(l)) {
        if (threads > l->cpus) return AFFINITY_CROWDED;
        return threads < l->cpus ? AFFINITY_IDLE : AFFINITY_FITS;
    }
    return (long)threads * local_ranks(l) > l->cpus ? AFFINITY_SHARED : AFFINITY_FITS;
}

const char *affinity_text(const struct launch_environment *l, int threads, char out[160]) {
    if (is_bound(l))
        snprintf(out, 160, "%d thread%s, bound to %d of %d cores", threads, threads == 1 ? "" : "s",
                 l->cpus, l->host_cpus);
    else
        snprintf(out, 160, "%d rank%s x %d thread%s on %d core%s", local_ranks(l),
                 local_ranks(l) == 1 ? "" : "s", threads, threads == 1 ? "" : "s", l->cpus,
                 l->cpus == 1 ? "" : "s");
    return out;
}

int affinity_threads(const struct launch_environment *l) {
    int share = is_bound(l) ? l->cpus : l->cpus / local_ranks(l);
    return share > 0 ? share : 1;
}

int affinity_check(const struct launch_environment *l, int threads, struct err *err) {
    char text[160];
    if (l->launcher == LAUNCHER_NONE || affinity_compare(l, threads) == AFFINITY_FITS) return 0;
    return err_set(err, ERR_USAGE,
                   "rank %d on %s: %s; a measurement would be of the binding. Start with \"weft "
                   "launch\" or \"mpirun --bind-to none\", and threads x ranks of a host no more "
                   "than its cores",
                   l->rank, l->host, affinity_text(l, threads, text));
}

bool affinity_wants_sleep(const struct launch_environment *l, int threads) {
    enum affinity_verdict verdict = affinity_compare(l, threads);
    return threads > 1 && (verdict == AFFINITY_CROWDED || verdict == AFFINITY_SHARED);
}
