// The step foretold. See estimate.h.
#include "model/flops.h"
#include "plan/estimate_parts.h"
#include <math.h>
#include <stdlib.h>

// ---- what the figures rest on

static bool is_assumed(const struct figure *figures, int count) {
    for (int k = 0; k < count; k++)
        if (figures[k].origin == FIGURE_ASSUMED) return true;
    return false;
}

static bool link_assumed(const struct link *l) {
    const struct figure figures[] = {l->bandwidth,  l->latency_seconds, l->share,
                                     l->half_bytes, l->start_seconds,   l->send_share};
    return is_assumed(figures, 6);
}

// Measured products and attention stand for the rates of those.
static bool rates_assumed(const struct job *job) {
    const struct accelerator *a = &job->cluster.accelerator;
    const struct figure products[] = {a->dense[job->precision], a->sustained[job->precision],
                                      a->fill_k};
    const struct figure fused[] = {a->flash_forward, a->flash_backward};
    const struct figure older[] = {a->flash2_forward, a->flash2_backward};
    return (a->product_count == 0 && is_assumed(products, 3)) ||
           (a->attention_count == 0 && is_assumed(job->stack->older_attention ? older : fused, 2));
}

static bool rests_on_assumed(const struct job *job) {
    const struct cluster *c = &job->cluster;
    const struct accelerator *a = &c->accelerator;
    const struct figure others[] = {a->memory_bandwidth, a->memory_share, a->kernel_seconds,
                                    job->stack->launch_seconds, job->stack->step_seconds};
    int ranks = mesh_ranks(&job->layout.mesh);
    return is_assumed(others, 5) || rates_assumed(job) || (ranks > 1 && link_assumed(&c->fast)) ||
           (ranks > c->domain && link_assumed(&c->slow));
}

// Of one accelerator: what MFU is a share of.
static double rate_of(const struct job *job) {
    const struct accelerator *a = &job->cluster.accelerator;
    if (!a->cpu && a->dense[job->precision].value > 0) return a->dense[job->precision].value;
    double best = 0;
    for (int k = 0; k < a->product_count; k++) {
        const struct hardware_product *p = &a->products[k];
        if (p->precision == job->precision && p->seconds > 0)
            best = fmax(best, 2.0 * (double)p->m * (double)p->n * (double)p->k / p->seconds);
    }
    return best > 0 ? best : a->dense[job->precision].value;
}

// ---- sums

bool estimate_in_halves(const struct pipeline *p) {
    for (int i = 0; i < p->compute[0].count; i++)
        if (p->compute[0].actions[i].kind == ACTION_BACKWARD_WEIGHT) return true;
    return false;
}

static void add_flops(const struct job *job, struct estimate *e) {
    const struct mesh *mesh = &job->layout.mesh;
    double tokens = (double)job_sequences(job) * job->context;
    double products = 6.0 * (double)flops_matmul_params(&job->model);
    double full = flops_per_token_full(&job->model, job->context);
    double causal = flops_per_token_causal(&job->model, job->context);
    e->model_flops_full = full * tokens;
    e->model_flops_causal = causal * tokens;
    double stretch = causal > products ? (full - products) / (causal - products) : 1, again = 0;
    for (int s = 0; s < e->stage_count; s++) {
        double attention = e->stages[s].attention_flops[COST_RECOMPUTE];
        again += e->stages[s].pass[COST_RECOMPUTE].flops + (stretch - 1) * attention;
    }
    double alike = (double)mesh->size[MESH_DP] * mesh->size[MESH_CP] * mesh->size[MESH_TP];
    e->hardware_flops = e->model_flops_full + again * job->micro_batches * alike;
}

static void add_rates(const struct job *job, struct estimate *e) {
    double ranks = mesh_ranks(&job->layout.mesh);
    e->rate = rate_of(job);
    e->tokens_per_second = (double)job_sequences(job) * job->context / e->step_seconds;
    e->tokens_per_second_per_accelerator = e->tokens_per_second / ranks;
    double most = e->step_seconds * ranks * e->rate;
    e->mfu_full = e->model_flops_full / most;
    e->mfu_causal = e->model_flops_causal / most;
    e->hfu = e->hardware_flops / most;
}

double estimate_overlap_formula(double forward, double backward, double message, double update) {
    return forward + fmax(backward, message) + update;
}

double estimate_share_formula(double forward, double backward, double message, double update,
                              double hidden) {
    return forward + backward + (1 - hidden) * message + update;
}

// Of the rank that computes longest.
static void add_formula(const struct job *job, double seconds, struct estimate *e) {
    bool halves = estimate_in_halves(&e->pipeline);
    double busiest = -1, all = 0;
    for (int r = 0; r < e->rank_count; r++) {
        double forward = 0, backward = 0, reduce = 0, update = estimate_update_sum(&e->updates[r]);
        for (int s = 0; s < e->stage_count; s++) {
            const struct estimate_stage *stage = &e->stages[s];
            if (e->pipeline.stage_rank[s] != r) continue;
            forward += job->micro_batches * stage->forward;
            backward +=
                job->micro_batches * (halves ? stage->input + stage->weight : stage->backward);
            reduce += stage->reduce + stage->reduce_behind;
        }
        all += forward + backward + update;
        if (forward + backward + update <= busiest) continue;
        busiest = forward + backward + update;
        e->forward_seconds = forward;
        e->backward_seconds = backward;
        e->message_seconds = reduce;
        e->update_seconds = update;
    }
    e->overlap_formula_seconds = estimate_overlap_formula(e->forward_seconds, e->backward_seconds,
                                                          e->message_seconds, e->update_seconds);
    e->bubble = seconds > 0 ? fmax(0, 1 - all / (e->rank_count * seconds)) : 0; // not -1e-16
    e->bubble_formula =
        pipeline_bubble_formula(&(struct pipeline_shape){.kind = job->schedule,
                                                         .ranks = e->rank_count,
                                                         .chunks = job->layout.chunks,
                                                         .micro_batches = job->micro_batches});
}

