// Whole runs: closed form against worked figures, chance against the exact formula.
#include "simulate/runs.h"
#include "test.h"
#include <math.h>
#include <string.h>

enum { WEEK = 7 * 86400 };

static struct runs cluster(int accelerators, double days) {
    struct runs runs;
    runs_defaults(&runs);
    runs.nodes = accelerators / 8;
    runs.step_seconds = 2;
    runs.steps = (int64_t)(days * 86400 / 2);
    return runs;
}

static void pessimistic(struct runs *runs) {
    runs->failures_per_node_day = RUNS_FAILURES_PER_ACCELERATOR_WEEK * runs->per_node / 7;
}

TEST(runs_default_failure_rate) {
    CHECK_CLOSE(RUNS_FAILURES_PER_NODE_DAY / (419.0 / (54 * 2048)), 1, 0.003);
    struct runs runs = cluster(512, 1);
    double usual = runs.failures_per_node_day;
    pessimistic(&runs);
    CHECK_CLOSE(runs.failures_per_node_day / usual, 3.0, 0.02);
}

TEST(runs_worked_512) {
    struct runs runs = cluster(512, 30);
    pessimistic(&runs);
    double mtbf = runs_mtbf_seconds(&runs);
    CHECK_CLOSE(mtbf / 3600, 32.8, 0.001);
    CHECK_CLOSE(runs_young(5, mtbf), 1087, 0.0005);
    CHECK_CLOSE(runs_chapter_interval(5, 600), 77.5, 0.001);
    // synchronous 90 s and asynchronous 5 s, each at its own best interval
    runs.blocking_seconds = 90;
    struct runs_closed sync, async;
    runs_closed(&runs, &sync);
    runs.blocking_seconds = 5;
    runs_closed(&runs, &async);
    CHECK_CLOSE(sync.least_waste, 0.039, 0.0002);
    CHECK_CLOSE(async.least_waste, 0.0092, 0.0001);
    double dollars = (sync.least_waste - async.least_waste) * 30 * 24 * 512 * 2;
    CHECK_CLOSE(dollars / 1000, 22.0, 0.01);
}

TEST(runs_worked_8192) {
    struct runs runs = cluster(8192, 30);
    pessimistic(&runs);
    double mtbf = runs_mtbf_seconds(&runs);
    CHECK_CLOSE(mtbf, 7383, 0.0001);
    CHECK_CLOSE(runs_uptime(600, mtbf), 0.925, 0.0003);
    CHECK_CLOSE(runs_recovery_for(0.995, mtbf), 37.1, 0.001);
    CHECK_CLOSE(runs_young(6, mtbf), 297.6, 0.0005);
    CHECK_CLOSE(runs_chapter_interval(6, 480), 75.9, 0.0005);
    CHECK_CLOSE(6 / runs_young(6, mtbf), 0.020, 0.0002);
    CHECK_CLOSE(runs_young(6, mtbf) / 2 / mtbf, 0.020, 0.0002);
    // 6 s each 75.9 s
    CHECK_CLOSE(6 / (6 + runs_chapter_interval(6, 480)), 0.0733, 0.0002);
}

TEST(runs_worked_16384) {
    struct runs runs = cluster(16384, 50);
    pessimistic(&runs);
    CHECK_CLOSE(50 * 86400 / runs_mtbf_seconds(&runs), 1170, 0.0005);
    struct runs usual = cluster(16384, 54);
    CHECK_CLOSE(54 * 86400 / runs_mtbf_seconds(&usual), 419, 0.003);
}

TEST(runs_best_interval_is_the_least) {
    for (int i = 0; i < 5; i++) {
        double c = (double[]){0.1, 5, 90, 600, 9000}[i], mtbf = 7383, best = runs_best(c, mtbf);
        double at = expm1((best + c) / mtbf) / best;
        CHECK(at <= expm1((best * 1.001 + c) / mtbf) / (best * 1.001));
        CHECK(at <= expm1((best * 0.999 + c) / mtbf) / (best * 0.999));
    }
    // small C: all three agree; Daly's estimate is nearer than Young's
    CHECK_CLOSE(runs_best(5, 118125) / runs_young(5, 118125), 1, 0.01);
    CHECK(fabs(runs_daly(90, 7383) / runs_best(90, 7383) - 1) < 1e-4);
    CHECK(fabs(runs_young(90, 7383) / runs_best(90, 7383) - 1) > 1e-2);
}

