// The least that a step of a candidate can take, from the prices of its layers alone: what the
// engine's lists do in any order. The prices are those of the estimate, so that no candidate is
// faster than its bound.
#include "plan/search_parts.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 8, BUCKETS = 1 << 12, KEYS = 7 };

// Seconds of one micro-batch, by class of layer and at the ends.
struct search_prices {
    int key[KEYS];
    double forward[MOST_CLASSES], backward[MOST_CLASSES];
    double first_forward, first_backward, last_forward, last_backward;
    struct search_prices *next;
};
struct search_bounds {
    const struct search_request *request;
    int class_count, class_layer[MOST_CLASSES];
    int before[MODEL_MAX_LAYERS + 1][MOST_CLASSES]; // layers of the class below a layer
    struct search_prices *buckets[BUCKETS];
    struct cost_ops ops;
    double dense_params, expert_params; // of the whole model
};

static bool alike(const struct model_config *c, int a, int b) {
    return model_layer_has_experts(c, a) == model_layer_has_experts(c, b) &&
           c->layer_window[a] == c->layer_window[b];
}

// A layer beyond the classes counts as the last class; with so many kinds the bound is rough, so
// its price is not taken at all (see add_layers).
static void find_classes(struct search_bounds *b, const struct model_config *c) {
    for (int layer = 0; layer < c->layers; layer++) {
        int class = 0;
        while (class < b->class_count && !alike(c, layer, b->class_layer[class])) class ++;
        memcpy(b->before[layer + 1], b->before[layer], sizeof b->before[layer]);
        if (class == MOST_CLASSES) continue;
        if (class == b->class_count) b->class_layer[b->class_count++] = layer;
        b->before[layer + 1][class]++;
    }
}

static int count_params(struct search_bounds *b, const struct model_config *c, struct err *err) {
    struct model model;
    if (model_describe(&model, c, err) != 0) return -1;
    for (int i = 0; i < model.param_count; i++)
        *(model.params[i].expert < 0 ? &b->dense_params : &b->expert_params) +=
            (double)param_elements(&model.params[i]);
    model_free(&model);
    return 0;
}

struct search_bounds *search_bounds_open(const struct search_request *request, struct err *err) {
    struct search_bounds *b = calloc(1, sizeof *b);
    if (!b) {
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
        return NULL;
    }
    b->request = request;
    find_classes(b, request->model);
    if (count_params(b, request->model, err) == 0) return b;
    search_bounds_close(b);
    return NULL;
}

void search_bounds_close(struct search_bounds *b) {
    for (int i = 0; b && i < BUCKETS; i++)
        for (struct search_prices *p = b->buckets[i], *next; p; p = next) {
            next = p->next;
            free(p);
        }
    if (b) cost_ops_free(&b->ops);
    free(b);
}

// What the device does, without waiting for the host: launches are counted over longer stretches
// than a layer.
static double price_ops(struct search_bounds *b, const struct cost_shape *shape) {
    struct cost_sum sum = cost_price(shape, &b->ops);
    b->ops.count = 0;
    return sum.device;
}

static int price_layer(struct search_bounds *b, const struct cost_shape *shape, int class,
                       struct search_prices *out, struct err *err) {
    for (int pass = COST_FORWARD; pass < COST_PASSES; pass++) {
        if (cost_list_layer(shape, b->class_layer[class], (enum cost_pass)pass, &b->ops, err) != 0)
            return -1;
        *(pass == COST_FORWARD ? &out->forward[class] : &out->backward[class]) +=
            price_ops(b, shape);
    }
    return 0;
}

static int price_ends(struct search_bounds *b, const struct cost_shape *shape,
                      struct search_prices *out, struct err *err) {
    for (int pass = COST_FORWARD; pass <= COST_WEIGHT; pass++) {
        bool forward = pass == COST_FORWARD;
        if (cost_list_embedding(shape, (enum cost_pass)pass, &b->ops, err) != 0) return -1;
        *(forward ? &out->first_forward : &out->first_backward) += price_ops(b, shape);
        if (cost_list_head(shape, (enum cost_pass)pass, &b->ops, err) != 0) return -1;
        *(forward ? &out->last_forward : &out->last_backward) += price_ops(b, shape);
    }
    return 0;
}

