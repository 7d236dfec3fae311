// Reading what a run is. Every word is an option (--step-seconds) and a key of a YAML file
// (step_seconds); an option wins over the file, the file over the cluster, that over defaults.
#include "cli/simulate_input.h"
#include "base/text.h"
#include "cli/simulate_plan.h"
#include "cli/words.h"
#include "hardware/hardware.h"
#include "plan/size.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
static const struct word keys[KEYS] = {
    [CLUSTER] = {"cluster", WORD_TEXT, WORD_ELSEWHERE},
    [PARAMS] = {"params", WORD_NUMBER, WORD_ELSEWHERE},
    [NODES] = {"nodes", WORD_COUNT, AT(nodes)},
    [PER_NODE] = {"per-node", WORD_COUNT, AT(per_node)},
    [STEP_SECONDS] = {"step-seconds", WORD_SECONDS, AT(step_seconds)},
    [STEPS] = {"steps", WORD_NUMBER, WORD_ELSEWHERE},
    [DAYS] = {"days", WORD_NUMBER, WORD_ELSEWHERE},
    [TOKENS] = {"tokens", WORD_NUMBER, WORD_ELSEWHERE},
    [TOKENS_PER_STEP] = {"tokens-per-step", WORD_NUMBER, AT(tokens_per_step)},
    [PRICE] = {"price", WORD_NUMBER, AT(price_per_hour)},
    [FAILURES] = {"failures", WORD_NUMBER, AT(failures_per_node_day)},
    [FAILURES_WEEK] = {"failures-week", WORD_NUMBER, WORD_ELSEWHERE},
    [PESSIMISTIC] = {"pessimistic", WORD_FLAG, offsetof(struct simulate_request, pessimistic)},
    [SHAPE] = {"shape", WORD_NUMBER, AT(shape)},
    [REPLACED] = {"replaced", WORD_NUMBER, AT(replaced_share)},
    [DETECTION] = {"detection", WORD_SECONDS, AT(detection_seconds)},
    [RESTART] = {"restart", WORD_SECONDS, AT(restart_seconds)},
    [LOAD] = {"load", WORD_SECONDS, AT(load_seconds)},
    [START] = {"start", WORD_SECONDS, AT(start_seconds)},
    [BLOCKING] = {"blocking", WORD_SECONDS, AT(blocking_seconds)},
    [PERSIST] = {"persist", WORD_SECONDS, AT(persist_seconds)},
    [INTERVAL] = {"interval", WORD_SECONDS, WORD_ELSEWHERE},
    [INTERVAL_STEPS] = {"interval-steps", WORD_COUNT, WORD_ELSEWHERE},
    [SPARES] = {"spares", WORD_COUNT, WORD_ELSEWHERE},
    [PERCENTILE] = {"percentile", WORD_NUMBER, WORD_ELSEWHERE},
    [REPAIR] = {"repair", WORD_SECONDS, AT(repair_seconds)},
    [NO_SPARE] = {"no-spare", WORD_TEXT, WORD_ELSEWHERE},
    [REPLICA_NODES] = {"replica-nodes", WORD_COUNT, AT(replica_nodes)},
    [LEAST_NODES] = {"least-nodes", WORD_COUNT, AT(least_nodes)},
    [STRAGGLERS] = {"stragglers", WORD_NUMBER, AT(stragglers_per_node_day)},
    [SLOW] = {"slow", WORD_NUMBER, AT(straggler_factor)},
    [STRAGGLER_DETECTION] = {"straggler-detection", WORD_SECONDS, AT(straggler_seconds)},
    [SYNCHRONOUS] = {"synchronous", WORD_SECONDS,
                     offsetof(struct simulate_request, report.synchronous_seconds)},
    [UPTIME] = {"uptime", WORD_NUMBER, WORD_ELSEWHERE},
    [RUNS] = {"runs", WORD_COUNT, offsetof(struct simulate_request, count)},
    [SEED] = {"seed", WORD_TEXT, WORD_ELSEWHERE},
    [SVG] = {"svg", WORD_TEXT, offsetof(struct simulate_request, svg)},
    [JSON] = {"json", WORD_FLAG, offsetof(struct simulate_request, json)},
};

struct simulate_input {
    struct words words;
    struct catalogue *catalogue;
};

void simulate_input_close(struct simulate_input *input) {
    if (!input) return;
    words_free(&input->words);
    if (input->catalogue) catalogue_close(input->catalogue);
    free(input);
}

static int apply_length(const struct simulate_input *in, struct runs *runs, struct err *err) {
    static const int list[] = {STEPS, DAYS, TOKENS};
    int k = words_one_of(&in->words, list, 3, err);
    double value = 0;
    if (k == -2) return -1;
    if (k == -1) {
        if (runs->steps > 0) return 0; // of a plan
        return err_set(err, ERR_USAGE,
                       "simulate run: how long? expected --steps, --days (of steps, "
                       "without failures) or --tokens");
    }
    if (words_number(&in->words, k, &value, err) != 0) return -1;
    if (k == TOKENS && !(runs->tokens_per_step > 0))
        return err_set(err, ERR_USAGE, "%s: expected --tokens-per-step beside it",
                       in->words.where[k]);
    if (!(runs->step_seconds > 0))
        return err_set(err, ERR_USAGE,
                       "step-seconds %g: expected the seconds of a step, more than 0",
                       runs->step_seconds);
    if (k == DAYS) value = value * 86400 / runs->step_seconds;
    if (k == TOKENS) value = value / runs->tokens_per_step;
    if (!(value > 0 && value < 1e15)) return words_wrong(&in->words, k, "1 to 1e15 steps", err);
    runs->steps = (int64_t)ceil(value * (1 - 1e-12));
    return 0;
}

