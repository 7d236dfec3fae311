// From a choice to a job. See search_parts.h.
#include "plan/estimate_parts.h"
#include "plan/search_parts.h"
#include <stdlib.h>
#include <string.h>

double search_capacity(const struct search_request *r) {
    const struct accelerator *a = &r->cluster->accelerator;
    double share = r->fill > 0 ? r->fill : a->cpu ? 1 : SEARCH_FILL;
    return share * a->memory_bytes.value;
}

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
    memset(jobs, 0, sizeof *jobs);
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

// ---- kept

struct search_split {
    int pp, chunks, ends, layer_first[LAYOUT_MAX_STAGES + 1];
    struct search_split *next;
};
struct search_list {
    struct pipeline_shape shape;
    int fewest;
    struct pipeline pipeline;
    struct search_list *next;
};
enum { MOST_LIST_BYTES = 256 << 20 };

static int split_layers(struct search_jobs *jobs, int ends, struct err *err) {
    struct layout *l = &jobs->job.layout;
    int pp = l->mesh.size[MESH_PP];
    size_t place = ((size_t)pp * 64 + (size_t)l->chunks * 2 + (size_t)ends) %
                   (sizeof jobs->splits / sizeof jobs->splits[0]);
    for (struct search_split *s = jobs->splits[place]; s; s = s->next)
        if (s->pp == pp && s->chunks == l->chunks && s->ends == ends) {
            memcpy(l->layer_first, s->layer_first, sizeof l->layer_first);
            return 0;
        }
    if (layout_split_layers(l, jobs->request->model, NULL, 0, ends, err) != 0) return -1;
    struct search_split *s = malloc(sizeof *s);
    if (!s) return 0;
    *s = (struct search_split){.pp = pp, .chunks = l->chunks, .ends = ends};
    memcpy(s->layer_first, l->layer_first, sizeof s->layer_first);
    s->next = jobs->splits[place];
    jobs->splits[place] = s;
    return 0;
}

static void drop_lists(struct search_jobs *jobs) {
    for (size_t i = 0; i < sizeof jobs->lists / sizeof jobs->lists[0]; i++) {
        for (struct search_list *l = jobs->lists[i], *next; l; l = next) {
            next = l->next;
            pipeline_close(&l->pipeline);
            free(l);
        }
        jobs->lists[i] = NULL;
    }
    jobs->list_bytes = 0;
}

void search_jobs_close(struct search_jobs *jobs) {
    for (size_t i = 0; i < sizeof jobs->splits / sizeof jobs->splits[0]; i++)
        for (struct search_split *s = jobs->splits[i], *next; s; s = next) {
            next = s->next;
            free(s);
        }
    drop_lists(jobs);
}

static size_t size_of(const struct pipeline *p) {
    size_t bytes = sizeof *p;
    for (int r = 0; r < p->shape.ranks; r++)
        bytes += (size_t)(p->ranks[r].capacity + p->compute[r].capacity) * sizeof(struct action);
    return bytes;
}

static struct pipeline *kept(struct search_jobs *jobs, struct pipeline_shape shape, int fewest,
                             struct err *err) {
    size_t place = ((size_t)shape.kind * 7 + (size_t)shape.ranks * 31 + (size_t)shape.chunks * 5 +
                    (size_t)shape.micro_batches * 13) %
                   (sizeof jobs->lists / sizeof jobs->lists[0]);
    for (struct search_list *l = jobs->lists[place]; l; l = l->next)
        if (l->shape.kind == shape.kind && l->shape.ranks == shape.ranks &&
            l->shape.chunks == shape.chunks && l->shape.micro_batches == shape.micro_batches &&
            l->shape.gather == shape.gather && l->fewest == fewest)
            return &l->pipeline;
    struct search_list *l = calloc(1, sizeof *l);
    if (!l) {
        (void)err_set(err, ERR_MEMORY, "no memory for a schedule");
        return NULL;
    }
    if (pipeline_open_for(&l->pipeline, &shape, fewest, err) != 0) {
        free(l);
        return NULL;
    }
    size_t bytes = size_of(&l->pipeline);
    if (jobs->list_bytes + bytes > MOST_LIST_BYTES) drop_lists(jobs);
    l->shape = shape;
    l->fewest = fewest;
    l->next = jobs->lists[place];
    jobs->lists[place] = l;
    jobs->list_bytes += bytes;
    return &l->pipeline;
}

const struct pipeline *search_jobs_pipeline(struct search_jobs *jobs, bool all_sizes,
                                            struct err *err) {
    struct pipeline_shape shape = job_pipeline_shape(&jobs->job, jobs->job.micro_batches);
    bool matters = all_sizes && shape.kind == PIPELINE_ZB_V;
    int enough = 4 * shape.ranks + 8;
    if (!all_sizes && shape.micro_batches > enough) shape.micro_batches = enough;
    return kept(jobs, shape, matters ? 1 : shape.micro_batches, err);
}

struct pipeline *search_jobs_lists(struct search_jobs *jobs, struct err *err) {
    int fewest;
    struct pipeline_shape shape = estimate_lists_shape(&jobs->job, false, &fewest);
    return kept(jobs, shape, fewest, err);
}

int search_jobs_set(struct search_jobs *jobs, const struct search_choice *choice, struct err *err) {
    set_choice(&jobs->job, jobs->request, choice);
    return split_layers(jobs, choice->value[SEARCH_ENDS] == 1, err);
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
