// Checksums of gradients between accumulation and use, see seals.h.
#include "engine/seals.h"

static bool made_by_unit(const struct engine *e, int param) {
    return states_of(e)->shape.by_unit && !rank_state_late(state_bucket_of(e, param));
}

struct range { // of a parameter's gradient in memory
    const void *data;
    enum dtype type;
    int64_t first, count; // elements; first: on the grid of blocks
};

static struct range range_of(const struct engine *e, int param, enum seal_place place) {
    const struct state_piece *piece = &states_of(e)->pieces[param];
    if (place == SEAL_MADE)
        return (struct range){e->param_at[param].gradient, DTYPE_F32, 0,
                              param_elements_padded(&e->model->params[param])};
    return (struct range){state_gradient(e, param), states_of(e)->shape.accumulate, piece->first,
                          piece->count};
}

static int64_t blocks_of(int64_t elements) {
    return (elements + RANK_NORM_BLOCK - 1) / RANK_NORM_BLOCK;
}

static void seal(struct engine *e, int param, enum seal_place place) {
    struct range r = range_of(e, param, place);
    if (r.count == 0) return;
    seals_sums(e, r.data, r.type, r.count,
               e->seals->gradients + e->seals->block[param] + r.first / RANK_NORM_BLOCK);
    e->param_at[param].sealed = place;
}

static void differs(struct engine *e, int param, int64_t block, uint64_t found) {
    uint64_t expected = e->seals->gradients[e->seals->block[param] + block];
    if (found != expected) seals_found(e, FOUND_GRADIENT, param, "", block, expected, found);
}

void seals_check_gradient(struct engine *e, int param) {
    enum seal_place place = e->param_at[param].sealed;
    if (place == SEAL_NONE) return;
    struct range r = range_of(e, param, place);
    e->param_at[param].sealed = SEAL_NONE;
    seals_sums(e, r.data, r.type, r.count, e->seals->scratch);
    for (int64_t b = 0; b < blocks_of(r.count); b++)
        differs(e, param, r.first / RANK_NORM_BLOCK + b, e->seals->scratch[b]);
}

void seals_written(struct engine *e, int param) {
    if (e->seals->gradients && !made_by_unit(e, param)) seal(e, param, SEAL_MADE);
}

// ---- this rank's contributions ------------------------------------------------------------------

