// Curves of plans: scaling, cost, checkpoint interval. See draw.h.
#include "plan/draw.h"
#include "plan/draw_chart.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- scaling ------------------------------------------------------------------------------------

int draw_scaling_worlds(const struct job *job, int worlds[DRAW_SCALING_MOST]) {
    int world = mesh_ranks(&job->layout.mesh), count = 0;
    int64_t replica = world / job->layout.mesh.size[MESH_DP], least = replica;
    // at most as many as there is room for, the largest four times the job's
    while (least * (1 << (DRAW_SCALING_MOST - 1)) < 4 * (int64_t)world) least *= 2;
    for (int64_t w = least; w <= 4 * (int64_t)world && w <= INT32_MAX && count < DRAW_SCALING_MOST;
         w *= 2)
        worlds[count++] = (int)w;
    return count;
}

int draw_scaling(const struct job *job, enum scaling_kind kind, const char *title, struct text *out,
                 struct err *err) {
    int worlds[DRAW_SCALING_MOST], count = draw_scaling_worlds(job, worlds);
    struct scaling_point points[DRAW_SCALING_MOST];
    double x[DRAW_SCALING_MOST], y[SCALING_TUNINGS][DRAW_SCALING_MOST], base = 0;
    struct draw_series series[SCALING_TUNINGS];
    struct draw_tick ticks[DRAW_SCALING_MOST];
    char labels[DRAW_SCALING_MOST][16];
    for (int i = 0; i < count; i++) {
        x[i] = worlds[i];
        snprintf(labels[i], sizeof labels[i], "%d", worlds[i]);
        ticks[i] = (struct draw_tick){x[i], labels[i]};
    }
    for (int t = 0; t < SCALING_TUNINGS; t++) {
        enum scaling_tuning tuning = (enum scaling_tuning)t;
        if (estimate_scaling(job, kind, tuning, worlds, count, points, err) != 0) return -1;
        for (int i = 0; i < count; i++) {
            double each = points[i].possible ? points[i].tokens_per_second_per_accelerator : NAN;
            if (base <= 0 && isfinite(each)) base = each;
            y[t][i] = each / base;
        }
        series[t] = (struct draw_series){.name = scaling_tuning_name(tuning),
                                         .x = x,
                                         .y = y[t],
                                         .count = count,
                                         .mark = t == SCALING_CHOSEN ? DRAW_LINE : DRAW_DASHED,
                                         .colour = t};
    }
    char subtitle[200];
    const int *size = job->layout.mesh.size;
    snprintf(subtitle, sizeof subtitle,
             "tp %d, pp %d, cp %d; batch of %s kept (%s scaling); tokens/s of an accelerator",
             size[MESH_TP], size[MESH_PP], size[MESH_CP],
             kind == SCALING_WEAK ? "a data rank" : "the step",
             kind == SCALING_WEAK ? "weak" : "strong");
    const struct draw_chart chart = {.title = title,
                                     .subtitle = subtitle,
                                     .x_label = "accelerators",
                                     .y_label = "of the smallest world's",
                                     .x_log = true,
                                     .y_share = true,
                                     .y_least = 0,
                                     .y_most = 1.1,
                                     .ticks = ticks,
                                     .tick_count = count,
                                     .series = series,
                                     .count = SCALING_TUNINGS};
    return draw_chart(&chart, out, err);
}

// ---- cost ---------------------------------------------------------------------------------------

int draw_cost(const struct draw_layout *layouts, int count, const char *unit, const char *title,
              struct text *out, struct err *err) {
    double *all = calloc((size_t)count + 1, 4 * sizeof *all);
    if (!all) return err_set(err, ERR_MEMORY, "no memory for the picture");
    double *fit_x = all, *fit_y = all + count, *over_x = all + 2 * count, *over_y = all + 3 * count;
    int fits = 0, over = 0;
    for (int i = 1; i < count; i++)
        if (layouts[i].fits)
            fit_x[fits] = layouts[i].mfu, fit_y[fits++] = layouts[i].cost;
        else
            over_x[over] = layouts[i].mfu, over_y[over++] = layouts[i].cost;
    const struct draw_series series[] = {
        {"layouts that fit", fit_x, fit_y, NULL, NULL, fits, DRAW_DOTS, 5},
        {over ? "too large for memory" : "", over_x, over_y, NULL, NULL, over, DRAW_DOTS, 7},
        {"the plan", &layouts[0].mfu, &layouts[0].cost, NULL, NULL, count > 0, DRAW_DOTS, 1}};
    char subtitle[200];
    snprintf(subtitle, sizeof subtitle, "the plan: %s", count > 0 ? layouts[0].name : "");
    const struct draw_chart chart = {.title = title,
                                     .subtitle = subtitle,
                                     .x_label = "MFU (full attention)",
                                     .x_share = true,
                                     .y_label = unit,
                                     .series = series,
                                     .count = 3};
    int result = draw_chart(&chart, out, err);
    free(all);
    return result;
}

