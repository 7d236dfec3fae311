// Messages of states (weights, gradients) over data ranks, and the update. See estimate_parts.h.
#include "plan/estimate_parts.h"
#include <math.h>

void estimate_view_open(struct estimate_view *view, const struct job *job) {
    *view = (struct estimate_view){.job = job};
    job_cost_shape(job, &view->stack, &view->shape);
}

double estimate_message(struct estimate_view *view, enum mesh_group_kind group,
                        enum network_kind kind, double bytes) {
    const struct job *job = view->job;
    if (bytes <= 0) return 0;
    if (!view->known[group]) {
        view->groups[group] =
            network_group_of(&job->cluster, &job->layout.mesh, group, job->model.kv_heads);
        view->known[group] = true;
    }
    if (view->groups[group].size < 2) return 0;
    return network_seconds(&job->cluster, &view->groups[group], kind, bytes, NULL);
}

double estimate_weight_bytes(const struct estimate_view *view) {
    if (view->stack.own) return (double)dtype_bytes(view->job->gather_type);
    return view->job->precision == HARDWARE_FP32 ? 4 : 2;
}

// The narrower of what the job says and what the stack does.
double estimate_gradient_bytes(const struct estimate_view *view) {
    double job = (double)dtype_bytes(view->job->reduce_type);
    return view->stack.own ? job : fmin(job, (double)dtype_bytes(view->stack.reduce));
}

static int shard_ranks(const struct job *job, bool expert) {
    return mesh_group_size(&job->layout.mesh, expert ? GROUP_EXPERT_SHARD : GROUP_SHARD,
                           job->model.kv_heads);
}

// ---- one vector of gradients or weights

static double gather_seconds(struct estimate_view *view, struct job_elements e) {
    double size = estimate_weight_bytes(view);
    return estimate_message(view, GROUP_SHARD, NETWORK_ALL_GATHER, e.dense * size) +
           estimate_message(view, GROUP_EXPERT_SHARD, NETWORK_ALL_GATHER, e.expert * size);
}

// To the shards, and between copies of a shard.
static double scatter_part(struct estimate_view *view, bool expert, double bytes) {
    return estimate_message(view, expert ? GROUP_EXPERT_SHARD : GROUP_SHARD, NETWORK_REDUCE_SCATTER,
                            bytes) +
           estimate_message(view, expert ? GROUP_EXPERT_REPLICA : GROUP_REPLICA, NETWORK_ALL_REDUCE,
                            bytes / shard_ranks(view->job, expert));
}

static double scatter_seconds(struct estimate_view *view, struct job_elements e) {
    double size = estimate_gradient_bytes(view);
    return scatter_part(view, false, e.dense * size) + scatter_part(view, true, e.expert * size);
}

static double bucket_count(const struct estimate_view *view, double bytes) {
    double bucket =
        view->job->bucket_bytes ? (double)view->job->bucket_bytes : view->stack.bucket_bytes.value;
    return bucket > 0 && bytes > bucket ? ceil(bytes / bucket) : 1;
}

// A vector of gradients in so many buckets.
static double reduce_seconds(struct estimate_view *view, bool expert, double bytes,
                             double buckets) {
    double each = bytes / buckets;
    return buckets * (view->job->layout.zero > 0
                          ? scatter_part(view, expert, each)
                          : estimate_message(view, expert ? GROUP_EXPERT_DATA : GROUP_DATA,
                                             NETWORK_ALL_REDUCE, each));
}

// All gradients of a stage in buckets; vectors stay whole on every rank. The table's are complete
// when backward is over.
static void reduce_once(struct estimate_view *view, struct job_elements e, double table,
                        struct estimate_stage *out) {
    double size = estimate_gradient_bytes(view), pieces = 0, seconds = 0;
    const double bytes[2] = {(e.dense - table) * size, e.expert * size};
    for (int expert = 0; expert < 2; expert++) {
        if (bytes[expert] <= 0) continue;
        double n = bucket_count(view, bytes[expert]);
        seconds += reduce_seconds(view, expert, bytes[expert], n);
        pieces += n;
    }
    seconds += estimate_message(view, GROUP_DATA, NETWORK_ALL_REDUCE, e.vectors * size);
    out->reduce = seconds;
    out->reduce_behind = reduce_seconds(view, false, table * size, 1);
    out->reduce_pieces = view->stack.overlap_reduce && pieces > 1 ? (int)fmin(pieces, 1e6) : 1;
}