TEST(runs_interval_rules) {
    struct runs runs = cluster(512, 30);
    pessimistic(&runs);
    struct runs_interval best = runs_interval(&runs);
    CHECK(best.best && !best.raised);
    CHECK_EQ_INT(best.steps, 542); // 1,084 s: the exact optimum lies a little below Young's
    runs.interval_seconds = 30;
    struct runs_interval raised = runs_interval(&runs);
    CHECK(raised.raised && !raised.best);
    CHECK_CLOSE(raised.seconds, 90, 1e-12);
    runs.interval_seconds = 301; // whole steps
    CHECK_EQ_INT(runs_interval(&runs).steps, 151);
    runs.blocking_seconds = 0;
    runs.interval_seconds = 0; // saving costs nothing: as often as it can be written
    CHECK_CLOSE(runs_interval(&runs).seconds, 90, 1e-12);
    runs.failures_per_node_day = 0; // only at the end
    CHECK_EQ_INT(runs_interval(&runs).steps, runs.steps);
}

// The exact expectation by summing over what may happen in one interval with blocking, without
// background writing: the textbook form e^(l R) (e^(l (w + c)) - 1) / l where the restart counts
// as exposed, per interval.
TEST(runs_expected_textbook) {
    struct runs runs = cluster(8192, 10);
    pessimistic(&runs);
    runs.persist_seconds = runs.detection_seconds = 0;
    double mtbf = runs_mtbf_seconds(&runs), r = runs.restart_seconds + runs.load_seconds;
    double interval = 432, count = 10 * 86400 / interval;
    double textbook = count * mtbf * exp(r / mtbf) * expm1((interval + 5) / mtbf);
    CHECK_CLOSE(runs_expected_seconds(&runs, 10 * 86400, interval), textbook, 1e-9);
}

static void check_exact(const struct runs *runs, int count, double points) {
    struct runs_result by_chance;
    struct runs_closed closed;
    struct err err = {0};
    CHECK_OK(runs_simulate(runs, count, 7, &by_chance, &err), err);
    runs_closed(runs, &closed);
    CHECK_EQ_INT(by_chance.unfinished, 0);
    double effective = runs_work_seconds(runs) / by_chance.wall_seconds.mean;
    if (fabs(effective - closed.effective) > points / 100)
        test_fail(__FILE__, __LINE__, "by chance %.5f, exactly %.5f", effective, closed.effective);
    double sum = 0;
    for (int c = 0; c < RUNS_CAUSES; c++) sum += by_chance.seconds[c];
    CHECK_CLOSE(sum / by_chance.wall_seconds.mean, 1, 1e-9);
    CHECK_CLOSE(by_chance.seconds[RUNS_USEFUL], runs_work_seconds(runs), 1e-9);
}

TEST(runs_chance_against_exact) {
    static const struct {
        int accelerators;
        double days, blocking, persist, detection, interval, rate;
    } cases[] = {
        {512, 30, 5, 90, 60, 0, 1},        {8192, 30, 6, 60, 30, 0, 1},
        {8192, 60, 90, 0, 0, 0, 1},        {16384, 54, 5, 300, 60, 300, 1},
        {16384, 20, 30, 900, 120, 900, 4}, // often fails while writing, and while starting again
        {64, 100, 5, 90, 60, 86400, 2},    // long intervals
        {8192, 0.02, 5, 90, 60, 500, 1},   // few intervals, the last one short
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct runs runs = cluster(cases[i].accelerators, cases[i].days);
        pessimistic(&runs);
        runs.failures_per_node_day *= cases[i].rate;
        runs.blocking_seconds = cases[i].blocking;
        runs.persist_seconds = cases[i].persist;
        runs.detection_seconds = cases[i].detection;
        runs.interval_seconds = cases[i].interval;
        runs.spares = runs.nodes;
        runs.repair_seconds = 60;
        check_exact(&runs, cases[i].days < 1 ? 20000 : 400, 0.2);
    }
}

