// Opening the states: which elements of which parameter are this rank's, and where everything lies.
// See memory/rank_state.h for what is whole and what is sharded.
#include "base/arena.h"
#include "engine/states_parts.h"
#include <stdlib.h>
#include <string.h>

// ---- places -------------------------------------------------------------------------------------

float *state_master(const struct engine *e, int param) {
    const struct rank_state *r = &states_of(e)->shape;
    if (r->masters)
        return (float *)e->single[SINGLE_MASTERS] + state_at(e, param, state_sharded(e));
    return (float *)e->single[SINGLE_WEIGHTS] + state_at(e, param, r->zero == 3);
}

void *state_gradient(const struct engine *e, int param) {
    const struct rank_state *r = &states_of(e)->shape;
    if (!r->by_unit) return (float *)e->single[SINGLE_GRADIENTS] + state_at(e, param, false);
    return (char *)e->single[SINGLE_GRADIENT_SHARDS] +
           (size_t)state_at(e, param, r->accumulators_sharded) * dtype_bytes(r->accumulate);
}

// With narrow gathers into whole FP32 weights the rounded shards travel in the lower half of their
// bucket and are spread out on arrival.
bf16 *state_rounded(const struct engine *e, int param) {
    const struct rank_state *r = &states_of(e)->shape;
    if (!r->masters) return NULL;
    if (r->stored == DTYPE_BF16)
        return (bf16 *)e->single[SINGLE_WEIGHTS] + state_at(e, param, r->zero == 3);
    const struct flat_bucket *b = state_bucket_of(e, param);
    if (b->vectors) return NULL;
    void *bucket = (float *)e->single[SINGLE_WEIGHTS] + b->begin;
    return (bf16 *)bucket + (state_at(e, param, false) - b->begin);
}

void state_wait(const struct engine *e, struct comm_event event) {
    if (event.comm) comm_wait(event, e->device->lane);
}

struct comm_event state_posted(const struct engine *e, struct comm_event event) {
    if (e->parallel.no_overlap) state_wait(e, event);
    return event;
}

int engine_unit_of_embedding(const struct engine *e) {
    return e->flat.unit_embedding;
}

int engine_unit_of_head(const struct engine *e) {
    return e->flat.unit_head;
}

// ---- tables -------------------------------------------------------------------------------------

static int group_place(const struct engine *e, enum mesh_group_kind kind, int *members,
                       int *index) {
    return mesh_group(&e->layout.mesh, e->rank, kind, e->whole->config.kv_heads, members, index);
}

static int set_pieces(struct engine *e, struct err *err) {
    static const enum mesh_group_kind all[FLAT_GROUPS] = {GROUP_DATA, GROUP_EXPERT_DATA};
    static const enum mesh_group_kind shard[FLAT_GROUPS] = {GROUP_SHARD, GROUP_EXPERT_SHARD};
    static const enum mesh_group_kind replica[FLAT_GROUPS] = {GROUP_REPLICA, GROUP_EXPERT_REPLICA};
    struct states *s = states_of(e);
    int own[FLAT_GROUPS], *members = malloc((size_t)mesh_ranks(&e->layout.mesh) * sizeof *members);
    if (!members) return err_set(err, ERR_MEMORY, "no memory for the list of ranks");
    for (int g = 0; g < FLAT_GROUPS; g++) {
        group_place(e, shard[g], members, &own[g]);
        s->all_copies[g] = group_place(e, all[g], members, &s->all_copy[g]);
        s->data_copies[g] = group_place(e, replica[g], members, &s->data_copy[g]);
        if (e->layout.zero > 0) s->replica[g] = e->stream[replica[g]];
    }
    free(members);
    for (int i = 0; i < e->model->param_count; i++) {
        int bucket = e->flat.bucket_of[i];
        const struct flat_bucket *b = &e->flat.buckets[bucket];
        int64_t at = e->flat.offset[i], end = at + param_elements_padded(&e->model->params[i]);
        int64_t begin, stop;
        flat_shard(&e->flat, bucket, b->shards > 1 ? own[b->group] : 0, &begin, &stop);
        int64_t from = at > begin ? at : begin, to = end < stop ? end : stop;
        if (from < to)
            s->pieces[i] =
                (struct state_piece){from - at, to - from, b->shard_begin + from - begin};
    }
    return 0;
}

