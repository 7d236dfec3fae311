// The least that a step of a candidate can take: its stages as the estimate prices them, and of
// their timeline what holds in any order. So no candidate is faster than its bound.
#include "plan/estimate_parts.h"
#include "plan/search_parts.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 8, BUCKETS = 1 << 15, KEYS = 7 };

// A layer of each class, the embedding and the head: one micro-batch.
struct search_prices {
    int key[KEYS];
    struct cost_sum layer[MOST_CLASSES][COST_PASSES];
    struct cost_sum first[COST_PASSES], last[COST_PASSES];
    struct search_prices *next;
};
// Where the groups of a mesh stand in the network, which takes a walk over all ranks to see.
struct search_groups {
    struct mesh mesh;
    struct network_group groups[GROUP_KIND_COUNT];
    bool known[GROUP_KIND_COUNT];
    struct search_groups *next;
};
struct search_bounds {
    const struct search_request *request;
    int class_count, class_layer[MOST_CLASSES], class_of[MODEL_MAX_LAYERS];
    struct search_prices *buckets[BUCKETS];
    struct cost_ops ops;
    struct estimate_view view;
    struct search_groups *groups[BUCKETS];
    struct estimate_unit units[MODEL_MAX_LAYERS + 2];
    struct estimate_stage stages[LAYOUT_MAX_STAGES];
};

static bool alike(const struct model_config *c, int a, int b) {
    return model_layer_has_experts(c, a) == model_layer_has_experts(c, b) &&
           c->layer_window[a] == c->layer_window[b];
}

// Layers beyond the classes count as one of the first: models have two or three kinds.
static void find_classes(struct search_bounds *b, const struct model_config *c) {
    for (int layer = 0; layer < c->layers; layer++) {
        int class = 0;
        while (class < b->class_count && !alike(c, layer, b->class_layer[class])) class ++;
        if (class == MOST_CLASSES) class = 0;
        if (class == b->class_count) b->class_layer[b->class_count++] = layer;
        b->class_of[layer] = class;
    }
}

struct search_bounds *search_bounds_open(const struct search_request *request, struct err *err) {
    struct search_bounds *b = calloc(1, sizeof *b);
    if (!b) {
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
        return NULL;
    }
    b->request = request;
    find_classes(b, request->model);
    return b;
}

void search_bounds_close(struct search_bounds *b) {
    for (int i = 0; b && i < BUCKETS; i++) {
        for (struct search_prices *p = b->buckets[i], *next; p; p = next) {
            next = p->next;
            free(p);
        }
        for (struct search_groups *g = b->groups[i], *next; g; g = next) {
            next = g->next;
            free(g);
        }
    }
    if (b) cost_ops_free(&b->ops);
    free(b);
}

// ---- prices, made once for all candidates with the same shapes inside a layer

static int price_all(struct search_bounds *b, const struct cost_shape *shape,
                     struct search_prices *out, struct err *err) {
    for (int k = 0; k < COST_PASSES; k++) {
        enum cost_pass pass = (enum cost_pass)k;
        for (int class = 0; class < b->class_count; class ++) {
            b->ops.count = 0;
            if (cost_list_layer(shape, b->class_layer[class], pass, &b->ops, err) != 0) return -1;
            out->layer[class][k] = cost_price(shape, &b->ops);
        }
        b->ops.count = 0;
        if (cost_list_embedding(shape, pass, &b->ops, err) != 0) return -1;
        out->first[k] = cost_price(shape, &b->ops);
        b->ops.count = 0;
        if (cost_list_head(shape, pass, &b->ops, err) != 0) return -1;
        out->last[k] = cost_price(shape, &b->ops);
    }
    return 0;
}

static unsigned hash_of(const int *key, int count) {
    unsigned hash = 2166136261u;
    for (int i = 0; i < count; i++) hash = (hash ^ (unsigned)key[i]) * 16777619u;
    return (hash ^ hash >> 16) % BUCKETS;
}