// ---- simulation

struct pipeline_costs estimate_costs(const struct job *job, const struct estimate_costs *own) {
    const struct stack *stack = job->stack;
    bool overlap = !job->no_overlap;
    return (struct pipeline_costs){.stages = own->stages,
                                   .rank_step = own->rank_step,
                                   .processors = job->processors,
                                   .eager = !stack->own,
                                   .blocking = !(stack->overlap_pipeline && overlap),
                                   .serial = stack->serial_pipeline,
                                   .occupied = true,
                                   .reduce_last = !(stack->overlap_reduce && overlap),
                                   .no_barrier = stack->post_validation};
}

int estimate_costs_open(const struct estimate *e, struct estimate_costs *out, struct err *err) {
    out->stages = calloc((size_t)e->stage_count, sizeof *out->stages);
    out->rank_step = calloc((size_t)e->rank_count, sizeof *out->rank_step);
    if (!out->stages || !out->rank_step) {
        estimate_costs_close(out);
        return err_set(err, ERR_MEMORY, "plan: no memory to simulate a step");
    }
    estimate_fill_costs(e->stages, e->stage_count, out->stages);
    for (int r = 0; r < e->rank_count; r++) out->rank_step[r] = estimate_update_sum(&e->updates[r]);
    return 0;
}

void estimate_costs_close(struct estimate_costs *costs) {
    free(costs->stages);
    free(costs->rank_step);
    *costs = (struct estimate_costs){0};
}

static int simulate(const struct job *job, bool time_only, struct estimate *e, struct err *err) {
    struct estimate_costs own;
    double seconds;
    if (estimate_costs_open(e, &own, err) != 0) return -1;
    struct pipeline_costs costs = estimate_costs(job, &own);
    costs.no_spans = time_only;
    int result = estimate_simulate(job, &e->pipeline, &costs, &seconds, &e->times, err);
    estimate_costs_close(&own);
    if (result != 0) return -1;
    e->step_seconds = seconds + job->data_seconds + job->checkpoint_seconds;
    if (!(e->step_seconds > 0) || !isfinite(e->step_seconds))
        return err_set(err, ERR_USAGE, "plan: a step of %g seconds; figures of the cluster are 0",
                       e->step_seconds);
    add_formula(job, seconds, e);
    add_flops(job, e);
    add_rates(job, e);
    return 0;
}

// ---- memory

static int add_memory(const struct job *job, struct estimate *e, struct err *err) {
    e->memory = calloc((size_t)e->rank_count, sizeof *e->memory);
    if (!e->memory) return err_set(err, ERR_MEMORY, "plan: no memory for the memory plan");
    e->memory_ranks = e->rank_count;
    if (plan_memory_with(job, &e->pipeline, NULL, e->memory, err) != 0) return -1;
    e->memory_peak = e->memory[plan_memory_fullest(e->memory, e->memory_ranks)].total;
    e->memory_headroom = job->cluster.accelerator.memory_bytes.value - e->memory_peak;
    return 0;
}

// ---- all of it

static int open_estimate(const struct job *job, struct estimate *e, struct err *err) {
    e->stage_count = layout_stages(&job->layout);
    e->rank_count = job->layout.mesh.size[MESH_PP];
    e->stages = calloc((size_t)e->stage_count, sizeof *e->stages);
    e->updates = calloc((size_t)e->rank_count, sizeof *e->updates);
    if (!e->stages || !e->updates) return err_set(err, ERR_MEMORY, "plan: no memory for a step");
    if (estimate_price_stages(job, e->stages, err) != 0) return -1;
    struct estimate_view view;
    estimate_view_open(&view, job);
    for (int r = 0; r < e->rank_count; r++) estimate_update_of(&view, r, &e->updates[r]);
    return 0;
}

int estimate_step(const struct job *job, bool time_only, struct estimate *out, struct err *err) {
    struct estimate e = {0};
    int result = job_check(job, err);
    if (result == 0) result = open_estimate(job, &e, err);
    if (result == 0)
        result =
            estimate_open_lists(job, job->stack->own && !time_only, !time_only, &e.pipeline, err);
    if (result == 0) result = simulate(job, time_only, &e, err);
    if (result == 0) e.assumed = rests_on_assumed(job);
    if (result == 0 && !time_only) result = estimate_waterfall(job, &e, err);
    if (result == 0 && !time_only) result = add_memory(job, &e, err);
    if (result == 0)
        *out = e;
    else
        estimate_free(&e);
    return result;
}

int estimate_seconds(const struct job *job, struct pipeline *lists, double *seconds,
                     struct err *err) {
    struct estimate e = {0};
    int result = job_check(job, err);
    if (result == 0) result = open_estimate(job, &e, err);
    if (result == 0) {
        e.pipeline = *lists;
        result = simulate(job, true, &e, err);
        *lists = e.pipeline;
        e.pipeline = (struct pipeline){0};
        *seconds = e.step_seconds;
    }
    estimate_free(&e);
    return result;
}

void estimate_free(struct estimate *e) {
    free(e->stages);
    free(e->updates);
    free(e->memory);
    if (e->pipeline.ranks) pipeline_close(&e->pipeline);
    pipeline_times_free(&e->times);
    *e = (struct estimate){0};
}
