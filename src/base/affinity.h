// Cores against threads. A launcher may bind a rank to fewer cores than it has threads (mpirun
// does so by default), and ranks of one host share its cores.
#pragma once
#include "base/error.h"
#include "base/launch.h"

int affinity_cpus(void); // that the calling thread may run on, at least 1
// Those of the job on this host: of the launcher's daemon that started this process, which is not
// bound as its ranks are, but keeps to what a container or a scheduler gave to all of them.
int affinity_host_cpus(void);

enum affinity_verdict {
    AFFINITY_FITS,
    AFFINITY_CROWDED, // bound to fewer cores than threads
    AFFINITY_IDLE,    // bound to more cores than threads
    AFFINITY_SHARED,  // not bound, but the ranks of the host have more threads than it has cores
};
enum affinity_verdict affinity_compare(const struct launch_environment *launched, int threads);
// "2 threads on 1 core (bound)"; the result is `out`.
const char *affinity_text(const struct launch_environment *launched, int threads, char out[160]);

// Compute threads of a rank when nobody said how many: its share of the host's cores, at least 1.
int affinity_threads(const struct launch_environment *launched);

// For measurements: refuses (ERR_USAGE) what a run only warns of. 0 without a launcher.
int affinity_check(const struct launch_environment *launched, int threads, struct err *err);

// Whether waiting threads should sleep rather than spin, see cli/threads.c.
bool affinity_wants_sleep(const struct launch_environment *launched, int threads);
