// Order among measured numbers.
#pragma once
#include <stddef.h>

void numbers_sort(double *values, size_t count);
// The middle one, of an even number the mean of the two; sorts them. Of none: 0.
double numbers_median(double *values, size_t count);
