// Attention over keys in several blocks: outputs and gradients in FP32, merging, and rows with
// gaps.
#include "device/reference/reference.h"
#include "kernel_test.h"

static void free_owned(struct run *r) {
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

struct problem_of_parts {
    int queries, keys, heads, kv_heads, head_dim;
    struct values q, k, v, dout;
    int32_t *from, *to;
};

// Borders that rise at random; some queries see nothing.
static struct problem_of_parts draw(struct run *r, int queries, int keys, int heads, int kv_heads,
                                    int head_dim) {
    struct problem_of_parts p = {queries, keys, heads, kv_heads, head_dim, {0},
                                 {0},     {0},  {0},   NULL,     NULL};
    p.q = run_values(r, r->type, (int64_t)queries * heads * head_dim, 1);
    p.k = run_values(r, r->type, (int64_t)keys * kv_heads * head_dim, 1);
    p.v = run_values(r, r->type, (int64_t)keys * kv_heads * head_dim, 1);
    p.dout = run_values(r, r->type, (int64_t)queries * heads * head_dim, 1);
    p.from = run_memory(r, (size_t)queries * 4);
    p.to = run_memory(r, (size_t)queries * 4);
    int from = 0, to = 0;
    for (int i = 0; i < queries; i++) {
        to = to + run_below(r, 4 * keys / queries + 1);
        if (to > keys) to = keys;
        if (i % 7 == 0) from = from + run_below(r, to - from + 1);
        p.from[i] = from;
        p.to[i] = i % 11 == 5 ? from : to; // nothing
        if (i > 0 && p.to[i] < p.to[i - 1]) p.from[i] = p.to[i] = p.to[i - 1];
        if (i > 0 && p.from[i] < p.from[i - 1]) p.from[i] = p.from[i - 1];
        from = p.from[i];
    }
    return p;
}

static struct device_attention args_of(struct run *r, const struct problem_of_parts *p) {
    return (struct device_attention){.type = r->type,
                                     .queries = p->queries,
                                     .keys = p->keys,
                                     .heads = p->heads,
                                     .kv_heads = p->kv_heads,
                                     .head_dim = p->head_dim,
                                     .scale = 0.3,
                                     .q = p->q.data,
                                     .k = p->k.data,
                                     .v = p->v.data,
                                     .q_stride = (int64_t)p->heads * p->head_dim,
                                     .kv_stride = (int64_t)p->kv_heads * p->head_dim,
                                     .attend_from = p->from,
                                     .attend_to = p->to,
                                     .out_stride = (int64_t)p->heads * p->head_dim};
}

static struct reference_attention reference_of(const struct problem_of_parts *p) {
    return (struct reference_attention){p->queries,  p->keys,    p->heads, p->kv_heads,
                                        p->head_dim, 0.3,        0,        p->q.exact,
                                        p->k.exact,  p->v.exact, p->from,  p->to};
}

// What is written in FP32 is what is written in the run's type before its rounding.
static void unrounded(struct run *r) {
    struct device *d = &r->device;
    struct problem_of_parts p = draw(r, 150, 170, 4, 2, 20);
    struct device_attention a = args_of(r, &p);
    int64_t q_count = p.q.count, k_count = p.k.count;
    struct values out[2], lse = run_output(r, DTYPE_F32, (int64_t)p.heads * p.queries), dq[2],
                          dk[2], dv[2];
    for (int wide = 0; wide < 2; wide++) {
        enum dtype type = wide ? DTYPE_F32 : r->type;
        out[wide] = run_output(r, type, q_count);
        dq[wide] = run_output(r, type, 2 * q_count);
        dk[wide] = run_output(r, type, k_count);
        dv[wide] = run_output(r, type, k_count);
        a.out = out[wide].data;
        a.out_f32 = wide;
        a.lse = lse.data;
        a.workspace = run_memory(r, d->attention_workspace_bytes(d, &a, false));
        d->attention_forward(d, &a);
    }
    for (int wide = 0; wide < 2; wide++) {
        a.out = out[0].data;
        struct device_attention_backward b = {
            .forward = a,
            .dout = p.dout.data,
            .dq = dq[wide].data,
            .dk = dk[wide].data,
            .dv = dv[wide].data,
            .dq_stride = wide ? 2 * a.q_stride : 0,
            .gradients_f32 = wide,
            .workspace = run_memory(r, d->attention_workspace_bytes(d, &a, true))};
        d->attention_backward(d, &b);
    }
    struct values rounded = run_output(r, r->type, q_count);
    d->convert(d, q_count, out[1].data, DTYPE_F32, rounded.data, r->type);
    CHECK_BYTES(rounded.data, out[0].data, (size_t)q_count * dtype_bytes(r->type));
    d->convert_rows(d, p.queries, a.q_stride, dq[1].data, DTYPE_F32, 2 * a.q_stride, rounded.data,
                    r->type, a.q_stride);
    CHECK_BYTES(rounded.data, dq[0].data, (size_t)q_count * dtype_bytes(r->type));
    d->convert(d, k_count, dk[1].data, DTYPE_F32, rounded.data, r->type);
    CHECK_BYTES(rounded.data, dk[0].data, (size_t)k_count * dtype_bytes(r->type));
    d->convert(d, k_count, dv[1].data, DTYPE_F32, rounded.data, r->type);
    CHECK_BYTES(rounded.data, dv[0].data, (size_t)k_count * dtype_bytes(r->type));
    free_owned(r);
}
TEST(attention_writes_fp32_where_asked) {
    for_every_device(unrounded);
}

// Three blocks of keys, one after the other, merged: attention over all of them.
static void merged(struct run *r) {
    struct device *d = &r->device;
    for (int few = 0; few < 2; few++) {
        struct problem_of_parts p = few ? draw(r, 3, 200, 4, 1, 16) : draw(r, 130, 200, 6, 2, 20);
        struct device_attention a = args_of(r, &p);
        struct reference_attention whole = reference_of(&p);
        int64_t sums = (int64_t)p.heads * p.queries;
        struct values out = run_output(r, DTYPE_F32, p.q.count),
                      lse = run_output(r, DTYPE_F32, sums);
        struct values part = run_output(r, DTYPE_F32, p.q.count),
                      part_lse = run_output(r, DTYPE_F32, sums);
        struct values exact = run_output(r, DTYPE_F32, p.q.count),
                      exact_lse = run_output(r, DTYPE_F32, sums);
        static const int border[4] = {0, 64, 69, 200};
        int32_t *from = run_memory(r, (size_t)p.queries * 4),
                *to = run_memory(r, (size_t)p.queries * 4);
        for (int b = 0; b < 3; b++) {
            for (int i = 0; i < p.queries; i++) {
                int low = p.from[i] < border[b] ? border[b] : p.from[i];
                int high = p.to[i] > border[b + 1] ? border[b + 1] : p.to[i];
                low = low > border[b + 1] ? border[b + 1] : low;
                from[i] = low - border[b];
                to[i] = (high < low ? low : high) - border[b];
            }
            a.keys = border[b + 1] - border[b];
            int64_t skipped = border[b] * a.kv_stride;
            a.k = (char *)p.k.data + (size_t)skipped * dtype_bytes(r->type);
            a.v = (char *)p.v.data + (size_t)skipped * dtype_bytes(r->type);
            a.attend_from = from;
            a.attend_to = to;
            a.out_f32 = true;
            a.out = b == 0 ? out.data : part.data;
            a.lse = b == 0 ? lse.data : part_lse.data;
            a.workspace = run_memory(r, d->attention_workspace_bytes(d, &a, false));
            d->attention_forward(d, &a);
            struct reference_attention some = whole;
            some.keys = a.keys;
            some.k += skipped;
            some.v += skipped;
            some.from = from;
            some.to = to;
            reference_attention_forward(&some, b == 0 ? out.exact : part.exact,
                                        b == 0 ? lse.exact : part_lse.exact);
            if (b == 0) continue;
            struct device_attention_merge m = {p.queries, p.heads,   p.head_dim,   out.data,
                                               lse.data,  part.data, part_lse.data};
            d->attention_merge(d, &m);
            reference_attention_merge(p.queries, p.heads, p.head_dim, out.exact, lse.exact,
                                      part.exact, part_lse.exact);
        }
        reference_attention_forward(&whole, exact.exact, exact_lse.exact);
        for (int64_t i = 0; i < p.q.count; i++) CHECK_CLOSE(out.exact[i], exact.exact[i], 1e-12);
        int none = 0;
        for (int64_t i = 0; i < sums; i++) {
            float found = ((float *)lse.data)[i];
            if (exact_lse.exact[i] == -INFINITY) {
                CHECK(found == -INFINITY && lse.exact[i] == -INFINITY);
                none++;
            } else {
                CHECK_CLOSE(lse.exact[i], exact_lse.exact[i], 1e-12);
                CHECK_CLOSE(found, exact_lse.exact[i], 1e-5);
            }
        }
        CHECK(few || none > 0);
        bool pairs = strstr(d->name, "bf16") && r->type == DTYPE_BF16;
        run_check(r, "merged attention", &out, pairs ? 4e-3 : 3e-6);
        free_owned(r);
    }
}
TEST(attention_over_blocks_of_keys_merges) {
    for_every_device(merged);
}

// A block with far larger scores takes over, one with far smaller ones changes nothing.
static void extremes(struct run *r) {
    struct device *d = &r->device;
    float out[4] = {1, 1, 1, 1}, part[4] = {5, 5, 5, 5};
    float lse[4] = {3, 3, -INFINITY, 2}, part_lse[4] = {300, -300, 7, -INFINITY};
    struct device_attention_merge m = {2, 2, 1, out, lse, part, part_lse};
    d->attention_merge(d, &m); // lse is [heads][queries], out [queries][heads]
    CHECK(out[0] == 5 && lse[0] == 300);
    CHECK(out[2] == 1 && lse[1] == 3);
    CHECK(out[1] == 5 && lse[2] == 7);
    CHECK(out[3] == 1 && lse[3] == 2);
}
TEST(attention_merge_at_extremes) {
    for_every_device(extremes);
}

static void rows(struct run *r) {
    struct device *d = &r->device;
    static const enum dtype types[][2] = {{DTYPE_F32, DTYPE_BF16},
                                          {DTYPE_BF16, DTYPE_F32},
                                          {DTYPE_F32, DTYPE_F32},
                                          {DTYPE_BF16, DTYPE_BF16}};
    for (int t = 0; t < 4; t++) {
        struct values from = run_values(r, types[t][0], 9 * 50, 1);
        struct values to = run_output(r, types[t][1], 9 * 45);
        d->convert_rows(d, 9, 37, from.data, types[t][0], 50, to.data, types[t][1], 45);
        size_t size = dtype_bytes(types[t][1]);
        for (int i = 0; i < 9; i++) {
            unsigned char expected[45 * 4];
            memset(expected, 0xff, sizeof expected); // the gap stays
            dtype_convert(expected, types[t][1],
                          (char *)from.data + (size_t)(i * 50) * dtype_bytes(types[t][0]),
                          types[t][0], 37);
            CHECK_BYTES((char *)to.data + (size_t)(i * 45) * size, expected, 45 * size);
        }
    }
    free_owned(r);
}
TEST(rows_with_gaps_are_converted) {
    for_every_device(rows);
}