// weft's engine moves a unit at a time: layers, and the head. Layers of a kind take the same time.
static double seconds_by_unit(struct estimate_view *view, int stage,
                              double (*move)(struct estimate_view *view, struct job_elements e)) {
    const struct job *job = view->job;
    const struct layout *l = &job->layout;
    double of_kind[2] = {-1, -1}, sum = 0;
    for (int i = l->layer_first[stage]; i < l->layer_first[stage + 1]; i++) {
        double *seconds = &of_kind[model_layer_has_experts(&job->model, i)];
        if (*seconds < 0) *seconds = move(view, job_layer_elements(job, i));
        sum += *seconds;
    }
    bool own_table = stage == 0 && job->model.tied_head;
    if (stage == layout_stages(l) - 1 && !own_table)
        sum += move(view, (struct job_elements){.dense = job_head_elements(job)});
    return sum;
}

static void gather_once(struct estimate_view *view, struct job_elements e, double table, int stage,
                        int units, struct estimate_stage *out) {
    struct job_elements first = {.dense = table};
    out->gather_first = gather_seconds(view, first);
    if (view->stack.own) {
        out->gather = seconds_by_unit(view, stage, gather_seconds);
        out->gather_pieces = units;
        return;
    }
    e.dense -= table;
    double bytes = (e.dense + e.expert) * estimate_weight_bytes(view);
    double n = bucket_count(view, bytes);
    e.dense /= n;
    e.expert /= n;
    out->gather = n * gather_seconds(view, e);
    out->gather_pieces = (int)fmin(n, 1e6);
}

// ---- with every micro-batch

static double later(double a, double b) {
    return a > b ? a : b;
}

// Weights of a unit are gathered while the unit before it computes. Seconds over compute alone.
static double exposed_forward(const struct estimate_unit *units, const double *gather, int count,
                              bool beside) {
    double all = gather[0];
    for (int u = 0; u < count; u++) {
        double next = u + 1 < count ? gather[u + 1] : 0;
        all += beside ? later(0, next - units[u].forward) : next;
    }
    return all;
}

// Beside a unit's backward: the next unit's weights come (those of the first one are still there),
// the unit before it hands in its gradients.
static double exposed_backward(const struct estimate_unit *units, const double *gather,
                               const double *scatter, int count, const struct stack *stack) {
    double all = 0;
    for (int u = count - 1; u >= 0; u--) {
        double come = u > 0 ? gather[u - 1] : 0, go = u + 1 < count ? scatter[u + 1] : 0;
        double beside = (stack->overlap_gather ? come : 0) + (stack->overlap_reduce ? go : 0);
        all += come + go - beside + later(0, beside - units[u].backward - units[u].weight);
    }
    return all + scatter[0];
}

static void with_each_micro_batch(struct estimate_view *view, const struct estimate_unit *units,
                                  int count, bool gathers, bool scatters,
                                  struct estimate_stage *out) {
    enum { MOST = MODEL_MAX_LAYERS + 2 };
    double gather[MOST] = {0}, scatter[MOST] = {0};
    double all_gathers = 0, all_scatters = 0;
    for (int u = 0; u < count && u < MOST; u++) {
        if (gathers) gather[u] = gather_seconds(view, units[u].elements);
        if (scatters) scatter[u] = scatter_seconds(view, units[u].elements);
        all_gathers += gather[u];
        all_scatters += scatter[u];
    }
    out->shard_flight = 2 * all_gathers + all_scatters;
    out->shard_forward = exposed_forward(units, gather, count, view->stack.overlap_gather);
    out->shard_backward = exposed_backward(units, gather, scatter, count, &view->stack);
}

