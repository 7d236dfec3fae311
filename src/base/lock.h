// Locks on whole files (flock), between processes and, where the file system hands them on, between
// hosts. A lock ends with the descriptor, or with the process. A server of files may notice the end
// of a host late: NFS keeps its locks until the lease is over, 90 s as a rule.
#pragma once
#include <stdbool.h>

// Tries for `seconds`, ten times a second. `wanted` (NULL: always) says whether it is still of use.
// 1: locked; 0: somebody else holds it; -1: it cannot be locked (errno).
int lock_take(int file, double seconds, bool (*wanted)(const void *context), const void *context);
