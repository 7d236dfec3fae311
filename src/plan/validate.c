// Prices the rows of a table. See validate.h; sums over sources are in validate_sums.c.
#include "plan/validate_parts.h"
#include "plan/validate_sums.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Rows that say of themselves that they are no measurement of a training step as described.
static const char *why_not(const struct published *row) {
    if (row->wrong[0]) return row->wrong;
    if (strstr(row->source, "_suspect") || strstr(row->notes, "SUSPECT"))
        return "marked as suspect";
    if (strstr(row->notes, "NOTE")) return "marked with a contradiction (NOTE)";
    if (strstr(row->source, "_lora") || strstr(row->source, "_sft"))
        return "fine-tuning, not pre-training";
    if (strcasestr(row->notes, "OOM in source") || strstr(row->source, "_oom") ||
        strstr(row->source, "_failed"))
        return "ended for want of memory: counts for what fits";
    const struct publisher *publisher = publisher_of(row);
    if (publisher->changed && (strstr(row->model, "MegaScale") || strstr(row->place, "MegaScale") ||
                               strstr(row->notes, "MegaScale system")))
        return "the measured system changes the model";
    return NULL;
}

static bool ran_out(const struct published *row) {
    return strcasestr(row->notes, "OOM in source") || strstr(row->source, "_oom") ||
           strstr(row->source, "_failed");
}

// The playbook's authors met network trouble below that (its README says so); such rows are for
// ranking only.
static bool too_noisy(const struct published *row) {
    return published_begins(row->source, "nanotron") && !(row->mfu >= 20);
}

static void leave_out(struct validated *v, const char *reason) {
    v->verdict = VALIDATE_LEFT_OUT;
    size_t bytes = strlen(reason), most = sizeof v->reason - 1;
    if (bytes > most) bytes = most; // a long message loses its end
    memcpy(v->reason, reason, bytes);
    v->reason[bytes] = 0;
}

// Mean over pipeline ranks of what their passes hold.
static void take_parts(const struct job *job, const struct estimate *e, struct validate_parts *p) {
    double cause[CAUSE_COUNT] = {0};
    double share = (double)job->micro_batches / job->layout.mesh.size[MESH_PP];
    for (int s = 0; s < e->stage_count; s++)
        for (int pass = 0; pass < COST_PASSES; pass++)
            for (int c = 0; c < CAUSE_COUNT; c++)
                cause[c] += share * e->stages[s].pass[pass].cause[c];
    *p = (struct validate_parts){.product = cause[CAUSE_PRODUCT],
                                 .attention = cause[CAUSE_ATTENTION],
                                 .kernel = cause[CAUSE_KERNEL],
                                 .host = cause[CAUSE_HOST],
                                 .tensor = cause[CAUSE_TENSOR],
                                 .context = cause[CAUSE_CONTEXT],
                                 .expert = cause[CAUSE_EXPERT],
                                 .update = e->update_seconds};
    for (int s = 0; s < e->stage_count; s++) {
        p->reduce = fmax(p->reduce, e->stages[s].reduce);
        p->gather = fmax(p->gather, e->stages[s].gather);
    }
    double work = p->update;
    for (int c = 0; c < CAUSE_COUNT; c++) work += cause[c];
    p->rest = e->step_seconds - work;
}

// Where the memory of a job cannot be told, it counts as fitting.
static void predict_memory(const struct job *job, struct validated *v) {
    struct plan_memory ranks[LAYOUT_MAX_STAGES];
    struct err err = {0};
    v->fits = true;
    if (plan_memory(job, ranks, &err) != 0) return;
    double capacity = job->cluster.accelerator.memory_bytes.value;
    int count = job->layout.mesh.size[MESH_PP];
    for (int r = 0; r < count; r++) v->memory_total = fmax(v->memory_total, ranks[r].total);
    v->fits = v->memory_total <= capacity;
    v->memory = published_memory(v->row);
    v->memory_predicted = published_memory_planned(v->row, ranks, count);
}

static int predict_step(const struct job *job, struct validated *v, struct err *err) {
    struct estimate estimate;
    if (estimate_step(job, true, &estimate, err) != 0) return -1;
    v->predicted = estimate.step_seconds;
    take_parts(job, &estimate, &v->parts);
    estimate_free(&estimate);
    if (!(v->predicted > 0) || !isfinite(v->predicted))
        return err_set(err, ERR_INTERNAL, "the step is predicted to take %g s", v->predicted);
    v->error = v->measured > 0 ? (v->predicted - v->measured) / v->measured : 0;
    return 0;
}

static void validate_row(const struct published *row, struct validate_tools *tools,
                         struct validated *v) {
    struct err err = {0};
    struct job job;
    const char *reason = why_not(row);
    *v = (struct validated){.row = row, .group = -1};
    if (reason) leave_out(v, reason);
    if (reason && (!ran_out(row) || row->wrong[0])) return;
    if (published_job(row, tools, &job, &err) != 0) {
        leave_out(v, err.text);
        return;
    }
    v->recompute = job.recompute;
    v->measured = published_seconds(row, &job);
    for (int f = 0; f < 3; f++) v->flops[f] = validate_flops(&job, (enum validate_flops)f);
    v->gpus = mesh_ranks(&job.layout.mesh);
    predict_memory(&job, v);
    if (ran_out(row))
        v->ran_out = true;
    else if (!(v->measured > 0))
        leave_out(v, "neither time nor rate is given");
    else if (predict_step(&job, v, &err) != 0)
        leave_out(v, err.text);
    else if (too_noisy(row))
        v->verdict = VALIDATE_RANKED;
    free((char *)job.schedule_csv);
}

int validate_table(const struct published_table *table, struct catalogue *catalogue,
                   const char *only, struct validation *out, struct err *err) {
    struct validation v = {.row = calloc((size_t)table->rows + 1, sizeof *v.row)};
    struct validate_tools tools = {.catalogue = catalogue};
    if (!v.row) return err_set(err, ERR_MEMORY, "no memory for %d rows", table->rows);
    for (int i = 0; i < table->rows; i++)
        if (!only || published_begins(table->row[i].source, only))
            validate_row(&table->row[i], &tools, &v.row[v.rows++]);
    validate_tools_free(&tools);
    if (validate_sums(&v, err) != 0) {
        validation_free(&v);
        return -1;
    }
    *out = v;
    return 0;
}

void validation_free(struct validation *validation) {
    free(validation->row);
    free(validation->source);
    free(validation->ranking);
    *validation = (struct validation){0};
}
