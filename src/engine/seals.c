// Tables of checksums, and those of masters, moments and weights. See seals.h.
#include "engine/seals.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct device_seal) == RANK_SEAL_WORDS * sizeof(uint64_t),
               "the plan counts as many words as the kernel writes");

static uint64_t *table(const struct seals *s, int64_t at) {
    return at < 0 ? NULL : s->words + at;
}

static int64_t piece_blocks(const struct engine *e, int param) {
    return (states_of(e)->pieces[param].count + RANK_NORM_BLOCK - 1) / RANK_NORM_BLOCK;
}

static void place_tables(struct engine *e) {
    struct seals *s = e->seals;
    const struct states *states = states_of(e);
    rank_seals_describe(&s->at, &states->shape, &e->local, &e->shape);
    s->words = e->single[SINGLE_SEALS];
    s->expected = (struct device_seal *)(void *)table(s, s->at.states);
    if (s->expected) {
        s->before = s->expected + s->at.state_blocks;
        s->after = s->before + s->at.state_blocks;
    }
    s->gradients = table(s, s->at.gradients);
    s->lookup = table(s, s->at.lookup);
    s->weights = table(s, s->at.weights);
    s->packed = table(s, s->at.packed);
    s->scratch = table(s, s->at.scratch);
    int64_t state_block = 0;
    for (int i = 0; i < e->model->param_count; i++) {
        bool expert = e->model->params[i].expert >= 0;
        s->state_block[i] = state_block;
        state_block += piece_blocks(e, i);
        s->block[i] = states->block_of[i] + (expert ? states->shape.norm_blocks[FLAT_DENSE] : 0);
    }
    s->sample.results = table(s, s->at.products);
    s->sample.widest = s->at.widest;
    if (!s->sample.results) return;
    s->sample.exact = s->sample.results;
    s->sample.before = (float *)(void *)(s->sample.exact + 2 * s->at.widest);
    s->sample.wrong = (bool *)(s->sample.before + SEALS_ROWS * s->at.widest);
}

int seals_open(struct engine *e, struct err *err) {
    struct seals *s = e->seals = calloc(1, sizeof *s);
    size_t params = (size_t)e->model->param_count, buckets = (size_t)e->flat.bucket_count;
    size_t ranks = (size_t)mesh_ranks(&e->layout.mesh);
    if (s) {
        s->block = calloc(params, sizeof *s->block);
        s->state_block = calloc(params, sizeof *s->state_block);
        s->posted = calloc(buckets, sizeof *s->posted);
        s->weights_known = calloc(buckets, sizeof *s->weights_known);
        s->packed_known = calloc(2 * params, sizeof *s->packed_known);
        s->of_params = calloc(params, sizeof *s->of_params);
        s->of_ranks = calloc(ranks, sizeof *s->of_ranks);
        s->members = calloc(ranks, sizeof *s->members);
    }
    if (!s || !s->block || !s->state_block || !s->posted || !s->weights_known || !s->packed_known ||
        !s->of_params || !s->of_ranks || !s->members)
        return err_set(err, ERR_MEMORY, "no memory for the tables of %zu parameters' seals",
                       params);
    if (e->options.train) place_tables(e);
    return 0;
}

void seals_close(struct engine *e) {
    struct seals *s = e->seals;
    if (!s) return;
    free(s->block);
    free(s->state_block);
    free(s->posted);
    free(s->weights_known);
    free(s->packed_known);
    free(s->of_params);
    free(s->of_ranks);
    free(s->members);
    free(s);
    e->seals = NULL;
}

void seals_found(struct engine *e, enum engine_found kind, int param, const char *suffix,
                 int64_t block, uint64_t expected, uint64_t found) {
    struct seals *s = e->seals;
    const struct param *whole = &e->whole->params[e->local.slices[param].whole];
    struct engine_finding f = {
        .kind = kind, .block = block, .update = s->update, .expected = expected, .found = found};
    snprintf(f.parameter, sizeof f.parameter, "%s%s", whole->name, suffix);
    for (int i = 0; i < s->found_count; i++) // by two comparisons
        if (s->found[i].kind == kind && s->found[i].block == block &&
            strcmp(s->found[i].parameter, f.parameter) == 0)
            return;
    if (s->found_count < SEALS_FINDINGS) s->found[s->found_count++] = f;
}

void seals_sums(struct engine *e, const void *data, enum dtype type, int64_t count, uint64_t *out) {
    double begin = clock_seconds();
    e->device->word_sums(e->device, count, data, type, out);
    e->seals->seconds += clock_seconds() - begin;
}

// ---- masters and moments ------------------------------------------------------------------------

static void take_array(struct engine *e, int param, const float *data, struct device_seal *out,
                       size_t word) {
    uint64_t *to = (uint64_t *)(void *)out + word, *sums = e->seals->scratch;
    seals_sums(e, data, DTYPE_F32, states_of(e)->pieces[param].count, sums);
    for (int64_t b = 0; b < piece_blocks(e, param); b++) to[b * RANK_SEAL_WORDS] = sums[b];
}

