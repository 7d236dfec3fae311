// Reading what a run is. Every word is an option (--step-seconds) and a key of a YAML file
// (step_seconds); an option wins over the file, the file over the cluster, that over defaults.
#include "cli/simulate_input.h"
#include "base/text.h"
#include "base/yaml.h"
#include "cli/options.h"
#include "cli/simulate_plan.h"
#include "hardware/hardware.h"
#include "plan/size.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { SECONDS, NUMBER, COUNT, FLAG, WORD };
enum key {
    CLUSTER,
    PARAMS,
    NODES,
    PER_NODE,
    STEP_SECONDS,
    STEPS,
    DAYS,
    TOKENS,
    TOKENS_PER_STEP,
    PRICE,
    FAILURES,
    FAILURES_WEEK,
    PESSIMISTIC,
    SHAPE,
    REPLACED,
    DETECTION,
    RESTART,
    LOAD,
    START,
    BLOCKING,
    PERSIST,
    INTERVAL,
    INTERVAL_STEPS,
    SPARES,
    PERCENTILE,
    REPAIR,
    NO_SPARE,
    REPLICA_NODES,
    LEAST_NODES,
    STRAGGLERS,
    SLOW,
    STRAGGLER_DETECTION,
    SYNCHRONOUS,
    UPTIME,
    RUNS,
    SEED,
    SVG,
    JSON,
    KEYS
};
#define AT(field) offsetof(struct simulate_request, report.runs.field)
enum { ELSEWHERE = -1 };
static const struct {
    const char *name; // of the option without dashes
    enum kind kind;
    long offset; // of the request's field; ELSEWHERE: read apart
} keys[KEYS] = {
    [CLUSTER] = {"cluster", WORD, ELSEWHERE},
    [PARAMS] = {"params", NUMBER, ELSEWHERE},
    [NODES] = {"nodes", COUNT, AT(nodes)},
    [PER_NODE] = {"per-node", COUNT, AT(per_node)},
    [STEP_SECONDS] = {"step-seconds", SECONDS, AT(step_seconds)},
    [STEPS] = {"steps", NUMBER, ELSEWHERE},
    [DAYS] = {"days", NUMBER, ELSEWHERE},
    [TOKENS] = {"tokens", NUMBER, ELSEWHERE},
    [TOKENS_PER_STEP] = {"tokens-per-step", NUMBER, AT(tokens_per_step)},
    [PRICE] = {"price", NUMBER, AT(price_per_hour)},
    [FAILURES] = {"failures", NUMBER, AT(failures_per_node_day)},
    [FAILURES_WEEK] = {"failures-week", NUMBER, ELSEWHERE},
    [PESSIMISTIC] = {"pessimistic", FLAG, ELSEWHERE},
    [SHAPE] = {"shape", NUMBER, AT(shape)},
    [REPLACED] = {"replaced", NUMBER, AT(replaced_share)},
    [DETECTION] = {"detection", SECONDS, AT(detection_seconds)},
    [RESTART] = {"restart", SECONDS, AT(restart_seconds)},
    [LOAD] = {"load", SECONDS, AT(load_seconds)},
    [START] = {"start", SECONDS, AT(start_seconds)},
    [BLOCKING] = {"blocking", SECONDS, AT(blocking_seconds)},
    [PERSIST] = {"persist", SECONDS, AT(persist_seconds)},
    [INTERVAL] = {"interval", SECONDS, ELSEWHERE},
    [INTERVAL_STEPS] = {"interval-steps", COUNT, ELSEWHERE},
    [SPARES] = {"spares", COUNT, ELSEWHERE},
    [PERCENTILE] = {"percentile", NUMBER, ELSEWHERE},
    [REPAIR] = {"repair", SECONDS, AT(repair_seconds)},
    [NO_SPARE] = {"no-spare", WORD, ELSEWHERE},
    [REPLICA_NODES] = {"replica-nodes", COUNT, AT(replica_nodes)},
    [LEAST_NODES] = {"least-nodes", COUNT, AT(least_nodes)},
    [STRAGGLERS] = {"stragglers", NUMBER, AT(stragglers_per_node_day)},
    [SLOW] = {"slow", NUMBER, AT(straggler_factor)},
    [STRAGGLER_DETECTION] = {"straggler-detection", SECONDS, AT(straggler_seconds)},
    [SYNCHRONOUS] = {"synchronous", SECONDS,
                     offsetof(struct simulate_request, report.synchronous_seconds)},
    [UPTIME] = {"uptime", NUMBER, ELSEWHERE},
    [RUNS] = {"runs", COUNT, offsetof(struct simulate_request, count)},
    [SEED] = {"seed", WORD, ELSEWHERE},
    [SVG] = {"svg", WORD, offsetof(struct simulate_request, svg)},
    [JSON] = {"json", FLAG, offsetof(struct simulate_request, json)},
};