static int apply_failures(const struct simulate_input *in, struct runs_report *report,
                          struct err *err) {
    static const int list[] = {FAILURES, FAILURES_WEEK, PESSIMISTIC};
    int k = words_one_of(&in->words, list, 3, err);
    double value;
    if (k == -2) return -1;
    if (k == FAILURES) report->failures_from = "given";
    if (k == FAILURES_WEEK) {
        if (words_number(&in->words, FAILURES_WEEK, &value, err) != 0) return -1;
        report->runs.failures_per_node_day = value / 7 * report->runs.per_node;
        report->failures_from = "given";
    }
    if (k == PESSIMISTIC) {
        report->runs.failures_per_node_day = runs_pessimistic_rate(&report->runs);
        report->failures_from = "pessimistic";
    }
    return 0;
}

static int apply_synchronous(const struct simulate_input *in, double seconds, struct err *err) {
    if (in->words.given[SYNCHRONOUS] && !(seconds > 0 && seconds <= 86400 * 366.0))
        return words_wrong(&in->words, SYNCHRONOUS, "seconds above 0, at most a year", err);
    return 0;
}

static int apply_interval(const struct simulate_input *in, struct runs *runs, struct err *err) {
    static const int list[] = {INTERVAL, INTERVAL_STEPS};
    int k = words_one_of(&in->words, list, 2, err), steps;
    if (k == -2) return -1;
    if (k == -1 || strcmp(in->words.given[k], "auto") == 0) return 0;
    if (k == INTERVAL) {
        if (words_number(&in->words, INTERVAL, &runs->interval_seconds, err) != 0) return -1;
        return runs->interval_seconds > 0
                   ? 0
                   : words_wrong(&in->words, INTERVAL, "auto or seconds above 0", err);
    }
    if (words_count(&in->words, INTERVAL_STEPS, &steps, err) != 0) return -1;
    if (steps < 1) return words_wrong(&in->words, INTERVAL_STEPS, "auto or 1 step at least", err);
    runs->interval_seconds = steps * runs->step_seconds;
    return 0;
}

static int share_of(const struct simulate_input *in, enum key k, double *out, struct err *err) {
    if (!in->words.given[k]) return 0;
    if (words_number(&in->words, k, out, err) != 0) return -1;
    if (!(*out > 0 && *out < 1))
        return words_wrong(&in->words, k, "a share between 0 and 1, such as 0.99", err);
    return 0;
}

static int apply_spares(const struct simulate_input *in, struct runs_report *report,
                        struct err *err) {
    struct runs *runs = &report->runs;
    const char *policy = in->words.given[NO_SPARE], *text = in->words.given[SPARES];
    if (share_of(in, PERCENTILE, &report->percentile, err) != 0 ||
        share_of(in, UPTIME, &report->uptime, err) != 0)
        return -1;
    if (policy && strcmp(policy, "shrink") == 0)
        runs->without_spare = RUNS_SHRINK;
    else if (policy && strcmp(policy, "wait") != 0)
        return words_wrong(&in->words, NO_SPARE, "wait or shrink", err);
    if (text && strcmp(text, "auto") != 0)
        return words_count(&in->words, SPARES, &runs->spares, err);
    // what a failure finds with the chosen probability
    int spares = runs_spares_per_failure(runs, report->percentile);
    runs->spares = spares < 0 ? runs->nodes : spares;
    return 0;
}

static int apply_seed(const struct simulate_input *in, uint64_t *seed, struct err *err) {
    const char *text = in->words.given[SEED];
    char *end;
    if (!text) return 0;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (end == text || *end || *text == '-' || errno || *seed > INT64_MAX)
        return words_wrong(&in->words, SEED, "a whole number from 0 up", err);
    return 0;
}

// Size, price and failures of a cluster, as far as they are known.
static int apply_cluster(struct simulate_input *in, struct cluster *out, struct runs_report *report,
                         struct err *err) {
    if (!in->words.given[CLUSTER]) return 0;
    if (catalogue_open(&in->catalogue, err) != 0 ||
        catalogue_cluster(in->catalogue, in->words.given[CLUSTER], out, err) != 0)
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
    if (in->words.given[PARAMS]) {
        if (words_number(&in->words, PARAMS, &params, err) != 0) return -1;
        if (!(params >= 1 && params <= 1e15))
            return words_wrong(&in->words, PARAMS, "1 to 1e15", err);
        if (!in->words.given[CLUSTER])
            return err_set(err, ERR_USAGE,
                           "%s: expected --cluster beside it, whose storage says how "
                           "long a snapshot takes",
                           in->words.where[PARAMS]);
    }
    if (params > 0 && in->words.given[CLUSTER]) {
        double persist;
        size_checkpoint_times(params, cluster, SIZE_HOST_BANDWIDTH, &runs->blocking_seconds,
                              &persist);
        if (persist > 0) runs->persist_seconds = persist; // else no storage is described
    }
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
        words_store(&in->words, out, err) != 0 || apply_length(in, &report->runs, err) != 0 ||
        apply_failures(in, report, err) != 0 || apply_interval(in, &report->runs, err) != 0 ||
        apply_synchronous(in, report->synchronous_seconds, err) != 0)
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
    int read = words_read_options(&in->words, keys, KEYS, argc, argv, &file, err);
    if (read != 0) return read;
    bool plan = file && text_ends_with(file, ".json");
    if (file && !plan && words_read_file(&in->words, file, "simulate run", err) != 0) return -1;
    return apply(in, plan ? file : NULL, out, err);
}
