// A validation as text, JSON and CSV. See validate.h.
#include "plan/validate.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REASONS = 24 };

static double percent(double share) {
    return 100 * share;
}

static const char *recompute_name(enum engine_recompute mode) {
    static const char *const names[] = {"none", "selective", "selective_mlp", "full"};
    return names[mode];
}

static int print_sources(const struct validation *v, struct text *out) {
    int bad = text_printf(out, "%-28s %5s %5s %5s  %7s %7s %7s %8s  %8s\n", "source", "rows",
                          "used", "out", "mean", "median", "bias", "worst", "constant");
    for (int i = 0; i < v->sources; i++) {
        const struct validate_source *s = &v->source[i];
        bad |= text_printf(out, "%-28.28s %5d %5d %5d", s->name, s->rows, s->used, s->left_out);
        if (s->used)
            bad |=
                text_printf(out, "  %6.1f%% %6.1f%% %+6.1f%% %+7.1f%%  %7.1f%%%s", percent(s->mean),
                            percent(s->median), percent(s->bias), percent(s->worst),
                            percent(s->constant), s->beats_constant ? "" : " constant is better");
        if (s->ranked) bad |= text_printf(out, "  (+%d for ranking only)", s->ranked);
        bad |= text_puts(out, "\n");
    }
    bad |= text_printf(out, "all: %d of %d rows used, mean error %.1f%%, worst %+.1f%%\n", v->used,
                       v->rows, percent(v->mean), percent(v->worst));
    bad |= text_puts(out, "constant: mean error of the source's own median TFLOP/s per GPU.\n");
    return bad |
           text_printf(out,
                       "Median over %d sources with %d used rows or more: %.1f%% (mean %.1f%%, "
                       "worst %.1f%%). Better than the constant on %d of %d with more than 10.\n",
                       v->counted_sources, v->counted_from, percent(v->median_source),
                       percent(v->mean_source), percent(v->worst_source), v->beaten_sources,
                       v->large_sources);
}

static int print_reasons(const struct validation *v, struct text *out) {
    struct {
        const char *source, *reason;
        int count;
    } found[REASONS];
    int n = 0, others = 0, bad = 0;
    for (int i = 0; i < v->rows; i++) {
        if (v->row[i].verdict != VALIDATE_LEFT_OUT) continue;
        int k = 0;
        while (k < n && (strcmp(found[k].reason, v->row[i].reason) != 0 ||
                         strcmp(found[k].source, v->row[i].row->source) != 0))
            k++;
        if (k == REASONS) {
            others++;
            continue;
        }
        if (k == n) {
            found[n].source = v->row[i].row->source;
            found[n].reason = v->row[i].reason;
            found[n++].count = 0;
        }
        found[k].count++;
    }
    if (n) bad |= text_puts(out, "\nLeft out:\n");
    for (int k = 0; k < n; k++)
        bad |=
            text_printf(out, "%5d %-26.26s %s\n", found[k].count, found[k].source, found[k].reason);
    if (others) bad |= text_printf(out, "%5d for other reasons, see the rows\n", others);
    return bad;
}

static int print_rankings(const struct validation *v, struct text *out) {
    int bad = 0;
    if (v->rankings)
        bad |= text_printf(out, "\n%-28s %6s %5s  %s\n", "layouts ranked", "groups", "rows",
                           "pick over best: mean, median, worst; Spearman");
    for (int i = 0; i < v->rankings; i++) {
        const struct validate_ranking *r = &v->ranking[i];
        bad |= text_printf(out, "%-28.28s %6d %5d  %.3f %.3f %.3f; %.2f\n", r->name, r->groups,
                           r->rows, r->regret_mean, r->regret_median, r->regret_worst, r->spearman);
    }
    if (v->schedule_pairs)
        bad |=
            text_printf(out, "\nRatio of two schedules: error %.1f%% over %d pairs, worst %.1f%%\n",
                        percent(v->schedule_mean), v->schedule_pairs, percent(v->schedule_worst));
    return bad;
}

