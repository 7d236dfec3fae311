// Runs in closed form. See runs.h.
//
// The exact expectation for exponential failures of rate l (derived here because the textbook
// formula knows no background writing):
//   A restart takes R seconds in which failures may strike; detection D seconds in which a further
//   one changes nothing. From the moment of a failure until ranks run again therefore pass
//     V = D + E_R,  E_R = (1 - e^-lR) / l + (1 - e^-lR) (D + E_R)  =>  E_R = (e^lR - 1)(1/l + D)
//   on average. Just started (state "cold"), the ranks must survive interval W, blocking C and
//   persisting P until one more checkpoint counts; a failure takes them back to the same state:
//     E_cold = (e^l(W + C + P) - 1)(1/l + V).
//   When a checkpoint begins to count, P seconds of the next interval are already done (state
//   "warm"): the next one counts W + C later, and a failure leads to "cold":
//     E_warm = (1 - e^-l(W + C)) (1/l + V + E_cold) = (e^l(W + C) - 1) e^lP (1/l + V).
//   A run of n intervals takes E_cold + (n - 1) E_warm. E_warm / W is least where (e^l(W + C) - 1)
//   / W is, which neither recovery nor persisting changes:
//     (lW - 1) e^(lW - 1) = -e^(-lC - 1)   =>   W = (1 + w(-e^(-lC - 1))) / l, w the Lambert
//     function.
#include "simulate/runs.h"
#include "simulate/runs_parts.h"
#include <math.h>

const char *runs_cause_name(enum runs_cause cause) {
    static const char *const names[RUNS_CAUSES] = {
        [RUNS_USEFUL] = "useful",      [RUNS_CHECKPOINT] = "checkpoints",
        [RUNS_LOST] = "lost work",     [RUNS_DETECTION] = "detection",
        [RUNS_RESTART] = "restart",    [RUNS_WAITING] = "no spare",
        [RUNS_SHRUNK] = "fewer nodes", [RUNS_STRAGGLER] = "stragglers",
        [RUNS_START] = "start"};
    return names[cause];
}

void runs_defaults(struct runs *runs) {
    *runs = (struct runs){.per_node = 8,
                          .failures_per_node_day = RUNS_FAILURES_PER_NODE_DAY,
                          .shape = 1,
                          .replaced_share = 1,
                          .detection_seconds = 60,
                          .restart_seconds = 420,
                          .load_seconds = 120,
                          .blocking_seconds = 5,
                          .persist_seconds = 90,
                          .repair_seconds = 86400,
                          .replica_nodes = 1,
                          .least_nodes = 1,
                          .straggler_factor = 1.3,
                          .straggler_seconds = 600};
}

double runs_work_seconds(const struct runs *runs) {
    return (double)runs->steps * runs->step_seconds;
}

double runs_mtbf_seconds(const struct runs *runs) {
    double per_day = runs->nodes * runs->failures_per_node_day;
    return per_day > 0 ? DAY_SECONDS / per_day : INFINITY;
}

double runs_recovery_seconds(const struct runs *runs) {
    return runs->detection_seconds + runs->restart_seconds + runs->load_seconds;
}

double runs_young(double blocking, double mtbf) {
    return sqrt(2 * blocking * mtbf);
}

// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
// Generation Computer Systems 22 (2006), equation 37.
double runs_daly(double blocking, double mtbf) {
    if (isinf(mtbf)) return blocking > 0 ? INFINITY : 0;
    double half = blocking / (2 * mtbf);
    if (half >= 1) return mtbf;
    return sqrt(2 * blocking * mtbf) * (1 + sqrt(half) / 3 + half / 9) - blocking;
}

// y = lW solves y = 1 - e^(-y - lC): Newton on f(y) = y - 1 + e^(-y - lC), convex and rising for
// y > 0, from Young's estimate.
double runs_best(double blocking, double mtbf) {
    if (isinf(mtbf)) return INFINITY;
    double c = blocking / mtbf, y = sqrt(2 * c);
    if (c <= 0) return 0;
    for (int i = 0; i < 60; i++) {
        double power = exp(-y - c), next = y - (y - 1 + power) / (1 - power);
        if (!(fabs(next - y) > 1e-15 * y)) break;
        y = next;
    }
    return y * mtbf;
}

