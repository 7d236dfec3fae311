// `weft launch` as data: the words of an mpirun command line that starts the ranks of a run, with
// what users trip over set: root may run it, more ranks than slots are allowed, no rank is bound to
// cores, waiting ranks yield, ranks fill one host before the next.
#pragma once
#include "base/error.h"
#include "operate/hosts.h"
#include <stdbool.h>

enum launch_mpi { LAUNCH_OPEN_MPI, LAUNCH_MPICH };
// From comm_library(). -1 with a message when the program has no MPI.
int launch_mpi_of(const char *library, enum launch_mpi *out, struct err *err);
// Programs that start its ranks, in the order in which to look for them; ends with NULL.
const char *const *launch_starters(enum launch_mpi mpi);

struct launch_request {
    enum launch_mpi mpi;
    const char *starter; // path of mpirun
    const char *program; // path of weft, the same on all hosts
    int ranks;
    const struct hosts *hosts;   // NULL: this one, or the scheduler's
    bool is_root;                // Open MPI wants a word for it
    int threads;                 // of a rank, as OMP_NUM_THREADS; 0: each rank decides
    const char *const *exported; // names of variables that remote ranks need too
    int exported_count;
    char *const *words; // verb and its arguments
    int word_count;
};

struct launch_command {
    char **words; // ends with NULL
    int count;
};
int launch_command_make(struct launch_command *command, const struct launch_request *request,
                        struct err *err);
void launch_command_free(struct launch_command *command);
int launch_add(struct launch_command *command, const char *word); // -1: no memory

// The word behind `weft launch` that makes a process the keeper of a rank, see launch_report.h. A
// supervisor starts a run of one rank by it without mpirun (and WEFT_RUN in the environment).
#define LAUNCH_KEEP "--keep-rank"
