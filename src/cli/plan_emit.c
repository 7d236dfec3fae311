// See plan_emit.h.
#include "cli/plan_emit.h"
#include "base/file.h"
#include "plan/emit.h"
#include "train/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 160 };

// The words of the lines; the lines are cut in place.
static int split(char *lines, char **words) {
    int count = 0;
    for (char *line = lines; *line && count < MOST_WORDS;) {
        char *end = line + strcspn(line, "\n");
        words[count++] = line;
        if (*end) *end++ = 0;
        line = end;
    }
    return count;
}

static int put_run(const struct plan_emit *emit, const struct report *report,
                   const struct report_plan *plan, struct text *lines) {
    int failed =
        text_printf(lines, "train.steps=%lld\n", (long long)plan_report_run(report, plan).steps);
    if (emit->data && !failed) failed = text_printf(lines, "data.train=%s\n", emit->data);
    return failed;
}

// What a configuration may say of layouts that the plan has another way.
static const char neutral[] = "parallel.order=pp,dp,cp,tp\npipeline.placement=auto\n"
                              "pipeline.file=\npipeline.count_ends=false\nzero.shard=0\n";

static int with_base(const struct plan_emit *emit, struct text *lines, struct train_config *config,
                     struct text *yaml, struct err *err) {
    char *words[MOST_WORDS];
    bool piped = strstr(lines->data, "pipeline.layers=") != NULL;
    if (text_puts(lines, neutral) != 0 || (!piped && text_puts(lines, "pipeline.layers=\n") != 0))
        return err_set(err, ERR_MEMORY, "no memory");
    int count = split(lines->data, words);
    if (config_load(config, emit->base, words, count, err) != 0) return -1;
    return config_print(config, false, yaml) == 0
               ? 0
               : err_set(err, ERR_MEMORY, "no memory for a configuration");
}

static int make_yaml(const struct plan_emit *emit, const struct report *report,
                     const struct report_plan *plan, struct train_config *config, struct text *yaml,
                     struct err *err) {
    struct text lines = {0};
    int result = emit_keys(&plan->job, !emit->base, &lines, err);
    if (result == 0 && put_run(emit, report, plan, &lines) != 0)
        result = err_set(err, ERR_MEMORY, "no memory for a configuration");
    if (result == 0)
        result = emit->base ? with_base(emit, &lines, config, yaml, err)
                            : emit_yaml(lines.data, yaml, err);
    text_free(&lines);
    return result;
}

// The file as weft train will read it is the plan: same layout, batch and context.
static int hold_against(struct train_config *config, const struct job *job, struct err *err) {
    struct layout layout;
    const struct layout *plan = &job->layout;
    if (config_layout(config, mesh_ranks(&plan->mesh), &layout, err) != 0) return -1;
    bool same = memcmp(layout.mesh.size, plan->mesh.size, sizeof layout.mesh.size) == 0 &&
                memcmp(layout.mesh.order, plan->mesh.order, sizeof layout.mesh.order) == 0 &&
                layout.mesh.ep == plan->mesh.ep && layout.mesh.shard == plan->mesh.shard &&
                layout.chunks == plan->chunks && layout.placement == plan->placement &&
                layout.sequence_parallel == plan->sequence_parallel && layout.zero == plan->zero &&
                memcmp(layout.layer_first, plan->layer_first,
                       (size_t)(layout_stages(plan) + 1) * sizeof(int)) == 0 &&
                config->batch == job_sequences(job) && config->micro_batch == job->rows &&
                config->context == job->context && config->recompute == job->recompute &&
                config->pipeline == job->schedule;
    return same ? 0
                : err_set(err, ERR_INTERNAL, "plan: the emitted configuration is not the plan's");
}

static int write_file(const struct plan_emit *emit, const struct report *report,
                      const struct report_plan *plan, struct train_config *config,
                      const struct text *yaml, const char *start, struct err *err) {
    struct text file = {0};
    char about[400];
    const struct emit_plan head = {.digest = config_digest(config),
                                   .ranks = mesh_ranks(&plan->job.layout.mesh),
                                   .step_seconds = plan->estimate.step_seconds,
                                   .tokens_per_second = plan->estimate.tokens_per_second,
                                   .memory_bytes = plan->estimate.memory_peak,
                                   .mfu_full = plan->estimate.mfu_full};
    snprintf(about, sizeof about, "%.150s on %.150s", report->request->model_name,
             report->request->cluster_name);
    int result = -1;
    if (emit_head(&head, about, start, &file) != 0 || text_put(&file, yaml->data, yaml->size) != 0)
        err_set(err, ERR_MEMORY, "no memory for a configuration");
    else
        result = file_replace(emit->path, file.data, file.size, err);
    text_free(&file);
    return result;
}

int plan_emit_write(const struct plan_emit *emit, const struct report *report,
                    const struct report_plan *plan, char start[600], struct err *err) {
    struct train_config *config = calloc(1, sizeof *config);
    struct text yaml = {0};
    int result = config ? make_yaml(emit, report, plan, config, &yaml, err)
                        : err_set(err, ERR_MEMORY, "no memory for a configuration");
    if (result == 0) {
        memset(config, 0, sizeof *config);
        result = config_load_text(config, yaml.data, yaml.size, emit->path, err);
    }
    if (result == 0) {
        uint64_t ranks = (uint64_t)mesh_ranks(&plan->job.layout.mesh);
        snprintf(start, 600, "weft launch -n %llu train %.400s%s", (unsigned long long)ranks,
                 emit->path, config->train_sets[0] ? "" : " data.train=SHARDS");
        // The layout is made on a copy: it settles what the file leaves open.
        struct train_config *copy = malloc(sizeof *copy);
        if (copy) *copy = *config;
        result = copy ? hold_against(copy, &plan->job, err)
                      : err_set(err, ERR_MEMORY, "no memory for a configuration");
        free(copy);
    }
    if (result == 0) result = write_file(emit, report, plan, config, &yaml, start, err);
    text_free(&yaml);
    free(config);
    return result;
}
