// What an mpirun that was killed leaves on its host. Open MPI keeps a folder for each mpirun
// (TMPDIR/ompi.HOST.UID/pid.N), and its ranks a segment of shared memory each
// (/dev/shm/vader_segment.HOST.UID.JOB.RANK); mpirun takes both away unless it is killed itself.
#pragma once
#include <sys/types.h>

// Removes them for the process `starter`, unless it lives. Nothing there is no fault.
void leftovers_remove(const char *temporary_folder, const char *memory_folder, pid_t starter);
