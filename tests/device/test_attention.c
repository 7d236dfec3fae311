// Attention against a plain double-precision computation: every instruction set, both types,
// intervals of documents, windows, rings and generation, shapes that fit no tile, and what must not
// change a bit.
#include "device/cpu/attention.h"
#include "device/cpu/cpu.h"
#include "device/device.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 }; // elements beside every output that must stay as they were

struct problem {
    int queries, keys, heads, kv_heads, head_dim;
    int32_t window;
    enum dtype type;
    double scale;
    int32_t *from, *to;
    // Values as the type holds them; row strides are wider than the rows.
    double *q, *k, *v, *dout;
    double *out, *lse, *dq, *dk, *dv; // expected
};

static uint64_t seed = 1;
static double draw(void) { // roughly normal
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(seed >> 40) / (1 << 24) - 0.5;
    }
    return sum * 1.7;
}
static int draw_below(int n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

static double *draw_values(enum dtype type, int64_t count) {
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        float f = (float)draw();
        x[i] = type == DTYPE_BF16 ? bf16_to_float(bf16_from_float(f)) : f;
    }
    return x;
}

static int32_t first_key(const struct problem *p, int i) {
    int32_t from = p->from[i];
    if (p->window > 0 && p->to[i] - from > p->window) from = p->to[i] - p->window;
    return from;
}

// Forward in double; `probability` [heads][queries][keys] when wanted.
static void reference_forward(struct problem *p, double *probability) {
    int d = p->head_dim, group = p->heads / p->kv_heads;
    double *s = malloc(sizeof *s * (size_t)p->keys);
    for (int h = 0; h < p->heads; h++)
        for (int i = 0; i < p->queries; i++) {
            const double *q = p->q + ((int64_t)i * p->heads + h) * d;
            double *out = p->out + ((int64_t)i * p->heads + h) * d, top = -INFINITY, sum = 0;
            memset(out, 0, sizeof *out * (size_t)d);
            for (int j = first_key(p, i); j < p->to[i]; j++) {
                const double *k = p->k + ((int64_t)j * p->kv_heads + h / group) * d;
                s[j] = 0;
                for (int c = 0; c < d; c++) s[j] += q[c] * k[c];
                s[j] *= p->scale;
                top = fmax(top, s[j]);
            }
            for (int j = first_key(p, i); j < p->to[i]; j++) sum += exp(s[j] - top);
            p->lse[(int64_t)h * p->queries + i] = sum > 0 ? top + log(sum) : -INFINITY;
            for (int j = first_key(p, i); j < p->to[i]; j++) {
                const double *v = p->v + ((int64_t)j * p->kv_heads + h / group) * d;
                double w = exp(s[j] - top) / sum;
                if (probability) probability[((int64_t)h * p->queries + i) * p->keys + j] = w;
                for (int c = 0; c < d; c++) out[c] += w * v[c];
            }
        }
    free(s);
}

static void reference_backward(struct problem *p) {
    int d = p->head_dim, group = p->heads / p->kv_heads;
    double *w = calloc((size_t)p->heads * (size_t)p->queries * (size_t)p->keys + 1, sizeof *w);
    reference_forward(p, w);
    memset(p->dq, 0, sizeof *p->dq * (size_t)p->queries * (size_t)(p->heads * d));
    memset(p->dk, 0, sizeof *p->dk * (size_t)p->keys * (size_t)(p->kv_heads * d));
    memset(p->dv, 0, sizeof *p->dv * (size_t)p->keys * (size_t)(p->kv_heads * d));
    for (int h = 0; h < p->heads; h++)
        for (int i = 0; i < p->queries; i++) {
            int64_t at = ((int64_t)i * p->heads + h) * d;
            double delta = 0;
            for (int c = 0; c < d; c++) delta += p->out[at + c] * p->dout[at + c];
            for (int j = first_key(p, i); j < p->to[i]; j++) {
                int64_t key = ((int64_t)j * p->kv_heads + h / group) * d;
                double pij = w[((int64_t)h * p->queries + i) * p->keys + j], dp = 0;
                for (int c = 0; c < d; c++) dp += p->dout[at + c] * p->v[key + c];
                double ds = pij * (dp - delta) * p->scale;
                for (int c = 0; c < d; c++) {
                    p->dv[key + c] += pij * p->dout[at + c];
                    p->dk[key + c] += ds * p->q[at + c];
                    p->dq[at + c] += ds * p->k[key + c];
                }
            }
        }
    free(w);
}