static void set_bucket(struct engine *e, int bucket) {
    struct states *s = states_of(e);
    const struct flat_bucket *all = e->flat.buckets, *b = &all[bucket];
    for (int other = 0; other < bucket; other++) {
        int64_t elements = all[other].end - all[other].begin;
        if (all[other].unit == b->unit && !all[other].vectors)
            s->buckets[bucket].unit_at += elements;
        if (rank_state_late(&all[other])) s->buckets[bucket].late_at += elements;
    }
}

static void set_units(struct engine *e) {
    struct states *s = states_of(e);
    const struct flat *f = &e->flat;
    int at = 0;
    for (int b = 0; b < f->bucket_count; b++) set_bucket(e, b);
    for (int unit = 0; unit < f->unit_count; unit++) {
        struct state_unit *u = &s->units[unit];
        u->first = at;
        for (int i = 0; i < e->model->param_count; i++)
            if (f->unit_of[i] == unit) s->unit_params[at++] = i;
        u->count = at - u->first;
        for (int b = 0; b < f->bucket_count; b++) {
            bool holds = false;
            for (int k = u->first; k < at; k++)
                holds = holds || f->bucket_of[s->unit_params[k]] == b;
            s->buckets[b].units += holds;
        }
    }
}

// Gradients that last for the step, vectors, and matrices that stay where they are.
static void set_params(struct engine *e) {
    const struct rank_state *r = &states_of(e)->shape;
    float *gradients = e->single[SINGLE_GRADIENTS];
    for (int i = 0; i < e->model->param_count; i++) {
        struct engine_param *p = &e->param_at[i];
        const struct flat_bucket *b = state_bucket_of(e, i);
        int64_t inside = e->flat.offset[i] - b->begin;
        if (!param_is_matrix(&e->model->params[i])) p->vector = state_master(e, i);
        if (gradients && !r->by_unit) p->gradient = gradients + e->flat.offset[i];
        if (gradients && r->by_unit && rank_state_late(b))
            p->gradient = gradients + states_of(e)->buckets[e->flat.bucket_of[i]].late_at + inside;
        if (r->zero == 3) continue;
        p->plain =
            (char *)e->single[SINGLE_WEIGHTS] + (size_t)e->flat.offset[i] * dtype_bytes(r->stored);
        e->weight[i].plain = p->plain;
        e->weight[i].packed_forward = engine_buffer(e, e->buffers.packed_forward[i]);
        e->weight[i].packed_backward = engine_buffer(e, e->buffers.packed_backward[i]);
    }
}

static void set_scratch(struct engine *e) {
    struct states *s = states_of(e);
    const struct rank_state *r = &s->shape;
    char *at = e->single[SINGLE_REDUCE];
    if (!at) return;
    s->partial_scratch = at;
    s->partial_scratch_kv = at += arena_round(r->partial_bytes);
    s->partial_vectors = (float *)(void *)(at += arena_round(r->partial_bytes));
    at += arena_round((uint64_t)r->partial_elements * sizeof(float));
    for (int g = 0; g < FLAT_GROUPS; g++) {
        s->reduce_scratch[g] = at;
        s->replica_scratch[g] = at += arena_round(r->reduce_bytes[g]);
        at += arena_round(r->replica_bytes[g]);
    }
}

// The plan foretold what the messages need without knowing how they will run.
static int check_room(uint64_t needed, uint64_t planned, const char *what, struct err *err) {
    if (needed <= planned) return 0;
    return err_set(err, ERR_INTERNAL, "sums of %s need %llu bytes of scratch, %llu were planned",
                   what, (unsigned long long)needed, (unsigned long long)planned);
}

