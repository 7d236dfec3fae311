// Reads what a launcher (mpirun, MPICH's mpiexec, srun) left in the environment.
//
// srun without a PMI starts N processes each of which takes itself for the only one; so does the
// launcher of another MPI. All would train the whole run side by side. launched_check finds that
// from the environment alone, before MPI is touched, because MPI_Init of some builds ends such a
// process with a page of text.
#pragma once
#include "base/error.h"
#include "base/launch.h"

// getenv of the caller; tests have their own.
typedef const char *launched_lookup(const char *name, void *context);

// Reads variables, host name and affinity. Numbers that are none, or make no sense together, are
// errors (ERR_USAGE) that name the variable.
int launched_read(struct launch_environment *out, launched_lookup *lookup, void *context,
                  struct err *err);

// Can a program built with this MPI ("Open MPI 4.1.4", "MPICH 4.0.2", "none") find its peers? The
// message says what was found, and how to start instead.
int launched_check(const struct launch_environment *launched, const char *mpi, struct err *err);

// Of N processes that all find the same fault one should speak.
static inline bool launched_speaks(const struct launch_environment *launched) {
    return launched->rank <= 0;
}