static int print_memory(const struct validation *v, struct text *out) {
    int bad = 0, lines = 0;
    for (int i = 0; i < v->sources; i++) {
        const struct validate_source *s = &v->source[i];
        if (!s->memory_rows) continue;
        if (!lines++)
            bad |= text_printf(out, "\n%-28s %5s  %7s %7s %8s\n", "peak memory", "rows", "mean",
                               "bias", "worst");
        bad |=
            text_printf(out, "%-28.28s %5d  %6.1f%% %+6.1f%% %+7.1f%%\n", s->name, s->memory_rows,
                        percent(s->memory_mean), percent(s->memory_bias), percent(s->memory_worst));
    }
    if (v->failed)
        bad |= text_printf(out,
                           "Of %d runs that ended for want of memory (or otherwise), %d are "
                           "predicted not to fit.\n",
                           v->failed, v->failed_found);
    if (v->succeeded)
        bad |= text_printf(out, "Of %d runs that ran, %d are predicted to fit.\n", v->succeeded,
                           v->succeeded_found);
    return bad;
}

int validation_print(const struct validation *v, bool rows, struct text *out) {
    int bad = 0;
    for (int i = 0; rows && i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        bad |= text_printf(out, "%-22.22s line %-5d ", r->row->source, r->row->line);
        bad |= r->verdict == VALIDATE_LEFT_OUT
                   ? text_printf(out, "left out: %s\n", r->reason)
                   : text_printf(out, "predicted %10.4f s, measured %10.4f s, error %+6.1f%%%s\n",
                                 r->predicted, r->measured, percent(r->error),
                                 r->verdict == VALIDATE_RANKED ? " (ranking only)" : "");
    }
    if (rows) bad |= text_puts(out, "\n");
    bad |= print_sources(v, out);
    bad |= print_reasons(v, out);
    bad |= print_rankings(v, out);
    bad |= print_memory(v, out);
    return bad ? -1 : 0;
}

// ---- JSON

static int put_string(struct text *out, const char *key, const char *value) {
    int bad = text_printf(out, "\"%s\": \"", key);
    for (const unsigned char *at = (const unsigned char *)value; *at; at++)
        bad |= *at == '"' || *at == '\\' ? text_printf(out, "\\%c", *at)
               : *at < 0x20              ? text_printf(out, "\\u%04x", *at)
                                         : text_put(out, at, 1);
    return bad | text_puts(out, "\"");
}

static int json_rows(const struct validation *v, struct text *out) {
    int bad = text_puts(out, ",\n \"rows\": [");
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        bad |= text_printf(out, "%s\n  {\"line\": %d, ", i ? "," : "", r->row->line);
        bad |= put_string(out, "source", r->row->source);
        if (r->verdict == VALIDATE_LEFT_OUT) {
            bad |= text_puts(out, ", ");
            bad |= put_string(out, "left_out", r->reason);
        } else
            bad |= text_printf(out,
                               ", \"predicted_seconds\": %.6g, \"measured_seconds\": %.6g, "
                               "\"error\": %.5f, \"ranking_only\": %s",
                               r->predicted, r->measured, r->error,
                               r->verdict == VALIDATE_RANKED ? "true" : "false");
        if (r->memory_predicted > 0)
            bad |= text_printf(out, ", \"predicted_memory_bytes\": %.0f, \"fits\": %s",
                               r->memory_predicted, r->fits ? "true" : "false");
        bad |= text_puts(out, "}");
    }
    return bad | text_puts(out, "]");
}

static int json_sources(const struct validation *v, struct text *out) {
    int bad = text_puts(out, " \"sources\": [");
    for (int i = 0; i < v->sources; i++) {
        const struct validate_source *s = &v->source[i];
        bad |= text_puts(out, i ? ",\n  {" : "\n  {");
        bad |= put_string(out, "source", s->name);
        bad |=
            text_printf(out, ", \"rows\": %d, \"used\": %d, \"ranking_only\": %d, \"left_out\": %d",
                        s->rows, s->used, s->ranked, s->left_out);
        if (s->used)
            bad |= text_printf(out,
                               ", \"mape\": %.5f, \"median_error\": %.5f, \"bias\": %.5f, "
                               "\"worst\": %.5f, \"constant_mape\": %.5f, \"beats_constant\": %s",
                               s->mean, s->median, s->bias, s->worst, s->constant,
                               s->beats_constant ? "true" : "false");
        if (s->memory_rows)
            bad |= text_printf(out, ", \"memory_rows\": %d, \"memory_mape\": %.5f", s->memory_rows,
                               s->memory_mean);
        bad |= text_puts(out, "}");
    }
    return bad | text_puts(out, "]");
}