static const struct search_prices *prices_of(struct search_bounds *b, const struct job *job,
                                             struct err *err) {
    const struct layout *l = &job->layout;
    const int key[KEYS] = {
        l->mesh.size[MESH_TP], l->mesh.size[MESH_CP], l->mesh.ep, l->sequence_parallel, job->rows,
        (int)job->recompute,   (int)job->precision};
    struct search_prices **bucket = &b->buckets[hash_of(key, KEYS)];
    for (struct search_prices *p = *bucket; p; p = p->next)
        if (memcmp(p->key, key, sizeof key) == 0) return p;
    struct search_prices *p = calloc(1, sizeof *p);
    if (!p) {
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
        return NULL;
    }
    memcpy(p->key, key, sizeof key);
    struct stack room;
    struct cost_shape shape;
    job_cost_shape(job, &room, &shape);
    if (price_all(b, &shape, p, err) != 0) {
        free(p);
        return NULL;
    }
    p->next = *bucket;
    *bucket = p;
    return p;
}

// Of the device: the host's launches are judged over a whole stage.
static double device_seconds(const struct cost_sum *passes) {
    double sum = 0;
    for (int pass = 0; pass < COST_PASSES; pass++) sum += passes[pass].device;
    return sum;
}

int search_bound_node(struct search_bounds *b, const struct job *job, double *seconds,
                      struct err *err) {
    const struct search_prices *p = prices_of(b, job, err);
    if (!p) return -1;
    double all = device_seconds(p->first) + device_seconds(p->last);
    for (int layer = 0; layer < job->model.layers; layer++)
        all += device_seconds(p->layer[b->class_of[layer]]);
    *seconds = job->micro_batches * all / job->layout.mesh.size[MESH_PP];
    return 0;
}

// ---- groups, found once for a mesh

// NULL without memory: they are looked up anew.
static struct search_groups *groups_of(struct search_bounds *b, const struct mesh *mesh) {
    const int key[] = {mesh->size[MESH_TP], mesh->size[MESH_PP], mesh->size[MESH_CP], mesh->ep};
    struct search_groups **bucket = &b->groups[hash_of(key, 4)];
    for (struct search_groups *g = *bucket; g; g = g->next)
        if (memcmp(&g->mesh, mesh, sizeof *mesh) == 0) return g;
    struct search_groups *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->mesh = *mesh;
    g->next = *bucket;
    *bucket = g;
    return g;
}

static void open_view(struct search_bounds *b, const struct job *job,
                      const struct search_groups *groups) {
    estimate_view_open(&b->view, job);
    if (!groups) return;
    memcpy(b->view.groups, groups->groups, sizeof groups->groups);
    memcpy(b->view.known, groups->known, sizeof groups->known);
}

static void close_view(const struct search_bounds *b, struct search_groups *groups) {
    if (!groups) return;
    memcpy(groups->groups, b->view.groups, sizeof groups->groups);
    memcpy(groups->known, b->view.known, sizeof groups->known);
}

// ---- stages, as estimate_price_stages makes them

static struct estimate_unit unit_of(const struct cost_sum *passes, struct job_elements elements) {
    return (struct estimate_unit){passes[COST_FORWARD].seconds,
                                  passes[COST_RECOMPUTE].seconds + passes[COST_INPUT].seconds,
                                  passes[COST_WEIGHT].seconds, elements};
}

static void add_passes(struct estimate_stage *stage, const struct cost_sum *passes) {
    for (int k = 0; k < COST_PASSES; k++)
        stage->pass[k] = cost_sum_add(&stage->pass[k], &passes[k]);
}

