// Inner part of the validation: sums over the rows.
#pragma once
#include "plan/validate.h"

// Fills in groups, sources, rankings and totals of validated rows.
int validate_sums(struct validation *v, struct err *err);
double validate_median(double *values, int count); // sorts them; 0 values: 0
int validate_rank(struct validation *v, struct err *err);