struct simulate_input {
    char option_names[KEYS][32];
    const char *given[KEYS]; // text of each key, or NULL
    bool flags[KEYS];
    char where[KEYS][300]; // for messages: "--nodes", "run.yaml:3: nodes"
    const char *file;      // "", or the name of the YAML file
    struct yaml_leaves leaves;
    struct catalogue *catalogue;
};

void simulate_input_close(struct simulate_input *input) {
    if (!input) return;
    yaml_free(&input->leaves);
    if (input->catalogue) catalogue_close(input->catalogue);
    free(input);
}

// ---- words --------------------------------------------------------------------------------------

static int read_options(struct simulate_input *in, int argc, char **argv, const char **file,
                        struct err *err) {
    struct option options[KEYS];
    const char *words[2];
    int count;
    for (int k = 0; k < KEYS; k++) {
        snprintf(in->option_names[k], sizeof in->option_names[k], "--%s", keys[k].name);
        options[k] = keys[k].kind == FLAG
                         ? (struct option){in->option_names[k], OPTION_FLAG, &in->flags[k], 0}
                         : (struct option){in->option_names[k], OPTION_TEXT, &in->given[k], 0};
    }
    int read = options_read(argc, argv, options, KEYS, words, 1, &count, err);
    if (read != 0) return read;
    *file = count ? words[0] : NULL;
    for (int k = 0; k < KEYS; k++) {
        if (in->flags[k]) in->given[k] = "true";
        snprintf(in->where[k], sizeof in->where[k], "%s", in->option_names[k]);
    }
    return 0;
}

static int unknown_key(const char *path, const struct yaml_leaf *leaf, struct err *err) {
    const char *names[KEYS];
    for (int k = 0; k < KEYS; k++) names[k] = keys[k].name;
    const char *nearest = text_nearest(leaf->key, names, KEYS);
    return err_set(err, ERR_USAGE,
                   "%s:%d: unknown key \"%.100s\"%s%s%s; weft simulate run --help "
                   "lists them (- or _)",
                   path, leaf->line, leaf->key, nearest ? ", did you mean " : "",
                   nearest ? nearest : "", nearest ? "?" : "");
}

// Keys of the file that no option gave.
static int read_file(struct simulate_input *in, const char *path, struct err *err) {
    if (yaml_read(path, &in->leaves, err) != 0) return -1;
    for (size_t i = 0; i < in->leaves.count; i++) {
        struct yaml_leaf *leaf = &in->leaves.leaf[i];
        for (char *c = leaf->key; *c; c++)
            if (*c == '_') *c = '-';
        int k = 0;
        while (k < KEYS && strcmp(leaf->key, keys[k].name) != 0) k++;
        if (k == KEYS) return unknown_key(path, leaf, err);
        if (in->given[k] || leaf->is_null) continue;
        in->given[k] = leaf->text;
        snprintf(in->where[k], sizeof in->where[k], "%.200s:%d: %s", path, leaf->line, leaf->key);
    }
    return 0;
}

// ---- values -------------------------------------------------------------------------------------

static int wrong(const struct simulate_input *in, enum key k, const char *expected,
                 struct err *err) {
    return err_set(err, ERR_USAGE, "%s \"%.100s\": expected %s", in->where[k], in->given[k],
                   expected);
}

static int number_of(const struct simulate_input *in, enum key k, double *out, struct err *err) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    errno = 0;
    double value = strtod(in->given[k], &end);
    if (end == in->given[k] || !isfinite(value)) end = NULL;
    while (end && *end == ' ') end++;
    size_t most = keys[k].kind == SECONDS ? sizeof units / sizeof units[0] : 1;
    for (size_t u = 0; end && u < most; u++)
        if (strcmp(end, units[u].name) == 0) {
            *out = value * units[u].seconds;
            return 0;
        }
    return wrong(
        in, k, keys[k].kind == SECONDS ? "seconds, or a number with min, h or d" : "a number", err);
}

static int count_of(const struct simulate_input *in, enum key k, int *out, struct err *err) {
    char *end;
    errno = 0;
    long value = strtol(in->given[k], &end, 10);
    if (end == in->given[k] || *end || errno || value < INT_MIN || value > INT_MAX)
        return wrong(in, k, "a whole number", err);
    *out = (int)value;
    return 0;
}

