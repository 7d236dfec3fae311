// What must not change a bit, what may only come close, and controls that must differ.
#include "fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

// Gradients of the first step and masters after STEPS updates.
struct run {
    float *gradients, *masters;
    size_t count;
    double loss[STEPS], norm[STEPS];
};

static struct run run_of(const struct model_config *config, struct engine_options options,
                         int threads, struct batch *batches, int count) {
    struct fixture f;
    struct run r;
    options.train = true;
    options.micro_batches = count;
    fixture_open(&f, config, options, threads, DEVICE_ISA_BEST);
    fixture_step(&f, batches, count, false);
    r.gradients = fixture_copy(&f, ENGINE_GRADIENTS, &r.count);
    for (int s = 0; s < STEPS; s++) {
        struct engine_step step = fixture_step(&f, batches, count, true);
        r.loss[s] = step.loss;
        r.norm[s] = step.gradient_norm;
    }
    r.masters = fixture_copy(&f, ENGINE_MASTER, &r.count);
    fixture_close(&f);
    return r;
}

static void run_free(struct run *r) {
    free(r->gradients);
    free(r->masters);
}

static bool same(const struct run *a, const struct run *b) {
    return a->count == b->count && memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(a->gradients, b->gradients, a->count * sizeof(float)) == 0 &&
           memcmp(a->masters, b->masters, a->count * sizeof(float)) == 0;
}

static const char *const kinds[] = {"gpt2",  "llama",   "tied",         "qwen3",
                                    "olmo2", "experts", "experts after"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

// Two micro-batches of 600 tokens: more than one chunk of tokens, and a broken one.
static void two_batches(struct batch out[2], int vocab) {
    out[0] = fixture_batch(12, 50, vocab, 5);
    out[1] = fixture_batch(12, 50, vocab, 6);
    for (int i = 0; i < 40; i++) out[1].target[7 * i] = -1;
    fixture_count(&out[1]);
}

TEST(recomputation_keeps_the_bits) {
    for (int k = 0; k < KINDS; k++)
        for (int type = 0; type < 2; type++) {
            struct model_config c = fixture_config(kinds[k]);
            struct batch b[2];
            two_batches(b, c.vocab);
            struct engine_options o = {
                .compute = type ? DTYPE_BF16 : DTYPE_F32, .rows = 12, .context = 50};
            struct run none = run_of(&c, o, 1, b, 2);
            for (int mode = RECOMPUTE_SELECTIVE; mode <= RECOMPUTE_FULL; mode++) {
                o.recompute = (enum engine_recompute)mode;
                struct run other = run_of(&c, o, 1, b, 2);
                if (!same(&none, &other))
                    test_fail(__FILE__, __LINE__, "%s, %s: mode %d differs from none", kinds[k],
                              dtype_name(o.compute), mode);
                run_free(&other);
            }
            run_free(&none);
            fixture_free(&b[0]);
            fixture_free(&b[1]);
        }
}

TEST(threads_and_split_backward_keep_the_bits) {
    for (int k = 0; k < KINDS; k++) {
        struct model_config c = fixture_config(kinds[k]);
        struct batch b[2];
        two_batches(b, c.vocab);
        struct engine_options o = {.compute = DTYPE_BF16, .rows = 12, .context = 50};
        struct run two = run_of(&c, o, 2, b, 2), one = run_of(&c, o, 1, b, 2);
        if (!same(&one, &two))
            test_fail(__FILE__, __LINE__, "%s: one and two threads differ", kinds[k]);
        o.split_backward = true;
        struct run split = run_of(&c, o, 1, b, 2);
        if (!same(&split, &two))
            test_fail(__FILE__, __LINE__, "%s: separate weight halves differ", kinds[k]);
        run_free(&one);
        run_free(&two);
        run_free(&split);
        fixture_free(&b[0]);
        fixture_free(&b[1]);
    }
}

// Controls: what the comparisons above must be able to see.
TEST(control_order_and_bits_are_seen) {
    struct model_config c = fixture_config("llama");
    struct batch b[2];
    two_batches(b, c.vocab);
    struct engine_options o = {.compute = DTYPE_BF16, .rows = 12, .context = 50};
    struct run first = run_of(&c, o, 1, b, 2);
    struct batch three[3] = {b[0], b[1], fixture_batch(12, 50, c.vocab, 9)};
    struct batch reversed[3] = {three[2], three[1], three[0]};
    struct run up = run_of(&c, o, 1, three, 3), down = run_of(&c, o, 1, reversed, 3);
    CHECK(!same(&up, &down)); // last in, first out
    CHECK(fixture_difference(down.gradients, up.gradients, up.count) < 1e-3);
    struct run flipped = first;
    flipped.gradients = malloc(first.count * sizeof(float));
    memcpy(flipped.gradients, first.gradients, first.count * sizeof(float));
    ((unsigned char *)flipped.gradients)[first.count] ^= 1;
    CHECK(!same(&first, &flipped));
    o.compute = DTYPE_F32;
    struct run exact = run_of(&c, o, 1, b, 2);
    CHECK(!same(&first, &exact));
    // bf16 stays near FP32.
    CHECK_CLOSE(first.loss[0], exact.loss[0], 0.01);
    CHECK_CLOSE(first.norm[0], exact.norm[0], 0.05);
    free(flipped.gradients);
    run_free(&first);
    run_free(&up);
    run_free(&down);
    run_free(&exact);
    for (int i = 0; i < 3; i++) fixture_free(&three[i]);
}

static struct batch slice(const struct batch *whole, int first_row, int rows) {
    struct batch b = fixture_batch(rows, whole->context, 2, 1);
    int from = first_row * whole->context;
    for (int i = 0; i < b.tokens; i++) {
        b.input[i] = whole->input[from + i];
        b.target[i] = whole->target[from + i];
    }
    fixture_count(&b);
    return b;
}

// One global batch of six rows with uneven counts, cut as 1x6, 2x3, 3x2, 6x1 and unevenly: the mean
// is over all its targets.
static void check_splits(const char *kind, enum dtype type, double tolerance) {
    struct model_config c = fixture_config(kind);
    struct batch whole = fixture_batch(6, 20, c.vocab, 4);
    for (int i = 0; i < 20; i++) whole.target[i] = i == 3 ? whole.target[i] : -1; // one in row 0
    for (int i = 20; i < 35; i++) whole.target[i] = -1;
    for (int i = 40; i < 60; i++) whole.target[i] = -1; // none in row 2
    fixture_count(&whole);
    static const int cuts[][7] = {{6}, {3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}, {1, 2, 3}, {5, 1}};
    struct run reference = {0};
    for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
        struct batch parts[6];
        int count = 0;
        for (int row = 0; row < 6; row += cuts[k][count++])
            parts[count] = slice(&whole, row, cuts[k][count]);
        struct engine_options o = {.compute = type,
                                   .rows = 6,
                                   .context = 20,
                                   .experts = {.aux_coefficient = 0.02, .z_coefficient = 0.001}};
        struct run r = run_of(&c, o, 1, parts, count);
        for (int i = 0; i < count; i++) fixture_free(&parts[i]);
        if (k == 0) {
            reference = r;
            continue;
        }
        CHECK_CLOSE(r.loss[0], reference.loss[0], tolerance);
        CHECK_CLOSE(r.norm[0], reference.norm[0], 10 * tolerance);
        CHECK(fixture_difference(r.gradients, reference.gradients, r.count) < 10 * tolerance);
        CHECK_CLOSE(r.loss[STEPS - 1], reference.loss[STEPS - 1], 10 * tolerance);
        run_free(&r);
    }
    run_free(&reference);
    fixture_free(&whole);
}

