// Forward pass of one unit: online softmax over tiles of keys. Included by attention_kernel.h.
#pragma once
#include "device/cpu/attention_tile.h"

// Weights are 2^(c s - c m) with c = scale log2(e) and a reference m that is raised only when a
// score passes it by more than 2^RAISE: any m near the maximum serves, and raising costs a pass
// over the sums.
#define RAISE 8.0f

struct forward_state {
    const struct attention_job *job;
    float c;
    element *keys, *values; // turned and stacked, all tiles of the unit
    element *queries;       // [TILE][row]
    float *out;             // [TILE][width] sums
    float *scores;          // [SUB_ROWS][TILE]
    element *weights;       // [SUB_ROWS][TILE_STEPS]
    simd_f sum[TILE];       // of weights, a lane each
    float reference[TILE], limit[TILE];
    struct tile_rows rows;
};

// Raises the reference of row r to `best` and scales what was summed.
static void raise_reference(struct forward_state *f, int r, simd_f best) {
    const int width = f->job->shape.width;
    float m = best[0];
    for (int i = 1; i < W; i++) m = best[i] > m ? best[i] : m;
    float old = f->reference[r];
    f->reference[r] = m;
    f->limit[r] = m + RAISE / f->c;
    if (old == -INFINITY) return; // nothing was summed
    float factor = exp2f((old - m) * f->c);
    f->sum[r] *= factor;
    float *out = f->out + r * width;
    for (int j = 0; j < width; j += W)
        simd_store(out, j, DTYPE_F32, simd_load(out, j, DTYPE_F32) * factor);
}

// Scores of row r become weights. `i` is the row's place in the scores held.
SIMD_INLINE void weigh_row(struct forward_state *f, int r, int i, const struct span span,
                           int64_t key, const bool full) {
    float *score = f->scores + i * TILE;
    element *weight = f->weights + i * TILE_STEPS;
    const int first = full ? 0 : span.first, last = full ? TILE / W : span.last;
    simd_f best = simd_set(-INFINITY);
    for (int j = first; j < last; j++) {
        simd_f s = simd_load(score, j * W, DTYPE_F32);
        if (!full) {
            s = simd_select(seen(key + j * W, f->rows.from[r], f->rows.to[r]), s,
                            simd_set(-INFINITY));
            simd_store(score, j * W, DTYPE_F32, s);
        }
        best = simd_max(s, best);
    }
    if (__builtin_expect(any_greater(best, simd_set(f->limit[r])), 0)) raise_reference(f, r, best);
    float offset = f->reference[r] * f->c;
    simd_f sum = f->sum[r];
    for (int j = first; j < last; j++) {
        simd_f p = exp2_vector(simd_load(score, j * W, DTYPE_F32) * f->c - offset);
        if (!full) p = keep(p, seen(key + j * W, f->rows.from[r], f->rows.to[r]));
        sum += p;
        store_along(weight, j, p);
    }
    f->sum[r] = sum;
}

// Rows [sub, sub + SUB_ROWS) against the keys of one tile.
static void forward_rows(struct forward_state *f, int sub, int64_t key, const element *keys,
                         const element *values) {
    const struct attention_shape *s = &f->job->shape;
    struct span spans[SUB_ROWS / MR];
    for (int g = 0; g < SUB_ROWS / MR; g++) {
        struct span span = spans[g] = span_of(&f->rows, sub + g * MR, key);
        struct operand a = {f->queries + (sub + g * MR) * s->row, s->row, 1};
        struct operand b = {keys + span.first * W, 0, TILE};
        product(span.last - span.first, s->depth, a, b, f->scores + g * MR * TILE + span.first * W,
                TILE, false);
    }
    for (int i = 0; i < SUB_ROWS; i++) {
        struct span span = spans[i / MR];
        if (span.full) {
            weigh_row(f, sub + i, i, span, key, true);
        } else if (span.first < span.last) {
            weigh_row(f, sub + i, i, span, key, false);
        }
    }
    for (int g = 0; g < SUB_ROWS / MR; g++) {
        struct span span = spans[g];
        int begin = span.first * W / PER, steps = (span.last - span.first) * W / PER;
        if (steps == 0) continue;
        struct operand a = {f->weights + g * MR * TILE_STEPS + begin, TILE_STEPS, 1};
        struct operand b = {values + begin * s->width, 0, s->width};
        product(s->width / W, steps, a, b, f->out + (sub + g * MR) * s->width, s->width, true);
    }
}