static void problem_fill(struct problem *p) {
    int64_t nq = (int64_t)p->queries * p->heads * p->head_dim,
            nk = (int64_t)p->keys * p->kv_heads * p->head_dim;
    if (p->scale == 0) p->scale = 1 / sqrt(p->head_dim);
    p->q = draw_values(p->type, nq);
    p->dout = draw_values(p->type, nq);
    p->k = draw_values(p->type, nk);
    p->v = draw_values(p->type, nk);
    p->out = calloc((size_t)nq + 1, sizeof(double));
    p->dq = calloc((size_t)nq + 1, sizeof(double));
    p->dk = calloc((size_t)nk + 1, sizeof(double));
    p->dv = calloc((size_t)nk + 1, sizeof(double));
    p->lse = calloc((size_t)p->queries * (size_t)p->heads + 1, sizeof(double));
}

static void problem_free(struct problem *p) {
    double *all[] = {p->q, p->k, p->v, p->dout, p->out, p->dq, p->dk, p->dv, p->lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(p->from);
    free(p->to);
}

static void intervals_new(struct problem *p) {
    p->from = malloc(sizeof(int32_t) * (size_t)(p->queries + 1));
    p->to = malloc(sizeof(int32_t) * (size_t)(p->queries + 1));
}

// Documents of the given lengths, end 0, one after the other: causal inside each.
static void documents(struct problem *p, const int *lengths) {
    p->queries = 0;
    for (int i = 0; lengths[i]; i++) p->queries += lengths[i];
    p->keys = p->queries;
    intervals_new(p);
    for (int doc = 0, begin = 0; lengths[doc]; begin += lengths[doc++])
        for (int i = begin; i < begin + lengths[doc]; i++) {
            p->from[i] = begin;
            p->to[i] = i + 1;
        }
}

// Any non-decreasing borders; now and then a query that sees nothing.
static void random_intervals(struct problem *p, int empty_in) {
    intervals_new(p);
    int from = 0, to = 1 + draw_below(p->keys);
    for (int i = 0; i < p->queries; i++) {
        from += draw_below(4) == 0 ? draw_below(3 * p->keys / p->queries + 2) : 0;
        to += draw_below(3) == 0 ? draw_below(3 * p->keys / p->queries + 2) : 0;
        if (to > p->keys) to = p->keys;
        if (from >= to) from = to - 1;
        p->from[i] = from;
        p->to[i] = to;
        if (empty_in && draw_below(empty_in) == 0) p->to[i] = p->from[i];
    }
    for (int i = 1; i < p->queries; i++) { // what the contract promises
        if (p->from[i] < p->from[i - 1]) p->from[i] = p->from[i - 1];
    }
}

// ---- running the device

struct tensor {
    int64_t rows, columns, stride;
    size_t size;
    unsigned char *memory, *at; // guards on both sides
};

static struct tensor tensor_new(enum dtype type, int64_t rows, int64_t columns, int64_t extra) {
    struct tensor t = {rows, columns, columns + extra, dtype_bytes(type), NULL, NULL};
    size_t bytes = ((size_t)(rows * t.stride) + 2 * GUARD) * t.size;
    t.memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(t.memory, 0xa5, bytes);
    t.at = t.memory + GUARD * t.size;
    return t;
}

static void tensor_set(struct tensor *t, enum dtype type, const double *x) {
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t c = 0; c < t->columns; c++) {
            int64_t at = i * t->stride + c;
            if (type == DTYPE_BF16) {
                ((bf16 *)t->at)[at] = bf16_from_float((float)x[i * t->columns + c]);
            } else {
                ((float *)t->at)[at] = (float)x[i * t->columns + c];
            }
        }
}

