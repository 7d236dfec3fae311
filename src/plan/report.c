// Makes the report: searches, estimates the answers in full, asks why. See report.h.
#include "plan/report.h"
#include "hardware/show.h"
#include "model/flops.h"
#include "plan/size.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int fill_plan(const struct report_request *request, const struct search_entry *entry,
                     struct report_plan *out, struct err *err) {
    out->entry = *entry;
    if (search_job(&request->search, &entry->choice, &out->job, err) != 0) return -1;
    return estimate_step(&out->job, false, &out->estimate, err);
}

static int fill_trail(struct report *report, struct err *err) {
    const struct report_plan *first = &report->plans[0];
    struct trail_subject subject = {&report->request->search,
                                    &first->entry,
                                    &first->job,
                                    &first->estimate,
                                    report->request->checkpoint_seconds,
                                    plan_report_run(report, first).steps};
    return trail_make(&subject, &report->trail, err);
}

static int fill(struct report *report, struct err *err) {
    const struct report_request *request = report->request;
    if (search_run(&request->search, &report->result, err) != 0) return -1;
    if (report->result.count == 0) return search_missing(&request->search, &report->shortage, err);
    report->plans = calloc((size_t)report->result.count, sizeof *report->plans);
    if (!report->plans) return err_set(err, ERR_MEMORY, "no memory for the answers of the search");
    for (int i = 0; i < report->result.count; i++) {
        if (fill_plan(request, &report->result.best[i], &report->plans[i], err) != 0) return -1;
        report->count++;
    }
    return fill_trail(report, err);
}

int plan_report_make(const struct report_request *request, struct report *out, struct err *err) {
    struct report *report = calloc(1, sizeof *report);
    if (!report) return err_set(err, ERR_MEMORY, "no memory for a report");
    report->request = request;
    report->parameters = flops_all_params(request->search.model);
    report->active_parameters = flops_active_params(request->search.model);
    int result = fill(report, err);
    if (result == 0)
        *out = *report;
    else
        plan_report_close(report);
    free(report);
    return result;
}

void plan_report_close(struct report *report) {
    for (int i = 0; i < report->count; i++) estimate_free(&report->plans[i].estimate);
    free(report->plans);
    report->plans = NULL;
    report->count = 0;
}

int plan_report_nothing_fits(const struct report *report, struct err *err) {
    const struct search_request *r = &report->request->search;
    const struct search_shortage *s = &report->shortage;
    if (report->result.rejected[REASON_MEMORY] == 0)
        return err_set(err, ERR_USAGE, "plan: none of %lld layouts can be estimated: %s",
                       (long long)report->result.layouts, report->result.refusal.text);
    char choice[192], more[256] = "; not even 1,024 times as many nodes would do";
    if (s->nodes > 0)
        snprintf(more, sizeof more, "; %d nodes of %d would do (%d accelerators)", s->nodes,
                 r->cluster->per_node, s->nodes * r->cluster->per_node);
    if (s->release < SEARCH_KEYS) {
        char now[24], other[24];
        size_t at = strlen(more);
        snprintf(more + at, sizeof more - at, "; %s %s in place of the fixed %s would do",
                 search_key_name(s->release),
                 search_value_text(s->release, s->release_value, other),
                 search_value_text(s->release, r->pins.value[s->release], now));
    }
    return err_set(err, ERR_USAGE,
                   "plan: %s does not fit on %d x %s: the leanest of %lld layouts (%s) needs "
                   "%.1f GB on its fullest rank and %.1f GB may be taken, %.1f GB short%s",
                   report->request->model_name, r->cluster->nodes * r->cluster->per_node,
                   r->cluster->accelerator.name, (long long)report->result.layouts,
                   search_choice_text(&s->least.choice, choice), s->least.memory_bytes / 1e9,
                   search_capacity(r) / 1e9, s->short_bytes / 1e9, more);
}

