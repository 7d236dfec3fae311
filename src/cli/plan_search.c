// weft plan MODEL CLUSTER: searches the layouts, prints the report, writes the configuration.
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/plan_emit.h"
#include "cli/plan_model.h"
#include "cli/plan_pictures.h"
#include "model/flops.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft plan MODEL CLUSTER [options]\n"
    "\n"
    "Which layout a training should have: searches all that the engine accepts for this model on\n"
    "these accelerators, and says for the best ones step time, memory, MFU and cost, why the "
    "first\n"
    "one is as it is, and what the others lose. docs/planning.md explains every figure.\n"
    "\n"
    "MODEL is a preset (llama3-70b), a Hugging Face config.json or its folder, or a training\n"
    "configuration (.yaml). CLUSTER is a YAML file, a name of weft hardware, or ACCELERATOR:COUNT\n"
    "(h100-sxm:512, h100-sxm:64x4 for 64 nodes of 4).\n"
    "\n"
    "  --global-batch N     sequences of a step (about 4 M tokens)\n"
    "  --context T          tokens of a sequence (the model's, at most 8,192)\n"
    "  --tokens N           of the whole run, 1.4e12 or 1.4T (20 per parameter)\n"
    "  --precision P        bf16, fp32 or fp8 products (bf16)\n"
    "  --fix KEY=VALUE      keeps a value: tp, pp, cp, dp, ep, sequence, micro_batch, recompute,\n"
    "                       schedule, chunks, count_ends, zero; several with commas or repeated\n"
    "  --stack NAME         the training program, weft or one that weft hardware stacks lists\n"
    "  --imbalance X        experts: the busiest rank's tokens over the mean (1)\n"
    "  --threads N          CPU: of a rank\n"
    "  --fill SHARE         of an accelerator's memory that may be taken (0.93; CPU: 1)\n"
    "  --checkpoint-every S seconds between two checkpoints, to be judged\n"
    "  --top N              answers (5)\n"
    "  --every              answers may differ in details only; else one per tp, pp, cp, ep\n"
    "  --emit FILE.yaml     writes the first answer as a configuration for weft train\n"
    "  --data SHARDS        data.train of that configuration\n"
    "  --svg DIR            writes pictures of the first answer: waterfall, memory, timeline,\n"
    "                       scaling, cost, checkpoint interval\n"
    "  --json               for programs\n";

enum { MOST_FIXED = 64, MOST_CONTEXT = 8192, USUAL_TOKENS = 1 << 22, TOKENS_PER_PARAMETER = 20 };

struct plan_options {
    const char *model, *cluster, *tokens, *precision, *stack, *emit, *data, *svg;
    const char *fixed[MOST_FIXED];
    int fixed_count, batch, context, threads, top;
    double imbalance, checkpoint_seconds, fill;
    bool every, json;
};

// ---- reading

// Takes every "--fix KEY=VALUE" out of the words: other options stand once.
static int take_fixed(struct plan_options *o, int *argc, char **argv, struct err *err) {
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "--fix") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == *argc)
            return err_set(err, ERR_USAGE, "plan: --fix needs a value, as in --fix tp=8");
        if (o->fixed_count == MOST_FIXED)
            return err_set(err, ERR_USAGE, "plan: more than %d times --fix", MOST_FIXED);
        o->fixed[o->fixed_count++] = argv[++i];
    }
    *argc = kept;
    return 0;
}

// 1: --help.
static int read_options(struct plan_options *o, int argc, char **argv, struct err *err) {
    const char *words[2];
    int count;
    const struct option options[] = {
        {"--global-batch", OPTION_COUNT, &o->batch, 1},
        {"--context", OPTION_COUNT, &o->context, 1},
        {"--tokens", OPTION_TEXT, &o->tokens, 0},
        {"--precision", OPTION_TEXT, &o->precision, 0},
        {"--stack", OPTION_TEXT, &o->stack, 0},
        {"--imbalance", OPTION_NUMBER, &o->imbalance, 0},
        {"--threads", OPTION_THREADS, &o->threads, 1},
        {"--checkpoint-every", OPTION_NUMBER, &o->checkpoint_seconds, 0},
        {"--fill", OPTION_NUMBER, &o->fill, 0},
        {"--top", OPTION_COUNT, &o->top, 1},
        {"--every", OPTION_FLAG, &o->every, 0},
        {"--emit", OPTION_TEXT, &o->emit, 0},
        {"--data", OPTION_TEXT, &o->data, 0},
        {"--svg", OPTION_TEXT, &o->svg, 0},
        {"--json", OPTION_FLAG, &o->json, 0}};
    if (take_fixed(o, &argc, argv, err) != 0) return -1;
    int read =
        options_read(argc, argv, options, sizeof options / sizeof *options, words, 2, &count, err);
    if (read != 0) return read;
    if (count < 2)
        return err_set(err, ERR_USAGE,
                       "plan: expected a model and a cluster, as in \"weft plan llama3-70b "
                       "h100-sxm:512\"; %s",
                       count == 1 ? "the cluster is missing" : "both are missing");
    o->model = words[0];
    o->cluster = words[1];
    return 0;
}

