// Which rows travel in which wave, and where they stand in the tiles of their expert. All ranks of
// the group compute this from the same counts, so nobody has to be told; see moe.h.
#include "base/arena.h"
#include "engine/moe.h"

// ---- counters in MOE_SMALL --------------------------------------------------------------------

uint64_t moe_small_bytes(const struct moe_shape *s) {
    uint64_t members = (uint64_t)(s->ep > s->cp ? s->ep : s->cp), local = (uint64_t)s->experts;
    uint64_t loads = (uint64_t)s->sequences * (uint64_t)s->experts;
    return 9 * arena_round((size_t)members * 8) + 2 * arena_round((size_t)local * 8) +
           2 * arena_round((size_t)local * 4) +
           2 * arena_round((size_t)local * sizeof(struct moe_gradient)) +
           arena_round((size_t)loads * 4);
}

static void *take(char **at, uint64_t bytes) {
    void *here = *at;
    *at += arena_round((size_t)bytes);
    return here;
}

struct moe_small moe_small(const struct moe_layer *m) {
    const struct moe_shape *s = &m->shape;
    uint64_t members = (uint64_t)(s->ep > s->cp ? s->ep : s->cp), local = (uint64_t)s->experts;
    char *at = m->buffer[MOE_SMALL];
    struct moe_small small;
    small.from_offset = take(&at, members * 8);
    small.from_bytes = take(&at, members * 8);
    small.to_offset = take(&at, members * 8);
    small.to_bytes = take(&at, members * 8);
    small.send_first = take(&at, members * 8);
    small.send_rows = take(&at, members * 8);
    small.receive_first = take(&at, members * 8);
    small.receive_rows = take(&at, members * 8);
    small.at = take(&at, members * 8);
    small.list_from = take(&at, local * 8);
    small.list_to = take(&at, local * 8);
    small.tile_first = take(&at, local * 4);
    small.tile_rows = take(&at, local * 4);
    small.up = take(&at, local * sizeof(struct moe_gradient));
    small.down = take(&at, local * sizeof(struct moe_gradient));
    small.load = take(&at, (uint64_t)s->sequences * (uint64_t)s->experts * 4);
    return small;
}

// ---- chunks and waves -------------------------------------------------------------------------

static int64_t count_of(const struct moe_layer *m, int source, int expert) {
    const int64_t *counts = m->buffer[MOE_COUNTS];
    return counts[(int64_t)source * m->shape.experts + expert];
}

static int64_t list_rows(const struct moe_layer *m, int expert) {
    int64_t rows = 0;
    for (int s = 0; s < m->shape.ep; s++) rows += count_of(m, s, expert);
    return rows;
}

static int64_t padded(int64_t rows) {
    return (rows + MOE_PAD - 1) / MOE_PAD * MOE_PAD;
}

// Walks the chunks of a destination in order. With `from` and `to`: the rows [from, to) of each of
// its experts' lists that wave `number` holds. Returns the number of its waves.
static int walk(const struct moe_layer *m, int destination, int number, int64_t *from,
                int64_t *to) {
    int local = m->shape.experts / m->shape.ep, wave = 0;
    int64_t used = 0;
    for (int j = 0; j < local; j++) {
        int64_t rows = list_rows(m, destination * local + j), first = -1, last = -1;
        for (int64_t at = 0; at < rows; at += MOE_CHUNK) {
            int64_t now = rows - at < MOE_CHUNK ? rows - at : MOE_CHUNK;
            if (used + padded(now) > m->shape.wave) {
                wave++;
                used = 0;
            }
            used += padded(now);
            if (wave != number) continue;
            if (first < 0) first = at;
            last = at + now;
        }
        if (!from) continue;
        from[j] = first < 0 ? 0 : first;
        to[j] = first < 0 ? 0 : last;
    }
    return used > 0 ? wave + 1 : wave;
}