TEST(runs_control_formula_notices) { // that the comparison above could fail
    struct runs runs = cluster(16384, 54);
    pessimistic(&runs);
    struct runs_closed with, without;
    runs_closed(&runs, &with);
    runs.persist_seconds = 0;
    runs_closed(&runs, &without);
    CHECK(without.effective - with.effective > 0.01);
}

TEST(runs_no_failures_no_waste) {
    struct runs runs = cluster(512, 30);
    runs.failures_per_node_day = 0;
    runs.blocking_seconds = runs.persist_seconds = 0;
    struct runs_result result;
    struct runs_closed closed;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 10, 1, &result, &err), err);
    runs_closed(&runs, &closed);
    CHECK_CLOSE(result.effective.p5, 1, 1e-12);
    CHECK_CLOSE(closed.effective, 1, 1e-12);
    CHECK_CLOSE(closed.waste, 0, 1e-12);
    CHECK_EQ_INT(runs_spares_per_failure(&runs, 0.99), 0);
}

TEST(runs_same_seed_same_runs) {
    struct runs runs = cluster(8192, 10);
    runs.spares = 4;
    struct runs_result a, b, c;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 50, 3, &a, &err), err);
    CHECK_OK(runs_simulate(&runs, 50, 3, &b, &err), err);
    CHECK_OK(runs_simulate(&runs, 50, 4, &c, &err), err);
    CHECK_BYTES(&a, &b, sizeof a);
    CHECK(a.effective.mean != c.effective.mean);
    CHECK(a.effective.p5 <= a.effective.p50 && a.effective.p50 <= a.effective.p95);
}

TEST(runs_poisson) {
    CHECK_CLOSE(runs_poisson_up_to(2, 2), 5 * exp(-2), 1e-12);
    CHECK_CLOSE(runs_poisson_up_to(2000, 4000), 1, 1e-9);
    CHECK_CLOSE(runs_poisson_up_to(1000, 1000), 0.5084, 0.0002);
    CHECK_CLOSE(runs_poisson_up_to(0, 0), 1, 1e-12);
}

TEST(runs_spares) {
    struct runs runs = cluster(512, 60);
    pessimistic(&runs);
    runs.repair_seconds = 86400;
    CHECK_CLOSE(runs_repair_load(&runs), 64 * 0.08 / 7, 1e-12); // 0.731
    // P(0) 0.481, P(<= 1) 0.833, P(<= 2) 0.962, P(<= 3) 0.993
    CHECK_EQ_INT(runs_spares_per_failure(&runs, 0.99), 4);
    CHECK_EQ_INT(runs_spares_per_failure(&runs, 0.83), 2);
    int spares = 0;
    struct err err = {0};
    CHECK_OK(runs_spares_per_run(&runs, 0.95, 500, 1, &spares, &err), err);
    CHECK(spares > 4 && spares <= 8); // a whole run meets rarer moments than a failure does
    // and by simulation about so many failures find one
    runs.spares = 3;
    struct runs_result result;
    CHECK_OK(runs_simulate(&runs, 400, 1, &result, &err), err);
    CHECK_CLOSE(result.found_spare, runs_poisson_up_to(runs_repair_load(&runs), 2), 0.015);
    CHECK(result.waits > 0 && result.seconds[RUNS_WAITING] > 0);
}

TEST(runs_shrinking_beats_waiting) {
    struct runs runs = cluster(512, 60);
    pessimistic(&runs);
    runs.repair_seconds = 2 * 86400;
    runs.replica_nodes = 4;
    struct runs_result waits, shrinks;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 200, 1, &waits, &err), err);
    runs.without_spare = RUNS_SHRINK;
    CHECK_OK(runs_simulate(&runs, 200, 1, &shrinks, &err), err);
    CHECK(waits.effective.mean < 0.5);
    CHECK(shrinks.effective.mean > 0.85 && shrinks.seconds[RUNS_SHRUNK] > 0);
    CHECK_EQ_INT(shrinks.unfinished, 0);
    runs.least_nodes = 64; // may not
    CHECK_OK(runs_simulate(&runs, 200, 1, &shrinks, &err), err);
    CHECK_CLOSE(shrinks.effective.mean, waits.effective.mean, 1e-9);
}

