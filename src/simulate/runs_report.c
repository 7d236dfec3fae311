// Text about a run. See runs_report.h.
#include "simulate/runs_report.h"
#include "simulate/runs_parts.h"
#include <math.h>
#include <stdio.h>

enum { SPARES_RUNS = 1000 };

int runs_report_make(struct runs_report *report, int count, struct err *err) {
    const struct runs *r = &report->runs;
    if (runs_simulate(r, count, report->seed, &report->result, err) != 0) return -1;
    runs_closed(r, &report->closed);
    report->spares_per_failure = runs_spares_per_failure(r, report->percentile);
    return runs_spares_per_run(r, report->percentile, count < SPARES_RUNS ? count : SPARES_RUNS,
                               report->seed, &report->spares_per_run, err);
}

struct runs runs_at_rate(const struct runs *runs, double failures_per_node_day) {
    struct runs other = *runs;
    other.failures_per_node_day = failures_per_node_day;
    return other;
}

struct runs runs_synchronous(const struct runs *runs, double blocking_seconds) {
    struct runs other = *runs;
    other.blocking_seconds = blocking_seconds;
    other.persist_seconds = 0;
    other.interval_seconds = 0;
    return other;
}

double runs_pessimistic_rate(const struct runs *runs) {
    return RUNS_FAILURES_PER_ACCELERATOR_WEEK * runs->per_node / 7;
}

double runs_accelerator_hours(const struct runs *runs, double seconds) {
    return ((double)runs->nodes + runs->spares) * runs->per_node * seconds / 3600;
}

double runs_dollars(const struct runs *runs, double seconds) {
    return runs_accelerator_hours(runs, seconds) * runs->price_per_hour;
}

static const char *count(double value, char out[32]) {
    return text_count((int64_t)llround(value), out);
}

static const char *hours(double seconds, char out[32]) {
    if (isinf(seconds)) return "never";
    snprintf(out, 32, "%.1f h", seconds / 3600);
    return out;
}

static int print_head(const struct runs_report *p, struct text *out) {
    const struct runs *r = &p->runs;
    char a[32], b[32], c[32];
    return text_printf(out,
                       "run         %s nodes of %d (%s accelerators) and %d spares; %s steps of "
                       "%.4g s: %.4g days of work\n",
                       count(r->nodes, a), r->per_node, count((double)r->nodes * r->per_node, b),
                       r->spares, text_count(r->steps, c), r->step_seconds,
                       runs_work_seconds(r) / DAY_SECONDS);
}

static int print_rate(const struct runs *r, const char *name, struct text *out) {
    struct runs_closed closed;
    char a[32];
    runs_closed(r, &closed);
    return text_printf(out, "  %-12s %10.3g %12s %10.1f %8.3f %% %10.2f %%\n", name,
                       r->failures_per_node_day, hours(closed.mtbf_seconds, a), closed.failures,
                       100 * closed.waste, 100 * closed.effective);
}

// The rate that is used, and always both usual figures.
static int print_rates(const struct runs_report *p, struct text *out) {
    struct runs usual = runs_at_rate(&p->runs, RUNS_FAILURES_PER_NODE_DAY);
    struct runs pessimistic = runs_at_rate(&p->runs, runs_pessimistic_rate(&p->runs));
    int failed = text_puts(out, "\nfailures     per node-day        every   expected      waste  "
                                "effective (exact)\n");
    if (p->runs.failures_per_node_day != usual.failures_per_node_day &&
        p->runs.failures_per_node_day != pessimistic.failures_per_node_day)
        failed |= print_rate(&p->runs, p->failures_from, out);
    failed |= print_rate(&usual, "default", out) | print_rate(&pessimistic, "pessimistic", out);
    return failed |
           text_printf(out,
                       "  default: 419 unexpected interruptions in 54 days on 2,048 nodes; "
                       "pessimistic: 1 %% of\n  accelerators a week, %.1f times that. Below: %s.\n",
                       pessimistic.failures_per_node_day / usual.failures_per_node_day,
                       p->failures_from);
}

