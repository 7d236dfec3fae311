// The states of a rank as buffers, see rank_state.h.
#include "memory/rank_state.h"
#include "base/arena.h"
#include "memory/rank_parts.h"
#include <stdio.h>

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int ranks_of(const struct rank_shape *s, int group) {
    return s->ranks[group] > 0 ? s->ranks[group] : 1;
}

bool rank_state_late(const struct flat_bucket *bucket) {
    return bucket->vectors || bucket->tied;
}

uint64_t rank_state_place_bytes(const struct rank_state *state) {
    return arena_round(state->place_weights_bytes) + arena_round(state->place_packed_bytes) +
           arena_round(state->place_wire_bytes);
}

static int64_t bucket_elements(const struct flat_bucket *b) {
    return b->end - b->begin;
}

static void describe_modes(struct rank_state *r, const struct rank_shape *s) {
    const struct flat *f = s->flat;
    for (int i = 0; i < f->bucket_count; i++)
        if (f->buckets[i].shards > 1) r->zero = s->zero;
    bool ranks = ranks_of(s, FLAT_DENSE) > 1 || ranks_of(s, FLAT_EXPERT) > 1;
    bool narrow = s->gather_type == DTYPE_BF16 && s->compute == DTYPE_F32;
    r->every_batch = ranks && (r->zero >= 2 || s->reduce_per_micro_batch);
    r->by_unit = r->every_batch || s->accumulate_type == DTYPE_BF16;
    r->accumulate = r->by_unit ? s->accumulate_type : DTYPE_F32;
    r->accumulators_sharded = r->zero > 0 && r->every_batch;
    r->gathers = r->zero > 0;
    r->gathered = s->compute == DTYPE_F32 && !narrow ? DTYPE_F32 : DTYPE_BF16;
    r->masters = s->compute == DTYPE_BF16 || (r->gathers && narrow);
    r->stored = r->zero == 3 ? r->gathered : s->compute;
    r->wire = s->reduce_type;
}

static void describe_elements(struct rank_state *r, const struct rank_shape *s) {
    const struct flat *f = s->flat;
    for (int unit = 0; unit < f->unit_count; unit++) {
        int64_t elements = 0;
        for (int i = 0; i < f->bucket_count; i++)
            if (f->buckets[i].unit == unit && !rank_state_late(&f->buckets[i]))
                elements += bucket_elements(&f->buckets[i]);
        r->unit_elements = larger(r->unit_elements, elements);
    }
    for (int i = 0; i < f->bucket_count; i++) {
        const struct flat_bucket *b = &f->buckets[i];
        int ranks = ranks_of(s, b->group);
        if (rank_state_late(b)) r->late_elements += bucket_elements(b);
        if (ranks == 1) continue;
        if (!b->vectors) r->wire_elements = larger(r->wire_elements, bucket_elements(b));
        int members = s->zero > 0 ? b->shards : ranks;
        int64_t parts = (members - 1) * (bucket_elements(b) / members);
        uint64_t reduce = b->vectors
                              ? rank_sum_scratch_bytes(bucket_elements(b), ranks, sizeof(float))
                              : (uint64_t)parts * dtype_bytes(r->wire);
        uint64_t replica =
            rank_sum_scratch_bytes(bucket_elements(b) / b->shards, ranks, sizeof(float));
        if (reduce > r->reduce_bytes[b->group]) r->reduce_bytes[b->group] = reduce;
        if (s->zero > 0 && replica > r->replica_bytes[b->group] && b->shards < ranks)
            r->replica_bytes[b->group] = replica;
    }
    if (r->wire == DTYPE_F32) r->wire_elements = 0;
    r->gradient_places = !r->by_unit ? 0 : r->every_batch ? 2 : 1;
}

