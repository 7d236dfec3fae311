// weft plan explain RUN: what was foretold of a run beside what it measured, term by term and
// action by action.
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "plan/explain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft plan explain RUN [--trace FILE] [--largest N] [--json]\n\n"
    "RUN is the folder of a run (or its prediction.json) that weft train set beside a prediction:\n"
    "--hardware FILE, or a machine that weft bench hardware has measured. Prints memory, step\n"
    "time, computing and waiting with their ratios, and whether the configuration was edited "
    "after\n"
    "it was planned. With timelines (train.trace, --trace) also every action: the median error of\n"
    "each kind, and where most seconds are missed.\n\n"
    "  --trace FILE   the timeline that train.trace named, where it is no longer there\n"
    "  --largest N    differences that are shown (10)\n"
    "  --json\n";

enum { MOST_PATH = 4096, MOST_RANKS = 65536, SKIPPED_STEPS = 2 };

struct arguments {
    const char *run, *trace;
    int largest;
    bool json;
};

struct explained {
    struct arguments words;
    char path[MOST_PATH];
    json_t *root, *predicted, *measured, *plan;
    struct explain_trace predicted_trace, measured_trace;
    struct explain explain;
    bool has_traces;
};

// ---- reading ------------------------------------------------------------------------------------

static int read_prediction(struct explained *x, struct err *err) {
    const char *run = x->words.run;
    if (file_is_folder(run)) {
        if (file_join(x->path, sizeof x->path, run, "prediction.json", err) != 0) return -1;
    } else {
        snprintf(x->path, sizeof x->path, "%s", run);
    }
    if (!file_exists(x->path))
        return err_set(err, ERR_USAGE,
                       "%s is not there: nothing was foretold of this run. \"weft bench "
                       "hardware\" measures the machine; weft train then leaves it in the run's "
                       "folder",
                       x->path);
    x->root = json_parse_file(x->path, err);
    if (!x->root) return -1;
    x->predicted = json_object_get(x->root, "predicted");
    x->measured = json_object_get(x->root, "measured");
    x->plan = json_object_get(x->root, "plan");
    static const char *const keys[] = {"step_seconds", "tokens_per_second", "memory_bytes",
                                       "computing_seconds", "waiting_seconds"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double unused;
        struct json_at p = {x->predicted, x->path}, m = {x->measured, x->path};
        if (!json_is_object(x->predicted) || !json_is_object(x->measured))
            return err_set(err, ERR_DATA,
                           "%s: expected objects \"predicted\" and \"measured\", as weft train "
                           "leaves them",
                           x->path);
        if (json_get_double(p, keys[i], true, 0, &unused, err) != 0 ||
            json_get_double(m, keys[i], true, 0, &unused, err) != 0)
            return -1;
    }
    return 0;
}

static double number(const json_t *from, const char *key) {
    return json_number_value(json_object_get(from, key));
}

// Of one rank the trace has the name that was given, of several a file each.
static int read_traces(struct explained *x, struct err *err) {
    int ranks = (int)number(x->root, "ranks");
    const char *trace = x->words.trace, *predicted;
    if (!trace) trace = json_string_value(json_object_get(x->root, "trace"));
    predicted = json_string_value(json_object_get(x->root, "predicted_trace"));
    if (!trace || !*trace || !predicted || !*predicted) return 0;
    if (ranks < 1 || ranks > MOST_RANKS)
        return err_set(err, ERR_DATA, "%s: ranks %d: expected 1 to %d", x->path, ranks, MOST_RANKS);
    if (explain_read_predicted(predicted, &x->predicted_trace, err) != 0) return -1;
    for (int r = 0; r < ranks; r++) {
        char path[MOST_PATH];
        if (ranks == 1)
            snprintf(path, sizeof path, "%s", trace);
        else
            snprintf(path, sizeof path, "%s.rank%d", trace, r);
        if (explain_read_measured(path, r, SKIPPED_STEPS, &x->measured_trace, err) != 0) return -1;
    }
    x->has_traces = true;
    return explain_compare(&x->predicted_trace, &x->measured_trace, &x->explain, err);
}

// ---- text ---------------------------------------------------------------------------------------

static void print_term(const struct explained *x, const char *name, const char *key, double scale,
                       const char *unit) {
    double p = number(x->predicted, key) / scale, m = number(x->measured, key) / scale;
    printf("%-22s %12.4f %-3s %12.4f %-3s", name, p, unit, m, unit);
    if (p > 0 && m > 0)
        printf(" %8.3f\n", p / m);
    else
        printf("        -\n");
}

static void print_plan(const struct explained *x) {
    if (!x->plan) return;
    const char *path = json_string_value(json_object_get(x->plan, "path"));
    const char *then = json_string_value(json_object_get(x->plan, "digest"));
    const char *now = json_string_value(json_object_get(x->plan, "digest_now"));
    if (!path || !then || !now) return;
    if (json_is_true(json_object_get(x->plan, "edited")))
        printf("%s was edited after planning: digest %s, then %s; the plan's %.4f s are of another "
               "configuration\n",
               path, then, now, number(x->plan, "step_seconds"));
    else
        printf("%s is as it was planned (digest %s)%s; foretold there: %.4f s\n", path, then,
               json_is_true(json_object_get(x->plan, "overridden"))
                   ? ", but for keys of the command line"
                   : "",
               number(x->plan, "step_seconds"));
}

static void print_kind(const char *name, const struct explain_kind *k, int ranks) {
    if (k->count == 0) return;
    printf("%-22s %8d %12.4f s %12.4f s %8.3f %10.1f %%\n", name, k->count, k->predicted / ranks,
           k->measured / ranks, k->predicted / k->measured, 100 * k->median_error);
}