static double tensor_get(const struct tensor *t, int64_t i, int64_t c) {
    int64_t at = i * t->stride + c;
    return t->size == 2 ? bf16_to_float(((bf16 *)t->at)[at]) : ((float *)t->at)[at];
}

// Guards and the gaps between rows still hold what was there.
static void tensor_check_outside(const struct tensor *t) {
    int64_t elements = t->rows * t->stride;
    for (int64_t i = -GUARD; i < elements + GUARD; i++) {
        if (i >= 0 && i < elements && i % t->stride < t->columns) continue;
        for (size_t b = 0; b < t->size; b++)
            CHECK_EQ_INT(t->at[i * (int64_t)t->size + (int64_t)b], 0xa5);
    }
}

static void tensor_compare(const char *what, const struct tensor *t, const double *expected,
                           double tolerance) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t c = 0; c < t->columns; c++) {
            double found = tensor_get(t, i, c), e = expected[i * t->columns + c];
            if (!(fabs(found) < 1e30))
                test_fail(__FILE__, __LINE__, "%s[%d][%d] is %g", what, (int)i, (int)c, found);
            worst = fmax(worst, fabs(found - e));
            scale = fmax(scale, fabs(e));
        }
    if (worst > tolerance * fmax(1, scale))
        test_fail(__FILE__, __LINE__, "%s: error %.3g above %.3g (largest value %.3g)", what, worst,
                  tolerance, scale);
}

struct result {
    struct tensor q, k, v, dout, out, dq, dk, dv, lse;
};

static void result_free(struct result *r) {
    struct tensor *all[] = {&r->q,  &r->k,  &r->v,  &r->dout, &r->out,
                            &r->dq, &r->dk, &r->dv, &r->lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->memory);
}

static unsigned char *workspace_new(uint64_t bytes) {
    unsigned char *w = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(w, 0xff, bytes + 64); // NaN for whoever reads what he did not write
    return w;
}

// Every arithmetic that a machine may choose.
static const struct way {
    enum device_isa isa;
    bool pairs; // of bf16 multiplied by the processor
} ways[] = {{DEVICE_ISA_PORTABLE, false},
            {DEVICE_ISA_AVX2, false},
            {DEVICE_ISA_AVX512, false},
            {DEVICE_ISA_AVX512, true}};
enum { WAYS = sizeof ways / sizeof *ways };

static bool open_way(struct device *device, const struct way *way, int threads, enum dtype type) {
    struct err err = {0};
    if (way->pairs && (type != DTYPE_BF16 || !attention_can_pair())) return false;
    if (device_cpu_open(device, &(struct device_cpu_options){.threads = threads, .limit = way->isa},
                        &err))
        return false;
    cpu_device_of(device)->attention_pairs = way->pairs;
    return true;
}

