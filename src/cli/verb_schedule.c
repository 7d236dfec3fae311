// weft schedule: draws, checks, prices and converts pipeline schedules.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "schedule/pipeline.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft schedule [options]\n"
    "\n"
    "Draws the schedule of a pipeline-parallel step and gives its bubble and its memory.\n"
    "\n"
    "  --kind NAME          gpipe, 1f1b (default), interleaved, zb-h1 or zb-v\n"
    "  --pp N               pipeline ranks (4)\n"
    "  --micro-batches N    of one step, per pipeline (8)\n"
    "  --chunks V           stages per rank; interleaved takes any number (2)\n"
    "  --spare N            slots per stage beyond the least, so that inputs arrive early (0)\n"
    "  --read FILE.csv      a list of your own instead: one row per rank, cells such as 0F3\n"
    "                       (stage, F B I or W, micro-batch), empty ones are pauses\n"
    "  --costs F,I,W[,SEND[,STEP]]\n"
    "                       times of a stage's forward, input-gradient half, weight-gradient\n"
    "                       half, of a message and of the optimizer; any unit (1,1,1,0,0)\n"
    "  --stage-factor LIST  of each stage, multiplies its three times: 1,1,1,1.5\n"
    "  --svg FILE           also writes a picture\n"
    "  --csv                prints the list as --read takes it, nothing else\n"
    "  --actions            prints every rank's complete list: > < sends and receives outputs,\n"
    "                       } { gradients, G gathers weights, R reduces gradients, S steps\n"
    "  --json               figures as JSON\n"
    "  --columns N          width of the drawing in characters (the terminal's)\n";

enum { MOST_FACTORS = 1024 };

struct schedule_arguments {
    const char *kind, *read, *costs, *stage_factor, *svg;
    int ranks, chunks, micro_batches, spare, columns;
    bool csv, actions, json;
};

static int terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        return size.ws_col < 200 ? size.ws_col : 200;
    return 100;
}

// Numbers from 0 up, with commas between; returns how many, or -1.
static int read_numbers(const char *option, const char *text, double *out, int most,
                        struct err *err) {
    const char *at = text;
    for (int count = 0; count < most; at++) {
        char *end;
        errno = 0;
        out[count] = strtod(at, &end);
        if (end == at || !isfinite(out[count]) || out[count] < 0 || (*end && *end != ',')) break;
        count++;
        if (*end == 0) return count;
        at = end;
    }
    return err_set(err, ERR_USAGE,
                   "schedule: %s \"%.100s\": expected at most %d numbers from 0 up with commas "
                   "between them",
                   option, text, most);
}

static int read_costs(const struct schedule_arguments *a, const struct pipeline *p,
                      struct pipeline_costs *costs, double *factors, struct err *err) {
    double numbers[5] = {1, 1, 1, 0, 0};
    if (a->costs) {
        int count = read_numbers("--costs", a->costs, numbers, 5, err);
        if (count < 0) return -1;
        if (count < 3 || numbers[0] + numbers[1] + numbers[2] <= 0)
            return err_set(err, ERR_USAGE,
                           "schedule: --costs \"%.100s\": expected forward, input half and weight "
                           "half at least, not all 0",
                           a->costs);
    }
    *costs = (struct pipeline_costs){.forward = numbers[0],
                                     .input = numbers[1],
                                     .weight = numbers[2],
                                     .send = numbers[3],
                                     .step = numbers[4]};
    if (!a->stage_factor) return 0;
    int count = read_numbers("--stage-factor", a->stage_factor, factors, MOST_FACTORS, err);
    if (count < 0) return -1;
    if (count != p->stages)
        return err_set(err, ERR_USAGE,
                       "schedule: --stage-factor has %d numbers, expected one for each of the %d "
                       "stages",
                       count, p->stages);
    costs->stage_factor = factors;
    return 0;
}

static int open_list(const struct schedule_arguments *a, struct pipeline *p, struct err *err) {
    struct pipeline_shape shape = {.ranks = a->ranks,
                                   .chunks = a->chunks,
                                   .micro_batches = a->micro_batches,
                                   .spare = a->spare,
                                   .gather = true,
                                   .reduce = true};
    if (a->read) {
        if (a->kind)
            return err_set(err, ERR_USAGE, "schedule: --read and --kind exclude each other");
        char *text;
        size_t bytes;
        if (file_read(a->read, (size_t)64 << 20, &text, &bytes, err) != 0) return -1;
        int result = strlen(text) == bytes ? pipeline_open_csv(p, text, a->read, &shape, err)
                                           : err_set(err, ERR_DATA, "%s: not text, byte %zu is 0",
                                                     a->read, strlen(text));
        free(text);
        return result;
    }
    if (pipeline_parse_kind(a->kind ? a->kind : "1f1b", &shape.kind, err) != 0)
        return err_context(err, "schedule: --kind");
    if (!shape.ranks) shape.ranks = 4;
    if (!shape.micro_batches) shape.micro_batches = 8;
    if (pipeline_open(p, &shape, err) != 0) return -1;
    int result = pipeline_validate(p, err);
    if (result != 0) pipeline_close(p);
    return result;
}