void estimate_states(struct estimate_view *view, const struct estimate_unit *units, int count,
                     int stage, struct estimate_stage *out) {
    const struct job *job = view->job;
    int zero = job->layout.zero;
    // Other programs' stage 3 (FSDP, DeepSpeed) adds up shards; the engine may do either.
    bool scatters = job->reduce_per_micro_batch || !view->stack.own;
    scatters =
        zero == 3 ? scatters : zero == 2 && job->reduce_per_micro_batch && job->micro_batches > 1;
    struct job_elements e = job_stage_elements(job, stage);
    double table = stage == 0 ? job_table_elements(job) : 0;
    if (zero == 3 || scatters) with_each_micro_batch(view, units, count, zero == 3, scatters, out);
    if (!scatters) reduce_once(view, e, table, out);
    // by unit, as they are sharded
    if (!scatters && zero >= 2 && view->stack.overlap_reduce) out->reduce_pieces = count;
    if (!scatters && zero >= 2 && view->stack.own)
        out->reduce = seconds_by_unit(view, stage, scatter_seconds) +
                      estimate_message(view, GROUP_DATA, NETWORK_ALL_REDUCE,
                                       e.vectors * estimate_gradient_bytes(view));
    if ((zero == 1 || zero == 2) && view->stack.overlap_gather)
        gather_once(view, e, table, stage, count - (stage == 0), out);
}

// ---- the update

static void add_elements(struct job_elements *sum, struct job_elements e) {
    sum->dense += e.dense;
    sum->expert += e.expert;
    sum->vectors += e.vectors;
}

static double tied_seconds(const struct estimate_view *view, int rank) {
    const struct job *job = view->job;
    const struct layout *l = &job->layout;
    int first = layout_stage_rank(l, 0), last = layout_stage_rank(l, layout_stages(l) - 1);
    if (!job->model.tied_head || first == last || (rank != first && rank != last)) return 0;
    double elements = (double)job->model.vocab / l->mesh.size[MESH_TP] * job->model.hidden;
    return network_send_seconds(&job->cluster, &l->mesh, MESH_PP,
                                elements * estimate_gradient_bytes(view));
}

// Matrices and vectors of a rank's layers.
static double tensor_count(const struct job *job, int rank) {
    const struct layout *l = &job->layout;
    double sum = 0;
    for (int s = 0; s < layout_stages(l); s++) {
        if (layout_stage_rank(l, s) != rank) continue;
        for (int i = l->layer_first[s]; i < l->layer_first[s + 1]; i++)
            sum += 6 + (model_layer_has_experts(&job->model, i)
                            ? 2.0 * job->model.experts / job->layout.mesh.ep
                            : 0);
    }
    return sum;
}

// Updated weights of all the rank's stages, where nothing hides them.
static double gather_all(struct estimate_view *view, int rank, struct job_elements all) {
    const struct layout *l = &view->job->layout;
    if (!view->stack.own) return gather_seconds(view, all);
    double sum = 0;
    for (int s = 0; s < layout_stages(l); s++)
        if (layout_stage_rank(l, s) == rank) sum += seconds_by_unit(view, s, gather_seconds);
    if (layout_stage_rank(l, 0) == rank)
        sum += gather_seconds(view, (struct job_elements){.dense = job_table_elements(view->job)});
    return sum;
}

void estimate_update_of(struct estimate_view *view, int rank, struct estimate_update *out) {
    const struct job *job = view->job;
    const struct layout *l = &job->layout;
    struct job_elements all = {0};
    *out = (struct estimate_update){.host = view->stack.step_seconds.value};
    for (int s = 0; s < layout_stages(l); s++)
        if (layout_stage_rank(l, s) == rank) add_elements(&all, job_stage_elements(job, s));
    double dense = all.dense, expert = all.expert;
    if (l->zero > 0) {
        dense /= shard_ranks(job, false);
        expert /= shard_ranks(job, true);
    }
    double own = dense + expert + all.vectors;
    out->update = cost_update_seconds(&view->shape, own, own);
    out->tied = tied_seconds(view, rank);
    if (l->sequence_parallel)
        out->partial = estimate_message(view, GROUP_TP, NETWORK_ALL_REDUCE,
                                        all.vectors * estimate_gradient_bytes(view));
    if (l->zero > 0)
        out->host += view->stack.shard_copies.value * tensor_count(job, rank) *
                     (shard_ranks(job, false) - 1) * job->cluster.accelerator.kernel_seconds.value;
    out->norm = estimate_message(view, GROUP_WORLD, NETWORK_ALL_REDUCE, sizeof(double));
    if ((l->zero == 1 || l->zero == 2) && !view->stack.overlap_gather)
        out->gather = gather_all(view, rank, all);
}

double estimate_update_sum(const struct estimate_update *u) {
    return u->update + u->tied + u->partial + u->norm + u->gather + u->host;
}
