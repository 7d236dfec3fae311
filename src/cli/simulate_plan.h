// A run taken from what `weft plan --json` printed.
#pragma once
#include "base/error.h"
#include "simulate/runs.h"

// Nodes, step time and, where they stand there, tokens, price, failures and length; the parameters
// of the model (0: not said).
int simulate_plan_read(const char *path, struct runs *runs, double *params, struct err *err);
