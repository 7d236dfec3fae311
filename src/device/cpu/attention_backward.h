// Backward pass of one unit: a whole segment of one key head. Tiles of keys go round outside, query
// heads and tiles of queries inside, both ascending: gradients of the tile's keys and values are
// complete after its round, those of the queries are summed in scratch over the rounds. Five
// products per pair of tiles: scores and weights anew, dP = dO V^T, dV += P^T dO, dK += dS^T Q, dQ
// += dS K with dS = P (dP - delta), delta = sum of dO O. Included by attention_kernel.h.
#pragma once
#include "device/cpu/attention_tile.h"

struct backward_head {                       // one query head of the unit, all its queries
    element *queries, *dout;                 // [queries][row]
    element *queries_stacked, *dout_stacked; // [queries / PER][width]; the same as above for floats
    float *dq;                               // [queries][width]
    float *log_sum, *delta;                  // [queries]; log_sum to base 2
};

struct backward_state {
    const struct attention_job *job;
    const struct attention_unit *unit;
    float c;
    element *keys, *values, *keys_stacked; // one tile: turned, turned, stacked
    float *dk, *dv;                        // [TILE][width]
    float *scores, *dweights;              // [SUB_ROWS][TILE]
    element *weights, *dscores;            // pairs along the queries: [TILE_STEPS][TILE]
    element *dscores_along; // pairs along the keys: [TILE][TILE_STEPS]; floats: dscores
    int64_t next;           // first query that sees a key of this round or later
    struct tile_rows rows;
    struct span spans[GROUPS];
};

static struct backward_head place_head(const struct attention_shape *s, unsigned char **at) {
    struct backward_head h;
    h.queries = take(at, s->queries * s->row);
    h.dout = take(at, s->queries * s->row);
    h.queries_stacked = ATTENTION_PAIRS ? take(at, s->queries / PER * s->width) : h.queries;
    h.dout_stacked = ATTENTION_PAIRS ? take(at, s->queries / PER * s->width) : h.dout;
    h.dq = take(at, s->queries * s->width);
    h.log_sum = take(at, s->queries);
    h.delta = take(at, s->queries);
    return h;
}

static void prepare_head(const struct backward_state *b, const struct backward_head *h, int head) {
    const struct device_attention *a = b->job->args;
    const struct attention_shape *s = &b->job->shape;
    int64_t begin = b->unit->query_begin, count = b->unit->query_end - begin;
    int64_t padded = (count + TILE - 1) / TILE * TILE, column = (int64_t)head * s->head_dim;
    const void *q = row_of(a->q, a->type, a->q_stride, begin, column);
    const void *dout = row_of(b->job->backward->dout, a->type, a->out_stride, begin, column);
    pack_rows(q, a->type, a->q_stride, s, count, padded, h->queries);
    pack_rows(dout, a->type, a->out_stride, s, count, padded, h->dout);
    if (ATTENTION_PAIRS) {
        pack_stacked(q, a->type, a->q_stride, s, count, padded, h->queries_stacked);
        pack_stacked(dout, a->type, a->out_stride, s, count, padded, h->dout_stacked);
    }
    memset(h->dq, 0, (size_t)(padded * s->width) * sizeof *h->dq);
    const void *out = row_of(a->out, a->type, a->out_stride, begin, column);
    for (int64_t i = 0; i < padded; i++) {
        simd_f sum = simd_zero();
        for (int64_t c = 0; i < count && c < s->head_dim; c += W) {
            int64_t at = i * a->out_stride + c, left = s->head_dim - c;
            sum += simd_load_upto(out, at, left, a->type) * simd_load_upto(dout, at, left, a->type);
        }
        h->delta[i] = simd_sum(sum);
        h->log_sum[i] = i < count ? a->lse[head * a->queries + begin + i] * 1.44269504f : 0.0f;
    }
}