static int print_interval(const struct runs_report *p, struct text *out) {
    const struct runs_closed *c = &p->closed;
    const struct runs *r = &p->runs;
    char steps[32];
    int failed =
        text_printf(out, "\ninterval    %.0f s = %s steps%s\n", c->interval.seconds,
                    text_count(c->interval.steps, steps), c->interval.best ? ", the best one" : "");
    if (c->interval.raised)
        failed |= text_printf(out,
                              "            raised from %.4g s: a snapshot takes %.4g s to write, "
                              "and the next one would wait for it\n",
                              r->interval_seconds, r->persist_seconds);
    if (r->interval_seconds > c->interval.seconds + r->step_seconds)
        failed |=
            text_printf(out,
                        "            the run is shorter than the %.4g s asked for: it saves at "
                        "its end\n",
                        r->interval_seconds);
    if (isinf(c->mtbf_seconds))
        return failed | text_puts(out, "            without failures it is best to save once, at "
                                       "the end\n");
    failed |= text_printf(out,
                          "            Young sqrt(2 C M) %.0f s, Daly %.0f s, exact %.0f s; C %.4g "
                          "s blocking, M %.0f s between failures\n",
                          c->young_seconds, c->daly_seconds, c->best_seconds, r->blocking_seconds,
                          c->mtbf_seconds);
    if (c->interval.best && c->best_seconds < c->interval.seconds - r->step_seconds)
        failed |= text_printf(out, "            longer than that because writing takes %.4g s\n",
                              r->persist_seconds);
    double often = r->blocking_seconds / fmax(c->chapter_seconds + r->blocking_seconds, 1e-9);
    return failed |
           text_printf(out,
                       "            textbooks also give sqrt(2 C R) = %.1f s with R = %.4g s, the "
                       "time to recover: %.1f %% blocking.\n            R does not say how often "
                       "work is lost, M does; with R for M a run saves %.1f times as often.\n",
                       c->chapter_seconds, runs_recovery_seconds(r), 100 * often,
                       c->young_seconds / fmax(c->chapter_seconds, 1e-9));
}

static int print_closed(const struct runs_report *p, struct text *out) {
    const struct runs_closed *c = &p->closed;
    const struct runs *r = &p->runs;
    char a[32], b[32];
    int failed = text_printf(
        out,
        "\nwaste       blocking/interval %.3f %% + (interval/2 %.3f %% + persist %.3f %% + "
        "detection %.3f %%\n            + restart and load %.3f %%) of M = %.3f %% (first order)\n",
        100 * c->checkpoint, 100 * c->lost, 100 * c->persist, 100 * c->detection, 100 * c->restart,
        100 * c->waste);
    if (isfinite(c->mtbf_seconds))
        failed |= text_printf(
            out,
            "recovery    %.4g s: at best %.2f %% of the time is spent running (M / (M + R)), "
            "whatever the spares;\n            %.4g %% needs recovery within %.0f s\n",
            runs_recovery_seconds(r), 100 * c->uptime_at_best, 100 * p->uptime,
            runs_recovery_for(p->uptime, c->mtbf_seconds));
    if (!(p->synchronous_seconds > 0)) return failed;
    struct runs other = runs_synchronous(r, p->synchronous_seconds);
    struct runs_closed sync;
    runs_closed(&other, &sync);
    double days = (sync.least_waste - c->least_waste) * runs_work_seconds(r) / DAY_SECONDS;
    failed |= text_printf(
        out,
        "synchronous %.4g s of blocking at its own best interval of %s: %.2f %% blocking and lost "
        "work, against %.2f %%:\n            %.2g days",
        p->synchronous_seconds, text_duration(sync.young_seconds, b), 100 * sync.least_waste,
        100 * c->least_waste, days);
    double lost = days * 24 * r->nodes * r->per_node; // accelerator-hours
    failed |= text_printf(out, ", %s accelerator-hours", count(lost, a));
    if (r->price_per_hour > 0)
        failed |= text_printf(out, ", $%s", count(lost * r->price_per_hour, a));
    return failed | text_puts(out, " of this run\n");
}

