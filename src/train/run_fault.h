// Faults on purpose in a run (guard/fault.h): those of the configuration, and those that the
// supervisor orders. Each rank carries out its own; a run without any pays nothing.
#pragma once
#include "base/error.h"
#include <stdint.h>

struct run;
struct run_faults;

// What the configuration asks for; said once by the first rank. A rank that the run does not have
// is an error in its first launch.
int run_fault_open(struct run *run, struct err *err);
void run_fault_close(struct run *run);
// When a step that will be computed begins, behind everything that may skip it, inside of what
// counts as its time.
void run_fault_step(struct run *run);
// Before each pass over a step's micro-batches, replays too: faults of what is computed. Those that
// last come again in every pass.
void run_fault_pass(struct run *run);
// Behind a step: its time without waiting for other ranks, as measured; what slow multiplies.
void run_fault_computed(struct run *run, double seconds);
// When a save begins: of the state behind step run->step.
void run_fault_save(struct run *run);