static uint64_t mix(uint64_t hash, uint64_t word) { // FNV-1a's step on words, and a shift
    hash = (hash ^ word) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static void add_digest(struct engine *e, int param, const uint64_t *sums, int64_t blocks) {
    uint64_t hash = mix(e->seals->digest, (uint64_t)param + 1);
    for (int64_t b = 0; b < blocks; b++) hash = mix(hash, sums[b]);
    e->seals->digest = hash;
}

static void add_made(struct engine *e, int param) {
    const struct param *p = &e->model->params[param];
    const uint64_t *sums = e->seals->gradients + e->seals->block[param];
    if (e->param_at[param].sealed == SEAL_MADE) add_digest(e, param, sums, rank_norm_blocks(p));
}

// ---- at the places of states_gradients.c and states_reduce.c ------------------------------------

void seals_unit(struct engine *e, int unit, bool last) {
    const struct states *s = states_of(e);
    const struct state_unit *u = &s->units[unit];
    if (!e->seals->gradients) return;
    for (int k = 0; k < u->count; k++) {
        int i = s->unit_params[u->first + k];
        const struct engine_param *p = &e->param_at[i];
        if (made_by_unit(e, i)) { // moves on at once; only what it was is remembered
            struct range r = range_of(e, i, SEAL_MADE);
            seals_sums(e, r.data, r.type, r.count, e->seals->scratch);
            add_digest(e, i, e->seals->scratch, blocks_of(r.count));
            continue;
        }
        if (p->written && p->sealed == SEAL_NONE) seal(e, i, SEAL_MADE);
        if (last && !rank_state_late(state_bucket_of(e, i))) add_made(e, i);
        // sums over tp ranks go into it now
        if (last && e->tp > 1 && e->local.slices[i].partial != GROUP_KIND_COUNT &&
            param_is_matrix(&e->model->params[i]))
            seals_check_gradient(e, i);
    }
}

void seals_action(struct engine *e, bool backward) {
    e->seals->backwards += backward;
    if (!e->seals->gradients) return;
    for (int i = 0; i < e->model->param_count; i++)
        if (e->param_at[i].written && e->param_at[i].sealed == SEAL_NONE &&
            rank_state_late(state_bucket_of(e, i)))
            seal(e, i, SEAL_MADE);
}

void seals_check_bucket(struct engine *e, int bucket) {
    for (int i = 0; e->seals->gradients && i < e->model->param_count; i++)
        if (e->flat.bucket_of[i] == bucket) seals_check_gradient(e, i);
}

void seals_seal_bucket(struct engine *e, int bucket) {
    for (int i = 0; e->seals->gradients && i < e->model->param_count; i++)
        if (e->flat.bucket_of[i] == bucket) seal(e, i, SEAL_KEPT);
}

void seals_posted(struct engine *e, int bucket) {
    seals_check_bucket(e, bucket);
    e->seals->posted[bucket]++;
}

// Of two reductions of a bucket the second may have begun to add when the first one is seen to be
// done.
void seals_arrived(struct engine *e, int bucket) {
    if (--e->seals->posted[bucket] == 0) seals_seal_bucket(e, bucket);
}

void seals_finish(struct engine *e) {
    if (!e->seals->gradients) return;
    for (int i = 0; i < e->model->param_count; i++) {
        if (!rank_state_late(state_bucket_of(e, i))) continue;
        add_made(e, i);
        seals_check_gradient(e, i);
    }
    seals_lookup(e, true);
}

// The look-up's accumulator (tied head) is no parameter's gradient yet.
void seals_lookup(struct engine *e, bool check) {
    struct seals *s = e->seals;
    int64_t count = (int64_t)e->looked_up * e->model->config.hidden;
    int table = e->param[PARAM_EMBEDDING];
    if (!s->lookup || count == 0 || (check && !s->lookup_sealed)) return;
    seals_sums(e, e->single[SINGLE_LOOKUP], DTYPE_F32, count, check ? s->scratch : s->lookup);
    s->lookup_sealed = !check;
    for (int64_t b = 0; check && b < blocks_of(count); b++) {
        if (s->scratch[b] != s->lookup[b])
            seals_found(e, FOUND_GRADIENT, table, "", b, s->lookup[b], s->scratch[b]);
    }
    if (check) add_digest(e, table, s->scratch, blocks_of(count));
}

// ---- the norm reads all gradients anyway --------------------------------------------------------

uint64_t *seals_norm_words(struct engine *e, int param) {
    return e->param_at[param].sealed == SEAL_NONE ? NULL : e->seals->scratch;
}

// Elements before `end` were summed, [piece.first, end) by block; the rest counts on another rank.
void seals_check_norm(struct engine *e, int param, const uint64_t *words, int64_t end) {
    const struct state_piece *piece = &states_of(e)->pieces[param];
    int64_t last = piece->first + piece->count, whole = end >= last ? last : end;
    if (!words) return;
    if (whole < last) whole = whole / RANK_NORM_BLOCK * RANK_NORM_BLOCK;
    if (whole < piece->first) whole = piece->first;
    for (int64_t at = piece->first; at < whole; at += RANK_NORM_BLOCK)
        differs(e, param, at / RANK_NORM_BLOCK, words[at / RANK_NORM_BLOCK]);
    if (whole == last) return;
    struct range r = range_of(e, param, SEAL_KEPT);
    const char *data = (const char *)r.data + (size_t)(whole - piece->first) * dtype_bytes(r.type);
    seals_sums(e, data, r.type, last - whole, e->seals->scratch);
    for (int64_t b = 0; b < blocks_of(last - whole); b++)
        differs(e, param, whole / RANK_NORM_BLOCK + b, e->seals->scratch[b]);
}