// Rows r and, for pairs, r + 1 (places i, i + 1 among the scores held): weights and gradients of
// the scores.
SIMD_INLINE void weigh_back(const struct backward_state *b, const struct backward_head *h,
                            int64_t query, int r, int i, const struct span span, int64_t key,
                            const bool full) {
    const int first = full ? 0 : span.first, last = full ? TILE / W : span.last;
    for (int j = first; j < last; j++) {
        simd_f p[PER], d[PER];
        for (int e = 0; e < PER; e++) {
            simd_f s = simd_load(b->scores + (i + e) * TILE, j * W, DTYPE_F32);
            simd_f dp = simd_load(b->dweights + (i + e) * TILE, j * W, DTYPE_F32);
            p[e] = exp2_vector(s * b->c - h->log_sum[query + e]);
            if (!full) p[e] = keep(p[e], seen(key + j * W, b->rows.from[r + e], b->rows.to[r + e]));
            d[e] = p[e] * (dp - h->delta[query + e]);
            if (!full) d[e] = keep(d[e], seen(key + j * W, b->rows.from[r + e], b->rows.to[r + e]));
        }
#if ATTENTION_PAIRS
        store_across(b->weights + r / 2 * TILE + j * W, p[0], p[1]);
        store_across(b->dscores + r / 2 * TILE + j * W, d[0], d[1]);
        store_along(b->dscores_along + r * TILE_STEPS, j, d[0]);
        store_along(b->dscores_along + (r + 1) * TILE_STEPS, j, d[1]);
#else
        simd_store(b->weights + r * TILE, j * W, DTYPE_F32, p[0]);
        simd_store(b->dscores + r * TILE, j * W, DTYPE_F32, d[0]);
#endif
    }
}

// Weights and gradients of scores of SUB_ROWS queries from row `sub` of a tile, whose first query
// is `query` of the unit.
static void backward_scores(struct backward_state *b, const struct backward_head *h, int64_t query,
                            int sub, int64_t key) {
    const struct attention_shape *s = &b->job->shape;
    for (int g = 0; g < SUB_ROWS / MR; g++) {
        struct span span = b->spans[sub / MR + g];
        int64_t at = (query + sub + g * MR) * s->row;
        int to = g * MR * TILE + span.first * W, vectors = span.last - span.first;
        product(vectors, s->depth, (struct operand){h->queries + at, s->row, 1},
                (struct operand){b->keys + span.first * W, 0, TILE}, b->scores + to, TILE, false);
        product(vectors, s->depth, (struct operand){h->dout + at, s->row, 1},
                (struct operand){b->values + span.first * W, 0, TILE}, b->dweights + to, TILE,
                false);
    }
    for (int i = 0; i < SUB_ROWS; i += PER) {
        struct span span = b->spans[(sub + i) / MR];
        if (span.full) {
            weigh_back(b, h, query + sub + i, sub + i, i, span, key, true);
        } else if (span.first < span.last) {
            weigh_back(b, h, query + sub + i, sub + i, i, span, key, false);
        }
    }
}

// Groups of queries [first, last) of the tile whose span holds keys of rows [k, k + MR).
static void groups_of(const struct backward_state *b, int k, int *first, int *last) {
    *first = GROUPS;
    *last = 0;
    for (int g = 0; g < GROUPS; g++) {
        if (b->spans[g].first * W >= k + MR || b->spans[g].last * W <= k) continue;
        if (*first == GROUPS) *first = g;
        *last = g + 1;
    }
}

static void backward_tile(struct backward_state *b, const struct backward_head *h, int64_t query,
                          int64_t key) {
    const struct attention_shape *s = &b->job->shape;
    const int vectors = s->width / W;
    bool full = true;
    tile_rows_set(&b->rows, b->job, b->unit->query_begin + query, b->unit->query_end);
    for (int g = 0; g < GROUPS; g++) {
        b->spans[g] = span_of(&b->rows, g * MR, key);
        full = full && b->spans[g].full;
    }
    if (!full) { // vectors outside the spans are not written below, but read
        memset(b->weights, 0, TILE_STEPS * TILE * sizeof *b->weights);
        memset(b->dscores, 0, TILE_STEPS * TILE * sizeof *b->dscores);
    }
    for (int sub = 0; sub < b->rows.count; sub += SUB_ROWS) backward_scores(b, h, query, sub, key);
    for (int k = 0; k < TILE; k += MR) {
        int first = 0, last = GROUPS;
        if (!full) groups_of(b, k, &first, &last);
        if (first >= last) continue;
        int begin = first * MR / PER, steps = (last - first) * MR / PER;
        int64_t at = (query / PER + begin) * s->width;
        product(vectors, steps, (struct operand){b->weights + begin * TILE + k, 1, TILE},
                (struct operand){h->dout_stacked + at, 0, s->width}, b->dv + k * s->width, s->width,
                true);
        product(vectors, steps, (struct operand){b->dscores + begin * TILE + k, 1, TILE},
                (struct operand){h->queries_stacked + at, 0, s->width}, b->dk + k * s->width,
                s->width, true);
    }
    for (int g = 0; g < GROUPS; g++) {
        int begin = b->spans[g].first * W / PER,
            steps = (b->spans[g].last - b->spans[g].first) * W / PER;
        if (steps <= 0) continue;
        product(vectors, steps,
                (struct operand){b->dscores_along + g * MR * TILE_STEPS + begin, TILE_STEPS, 1},
                (struct operand){b->keys_stacked + begin * s->width, 0, s->width},
                h->dq + (query + g * MR) * s->width, s->width, true);
    }
}

