// The stacks of all threads of running processes, with function names, and files and lines where
// the program holds them. Works on processes that compute, hang, or are stopped (which they stay),
// from a process of its own with a time limit: one that cannot be looked at costs nothing else.
//
//   process 4711 (weft), T (stopped), 3 threads
//   thread 4711 (weft), waits in do_poll
//     #0  0x7f01c2d3a4b5 __poll+0x47 (libc.so.6)
//     #1  0x55d0c8a1b2c3 comm_wait+0x81 at src/comm/stream.c:201
//   threads 4712, 4713 (weft), as one
//   ...
//
// Allowed to root, to the owner where the system does not restrict ptrace, and to everyone for
// processes that have called prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY).
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <sys/types.h>

struct stacks {     // a look under way
    int descriptor; // becomes readable, at last with an end of file
    pid_t child;
};
// Returns at once. Every process gets `seconds`, all of them together a second more.
int stacks_begin(struct stacks *s, const int *pids, int count, double seconds, struct err *err);
// Adds what is there to `out` without waiting. True: that was all.
bool stacks_read(struct stacks *s, struct text *out);
void stacks_end(struct stacks *s); // gives up what is not done

// The same for callers that can wait. What cannot be seen is said in the text.
int stacks_text(const int *pids, int count, double seconds, struct text *out, struct err *err);
