// weft plan --this-machine CONFIG: the step of a training configuration on this machine, foretold
// from what weft bench hardware measured.
#include "base/affinity.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "cli/options.h"
#include "cli/plan.h"
#include "cli/predict.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft plan --this-machine CONFIG.yaml [key=value ...] [-n RANKS] [--hardware FILE]\n"
    "                                [--ops] [--json]\n\n"
    "Foretells the step of a training configuration on this machine as so many ranks: time,\n"
    "tokens/s, memory, messages that nothing hides, and the seconds of every action, from what\n"
    "weft bench hardware measured; nothing of the run itself is timed. What was not measured is\n"
    "marked as assumed.\n\n"
    "  -n RANKS         (1)\n"
    "  --threads N      of each rank (device.threads, else its share of the cores)\n"
    "  --hardware FILE  (" MACHINE_FILE_HELP ")\n"
    "  --ops            the operations of a layer, the embedding and the head, with their seconds\n"
    "  --json\n";

enum { MOST_WORDS = 64 };

struct arguments {
    int ranks, threads;
    const char *hardware, *config;
    bool ops, json;
    char *settings[MOST_WORDS];
    int setting_count;
};

static int sort_words(struct arguments *w, const char *const *words, int count, struct err *err) {
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '='))
            w->settings[w->setting_count++] = (char *)(uintptr_t)words[i];
        else if (w->config)
            return err_set(err, ERR_USAGE,
                           "plan --this-machine: \"%s\": expected one CONFIG, then key=value",
                           words[i]);
        else
            w->config = words[i];
    }
    return w->config ? 0
                     : err_set(err, ERR_USAGE,
                               "plan --this-machine: a training configuration is needed "
                               "(configs/bench/gpt2-124m.yaml is one); --help says more");
}

// What the time rests on that was not measured here.
static void assumed_text(const struct prediction *p, char *out, size_t bytes) {
    out[0] = 0;
    if (p->machine.lacks[0]) snprintf(out, bytes, "%s not measured", p->machine.lacks);
}

// Every term that the time is made of, and whether it was measured.
enum { TERMS = 4 };
static const char *const term_names[TERMS] = {"products", "attention", "kernels", "messages"};

static const char *term_origin(const struct prediction *p, int term) {
    const struct accelerator *a = &p->machine.cluster.accelerator;
    const int counts[TERMS] = {a->product_count, a->attention_count, a->kernel_point_count,
                               p->machine.cluster.message_count};
    if (term == TERMS - 1 && p->ranks == 1) return "none";
    return counts[term] > 0 ? "measured" : "assumed";
}

// ---- text ---------------------------------------------------------------------------------------

static void print_actions(const struct prediction *p) {
    const struct estimate *e = &p->estimate;
    printf("seconds of an action, per micro-batch\n%-8s %10s %10s %10s %10s %10s %10s\n", "stage",
           "forward", "backward", "input", "weight", "send", "reduce");
    for (int s = 0; s < e->stage_count; s++)
        printf("%-8d %10.5f %10.5f %10.5f %10.5f %10.5f %10.5f\n", s, e->stages[s].forward,
               e->stages[s].backward, e->stages[s].input, e->stages[s].weight,
               e->stages[s].send_forward, e->stages[s].reduce);
    for (int r = 0; r < e->rank_count; r++)
        printf("optimizer of pipeline rank %d %.5f s\n", r, estimate_update_sum(&e->updates[r]));
}

static void print_list(const struct prediction *p, const char *what, struct cost_ops *ops,
                       const struct cost_shape *shape) {
    static const char *const forms[] = {"forward", "input gradient", "weight gradient"};
    struct cost_sum sum = cost_price(shape, ops);
    (void)p;
    printf("%s: %.6f s\n", what, sum.seconds);
    for (int i = 0; i < ops->count; i++) {
        const struct cost_op *o = &ops->ops[i];
        if (o->kind == COST_PRODUCT)
            printf("  %-24s %10.1f us   %lld x %lld x %lld, %s, %.1f GFLOP/s\n", o->name,
                   o->seconds * 1e6, (long long)o->m, (long long)o->n, (long long)o->k,
                   forms[o->form], o->flops / o->seconds / 1e9);
        else
            printf("  %-24s %10.1f us\n", o->name, o->seconds * 1e6);
    }
}

static int print_ops(const struct prediction *p, struct err *err) {
    static const char *const passes[COST_PASSES] = {"forward", "input half", "weight half",
                                                    "recomputation"};
    struct cost_shape shape;
    struct stack room;
    struct cost_ops ops = {0};
    int status = 0;
    job_cost_shape(&p->job, &room, &shape);
    for (int what = 0; what < 3 && status == 0; what++)
        for (int pass = 0; pass < COST_PASSES && status == 0; pass++) {
            static const char *const names[] = {"embedding", "layer", "head"};
            char title[64];
            enum cost_pass of = (enum cost_pass)pass;
            ops.count = 0;
            status = what == 0   ? cost_list_embedding(&shape, of, &ops, err)
                     : what == 1 ? cost_list_layer(&shape, 0, of, &ops, err)
                                 : cost_list_head(&shape, of, &ops, err);
            snprintf(title, sizeof title, "%s, %s", names[what], passes[pass]);
            if (status == 0 && ops.count > 0) print_list(p, title, &ops, &shape);
        }
    cost_ops_free(&ops);
    return status;
}

