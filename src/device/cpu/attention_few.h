// Forward pass of a unit of few queries (generation): keys and values are read in place, once for
// all query heads of the group, without the layouts that many queries pay for. FP32 arithmetic;
// included by isa/attention_f32.c.
#pragma once
#include "device/cpu/attention_tile.h"

struct few_state {
    const struct attention_job *job;
    float c;
    int rows;          // heads of the group x queries of the unit
    float *queries;    // [rows][width]
    float *out;        // [rows][width] sums
    float score[TILE]; // of one row against one tile
    float reference[ATTENTION_FEW_ROWS], sum[ATTENTION_FEW_ROWS];
};

// Lane i becomes the sum over the lanes of x[i].
SIMD_INLINE simd_f sums_of(simd_f x[W]) {
#if SIMD_WIDTH == 16
    turn_block((__m512i *)x);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
#else
    simd_f sums = simd_zero();
    for (int i = 0; i < W; i++) sums[i] = simd_sum(x[i]);
    return sums;
#endif
}

// Scores of one row against keys [key, key + W), those that it does not see -infinity. Only keys
// below `end` are touched.
SIMD_INLINE simd_f few_scores(const struct few_state *f, const float *query, int64_t key,
                              int64_t from, int64_t to, int64_t column, const enum dtype type) {
    const struct device_attention *a = f->job->args;
    const int head_dim = f->job->shape.head_dim;
    simd_f sum[W];
    const void *row[W];
    for (int j = 0; j < W; j++) {
        int64_t i = key + j < from ? from : key + j >= to ? to - 1 : key + j;
        row[j] = row_of(a->k, type, a->kv_stride, i, column);
        sum[j] = simd_zero();
    }
    for (int c = 0; c < head_dim; c += W) {
        simd_f q = simd_load(query, c, DTYPE_F32);
        for (int j = 0; j < W; j++) sum[j] += q * simd_load_upto(row[j], c, head_dim - c, type);
    }
    return simd_select(seen(key, (int32_t)from, (int32_t)to), sums_of(sum), simd_set(-INFINITY));
}

// Row r against the tile of keys from `key` on: the online softmax of attention_forward.h without
// its slack.
SIMD_INLINE void few_tile(struct few_state *f, int r, int64_t key, int64_t from, int64_t to,
                          int64_t column, const enum dtype type) {
    const struct device_attention *a = f->job->args;
    const struct attention_shape *s = &f->job->shape;
    int64_t low = from > key ? from - key : 0, high = to - key < TILE ? to - key : TILE;
    if (low >= high) return;
    const int first = (int)(low / W), last = (int)((high + W - 1) / W);
    simd_f best = simd_set(-INFINITY);
    for (int j = first; j < last; j++) {
        simd_f x = few_scores(f, f->queries + r * s->width, key + j * W, from, to, column, type);
        simd_store(f->score, j * W, DTYPE_F32, x);
        best = simd_max(x, best);
    }
    float m = simd_max_lane(best), old = f->reference[r];
    m = m > old ? m : old;
    float factor = old == -INFINITY ? 0.0f : exp2f((old - m) * f->c);
    f->reference[r] = m;
    simd_f sum = simd_zero();
    for (int j = first; j < last; j++) {
        simd_f p = exp2_vector(simd_load(f->score, j * W, DTYPE_F32) * f->c - m * f->c);
        p = keep(p, seen(key + j * W, (int32_t)from, (int32_t)to));
        simd_store(f->score, j * W, DTYPE_F32, p);
        sum += p;
    }
    f->sum[r] = f->sum[r] * factor + simd_sum(sum);
    float *out = f->out + r * s->width;
    for (int c = 0; c < s->head_dim; c += 4 * W) {
        simd_f x[4];
        int vectors = s->head_dim - c >= 4 * W ? 4 : (s->head_dim - c + W - 1) / W;
        for (int v = 0; v < vectors; v++) x[v] = simd_load(out, c + v * W, DTYPE_F32) * factor;
        for (int64_t i = low; i < high; i++) {
            const void *value = row_of(a->v, type, a->kv_stride, key + i, column);
            for (int v = 0; v < vectors; v++)
                x[v] +=
                    f->score[i] * simd_load_upto(value, c + v * W, s->head_dim - c - v * W, type);
        }
        for (int v = 0; v < vectors; v++) simd_store(out, c + v * W, DTYPE_F32, x[v]);
    }
}

void ISA(attention_few)(const struct attention_job *job, const struct attention_unit *unit,
                        int kv_head, void *scratch) {
    const struct device_attention *a = job->args;
    const struct attention_shape *s = &job->shape;
    const int queries = unit->query_end - unit->query_begin;
    struct few_state f = {
        .job = job, .c = (float)(a->scale * 1.4426950408889634), .rows = queries * s->group};
    unsigned char *at = scratch;
    f.queries = take(&at, f.rows * s->width);
    f.out = take(&at, f.rows * s->width);
    memset(f.out, 0, (size_t)(f.rows * s->width) * sizeof *f.out);
    for (int r = 0; r < f.rows; r++) {
        int64_t head = kv_head * s->group + r / queries, query = unit->query_begin + r % queries;
        pack_row(row_of(a->q, a->type, a->q_stride, query, head * s->head_dim), a->type,
                 s->head_dim, s->width, f.queries + r * s->width);
        f.reference[r] = -INFINITY;
        f.sum[r] = 0;
    }
    int64_t column = (int64_t)kv_head * s->head_dim;
    for (int64_t key = unit->key_begin; key < unit->key_end; key += TILE)
        for (int r = 0; r < f.rows; r++) {
            int64_t query = unit->query_begin + r % queries;
            if (a->type == DTYPE_BF16) {
                few_tile(&f, r, key, job->from[query], job->to[query], column, DTYPE_BF16);
            } else {
                few_tile(&f, r, key, job->from[query], job->to[query], column, DTYPE_F32);
            }
        }
    for (int r = 0; r < f.rows; r++) {
        int64_t head = kv_head * s->group + r / queries, query = unit->query_begin + r % queries;
        int64_t to = query * a->out_stride + head * s->head_dim;
        simd_f factor = simd_set(f.sum[r] == 0 ? 0 : 1.0f / f.sum[r]);
        for (int c = 0; c < s->head_dim; c += W)
            simd_store_upto(a->out, to + c, s->head_dim - c, job->out_type,
                            simd_load(f.out + r * s->width, c, DTYPE_F32) * factor);
        if (a->lse)
            a->lse[head * a->queries + query] = f.reference[r] * (float)a->scale + logf(f.sum[r]);
    }
}
