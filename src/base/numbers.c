// See numbers.h.
#include "base/numbers.h"
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void numbers_sort(double *values, size_t count) {
    if (count > 0) qsort(values, count, sizeof *values, compare);
}

double numbers_median(double *values, size_t count) {
    if (count == 0) return 0;
    numbers_sort(values, count);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