static void print_actions(const struct explained *x) {
    const struct explain *e = &x->explain;
    int ranks = x->measured_trace.ranks;
    double step = x->measured_trace.step_seconds;
    double foretold = x->predicted_trace.step_seconds;
    printf("%-22s %12.3f     %12.3f    ", "waiting for stages",
           foretold > 0 ? x->predicted_trace.stage_seconds / foretold : 0,
           step > 0 ? x->measured_trace.stage_seconds / step : 0);
    if (x->predicted_trace.stage_seconds > 0 && x->measured_trace.stage_seconds > 0)
        printf(" %8.3f   share of the step (bubble), mean over ranks\n",
               x->predicted_trace.stage_seconds / foretold /
                   (x->measured_trace.stage_seconds / step));
    else
        printf("        -   share of the step (bubble), mean over ranks\n");
    printf("\nactions of a step      %8s %14s %14s %8s %12s\n", "count", "predicted", "measured",
           "ratio", "median error");
    for (int n = 0; n < EXPLAIN_NAMES; n++)
        print_kind(explain_name_text((enum explain_name)n), &e->kinds[n], ranks);
    print_kind("all", &e->all, ranks);
    if (e->only_predicted > 0 || e->only_measured > 0)
        printf("only foretold: %d actions; only measured: %d\n", e->only_predicted,
               e->only_measured);
    printf("\nlargest differences\n");
    for (int i = 0; i < e->pair_count && i < x->words.largest; i++) {
        const struct explain_pair *p = &e->pairs[i];
        printf("  rank %-4d %-16s %4d   %10.5f s foretold, %10.5f s measured, %+6.1f %%\n",
               p->measured->rank, explain_name_text(p->measured->name), p->measured->index,
               p->predicted->seconds, p->measured->seconds, 100 * p->error);
    }
}

static void print_text(const struct explained *x) {
    const char *hardware = json_string_value(json_object_get(x->root, "hardware"));
    const char *warning = json_string_value(json_object_get(x->root, "warning"));
    printf("foretold from %s%s\n", hardware ? hardware : "?",
           json_is_true(json_object_get(x->root, "assumed")) ? "; assumed, not all was measured"
                                                             : "");
    if (warning && *warning) printf("warning: %s\n", warning);
    print_plan(x);
    printf("%-22s %16s %16s %8s\n", "", "predicted   ", "measured   ", "ratio");
    print_term(x, "step time", "step_seconds", 1, "s");
    print_term(x, "tokens/s", "tokens_per_second", 1, "");
    print_term(x, "memory of rank 0", "memory_bytes", 1e6, "MB");
    print_term(x, "computing, rank 0", "computing_seconds", 1, "s");
    print_term(x, "waiting for messages", "waiting_seconds", 1, "s");
    if (x->has_traces)
        print_actions(x);
    else
        printf("\nno timeline: train.trace=FILE leaves one, and its actions are compared then\n");
}

// ---- JSON ---------------------------------------------------------------------------------------

static json_t *kind_json(const struct explain_kind *k, int ranks) {
    return json_pack("{s:i, s:f, s:f, s:f}", "count", k->count, "predicted_seconds",
                     k->predicted / ranks, "measured_seconds", k->measured / ranks, "median_error",
                     k->median_error);
}

static void print_json(const struct explained *x) {
    json_t *root = json_deep_copy(x->root);
    if (x->has_traces) {
        int ranks = x->measured_trace.ranks;
        json_t *kinds = json_object(), *largest = json_array();
        for (int n = 0; n < EXPLAIN_NAMES; n++)
            if (x->explain.kinds[n].count > 0)
                json_object_set_new(kinds, explain_name_text((enum explain_name)n),
                                    kind_json(&x->explain.kinds[n], ranks));
        json_object_set_new(kinds, "all", kind_json(&x->explain.all, ranks));
        for (int i = 0; i < x->explain.pair_count && i < x->words.largest; i++) {
            const struct explain_pair *p = &x->explain.pairs[i];
            json_array_append_new(
                largest, json_pack("{s:i, s:s, s:i, s:f, s:f}", "rank", p->measured->rank, "action",
                                   explain_name_text(p->measured->name), "index",
                                   p->measured->index, "predicted_seconds", p->predicted->seconds,
                                   "measured_seconds", p->measured->seconds));
        }
        json_object_set_new(root, "actions", kinds);
        json_object_set_new(root, "largest", largest);
        json_object_set_new(root, "predicted_stage_wait_seconds",
                            json_real(x->predicted_trace.stage_seconds));
        json_object_set_new(root, "measured_stage_wait_seconds",
                            json_real(x->measured_trace.stage_seconds));
        json_object_set_new(root, "measured_state_wait_seconds",
                            json_real(x->measured_trace.state_seconds));
    }
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(root);
}

int plan_explain(int argc, char **argv) {
    static struct explained x;
    const char *words[1] = {NULL};
    int count;
    struct err err = {0};
    x = (struct explained){.words = {.largest = 10}};
    const struct option options[] = {
        {"--trace", OPTION_TEXT, &x.words.trace, 0},
        {"--largest", OPTION_COUNT, &x.words.largest, 0},
        {"--json", OPTION_FLAG, &x.words.json, 0},
    };
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], words, 1,
                           &count, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && count == 0)
        got = err_set(&err, ERR_USAGE, "plan explain: the folder of a run is needed");
    x.words.run = words[0];
    if (got == 0) got = read_prediction(&x, &err);
    if (got == 0) got = read_traces(&x, &err);
    if (got == 0) x.words.json ? print_json(&x) : print_text(&x);
    explain_free(&x.explain);
    explain_trace_free(&x.predicted_trace);
    explain_trace_free(&x.measured_trace);
    json_decref(x.root);
    return got == 0 ? 0 : cli_fail(&err);
}