// After the states came from elsewhere. Updates keep the seals from then on.
static void take_states(struct engine *e) {
    for (int i = 0; i < e->model->param_count; i++) {
        int64_t at = state_at(e, i, state_sharded(e));
        struct device_seal *to = e->seals->expected + e->seals->state_block[i];
        take_array(e, i, state_master(e, i), to, 0);
        take_array(e, i, (float *)e->single[SINGLE_MOMENT1] + at, to, 1);
        take_array(e, i, (float *)e->single[SINGLE_MOMENT2] + at, to, 2);
    }
    e->seals->states_known = true;
}

void seals_changed(struct engine *e) {
    e->seals->states_known = false;
    e->seals->found_count = 0; // that was found in the values before
}

void engine_set_guards(struct engine *engine, const struct engine_guards *guards) {
    struct engine *e = engine;
    struct seals *s = e->seals;
    const struct rank_seals *at = &s->at;
    e->options.guards = *guards;
    if (!e->options.train || !s->words) return;
    bool states = guards->optimizer || guards->weights_every > 0;
    s->expected = states ? (struct device_seal *)(void *)table(s, at->states) : NULL;
    s->gradients = guards->gradients ? table(s, at->gradients) : NULL;
    s->lookup = guards->gradients ? table(s, at->lookup) : NULL;
    s->weights = guards->weights_every > 0 ? table(s, at->weights) : NULL;
    s->packed = guards->weights_every > 0 ? table(s, at->packed) : NULL;
    for (int i = 0; i < 2 * e->model->param_count; i++) s->packed_known[i] = false;
    for (int b = 0; b < e->flat.bucket_count; b++) s->weights_known[b] = false;
    s->states_known = false;
    if (s->expected) take_states(e);
}

void seals_begin(struct engine *e, const struct engine_step *step) {
    struct seals *s = e->seals;
    s->update = step->update;
    s->digest = 0;
    s->backwards = 0;
    s->in_step = true;
    s->lookup_sealed = false;
    memset(s->posted, 0, (size_t)e->flat.bucket_count * sizeof *s->posted);
    if (s->expected && !s->states_known) take_states(e);
    products_begin(e, step);
}

void seals_of_update(struct engine *e, int param, int64_t at, struct device_adamw *args) {
    struct seals *s = e->seals;
    if (!s->expected) return;
    int64_t block = s->state_block[param] + at / RANK_NORM_BLOCK;
    args->before = s->before + block;
    args->after = s->after + block;
}

// Narrow weights that are spread out on arrival are not where the update put them.
static bool holds_rounded(const struct engine *e, int param) {
    return e->options.guards.weights_every > 0 && states_of(e)->shape.stored == DTYPE_BF16 &&
           state_rounded(e, param);
}

static void compare_rounded(struct engine *e, int param, struct device_seal *is) {
    const float *master = state_master(e, param);
    const bf16 *rounded = state_rounded(e, param);
    for (int64_t i = 0; i < states_of(e)->pieces[param].count; i++)
        is[i / RANK_NORM_BLOCK].apart |=
            (uint64_t)(uint16_t)(bf16_from_float(master[i]) ^ rounded[i]) << 16;
}

static void compare(struct engine *e, int param, int64_t block, bool rounded) {
    struct seals *s = e->seals;
    const struct device_seal *was = &s->expected[block], *is = &s->before[block];
    int64_t number =
        block - s->state_block[param] + states_of(e)->pieces[param].first / RANK_NORM_BLOCK;
    if (!e->options.guards.optimizer) is = was;
    if (was->moment1 != is->moment1)
        seals_found(e, FOUND_MOMENT, param, ".moment1", number, was->moment1, is->moment1);
    if (was->moment2 != is->moment2)
        seals_found(e, FOUND_MOMENT, param, ".moment2", number, was->moment2, is->moment2);
    if (was->master != is->master) // which then is not what was rounded either
        seals_found(e, FOUND_MASTER, param, "", number, was->master, is->master);
    else if (rounded && s->before[block].apart != 0) // bits that differ, as those of an FP32 word
        seals_found(e, FOUND_WEIGHT, param, "", number, 0, s->before[block].apart);
}

// Where no update follows: the same comparison, apart.
void seals_check_states(struct engine *e) {
    struct seals *s = e->seals;
    if (!s->expected || !s->states_known) return;
    for (int i = 0; i < e->model->param_count; i++) {
        int64_t at = state_at(e, i, state_sharded(e)), first = e->seals->state_block[i];
        struct device_seal *is = s->before + first;
        memset(is, 0, (size_t)piece_blocks(e, i) * sizeof *is);
        take_array(e, i, state_master(e, i), is, 0);
        take_array(e, i, (float *)e->single[SINGLE_MOMENT1] + at, is, 1);
        take_array(e, i, (float *)e->single[SINGLE_MOMENT2] + at, is, 2);
        if (holds_rounded(e, i)) compare_rounded(e, i, is);
        for (int64_t b = 0; b < piece_blocks(e, i); b++)
            compare(e, i, first + b, holds_rounded(e, i));
    }
}