static void forward_finish(struct forward_state *f, int64_t query, int head) {
    const struct device_attention *a = f->job->args;
    const struct attention_shape *s = &f->job->shape;
    for (int r = 0; r < f->rows.count; r++) {
        float sum = simd_sum(f->sum[r]);
        simd_f factor = simd_set(sum == 0 ? 0 : 1.0f / sum); // 0: sees no key
        int64_t at = (query + r) * a->out_stride + (int64_t)head * s->head_dim;
        for (int c = 0; c < s->head_dim; c += W)
            simd_store_upto(a->out, at + c, s->head_dim - c, f->job->out_type,
                            simd_load(f->out + r * s->width, c, DTYPE_F32) * factor);
        if (a->lse)
            a->lse[head * a->queries + query + r] = f->reference[r] * (float)a->scale + logf(sum);
    }
}

static void forward_queries(struct forward_state *f, const struct attention_unit *unit,
                            int64_t query, int head) {
    const struct device_attention *a = f->job->args;
    const struct attention_shape *s = &f->job->shape;
    tile_rows_set(&f->rows, f->job, query, unit->query_end);
    pack_rows(row_of(a->q, a->type, a->q_stride, query, (int64_t)head * s->head_dim), a->type,
              a->q_stride, s, f->rows.count, TILE, f->queries);
    memset(f->out, 0, (size_t)(TILE * s->width) * sizeof *f->out);
    for (int r = 0; r < TILE; r++) {
        f->reference[r] = f->limit[r] = -INFINITY;
        f->sum[r] = simd_zero();
    }
    int64_t low = f->rows.from[0], high = 0;
    for (int r = 0; r < f->rows.count; r++) high = f->rows.to[r] > high ? f->rows.to[r] : high;
    int64_t tile = (low - unit->key_begin) / TILE;
    for (; unit->key_begin + tile * TILE < high; tile++) {
        int64_t key = unit->key_begin + tile * TILE;
        for (int sub = 0; sub < f->rows.count; sub += SUB_ROWS)
            forward_rows(f, sub, key, f->keys + tile * TILE * s->depth,
                         f->values + tile * TILE_STEPS * s->width);
    }
    forward_finish(f, query, head);
}

void ISA(attention_forward)(const struct attention_job *job, const struct attention_unit *unit,
                            int kv_head, void *scratch) {
    const struct device_attention *a = job->args;
    const struct attention_shape *s = &job->shape;
    struct forward_state f = {.job = job, .c = (float)(a->scale * 1.4426950408889634)};
    unsigned char *at = scratch;
    f.keys = take(&at, s->keys * s->depth);
    f.values = take(&at, s->keys / PER * s->width);
    f.queries = take(&at, TILE * s->row);
    f.out = take(&at, TILE * s->width);
    f.scores = take(&at, SUB_ROWS * TILE);
    f.weights = take(&at, SUB_ROWS * TILE_STEPS);
    int64_t column = (int64_t)kv_head * s->head_dim;
    for (int64_t key = unit->key_begin, tile = 0; key < unit->key_end; key += TILE, tile++) {
        int64_t count = unit->key_end - key < TILE ? unit->key_end - key : TILE;
        pack_turned(row_of(a->k, a->type, a->kv_stride, key, column), a->type, a->kv_stride, s,
                    count, f.keys + tile * TILE * s->depth);
        pack_stacked(row_of(a->v, a->type, a->kv_stride, key, column), a->type, a->kv_stride, s,
                     count, TILE, f.values + tile * TILE_STEPS * s->width);
    }
    for (int head = kv_head * s->group; head < (kv_head + 1) * s->group; head++)
        for (int64_t query = unit->query_begin; query < unit->query_end; query += TILE)
            forward_queries(&f, unit, query, head);
}
