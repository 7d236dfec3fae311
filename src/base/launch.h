// What the launcher told this process about the run that it belongs to: plain data. `cli/` reads
// it from the environment (operate/launched.h) and hands it down.
#pragma once
#include <stdbool.h>

enum launcher {
    LAUNCHER_NONE, // started by hand: one process, which never touches MPI
    LAUNCHER_OPEN_MPI,
    LAUNCHER_PMIX,  // srun --mpi=pmix, prterun
    LAUNCHER_PMI,   // MPICH's mpiexec, srun --mpi=pmi2
    LAUNCHER_SLURM, // a step of srun that offers neither
};

struct launch_environment {
    enum launcher launcher;
    int ranks, rank;             // 1 and 0 without a launcher; rank -1: not told
    int local_ranks, local_rank; // on this host; 0 and -1: not told
    int allocated_tasks;         // of a Slurm allocation in which no launcher ran; 0: none
    const char *variable;        // that says how many ranks, "SLURM_NTASKS"; "" without a launcher
    char host[256];
    int cpus;      // that this process may run on (affinity)
    int host_cpus; // that the job may run on here
};
