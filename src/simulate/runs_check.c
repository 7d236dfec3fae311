// What a run may not be. See runs.h.
#include "simulate/runs.h"
#include <math.h>
#include <stddef.h>
#include <string.h>

struct limit {
    const char *name; // as the command line and files spell it
    size_t offset;
    double least, most;
    const char *unit;
};
#define AT(field) offsetof(struct runs, field)
// Ten years of anything is a slip of the unit.
enum { LONGEST = 10 * 366 * 86400 };
static const struct limit limits[] = {
    {"tokens-per-step", AT(tokens_per_step), 0, 1e15, " tokens"},
    {"price", AT(price_per_hour), 0, 1e6, " dollars an hour"},
    {"failures", AT(failures_per_node_day), 0, 1000, " per node and day"},
    {"shape", AT(shape), 0.2, 20, ""},
    {"replaced", AT(replaced_share), 0, 1, ""},
    {"detection", AT(detection_seconds), 0, LONGEST, " s"},
    {"restart", AT(restart_seconds), 0, LONGEST, " s"},
    {"load", AT(load_seconds), 0, LONGEST, " s"},
    {"start", AT(start_seconds), 0, LONGEST, " s"},
    {"blocking", AT(blocking_seconds), 0, LONGEST, " s"},
    {"persist", AT(persist_seconds), 0, LONGEST, " s"},
    {"interval", AT(interval_seconds), 0, LONGEST, " s"},
    {"repair", AT(repair_seconds), 0, LONGEST, " s"},
    {"stragglers", AT(stragglers_per_node_day), 0, 1000, " per node and day"},
    {"slow", AT(straggler_factor), 1, 1000, " times"},
    {"straggler-detection", AT(straggler_seconds), 0, LONGEST, " s"},
};

static int check_numbers(const struct runs *runs, struct err *err) {
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const struct limit *l = &limits[i];
        double value;
        memcpy(&value, (const char *)runs + l->offset, sizeof value);
        if (!(value >= l->least && value <= l->most))
            return err_set(err, ERR_USAGE, "run: %s %g%s: expected %g to %g", l->name, value,
                           l->unit, l->least, l->most);
    }
    return 0;
}

static int check_size(const struct runs *runs, struct err *err) {
    if (runs->nodes < 1 || runs->nodes > 10000000)
        return err_set(err, ERR_USAGE, "run: nodes %d: expected 1 to 10000000", runs->nodes);
    if (runs->per_node < 1 || runs->per_node > 1024)
        return err_set(err, ERR_USAGE, "run: per-node %d: expected 1 to 1024 accelerators",
                       runs->per_node);
    if (!(runs->step_seconds > 0 && runs->step_seconds <= 86400))
        return err_set(err, ERR_USAGE,
                       "run: step-seconds %g: expected more than 0 and at most a day",
                       runs->step_seconds);
    if (runs->steps < 1)
        return err_set(err, ERR_USAGE, "run: steps %lld: expected 1 at least",
                       (long long)runs->steps);
    if (!(runs_work_seconds(runs) <= 100.0 * 366 * 86400))
        return err_set(
            err, ERR_USAGE, "run: %lld steps of %g s are %.3g years: expected at most 100",
            (long long)runs->steps, runs->step_seconds, runs_work_seconds(runs) / (366 * 86400.0));
    return 0;
}

static int check_nodes(const struct runs *runs, struct err *err) {
    if (runs->spares < 0 || runs->spares > runs->nodes)
        return err_set(
            err, ERR_USAGE,
            "run: spares %d beside %d nodes: expected 0 to %d (spares come on top of the "
            "nodes that compute)",
            runs->spares, runs->nodes, runs->nodes);
    bool shrinks = runs->without_spare == RUNS_SHRINK;
    if (runs->replica_nodes < 1 || (shrinks && runs->nodes % runs->replica_nodes != 0))
        return err_set(err, ERR_USAGE, "run: replica-nodes %d: expected a divisor of the %d nodes",
                       runs->replica_nodes, runs->nodes);
    if (runs->least_nodes < 1 || runs->least_nodes > runs->nodes)
        return err_set(err, ERR_USAGE, "run: least-nodes %d: expected 1 to %d", runs->least_nodes,
                       runs->nodes);
    return 0;
}

int runs_check(const struct runs *runs, struct err *err) {
    return check_size(runs, err) != 0 || check_numbers(runs, err) != 0 ||
                   check_nodes(runs, err) != 0
               ? -1
               : 0;
}