static void print_text(const struct prediction *p) {
    const struct estimate *e = &p->estimate;
    const struct mesh *m = &p->job.layout.mesh;
    char assumed[256], memory[32];
    assumed_text(p, assumed, sizeof assumed);
    printf("machine                %s (%s, %s)\n", p->file.cluster.title,
           p->file.cluster.measured_on, p->file.path);
    if (p->file.warning[0]) printf("warning                %s\n", p->file.warning);
    printf("ranks                  %d of %d thread%s as pp %d x dp %d x cp %d x tp %d, %s%s\n",
           p->ranks, p->threads, p->threads == 1 ? "" : "s", m->size[MESH_PP], m->size[MESH_DP],
           m->size[MESH_CP], m->size[MESH_TP], pipeline_kind_name(p->job.schedule),
           p->job.no_overlap ? ", messages share the cores" : "");
    if (p->machine.slowdown > 1)
        printf("                       more threads than cores: computing takes %.2f times as "
               "long\n",
               p->machine.slowdown);
    printf("step time              %.4f s%s\n", e->step_seconds, assumed[0] ? ", assumed" : "");
    printf("rests on               ");
    for (int t = 0; t < TERMS; t++)
        printf("%s%s %s", t ? ", " : "", term_names[t], term_origin(p, t));
    printf("\n");
    printf("tokens/s               %.0f\n", e->tokens_per_second);
    printf("MFU                    %.3f full attention, %.3f causal; HFU %.3f\n", e->mfu_full,
           e->mfu_causal, e->hfu);
    for (int r = 0; r < e->memory_ranks; r++)
        printf("memory, rank %-9d %s\n", r, text_bytes((uint64_t)e->memory[r].allocated, memory));
    printf("exposed messages       %.4f s: reduce %.4f, gather %.4f, pipeline %.4f, tensor %.4f, "
           "context %.4f, experts %.4f\n",
           predict_exposed(e), e->exposed_reduce, e->exposed_gather, e->exposed_pipeline,
           e->exposed_tensor, e->exposed_context, e->exposed_expert);
    if (m->size[MESH_PP] > 1)
        printf("bubble                 %.3f simulated, %.3f by formula\n", e->bubble,
               e->bubble_formula);
    print_actions(p);
}

static void print_json(const struct prediction *p) {
    const struct estimate *e = &p->estimate;
    char assumed[256];
    assumed_text(p, assumed, sizeof assumed);
    json_t *stages = json_array(), *memory = json_array();
    for (int s = 0; s < e->stage_count; s++)
        json_array_append_new(
            stages, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "forward", e->stages[s].forward,
                              "backward", e->stages[s].backward, "input", e->stages[s].input,
                              "weight", e->stages[s].weight, "send", e->stages[s].send_forward,
                              "reduce", e->stages[s].reduce));
    for (int r = 0; r < e->memory_ranks; r++)
        json_array_append_new(memory, json_real(e->memory[r].allocated));
    json_t *root = json_pack(
        "{s:s, s:b, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
        "hardware", p->file.path, "assumed", assumed[0] != 0, "assumed_because", assumed, "warning",
        p->file.warning, "ranks", p->ranks, "threads", p->threads, "step_seconds", e->step_seconds,
        "tokens_per_second", e->tokens_per_second, "mfu", e->mfu_full, "mfu_causal", e->mfu_causal,
        "exposed_seconds", predict_exposed(e), "bubble", e->bubble, "memory_bytes",
        e->memory_ranks ? e->memory[plan_memory_fullest(e->memory, e->memory_ranks)].allocated : 0,
        "update_seconds", e->update_seconds, "stages", stages, "memory_of_ranks", memory);
    json_t *terms = json_object();
    for (int t = 0; t < TERMS; t++)
        json_object_set_new(terms, term_names[t], json_string(term_origin(p, t)));
    json_object_set_new(root, "terms", terms);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(root);
}

static int run(const struct arguments *w, struct err *err) {
    static struct prediction p;
    struct train_config *config = calloc(1, sizeof *config);
    if (!config) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    int status = config_load(config, w->config, w->settings, w->setting_count, err);
    int cores = affinity_host_cpus(), threads = w->threads;
    if (threads == 0) threads = config->threads;
    if (threads == 0) threads = cores / w->ranks > 1 ? cores / w->ranks : 1;
    if (status == 0) status = predict(config, w->ranks, threads, w->hardware, &p, err);
    if (status > 0) {
        char usual[4096];
        struct err nowhere = {0};
        if (machine_file_usual(usual, sizeof usual, &nowhere) != 0) usual[0] = 0;
        status = err_set(err, ERR_USAGE,
                         "this machine was not measured yet (no %s): \"weft bench hardware\" does "
                         "so, in a minute; or name a file with --hardware",
                         usual);
    }
    if (status == 0) {
        w->json ? print_json(&p) : print_text(&p);
        if (w->ops && !w->json) status = print_ops(&p, err);
        predict_close(&p);
    }
    free(config);
    return status;
}

int plan_machine(int argc, char **argv) {
    struct arguments w = {.ranks = 1};
    const char *words[MOST_WORDS];
    int count;
    struct err err = {0};
    const struct option options[] = {
        {"-n", OPTION_COUNT, &w.ranks, 1},           {"--threads", OPTION_THREADS, &w.threads, 1},
        {"--hardware", OPTION_TEXT, &w.hardware, 0}, {"--ops", OPTION_FLAG, &w.ops, 0},
        {"--json", OPTION_FLAG, &w.json, 0},
    };
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], words,
                           MOST_WORDS, &count, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = sort_words(&w, words, count, &err);
    if (got == 0) got = run(&w, &err);
    return got == 0 ? 0 : cli_fail(&err);
}
