// The global gradient norm: sums of squares of blocks of RANK_NORM_BLOCK elements, counted from
// each parameter's start, added in one order: parameters of the whole model, then tp ranks, then
// blocks. No subtotals of ranks or stages occur, so the result does not depend on how states are
// sharded or on where stages begin. What several ranks hold counts once: the others' blocks are
// zero.
//
// Blocks are gathered inside a stage; the running total goes through the stages in order.
#include "engine/seals.h"
#include <math.h>
#include <string.h>

_Static_assert((int)RANK_NORM_BLOCK == (int)DEVICE_NORM_BLOCK,
               "the plan counts as many sums as the kernel writes");

struct tables { // of doubles; expert: [ep][tp][blocks], dense: [tp][blocks]
    double *own[FLAT_GROUPS], *tp[FLAT_GROUPS], *ep;
    void *scratch;
};

static enum flat_group group_of(const struct engine *e, int param) {
    return e->model->params[param].expert < 0 ? FLAT_DENSE : FLAT_EXPERT;
}

static struct tables place_tables(const struct engine *e) {
    const struct rank_state *r = &states_of(e)->shape;
    struct tables t;
    double *at = e->single[SINGLE_NORM_SUMS];
    for (int g = 0; g < FLAT_GROUPS; g++) {
        t.own[g] = t.tp[g] = at;
        at += r->norm_blocks[g];
    }
    for (int g = 0; g < FLAT_GROUPS && e->tp > 1; g++) {
        t.tp[g] = at;
        at += e->tp * r->norm_blocks[g];
    }
    t.ep = t.tp[FLAT_EXPERT];
    if (e->layout.mesh.ep > 1) {
        t.ep = at;
        at += e->layout.mesh.ep * e->tp * r->norm_blocks[FLAT_EXPERT];
    }
    t.scratch = at;
    return t;
}

// Elements of a parameter that count on this rank: of what several hold, those of the first. Where
// all ranks of a shard group hold a vector, its blocks are gathered as if the first had it alone.
static int64_t counted_elements(const struct engine *e, int param) {
    const struct param *p = &e->model->params[param];
    const struct param_slice *s = &e->local.slices[param];
    const struct flat_bucket *b = state_bucket_of(e, param);
    const struct comm_stream *shards = state_sharded(e) ? e->reduce[b->group] : NULL;
    if (s->tied_copy || s->copy > 0) return 0;
    if (b->shards == 1 && shards && comm_stream_index(shards) > 0) return 0;
    return s->copy_kv > 0 ? p->part_rows[0] * p->columns : param_elements_padded(p);
}

static void sum_blocks(struct engine *e, int param, double *sums) {
    const struct state_piece *piece = &states_of(e)->pieces[param];
    int64_t end = counted_elements(e, param), chunk = states_chunk(e);
    uint64_t *words = seals_norm_words(e, param);
    if (end > piece->first + piece->count) end = piece->first + piece->count;
    for (int64_t at = piece->first; at < end;) {
        int64_t n = end - at < chunk ? end - at : chunk;
        const float *values = states_wide_gradient(e, param, at - piece->first, n);
        int64_t block = at / RANK_NORM_BLOCK;
        e->device->square_sums(e->device, n, values, sums + block, words ? words + block : NULL);
        at += n;
    }
    seals_check_norm(e, param, words, end);
}

// Zero on all ranks but one: adding changes no bit.
static void add_doubles(void *context, const void *const *parts, int count, int64_t elements,
                        void *out) {
    (void)context;
    double *to = out;
    for (int64_t i = 0; i < elements; i++) {
        double sum = ((const double *)parts[0])[i];
        for (int p = 1; p < count; p++) sum += ((const double *)parts[p])[i];
        to[i] = sum;
    }
}

