// Gradients on their way from this rank to the sum over all ranks that saw other tokens.
//
// A bucket is exchanged in parts, added in group order and, where nothing is sharded, gathered.
// What a rank contributes is rounded to the type of the messages before, its own share too, so that
// the result does not depend on who adds it up. See enum state_phase for the order of posting.
#include "engine/seals.h"
#include <string.h>

enum {
    FOLD_BLOCK = 1024,
    FOLD_CHUNK = 1 << 16,                   // elements of a thread's piece
    REPLICAS_POSTED = COMM_STREAM_DEPTH / 2 // early
};

void state_fold(void *context, const void *const *parts, int count, int64_t elements, void *out) {
    const struct state_fold *fold = context;
    float sum[FOLD_BLOCK];
    for (int64_t at = 0; at < elements; at += FOLD_BLOCK) {
        int n = elements - at < FOLD_BLOCK ? (int)(elements - at) : FOLD_BLOCK;
        for (int p = 0; p < count; p++) comm_add_part(fold->wire, parts[p], at, n, sum, p == 0);
        if (fold->out == DTYPE_F32) {
            float *to = (float *)out + at;
            if (fold->store)
                memcpy(to, sum, (size_t)n * sizeof *to);
            else
                for (int i = 0; i < n; i++) to[i] += sum[i];
        } else {
            bf16 *to = (bf16 *)out + at;
            for (int i = 0; i < n; i++) {
                float before = fold->store ? 0.0f : bf16_to_float(to[i]);
                to[i] = bf16_from_float(before + sum[i]);
            }
        }
    }
}

static struct comm_stream *stream_of(const struct engine *e, int bucket) {
    return e->reduce[e->flat.buckets[bucket].group];
}

static struct comm_stream *replica_of(const struct engine *e, int bucket) {
    return states_of(e)->replica[e->flat.buckets[bucket].group];
}

bool states_reduces(const struct engine *e, int bucket) {
    return stream_of(e, bucket) || replica_of(e, bucket);
}

// Where the bucket's gradients of this rank are, and of which type.
static void *source(const struct engine *e, int bucket, int place, enum dtype *type) {
    const struct states *s = states_of(e);
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    float *gradients = e->single[SINGLE_GRADIENTS];
    *type = DTYPE_F32;
    if (!s->shape.by_unit) return gradients + b->begin;
    if (rank_state_late(b)) return gradients + s->buckets[bucket].late_at;
    if (place >= 0)
        return (float *)e->single[SINGLE_UNIT_GRADIENTS] + place * s->shape.unit_elements +
               s->buckets[bucket].unit_at;
    *type = s->shape.accumulate;
    return (char *)e->single[SINGLE_GRADIENT_SHARDS] +
           (size_t)b->begin * dtype_bytes(s->shape.accumulate);
}

// Accumulators of the bucket: of its shard where they are sharded, else of all of it.
static char *accumulators(const struct engine *e, int bucket) {
    const struct rank_state *r = &states_of(e)->shape;
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    if (!r->by_unit) return (char *)((float *)e->single[SINGLE_GRADIENTS] + b->begin);
    int64_t at = r->accumulators_sharded ? b->shard_begin : b->begin;
    return (char *)e->single[SINGLE_GRADIENT_SHARDS] + (size_t)at * dtype_bytes(r->accumulate);
}

void states_fold_bucket(struct engine *e, int bucket, int place, bool store) {
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    enum dtype type;
    char *from = source(e, bucket, place, &type), *to = accumulators(e, bucket);
    if (from == to) return;
    struct state_fold fold = {store, type, states_of(e)->shape.accumulate};
    size_t in = dtype_bytes(fold.wire), out = dtype_bytes(fold.out);
    int64_t elements = b->end - b->begin, chunks = (elements + FOLD_CHUNK - 1) / FOLD_CHUNK;
#pragma omp parallel for schedule(static) num_threads(e->device->threads)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t at = c * FOLD_CHUNK, n = elements - at < FOLD_CHUNK ? elements - at : FOLD_CHUNK;
        const void *part = from + (size_t)at * in;
        state_fold(&fold, &part, 1, n, to + (size_t)at * out);
    }
}

// ---- posting ------------------------------------------------------------------------------------

static bool needs_wire(const struct engine *e, const struct state_reduction *q, enum dtype type) {
    return states_of(e)->shape.wire == DTYPE_BF16 && type == DTYPE_F32 && stream_of(e, q->bucket) &&
           !e->flat.buckets[q->bucket].vectors;
}