// Keys that stand for one field each.
static int apply_plain(const struct simulate_input *in, struct simulate_request *out,
                       struct err *err) {
    for (int k = 0; k < KEYS; k++) {
        if (!in->given[k] || keys[k].offset == ELSEWHERE) continue;
        void *field = (char *)out + keys[k].offset;
        int failed = 0;
        switch (keys[k].kind) {
        case SECONDS:
        case NUMBER:
            failed = number_of(in, (enum key)k, field, err);
            break;
        case COUNT:
            failed = count_of(in, (enum key)k, field, err);
            break;
        case WORD:
            *(const char **)field = in->given[k];
            break;
        case FLAG:
            *(bool *)field = strcmp(in->given[k], "true") == 0;
            if (!*(bool *)field && strcmp(in->given[k], "false") != 0)
                failed = wrong(in, (enum key)k, "true or false", err);
            break;
        }
        if (failed) return -1;
    }
    return 0;
}

// At most one of these may be given; returns which, -1 for none, -2 with a message for more.
static int one_of(const struct simulate_input *in, const enum key *list, int count,
                  struct err *err) {
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (!in->given[list[i]]) continue;
        if (found >= 0) {
            err_set(err, ERR_USAGE, "%s and %s: expected one of the two", in->where[found],
                    in->where[list[i]]);
            return -2;
        }
        found = (int)list[i];
    }
    return found;
}

static int apply_length(const struct simulate_input *in, struct runs *runs, struct err *err) {
    static const enum key list[] = {STEPS, DAYS, TOKENS};
    int k = one_of(in, list, 3, err);
    double value = 0;
    if (k == -2) return -1;
    if (k == -1) {
        if (runs->steps > 0) return 0; // of a plan
        return err_set(err, ERR_USAGE,
                       "simulate run: how long? expected --steps, --days (of steps, "
                       "without failures) or --tokens");
    }
    if (number_of(in, (enum key)k, &value, err) != 0) return -1;
    if (k == TOKENS && !(runs->tokens_per_step > 0))
        return err_set(err, ERR_USAGE, "%s: expected --tokens-per-step beside it", in->where[k]);
    if (!(runs->step_seconds > 0))
        return err_set(err, ERR_USAGE,
                       "step-seconds %g: expected the seconds of a step, more than 0",
                       runs->step_seconds);
    if (k == DAYS) value = value * 86400 / runs->step_seconds;
    if (k == TOKENS) value = value / runs->tokens_per_step;
    if (!(value > 0 && value < 1e15)) return wrong(in, (enum key)k, "1 to 1e15 steps", err);
    runs->steps = (int64_t)ceil(value * (1 - 1e-12));
    return 0;
}

static int apply_failures(const struct simulate_input *in, struct runs_report *report,
                          struct err *err) {
    static const enum key list[] = {FAILURES, FAILURES_WEEK, PESSIMISTIC};
    int k = one_of(in, list, 3, err);
    double value;
    if (k == -2) return -1;
    if (k == FAILURES) report->failures_from = "given";
    if (k == FAILURES_WEEK) {
        if (number_of(in, FAILURES_WEEK, &value, err) != 0) return -1;
        report->runs.failures_per_node_day = value / 7 * report->runs.per_node;
        report->failures_from = "given";
    }
    if (k == PESSIMISTIC) {
        report->runs.failures_per_node_day = runs_pessimistic_rate(&report->runs);
        report->failures_from = "pessimistic";
    }
    return 0;
}

static int apply_interval(const struct simulate_input *in, struct runs *runs, struct err *err) {
    static const enum key list[] = {INTERVAL, INTERVAL_STEPS};
    int k = one_of(in, list, 2, err), steps;
    if (k == -2) return -1;
    if (k == -1 || strcmp(in->given[k], "auto") == 0) return 0;
    if (k == INTERVAL) {
        if (number_of(in, INTERVAL, &runs->interval_seconds, err) != 0) return -1;
        return runs->interval_seconds > 0 ? 0 : wrong(in, INTERVAL, "auto or seconds above 0", err);
    }
    if (count_of(in, INTERVAL_STEPS, &steps, err) != 0) return -1;
    if (steps < 1) return wrong(in, INTERVAL_STEPS, "auto or 1 step at least", err);
    runs->interval_seconds = steps * runs->step_seconds;
    return 0;
}

static int share_of(const struct simulate_input *in, enum key k, double *out, struct err *err) {
    if (!in->given[k]) return 0;
    if (number_of(in, k, out, err) != 0) return -1;
    if (!(*out > 0 && *out < 1)) return wrong(in, k, "a share between 0 and 1, such as 0.99", err);
    return 0;
}

static int apply_spares(const struct simulate_input *in, struct runs_report *report,
                        struct err *err) {
    struct runs *runs = &report->runs;
    const char *policy = in->given[NO_SPARE], *text = in->given[SPARES];
    if (share_of(in, PERCENTILE, &report->percentile, err) != 0 ||
        share_of(in, UPTIME, &report->uptime, err) != 0)
        return -1;
    if (policy && strcmp(policy, "shrink") == 0)
        runs->without_spare = RUNS_SHRINK;
    else if (policy && strcmp(policy, "wait") != 0)
        return wrong(in, NO_SPARE, "wait or shrink", err);
    if (text && strcmp(text, "auto") != 0) return count_of(in, SPARES, &runs->spares, err);
    // what a failure finds with the chosen probability
    int spares = runs_spares_per_failure(runs, report->percentile);
    runs->spares = spares < 0 ? runs->nodes : spares;
    return 0;
}