static void write_rows(const float *from, int64_t count, const struct attention_shape *s,
                       float factor, void *to, enum dtype type, int64_t stride, int64_t row,
                       int64_t column) {
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < s->head_dim; c += W)
            simd_store_upto(to, (row + i) * stride + column + c, s->head_dim - c, type,
                            simd_load(from + i * s->width, c, DTYPE_F32) * factor);
}

static void backward_keys(struct backward_state *b, const struct backward_head *heads, int64_t key,
                          int kv_head) {
    const struct device_attention *a = b->job->args;
    const struct attention_shape *s = &b->job->shape;
    const struct attention_unit *unit = b->unit;
    int64_t count = unit->key_end - key < TILE ? unit->key_end - key : TILE,
            column = (int64_t)kv_head * s->head_dim;
    const void *k = row_of(a->k, a->type, a->kv_stride, key, column);
    pack_turned(k, a->type, a->kv_stride, s, count, b->keys);
    pack_turned(row_of(a->v, a->type, a->kv_stride, key, column), a->type, a->kv_stride, s, count,
                b->values);
    pack_stacked(k, a->type, a->kv_stride, s, count, TILE, b->keys_stacked);
    memset(b->dk, 0, (size_t)(TILE * s->width) * sizeof *b->dk);
    memset(b->dv, 0, (size_t)(TILE * s->width) * sizeof *b->dv);
    // Keys ascend, so queries that see nothing from here on are behind for good.
    while (b->next < unit->query_end && b->job->to[b->next] <= key) b->next++;
    int64_t begin = (b->next - unit->query_begin) / TILE * TILE,
            queries = unit->query_end - unit->query_begin;
    for (int g = 0; g < s->group; g++)
        for (int64_t query = begin; query < queries; query += TILE) {
            if (b->job->from[unit->query_begin + query] >= key + TILE) break;
            backward_tile(b, &heads[g], query, key);
        }
    write_rows(b->dk, count, s, (float)a->scale, b->job->backward->dk, b->job->out_type,
               a->kv_stride, key, column);
    write_rows(b->dv, count, s, 1.0f, b->job->backward->dv, b->job->out_type, a->kv_stride, key,
               column);
}

void ISA(attention_backward)(const struct attention_job *job, const struct attention_unit *unit,
                             int kv_head, void *scratch) {
    const struct device_attention *a = job->args;
    const struct attention_shape *s = &job->shape;
    struct backward_state b = {.job = job,
                               .unit = unit,
                               .next = unit->query_begin,
                               .c = (float)(a->scale * 1.4426950408889634)};
    unsigned char *at = scratch;
    b.keys = take(&at, (int64_t)TILE * s->depth);
    b.values = take(&at, (int64_t)TILE * s->depth);
    b.keys_stacked = take(&at, (int64_t)TILE_STEPS * s->width);
    b.dk = take(&at, (int64_t)TILE * s->width);
    b.dv = take(&at, (int64_t)TILE * s->width);
    b.scores = take(&at, SUB_ROWS * TILE);
    b.dweights = take(&at, SUB_ROWS * TILE);
    b.weights = take(&at, TILE_STEPS * TILE);
    b.dscores = take(&at, TILE_STEPS * TILE);
    b.dscores_along = ATTENTION_PAIRS ? take(&at, TILE_STEPS * TILE) : b.dscores;
    struct backward_head *heads = take(&at, s->group * (int64_t)(sizeof *heads / 4));
    for (int g = 0; g < s->group; g++) {
        heads[g] = place_head(s, &at);
        prepare_head(&b, &heads[g], kv_head * s->group + g);
    }
    for (int64_t key = unit->key_begin; key < unit->key_end; key += TILE)
        backward_keys(&b, heads, key, kv_head);
    int64_t count = unit->query_end - unit->query_begin;
    for (int g = 0; g < s->group; g++)
        write_rows(heads[g].dq, count, s, (float)a->scale, job->backward->dq, job->out_type,
                   job->dq_stride, unit->query_begin,
                   (int64_t)(kv_head * s->group + g) * s->head_dim);
}