static int check_scratch(const struct engine *e, struct err *err) {
    const struct states *s = states_of(e);
    const struct rank_state *r = &s->shape;
    struct comm_reduction f32 = comm_reduction_plain(DTYPE_F32, DTYPE_F32), f64 = f32;
    struct comm_reduction sent = comm_reduction_plain(r->wire, DTYPE_F32);
    f64.wire_bytes = f64.out_bytes = sizeof(double);
    if (!e->options.train) return 0;
    for (int i = 0; i < e->flat.bucket_count; i++) {
        const struct flat_bucket *b = &e->flat.buckets[i];
        const struct comm_stream *all = e->reduce[b->group], *replica = s->replica[b->group];
        int64_t n = b->end - b->begin;
        uint64_t parts =
            all ? comm_reduce_scatter_scratch(all, n / comm_stream_size(all), &sent) : 0;
        if (b->vectors && all) parts = comm_all_reduce_scratch(all, n, &f32);
        uint64_t copies = replica ? comm_all_reduce_scratch(replica, n / b->shards, &f32) : 0;
        if (check_room(parts, r->reduce_bytes[b->group], "gradients", err) != 0 ||
            check_room(copies, r->replica_bytes[b->group], "copies of shards", err) != 0)
            return -1;
    }
    for (int i = 0; i < e->model->param_count; i++) {
        enum mesh_group_kind group = e->local.slices[i].partial;
        if (group == GROUP_KIND_COUNT || !e->stream[group]) continue;
        int64_t n = param_elements_padded(&e->model->params[i]);
        if (n < r->partial_elements) n = r->partial_elements;
        if (check_room(comm_all_reduce_scratch(e->stream[group], n, &f32), r->partial_bytes,
                       "tensor-parallel ranks", err) != 0)
            return -1;
    }
    uint64_t norm = 0;
    for (int g = 0; g < FLAT_GROUPS; g++)
        if (state_sharded(e) && e->reduce[g])
            norm += comm_all_reduce_scratch(e->reduce[g], r->norm_blocks[g], &f64);
    return check_room(norm, r->norm_scratch_bytes, "the gradient norm", err);
}

static bool open_tables(struct engine *e) {
    struct states *s = states_of(e);
    size_t params = (size_t)e->model->param_count, units = (size_t)e->flat.unit_count;
    s->pieces = calloc(params, sizeof *s->pieces);
    s->units = calloc(units, sizeof *s->units);
    s->unit_params = calloc(params, sizeof *s->unit_params);
    s->buckets = calloc((size_t)e->flat.bucket_count, sizeof *s->buckets);
    s->stale = calloc(params, sizeof *s->stale);
    s->block_of = calloc(params, sizeof *s->block_of);
    s->queue_room = e->flat.bucket_count + 4 * FLAT_GROUPS;
    s->queue = calloc((size_t)s->queue_room, sizeof *s->queue);
    return s->pieces && s->units && s->unit_params && s->buckets && s->stale && s->block_of &&
           s->queue;
}

int states_open(struct engine *e, struct err *err) {
    struct states *s = calloc(1, sizeof *s);
    size_t params = (size_t)e->model->param_count;
    uint64_t *pack = calloc(2 * params, sizeof *pack);
    e->states = s;
    if (!s || !pack || !open_tables(e)) {
        free(pack);
        return err_set(err, ERR_MEMORY, "no memory for the tables of %zu parameters", params);
    }
    for (size_t i = 0; i < params; i++) {
        const struct device_weight *w = &e->weight[i];
        if (w->packed_forward) pack[i] = e->device->pack_bytes(e->device, w, false);
        if (w->packed_backward) pack[params + i] = e->device->pack_bytes(e->device, w, true);
    }
    rank_state_describe(&s->shape, &e->local, &e->shape, pack, pack + params);
    int status = set_pieces(e, err);
    if (status == 0) status = states_open_places(e, pack, pack + params, err);
    free(pack);
    if (status != 0) return -1;
    set_units(e);
    set_params(e);
    set_scratch(e);
    if (check_scratch(e, err) != 0) return -1;
    int64_t blocks[FLAT_GROUPS] = {0};
    for (size_t i = 0; i < params; i++) {
        enum flat_group g = e->model->params[i].expert < 0 ? FLAT_DENSE : FLAT_EXPERT;
        s->block_of[i] = blocks[g];
        blocks[g] += rank_norm_blocks(&e->model->params[i]);
    }
    return 0;
}

void states_close(struct engine *e) {
    struct states *s = states_of(e);
    if (!s) return;
    free(s->pieces);
    free(s->units);
    free(s->unit_params);
    free(s->buckets);
    free(s->stale);
    free(s->block_of);
    free(s->queue);
    free(s->places);
    free(s->packed_forward_at);
    free(s->packed_backward_at);
    free(s);
    e->states = NULL;
}

void states_begin(struct engine *e, int micro_batches) {
    struct states *s = states_of(e);
    for (int i = 0; i < e->model->param_count; i++) {
        e->param_at[i].written = false;
        e->param_at[i].sealed = SEAL_NONE;
    }
    for (int b = 0; b < e->flat.bucket_count; b++) {
        s->buckets[b].remaining = s->buckets[b].units;
        s->buckets[b].stored = false;
    }
    s->queue_head = s->queue_tail = 0;
    s->micro_batches = micro_batches;
    s->bottoms = 0;
}