TEST(micro_batch_splits_are_close) {
    check_splits("gpt2", DTYPE_F32, 1e-5);
    check_splits("gpt2", DTYPE_BF16, 1e-2);
    check_splits("experts", DTYPE_F32, 1e-5);
}

// The mean over the global batch, not a mean of micro-batch means: the losses of single tokens are
// measured one by one.
TEST(loss_is_the_mean_over_all_targets) {
    struct model_config c = fixture_config("llama");
    struct engine_options o = {
        .compute = DTYPE_F32, .rows = 1, .context = 8, .train = true, .micro_batches = 2};
    struct fixture f;
    fixture_open(&f, &c, o, 1, DEVICE_ISA_BEST);
    struct batch b[2] = {fixture_batch(1, 8, c.vocab, 1), fixture_batch(1, 8, c.vocab, 2)};
    for (int i = 3; i < 8; i++) b[0].target[i] = -1; // three targets
    for (int i = 1; i < 8; i++) b[1].target[i] = -1; // one target
    fixture_count(&b[0]);
    fixture_count(&b[1]);
    struct err err = {0};
    float loss[2][8];
    double sum;
    int64_t counted;
    for (int i = 0; i < 2; i++)
        CHECK_OK(engine_evaluate(f.engine, &b[i], &sum, &counted, loss[i], &err), err);
    double expected =
        ((double)loss[0][0] + (double)loss[0][1] + (double)loss[0][2] + (double)loss[1][0]) / 4;
    struct engine_step step = fixture_step(&f, b, 2, false);
    CHECK_CLOSE(step.loss, expected, 1e-7);
    CHECK_EQ_INT(step.counted, 4);
    CHECK_EQ_INT(step.processed, 16);
    // A micro-batch without any target changes nothing.
    size_t n;
    float *both = fixture_copy(&f, ENGINE_GRADIENTS, &n);
    struct batch empty = fixture_batch(1, 8, c.vocab, 3);
    for (int i = 0; i < 8; i++) empty.target[i] = -1;
    fixture_count(&empty);
    struct batch with[2] = {b[0], empty}, alone[1] = {b[0]};
    struct engine_step first = fixture_step(&f, with, 2, false);
    float *a = fixture_copy(&f, ENGINE_GRADIENTS, &n);
    struct engine_step second = fixture_step(&f, alone, 1, false);
    float *z = fixture_copy(&f, ENGINE_GRADIENTS, &n);
    CHECK(first.loss == second.loss && first.gradient_norm == second.gradient_norm);
    CHECK(fixture_difference(a, z, n) == 0);
    CHECK(fixture_difference(both, z, n) > 0.01);
    free(both);
    free(a);
    free(z);
    fixture_free(&b[0]);
    fixture_free(&b[1]);
    fixture_free(&empty);
    fixture_close(&f);
}