// ---- results

struct result {
    const struct pipeline *p;
    struct pipeline_times equal, given;
    bool has_given;
    double formula; // below 0: none
};

static int put_title(const struct result *r, struct text *out) {
    const struct pipeline_shape *s = &r->p->shape;
    const struct pipeline_times *t = r->has_given ? &r->given : &r->equal;
    int failed = text_printf(out, "%s, %d ranks", pipeline_kind_name(s->kind), s->ranks);
    if (s->chunks > 1) failed |= text_printf(out, " x %d stages", s->chunks);
    return failed | text_printf(out, ", %d micro-batches: bubble %.1f %%%s", s->micro_batches,
                                100 * t->bubble, r->has_given ? " with the given costs" : "");
}

static int put_figures(const struct result *r, struct text *out) {
    static const char *const formulas[] = {"(p-1)/(p-1+m)", "(p-1)/(p-1+m)", "(p-1)/(p-1+vm)",
                                           "(p-1)/(p-1+3m)", "(p-1)/(p-1+6m)"};
    int failed = text_printf(out, "\n%-22s %12s", "", "equal costs");
    if (r->has_given) failed |= text_printf(out, " %12s", "given costs");
    failed |= text_printf(out, "\n%-22s %11.2f%%", "bubble", 100 * r->equal.bubble);
    if (r->has_given) failed |= text_printf(out, " %11.2f%%", 100 * r->given.bubble);
    failed |= text_printf(out, "   idle share of the step's total time\n%-22s %11.2f%%",
                          "bubble over ideal", 100 * r->equal.bubble_over_ideal);
    if (r->has_given) failed |= text_printf(out, " %11.2f%%", 100 * r->given.bubble_over_ideal);
    failed |= text_puts(out, "   over the busiest rank's compute\n");
    if (r->formula >= 0)
        failed |= text_printf(out, "%-22s %11.2f%%   bubble with enough micro-batches\n",
                              formulas[r->p->shape.kind], 100 * r->formula);
    failed |= text_printf(out, "%-22s %12.6g", "time of the step", r->equal.total);
    if (r->has_given) failed |= text_printf(out, " %12.6g", r->given.total);
    return failed | text_puts(out, "   in units of the costs\n");
}

static int put_stages(const struct pipeline *p, int rank, const char *between, struct text *out) {
    int failed = 0;
    bool first = true;
    for (int s = 0; s < p->stages; s++) {
        if (p->stage_rank[s] != rank) continue;
        failed |= text_printf(out, "%s%d", first ? "" : between, s);
        first = false;
    }
    return failed;
}

static int put_memory(const struct pipeline *p, struct text *out) {
    int failed = text_puts(out, "\nrank  in flight  units  stages\n");
    for (int r = 0; r < p->shape.ranks; r++) {
        int in_flight = pipeline_in_flight(p, r);
        failed |= text_printf(out, "%4d  %9d  %5.4g  ", r, in_flight,
                              (double)in_flight / p->shape.chunks);
        failed |= put_stages(p, r, " ", out) | text_puts(out, "\n");
    }
    failed |= text_puts(out, "in flight: micro-batches of a stage whose activations the rank holds "
                             "at once, at most\n"
                             "units: the same in micro-batches through all layers of the rank\n");
    if (!pipeline_ascending(p))
        failed |= text_puts(out, "\nThis list runs backward out of micro-batch order: gradients "
                                 "are not bit-identical to other schedules'.\n");
    return failed;
}

static int put_json_times(const char *name, const struct pipeline_times *t, struct text *out) {
    return text_printf(out,
                       "  \"%s\": {\"bubble\": %.9g, \"bubble_over_ideal\": %.9g, \"total\": "
                       "%.9g, \"ideal\": %.9g},\n",
                       name, t->bubble, t->bubble_over_ideal, t->total, t->ideal);
}

static int put_json(const struct result *r, struct text *out) {
    const struct pipeline *p = r->p;
    int failed = text_printf(out,
                             "{\n  \"kind\": \"%s\",\n  \"pp\": %d,\n  \"chunks\": %d,\n"
                             "  \"micro_batches\": %d,\n  \"ascending\": %s,\n",
                             pipeline_kind_name(p->shape.kind), p->shape.ranks, p->shape.chunks,
                             p->shape.micro_batches, pipeline_ascending(p) ? "true" : "false");
    failed |= put_json_times("equal_costs", &r->equal, out);
    if (r->has_given) failed |= put_json_times("given_costs", &r->given, out);
    if (r->formula >= 0) failed |= text_printf(out, "  \"formula\": %.9g,\n", r->formula);
    failed |= text_puts(out, "  \"ranks\": [");
    for (int k = 0; k < p->shape.ranks; k++) {
        int in_flight = pipeline_in_flight(p, k);
        failed |= text_printf(out,
                              "%s\n    {\"rank\": %d, \"in_flight\": %d, \"units\": %.9g, "
                              "\"stages\": [",
                              k ? "," : "", k, in_flight, (double)in_flight / p->shape.chunks);
        failed |= put_stages(p, k, ", ", out) | text_puts(out, "]}");
    }
    return failed | text_puts(out, "\n  ]\n}\n");
}

