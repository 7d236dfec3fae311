// See launched.h.
//
// Threads that wait between two parallel loops either spin or sleep. libgomp spins some
// milliseconds by default, which is right when every thread has a core: the next loop then begins
// at once. With more threads than cores a spinning thread holds the core that the thread with work
// needs, and each loop lasts as long as a time slice of the scheduler: two ranks of two threads on
// two cores were seen to train more than five times slower. libgomp knows how many threads it has
// itself, but nothing of the other ranks on the host, so weft decides. It reads OMP_WAIT_POLICY
// while the program is loaded and offers no call to change it later; hence the second start. Where
// cores are enough nothing is changed; a process that shares them with other programs is better off
// with OMP_WAIT_POLICY=passive too, but that is for its user to know.
#include "cli/launched.h"
#include "base/affinity.h"
#include "operate/launched.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char guard[] = "WEFT_SETTLED"; // the second start must not cause a third
static char **arguments;

static const char *lookup(const char *name, void *context) {
    (void)context;
    return getenv(name);
}

int cli_launched(struct launch_environment *out, bool single, struct err *err) {
    if (!single) return launched_read(out, lookup, NULL, err);
    *out = (struct launch_environment){.ranks = 1, .local_rank = -1, .variable = ""};
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        snprintf(out->host, sizeof out->host, "localhost");
    out->cpus = affinity_cpus();
    out->host_cpus = affinity_host_cpus();
    return 0;
}

void cli_keep_arguments(int argc, char **argv) {
    // Verbs sort their words in place, so the pointers are copied.
    arguments = calloc((size_t)argc + 1, sizeof *arguments);
    if (arguments) memcpy(arguments, argv, sizeof *argv * (size_t)argc);
}

void cli_execute(char *const *words) {
    // By its own path, so that lists of processes show its name; the link in /proc where the file
    // was replaced meanwhile.
    char path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);
    if (size > 0) {
        path[size] = 0;
        execv(path, words);
    }
    execv("/proc/self/exe", words);
}

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && value[0];
}

int cli_threads(const struct launch_environment *launched, int threads) {
    if (threads > 0) return threads;
    if (launched->launcher != LAUNCHER_NONE && !is_set("OMP_NUM_THREADS"))
        return affinity_threads(launched);
    return omp_get_max_threads();
}

void cli_settle_threads(const struct launch_environment *launched, int threads) {
    int count = cli_threads(launched, threads);
    bool again = is_set(guard);
    unsetenv(guard); // not for the programs that this one starts
    if (threads == 0) omp_set_num_threads(count);
    // Open MPI's ranks spin while they wait inside MPI (in opening and closing, too) unless told.
    if (launched->launcher != LAUNCHER_NONE) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (again || !arguments || is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") ||
        !affinity_wants_sleep(launched, count))
        return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0 || setenv(guard, "1", 1) != 0) return;
    cli_execute(arguments);
    unsetenv(guard); // where that failed the run is slower, and otherwise the same
}