static struct result solve(const struct problem *p, const struct way *way, int threads) {
    struct device device;
    if (!open_way(&device, way, threads, p->type))
        test_fail(__FILE__, __LINE__, "the device does not open");
    int qc = p->heads * p->head_dim, kc = p->kv_heads * p->head_dim;
    struct result r = {
        .q = tensor_new(p->type, p->queries, qc, 8),
        .k = tensor_new(p->type, p->keys, kc, 24),
        .v = tensor_new(p->type, p->keys, kc, 24),
        .dout = tensor_new(p->type, p->queries, qc, 16),
        .out = tensor_new(p->type, p->queries, qc, 16),
        .dq = tensor_new(p->type, p->queries, qc, 8),
        .dk = tensor_new(p->type, p->keys, kc, 24),
        .dv = tensor_new(p->type, p->keys, kc, 24),
        .lse = tensor_new(DTYPE_F32, p->heads, p->queries, 0),
    };
    tensor_set(&r.q, p->type, p->q);
    tensor_set(&r.k, p->type, p->k);
    tensor_set(&r.v, p->type, p->v);
    tensor_set(&r.dout, p->type, p->dout);
    struct device_attention_backward b = {
        .forward = {.type = p->type,
                    .queries = p->queries,
                    .keys = p->keys,
                    .heads = p->heads,
                    .kv_heads = p->kv_heads,
                    .head_dim = p->head_dim,
                    .scale = p->scale,
                    .window = p->window,
                    .q = r.q.at,
                    .k = r.k.at,
                    .v = r.v.at,
                    .q_stride = r.q.stride,
                    .kv_stride = r.k.stride,
                    .attend_from = p->from,
                    .attend_to = p->to,
                    .out = r.out.at,
                    .out_stride = r.out.stride,
                    .lse = (float *)r.lse.at},
        .dout = r.dout.at,
        .dq = r.dq.at,
        .dk = r.dk.at,
        .dv = r.dv.at,
    };
    for (int backward = 0; backward < 2; backward++) {
        uint64_t bytes = device.attention_workspace_bytes(&device, &b.forward, backward);
        unsigned char *workspace = workspace_new(bytes);
        b.workspace = b.forward.workspace = workspace;
        if (backward) {
            device.attention_backward(&device, &b);
        } else {
            device.attention_forward(&device, &b.forward);
        }
        for (int i = 0; i < 64; i++) CHECK_EQ_INT(workspace[bytes + (uint64_t)i], 0xff);
        free(workspace);
    }
    device.close(&device);
    return r;
}

static bool available(const struct way *way, enum dtype type) {
    struct device device;
    if (!open_way(&device, way, 1, type)) return false;
    device.close(&device);
    return true;
}

static void check_problem(struct problem *p) {
    problem_fill(p);
    reference_backward(p);
    double tolerance = p->type == DTYPE_BF16 ? 0.02 : 5e-6 * fmax(1, p->scale * 10);
    for (int i = 0; i < WAYS; i++) {
        if (!available(&ways[i], p->type)) continue;
        struct result r = solve(p, &ways[i], 2);
        tensor_compare("out", &r.out, p->out, tolerance);
        for (int64_t j = 0; j < (int64_t)p->heads * p->queries; j++) {
            double found = ((float *)r.lse.at)[j];
            if (isinf(p->lse[j])) {
                CHECK(found == -INFINITY);
            } else {
                CHECK_CLOSE(found, p->lse[j], p->type == DTYPE_BF16 ? 2e-3 : 1e-5);
            }
        }
        tensor_compare("dq", &r.dq, p->dq, tolerance);
        tensor_compare("dk", &r.dk, p->dk, tolerance);
        tensor_compare("dv", &r.dv, p->dv, tolerance);
        const struct tensor *all[] = {&r.out, &r.dq, &r.dk, &r.dv, &r.lse};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) tensor_check_outside(all[t]);
        result_free(&r);
    }
}

static void check_both(struct problem p, void (*shape)(struct problem *)) {
    for (int t = 0; t < 2; t++) {
        struct problem one = p;
        one.type = t ? DTYPE_BF16 : DTYPE_F32;
        shape(&one);
        check_problem(&one);
        problem_free(&one);
    }
}

static void shape_one_row(struct problem *p) {
    documents(p, (int[]){p->queries, 0});
}
static void shape_documents(struct problem *p) {
    documents(p, (int[]){70, 1, 33, 2, 128, 17, 1, 0});
}
static void shape_random(struct problem *p) {
    random_intervals(p, 0);
}
static void shape_random_empty(struct problem *p) {
    random_intervals(p, 9);
}

TEST(attention_one_token) {
    check_both((struct problem){.queries = 1, .heads = 3, .kv_heads = 1, .head_dim = 64},
               shape_one_row);
}