// Gradients that are partial sums over tp ranks: vectors are packed together, matrices (or the rows
// of shared keys and values) are added where they lie.
static void describe_partial(struct rank_state *r, const struct local_model *local,
                             const struct rank_shape *s) {
    int64_t largest = 0;
    for (int i = 0; i < local->model.param_count; i++) {
        const struct param *p = &local->model.params[i];
        if (local->slices[i].partial == GROUP_KIND_COUNT) continue;
        int64_t elements = param_elements_padded(p);
        if (param_is_matrix(p))
            largest = larger(largest, elements);
        else
            r->partial_elements += elements;
    }
    largest = larger(largest, r->partial_elements);
    if (largest > 0) r->partial_bytes = rank_sum_scratch_bytes(largest, s->tp, sizeof(float));
}

static void describe_norm(struct rank_state *r, const struct local_model *local,
                          const struct rank_shape *s) {
    for (int i = 0; i < local->model.param_count; i++)
        r->norm_blocks[local->model.params[i].expert >= 0] +=
            rank_norm_blocks(&local->model.params[i]);
    for (int g = 0; g < FLAT_GROUPS; g++) {
        uint64_t bytes = rank_sum_scratch_bytes(r->norm_blocks[g], ranks_of(s, g), sizeof(double));
        if (r->zero > 0) r->norm_scratch_bytes += bytes;
    }
}

// Places: the unit in use, those on their way, and one that stays for the way back.
static void describe_places(struct rank_state *r, const struct local_model *local,
                            const struct rank_shape *s, const uint64_t *forward,
                            const uint64_t *backward) {
    const struct flat *f = s->flat;
    if (r->zero < 3) return;
    int64_t most = 0;
    for (int unit = 0; unit < f->unit_count; unit++) {
        int64_t elements = 0;
        uint64_t packed = 0;
        for (int i = 0; i < f->bucket_count; i++)
            if (!f->buckets[i].vectors && f->buckets[i].unit == unit)
                elements += bucket_elements(&f->buckets[i]);
        for (int i = 0; i < local->model.param_count; i++) {
            if (f->unit_of[i] != unit || !param_is_matrix(&local->model.params[i])) continue;
            packed += forward ? arena_round(forward[i]) : 0;
            packed += backward ? arena_round(backward[i]) : 0;
        }
        most = larger(most, elements);
        if (packed > r->place_packed_bytes) r->place_packed_bytes = packed;
    }
    r->place_weights_bytes = (uint64_t)most * dtype_bytes(s->compute);
    if (r->gathered != s->compute) r->place_wire_bytes = (uint64_t)most * dtype_bytes(r->gathered);
    int in_flight = s->gathers_in_flight > 0 ? s->gathers_in_flight : 1;
    r->weight_places = 2 + in_flight;
    if (r->weight_places > f->unit_count) r->weight_places = f->unit_count;
}

void rank_state_describe(struct rank_state *state, const struct local_model *local,
                         const struct rank_shape *shape, const uint64_t *pack_forward,
                         const uint64_t *pack_backward) {
    *state = (struct rank_state){0};
    describe_modes(state, shape);
    describe_elements(state, shape);
    describe_partial(state, local, shape);
    describe_norm(state, local, shape);
    describe_places(state, local, shape, pack_forward, pack_backward);
}

static void add_gradients(struct enumeration *e, const struct rank_state *r) {
    const struct flat *f = e->shape->flat;
    uint64_t f32 = (uint64_t)f->elements * sizeof(float);
    if (!r->by_unit) {
        rank_single(e, SINGLE_GRADIENTS, BUFFER_GRADIENT, f32, "gradients");
        return;
    }
    int64_t kept = r->accumulators_sharded ? f->shard_elements : f->elements;
    rank_single(e, SINGLE_GRADIENT_SHARDS, BUFFER_GRADIENT,
                (uint64_t)kept * dtype_bytes(r->accumulate), "gradients");
    rank_single(e, SINGLE_GRADIENTS, BUFFER_COMM, (uint64_t)r->late_elements * sizeof(float),
                "gradients_late");
    rank_single(e, SINGLE_UNIT_GRADIENTS, BUFFER_COMM,
                (uint64_t)(r->gradient_places * r->unit_elements) * sizeof(float),
                "gradients_of_units");
}