struct report_run plan_report_run(const struct report *report, const struct report_plan *plan) {
    const struct search_request *r = &report->request->search;
    double per_step = (double)r->batch * r->context;
    struct report_run run = {.steps = (int64_t)ceil((double)report->request->tokens / per_step)};
    run.seconds = (double)run.steps * plan->estimate.step_seconds;
    run.accelerator_hours = run.seconds / 3600 * r->cluster->nodes * r->cluster->per_node;
    run.cost = run.accelerator_hours * r->cluster->price_per_hour.value;
    struct runs runs;
    struct runs_closed closed;
    size_run(r->cluster, (double)report->parameters, plan->estimate.step_seconds, run.steps, &runs);
    runs_closed(&runs, &closed);
    run.spares = runs.spares;
    run.effective = closed.effective;
    run.wall_seconds = closed.wall_seconds;
    run.mtbf_seconds = closed.mtbf_seconds;
    run.failures = closed.failures;
    run.checkpoint_seconds = closed.interval.seconds;
    run.checkpoint_steps = closed.interval.steps;
    return run;
}

// ---- inputs

static int put(struct report_input *out, int count, const char *name, const char *unit,
               struct figure figure) {
    if (figure.origin == FIGURE_ABSENT || count == REPORT_MOST_INPUTS) return count;
    out[count] = (struct report_input){name, unit, figure};
    return count + 1;
}

static int put_link(struct report_input *out, int n, const char *const names[4],
                    const struct link *l) {
    n = put(out, n, names[0], "bytes/s", l->bandwidth);
    n = put(out, n, names[1], "s", l->latency_seconds);
    n = put(out, n, names[2], "share", l->share);
    return put(out, n, names[3], "bytes", l->half_bytes);
}

int plan_report_inputs(const struct report *report, struct report_input out[REPORT_MOST_INPUTS]) {
    static const char *const fast[] = {"fast link: bandwidth", "fast link: latency",
                                       "fast link: share reached", "fast link: half of it at"};
    static const char *const slow[] = {"slow link: bandwidth", "slow link: latency",
                                       "slow link: share reached", "slow link: half of it at"};
    const struct search_request *r = &report->request->search;
    const struct cluster *c = r->cluster;
    const struct accelerator *a = &c->accelerator;
    int precision = r->pins.set[SEARCH_PRECISION] ? r->pins.value[SEARCH_PRECISION] : HARDWARE_BF16;
    int n = put(out, 0, "accelerator: memory", "bytes", a->memory_bytes);
    n = put(out, n, "accelerator: memory bandwidth", "bytes/s", a->memory_bandwidth);
    n = put(out, n, "accelerator: share of it that kernels reach", "share", a->memory_share);
    n = put(out, n, "accelerator: dense rate", "FLOP/s", a->dense[precision]);
    if (a->product_count == 0) {
        n = put(out, n, "accelerator: share of it that products reach", "share",
                a->sustained[precision]);
        n = put(out, n, "accelerator: start of a tile", "k", a->fill_k);
    }
    if (a->attention_count == 0) {
        n = put(out, n, "accelerator: attention forward", "share", a->flash_forward);
        n = put(out, n, "accelerator: attention backward", "share", a->flash_backward);
    }
    n = put(out, n, "accelerator: fixed cost of a kernel", "s", a->kernel_seconds);
    n = put(out, n, "stack: host time of a kernel", "s", r->stack->launch_seconds);
    n = put(out, n, "stack: host time of a step", "s", r->stack->step_seconds);
    if (c->domain > 1) n = put_link(out, n, fast, &c->fast);
    if (c->nodes * c->per_node > c->domain) n = put_link(out, n, slow, &c->slow);
    n = put(out, n, "cluster: price of an accelerator-hour", "money", c->price_per_hour);
    return put(out, n, "cluster: failures of a node and day", "1/day", c->failures_per_node_day);
}