int moe_wave_count(const struct moe_layer *m) {
    int most = 0;
    for (int d = 0; d < m->shape.ep; d++) {
        int waves = walk(m, d, -1, NULL, NULL);
        if (waves > most) most = waves;
    }
    return most;
}

// Rows of `source` among [from, to) of an expert's list.
static int64_t share(const struct moe_layer *m, int source, int expert, int64_t from, int64_t to,
                     int64_t *skipped) {
    int64_t begin = 0;
    for (int s = 0; s < source; s++) begin += count_of(m, s, expert);
    int64_t end = begin + count_of(m, source, expert);
    int64_t first = from > begin ? from : begin, last = to < end ? to : end;
    if (skipped) *skipped = first - begin;
    return last > first ? last - first : 0;
}

// What this rank sends: a run of its sorted rows for each destination.
static void plan_sent(const struct moe_layer *m, struct moe_wave *wave) {
    struct moe_small small = moe_small(m);
    int local = m->shape.experts / m->shape.ep;
    int64_t row = 0;
    for (int d = 0; d < m->shape.ep; d++) {
        int64_t first = -1, rows = 0;
        walk(m, d, wave->number, small.list_from, small.list_to);
        for (int j = 0; j < local; j++) {
            int64_t skipped;
            int e = d * local + j;
            int64_t now = share(m, m->ep_index, e, small.list_from[j], small.list_to[j], &skipped);
            if (now > 0 && first < 0) first = row + skipped;
            rows += now;
            row += count_of(m, m->ep_index, e);
        }
        small.send_first[d] = first < 0 ? 0 : first;
        small.send_rows[d] = rows;
        wave->sent += rows;
    }
}

// Where what this rank receives stands: pieces by source, then the tiles of each local expert with
// the piece's row for each of theirs.
static void plan_received(const struct moe_layer *m, struct moe_wave *wave) {
    struct moe_small small = moe_small(m);
    int local = m->shape.experts / m->shape.ep;
    int32_t *map = m->buffer[MOE_MAP];
    walk(m, m->ep_index, wave->number, small.list_from, small.list_to);
    for (int s = 0; s < m->shape.ep; s++) {
        small.at[s] = wave->received;
        for (int j = 0; j < local; j++)
            wave->received +=
                share(m, s, m->ep_index * local + j, small.list_from[j], small.list_to[j], NULL);
        small.receive_first[s] = small.at[s];
        small.receive_rows[s] = wave->received - small.at[s];
    }
    for (int j = 0; j < local; j++) {
        int64_t begin = wave->tile_rows;
        for (int s = 0; s < m->shape.ep; s++) {
            int64_t rows =
                share(m, s, m->ep_index * local + j, small.list_from[j], small.list_to[j], NULL);
            for (int64_t i = 0; i < rows; i++) map[wave->tile_rows++] = (int32_t)small.at[s]++;
        }
        small.tile_first[j] = (int32_t)begin;
        small.tile_rows[j] = (int32_t)(wave->tile_rows - begin);
        // Every chunk but an expert's last is whole, and whole chunks need no padding.
        while (wave->tile_rows % MOE_PAD != 0) map[wave->tile_rows++] = -1;
    }
}

void moe_wave_begin(const struct moe_layer *m, int number, struct moe_wave *wave) {
    struct moe_small small = moe_small(m);
    *wave = (struct moe_wave){.number = number};
    plan_sent(m, wave);
    plan_received(m, wave);
    if (m->shape.ep > 1) return;
    // Alone, a received row is the sorted row itself; its token follows.
    int32_t *map = m->buffer[MOE_MAP], *map_token = m->buffer[MOE_MAP_TOKEN];
    const int32_t *token = m->buffer[MOE_TOKEN];
    for (int64_t i = 0; i < wave->tile_rows; i++) {
        if (map[i] >= 0) map[i] += (int32_t)small.send_first[0];
        map_token[i] = map[i] < 0 ? -1 : token[map[i]];
    }
}