static void post_sum(struct engine *e, struct state_reduction *q) {
    struct states *s = states_of(e);
    const struct flat_bucket *b = &e->flat.buckets[q->bucket];
    struct comm_stream *stream = stream_of(e, q->bucket);
    int64_t elements = b->end - b->begin;
    enum dtype type;
    void *from = source(e, q->bucket, q->place, &type);
    bool store = !s->buckets[q->bucket].stored || !s->shape.every_batch;
    seals_posted(e, q->bucket);
    q->event = (struct comm_event){0};
    s->buckets[q->bucket].stored = true;
    if (b->vectors) { // small, of any length, and needed whole: added in place
        struct comm_reduction plain = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
        if (stream)
            q->event = state_posted(
                e, comm_all_reduce(stream, from, s->reduce_scratch[b->group], elements, &plain));
        return;
    }
    if (!stream) {
        states_fold_bucket(e, q->bucket, q->place, store);
        return;
    }
    int wire = -1;
    if (needs_wire(e, q, type)) {
        wire = s->next_wire;
        s->next_wire = (wire + 1) % STATE_WIRE_PLACES;
        state_wait(e, s->wire_used[wire]);
        bf16 *rounded = (bf16 *)e->single[SINGLE_WIRE] + wire * s->shape.wire_elements;
        e->device->convert(e->device, elements, from, DTYPE_F32, rounded, DTYPE_BF16);
        from = rounded;
        type = DTYPE_BF16;
    }
    q->fold = (struct state_fold){store, type, s->shape.accumulate};
    struct comm_reduction sum = {state_fold, &q->fold, (uint32_t)dtype_bytes(type),
                                 (uint32_t)dtype_bytes(s->shape.accumulate)};
    int64_t each = elements / comm_stream_size(stream);
    uint64_t bytes = (uint64_t)each * sum.out_bytes;
    char *all = accumulators(e, q->bucket), *own = all;
    if (!s->shape.accumulators_sharded) own += bytes * (uint64_t)comm_stream_index(stream);
    q->event = comm_reduce_scatter(stream, from, s->reduce_scratch[b->group], own, each, &sum);
    if (wire >= 0) s->wire_used[wire] = q->event;
    if (q->last && !state_sharded(e)) q->event = comm_all_gather(stream, own, all, bytes);
    state_posted(e, q->event);
}

// Copies of the shards (hybrid sharding): what one of them added up, over all of them.
static void post_replica(struct engine *e, struct state_reduction *q) {
    struct states *s = states_of(e);
    const struct flat_bucket *b = &e->flat.buckets[q->bucket];
    int64_t elements = (b->end - b->begin) / b->shards;
    enum dtype type = s->shape.accumulate;
    char *data = accumulators(e, q->bucket);
    if (b->vectors)
        data = source(e, q->bucket, q->place, &type);
    else if (!s->shape.accumulators_sharded && b->shards > 1)
        data += (size_t)elements * dtype_bytes(type) *
                (size_t)comm_stream_index(stream_of(e, q->bucket));
    q->replica_fold = (struct state_fold){true, type, type};
    struct comm_reduction sum = {state_fold, &q->replica_fold, (uint32_t)dtype_bytes(type),
                                 (uint32_t)dtype_bytes(type)};
    q->event = state_posted(e, comm_all_reduce(replica_of(e, q->bucket), data,
                                               s->replica_scratch[b->group], elements, &sum));
    s->replicating++;
}

static void finish(struct engine *e, struct state_reduction *q) {
    const struct flat_bucket *b = &e->flat.buckets[q->bucket];
    if (b->vectors && states_of(e)->shape.by_unit) states_fold_bucket(e, q->bucket, -1, true);
    seals_arrived(e, q->bucket);
    q->phase = PHASE_DONE;
}

// ---- the queue ----------------------------------------------------------------------------------

static struct state_reduction *entry(struct states *s, int64_t index) {
    return &s->queue[index % s->queue_room];
}

// One phase further; without `force` only when that needs no waiting. False: not now.
static bool advance(struct engine *e, struct state_reduction *q, bool force) {
    struct states *s = states_of(e);
    enum dtype type;
    switch (q->phase) {
    case PHASE_PARTIAL:
        source(e, q->bucket, q->place, &type);
        if (!force && needs_wire(e, q, type) && s->wire_used[s->next_wire].comm &&
            !comm_done(s->wire_used[s->next_wire]))
            return false;
        if (!states_partials_done(e, q->bucket, force)) return false;
        post_sum(e, q);
        q->phase = PHASE_REDUCE;
        return true;
    case PHASE_REDUCE:
        if (!force && q->event.comm && !comm_done(q->event)) return false;
        if (!force && s->replicating >= REPLICAS_POSTED) return false;
        state_wait(e, q->event);
        if (!q->last || !replica_of(e, q->bucket)) {
            finish(e, q);
            return true;
        }
        post_replica(e, q);
        q->phase = PHASE_REPLICA;
        return true;
    case PHASE_REPLICA:
        if (!force && !comm_done(q->event)) return false;
        state_wait(e, q->event);
        s->replicating--;
        finish(e, q);
        return true;
    case PHASE_DONE:
        break;
    }
    return false;
}

static void retire(struct states *s) {
    while (s->queue_head < s->queue_tail && entry(s, s->queue_head)->phase == PHASE_DONE)
        s->queue_head++;
}

void states_force(struct engine *e, int64_t end, enum state_phase phase) {
    struct states *s = states_of(e);
    for (int64_t i = s->queue_head; i < end; i++)
        while (entry(s, i)->phase < phase) advance(e, entry(s, i), true);
    retire(s);
}

// No entry overtakes an earlier one.
void states_poll(struct engine *e) {
    struct states *s = states_of(e);
    enum state_phase most = PHASE_DONE;
    for (int64_t i = s->queue_head; i < s->queue_tail; i++) {
        struct state_reduction *q = entry(s, i);
        while (q->phase < most && advance(e, q, false)) continue;
        if (q->phase < most) most = q->phase;
    }
    retire(s);
}

void states_queue(struct engine *e, int bucket, int place, bool last) {
    struct states *s = states_of(e);
    if (s->queue_tail - s->queue_head == s->queue_room)
        states_force(e, s->queue_head + 1, PHASE_DONE);
    *entry(s, s->queue_tail++) =
        (struct state_reduction){.bucket = bucket, .place = place, .last = last};
    if (e->parallel.no_overlap) states_force(e, s->queue_tail, PHASE_DONE);
}
