// Many runs by chance. See runs.h.
#include "base/numbers.h"
#include "simulate/runs_world.h"
#include <math.h>
#include <stdlib.h>

// Runs that fail all the time are cut so that the whole simulation ends in a minute or so.
#define MOST_FAILURES_IN_ALL 3e7

enum sample { EFFECTIVE, WALL, FAILURES, LOST, PEAK, SAMPLES };

double runs_percentile(const double *sorted, int count, double share) {
    int at = (int)ceil(share * count - 1e-9) - 1;
    return sorted[at < 0 ? 0 : at >= count ? count - 1 : at];
}

static struct runs_spread spread(double *samples, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += samples[i];
    numbers_sort(samples, (size_t)count);
    return (struct runs_spread){sum / count, runs_percentile(samples, count, 0.05),
                                runs_percentile(samples, count, 0.5),
                                runs_percentile(samples, count, 0.95)};
}

struct totals {
    double taken_out, found_spare, all_failures;
};

static void collect(struct runs_result *out, const struct runs_world *w, double *samples[SAMPLES],
                    int i, struct totals *totals) {
    samples[EFFECTIVE][i] = w->seconds[RUNS_USEFUL] / w->now;
    samples[WALL][i] = w->now;
    samples[FAILURES][i] = (double)w->failures;
    samples[LOST][i] = w->seconds[RUNS_LOST];
    samples[PEAK][i] = w->peak_repair;
    for (int c = 0; c < RUNS_CAUSES; c++) out->seconds[c] += w->seconds[c] / out->count;
    out->stragglers += (double)w->stragglers / out->count;
    out->waits += (double)w->waits / out->count;
    out->unfinished += !w->finished;
    totals->taken_out += (double)w->taken_out;
    totals->found_spare += (double)w->found_spare;
    totals->all_failures += (double)w->failures;
}

static int go(const struct runs *runs, uint64_t seed, struct runs_result *out,
              double *samples[SAMPLES], struct err *err) {
    struct runs_world world = {0};
    struct totals totals = {0};
    double most = RUNS_MOST_TIMES * runs_work_seconds(runs) + runs->start_seconds;
    int result = 0;
    for (int i = 0; i < out->count && result == 0; i++) {
        runs_world_start(&world, runs, runs_key(seed, i));
        result = runs_world_go(&world, most);
        if (result == 0) collect(out, &world, samples, i, &totals);
        if (totals.all_failures > MOST_FAILURES_IN_ALL && i + 1 < out->count)
            result = err_set(err, ERR_USAGE,
                             "run: %.3g failures in %d of %d runs: too many to simulate; expected "
                             "fewer runs, fewer failures or a shorter run",
                             totals.all_failures, i + 1, out->count);
    }
    free(world.repairs);
    if (result != 0) return err_set(err, ERR_MEMORY, "run: no memory for the nodes under repair");
    out->found_spare = totals.taken_out > 0 ? totals.found_spare / totals.taken_out : 1;
    return 0;
}

int runs_simulate(const struct runs *runs, int count, uint64_t seed, struct runs_result *out,
                  struct err *err) {
    if (runs_check(runs, err) != 0) return -1;
    if (count < 1 || count > RUNS_MOST)
        return err_set(err, ERR_USAGE, "run: runs %d: expected 1 to %d", count, RUNS_MOST);
    double *all = malloc((size_t)count * SAMPLES * sizeof *all), *samples[SAMPLES];
    if (!all) return err_set(err, ERR_MEMORY, "run: no memory for %d runs", count);
    for (int s = 0; s < SAMPLES; s++) samples[s] = all + (size_t)s * (size_t)count;
    struct runs_result result = {.count = count, .interval = runs_interval(runs)};
    int failed = go(runs, seed, &result, samples, err);
    if (failed == 0) {
        result.effective = spread(samples[EFFECTIVE], count);
        result.wall_seconds = spread(samples[WALL], count);
        result.failures = spread(samples[FAILURES], count);
        result.lost_seconds = spread(samples[LOST], count);
        result.peak_repair = spread(samples[PEAK], count);
        *out = result;
    }
    free(all);
    return failed;
}