static void gather_blocks(struct engine *e, const struct tables *t) {
    const struct rank_state *r = &states_of(e)->shape;
    struct comm_reduction sum = {add_doubles, NULL, sizeof(double), sizeof(double)};
    for (int g = 0; g < FLAT_GROUPS; g++) {
        int64_t blocks = r->norm_blocks[g];
        if (blocks == 0) continue;
        if (state_sharded(e) && e->reduce[g])
            state_wait(e, comm_all_reduce(e->reduce[g], t->own[g], t->scratch, blocks, &sum));
        if (e->tp > 1)
            state_wait(e, comm_all_gather(e->stream[GROUP_TP], t->own[g], t->tp[g],
                                          (uint64_t)blocks * sizeof(double)));
    }
    int64_t expert = e->tp * r->norm_blocks[FLAT_EXPERT];
    if (e->layout.mesh.ep > 1 && expert > 0)
        state_wait(e, comm_all_gather(e->stream[GROUP_EP], t->tp[FLAT_EXPERT], t->ep,
                                      (uint64_t)expert * sizeof(double)));
}

static void add_param(const struct engine *e, const struct tables *t, int param, int ep,
                      double *total) {
    const struct states *s = states_of(e);
    enum flat_group g = group_of(e, param);
    const double *table = t->tp[g];
    if (g == FLAT_EXPERT) table = t->ep + ep * e->tp * s->shape.norm_blocks[FLAT_EXPERT];
    for (int tp = 0; tp < e->tp; tp++) {
        const double *sums = table + tp * s->shape.norm_blocks[g] + s->block_of[param];
        for (int64_t b = 0; b < rank_norm_blocks(&e->model->params[param]); b++) *total += sums[b];
    }
}

static int stage_of_param(const struct engine *e, int param) {
    const struct param *p = &e->model->params[param];
    for (int i = 0; i < e->local.stage_count; i++) {
        const struct stage_part *part = &e->local.stages[i];
        bool holds =
            p->layer >= part->layer_first && p->layer < part->layer_first + part->layer_count;
        bool embedding = p->role == PARAM_POSITION ||
                         (p->role == PARAM_EMBEDDING && !e->local.slices[param].tied_copy);
        if (p->layer < 0) holds = embedding ? part->first : part->last;
        if (holds) return i;
    }
    return -1;
}

// Experts of a row of parameters that follow each other in the whole model: those of ep rank 0
// first.
static void add_stage(const struct engine *e, const struct tables *t, int stage, double *total) {
    int count = e->model->param_count;
    for (int i = 0; i < count;) {
        int end = i + 1;
        if (stage_of_param(e, i) == stage) {
            bool expert = group_of(e, i) == FLAT_EXPERT;
            while (expert && end < count && group_of(e, end) == FLAT_EXPERT &&
                   e->local.slices[end].whole == e->local.slices[end - 1].whole + 1)
                end++;
            for (int ep = 0; ep < (expert ? e->layout.mesh.ep : 1); ep++)
                for (int k = i; k < end; k++) add_param(e, t, k, ep, total);
        }
        i = end;
    }
}

static double add_stages(struct engine *e, const struct tables *t) {
    int stages = layout_stages(&e->layout);
    double total = 0;
    for (int i = 0; i < e->local.stage_count; i++) {
        int stage = e->local.stages[i].stage;
        int before = stage > 0 ? engine_rank_of_stage(e, stage - 1) : e->rank;
        int after = stage + 1 < stages ? engine_rank_of_stage(e, stage + 1) : e->rank;
        if (before != e->rank)
            state_wait(e, comm_receive(e->comm, before, TAG_NORM + stage, &total, sizeof total));
        add_stage(e, t, i, &total);
        if (after != e->rank)
            state_wait(e, comm_send(e->comm, after, TAG_NORM + stage + 1, &total, sizeof total));
    }
    struct comm_stream *pp = e->stream[GROUP_PP];
    if (pp)
        state_wait(
            e, comm_broadcast(pp, layout_stage_rank(&e->layout, stages - 1), &total, sizeof total));
    return total;
}

double states_norm(struct engine *e) {
    const struct rank_state *r = &states_of(e)->shape;
    struct tables t = place_tables(e);
    memset(t.own[FLAT_DENSE], 0, (size_t)r->norm_blocks[FLAT_DENSE] * sizeof(double));
    memset(t.own[FLAT_EXPERT], 0, (size_t)r->norm_blocks[FLAT_EXPERT] * sizeof(double));
    for (int i = 0; i < e->model->param_count; i++)
        sum_blocks(e, i, t.own[group_of(e, i)] + states_of(e)->block_of[i]);
    gather_blocks(e, &t);
    return sqrt(add_stages(e, &t));
}
