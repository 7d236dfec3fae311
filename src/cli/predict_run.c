// See predict_run.h.
#include "cli/predict_run.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "plan/emit.h"
#include "plan/explain.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int predict_trace_path(const char *trace, char *out, size_t out_bytes, struct err *err) {
    size_t length = strlen(trace);
    bool json = text_ends_with(trace, ".json");
    int stem = (int)(json ? length - strlen(".json") : length);
    int got = snprintf(out, out_bytes, "%.*s.predicted.json", stem, trace);
    if (got >= 0 && (size_t)got < out_bytes) return 0;
    return err_set(err, ERR_USAGE, "%.200s...: the path of the predicted trace is too long", trace);
}

// ---- figures ------------------------------------------------------------------------------------

struct figures {
    double step, tokens_per_second, memory, computing, waiting;
};

// Of rank 0: what its pipeline rank computes; the rest of the step it waits.
static struct figures predicted_figures(const struct prediction *p) {
    const struct estimate *e = &p->estimate;
    const struct job *job = &p->job;
    double computing = 0;
    for (int s = 0; s < e->stage_count; s++) {
        if (layout_stage_rank(&job->layout, s) != 0) continue;
        for (int pass = 0; pass < COST_PASSES; pass++) {
            const double *cause = e->stages[s].pass[pass].cause;
            computing += job->micro_batches * (cause[CAUSE_PRODUCT] + cause[CAUSE_ATTENTION] +
                                               cause[CAUSE_KERNEL] + cause[CAUSE_HOST]);
        }
    }
    computing += e->updates[0].update + e->updates[0].host;
    return (struct figures){e->step_seconds, e->tokens_per_second,
                            e->memory_ranks > 0 ? e->memory[0].allocated : 0, computing,
                            e->step_seconds - computing};
}

static struct figures measured_figures(const struct run_result *r) {
    double memory =
        r->peak_pss_bytes > r->base_pss_bytes ? (double)(r->peak_pss_bytes - r->base_pss_bytes) : 0;
    return (struct figures){r->step_seconds, r->step_tokens / r->step_seconds, memory,
                            r->step_seconds - r->step_exposed_seconds, r->step_exposed_seconds};
}

static double ratio(double predicted, double measured) {
    return measured > 0 ? predicted / measured : 0;
}

// ---- the plan that a configuration came from ----------------------------------------------------

struct planned {
    bool there, edited, overridden;
    struct emit_plan plan;
    uint64_t digest; // of the file as it is now
};

// A file that weft plan --emit wrote says so in its head.
static int look_at_plan(const struct predict_run *how, const struct train_config *config,
                        struct planned *out, struct err *err) {
    char *text;
    size_t bytes;
    *out = (struct planned){0};
    if (!config->path[0]) return 0;
    if (file_read(config->path, 0, &text, &bytes, err) != 0) return -1;
    int status = emit_read_head(text, config->path, &out->plan, err);
    free(text);
    if (status != 0) return status > 0 ? 0 : -1;
    struct train_config *again = calloc(1, sizeof *again);
    if (!again) return err_set(err, ERR_MEMORY, "no memory for the configuration");
    status = config_load(again, config->path, NULL, 0, err);
    if (status == 0) {
        out->there = true;
        out->digest = config_digest(again);
        out->edited = out->digest != out->plan.digest;
        status = config_load(again, config->path, how->words, how->word_count, err);
        out->overridden = status == 0 && config_digest(again) != out->digest;
    }
    free(again);
    return status;
}

static void print_planned(const struct planned *planned, const char *path) {
    char then[17], now[17];
    if (!planned->there) return;
    hash_text(planned->plan.digest, then);
    hash_text(planned->digest, now);
    if (planned->edited)
        printf("plan                   %s was edited after planning (digest %s, now %s): its "
               "prediction of %.4f s is of another configuration\n",
               path, then, now, planned->plan.step_seconds);
    else
        printf("plan                   %s, as planned (digest %s)%s; foretold there: %.4f s\n",
               path, now, planned->overridden ? ", but for keys of the command line" : "",
               planned->plan.step_seconds);
}

// ---- what is left and printed -------------------------------------------------------------------

static json_t *figures_json(const struct figures *f) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "step_seconds", f->step, "tokens_per_second",
                     f->tokens_per_second, "memory_bytes", f->memory, "computing_seconds",
                     f->computing, "waiting_seconds", f->waiting);
}

struct both {
    struct figures predicted, measured;
};