// "1.4e12", "1.4T", "300B".
static int read_amount(const char *text, int64_t *out, struct err *err) {
    static const char letters[] = "kMBT";
    static const double units[] = {1e3, 1e6, 1e9, 1e12};
    char *end;
    double value = strtod(text, &end);
    const char *letter = *end ? strchr(letters, *end) : NULL;
    if (letter) value *= units[letter - letters], end++;
    if (end == text || *end || !(value >= 1) || !(value <= 1e18))
        return err_set(err, ERR_USAGE,
                       "plan: --tokens %.60s: expected a number of tokens, as 1.4e12 or 1.4T",
                       text);
    *out = (int64_t)llround(value);
    return 0;
}

static int read_pins(const struct plan_options *o, bool fp32, struct search_pins *pins,
                     struct err *err) {
    char word[128];
    for (int i = 0; i < o->fixed_count; i++)
        for (const char *at = o->fixed[i]; *at; at += *at == ',') {
            size_t length = strcspn(at, ",");
            snprintf(word, sizeof word, "%.*s", (int)(length < 127 ? length : 127), at);
            if (search_pin(pins, word, err) != 0) return -1;
            at += length;
        }
    if (o->precision) {
        snprintf(word, sizeof word, "precision=%.100s", o->precision);
        return search_pin(pins, word, err);
    }
    return fp32 && !pins->set[SEARCH_PRECISION] ? search_pin(pins, "precision=fp32", err) : 0;
}

// About USUAL_TOKENS, and a number that many layouts of this world divide: its odd part times a
// power of two.
static int64_t usual_batch(int world, int context) {
    int64_t batch = world;
    while (batch % 2 == 0) batch /= 2;
    while (batch * context * 3 <= (int64_t)USUAL_TOKENS * 2) batch *= 2;
    return batch;
}

// ---- making

struct plan_inputs {
    struct plan_model model;
    struct catalogue *catalogue;
    struct cluster cluster;
    struct report_request request;
};

// Of the run: as asked for, else the steps of the training configuration, else the usual number.
static int set_tokens(const struct plan_options *o, struct plan_inputs *in, struct err *err) {
    struct report_request *r = &in->request;
    double of_steps = (double)in->model.steps * (double)r->search.batch * r->search.context;
    r->tokens_given = o->tokens || in->model.steps > 0;
    if (o->tokens) return read_amount(o->tokens, &r->tokens, err);
    if (of_steps > 1e18)
        return err_set(err, ERR_USAGE, "plan: train.steps %lld: %.3g tokens; expected at most 1e18",
                       (long long)in->model.steps, of_steps);
    r->tokens = in->model.steps > 0 ? in->model.steps * r->search.batch * r->search.context
                                    : TOKENS_PER_PARAMETER * flops_active_params(&in->model.config);
    return 0;
}

static int fill_request(const struct plan_options *o, struct plan_inputs *in, struct err *err) {
    struct report_request *r = &in->request;
    struct search_request *s = &r->search;
    struct model_config *config = &in->model.config;
    s->stack = catalogue_stack(in->catalogue, o->stack ? o->stack : "weft", err);
    if (!s->stack || read_pins(o, in->model.fp32, &s->pins, err) != 0) return -1;
    r->model_name = o->model;
    r->cluster_name = o->cluster;
    r->context_given = o->context > 0 || in->model.context > 0;
    s->context = o->context > 0                   ? o->context
                 : in->model.context > 0          ? in->model.context
                 : config->context > MOST_CONTEXT ? MOST_CONTEXT
                                                  : config->context;
    r->batch_given = o->batch > 0 || in->model.batch > 0;
    s->batch = o->batch > 0 ? o->batch
               : in->model.batch > 0
                   ? in->model.batch
                   : usual_batch(in->cluster.nodes * in->cluster.per_node, s->context);
    if (set_tokens(o, in, err) != 0) return -1;
    r->checkpoint_seconds = o->checkpoint_seconds;
    s->model = config;
    s->cluster = &in->cluster;
    s->imbalance = o->imbalance;
    s->threads = o->threads;
    s->fill = o->fill;
    s->best = o->top;
    s->every = o->every;
    return 0;
}