// ---- checkpoint interval ------------------------------------------------------------------------

enum { CURVE = 120, POINTS = 9, CURVES = 3 };

static const struct draw_tick interval_ticks[] = {
    {1, "1 s"},       {10, "10 s"},    {60, "1 min"},   {300, "5 min"},
    {1200, "20 min"}, {3600, "1 h"},   {10800, "3 h"},  {43200, "12 h"},
    {86400, "1 d"},   {259200, "3 d"}, {604800, "1 w"}, {2592000, "30 d"}};

static double effective(const struct runs *runs, double interval) {
    struct runs at = *runs;
    struct runs_closed closed;
    at.interval_seconds = interval;
    runs_closed(&at, &closed);
    // persisting raises an interval: no point below it
    return closed.interval.seconds > interval + runs->step_seconds ? NAN : closed.effective;
}

static int simulate_points(const struct runs *runs, int count, uint64_t seed, double least,
                           double most, double values[4][POINTS], struct err *err) {
    for (int i = 0; i < POINTS; i++) {
        struct runs at = *runs;
        struct runs_result result;
        at.interval_seconds = least * pow(most / least, i / (POINTS - 1.0));
        if (runs_simulate(&at, count, seed, &result, err) != 0) return -1;
        values[0][i] = result.interval.seconds;
        values[1][i] = result.effective.mean;
        values[2][i] = result.effective.p5;
        values[3][i] = result.effective.p95;
    }
    return 0;
}

int draw_interval(const struct runs *runs, int count, uint64_t seed, const char *title,
                  struct text *out, struct err *err) {
    double x[CURVE], y[CURVES][CURVE], points[4][POINTS];
    double rates[CURVES] = {runs->failures_per_node_day, RUNS_FAILURES_PER_NODE_DAY,
                            RUNS_FAILURES_PER_ACCELERATOR_WEEK * runs->per_node / 7};
    struct runs_closed closed;
    if (runs_check(runs, err) != 0) return -1;
    runs_closed(runs, &closed);
    double work = runs_work_seconds(runs);
    double least = fmax(runs->step_seconds, fmax(1, closed.interval.seconds / 30));
    double most = fmin(work, fmax(closed.interval.seconds * 60, 60 * least));
    if (!(most > least)) most = least * 2;
    for (int i = 0; i < CURVE; i++) {
        x[i] = least * pow(most / least, i / (CURVE - 1.0));
        for (int k = 0; k < CURVES; k++) {
            struct runs at = *runs;
            at.failures_per_node_day = rates[k];
            y[k][i] = effective(&at, x[i]);
        }
    }
    if (simulate_points(runs, count, seed, fmax(least, runs->persist_seconds), most, points, err) !=
        0)
        return -1;
    // not where it cannot be told from one of the usual ones
    bool own = fabs(rates[0] / rates[1] - 1) > 0.02 && fabs(rates[0] / rates[2] - 1) > 0.02;
    const struct draw_series series[] = {
        {own ? "given rate" : "", x, y[0], NULL, NULL, own ? CURVE : 0, DRAW_LINE, 0},
        {"3.8e-3 per node-day", x, y[1], NULL, NULL, CURVE, DRAW_LINE, 2},
        {"1 % per accelerator-week", x, y[2], NULL, NULL, CURVE, DRAW_DASHED, 1},
        {"simulated, p5 to p95", points[0], points[1], points[2], points[3], POINTS, DRAW_DOTS, 6}};
    char subtitle[200];
    snprintf(subtitle, sizeof subtitle,
             "%d nodes, %.3g s blocking, %.3g s to persist; best interval %.0f s = %lld steps",
             runs->nodes, runs->blocking_seconds, runs->persist_seconds, closed.interval.seconds,
             (long long)closed.interval.steps);
    const struct draw_chart chart = {.title = title,
                                     .subtitle = subtitle,
                                     .x_label =
                                         "useful time between checkpoints (curves: exact formula)",
                                     .y_label = "effective training time",
                                     .x_log = true,
                                     .y_share = true,
                                     .ticks = interval_ticks,
                                     .tick_count = sizeof interval_ticks / sizeof interval_ticks[0],
                                     .series = series,
                                     .count = 4};
    return draw_chart(&chart, out, err);
}
