// Attention against a plain double-precision computation: every instruction set, both types,
// intervals of documents, windows, rings and generation, shapes that fit no tile, and what must not
// change a bit.
#include "attention_problem.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_problem(struct problem *p) {
    problem_fill(p);
    problem_backward(p);
    double tolerance = p->type == DTYPE_BF16 ? 0.02 : 5e-6 * fmax(1, p->scale * 10);
    for (int i = 0; i < WAYS; i++) {
        if (!way_available(&ways[i], p->type)) continue;
        struct result r = problem_solve(p, &ways[i], 2);
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
    problem_documents(p, (int[]){p->queries, 0});
}
static void shape_documents(struct problem *p) {
    problem_documents(p, (int[]){70, 1, 33, 2, 128, 17, 1, 0});
}
static void shape_random(struct problem *p) {
    problem_intervals(p, 0);
}
static void shape_random_empty(struct problem *p) {
    problem_intervals(p, 9);
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
        struct problem p = {.queries = 1 + problem_below(200),
                            .keys = 1 + problem_below(300),
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = 64,
                            .window = problem_below(3) ? 0 : 1 + problem_below(80)};
        check_both(p, i % 2 ? shape_random : shape_random_empty);
    }
}

TEST(attention_few_queries_many_keys) {
    for (int d = 8; d <= 256; d += d < 64 ? 8 : 24)
        check_both(
            (struct problem){.queries = 2, .keys = 100, .heads = 2, .kv_heads = 1, .head_dim = d},
            shape_random);
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
            if (!way_available(&ways[i], t ? DTYPE_BF16 : DTYPE_F32)) continue;
            struct problem p = {
                .heads = 4, .kv_heads = 2, .head_dim = 64, .type = t ? DTYPE_BF16 : DTYPE_F32};
            problem_documents(&p, (int[]){1100, 90, 1, 300, 0});
            problem_fill(&p);
            struct result one = problem_solve(&p, &ways[i], 1);
            for (int threads = 2; threads <= 5; threads += 3) {
                struct result many = problem_solve(&p, &ways[i], threads);
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
            if (!way_available(&ways[i], t ? DTYPE_BF16 : DTYPE_F32)) continue;
            const int before = 37, own = 150;
            struct problem pack = {
                .heads = 2, .kv_heads = 1, .head_dim = 40, .type = t ? DTYPE_BF16 : DTYPE_F32};
            problem_documents(&pack, (int[]){before, own, 71, 0});
            problem_fill(&pack);
            struct problem alone = pack;
            problem_documents(&alone, (int[]){own, 0});
            int64_t q = (int64_t)before * pack.heads * pack.head_dim,
                    k = (int64_t)before * pack.kv_heads * pack.head_dim;
            alone.q += q;
            alone.dout += q;
            alone.k += k;
            alone.v += k;
            struct result packed = problem_solve(&pack, &ways[i], 2),
                          single = problem_solve(&alone, &ways[i], 2);
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
        if (!way_available(way, t % 2 ? DTYPE_BF16 : DTYPE_F32)) continue;
        struct problem p = {
            .heads = 1, .kv_heads = 1, .head_dim = 64, .type = t % 2 ? DTYPE_BF16 : DTYPE_F32};
        problem_documents(&p, (int[]){30, 50, 0});
        problem_fill(&p);
        for (int i = 0; i < 30 * 64; i++) p.q[i] = p.k[i] = p.v[i] = NAN;
        struct result r = problem_solve(&p, way, 2);
        for (int i = 0; i < 80; i++) CHECK(isnan(tensor_get(&r.out, i, 5)) == (i < 30));
        for (int i = 0; i < 80; i++) CHECK(isnan(tensor_get(&r.dk, i, 5)) == (i < 30));
        result_free(&r);
        problem_free(&p);
    }
}

// ---- the reference itself: its gradients are those of its output, by central differences

static double weighted_output(struct problem *p) {
    double sum = 0;
    problem_forward(p, NULL);
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
    problem_intervals(&p, 8);
    problem_fill(&p);
    problem_backward(&p);
    check_differences(&p, p.q, p.dq, (int64_t)p.queries * p.heads * p.head_dim);
    check_differences(&p, p.k, p.dk, (int64_t)p.keys * p.kv_heads * p.head_dim);
    check_differences(&p, p.v, p.dv, (int64_t)p.keys * p.kv_heads * p.head_dim);
    problem_free(&p);
}
