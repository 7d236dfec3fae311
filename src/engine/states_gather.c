// Weights for use: gathered after an update (zero 1, 2), or unit by unit just before use and given
// up behind it (zero 3), and packed for the products once they are here.
//
// Which units are fetched ahead follows from the walk alone, layers upward in forward and downward
// in backward, never from what has arrived, so that all ranks of a group ask in one order.
#include "base/arena.h"
#include "engine/seals.h"
#include <stdlib.h>
#include <string.h>

enum { SPREAD_BLOCK = 4096 };

static bool narrow(const struct engine *e) {
    const struct rank_state *r = &states_of(e)->shape;
    return r->masters && e->type == DTYPE_F32;
}

static void pack(struct engine *e, int param, bool forward, bool backward) {
    const struct device_weight *w = &e->weight[param];
    for (int back = 0; back < 2; back++) {
        if (back ? !backward || !w->packed_backward : !forward || !w->packed_forward) continue;
        e->device->pack(e->device, w, back);
        seals_packed(e, param, back);
    }
}

// ---- zero 0 to 2: whole weights -----------------------------------------------------------------

// A bucket of BF16 values in the lower half of its FP32 place, from the end on.
static void spread(float *bucket, int64_t elements) {
    const void *narrow_values = bucket;
    bf16 block[SPREAD_BLOCK];
    for (int64_t end = elements; end > 0; end -= SPREAD_BLOCK) {
        int64_t begin = end > SPREAD_BLOCK ? end - SPREAD_BLOCK : 0;
        memcpy(block, (const bf16 *)narrow_values + begin, (size_t)(end - begin) * sizeof *block);
        for (int64_t i = begin; i < end; i++) bucket[i] = bf16_to_float(block[i - begin]);
    }
}

static void gather_bucket(struct engine *e, int bucket) {
    struct states *s = states_of(e);
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    if (b->vectors) return; // whole everywhere
    struct comm_stream *stream = b->shards > 1 ? e->gather[b->group] : NULL;
    size_t element = dtype_bytes(s->shape.gathered);
    int64_t each = (b->end - b->begin) / b->shards;
    char *all = (char *)e->single[SINGLE_WEIGHTS] + (size_t)b->begin * dtype_bytes(e->type);
    s->buckets[bucket].gathering = true;
    s->buckets[bucket].gathered = (struct comm_event){0};
    if (!stream) return;
    uint64_t bytes = (uint64_t)each * element;
    char *own = all + bytes * (uint64_t)comm_stream_index(stream);
    s->buckets[bucket].gathered = state_posted(e, comm_all_gather(stream, own, all, bytes));
}

static void await_bucket(struct engine *e, int bucket) {
    struct states *s = states_of(e);
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    if (!s->buckets[bucket].gathering) return;
    s->buckets[bucket].gathering = false;
    state_wait(e, s->buckets[bucket].gathered);
    if (narrow(e)) spread((float *)e->single[SINGLE_WEIGHTS] + b->begin, b->end - b->begin);
    seals_gathered(e, bucket);
}

void states_freshen(struct engine *e, int param) {
    bool *stale = &states_of(e)->stale[param];
    if (*stale) pack(e, param, true, true);
    *stale = false;
}

static void acquire_whole(struct engine *e, int unit) {
    const struct state_unit *u = &states_of(e)->units[unit];
    for (int k = 0; k < u->count; k++) {
        int i = states_of(e)->unit_params[u->first + k];
        await_bucket(e, e->flat.bucket_of[i]);
        states_freshen(e, i);
    }
}

// ---- zero 3: places -----------------------------------------------------------------------------

int states_open_places(struct engine *e, const uint64_t *pack_forward,
                       const uint64_t *pack_backward, struct err *err) {
    struct states *s = states_of(e);
    const struct rank_state *r = &s->shape;
    size_t params = (size_t)e->model->param_count;
    if (r->zero < 3) return 0;
    s->places = calloc((size_t)r->weight_places, sizeof *s->places);
    s->packed_forward_at = calloc(params, sizeof *s->packed_forward_at);
    s->packed_backward_at = calloc(params, sizeof *s->packed_backward_at);
    if (!s->places || !s->packed_forward_at || !s->packed_backward_at)
        return err_set(err, ERR_MEMORY, "no memory for the places of gathered weights");
    for (int i = 0; i < r->weight_places; i++) {
        struct state_place *p = &s->places[i];
        p->unit = -1;
        p->weights =
            (unsigned char *)e->single[SINGLE_UNIT_WEIGHTS] + (size_t)i * rank_state_place_bytes(r);
        p->packed = p->weights + arena_round(r->place_weights_bytes);
        p->wire = p->packed + arena_round(r->place_packed_bytes);
    }
    for (int unit = 0; unit < e->flat.unit_count; unit++) {
        uint64_t at = 0;
        for (size_t i = 0; i < params; i++) {
            if (e->flat.unit_of[i] != unit) continue;
            s->packed_forward_at[i] = at;
            s->packed_backward_at[i] = at += arena_round(pack_forward[i]);
            at += arena_round(pack_backward[i]);
        }
    }
    return 0;
}

