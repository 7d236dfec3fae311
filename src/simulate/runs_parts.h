// What the parts of simulate/runs share.
#pragma once
#include "simulate/runs.h"

#define DAY_SECONDS 86400.0

// Detection, restart and load together.
double runs_recovery_seconds(const struct runs *runs);
// Of sorted values the least that a share of them do not exceed.
double runs_percentile(const double *sorted, int count, double share);