TEST(attention_lengths_around_tiles) {
    const int lengths[] = {2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 200};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check_both(
            (struct problem){.queries = lengths[i], .heads = 1, .kv_heads = 1, .head_dim = 64},
            shape_one_row);
}

TEST(attention_head_dims) {
    for (int d = 8; d <= 256; d += d < 64 ? 8 : 24)
        check_both((struct problem){.queries = 75, .heads = 2, .kv_heads = 1, .head_dim = d},
                   shape_one_row);
    check_both((struct problem){.queries = 75, .heads = 1, .kv_heads = 1, .head_dim = 128},
               shape_one_row);
    check_both((struct problem){.queries = 75, .heads = 1, .kv_heads = 1, .head_dim = 256},
               shape_one_row);
}

TEST(attention_grouped_heads) {
    const int heads[][2] = {{4, 4}, {4, 2}, {6, 2}, {8, 1}, {3, 3}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        check_both(
            (struct problem){
                .queries = 90, .heads = heads[i][0], .kv_heads = heads[i][1], .head_dim = 32},
            shape_one_row);
}

TEST(attention_documents) {
    check_both((struct problem){.heads = 2, .kv_heads = 1, .head_dim = 64}, shape_documents);
}

TEST(attention_windows) {
    const int windows[] = {1, 7, 64, 100, 1000};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        check_both(
            (struct problem){
                .queries = 260, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = windows[i]},
            shape_one_row);
        check_both(
            (struct problem){.heads = 1, .kv_heads = 1, .head_dim = 16, .window = windows[i]},
            shape_documents);
    }
}

TEST(attention_random_intervals) {
    for (int i = 0; i < 12; i++) {
        struct problem p = {.queries = 1 + draw_below(200),
                            .keys = 1 + draw_below(300),
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = 64,
                            .window = draw_below(3) ? 0 : 1 + draw_below(80)};
        check_both(p, i % 2 ? shape_random : shape_random_empty);
    }
}

TEST(attention_few_queries_many_keys) {
    for (int queries = 1; queries <= 5; queries += 2) {
        struct problem p = {
            .queries = queries, .keys = 777, .heads = 4, .kv_heads = 2, .head_dim = 64};
        check_both(p, shape_random);
    }
}

// Scores far apart: the reference of the softmax is raised again and again, and most weights
// vanish.
TEST(attention_large_scores) {
    check_both(
        (struct problem){.queries = 300, .heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 20},
        shape_one_row);
}

// ---- bits

static void check_same(const char *what, const struct tensor *a, int64_t a_row,
                       const struct tensor *b, int64_t b_row, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < a->columns; c++) {
            const unsigned char *x = a->at + (size_t)((a_row + i) * a->stride + c) * a->size;
            const unsigned char *y = b->at + (size_t)((b_row + i) * b->stride + c) * b->size;
            if (memcmp(x, y, a->size) != 0)
                test_fail(__FILE__, __LINE__, "%s: row %d column %d differs", what, (int)i, (int)c);
        }
}

TEST(attention_threads_change_no_bit) {
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < WAYS; i++) {
            if (!available(&ways[i], t ? DTYPE_BF16 : DTYPE_F32)) continue;
            struct problem p = {
                .heads = 4, .kv_heads = 2, .head_dim = 64, .type = t ? DTYPE_BF16 : DTYPE_F32};
            documents(&p, (int[]){1100, 90, 1, 300, 0});
            problem_fill(&p);
            struct result one = solve(&p, &ways[i], 1);
            for (int threads = 2; threads <= 5; threads += 3) {
                struct result many = solve(&p, &ways[i], threads);
                check_same("out", &one.out, 0, &many.out, 0, p.queries);
                check_same("lse", &one.lse, 0, &many.lse, 0, p.heads);
                check_same("dq", &one.dq, 0, &many.dq, 0, p.queries);
                check_same("dk", &one.dk, 0, &many.dk, 0, p.keys);
                check_same("dv", &one.dv, 0, &many.dv, 0, p.keys);
                result_free(&many);
            }
            result_free(&one);
            problem_free(&p);
        }
}