// One straggler in 10 node-days slows everybody by half for 1,000 s: about 500 s x 2 / 3 lost each.
TEST(runs_stragglers) {
    struct runs runs = cluster(512, 30);
    runs.failures_per_node_day = 0;
    runs.blocking_seconds = runs.persist_seconds = runs.restart_seconds = runs.load_seconds = 0;
    runs.stragglers_per_node_day = 0.01;
    runs.straggler_factor = 2;
    runs.straggler_seconds = 1000;
    runs.spares = 64;
    struct runs_result result;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 300, 1, &result, &err), err);
    CHECK_CLOSE(result.seconds[RUNS_STRAGGLER] / result.stragglers, 500, 0.02);
    // arrivals only while there is none: one each 1 / rate + 1000 s
    CHECK_CLOSE(result.stragglers, result.wall_seconds.mean / (86400 / 0.64 + 1000), 0.05);
    runs.straggler_factor = 1;
    CHECK_OK(runs_simulate(&runs, 30, 1, &result, &err), err);
    CHECK_CLOSE(result.effective.mean, 1, 1e-9);
}

TEST(runs_weibull_keeps_the_mean) {
    struct runs runs = cluster(8192, 30);
    pessimistic(&runs);
    runs.spares = runs.nodes;
    struct runs_result even, bursts;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 200, 1, &even, &err), err);
    runs.shape = 0.7;
    CHECK_OK(runs_simulate(&runs, 200, 1, &bursts, &err), err);
    CHECK_CLOSE(bursts.failures.mean / even.failures.mean, 1, 0.05);
    CHECK(bursts.failures.p95 - bursts.failures.p5 > 1.2 * (even.failures.p95 - even.failures.p5));
}

TEST(runs_hopeless_run_ends) {
    struct runs runs = cluster(16384, 1);
    pessimistic(&runs);
    runs.interval_seconds = 86400; // 23 failures a day: no day passes without
    struct runs_result result;
    struct err err = {0};
    CHECK_OK(runs_simulate(&runs, 5, 1, &result, &err), err);
    CHECK_EQ_INT(result.unfinished, 5);
    CHECK_CLOSE(result.effective.mean, 0, 1e-12);
}

static void refuse(struct runs runs, const char *word, const char *instead) {
    struct err err = {0};
    struct runs_result result;
    CHECK_EQ_INT(runs_simulate(&runs, 10, 1, &result, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, word);
    CHECK_CONTAINS(err.text, instead);
}

TEST(runs_bad_input) {
    const struct runs good = cluster(512, 30);
    struct runs bad = good;
    bad.spares = 65;
    refuse(bad, "spares 65", "64");
    bad.spares = -1;
    refuse(bad, "spares -1", "0 to 64");
    double *const fields[] = {&bad.failures_per_node_day,
                              &bad.detection_seconds,
                              &bad.restart_seconds,
                              &bad.load_seconds,
                              &bad.blocking_seconds,
                              &bad.persist_seconds,
                              &bad.interval_seconds,
                              &bad.repair_seconds,
                              &bad.price_per_hour,
                              &bad.stragglers_per_node_day,
                              &bad.straggler_seconds,
                              &bad.start_seconds,
                              &bad.shape,
                              &bad.straggler_factor,
                              &bad.step_seconds,
                              &bad.replaced_share};
    static const double values[] = {-1, NAN, INFINITY, 1e300};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        for (size_t k = 0; k < 4; k++) {
            bad = good;
            *fields[i] = values[k];
            refuse(bad, "run: ", "expected");
        }
    bad = good;
    bad.replica_nodes = 0;
    refuse(bad, "replica-nodes 0", "divisor");
    bad = good;
    bad.least_nodes = -1;
    refuse(bad, "least-nodes -1", "1 to 64");
    bad = good;
    bad.nodes = 0;
    refuse(bad, "nodes 0", "1 to");
    bad = good;
    bad.steps = 0;
    refuse(bad, "steps 0", "1 at least");
    bad.steps = INT64_MAX;
    refuse(bad, "years", "100");
    bad = good;
    bad.without_spare = RUNS_SHRINK;
    bad.replica_nodes = 5;
    refuse(bad, "replica-nodes 5", "divisor of the 64");
    struct err err = {0};
    struct runs_result result;
    CHECK_EQ_INT(runs_simulate(&good, 0, 1, &result, &err), -1);
    CHECK_CONTAINS(err.text, "runs 0");
}