double runs_chapter_interval(double blocking, double recovery) {
    return sqrt(2 * blocking * recovery);
}

double runs_recovery_for(double uptime, double mtbf) {
    return mtbf * (1 / uptime - 1);
}

double runs_uptime(double recovery, double mtbf) {
    return isinf(mtbf) ? 1 : mtbf / (mtbf + recovery);
}

struct runs_interval runs_interval(const struct runs *runs) {
    struct runs_interval out = {.best = runs->interval_seconds <= 0};
    double wanted = out.best ? runs_best(runs->blocking_seconds, runs_mtbf_seconds(runs))
                             : runs->interval_seconds;
    double whole = (double)runs->steps;
    // an interval that was written as a product of step time and steps stays that many
    double steps = out.best ? round(wanted / runs->step_seconds)
                            : ceil(wanted / runs->step_seconds * (1 - 1e-12));
    double least = ceil(runs->persist_seconds / runs->step_seconds * (1 - 1e-12));
    if (steps < least) {
        out.raised = !out.best;
        steps = least;
    }
    if (steps < 1) steps = 1;
    if (!(steps < whole)) steps = whole; // also where it is infinite
    out.steps = (int64_t)steps;
    out.seconds = steps * runs->step_seconds;
    return out;
}

static double recovery_expected(const struct runs *runs, double rate) {
    double d = runs->detection_seconds, restart = runs->restart_seconds + runs->load_seconds;
    return d + expm1(rate * restart) * (1 / rate + d);
}

double runs_expected_seconds(const struct runs *runs, double work, double interval) {
    double mtbf = runs_mtbf_seconds(runs), c = runs->blocking_seconds, p = runs->persist_seconds;
    double count = ceil(work / interval * (1 - 1e-12));
    double last = work - (count - 1) * interval, first = count > 1 ? interval : last;
    if (isinf(mtbf)) return runs->start_seconds + work + count * c + p;
    double rate = 1 / mtbf, each = mtbf + recovery_expected(runs, rate);
    double total = expm1(rate * (first + c + p)) * each;
    if (count > 1) {
        double warm = exp(rate * p) * each;
        // the last snapshot begins when the one before it is written
        total += (count - 2) * expm1(rate * (interval + c)) * warm +
                 expm1(rate * (fmax(last, p) + c)) * warm;
    }
    return runs->start_seconds + total;
}

void runs_closed(const struct runs *runs, struct runs_closed *out) {
    double mtbf = runs_mtbf_seconds(runs), c = runs->blocking_seconds;
    double work = runs_work_seconds(runs), recovery = runs_recovery_seconds(runs);
    *out = (struct runs_closed){.mtbf_seconds = mtbf,
                                .young_seconds = runs_young(c, mtbf),
                                .daly_seconds = runs_daly(c, mtbf),
                                .best_seconds = runs_best(c, mtbf),
                                .interval = runs_interval(runs),
                                .uptime_at_best = runs_uptime(recovery, mtbf),
                                .chapter_seconds = runs_chapter_interval(c, recovery)};
    out->checkpoint = c / out->interval.seconds;
    out->lost = out->interval.seconds / 2 / mtbf;
    out->persist = runs->persist_seconds / mtbf;
    out->detection = runs->detection_seconds / mtbf;
    out->restart = (runs->restart_seconds + runs->load_seconds) / mtbf;
    out->waste = out->checkpoint + out->lost + out->persist + out->detection + out->restart;
    out->least_waste = isinf(mtbf) ? 0 : sqrt(2 * c / mtbf);
    out->wall_seconds = runs_expected_seconds(runs, work, out->interval.seconds);
    out->effective = work / out->wall_seconds;
    out->failures = out->wall_seconds / mtbf;
}