static int json_rankings(const struct validation *v, struct text *out) {
    int bad = text_puts(out, ",\n \"ranking\": [");
    for (int i = 0; i < v->rankings; i++) {
        const struct validate_ranking *r = &v->ranking[i];
        bad |= text_puts(out, i ? ",\n  {" : "\n  {");
        bad |= put_string(out, "source", r->name);
        bad |= text_printf(out,
                           ", \"groups\": %d, \"rows\": %d, \"regret\": %.5f, \"regret_median\": "
                           "%.5f, \"regret_worst\": %.5f, \"spearman\": %.4f}",
                           r->groups, r->rows, r->regret_mean, r->regret_median, r->regret_worst,
                           r->spearman);
    }
    return bad | text_puts(out, "]");
}

int validation_json(const struct validation *v, bool rows, struct text *out) {
    char median[32] = "null"; // no row is used
    if (v->counted_sources > 0) snprintf(median, sizeof median, "%.5f", v->median_source);
    int bad =
        text_printf(out,
                    "{\"median_source_mape\": %s, \"used\": %d, \"mape\": %.5f, \"worst\": %.5f, "
                    "\"mean_source_mape\": %.5f, "
                    "\"worst_source_mape\": %.5f,\n \"counted_sources\": %d, \"counted_from\": %d, "
                    "\"beats_constant\": %d, \"of_sources\": %d,\n",
                    median, v->used, v->mean, v->worst, v->mean_source, v->worst_source,
                    v->counted_sources, v->counted_from, v->beaten_sources, v->large_sources);
    if (v->schedule_pairs)
        bad |=
            text_printf(out, " \"schedule_ratio_error\": %.5f, \"schedule_ratio_worst\": %.5f,\n",
                        v->schedule_mean, v->schedule_worst);
    if (v->failed + v->succeeded)
        bad |= text_printf(out,
                           " \"failed\": %d, \"failed_predicted\": %d, \"ran\": %d, "
                           "\"ran_predicted\": %d,\n",
                           v->failed, v->failed_found, v->succeeded, v->succeeded_found);
    bad |= json_sources(v, out);
    bad |= json_rankings(v, out);
    if (rows) bad |= json_rows(v, out);
    return bad | text_puts(out, "}\n") ? -1 : 0;
}

// ---- CSV

int validation_csv(const struct validation *v, struct text *out) {
    int bad = text_puts(
        out,
        "line,source,model,gpu,gpus,layers,hidden,heads,seq,tp,pp,vpp,cp,ep,dp,zero,micro_batch,"
        "sequences,schedule,recompute,precision,verdict,measured,predicted,error,product,attention,"
        "kernel,host,tensor,context,expert,update,rest,reduce,gather,group,memory,memory_"
        "predicted,memory_total,reason\n");
    for (int i = 0; i < v->rows; i++) {
        const struct validated *r = &v->row[i];
        const struct published *p = r->row;
        const struct validate_parts *s = &r->parts;
        bad |= text_printf(
            out, "%d,%s,\"%s\",%s,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%lld,%s,%s,%s,%s,",
            p->line, p->source, p->model, p->gpu, p->gpus, p->layers, p->hidden, p->heads,
            p->context, p->tp, p->pp, p->vpp, p->cp, p->ep, p->dp, p->zero, p->rows,
            (long long)p->sequences, p->schedule, recompute_name(r->recompute), p->precision,
            r->verdict == VALIDATE_USED     ? "used"
            : r->verdict == VALIDATE_RANKED ? "ranked"
                                            : "out");
        bad |= text_printf(
            out,
            "%.6g,%.6g,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%d,"
            "%.5g,%.5g,%.5g,\"%s\"\n",
            r->measured, r->predicted, r->error, s->product, s->attention, s->kernel, s->host,
            s->tensor, s->context, s->expert, s->update, s->rest, s->reduce, s->gather, r->group,
            r->memory, r->memory_predicted, r->memory_total, r->reason);
    }
    return bad ? -1 : 0;
}