static int apply_seed(const struct simulate_input *in, uint64_t *seed, struct err *err) {
    const char *text = in->given[SEED];
    char *end;
    if (!text) return 0;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (end == text || *end || *text == '-' || errno)
        return wrong(in, SEED, "a whole number from 0 up", err);
    return 0;
}

// Size, price and failures of a cluster, as far as they are known.
static int apply_cluster(struct simulate_input *in, struct cluster *out, struct runs_report *report,
                         struct err *err) {
    if (!in->given[CLUSTER]) return 0;
    if (catalogue_open(&in->catalogue, err) != 0 ||
        catalogue_cluster(in->catalogue, in->given[CLUSTER], out, err) != 0)
        return -1;
    const struct cluster cluster = *out;
    report->runs.nodes = cluster.nodes;
    report->runs.per_node = cluster.per_node;
    if (cluster.price_per_hour.origin != FIGURE_ABSENT)
        report->runs.price_per_hour = cluster.price_per_hour.value;
    if (cluster.repair_seconds.origin != FIGURE_ABSENT)
        report->runs.repair_seconds = cluster.repair_seconds.value;
    if (cluster.failures_per_node_day.origin != FIGURE_ABSENT) {
        report->runs.failures_per_node_day = cluster.failures_per_node_day.value;
        report->failures_from = "the cluster's";
    }
    return 0;
}

static int apply_plan(const char *path, struct runs_report *report, double *params,
                      struct err *err) {
    double before = report->runs.failures_per_node_day;
    if (!path) return 0;
    if (simulate_plan_read(path, &report->runs, params, err) != 0) return -1;
    if (report->runs.failures_per_node_day != before) report->failures_from = "the plan's";
    return 0;
}

// What a snapshot of the model takes on the cluster; an option of its own wins.
static int apply_checkpoint(const struct simulate_input *in, const struct cluster *cluster,
                            double params, struct runs *runs, struct err *err) {
    if (in->given[PARAMS]) {
        if (number_of(in, PARAMS, &params, err) != 0) return -1;
        if (!(params >= 1 && params <= 1e15)) return wrong(in, PARAMS, "1 to 1e15", err);
        if (!in->given[CLUSTER])
            return err_set(err, ERR_USAGE,
                           "%s: expected --cluster beside it, whose storage says how "
                           "long a snapshot takes",
                           in->where[PARAMS]);
    }
    if (params > 0 && in->given[CLUSTER])
        size_checkpoint_times(params, cluster, SIZE_HOST_BANDWIDTH, &runs->blocking_seconds,
                              &runs->persist_seconds);
    return 0;
}

static int apply(struct simulate_input *in, const char *plan, struct simulate_request *out,
                 struct err *err) {
    struct runs_report *report = &out->report;
    struct cluster cluster = {0};
    double params = 0;
    if (apply_cluster(in, &cluster, report, err) != 0 ||
        apply_plan(plan, report, &params, err) != 0 ||
        apply_checkpoint(in, &cluster, params, &report->runs, err) != 0 ||
        apply_plain(in, out, err) != 0 || apply_length(in, &report->runs, err) != 0 ||
        apply_failures(in, report, err) != 0 || apply_interval(in, &report->runs, err) != 0)
        return -1;
    // before the spares are counted, so that a wrong rate or size is named as such
    if (runs_check(&report->runs, err) != 0 || apply_spares(in, report, err) != 0 ||
        apply_seed(in, &report->seed, err) != 0)
        return -1;
    return runs_check(&report->runs, err);
}

int simulate_input_read(int argc, char **argv, struct simulate_input **input,
                        struct simulate_request *out, struct err *err) {
    struct simulate_input *in = calloc(1, sizeof *in);
    const char *file = NULL;
    if (!in) return err_set(err, ERR_MEMORY, "no memory for the options");
    *input = in;
    *out = (struct simulate_request){
        .count = 1000,
        .report = {.failures_from = "default", .seed = 1, .percentile = 0.99, .uptime = 0.995}};
    runs_defaults(&out->report.runs);
    int read = read_options(in, argc, argv, &file, err);
    if (read != 0) return read;
    bool plan = file && text_ends_with(file, ".json");
    if (file && !plan && read_file(in, file, err) != 0) return -1;
    return apply(in, plan ? file : NULL, out, err);
}
