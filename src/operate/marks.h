// The processes of a run on this host, found by the mark that `weft launch` puts into the
// environment of all that it starts: WEFT_RUN=<id of the run>. Hosts that are namespaces of one
// machine are kept apart.
#pragma once
#include <stdbool.h>
#include <sys/types.h>

// Whether the process is there and no zombie: that holds nothing any more but its number.
bool marks_lives(pid_t process);

// Ends all marked processes but this one and `except` (and, `children_too`, the children of that
// one), and waits for at most `seconds` until they are gone. Returns how many there were; *left are
// still there.
int marks_kill(const char *run, pid_t except, bool children_too, double seconds, int *left);
// The same of those only that this supervisor started (WEFT_CONTROL=<address>:<port>): another one
// may be at work on the run by now.
int marks_kill_of(const char *run, const char *control, pid_t except, bool children_too,
                  double seconds, int *left);
