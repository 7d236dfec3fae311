// The report for people; see report.h.
#include "hardware/show.h"
#include "plan/report.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// "4.19 M", "70.6 B", "1.4 T"
static const char *amount(double value, char out[32]) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}};
    for (int i = 0; i < 4; i++)
        if (value >= units[i].unit) {
            snprintf(out, 32, "%.3g%s", value / units[i].unit, units[i].name);
            return out;
        }
    snprintf(out, 32, "%.3g", value);
    return out;
}

static const char *duration(double seconds, char out[32]) {
    if (seconds >= 2 * 86400)
        snprintf(out, 32, "%.1f days", seconds / 86400);
    else
        text_duration(seconds, out);
    return out;
}

static const char *mark(const char *given, bool is_given) {
    return is_given ? "" : given;
}

static int put_head(const struct report *report, struct text *out) {
    const struct report_request *r = report->request;
    const struct search_request *s = &r->search;
    const struct cluster *c = s->cluster;
    char all[32], active[32], step[32], run[32], batch[32], context[32], few[64] = "";
    double tokens = (double)s->batch * s->context;
    if (report->active_parameters < report->parameters)
        snprintf(few, sizeof few, ", of which a token uses %s",
                 amount((double)report->active_parameters, active));
    return text_printf(
        out,
        "%s (%s parameters%s) on %s: %d node%s of %d %s, %d in all\n"
        "%s sequences%s of %s tokens%s: %s tokens a step; a run of %s tokens%s; stack %s\n",
        r->model_name, amount((double)report->parameters, all), few, r->cluster_name, c->nodes,
        c->nodes == 1 ? "" : "s", c->per_node, c->accelerator.title, c->nodes * c->per_node,
        text_count(s->batch, batch), mark(" (not given: about 4 M tokens)", r->batch_given),
        text_count(s->context, context), mark(" (not given: the model's)", r->context_given),
        amount(tokens, step), amount((double)r->tokens, run),
        mark(" (not given: 20 per parameter)", r->tokens_given), s->stack->name);
}

static int64_t total(const int64_t *counts) {
    int64_t sum = 0;
    for (int i = 0; i < SEARCH_REASONS; i++) sum += counts[i];
    return sum;
}

static int put_search(const struct report *report, struct text *out) {
    const struct search_result *r = &report->result;
    char a[32], b[32], c[32], d[32];
    int failed = text_printf(
        out,
        "\nSearched %s layouts of %s ways to cut the accelerators: %s planned to the byte, %s "
        "simulated\n",
        text_count(r->layouts, a), text_count(r->meshes - total(r->rejected_meshes), b),
        text_count(r->planned, c), text_count(r->estimated, d));
    for (int k = 0; k < SEARCH_REASONS && !failed; k++)
        if (r->rejected_meshes[k] > 0)
            failed = text_printf(out, "  %12s ways to cut are impossible: %s\n",
                                 text_count(r->rejected_meshes[k], a),
                                 search_reason_text((enum search_reason)k));
    for (int k = 0; k < SEARCH_REASONS && !failed; k++)
        if (r->rejected[k] > 0)
            failed = text_printf(out, "  %12s layouts: %s%s%s\n", text_count(r->rejected[k], a),
                                 search_reason_text((enum search_reason)k),
                                 k == REASON_ENGINE ? ": " : "",
                                 k == REASON_ENGINE ? r->refusal.text : "");
    return failed;
}

// ---- the table

static int put_row(const struct report *report, int index, struct text *out) {
    const struct report_plan *p = &report->plans[index];
    const struct estimate *e = &p->estimate;
    const int *v = p->entry.choice.value;
    char schedule[40], word[24], rate[32], cost[32] = "-";
    struct report_run run = plan_report_run(report, p);
    if (v[SEARCH_PP] == 1)
        snprintf(schedule, sizeof schedule, "-");
    else if (v[SEARCH_SCHEDULE] == PIPELINE_INTERLEAVED)
        snprintf(schedule, sizeof schedule, "interl. %d", v[SEARCH_CHUNKS]);
    else
        snprintf(schedule, sizeof schedule, "%s",
                 pipeline_kind_name((enum pipeline_kind)v[SEARCH_SCHEDULE]));
    if (run.cost > 0) amount(run.cost, cost);
    return text_printf(
        out,
        "%3d %4d%s %3d %3d %4d %3d %4d x %-4d %-10s %4d %-13s %9.4g %8s %6.1f %6.1f %6.1f %7.1f "
        "%7.1f %9s\n",
        index + 1, v[SEARCH_TP], v[SEARCH_TP] > 1 && !v[SEARCH_SEQUENCE] ? "-" : " ", v[SEARCH_PP],
        v[SEARCH_CP], v[SEARCH_DP], v[SEARCH_EP], v[SEARCH_MICRO], p->job.micro_batches, schedule,
        v[SEARCH_ZERO], search_value_text(SEARCH_RECOMPUTE, v[SEARCH_RECOMPUTE], word),
        e->step_seconds, amount(e->tokens_per_second, rate), 100 * e->mfu_full, 100 * e->mfu_causal,
        100 * e->hfu, e->memory_peak / 1e9, e->memory_headroom / 1e9, cost);
}