// Of the norm: the own blocks; with tp the blocks of all tp ranks; with ep also those of all
// experts.
static uint64_t norm_bytes(const struct rank_state *r, const struct rank_shape *s) {
    int64_t tp = s->tp > 1 ? s->tp : 1, ep = s->ep > 1 ? s->ep : 1;
    int64_t dense = r->norm_blocks[FLAT_DENSE], expert = r->norm_blocks[FLAT_EXPERT];
    int64_t blocks = dense + expert;
    if (tp > 1) blocks += tp * (dense + expert);
    if (ep > 1) blocks += ep * tp * expert;
    return (uint64_t)blocks * sizeof(double) + r->norm_scratch_bytes;
}

static void add_messages(struct enumeration *e, const struct rank_state *r) {
    uint64_t bytes = 2 * arena_round(r->partial_bytes) +
                     arena_round((uint64_t)r->partial_elements * sizeof(float));
    for (int g = 0; g < FLAT_GROUPS; g++)
        bytes += arena_round(r->reduce_bytes[g]) + arena_round(r->replica_bytes[g]);
    rank_single(e, SINGLE_REDUCE, BUFFER_COMM, bytes, "contributions");
    rank_single(e, SINGLE_WIRE, BUFFER_COMM,
                (uint64_t)(STATE_WIRE_PLACES * r->wire_elements) * sizeof(bf16),
                "rounded_gradients");
}

// The tied head's table gets gradients from two sides. The look-up's side has an accumulator of its
// own with a row for each id that can occur in a step, and is added to the head's once, at the
// step's end; where the head is on another rank, that one receives it.
static bool holds_end(const struct rank_shape *s, bool last) {
    for (int i = 0; i < s->stage_count; i++)
        if (last ? s->stages[i].part.last : s->stages[i].part.first) return true;
    return false;
}

static uint64_t lookup_rows(const struct model_config *c, const struct rank_shape *s) {
    uint64_t vocab = (uint64_t)c->vocab, rows = (uint64_t)(s->tokens * s->micro_batches);
    if (!c->tied_head || (!holds_end(s, false) && !holds_end(s, true))) return 0;
    return rows < vocab ? rows : vocab;
}

static void add_lookup(struct enumeration *e) {
    const struct rank_shape *s = e->shape;
    bool first = holds_end(s, false);
    uint64_t vocab = (uint64_t)e->config->vocab, rows = lookup_rows(e->config, s);
    if (rows == 0) return;
    uint64_t bytes = rows * (uint64_t)e->config->hidden * sizeof(float);
    rank_single(e, SINGLE_LOOKUP, first ? BUFFER_GRADIENT : BUFFER_COMM, bytes, "lookup");
    rank_single(e, SINGLE_LOOKUP_IDS, BUFFER_SCRATCH, rows * sizeof(int32_t), "lookup_ids");
    if (!first) return;
    rank_single(e, SINGLE_LOOKUP_SLOT, BUFFER_SCRATCH, vocab * sizeof(int32_t), "lookup_slot");
    rank_single(e, SINGLE_LOOKUP_ROWS, BUFFER_SCRATCH, (uint64_t)s->tokens * sizeof(int32_t),
                "lookup_rows");
}

static void add_packed(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct model *m = e->model;
    char name[PARAM_NAME_BYTES + 16];
    for (int i = 0; i < m->param_count; i++)
        for (int backward = 0; backward < 2; backward++) {
            const uint64_t *bytes = backward ? workspace->pack_backward : workspace->pack_forward;
            int *index = backward ? e->buffers->packed_backward : e->buffers->packed_forward;
            index[i] = -1;
            if (!bytes || bytes[i] == 0) continue;
            snprintf(name, sizeof name, "%.50s %s", m->params[i].name,
                     backward ? "backward" : "forward");
            index[i] = rank_add(e, BUFFER_PACKED, m->params[i].layer, -1, bytes[i], name);
        }
}

static int64_t take_words(struct rank_seals *seals, bool wanted, int64_t words) {
    int64_t at = seals->words;
    if (!wanted || words == 0) return -1;
    seals->words += words;
    return at;
}

