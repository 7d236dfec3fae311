// weft simulate: whole runs under failures.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/simulate_input.h"
#include "plan/draw.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft simulate run [FILE.yaml | PLAN.json] [options]\n"
    "\n"
    "A training run of weeks under failures: expected and simulated effective training time, the\n"
    "best checkpoint interval, spares, accelerator-hours and money lost by cause. FILE.yaml holds\n"
    "the options below as keys (step_seconds: 2); PLAN.json is what weft plan --json printed.\n"
    "Times are seconds, or have a unit: 90, 10min, 1.5h, 1d.\n"
    "\n"
    "the run\n"
    "  --nodes N            that compute      --per-node N        accelerators of a node (8)\n"
    "  --cluster NAME       or file: nodes, price, failures and repair of the catalogue\n"
    "  --step-seconds S     without failures  --price D           of an accelerator-hour\n"
    "  --steps N | --days D | --tokens N --tokens-per-step N      its length (days of steps)\n"
    "failures\n"
    "  --failures R         per node and day (3.8e-3: 419 in 54 days on 2,048 nodes, Llama 3)\n"
    "  --failures-week P    share of accelerators a week instead\n"
    "  --pessimistic        1 % of accelerators a week, three times the default\n"
    "  --shape K            Weibull shape of the times between failures (1: exponential)\n"
    "  --replaced P         share of failures that take their node out (1)\n"
    "  --detection S (60)   --restart S (420)   --load S (120)   --start S of the first launch "
    "(0)\n"
    "checkpoints\n"
    "  --params N           of the model: what its snapshot takes on --cluster, instead of the "
    "next\n"
    "  --blocking S         standing still for a snapshot (5)\n"
    "  --persist S          from then until it counts, in the background (90)\n"
    "  --interval S|auto    useful time between snapshots; never below the persist time (auto)\n"
    "  --interval-steps N   the same in steps\n"
    "  --synchronous S      sets a checkpoint beside that blocks so long, at its own best "
    "interval\n"
    "spares\n"
    "  --spares N|auto      hot nodes beside those that compute (auto: by the percentile)\n"
    "  --percentile P       of failures that find a spare, of runs that never wait (0.99)\n"
    "  --repair S           until a lost node is a spare again, on average (1d)\n"
    "  --no-spare wait|shrink   wait for a repair, or go on with fewer replicas (wait)\n"
    "  --replica-nodes N    of a data-parallel replica (1)   --least-nodes N   to go on with (1)\n"
    "  --uptime P           prints the recovery that it needs (0.995)\n"
    "stragglers\n"
    "  --stragglers R       per node and day (0)   --slow F   a step takes F times as long (1.3)\n"
    "  --straggler-detection S   until one is found and swapped (10min)\n"
    "\n"
    "  --runs N (1000)      --seed N (1)    the same seed gives the same runs\n"
    "  --json               figures as JSON\n"
    "  --svg FILE           effective training time over the checkpoint interval\n";

static int print(struct simulate_request *request, struct err *err) {
    struct text out = {0};
    int result = runs_report_make(&request->report, request->count, err);
    if (result == 0 && request->json) {
        json_t *json = runs_report_json(&request->report);
        char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
        json_decref(json);
        result = text ? 0 : err_set(err, ERR_MEMORY, "no memory for the report");
        if (text) puts(text);
        free(text);
    } else if (result == 0) {
        result = runs_report_print(&request->report, &out);
        if (result != 0) err_set(err, ERR_MEMORY, "no memory for the report");
        if (result == 0) fwrite(out.data, 1, out.size, stdout);
    }
    text_free(&out);
    return result;
}

enum { RUNS_OF_A_POINT = 200 };

static int write_svg(const struct simulate_request *request, struct err *err) {
    struct text out = {0};
    if (!request->svg) return 0;
    int count = request->count < RUNS_OF_A_POINT ? request->count : RUNS_OF_A_POINT;
    int result = draw_interval(&request->report.runs, count, request->report.seed,
                               "Effective training time over the checkpoint interval", &out, err);
    if (result == 0) result = file_replace(request->svg, out.data, out.size, err);
    text_free(&out);
    return result;
}

static int simulate_run(int argc, char **argv) {
    struct simulate_input *input = NULL;
    struct simulate_request request;
    struct err err = {0};
    int result = simulate_input_read(argc, argv, &input, &request, &err);
    if (result == 1) fputs(usage, stdout);
    if (result == 0) result = print(&request, &err);
    if (result == 0) result = write_svg(&request, &err);
    simulate_input_close(input);
    return result >= 0 ? 0 : cli_fail(&err);
}

int verb_simulate(int argc, char **argv) {
    struct err err = {0};
    if (argc >= 2 && strcmp(argv[1], "run") == 0) {
        char name[] = "simulate run";
        argv[1] = name;
        return simulate_run(argc - 1, argv + 1);
    }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    err_set(&err, ERR_USAGE, "simulate: %s%.100s%s; expected weft simulate run ...",
            argc >= 2 ? "unknown word \"" : "what", argc >= 2 ? argv[1] : "",
            argc >= 2 ? "\"" : "?");
    return cli_fail(&err);
}