static int put_table(const struct report *report, struct text *out) {
    int failed =
        text_puts(out, "\n  #   tp   pp  cp   dp  ep  micro-batch schedule   zero recompute        "
                       "step s    tok/s  MFU %  causal  HFU %     GB    free  run cost\n");
    for (int i = 0; i < report->count && !failed; i++) failed = put_row(report, i, out);
    bool minus = false;
    for (int i = 0; i < report->count; i++) {
        const int *v = report->plans[i].entry.choice.value;
        minus = minus || (v[SEARCH_TP] > 1 && !v[SEARCH_SEQUENCE]);
    }
    if (minus && !failed)
        failed = text_puts(out, "    tp marked - : without sequence parallelism\n");
    return failed;
}

// ---- the first

static int put_memory(const struct report_plan *p, double capacity, struct text *out) {
    const struct estimate *e = &p->estimate;
    int failed = text_puts(out, "\nMemory in GB, by pipeline rank (its fullest member)\n  rank");
    for (int k = 0; k < PLAN_ITEMS && !failed; k++)
        failed = text_printf(out, " %13s", plan_memory_item_name((enum plan_memory_item)k));
    failed = failed || text_puts(out, "     total      free\n");
    for (int r = 0; r < e->memory_ranks && !failed; r++) {
        const struct plan_memory *m = &e->memory[r];
        bool like_last = r > 1 && r < e->memory_ranks - 2 && e->memory_ranks > 8;
        if (like_last) { // long pipelines: the ends, and the fullest in between is in the table
            if (r == 2) failed = text_puts(out, "   ...\n");
            continue;
        }
        failed = text_printf(out, "  %4d", r);
        for (int k = 0; k < PLAN_ITEMS && !failed; k++)
            failed = text_printf(out, " %13.2f", m->bytes[k] / 1e9);
        failed = failed ||
                 text_printf(out, " %9.2f %9.2f\n", m->total / 1e9, (capacity - m->total) / 1e9);
    }
    return failed;
}

static int put_waterfall(const struct estimate *e, struct text *out) {
    int failed = text_printf(out,
                             "\nWhere the peak goes (%% of it, and seconds of the step)\n"
                             "  %6.2f            peak\n",
                             100.0);
    for (int i = 0; i < e->waterfall_lines && !failed; i++) {
        double share = e->waterfall[i].share;
        if (fabs(share) >= 5e-5)
            failed = text_printf(out, "  %+6.2f %9.4f  %s\n", -100 * share, share * e->step_seconds,
                                 e->waterfall[i].name);
    }
    return failed || text_printf(out, "  %6.2f %9.4f  MFU (causal)\n", 100 * e->mfu_causal,
                                 e->mfu_causal * e->step_seconds);
}

static int put_times(const struct report_plan *p, struct text *out) {
    const struct estimate *e = &p->estimate;
    return text_printf(
        out,
        "\nTimes of the busiest pipeline rank: forward %.4g s, backward %.4g s, update %.3g s; "
        "gradients in flight %.3g s\n"
        "  T_fwd + max(T_bwd, T_comm) + T_opt = %.4g s; simulated %.4g s\n"
        "  bubble %.2f %% simulated (waits for messages in it), %.2f %% if sends, gathers and "
        "reductions took no time, %.2f %% by formula\n"
        "  exposed: reductions %.3g s, gathers %.3g s, pipeline %.3g s, tensor %.3g s, context "
        "%.3g s, experts %.3g s\n",
        e->forward_seconds, e->backward_seconds, e->update_seconds, e->message_seconds,
        e->overlap_formula_seconds, e->step_seconds, 100 * e->bubble,
        100 * e->bubble_without_messages, 100 * e->bubble_formula, e->exposed_reduce,
        e->exposed_gather, e->exposed_pipeline, e->exposed_tensor, e->exposed_context,
        e->exposed_expert);
}

static int put_failures(const struct report_run *run, struct text *out) {
    char wall[32], every[32], failures[32];
    return text_printf(out,
                       "  with failures (one in %.1f h, %s expected): %s, %.2f %% of it useful; a "
                       "checkpoint every "
                       "%s (%lld steps), %d spare node%s\n",
                       run->mtbf_seconds / 3600, amount(run->failures, failures),
                       duration(run->wall_seconds, wall), 100 * run->effective,
                       duration(run->checkpoint_seconds, every), (long long)run->checkpoint_steps,
                       run->spares, run->spares == 1 ? "" : "s");
}