static json_t *describe(const struct prediction *p, const struct both *b,
                        const struct planned *planned, const struct train_config *config,
                        const char *predicted_trace) {
    char digest[17], then[17], now[17];
    hash_text(config_digest(config), digest);
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:b, s:i, s:i, s:s, s:s, s:s, s:o, s:o, s:f}", "hardware",
                  p->file.path, "hardware_digest", p->file.cluster.digest, "warning",
                  p->file.warning, "assumed", p->machine.lacks[0] != 0, "ranks", p->ranks,
                  "threads", p->threads, "config_digest", digest, "trace", config->trace,
                  "predicted_trace", predicted_trace, "predicted", figures_json(&b->predicted),
                  "measured", figures_json(&b->measured), "bubble", p->estimate.bubble);
    if (planned->there) {
        hash_text(planned->plan.digest, then);
        hash_text(planned->digest, now);
        json_object_set_new(root, "plan",
                            json_pack("{s:s, s:s, s:s, s:b, s:b, s:f}", "path", config->path,
                                      "digest", then, "digest_now", now, "edited", planned->edited,
                                      "overridden", planned->overridden, "step_seconds",
                                      planned->plan.step_seconds));
    }
    return root;
}

static int leave_file(const struct train_config *config, const json_t *root, struct err *err) {
    char path[4096];
    if (file_join(path, sizeof path, config->folder, "prediction.json", err) != 0) return -1;
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text) return err_set(err, ERR_MEMORY, "no memory for %s", path);
    int status = file_replace(path, text, strlen(text), err);
    free(text);
    return status;
}

static void print_line(const char *name, const char *unit, double scale, double predicted,
                       double measured) {
    printf("%-22s %12.4f %-5s %12.4f %-5s", name, predicted / scale, unit, measured / scale, unit);
    if (predicted > 0 && measured > 0)
        printf(" %8.3f\n", ratio(predicted, measured));
    else
        printf("\n");
}

static void print_table(const struct prediction *p, const struct both *b,
                        const struct planned *planned, const struct train_config *config) {
    const struct figures *f = &b->predicted, *m = &b->measured;
    printf("\nforetold from %s%s%s%s\n", p->file.path, p->machine.lacks[0] ? "; assumed: " : "",
           p->machine.lacks, p->machine.lacks[0] ? " not measured" : "");
    if (p->file.warning[0]) printf("warning: %s\n", p->file.warning);
    printf("%-22s %18s %18s %8s\n", "", "predicted      ", "measured      ", "ratio");
    print_line("step time", "s", 1, f->step, m->step);
    print_line("tokens/s", "", 1, f->tokens_per_second, m->tokens_per_second);
    print_line("memory of rank 0", "MB", 1e6, f->memory, m->memory);
    print_line("computing, rank 0", "s", 1, f->computing, m->computing);
    print_line("waiting for messages", "s", 1, f->waiting, m->waiting);
    print_planned(planned, config->path);
}

static int report(const struct predict_run *how, struct train_config *config,
                  const struct run_result *result, bool json, struct err *err) {
    static struct prediction p;
    struct planned planned;
    char trace[CONFIG_TEXT_BYTES + 32] = "";
    if (result->step_seconds <= 0) return 0;
    int status = predict(config, how->ranks, how->threads, how->hardware, &p, err);
    if (status != 0) return status > 0 && !how->hardware ? 0 : -1;
    struct both both = {predicted_figures(&p), measured_figures(result)};
    status = look_at_plan(how, config, &planned, err);
    if (status == 0 && config->trace[0]) {
        status = predict_trace_path(config->trace, trace, sizeof trace, err);
        if (status == 0) status = explain_write_trace(trace, &p.job, &p.estimate, err);
    }
    if (status == 0) {
        json_t *root = describe(&p, &both, &planned, config, trace);
        status = leave_file(config, root, err);
        if (json) {
            char *text = json_dumps(root, JSON_REAL_PRECISION(9));
            if (text) printf(",\"prediction\":%s", text);
            free(text);
        } else {
            print_table(&p, &both, &planned, config);
        }
        json_decref(root);
    }
    predict_close(&p);
    return status;
}

void predict_run_report(const struct predict_run *how, struct train_config *config,
                        const struct run_result *result, bool json) {
    struct err err = {0};
    if (report(how, config, result, json, &err) != 0)
        log_line(LOG_WARN, "the run is not set beside a prediction: %s", err.text);
}