static void fill_stage(struct search_bounds *b, const struct search_prices *p,
                       const struct job *job, int s, struct estimate_stage *out) {
    const struct layout *l = &job->layout;
    const struct job_elements none = {0};
    int count = 0;
    bool units = l->zero == 3; // messages of each unit
    *out = (struct estimate_stage){.gather_pieces = 1, .reduce_pieces = 1};
    if (s == 0) {
        add_passes(out, p->first);
        b->units[count++] = unit_of(p->first, none);
    }
    for (int i = l->layer_first[s]; i < l->layer_first[s + 1]; i++) {
        const struct cost_sum *passes = p->layer[b->class_of[i]];
        add_passes(out, passes);
        b->units[count++] =
            unit_of(passes, units ? job_layer_elements(job, i) : (struct job_elements){0});
    }
    if (s == layout_stages(l) - 1) {
        add_passes(out, p->last);
        b->units[count++] = unit_of(p->last, none);
    }
    estimate_states(&b->view, b->units, count, s, out);
    struct cost_sum again = cost_sum_add(&out->pass[COST_RECOMPUTE], &out->pass[COST_INPUT]);
    struct cost_sum whole = cost_sum_add(&again, &out->pass[COST_WEIGHT]);
    out->forward = out->pass[COST_FORWARD].seconds + out->shard_forward;
    out->input = again.seconds + out->shard_backward;
    out->weight = out->pass[COST_WEIGHT].seconds;
    out->backward = whole.seconds + out->shard_backward;
}

static bool same_layers(const struct search_bounds *b, const struct layout *l, int s, int t) {
    int count = l->layer_first[s + 1] - l->layer_first[s];
    if (l->layer_first[t + 1] - l->layer_first[t] != count) return false;
    for (int i = 0; i < count; i++)
        if (b->class_of[l->layer_first[s] + i] != b->class_of[l->layer_first[t] + i]) return false;
    return true;
}

// At least: a tensor rank's part of a micro-batch's residual stream.
static double least_send(const struct job *job) {
    const struct mesh *m = &job->layout.mesh;
    double tokens = (double)job->rows * job->context / m->size[MESH_CP] / m->size[MESH_TP];
    if (m->size[MESH_PP] == 1) return 0;
    return network_send_seconds(&job->cluster, m, MESH_PP, 2 * tokens * job->model.hidden);
}

// Inner stages with the same layers are made once.
static void fill_stages(struct search_bounds *b, const struct search_prices *p,
                        const struct job *job) {
    const struct layout *l = &job->layout;
    int stages = layout_stages(l), made[2] = {-1, -1};
    for (int s = 0; s < stages; s++) {
        bool inner = s > 0 && s < stages - 1, copied = false;
        for (int k = 0; k < 2 && inner && !copied; k++)
            if (made[k] >= 0 && same_layers(b, l, made[k], s)) {
                b->stages[s] = b->stages[made[k]];
                copied = true;
            }
        if (!copied) fill_stage(b, p, job, s, &b->stages[s]);
        if (inner && !copied) made[made[0] >= 0] = s;
    }
    double send = least_send(job);
    for (int s = 0; s < stages; s++) {
        b->stages[s].send_forward = s + 1 < stages ? send : 0;
        b->stages[s].send_backward = s > 0 ? send : 0;
    }
}

// ---- their timeline

static double later(double a, double b) {
    return a > b ? a : b;
}

// A rank begins when the first micro-batch has come through the stages before its own and its first
// weights are there; what it does takes no less than all its actions; then the last gradient goes
// back through the stages before, and what it has to reduce behind its last backward goes out.
struct rank_times {
    double begin, work, back, tail, earliest, reduce;
    bool seen;
};

static bool is_split(const struct job *job) {
    return job->schedule == PIPELINE_ZB_H1 || job->schedule == PIPELINE_ZB_V;
}

static void add_stage(const struct job *job, const struct estimate_stage *s, double begin,
                      double back, struct rank_times *r) {
    double backward = is_split(job) ? s->input + s->weight : s->backward;
    double last = is_split(job) ? s->weight : s->backward;
    int pieces = s->reduce_pieces > 1 ? s->reduce_pieces : 1;
    double own = job->micro_batches * (s->forward + backward);
    if (!r->seen) {
        r->begin = begin;
        r->back = back;
        r->tail = s->reduce / pieces;
        r->earliest = own - last + last / pieces;
    }
    r->seen = true;
    r->work += own;
    r->reduce += s->reduce;
    if (s->reduce / pieces < r->tail) r->tail = s->reduce / pieces;
    if (own - last + last / pieces < r->earliest) r->earliest = own - last + last / pieces;
}