static int put_first(const struct report *report, struct text *out) {
    const struct report_plan *p = &report->plans[0];
    const struct estimate *e = &p->estimate;
    const struct cluster *c = report->request->search.cluster;
    struct report_run run = plan_report_run(report, p);
    char choice[192], time[32], steps[32], hours[32], rate[32], cost[96] = "";
    if (run.cost > 0) {
        char money[32];
        snprintf(cost, sizeof cost, ", $%s at $%.2f", text_count((int64_t)llround(run.cost), money),
                 c->price_per_hour.value);
    }
    int failed =
        text_printf(out,
                    "\nThe first: %s, %d micro-batches\n"
                    "  step %.4g s, %s tokens/s (%.0f per accelerator)\n"
                    "  MFU %.1f %% (full attention), %.1f %% (causal); HFU %.1f %%\n"
                    "  the run: %s steps, %s without interruptions, %s accelerator-hours%s\n",
                    search_choice_text(&p->entry.choice, choice), p->job.micro_batches,
                    e->step_seconds, amount(e->tokens_per_second, rate),
                    e->tokens_per_second_per_accelerator, 100 * e->mfu_full, 100 * e->mfu_causal,
                    100 * e->hfu, text_count(run.steps, steps), duration(run.seconds, time),
                    text_count((int64_t)llround(run.accelerator_hours), hours), cost);
    return failed || put_failures(&run, out) ||
           put_memory(p, c->accelerator.memory_bytes.value, out) || put_waterfall(e, out) ||
           put_times(p, out);
}

// ---- why

static int put_trail(const struct trail *trail, enum trail_kind kind, const char *title,
                     struct text *out) {
    int failed = 0, count = 0;
    for (int i = 0; i < trail->count && !failed; i++) {
        if (trail->lines[i].kind != kind) continue;
        if (count++ == 0) failed = text_printf(out, "\n%s\n", title);
        failed = failed || text_printf(out, "  - %s\n", trail->lines[i].text);
    }
    return failed;
}

static int put_runners(const struct report *report, struct text *out) {
    const struct estimate *first = &report->plans[0].estimate;
    int failed =
        report->count > 1 ? text_puts(out, "\nWhat the others lose against the first\n") : 0;
    for (int i = 1; i < report->count && !failed; i++) {
        const struct report_plan *p = &report->plans[i];
        double seconds;
        char choice[192], why[96] = "";
        const char *line = trail_costliest(first, &p->estimate, &seconds);
        if (line) snprintf(why, sizeof why, "; most by %s, %+.3g s", line, seconds);
        failed = text_printf(out, "  #%d %+.1f %%%s (%s)\n", i + 1,
                             100 * (p->estimate.step_seconds / first->step_seconds - 1), why,
                             search_choice_text(&p->entry.choice, choice));
    }
    return failed;
}

static int put_tight(const struct report *report, struct text *out) {
    const struct search_result *r = &report->result;
    double capacity = search_capacity(&report->request->search);
    int failed = r->tight_count > 0 ? text_puts(out, "\nFaster, but too large: the nearest\n") : 0;
    for (int i = 0; i < r->tight_count && i < 4 && !failed; i++) {
        char choice[192];
        failed =
            text_printf(out, "  %.1f GB, %.1f too many (%s); step %.4g s\n",
                        r->tight[i].memory_bytes / 1e9, (r->tight[i].memory_bytes - capacity) / 1e9,
                        search_choice_text(&r->tight[i].choice, choice), r->tight[i].step_seconds);
    }
    return failed;
}

static int put_inputs(const struct report *report, struct text *out) {
    struct report_input inputs[REPORT_MOST_INPUTS];
    int count = plan_report_inputs(report, inputs), failed = 0;
    const char *measured = report->request->search.cluster->measured_on;
    failed = text_printf(out, "\nThe figures rest on%s%s\n",
                         measured && measured[0] ? ", measured on " : "",
                         measured && measured[0] ? measured : "");
    for (int i = 0; i < count && !failed; i++)
        failed = text_printf(out, "  %-9s %-42s %10.4g %-8s %s\n",
                             figure_origin_name(inputs[i].figure.origin), inputs[i].name,
                             inputs[i].figure.value, inputs[i].unit, inputs[i].figure.source);
    if (report->plans[0].estimate.assumed && !failed)
        failed = text_puts(out, "  Some of them are assumed, so times are too: weft bench hardware "
                                "measures a machine.\n");
    return failed;
}

int plan_report_text(const struct report *report, struct text *out, struct err *err) {
    int failed = put_head(report, out) || put_search(report, out);
    if (report->count > 0)
        failed =
            failed || put_table(report, out) || put_first(report, out) ||
            put_trail(&report->trail, TRAIL_CHOICE,
                      "Why: this key alone at other values would change", out) ||
            put_runners(report, out) || put_tight(report, out) ||
            put_trail(&report->trail, TRAIL_TRAP, "Mind", out) ||
            put_trail(&report->trail, TRAIL_CHAPTER, "Rules of thumb, and what holds here", out) ||
            put_inputs(report, out);
    return failed ? err_set(err, ERR_MEMORY, "no memory for the report") : 0;
}
