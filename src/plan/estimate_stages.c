// Seconds of a stage's actions: the lists of its layers and ends, priced. Layers of one kind are
// priced once. See estimate.h.
#include "plan/estimate_parts.h"
#include <stdlib.h>

// What a layer, an embedding or a head takes.
struct priced {
    struct cost_sum pass[COST_PASSES];
    double attention_flops[COST_PASSES];
};

typedef int (*list_function)(const struct cost_shape *shape, int layer, enum cost_pass pass,
                             struct cost_ops *out, struct err *err);

static int list_embedding(const struct cost_shape *shape, int layer, enum cost_pass pass,
                          struct cost_ops *out, struct err *err) {
    (void)layer;
    return cost_list_embedding(shape, pass, out, err);
}

static int list_head(const struct cost_shape *shape, int layer, enum cost_pass pass,
                     struct cost_ops *out, struct err *err) {
    (void)layer;
    return cost_list_head(shape, pass, out, err);
}

static int price(const struct cost_shape *shape, list_function list, int layer,
                 struct cost_ops *ops, struct priced *out, struct err *err) {
    *out = (struct priced){0};
    for (int pass = 0; pass < COST_PASSES; pass++) {
        ops->count = 0;
        if (list(shape, layer, (enum cost_pass)pass, ops, err) != 0) return -1;
        out->pass[pass] = cost_price(shape, ops);
        for (int k = 0; k < ops->count; k++)
            if (ops->ops[k].cause == CAUSE_ATTENTION)
                out->attention_flops[pass] += ops->ops[k].flops;
    }
    return 0;
}

// ---- layers by kind

enum { MOST_KINDS = 16 };
struct kinds {
    struct {
        int window;
        bool experts;
        struct priced priced;
    } kind[MOST_KINDS];
    int count;
    struct priced other; // where there are more kinds than room
    struct cost_ops ops;
};

static const struct priced *layer_price(struct kinds *kinds, const struct cost_shape *shape,
                                        int layer, struct err *err) {
    const struct model_config *c = shape->model;
    int window = c->layer_window[layer];
    bool experts = model_layer_has_experts(c, layer);
    for (int k = 0; k < kinds->count; k++)
        if (kinds->kind[k].window == window && kinds->kind[k].experts == experts)
            return &kinds->kind[k].priced;
    bool room = kinds->count < MOST_KINDS;
    struct priced *out = room ? &kinds->kind[kinds->count].priced : &kinds->other;
    if (price(shape, cost_list_layer, layer, &kinds->ops, out, err) != 0) return NULL;
    if (room) {
        kinds->kind[kinds->count].window = window;
        kinds->kind[kinds->count++].experts = experts;
    }
    return out;
}

// ---- stages

static void add(struct estimate_stage *stage, const struct priced *p, struct job_elements elements,
                struct estimate_unit *unit) {
    for (int pass = 0; pass < COST_PASSES; pass++) {
        stage->pass[pass] = cost_sum_add(&stage->pass[pass], &p->pass[pass]);
        stage->attention_flops[pass] += p->attention_flops[pass];
    }
    *unit = (struct estimate_unit){
        p->pass[COST_FORWARD].seconds,
        p->pass[COST_RECOMPUTE].seconds + p->pass[COST_INPUT].seconds,
        p->pass[COST_WEIGHT].seconds,
        elements,
    };
}

double estimate_send_seconds(struct estimate_view *view) {
    const struct job *job = view->job;
    const struct mesh *mesh = &job->layout.mesh;
    double tokens = (double)job->rows * job->context / mesh->size[MESH_CP], gather = 0;
    double bytes = tokens * job->model.hidden * (job->precision == HARDWARE_FP32 ? 4 : 2);
    bool split = !job->layout.sequence_parallel && view->stack.split_sends;
    if (split) gather = estimate_message(view, GROUP_TP, NETWORK_ALL_GATHER, bytes);
    if (split || job->layout.sequence_parallel) bytes /= mesh->size[MESH_TP];
    return network_send_seconds(&job->cluster, mesh, MESH_PP, bytes) + gather;
}

static void finish(struct estimate_view *view, int stage, struct estimate_stage *out) {
    const struct job *job = view->job;
    const struct cost_sum *p = out->pass;
    struct cost_sum again = cost_sum_add(&p[COST_RECOMPUTE], &p[COST_INPUT]);
    out->whole = cost_sum_add(&again, &p[COST_WEIGHT]);
    out->forward = p[COST_FORWARD].seconds + out->shard_forward;
    out->input = again.seconds + out->shard_backward;
    out->weight = p[COST_WEIGHT].seconds;
    out->backward = out->whole.seconds + out->shard_backward;
    if (job->layout.mesh.size[MESH_PP] == 1) return;
    double seconds = estimate_send_seconds(view);
    if (stage + 1 < layout_stages(&job->layout)) out->send_forward = seconds;
    if (stage > 0) out->send_backward = seconds;
}

struct pricing {
    struct estimate_view view;
    struct kinds kinds;
    struct priced embedding, head;
    struct estimate_unit units[MODEL_MAX_LAYERS + 2];
};

static int price_stage(struct pricing *w, int stage, struct estimate_stage *out, struct err *err) {
    const struct job *job = w->view.job;
    const struct layout *l = &job->layout;
    const struct job_elements table = {.dense = job_table_elements(job)};
    const struct job_elements head = {.dense = job_head_elements(job)};
    int count = 0;
    bool last = stage == layout_stages(l) - 1;
    *out = (struct estimate_stage){.gather_pieces = 1, .reduce_pieces = 1};
    if (stage == 0) add(out, &w->embedding, table, &w->units[count++]);
    for (int i = l->layer_first[stage]; i < l->layer_first[stage + 1]; i++) {
        const struct priced *p = layer_price(&w->kinds, &w->view.shape, i, err);
        if (!p) return -1;
        add(out, p, job_layer_elements(job, i), &w->units[count++]);
    }
    if (last) add(out, &w->head, head, &w->units[count++]);
    estimate_states(&w->view, w->units, count, stage, out);
    finish(&w->view, stage, out);
    return 0;
}

int estimate_price_stages(const struct job *job, struct estimate_stage *stages, struct err *err) {
    struct pricing *w = malloc(sizeof *w);
    if (!w) return err_set(err, ERR_MEMORY, "plan: no memory to price a step");
    estimate_view_open(&w->view, job);
    w->kinds.count = 0;
    w->kinds.ops = (struct cost_ops){0};
    const struct cost_shape *shape = &w->view.shape;
    int result = price(shape, list_embedding, 0, &w->kinds.ops, &w->embedding, err);
    if (result == 0) result = price(shape, list_head, 0, &w->kinds.ops, &w->head, err);
    for (int s = 0; s < layout_stages(&job->layout) && result == 0; s++)
        result = price_stage(w, s, &stages[s], err);
    cost_ops_free(&w->kinds.ops);
    free(w);
    return result;
}
