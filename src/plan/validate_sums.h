// Inner part of the validation: sums over the rows.
#pragma once
#include "plan/validate.h"

// Fills in groups, sources, rankings and totals of validated rows.
int validate_sums(struct validation *v, struct err *err);
int validate_rank(struct validation *v, struct err *err);