static int put_all(const struct schedule_arguments *a, const struct result *r, struct text *out) {
    const struct pipeline_times *t = r->has_given ? &r->given : &r->equal;
    if (a->csv) return pipeline_print_csv(r->p, out);
    if (a->json) return put_json(r, out);
    if (a->actions) {
        int failed = 0;
        for (int k = 0; k < r->p->shape.ranks; k++) failed |= schedule_print(&r->p->ranks[k], out);
        return failed;
    }
    int failed = put_title(r, out) | text_puts(out, "\n\n");
    failed |= pipeline_draw_terminal(r->p, t, a->columns ? a->columns : terminal_columns(),
                                     isatty(STDOUT_FILENO), out);
    failed |= text_puts(out, "\nF forward, B backward, I and W its halves (gradients of inputs, of "
                             "weights), S step; numbers are micro-batches");
    if (r->p->shape.chunks > 1)
        failed |= text_puts(out, "; a number in front is the stage, small letters are later "
                                 "stages of a rank");
    failed |= text_puts(out, "\n");
    return failed | put_figures(r, out) | put_memory(r->p, out);
}

static int write_picture(const char *path, const struct result *r, struct err *err) {
    struct text title = {0}, out = {0};
    int result = put_title(r, &title);
    if (result == 0)
        result = pipeline_draw_svg(r->p, r->has_given ? &r->given : &r->equal, title.data, &out);
    if (result != 0)
        err_set(err, ERR_MEMORY, "no memory for the picture");
    else
        result = file_replace(path, out.data, out.size, err);
    text_free(&title);
    text_free(&out);
    return result;
}

static int show(const struct schedule_arguments *a, const struct pipeline *p, struct err *err) {
    static const struct pipeline_costs equal = {.forward = 1, .input = 1, .weight = 1};
    double factors[MOST_FACTORS];
    struct pipeline_costs given;
    struct text out = {0};
    struct result r = {.p = p,
                       .has_given = a->costs || a->stage_factor,
                       .formula = pipeline_bubble_formula(&p->shape)};
    int result = read_costs(a, p, &given, factors, err);
    if (result == 0) result = pipeline_simulate(p, &equal, &r.equal, err);
    if (result == 0 && r.has_given) result = pipeline_simulate(p, &given, &r.given, err);
    if (result == 0 && put_all(a, &r, &out) != 0)
        result = err_set(err, ERR_MEMORY, "no memory for the drawing");
    if (result == 0 && a->svg) result = write_picture(a->svg, &r, err);
    if (result == 0) fwrite(out.data, 1, out.size, stdout);
    text_free(&out);
    pipeline_times_free(&r.equal);
    pipeline_times_free(&r.given);
    return result;
}

int verb_schedule(int argc, char **argv) {
    struct schedule_arguments a = {0};
    const struct option options[] = {
        {"--kind", OPTION_TEXT, &a.kind, 0},
        {"--pp", OPTION_COUNT, &a.ranks, 1},
        {"--micro-batches", OPTION_COUNT, &a.micro_batches, 1},
        {"--chunks", OPTION_COUNT, &a.chunks, 1},
        {"--spare", OPTION_COUNT, &a.spare, 0},
        {"--read", OPTION_TEXT, &a.read, 0},
        {"--costs", OPTION_TEXT, &a.costs, 0},
        {"--stage-factor", OPTION_TEXT, &a.stage_factor, 0},
        {"--svg", OPTION_TEXT, &a.svg, 0},
        {"--csv", OPTION_FLAG, &a.csv, 0},
        {"--actions", OPTION_FLAG, &a.actions, 0},
        {"--json", OPTION_FLAG, &a.json, 0},
        {"--columns", OPTION_COUNT, &a.columns, 20},
    };
    struct err err = {0};
    struct pipeline p = {0};
    int words;
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], NULL, 0, &words,
                           &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (got == 0 && a.csv + a.actions + a.json > 1)
        got = err_set(&err, ERR_USAGE, "schedule: --csv, --actions and --json exclude each other");
    if (got == 0) got = open_list(&a, &p, &err);
    if (got == 0) {
        got = show(&a, &p, &err);
        pipeline_close(&p);
    }
    return got == 0 ? 0 : cli_fail(&err);
}
