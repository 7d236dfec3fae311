// This process in a launch: what the environment says, and how many threads that leaves it.
#pragma once
#include "base/error.h"
#include "base/launch.h"
#include <stdbool.h>

// What the launcher left in the environment (operate/launched.h). `single`: the user says that
// this process is alone, whatever stands there.
int cli_launched(struct launch_environment *out, bool single, struct err *err);

// Becomes this program anew, with other words. Returns only when that failed (errno).
void cli_execute(char *const *words);

// Keeps a copy of the program's arguments, for cli_settle_threads.
void cli_keep_arguments(int argc, char **argv);

// To be called before the first parallel loop, with the number of compute threads that the user
// asked for (0: not said). Under a launcher a rank without a number takes its share of the cores.
// When the ranks of a host have more threads than it has cores, the program starts itself once
// more, so that waiting threads sleep; then this call does not return.
void cli_settle_threads(const struct launch_environment *launched, int threads);
// What a parallel loop of this process will have when the user asked for `threads` (0: not said).
int cli_threads(const struct launch_environment *launched, int threads);