static int open_inputs(const struct plan_options *o, struct plan_inputs *in, struct err *err) {
    if (o->imbalance != 0 && !(o->imbalance >= 1))
        return err_set(err, ERR_USAGE, "plan: --imbalance %g: expected 1 or more", o->imbalance);
    if (o->fill < 0 || o->fill > 1)
        return err_set(err, ERR_USAGE, "plan: --fill %g: expected a share, 0 to 1", o->fill);
    if (o->checkpoint_seconds < 0)
        return err_set(err, ERR_USAGE, "plan: --checkpoint-every %g: expected 0 seconds or more",
                       o->checkpoint_seconds);
    if (o->data && !o->emit)
        return err_set(err, ERR_USAGE, "plan: --data is for the file of --emit");
    if (plan_model_read(o->model, &in->model, err) != 0 ||
        catalogue_open(&in->catalogue, err) != 0 ||
        catalogue_cluster(in->catalogue, o->cluster, &in->cluster, err) != 0)
        return -1;
    return fill_request(o, in, err);
}

static int print_json(const struct report *report, const char *start, struct err *err) {
    json_t *tree = plan_report_json(report);
    if (tree && start[0]) json_object_set_new(tree, "start", json_string(start));
    char *text = tree ? json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(tree);
    if (!text) return err_set(err, ERR_MEMORY, "no memory for the report");
    puts(text);
    free(text);
    return 0;
}

static int print_text(const struct report *report, const struct plan_options *o, const char *start,
                      struct err *err) {
    struct text out = {0};
    int result = plan_report_text(report, &out, err);
    if (result == 0) fwrite(out.data, 1, out.size, stdout);
    if (result == 0 && start[0]) printf("\nWritten: %s; it starts with\n  %s\n", o->emit, start);
    text_free(&out);
    return result;
}

static int draw(const struct report *report, const struct plan_options *o, struct err *err) {
    struct text names = {0};
    int result = plan_pictures(report, o->svg, &names, err);
    if (result == 0 && !o->json) printf("\nPictures:\n%s", names.data);
    text_free(&names);
    return result;
}

static int answer(const struct plan_options *o, const struct plan_inputs *in, struct err *err) {
    struct report *report = malloc(sizeof *report);
    char start[600] = "";
    if (!report) return err_set(err, ERR_MEMORY, "no memory for a report");
    int result = plan_report_make(&in->request, report, err);
    if (result != 0) {
        free(report);
        return -1;
    }
    if (report->count > 0 && o->emit) {
        const struct plan_emit emit = {o->emit, in->model.from_config ? o->model : NULL, o->data};
        result = plan_emit_write(&emit, report, &report->plans[0], start, err);
    }
    if (result == 0)
        result = o->json ? print_json(report, start, err)
                         : (report->count > 0 ? print_text(report, o, start, err) : 0);
    if (result == 0 && report->count > 0 && o->svg) result = draw(report, o, err);
    if (result == 0 && report->count == 0) result = plan_report_nothing_fits(report, err);
    plan_report_close(report);
    free(report);
    return result;
}

int plan_search(int argc, char **argv) {
    struct plan_options o = {.top = 5};
    struct err err = {0};
    struct plan_inputs *in = calloc(1, sizeof *in);
    int result =
        in ? read_options(&o, argc, argv, &err) : err_set(&err, ERR_MEMORY, "no memory for a plan");
    if (result == 1) fputs(usage, stdout);
    if (result == 0) result = open_inputs(&o, in, &err);
    if (result == 0) result = answer(&o, in, &err);
    if (in && in->catalogue) catalogue_close(in->catalogue);
    free(in);
    return result == -1 ? cli_fail(&err) : 0;
}