void seals_updated(struct engine *e, int param) {
    struct seals *s = e->seals;
    if (!s->expected) return;
    bool rounded = holds_rounded(e, param);
    int64_t first = s->state_block[param], blocks = piece_blocks(e, param);
    for (int64_t b = first; b < first + blocks && s->states_known; b++)
        compare(e, param, b, rounded);
    memcpy(s->expected + first, s->after + first, (size_t)blocks * sizeof *s->after);
}

// ---- copies of weights --------------------------------------------------------------------------

// Number `index` of a list is looked at in every weights_every-th step.
static bool has_turn(const struct engine *e, int index) {
    int every = e->options.guards.weights_every;
    return every > 0 && (e->seals->turn + index) % every == 0;
}

static uint64_t packed_sum(struct engine *e, int param, bool backward) {
    const struct device_weight *w = &e->weight[param];
    const char *data = backward ? w->packed_backward : w->packed_forward;
    int64_t words = (int64_t)(e->device->pack_bytes(e->device, w, backward) / sizeof(uint32_t));
    int64_t chunk = e->seals->at.scratch_words * RANK_NORM_BLOCK;
    uint64_t sum = 0;
    for (int64_t at = 0; at < words; at += chunk) {
        int64_t n = words - at < chunk ? words - at : chunk;
        seals_sums(e, data + at * (int64_t)sizeof(uint32_t), DTYPE_F32, n, e->seals->scratch);
        for (int64_t b = 0; b * RANK_NORM_BLOCK < n; b++) sum += e->seals->scratch[b];
    }
    return sum;
}

void seals_packed(struct engine *e, int param, bool backward) {
    struct seals *s = e->seals;
    if (!s->packed || states_of(e)->shape.zero == 3) return;
    int at = 2 * param + backward;
    s->packed_known[at] = has_turn(e, param);
    if (s->packed_known[at]) s->packed[at] = packed_sum(e, param, backward);
}

static void weight_sums(struct engine *e, int64_t begin, int64_t end, uint64_t *out) {
    enum dtype type = states_of(e)->shape.stored;
    if (begin < end)
        seals_sums(e, (char *)e->single[SINGLE_WEIGHTS] + (size_t)begin * dtype_bytes(type), type,
                   end - begin, out);
}

// Of a bucket's weights, by block from its begin on. The own shard is compared with its masters, by
// the update, and stays 0 here.
static void bucket_sums(struct engine *e, int bucket, uint64_t *out) {
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    struct comm_stream *s = b->shards > 1 ? e->gather[b->group] : NULL;
    int64_t begin = b->begin, end = b->begin;
    memset(out, 0, (size_t)((b->end - b->begin) / RANK_NORM_BLOCK) * sizeof *out);
    if (states_of(e)->shape.stored == DTYPE_BF16 && (s || b->shards == 1))
        flat_shard(&e->flat, bucket, s ? comm_stream_index(s) : 0, &begin, &end);
    weight_sums(e, b->begin, begin, out);
    weight_sums(e, end, b->end, out + (end - b->begin) / RANK_NORM_BLOCK);
}

void seals_gathered(struct engine *e, int bucket) {
    struct seals *s = e->seals;
    if (!s->weights) return;
    s->weights_known[bucket] = true;
    bucket_sums(e, bucket, s->weights + e->flat.buckets[bucket].begin / RANK_NORM_BLOCK);
}

static int param_at(const struct engine *e, int64_t element) {
    int best = 0;
    for (int i = 0; i < e->model->param_count; i++)
        if (e->flat.offset[i] <= element &&
            (e->flat.offset[best] > element || e->flat.offset[i] > e->flat.offset[best]))
            best = i;
    return best;
}

static void check_gathered(struct engine *e, int bucket) {
    struct seals *s = e->seals;
    const struct flat_bucket *b = &e->flat.buckets[bucket];
    const uint64_t *expected = s->weights + b->begin / RANK_NORM_BLOCK;
    bucket_sums(e, bucket, s->scratch);
    for (int64_t k = 0; k < (b->end - b->begin) / RANK_NORM_BLOCK; k++) {
        if (s->scratch[k] == expected[k]) continue;
        int64_t element = b->begin + k * RANK_NORM_BLOCK;
        int param = param_at(e, element);
        seals_found(e, FOUND_WEIGHT, param, "", (element - e->flat.offset[param]) / RANK_NORM_BLOCK,
                    expected[k], s->scratch[k]);
    }
}

void seals_check_weights(struct engine *e) {
    struct seals *s = e->seals;
    for (int b = 0; s->weights && b < e->flat.bucket_count; b++)
        if (s->weights_known[b]) check_gathered(e, b);
    for (int i = 0; s->packed && i < 2 * e->model->param_count; i++) {
        if (!s->packed_known[i]) continue;
        uint64_t sum = packed_sum(e, i / 2, i % 2);
        if (sum != s->packed[i]) seals_found(e, FOUND_PACKED, i / 2, "", 0, s->packed[i], sum);
    }
}
