// Attention problems of tests: drawing them, solving them in double, and running a device on them.
#include "attention_problem.h"
#include "device/cpu/attention.h"
#include "device/cpu/cpu.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 }; // elements beside every output that must stay as they were

static uint64_t seed = 1;
static double draw(void) { // roughly normal
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(seed >> 40) / (1 << 24) - 0.5;
    }
    return sum * 1.7;
}
int problem_below(int n) {
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
void problem_forward(struct problem *p, double *probability) {
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

void problem_backward(struct problem *p) {
    int d = p->head_dim, group = p->heads / p->kv_heads;
    double *w = calloc((size_t)p->heads * (size_t)p->queries * (size_t)p->keys + 1, sizeof *w);
    problem_forward(p, w);
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

void problem_fill(struct problem *p) {
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

void problem_free(struct problem *p) {
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
void problem_documents(struct problem *p, const int *lengths) {
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
void problem_intervals(struct problem *p, int empty_in) {
    intervals_new(p);
    int from = 0, to = 1 + problem_below(p->keys);
    for (int i = 0; i < p->queries; i++) {
        from += problem_below(4) == 0 ? problem_below(3 * p->keys / p->queries + 2) : 0;
        to += problem_below(3) == 0 ? problem_below(3 * p->keys / p->queries + 2) : 0;
        if (to > p->keys) to = p->keys;
        if (from >= to) from = to - 1;
        p->from[i] = from;
        p->to[i] = to;
        if (empty_in && problem_below(empty_in) == 0) p->to[i] = p->from[i];
    }
    for (int i = 1; i < p->queries; i++) { // what the contract promises
        if (p->from[i] < p->from[i - 1]) p->from[i] = p->from[i - 1];
    }
}

// ---- running the device

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

double tensor_get(const struct tensor *t, int64_t i, int64_t c) {
    int64_t at = i * t->stride + c;
    return t->size == 2 ? bf16_to_float(((bf16 *)t->at)[at]) : ((float *)t->at)[at];
}

// Guards and the gaps between rows still hold what was there.
void tensor_check_outside(const struct tensor *t) {
    int64_t elements = t->rows * t->stride;
    for (int64_t i = -GUARD; i < elements + GUARD; i++) {
        if (i >= 0 && i < elements && i % t->stride < t->columns) continue;
        for (size_t b = 0; b < t->size; b++)
            CHECK_EQ_INT(t->at[i * (int64_t)t->size + (int64_t)b], 0xa5);
    }
}

void tensor_compare(const char *what, const struct tensor *t, const double *expected,
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

void result_free(struct result *r) {
    struct tensor *all[] = {&r->q,  &r->k,  &r->v,  &r->dout, &r->out,
                            &r->dq, &r->dk, &r->dv, &r->lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]->memory);
}

static unsigned char *workspace_new(uint64_t bytes) {
    unsigned char *w = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(w, 0xff, bytes + 64); // NaN for whoever reads what he did not write
    return w;
}

const struct way ways[WAYS] = {{DEVICE_ISA_PORTABLE, false},
                               {DEVICE_ISA_AVX2, false},
                               {DEVICE_ISA_AVX512, false},
                               {DEVICE_ISA_AVX512, true}};

static bool open_way(struct device *device, const struct way *way, int threads, enum dtype type) {
    struct err err = {0};
    if (way->pairs && (type != DTYPE_BF16 || !attention_can_pair())) return false;
    if (device_cpu_open(device, &(struct device_cpu_options){.threads = threads, .limit = way->isa},
                        &err))
        return false;
    cpu_device_of(device)->attention_pairs = way->pairs;
    return true;
}

struct result problem_solve(const struct problem *p, const struct way *way, int threads) {
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

bool way_available(const struct way *way, enum dtype type) {
    struct device device;
    if (!open_way(&device, way, 1, type)) return false;
    device.close(&device);
    return true;
}