// Packed documents, with padding behind them, give the losses of the same documents alone, and a
// document never sees another.
TEST(packed_documents_equal_documents_alone) {
    static const int lengths[4] = {7, 1, 12, 5};
    for (int k = 0; k < KINDS; k++) {
        struct model_config c = fixture_config(kinds[k]);
        struct engine_options o = {.compute = DTYPE_F32, .rows = 1, .context = 30};
        struct fixture f;
        fixture_open(&f, &c, o, 1, DEVICE_ISA_BEST);
        struct err err = {0};
        struct batch packed = fixture_packed(lengths, 4, 30, c.vocab, 10);
        float loss[30], alone[30];
        double sum, alone_sum, total = 0;
        int64_t counted;
        CHECK_OK(engine_evaluate(f.engine, &packed, &sum, &counted, loss, &err), err);
        CHECK_EQ_INT(counted, 7 + 1 + 12 + 5 - 4);
        int at = 0;
        for (int d = 0; d < 4; d++) {
            struct batch b = fixture_packed(&lengths[d], 1, lengths[d], c.vocab, 10 + (uint64_t)d);
            CHECK_OK(engine_evaluate(f.engine, &b, &alone_sum, &counted, alone, &err), err);
            for (int i = 0; i < lengths[d]; i++) CHECK_CLOSE(loss[at + i], alone[i], 2e-6);
            total += alone_sum;
            at += lengths[d];
            fixture_free(&b);
        }
        CHECK_CLOSE(sum, total, 1e-6);
        for (int i = 0; i < 7; i++) packed.input[i] = (packed.input[i] + 1) % c.vocab;
        float changed[30];
        CHECK_OK(engine_evaluate(f.engine, &packed, &sum, &counted, changed, &err), err);
        CHECK(memcmp(changed + 7, loss + 7, 23 * sizeof(float)) == 0);
        CHECK(memcmp(changed, loss, 7 * sizeof(float)) != 0);
        fixture_free(&packed);
        fixture_close(&f);
    }
}

// Micro-batches of different lengths in one step accumulate into the same gradients.
TEST(lengths_of_micro_batches_may_change) {
    struct model_config c = fixture_config("gpt2");
    struct batch parts[3] = {fixture_batch(1, 8, c.vocab, 1), fixture_batch(1, 5, c.vocab, 2),
                             fixture_batch(1, 8, c.vocab, 3)};
    struct engine_options o = {.compute = DTYPE_F32, .rows = 1, .context = 24};
    struct run split = run_of(&c, o, 1, parts, 3);
    struct batch joined = fixture_batch(1, 21, c.vocab, 1);
    int at = 0;
    for (int p = 0; p < 3; p++)
        for (int i = 0, first = at; i < parts[p].tokens; i++, at++) {
            joined.input[at] = parts[p].input[i];
            joined.target[at] = parts[p].target[i];
            joined.position[at] = i;
            joined.attend_from[at] = first;
        }
    fixture_count(&joined);
    struct run whole = run_of(&c, o, 1, &joined, 1);
    CHECK_CLOSE(split.loss[0], whole.loss[0], 1e-6);
    CHECK(fixture_difference(split.gradients, whole.gradients, whole.count) < 1e-5);
    run_free(&split);
    run_free(&whole);
    for (int p = 0; p < 3; p++) fixture_free(&parts[p]);
    fixture_free(&joined);
}
