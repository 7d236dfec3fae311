// What several ranks hold alike, compared: digests of masters, moments and working weights, over
// the ranks with the same shards, over those with the same tokens' weights, and over tensor ranks
// with the same rows. One number for all is exchanged first; only where it differs, one for each
// parameter.
#include "base/hash.h"
#include "engine/guards.h"
#include "engine/seals.h"
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; // bytes that one thread hashes

static uint64_t mix(uint64_t hash, uint64_t other) {
    uint64_t both[2] = {hash, other};
    return hash_bytes(both, sizeof both);
}

// In chunks, so that all threads take part; they are joined in order.
static uint64_t digest(struct engine *e, const void *data, uint64_t bytes) {
    enum { ROUND = 64 };
    uint64_t all = bytes, part[ROUND];
    for (uint64_t at = 0; at < bytes; at += (uint64_t)ROUND * CHUNK) {
        uint64_t left = bytes - at, chunks = (left + CHUNK - 1) / CHUNK;
        int count = chunks < ROUND ? (int)chunks : ROUND;
#pragma omp parallel for schedule(static) num_threads(e->device->threads) if (count > 1)
        for (int c = 0; c < count; c++) {
            uint64_t from = at + (uint64_t)c * CHUNK, rest = bytes - from;
            part[c] = hash_bytes((const char *)data + from, rest < CHUNK ? rest : CHUNK);
        }
        for (int c = 0; c < count; c++) all = mix(all, part[c]);
    }
    return all;
}

// ---- what a group holds alike -------------------------------------------------------------------

enum compared { STATES, WEIGHTS, ROWS, ROWS_KV, COMPARED };

static bool shards(const struct engine *e, int param) {
    return state_sharded(e) && state_bucket_of(e, param)->shards > 1;
}

static enum mesh_group_kind group_of(const struct engine *e, int param, enum compared what) {
    bool expert = state_bucket_of(e, param)->group == FLAT_EXPERT;
    enum mesh_group_kind data = expert ? GROUP_EXPERT_DATA : GROUP_DATA;
    enum mesh_group_kind replica = expert ? GROUP_EXPERT_REPLICA : GROUP_REPLICA;
    const struct param_slice *s = &e->local.slices[param];
    switch (what) {
    case STATES:
        return shards(e, param) ? replica : data;
    case WEIGHTS: // whole on every rank up to ZeRO 2; shards were compared with the states
        return states_of(e)->shape.zero < 3 && shards(e, param) ? data : GROUP_KIND_COUNT;
    case ROWS:
        return s->copies > 1 ? GROUP_TP : GROUP_KIND_COUNT;
    case ROWS_KV:
        return s->copies == 1 && s->copies_kv > 1 ? GROUP_KV : GROUP_KIND_COUNT;
    case COMPARED:
        break;
    }
    return GROUP_KIND_COUNT;
}

static uint64_t states_digest(struct engine *e, int param) {
    const struct rank_state *r = &states_of(e)->shape;
    uint64_t count = (uint64_t)states_of(e)->pieces[param].count;
    int64_t at = state_at(e, param, state_sharded(e));
    uint64_t hash = digest(e, state_master(e, param), count * sizeof(float));
    if (e->options.train) {
        hash = mix(hash, digest(e, (float *)e->single[SINGLE_MOMENT1] + at, count * sizeof(float)));
        hash = mix(hash, digest(e, (float *)e->single[SINGLE_MOMENT2] + at, count * sizeof(float)));
    }
    bf16 *rounded = r->stored == DTYPE_BF16 ? state_rounded(e, param) : NULL;
    if (rounded) hash = mix(hash, digest(e, rounded, count * sizeof *rounded));
    return hash;
}