// A document in a pack has the bits that it has alone, whatever stands before and behind it.
TEST(attention_documents_share_no_bit) {
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < WAYS; i++) {
            if (!available(&ways[i], t ? DTYPE_BF16 : DTYPE_F32)) continue;
            const int before = 37, own = 150;
            struct problem pack = {
                .heads = 2, .kv_heads = 1, .head_dim = 40, .type = t ? DTYPE_BF16 : DTYPE_F32};
            documents(&pack, (int[]){before, own, 71, 0});
            problem_fill(&pack);
            struct problem alone = pack;
            documents(&alone, (int[]){own, 0});
            int64_t q = (int64_t)before * pack.heads * pack.head_dim,
                    k = (int64_t)before * pack.kv_heads * pack.head_dim;
            alone.q += q;
            alone.dout += q;
            alone.k += k;
            alone.v += k;
            struct result packed = solve(&pack, &ways[i], 2), single = solve(&alone, &ways[i], 2);
            check_same("out", &packed.out, before, &single.out, 0, own);
            check_same("dq", &packed.dq, before, &single.dq, 0, own);
            check_same("dk", &packed.dk, before, &single.dk, 0, own);
            check_same("dv", &packed.dv, before, &single.dv, 0, own);
            result_free(&packed);
            result_free(&single);
            free(alone.from);
            free(alone.to);
            problem_free(&pack);
        }
}

// NaN in one document stays there.
TEST(attention_documents_share_no_nan) {
    for (int t = 0; t < 2 * WAYS; t++) {
        const struct way *way = &ways[t / 2];
        if (!available(way, t % 2 ? DTYPE_BF16 : DTYPE_F32)) continue;
        struct problem p = {
            .heads = 1, .kv_heads = 1, .head_dim = 64, .type = t % 2 ? DTYPE_BF16 : DTYPE_F32};
        documents(&p, (int[]){30, 50, 0});
        problem_fill(&p);
        for (int i = 0; i < 30 * 64; i++) p.q[i] = p.k[i] = p.v[i] = NAN;
        struct result r = solve(&p, way, 2);
        for (int i = 0; i < 80; i++) CHECK(isnan(tensor_get(&r.out, i, 5)) == (i < 30));
        for (int i = 0; i < 80; i++) CHECK(isnan(tensor_get(&r.dk, i, 5)) == (i < 30));
        result_free(&r);
        problem_free(&p);
    }
}

// ---- the reference itself: its gradients are those of its output, by central differences

static double weighted_output(struct problem *p) {
    double sum = 0;
    reference_forward(p, NULL);
    for (int64_t i = 0; i < (int64_t)p->queries * p->heads * p->head_dim; i++)
        sum += p->out[i] * p->dout[i];
    return sum;
}

static void check_differences(struct problem *p, double *x, const double *gradient, int64_t count) {
    const double step = 1e-5;
    for (int64_t i = 0; i < count; i += 1 + count / 60) {
        double kept = x[i];
        x[i] = kept + step;
        double above = weighted_output(p);
        x[i] = kept - step;
        double below = weighted_output(p);
        x[i] = kept;
        CHECK_CLOSE(gradient[i], (above - below) / (2 * step), 1e-7);
    }
}

TEST(attention_reference_has_the_gradient_of_its_output) {
    struct problem p = {.queries = 23,
                        .keys = 31,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 8,
                        .window = 9,
                        .type = DTYPE_F32};
    random_intervals(&p, 8);
    problem_fill(&p);
    reference_backward(&p);
    check_differences(&p, p.q, p.dq, (int64_t)p.queries * p.heads * p.head_dim);
    check_differences(&p, p.k, p.dk, (int64_t)p.keys * p.kv_heads * p.head_dim);
    check_differences(&p, p.v, p.dv, (int64_t)p.keys * p.kv_heads * p.head_dim);
    problem_free(&p);
}