static double pipeline_bound(struct search_bounds *b, const struct job *job) {
    const struct layout *l = &job->layout;
    int pp = l->mesh.size[MESH_PP], stages = layout_stages(l);
    struct rank_times ranks[LAYOUT_MAX_STAGES];
    memset(ranks, 0, (size_t)pp * sizeof ranks[0]);
    double come = 0, back = 0, most = 0;
    bool reduce_last = !(b->view.stack.overlap_reduce && !job->no_overlap);
    for (int s = 0; s < stages; s++) {
        const struct estimate_stage *stage = &b->stages[s];
        int n = stage->gather_pieces > 1 ? stage->gather_pieces : 1;
        double begin = later(come, stage->gather / n);
        double end = later(begin + stage->forward, stage->gather + stage->forward / n);
        add_stage(job, stage, end - stage->forward, back, &ranks[layout_stage_rank(l, s)]);
        bool away = s + 1 < stages && layout_stage_rank(l, s + 1) != layout_stage_rank(l, s);
        come = end + (away ? stage->send_forward : 0);
        back += (is_split(job) ? stage->input : stage->backward) + (away ? stage->send_forward : 0);
    }
    // One micro-batch there and back.
    most = come + back;
    for (int r = 0; r < pp; r++) {
        const struct rank_times *t = &ranks[r];
        double all = t->begin + t->work;
        // Of halves the weights' may come behind the last input half.
        double own = all + (is_split(job) ? 0 : t->back);
        double reduced = reduce_last ? all + t->reduce
                                     : later(all + t->tail, t->begin + t->earliest + t->reduce);
        most = later(most, later(own, reduced));
    }
    return most;
}

static double update_bound(struct search_bounds *b, const struct job *job) {
    struct estimate_update update;
    double least = -1;
    int pp = job->layout.mesh.size[MESH_PP], ends[2] = {0, pp - 1};
    // Inner ranks hold no table; what the least of three does, each does.
    for (int k = 0; k < 3; k++) {
        estimate_update_of(&b->view, k < 2 ? ends[k] : pp / 2, &update);
        double sum = estimate_update_sum(&update);
        if (least < 0 || sum < least) least = sum;
    }
    return least;
}

int search_bound(struct search_bounds *b, const struct job *job, double *seconds, struct err *err) {
    const struct search_prices *p = prices_of(b, job, err);
    if (!p) return -1;
    struct search_groups *groups = groups_of(b, &job->layout.mesh);
    open_view(b, job, groups);
    fill_stages(b, p, job);
    *seconds = pipeline_bound(b, job) + update_bound(b, job);
    close_view(b, groups);
    return 0;
}

// Without messages of states: a fraction of the time of the above.
int search_bound_quick(struct search_bounds *b, const struct job *job, double *seconds,
                       struct err *err) {
    const struct search_prices *p = prices_of(b, job, err);
    if (!p) return -1;
    const struct layout *l = &job->layout;
    int pp = l->mesh.size[MESH_PP], stages = layout_stages(l);
    double work[LAYOUT_MAX_STAGES] = {0}, around[LAYOUT_MAX_STAGES], before = 0, most = 0;
    double forward[MOST_CLASSES] = {0}, all[MOST_CLASSES] = {0};
    for (int class = 0; class < b->class_count; class ++) {
        forward[class] = p->layer[class][COST_FORWARD].device;
        all[class] = device_seconds(p->layer[class]);
    }
    for (int r = 0; r < pp; r++) around[r] = -1;
    for (int s = 0; s < stages; s++) {
        int rank = layout_stage_rank(l, s);
        double come = s == 0 ? p->first[COST_FORWARD].device : 0;
        double both = s == 0 ? device_seconds(p->first) : 0;
        for (int i = l->layer_first[s]; i < l->layer_first[s + 1]; i++) {
            come += forward[b->class_of[i]];
            both += all[b->class_of[i]];
        }
        if (s == stages - 1) both += device_seconds(p->last);
        work[rank] += both;
        if (around[rank] < 0) around[rank] = before;
        before += is_split(job) ? come : both;
    }
    for (int r = 0; r < pp; r++) most = later(most, job->micro_batches * work[r] + around[r]);
    *seconds = most;
    return 0;
}
