// A run's figures for programs. See runs_report.h. What is infinite is null.
#include "simulate/runs_parts.h"
#include "simulate/runs_report.h"
#include <math.h>

static void put(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *spread(const struct runs_spread *s) {
    json_t *out = json_object();
    put(out, "mean", s->mean);
    put(out, "p5", s->p5);
    put(out, "p50", s->p50);
    put(out, "p95", s->p95);
    return out;
}

static json_t *input(const struct runs *r) {
    json_t *out = json_object();
    json_object_set_new(out, "nodes", json_integer(r->nodes));
    json_object_set_new(out, "per_node", json_integer(r->per_node));
    json_object_set_new(out, "spares", json_integer(r->spares));
    json_object_set_new(out, "steps", json_integer(r->steps));
    json_object_set_new(out, "without_spare",
                        json_string(r->without_spare == RUNS_SHRINK ? "shrink" : "wait"));
    json_object_set_new(out, "replica_nodes", json_integer(r->replica_nodes));
    json_object_set_new(out, "least_nodes", json_integer(r->least_nodes));
    put(out, "step_seconds", r->step_seconds);
    put(out, "tokens_per_step", r->tokens_per_step);
    put(out, "price_per_hour", r->price_per_hour);
    put(out, "failures_per_node_day", r->failures_per_node_day);
    put(out, "shape", r->shape);
    put(out, "replaced_share", r->replaced_share);
    put(out, "detection_seconds", r->detection_seconds);
    put(out, "restart_seconds", r->restart_seconds);
    put(out, "load_seconds", r->load_seconds);
    put(out, "start_seconds", r->start_seconds);
    put(out, "blocking_seconds", r->blocking_seconds);
    put(out, "persist_seconds", r->persist_seconds);
    put(out, "repair_seconds", r->repair_seconds);
    put(out, "stragglers_per_node_day", r->stragglers_per_node_day);
    put(out, "straggler_factor", r->straggler_factor);
    put(out, "straggler_seconds", r->straggler_seconds);
    return out;
}

static json_t *closed(const struct runs *r) {
    struct runs_closed c;
    json_t *out = json_object();
    runs_closed(r, &c);
    put(out, "failures_per_node_day", r->failures_per_node_day);
    put(out, "mtbf_seconds", c.mtbf_seconds);
    put(out, "expected_failures", c.failures);
    put(out, "young_seconds", c.young_seconds);
    put(out, "daly_seconds", c.daly_seconds);
    put(out, "best_seconds", c.best_seconds);
    put(out, "chapter_seconds", c.chapter_seconds);
    put(out, "interval_seconds", c.interval.seconds);
    json_object_set_new(out, "interval_steps", json_integer(c.interval.steps));
    put(out, "waste_checkpoint", c.checkpoint);
    put(out, "waste_lost", c.lost);
    put(out, "waste_persist", c.persist);
    put(out, "waste_detection", c.detection);
    put(out, "waste_restart", c.restart);
    put(out, "waste", c.waste);
    put(out, "least_waste", c.least_waste);
    put(out, "effective", c.effective);
    put(out, "wall_seconds", c.wall_seconds);
    put(out, "uptime_at_best", c.uptime_at_best);
    return out;
}

static json_t *causes(const struct runs_report *p) {
    json_t *out = json_object();
    for (int c = 0; c < RUNS_CAUSES; c++) {
        double seconds = p->result.seconds[c];
        json_t *one = json_object();
        put(one, "seconds", seconds);
        put(one, "share", seconds / p->result.wall_seconds.mean);
        put(one, "accelerator_hours", runs_accelerator_hours(&p->runs, seconds));
        put(one, "dollars", runs_dollars(&p->runs, seconds));
        json_object_set_new(out, runs_cause_name((enum runs_cause)c), one);
    }
    return out;
}

static json_t *simulated(const struct runs_report *p) {
    const struct runs_result *s = &p->result;
    json_t *out = json_object();
    json_object_set_new(out, "runs", json_integer(s->count));
    json_object_set_new(out, "seed", json_integer((json_int_t)p->seed));
    json_object_set_new(out, "unfinished", json_integer(s->unfinished));
    json_object_set_new(out, "effective", spread(&s->effective));
    json_object_set_new(out, "wall_seconds", spread(&s->wall_seconds));
    json_object_set_new(out, "failures", spread(&s->failures));
    json_object_set_new(out, "lost_seconds", spread(&s->lost_seconds));
    json_object_set_new(out, "peak_repair", spread(&s->peak_repair));
    json_object_set_new(out, "causes", causes(p));
    put(out, "stragglers", s->stragglers);
    put(out, "waits", s->waits);
    put(out, "found_spare", s->found_spare);
    return out;
}

static json_t *spares(const struct runs_report *p) {
    json_t *out = json_object();
    put(out, "percentile", p->percentile);
    put(out, "under_repair_mean", runs_repair_load(&p->runs));
    json_object_set_new(out, "per_failure",
                        p->spares_per_failure < 0 ? json_null()
                                                  : json_integer(p->spares_per_failure));
    json_object_set_new(out, "per_run", json_integer(p->spares_per_run));
    return out;
}

static json_t *synchronous(const struct runs_report *p) {
    struct runs other = runs_synchronous(&p->runs, p->synchronous_seconds);
    json_t *out = closed(&other);
    double seconds = (runs_mtbf_seconds(&other) < INFINITY)
                         ? sqrt(2 / runs_mtbf_seconds(&other)) *
                               (sqrt(p->synchronous_seconds) - sqrt(p->runs.blocking_seconds)) *
                               runs_work_seconds(&other)
                         : 0;
    put(out, "more_seconds", seconds);
    double hours = seconds / 3600 * other.nodes * other.per_node;
    put(out, "more_accelerator_hours", hours);
    put(out, "more_dollars", hours * other.price_per_hour);
    return out;
}

json_t *runs_report_json(const struct runs_report *p) {
    json_t *out = json_object();
    struct runs usual = runs_at_rate(&p->runs, RUNS_FAILURES_PER_NODE_DAY);
    struct runs pessimistic = runs_at_rate(&p->runs, runs_pessimistic_rate(&p->runs));
    json_object_set_new(out, "run", input(&p->runs));
    json_object_set_new(out, "failures_from", json_string(p->failures_from));
    json_t *interval = json_object();
    put(interval, "seconds", p->result.interval.seconds);
    json_object_set_new(interval, "steps", json_integer(p->result.interval.steps));
    json_object_set_new(interval, "raised", json_boolean(p->result.interval.raised));
    json_object_set_new(interval, "best", json_boolean(p->result.interval.best));
    json_object_set_new(out, "interval", interval);
    json_object_set_new(out, "closed", closed(&p->runs));
    json_object_set_new(out, "closed_default", closed(&usual));
    json_object_set_new(out, "closed_pessimistic", closed(&pessimistic));
    put(out, "recovery_seconds", runs_recovery_seconds(&p->runs));
    put(out, "uptime", p->uptime);
    put(out, "recovery_for_uptime_seconds",
        runs_recovery_for(p->uptime, runs_mtbf_seconds(&p->runs)));
    json_object_set_new(out, "simulated", simulated(p));
    json_object_set_new(out, "spares", spares(p));
    if (p->synchronous_seconds > 0) json_object_set_new(out, "synchronous", synchronous(p));
    return out;
}
