// How many spare nodes a run needs. See runs.h.
#include "base/numbers.h"
#include "simulate/runs_world.h"
#include <math.h>
#include <stdlib.h>

double runs_repair_load(const struct runs *runs) {
    double per_node_day =
        runs->failures_per_node_day * runs->replaced_share + runs->stragglers_per_node_day;
    return runs->nodes * per_node_day / DAY_SECONDS * runs->repair_seconds;
}

// Terms in logarithms: e^-mean is 0 in floating point beyond a mean of 745.
double runs_poisson_up_to(double mean, int count) {
    if (count < 0) return 0;
    if (mean <= 0) return 1;
    double sum = 0;
    for (int k = 0; k <= count; k++) sum += exp(k * log(mean) - mean - lgamma(k + 1.0));
    return fmin(1, sum);
}

int runs_spares_per_failure(const struct runs *runs, double percentile) {
    double mean = runs_repair_load(runs), sum = 0;
    if (runs->failures_per_node_day <= 0 && runs->stragglers_per_node_day <= 0) return 0;
    for (int k = 0; k < runs->nodes; k++) {
        sum += mean > 0 ? exp(k * log(mean) - mean - lgamma(k + 1.0)) : k == 0;
        if (sum >= percentile) return k + 1; // with k + 1 spares, k may be away
    }
    return -1;
}

int runs_spares_per_run(const struct runs *runs, double percentile, int count, uint64_t seed,
                        int *spares, struct err *err) {
    if (runs_check(runs, err) != 0) return -1;
    if (count < 1 || count > RUNS_MOST)
        return err_set(err, ERR_USAGE, "run: runs %d: expected 1 to %d", count, RUNS_MOST);
    double *peaks = malloc((size_t)count * sizeof *peaks);
    if (!peaks) return err_set(err, ERR_MEMORY, "run: no memory for %d runs", count);
    struct runs plenty = *runs;
    plenty.spares = runs->nodes;
    plenty.without_spare = RUNS_WAIT;
    struct runs_world world = {0};
    int result = 0;
    for (int i = 0; i < count && result == 0; i++) {
        runs_world_start(&world, &plenty, runs_key(seed, i));
        result = runs_world_go(&world, RUNS_MOST_TIMES * runs_work_seconds(runs));
        peaks[i] = world.peak_repair;
    }
    free(world.repairs);
    if (result == 0) {
        numbers_sort(peaks, (size_t)count);
        *spares = (int)runs_percentile(peaks, count, percentile);
    } else
        err_set(err, ERR_MEMORY, "run: no memory for the nodes under repair");
    free(peaks);
    return result;
}
