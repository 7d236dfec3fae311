// From a choice to a job. See search_parts.h.
#include "plan/search_parts.h"
#include <string.h>

static void set_fixed(struct job *job, const struct search_request *r) {
    job_defaults(job);
    job->model = *r->model;
    job->cluster = *r->cluster;
    job->stack = r->stack;
    job->context = r->context;
    job->imbalance = r->imbalance > 0 ? r->imbalance : 1;
    job->threads = r->threads;
    job->no_overlap = r->no_overlap;
}

void search_jobs_open(struct search_jobs *jobs, const struct search_request *request) {
    jobs->request = request;
    set_fixed(&jobs->job, request);
}

// All but the layers of the stages.
static void set_choice(struct job *job, const struct search_request *r,
                       const struct search_choice *choice) {
    const int *v = choice->value;
    struct layout *l = &job->layout;
    l->mesh = (struct mesh){.size = {[MESH_PP] = v[SEARCH_PP],
                                     [MESH_DP] = v[SEARCH_DP],
                                     [MESH_CP] = v[SEARCH_CP],
                                     [MESH_TP] = v[SEARCH_TP]},
                            .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                            .ep = v[SEARCH_EP],
                            .shard = v[SEARCH_DP] * v[SEARCH_CP]};
    l->sequence_parallel = v[SEARCH_SEQUENCE] == 1;
    l->zero = v[SEARCH_ZERO];
    l->chunks = v[SEARCH_CHUNKS];
    l->placement = v[SEARCH_SCHEDULE] == PIPELINE_ZB_V ? PLACE_V : PLACE_LOOP;
    job->schedule = (enum pipeline_kind)v[SEARCH_SCHEDULE];
    job->rows = v[SEARCH_MICRO];
    job->micro_batches = (int)(r->batch / v[SEARCH_DP] / v[SEARCH_MICRO]);
    job->recompute = (enum engine_recompute)v[SEARCH_RECOMPUTE];
    job->precision = (enum hardware_precision)v[SEARCH_PRECISION];
}

int search_jobs_set(struct search_jobs *jobs, const struct search_choice *choice, struct err *err) {
    set_choice(&jobs->job, jobs->request, choice);
    return layout_split_layers(&jobs->job.layout, jobs->request->model, NULL, 0,
                               choice->value[SEARCH_ENDS] == 1, err);
}

void search_jobs_set_node(struct search_jobs *jobs, const struct search_choice *choice) {
    struct search_choice any = *choice;
    any.value[SEARCH_SCHEDULE] = PIPELINE_1F1B;
    any.value[SEARCH_CHUNKS] = 1;
    set_choice(&jobs->job, jobs->request, &any);
}

int search_job(const struct search_request *request, const struct search_choice *choice,
               struct job *out, struct err *err) {
    set_fixed(out, request);
    set_choice(out, request, choice);
    if (layout_split_layers(&out->layout, request->model, NULL, 0, choice->value[SEARCH_ENDS] == 1,
                            err) != 0)
        return -1;
    return job_check(out, err);
}
