// The predicted timeline. See explain.h.
#include "observe/trace.h"
#include "plan/estimate_parts.h"
#include "plan/explain.h"
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 24 };

const char *explain_name_text(enum explain_name name) {
    static const char *const names[] = {"forward", "backward", "backward input", "backward weight",
                                        "optimizer"};
    return names[name];
}

static enum explain_name name_of(enum action_kind kind) {
    switch (kind) {
    case ACTION_FORWARD:
        return EXPLAIN_FORWARD;
    case ACTION_BACKWARD_INPUT:
        return EXPLAIN_BACKWARD_INPUT;
    case ACTION_BACKWARD_WEIGHT:
        return EXPLAIN_BACKWARD_WEIGHT;
    case ACTION_STEP:
        return EXPLAIN_OPTIMIZER;
    default:
        return EXPLAIN_BACKWARD;
    }
}

static enum record_kind kind_of(enum explain_name name) {
    return name == EXPLAIN_FORWARD     ? RECORD_FORWARD
           : name == EXPLAIN_OPTIMIZER ? RECORD_OPTIMIZER
                                       : RECORD_BACKWARD;
}

static void put(struct record_lane *lane, const struct record_span *span) {
    if (lane->span_count < lane->span_capacity) lane->spans[lane->span_count++] = *span;
}

// A wait goes before the action that it belongs to, which begins where the wait does: as the
// engine's lane has them.
static void fill_lane(const struct estimate *e, const struct pipeline *pipeline,
                      const struct pipeline_times *times, int pipeline_rank,
                      struct record_lane *lane) {
    const struct estimate_update *update = &e->updates[pipeline_rank];
    double waited = -1;
    for (int i = 0; i < times->span_count; i++) {
        const struct pipeline_span *s = &times->spans[i];
        if (s->rank != pipeline_rank) continue;
        struct action a = pipeline->ranks[s->rank].actions[s->action];
        enum explain_name name = name_of(a.kind);
        if (s->wait) {
            put(lane, &(struct record_span){name == EXPLAIN_OPTIMIZER ? "reduce" : "receive", -1,
                                            s->begin, s->end, RECORD_COMM_WAIT});
            waited = s->begin;
            continue;
        }
        double begin = waited >= 0 ? waited : s->begin;
        double messages = estimate_update_sum(update) - update->update - update->host;
        if (name == EXPLAIN_OPTIMIZER && messages > 0)
            put(lane,
                &(struct record_span){"reduce", -1, s->end - messages, s->end, RECORD_COMM_WAIT});
        put(lane, &(struct record_span){explain_name_text(name),
                                        name == EXPLAIN_OPTIMIZER ? -1 : a.micro_batch, begin,
                                        s->end, kind_of(name)});
        waited = -1;
    }
}

static int write_lanes(const char *path, const struct job *job, const struct estimate *e,
                       const struct pipeline *pipeline, const struct pipeline_times *times,
                       struct err *err) {
    int ranks = mesh_ranks(&job->layout.mesh), opened = 0, status = 0;
    struct record_lane *lanes = calloc((size_t)ranks, sizeof *lanes);
    const struct record_lane **list = calloc((size_t)ranks, sizeof *list);
    char(*names)[NAME_BYTES] = calloc((size_t)ranks, sizeof *names);
    if (!lanes || !list || !names) status = -1;
    for (; opened < ranks && status == 0; opened++) {
        int at[MESH_AXES];
        mesh_at(&job->layout.mesh, opened, at);
        snprintf(names[opened], sizeof names[opened], "rank %d", opened);
        status = record_lane_open(&lanes[opened], names[opened], (uint64_t)times->span_count + 4);
        if (status != 0) break;
        fill_lane(e, pipeline, times, at[MESH_PP], &lanes[opened]);
        list[opened] = &lanes[opened];
    }
    if (status == 0)
        status = trace_write(path, list, ranks, err);
    else
        err_set(err, ERR_MEMORY, "no memory for the predicted timeline of %d ranks", ranks);
    for (int i = 0; i < opened; i++) record_lane_close(&lanes[i]);
    free(lanes);
    free(list);
    free(names);
    return status;
}

int explain_write_trace(const char *path, const struct job *job, const struct estimate *estimate,
                        struct err *err) {
    struct pipeline pipeline;
    struct pipeline_times times;
    struct estimate_costs own;
    struct pipeline_shape shape = job_pipeline_shape(job, job->micro_batches);
    int status = job->schedule == PIPELINE_FILE
                     ? pipeline_open_csv(&pipeline, job->schedule_csv, "schedule", &shape, err)
                     : pipeline_open(&pipeline, &shape, err);
    if (status != 0) return -1;
    status = estimate_costs_open(estimate, &own, err);
    if (status == 0) {
        struct pipeline_costs costs = estimate_costs(job, &own);
        status = pipeline_simulate(&pipeline, &costs, &times, err);
        if (status == 0) {
            status = write_lanes(path, job, estimate, &pipeline, &times, err);
            pipeline_times_free(&times);
        }
        estimate_costs_close(&own);
    }
    pipeline_close(&pipeline);
    return status;
}