void rank_seals_describe(struct rank_seals *seals, const struct rank_state *r,
                         const struct local_model *local, const struct rank_shape *s) {
    enum { BLOCK = RANK_NORM_BLOCK };
    const struct model_config *c = &local->model.config;
    bool any = s->seals_optimizer || s->seals_gradients || s->seals_weights;
    int64_t blocks = r->norm_blocks[FLAT_DENSE] + r->norm_blocks[FLAT_EXPERT];
    int64_t lookup =
        s->seals_gradients && holds_end(s, false) ? (int64_t)lookup_rows(c, s) * c->hidden : 0;
    // of a shard: its full blocks, and a last one of each parameter
    int64_t shard = s->flat->shard_elements / BLOCK + local->model.param_count;
    *seals = (struct rank_seals){.blocks = blocks,
                                 .state_blocks = r->zero > 0 && shard < blocks ? shard : blocks,
                                 .lookup_blocks = (lookup + BLOCK - 1) / BLOCK};
    seals->states =
        take_words(seals, s->seals_optimizer, 3 * seals->state_blocks * RANK_SEAL_WORDS);
    seals->gradients = take_words(seals, s->seals_gradients, blocks);
    seals->lookup = take_words(seals, s->seals_gradients, seals->lookup_blocks);
    seals->weights =
        take_words(seals, s->seals_weights && r->gathers && r->zero < 3, s->flat->elements / BLOCK);
    seals->packed = take_words(seals, s->seals_weights, 2 * (int64_t)local->model.param_count);
    int64_t most = larger(larger(blocks, seals->lookup_blocks), s->flat->elements / BLOCK);
    for (int i = 0; i < local->model.param_count; i++) {
        const struct param *p = &local->model.params[i];
        seals->widest = larger(seals->widest, larger(p->rows_padded, p->columns));
    }
    // two rows of doubles, RANK_SEAL_ROWS of floats, one of flags
    seals->products = take_words(seals, s->seals_products,
                                 (seals->widest * (16 + 4 * RANK_SEAL_ROWS + 1) + 7) / 8);
    seals->scratch_words = any ? most : 0;
    seals->scratch = take_words(seals, any, most);
}

static void add_seals(struct enumeration *e, const struct rank_state *r) {
    struct rank_seals seals;
    rank_seals_describe(&seals, r, e->local, e->shape);
    rank_single(e, SINGLE_SEALS, BUFFER_TABLE, (uint64_t)seals.words * sizeof(uint64_t), "seals");
}

void rank_add_state(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    struct rank_state r;
    rank_state_describe(&r, e->local, s, workspace->pack_forward, workspace->pack_backward);
    uint64_t all = (uint64_t)s->flat->elements, shards = (uint64_t)s->flat->shard_elements;
    uint64_t f32 = (r.zero > 0 ? shards : all) * sizeof(float);
    rank_single(e, SINGLE_WEIGHTS, BUFFER_WEIGHT,
                (r.zero == 3 ? shards : all) * dtype_bytes(r.stored), "weights");
    rank_single(e, SINGLE_MASTERS, BUFFER_MASTER, r.masters ? f32 : 0, "masters");
    if (s->train) {
        add_gradients(e, &r);
        rank_single(e, SINGLE_MOMENT1, BUFFER_MOMENT, f32, "moment1");
        rank_single(e, SINGLE_MOMENT2, BUFFER_MOMENT, f32, "moment2");
        add_messages(e, &r);
        add_lookup(e);
        rank_single(e, SINGLE_NORM_SUMS, BUFFER_SCRATCH, norm_bytes(&r, s), "norm_sums");
        add_seals(e, &r);
    }
    if (r.zero == 3)
        rank_single(e, SINGLE_UNIT_WEIGHTS, BUFFER_COMM,
                    (uint64_t)r.weight_places * rank_state_place_bytes(&r), "weights_of_units");
    else
        add_packed(e, workspace);
}