static uint64_t digest_of(struct engine *e, int param, enum compared what) {
    const struct param *p = &e->model->params[param];
    const struct state_piece *piece = &states_of(e)->pieces[param];
    size_t element = dtype_bytes(states_of(e)->shape.stored);
    const char *weights = e->single[SINGLE_WEIGHTS];
    if (what == WEIGHTS)
        return digest(e, weights + (size_t)e->flat.offset[param] * element,
                      (uint64_t)param_elements_padded(p) * element);
    if (what != ROWS_KV) return states_digest(e, param);
    int64_t first = p->part_rows[0] * p->columns, end = piece->first + piece->count;
    int64_t from = first > piece->first ? first : piece->first;
    if (from >= end) return 0;
    return digest(e, state_master(e, param) + (from - piece->first),
                  (uint64_t)(end - from) * sizeof(float));
}

// ---- one group ----------------------------------------------------------------------------------

struct comparing {
    struct engine *e;
    int part, parts;
    enum compared what;
    enum mesh_group_kind kind;
    struct engine_difference *out;
    int most, count;
};

static bool takes_part(const struct comparing *c, int param) {
    return param % c->parts == c->part && group_of(c->e, param, c->what) == c->kind;
}

// The value that most members have; how many do in *times.
static uint64_t majority(const uint64_t *all, int n, int *times) {
    uint64_t best = all[0];
    *times = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int k = 0; k < n; k++) same += all[k] == all[i];
        if (same > *times) {
            *times = same;
            best = all[i];
        }
    }
    return best;
}

static void note(struct comparing *c, int param, const uint64_t *all, int n, const int *members) {
    struct engine *e = c->e;
    int times;
    uint64_t value = majority(all, n, &times);
    if (times == n) return;
    if (c->count < c->most) {
        struct engine_difference *d = &c->out[c->count];
        *d = (struct engine_difference){.of = n, .undecided = 2 * times <= n};
        snprintf(d->parameter, sizeof d->parameter, "%s",
                 e->whole->params[e->local.slices[param].whole].name);
        for (int i = 0; i < n; i++) {
            if (!d->undecided && all[i] == value) continue; // undecided: all are suspects
            if (d->rank_count < (int)(sizeof d->ranks / sizeof *d->ranks))
                d->ranks[d->rank_count++] = members[i];
        }
    }
    c->count++;
}

static void gather(struct engine *e, struct comm_stream *s, uint64_t own) {
    uint64_t *all = e->seals->of_ranks;
    comm_wait(comm_all_gather(s, &own, all, sizeof own), e->device->lane);
}

static void compare_group(struct comparing *c) {
    struct engine *e = c->e;
    struct comm_stream *s = e->stream[c->kind];
    uint64_t *all = e->seals->of_ranks, *own = e->seals->of_params, hash = 0;
    bool some = false, same = true;
    if (!s) return;
    for (int i = 0; i < e->model->param_count; i++) {
        if (!takes_part(c, i)) continue;
        own[i] = digest_of(e, i, c->what);
        hash = mix(hash, own[i]);
        some = true;
    }
    if (!some) return; // on all members alike
    gather(e, s, hash);
    int index, n = comm_stream_size(s);
    for (int i = 1; i < n; i++) same = same && all[i] == all[0];
    if (same) return;
    mesh_group(&e->layout.mesh, e->rank, c->kind, e->whole->config.kv_heads, e->seals->members,
               &index);
    for (int i = 0; i < e->model->param_count; i++) {
        if (!takes_part(c, i)) continue;
        gather(e, s, own[i]);
        note(c, i, all, n, e->seals->members);
    }
}

int engine_compare_replicas(struct engine *engine, int part, int parts,
                            struct engine_difference *out, int most, struct err *err) {
    struct comparing c = {engine, part, parts, STATES, GROUP_WORLD, out, most, 0};
    if (parts < 1 || part < 0 || part >= parts)
        return err_set(err, ERR_INTERNAL, "part %d of %d of the replicas' digests", part, parts);
    if (!engine->comm) return 0;
    states_settle(engine);
    for (int what = 0; what < COMPARED; what++)
        for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
            c.what = (enum compared)what;
            c.kind = (enum mesh_group_kind)kind;
            compare_group(&c);
        }
    return comm_check(engine->comm, err) != 0 ? -1 : c.count;
}