// The unit whose weights are used: the head's may be a table that belongs to the embedding.
static int weights_of(const struct engine *e, int unit) {
    return unit == e->flat.unit_head && e->head >= 0 ? e->flat.unit_of[e->head] : unit;
}

static struct state_place *find_place(struct states *s, int unit) {
    for (int i = 0; i < s->shape.weight_places; i++)
        if (s->places[i].unit == unit) return &s->places[i];
    return NULL;
}

// The place that is given up next: an empty one, else the one used longest ago. Not one in use, nor
// one that was fetched ahead and has not been used, unless there is no other.
static struct state_place *free_place(struct states *s, bool ahead) {
    struct state_place *best = NULL;
    for (int i = 0; i < s->shape.weight_places; i++) {
        struct state_place *p = &s->places[i];
        if (p->users > 0) continue;
        if (p->unit < 0) return p;
        if (p->arrived && (!best || p->used < best->used)) best = p;
    }
    for (int i = 0; i < s->shape.weight_places && !best && !ahead; i++)
        if (s->places[i].users == 0) best = &s->places[i];
    return best;
}

static void arrive(struct engine *e, struct state_place *p) {
    struct states *s = states_of(e);
    if (p->arrived) return;
    for (int g = 0; g < FLAT_GROUPS; g++) state_wait(e, p->event[g]);
    p->arrived = true;
    s->in_flight--;
    if (!s->shape.place_wire_bytes) return;
    int64_t elements = (int64_t)(s->shape.place_wire_bytes / dtype_bytes(s->shape.gathered));
    e->device->convert(e->device, elements, p->wire, s->shape.gathered, p->weights, e->type);
}

static void begin_gather(struct engine *e, struct state_place *p, int unit) {
    struct states *s = states_of(e);
    size_t element = dtype_bytes(s->shape.gathered);
    if (p->unit >= 0) arrive(e, p); // nothing may still be written here
    *p = (struct state_place){
        .weights = p->weights, .packed = p->packed, .wire = p->wire, .unit = unit};
    s->in_flight++;
    for (int i = 0; i < e->flat.bucket_count; i++) {
        const struct flat_bucket *b = &e->flat.buckets[i];
        if (b->vectors || b->unit != unit) continue;
        unsigned char *all = s->shape.place_wire_bytes ? p->wire : p->weights;
        all += (size_t)s->buckets[i].unit_at * element;
        const char *own = (char *)e->single[SINGLE_WEIGHTS] + (size_t)b->shard_begin * element;
        uint64_t bytes = (uint64_t)((b->end - b->begin) / b->shards) * element;
        if (b->shards == 1)
            memcpy(all, own, bytes);
        else // a further bucket of the same group follows on the same stream
            p->event[b->group] =
                state_posted(e, comm_all_gather(e->gather[b->group], own, all, bytes));
    }
}

static const struct stage_part *stage_of_layer(const struct engine *e, int layer) {
    for (int i = 0; i < e->local.stage_count; i++) {
        const struct stage_part *part = &e->local.stages[i];
        if (layer >= part->layer_first && layer < part->layer_first + part->layer_count)
            return part;
    }
    return NULL;
}

static const struct stage_part *end_stage(const struct engine *e, bool last) {
    for (int i = 0; i < e->local.stage_count; i++)
        if (last ? e->local.stages[i].last : e->local.stages[i].first) return &e->local.stages[i];
    return NULL;
}

struct step_of_walk {
    int unit; // -1: not known
    bool backward;
};

// What follows in the walk.
static struct step_of_walk next_step(const struct engine *e, struct step_of_walk now) {
    const struct step_of_walk none = {-1, false};
    const struct stage_part *last = end_stage(e, true), *first = end_stage(e, false);
    if (now.unit == e->flat.unit_head)
        return (struct step_of_walk){last->layer_first + last->layer_count - 1, true};
    if (now.unit == e->flat.unit_embedding) return (struct step_of_walk){first->layer_first, false};
    const struct stage_part *part = stage_of_layer(e, now.unit);
    if (now.backward) {
        if (now.unit > part->layer_first) return (struct step_of_walk){now.unit - 1, true};
        const struct states *s = states_of(e); // the bottom: another micro-batch begins
        return part->first && s->bottoms < s->micro_batches
                   ? (struct step_of_walk){e->flat.unit_embedding, false}
                   : none;
    }
    if (now.unit + 1 < part->layer_first + part->layer_count)
        return (struct step_of_walk){now.unit + 1, false};
    return part->last ? (struct step_of_walk){e->flat.unit_head, false} : none;
}