static const struct search_prices *prices_of(struct search_bounds *b, const struct job *job,
                                             struct err *err) {
    const struct layout *l = &job->layout;
    const int key[KEYS] = {
        l->mesh.size[MESH_TP], l->mesh.size[MESH_CP], l->mesh.ep, l->sequence_parallel, job->rows,
        (int)job->recompute,   (int)job->precision};
    unsigned hash = 2166136261u;
    for (int i = 0; i < KEYS; i++) hash = (hash ^ (unsigned)key[i]) * 16777619u;
    struct search_prices **bucket = &b->buckets[(hash ^ hash >> 16) % BUCKETS];
    for (struct search_prices *p = *bucket; p; p = p->next)
        if (memcmp(p->key, key, sizeof key) == 0) return p;
    struct search_prices *p = calloc(1, sizeof *p);
    if (!p) {
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
        return NULL;
    }
    memcpy(p->key, key, sizeof key);
    p->next = *bucket;
    *bucket = p;
    struct stack room;
    struct cost_shape shape;
    job_cost_shape(job, &room, &shape);
    for (int class = 0; class < b->class_count; class ++)
        if (price_layer(b, &shape, class, p, err) != 0) return NULL;
    return price_ends(b, &shape, p, err) == 0 ? p : NULL;
}

static double add_layers(const struct search_bounds *b, const double *price, int from, int to) {
    double sum = 0;
    for (int class = 0; class < b->class_count; class ++)
        sum += price[class] * (b->before[to][class] - b->before[from][class]);
    return sum;
}

// The mean rank's shard of the parameters; the fullest one has no less.
static double update_bound(const struct search_bounds *b, const struct job *job) {
    const struct mesh *m = &job->layout.mesh;
    double model_ranks = (double)m->size[MESH_TP] * m->size[MESH_PP];
    double data = (double)m->size[MESH_DP] * m->size[MESH_CP];
    double dense = b->dense_params / model_ranks, expert = b->expert_params / (model_ranks * m->ep);
    if (job->layout.zero > 0) dense /= data, expert /= data / m->ep;
    struct stack room;
    struct cost_shape shape;
    job_cost_shape(job, &room, &shape);
    return cost_update_seconds(&shape, dense + expert, dense + expert);
}

static bool is_split(const struct job *job) {
    return job->schedule == PIPELINE_ZB_H1 || job->schedule == PIPELINE_ZB_V;
}

// A rank begins when the first micro-batch has come through the stages before its own, and when it
// has ended its part the gradient goes back through them (of halves only those of inputs: not
// counted).
static double pipeline_bound(const struct search_bounds *b, const struct search_prices *p,
                             const struct job *job) {
    const struct layout *l = &job->layout;
    int pp = l->mesh.size[MESH_PP], stages = layout_stages(l);
    double work[LAYOUT_MAX_STAGES] = {0}, around[LAYOUT_MAX_STAGES], before = 0, most = 0;
    for (int r = 0; r < pp; r++) around[r] = -1;
    for (int s = 0; s < stages; s++) {
        int rank = layout_stage_rank(l, s), from = l->layer_first[s], to = l->layer_first[s + 1];
        double forward = add_layers(b, p->forward, from, to);
        double backward = add_layers(b, p->backward, from, to);
        if (s == 0) forward += p->first_forward, backward += p->first_backward;
        if (s == stages - 1) forward += p->last_forward, backward += p->last_backward;
        work[rank] += forward + backward;
        if (around[rank] < 0) around[rank] = before;
        before += forward + (is_split(job) ? 0 : backward);
    }
    for (int r = 0; r < pp; r++) {
        double time = job->micro_batches * work[r] + around[r];
        if (time > most) most = time;
    }
    return most;
}

int search_bound_node(struct search_bounds *b, const struct job *job, double *seconds,
                      struct err *err) {
    const struct search_prices *p = prices_of(b, job, err);
    if (!p) return -1;
    int layers = job->model.layers;
    double all = add_layers(b, p->forward, 0, layers) + add_layers(b, p->backward, 0, layers) +
                 p->first_forward + p->first_backward + p->last_forward + p->last_backward;
    *seconds = job->micro_batches * all / job->layout.mesh.size[MESH_PP];
    return 0;
}

int search_bound(struct search_bounds *b, const struct job *job, double *seconds, struct err *err) {
    const struct search_prices *p = prices_of(b, job, err);
    if (!p) return -1;
    *seconds = pipeline_bound(b, p, job) + update_bound(b, job);
    return 0;
}