static int print_spread(const struct runs_report *p, struct text *out) {
    const struct runs_result *s = &p->result;
    char a[32], b[32], c[32], d[32], e[32];
    int failed = text_printf(
        out,
        "\neffective training time: useful step time over wall time (%s runs, seed %llu)\n"
        "                     mean        p5       p50       p95\n"
        "  effective     %8.2f %% %7.2f %% %7.2f %% %7.2f %%    exact formula %.2f %%*\n"
        "  wall days     %8.2f %9.2f %9.2f %9.2f\n"
        "  failures      %8.1f %9.0f %9.0f %9.0f\n"
        "  lost work     %8s %9s %9s %9s\n",
        text_count(s->count, e), (unsigned long long)p->seed, 100 * s->effective.mean,
        100 * s->effective.p5, 100 * s->effective.p50, 100 * s->effective.p95,
        100 * p->closed.effective, s->wall_seconds.mean / DAY_SECONDS,
        s->wall_seconds.p5 / DAY_SECONDS, s->wall_seconds.p50 / DAY_SECONDS,
        s->wall_seconds.p95 / DAY_SECONDS, s->failures.mean, s->failures.p5, s->failures.p50,
        s->failures.p95, text_duration(s->lost_seconds.mean, a),
        text_duration(s->lost_seconds.p5, b), text_duration(s->lost_seconds.p50, c),
        text_duration(s->lost_seconds.p95, d));
    failed |= text_puts(out, "  * exponential failures, a spare always at hand, no stragglers\n");
    if (s->unfinished)
        failed |= text_printf(out,
                              "  %d of %d runs were cut: they took 50 times their work, or 200,000 "
                              "failures\n",
                              s->unfinished, s->count);
    return failed;
}

static int print_causes(const struct runs_report *p, struct text *out) {
    const struct runs *r = &p->runs;
    double wall = p->result.wall_seconds.mean;
    char hours[32], dollars[32];
    int failed =
        text_printf(out, "\nwhere the time goes      hours     share  accelerator-hours%s\n",
                    r->price_per_hour > 0 ? "        dollars" : "");
    for (int c = 0; c <= RUNS_CAUSES; c++) {
        double seconds = c < RUNS_CAUSES ? p->result.seconds[c] : wall;
        if (seconds == 0 && c != RUNS_LOST) continue;
        failed |= text_printf(out, "  %-16s %10.2f %8.3f %% %18s",
                              c < RUNS_CAUSES ? runs_cause_name((enum runs_cause)c) : "all",
                              seconds / 3600, 100 * seconds / wall,
                              count(runs_accelerator_hours(r, seconds), hours));
        if (r->price_per_hour > 0)
            failed |= text_printf(out, " %14s", count(runs_dollars(r, seconds), dollars));
        failed |= text_puts(out, "\n");
    }
    if (r->spares > 0)
        failed |= text_printf(out, "  of these, spares are %.2f %%\n",
                              100.0 * r->spares / (r->nodes + r->spares));
    return failed;
}

static int print_spares(const struct runs_report *p, struct text *out) {
    const struct runs_result *s = &p->result;
    char a[32];
    int failed = text_printf(out, "\nspares      %.2f nodes under repair on average (%s each)\n",
                             runs_repair_load(&p->runs), text_duration(p->runs.repair_seconds, a));
    if (p->spares_per_failure < 0)
        failed |= text_puts(out, "            more spares than nodes would be needed\n");
    else
        failed |= text_printf(
            out,
            "            %d let a failure find one with %.4g %% (Poisson); %d let "
            "a whole run never wait with %.4g %% (simulated)\n",
            p->spares_per_failure, 100 * p->percentile, p->spares_per_run, 100 * p->percentile);
    return failed |
           text_printf(out,
                       "            with %d, %.2f %% of lost nodes found one at once; %.2f "
                       "waits a run\n",
                       p->runs.spares, 100 * s->found_spare, s->waits);
}

int runs_report_print(const struct runs_report *p, struct text *out) {
    return print_head(p, out) | print_rates(p, out) | print_interval(p, out) |
                   print_closed(p, out) | print_spread(p, out) | print_causes(p, out) |
                   print_spares(p, out)
               ? -1
               : 0;
}