// Begins gathers of units that come soon: at most `prefetch` ahead, at most so many in flight.
static void fetch_ahead(struct engine *e, struct step_of_walk now) {
    struct states *s = states_of(e);
    for (int k = 0; k < e->parallel.prefetch; k++) {
        now = next_step(e, now);
        if (now.unit < 0) return;
        int unit = weights_of(e, now.unit);
        if (find_place(s, unit)) continue;
        struct state_place *p = free_place(s, true);
        if (s->in_flight >= e->parallel.gathers_in_flight || !p) return;
        begin_gather(e, p, unit);
    }
}

static void point_at(struct engine *e, const struct state_place *p) {
    struct states *s = states_of(e);
    const struct state_unit *u = &s->units[p->unit];
    for (int k = 0; k < u->count; k++) {
        int i = s->unit_params[u->first + k], bucket = e->flat.bucket_of[i];
        if (!param_is_matrix(&e->model->params[i])) continue;
        int64_t at = s->buckets[bucket].unit_at + e->flat.offset[i] - e->flat.buckets[bucket].begin;
        struct device_weight *w = &e->weight[i];
        e->param_at[i].plain = p->weights + (size_t)at * dtype_bytes(e->type);
        w->plain = e->param_at[i].plain;
        if (w->packed_forward) w->packed_forward = p->packed + s->packed_forward_at[i];
        if (w->packed_backward) w->packed_backward = p->packed + s->packed_backward_at[i];
    }
}

static void pack_place(struct engine *e, struct state_place *p, bool head, bool backward) {
    struct states *s = states_of(e);
    const struct state_unit *u = &s->units[p->unit];
    bool again = e->options.recompute != RECOMPUTE_NONE;
    bool forward = (!backward || again || head) && !p->packed_forward;
    bool other = (backward || head) && !p->packed_backward;
    for (int k = 0; k < u->count; k++) pack(e, s->unit_params[u->first + k], forward, other);
    p->packed_forward = p->packed_forward || forward;
    p->packed_backward = p->packed_backward || other;
}

static void acquire_gathered(struct engine *e, int unit, bool backward) {
    struct states *s = states_of(e);
    struct state_place *p = find_place(s, weights_of(e, unit));
    if (!p) begin_gather(e, p = free_place(s, false), weights_of(e, unit));
    p->users++;
    p->used = ++s->acquisitions;
    const struct stage_part *first = end_stage(e, false);
    if (backward && first && unit == first->layer_first) s->bottoms++;
    fetch_ahead(e, (struct step_of_walk){unit, backward});
    arrive(e, p);
    point_at(e, p);
    pack_place(e, p, unit == e->flat.unit_head, backward);
}

void unit_acquire(struct engine *e, int unit, bool backward) {
    if (unit < 0) return;
    if (states_of(e)->shape.zero == 3)
        acquire_gathered(e, unit, backward);
    else
        acquire_whole(e, weights_of(e, unit));
}

void unit_release(struct engine *e, int unit) {
    struct states *s = states_of(e);
    if (unit >= 0 && s->shape.zero == 3) find_place(s, weights_of(e, unit))->users--;
}

// ---- a change -----------------------------------------------------------------------------------

void states_settle(struct engine *e) {
    struct states *s = states_of(e);
    for (int b = 0; b < e->flat.bucket_count; b++) await_bucket(e, b);
    for (int i = 0; i < s->shape.weight_places; i++)
        if (s->places[i].unit >= 0) arrive(e, &s->places[i]);
}

void states_publish(struct engine *e) {
    struct states *s = states_of(e);
    if (s->shape.zero == 0) return;
    if (s->shape.zero < 3) { // buckets stand in the order of backward
        for (int b = e->flat.bucket_count - 1; b >= 0; b--) gather_bucket(e, b);
        return;
    }
    for (int i = 0; i < s->shape.weight_places; i++) s->places[i].unit = -1;
    struct state_place *p = free_place(s, true);
    int first = end_stage(e, false) ? e->flat.unit_embedding : e->local.stages[0].layer_first;
    if (!p) return;
    begin_gather(e, p, first);
    fetch_ahead(e, (struct step_of_walk){first, false});
}
