// The same training run whatever the layout: each line of the table against one process (close),
// against its own tensor, context, expert and data parallelism without pipeline, sharding and
// overlap (the same bits), and against itself with other threads, buckets, recomputation and a
// resume in the middle (the same bits). docs/determinism.md says why.
#include "base/file.h"
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPIPE PIPELINE_GPIPE
#define ONE PIPELINE_1F1B
#define INTER PIPELINE_INTERLEAVED
#define ZBH1 PIPELINE_ZB_H1
#define ZBV PIPELINE_ZB_V
#define L(fast_, model_, pp_, dp_, cp_, tp_, ep_, zero_, shard_, schedule_, chunks_, rows_, ...)   \
    {                                                                                              \
        fast_, {                                                                                   \
            .model = model_, .pp = pp_, .dp = dp_, .cp = cp_, .tp = tp_, .ep = ep_, .zero = zero_, \
            .shard = shard_, .schedule = schedule_, .chunks = chunks_, .rows = rows_,              \
            ##__VA_ARGS__                                                                          \
        }                                                                                          \
    }

// `fast`: also in `make test`; all of them in `make test-parallel`.
static const struct line {
    bool fast;
    struct world_layout l;
} lines[] = {
    // clang-format off
    // model, pp, dp, cp, tp, ep, zero, shard, schedule, chunks, rows
    // data parallelism and ZeRO
    L(true, "llama",  1, 2, 1, 1, 1, 0, 0, ONE, 1, 1),
    L(false, "llama",  1, 4, 1, 1, 1, 0, 0, ONE, 1, 1),
    L(true, "llama",  1, 2, 1, 1, 1, 1, 0, ONE, 1, 1),
    L(true, "llama",  1, 4, 1, 1, 1, 1, 0, ONE, 1, 1),
    L(false, "gpt2",   1, 2, 1, 1, 1, 1, 0, ONE, 1, 2),
    L(true, "gpt2",   1, 4, 1, 1, 1, 2, 0, ONE, 1, 2),
    L(false, "llama",  1, 4, 1, 1, 1, 2, 0, ONE, 1, 2),
    L(true, "llama",  1, 4, 1, 1, 1, 3, 0, ONE, 1, 2),
    L(true, "gpt2",   1, 2, 1, 1, 1, 3, 0, ONE, 1, 4),
    L(false, "untied", 1, 8, 1, 1, 1, 3, 0, ONE, 1, 1),
    L(true, "untied", 1, 2, 1, 1, 1, 3, 0, ONE, 1, 1, .per_micro_batch = true),
    L(true, "llama",  1, 2, 1, 1, 1, 2, 0, ONE, 1, 1, .per_micro_batch = true),
    L(false, "llama",  1, 2, 1, 1, 1, 1, 0, ONE, 1, 1, .per_micro_batch = true),
    L(false, "gpt2",   1, 4, 1, 1, 1, 0, 0, ONE, 1, 1, .per_micro_batch = true),
    L(true, "llama",  1, 4, 1, 1, 1, 1, 2, ONE, 1, 1),
    L(false, "llama",  1, 4, 1, 1, 1, 3, 2, ONE, 1, 2),
    L(false, "gpt2",   1, 8, 1, 1, 1, 2, 4, ONE, 1, 1),
    // tensor and sequence parallelism
    L(true, "llama",  1, 1, 1, 2, 1, 0, 0, ONE, 1, 2),
    L(true, "llama",  1, 1, 1, 4, 1, 0, 0, ONE, 1, 2), // kv_heads 2 < tp
    L(false, "llama",  1, 1, 1, 8, 1, 0, 0, ONE, 1, 4),
    L(true, "gpt2",   1, 1, 1, 2, 1, 0, 0, ONE, 1, 2),
    L(false, "gpt2",   1, 1, 1, 4, 1, 0, 0, ONE, 1, 1),
    L(true, "llama",  1, 1, 1, 2, 1, 0, 0, ONE, 1, 2, .no_sequence = true),
    L(false, "gpt2",   1, 1, 1, 4, 1, 0, 0, ONE, 1, 2, .no_sequence = true),
    L(false, "llama",  1, 2, 1, 4, 1, 1, 0, ONE, 1, 2, .no_sequence = true),
    L(true, "gpt2",   1, 2, 1, 2, 1, 1, 0, ONE, 1, 2),
    L(false, "llama",  1, 2, 1, 4, 1, 3, 0, ONE, 1, 4),
    L(false, "untied", 1, 4, 1, 2, 1, 2, 0, ONE, 1, 2),
    // pipelines
    L(true, "llama",  2, 1, 1, 1, 1, 0, 0, ONE, 1, 1),
    L(true, "gpt2",   2, 1, 1, 1, 1, 0, 0, GPIPE, 1, 1),
    L(false, "llama",  4, 1, 1, 1, 1, 0, 0, GPIPE, 1, 1),
    L(true, "gpt2",   4, 1, 1, 1, 1, 0, 0, ONE, 1, 1),
    L(true, "llama",  2, 1, 1, 1, 1, 0, 0, INTER, 2, 1),
    L(false, "gpt2",   2, 1, 1, 1, 1, 0, 0, INTER, 2, 2),
    L(true, "llama",  2, 1, 1, 1, 1, 0, 0, ZBH1, 1, 1),
    L(false, "gpt2",   4, 1, 1, 1, 1, 0, 0, ZBH1, 1, 1),
    L(true, "gpt2",   2, 1, 1, 1, 1, 0, 0, ZBV, 2, 1),
    L(true, "llama",  2, 1, 1, 1, 1, 0, 0, ZBV, 2, 1),
    L(false, "untied", 2, 1, 1, 1, 1, 0, 0, ZBV, 2, 2),
    L(false, "untied", 4, 1, 1, 1, 1, 0, 0, ZBH1, 1, 1),
    L(true, "gpt2",   2, 2, 1, 1, 1, 1, 0, ONE, 1, 1),
    L(true, "gpt2",   1, 3, 1, 1, 1, 1, 0, ONE, 1, 1, .samples = 6),
    L(false, "gpt2",   2, 3, 1, 1, 1, 1, 0, ONE, 1, 1, .samples = 12),
    L(false, "llama",  2, 3, 1, 1, 1, 3, 0, ONE, 1, 1, .samples = 6),
    L(false, "llama",  2, 4, 1, 1, 1, 1, 0, INTER, 2, 1),
    L(false, "gpt2",   4, 2, 1, 1, 1, 2, 0, ONE, 1, 1),
    L(true, "llama",  2, 2, 1, 1, 1, 3, 0, ONE, 1, 1),
    L(false, "llama",  2, 2, 1, 1, 1, 3, 0, ZBV, 2, 1),
    L(false, "untied", 2, 2, 1, 1, 1, 2, 0, ZBH1, 1, 1),
    L(false, "gpt2",   2, 2, 1, 1, 1, 1, 0, ZBV, 2, 1),
    // context parallelism
    L(true, "llama",  1, 1, 2, 1, 1, 0, 0, ONE, 1, 1),
    L(true, "gpt2",   1, 1, 4, 1, 1, 0, 0, ONE, 1, 2),
    L(false, "untied", 1, 1, 2, 1, 1, 0, 0, ONE, 1, 2),
    L(true, "untied", 1, 1, 2, 1, 1, 0, 0, ONE, 1, 2, .gather_keys = true),
    L(false, "llama",  1, 1, 4, 1, 1, 0, 0, ONE, 1, 1, .gather_keys = true),
    L(true, "llama",  1, 1, 2, 1, 1, 0, 0, ONE, 1, 1, .per_document = true),
    L(false, "llama",  1, 2, 2, 1, 1, 1, 0, ONE, 1, 1),
    L(false, "gpt2",   1, 2, 2, 1, 1, 3, 0, ONE, 1, 2),
    L(false, "llama",  1, 1, 2, 2, 1, 0, 0, ONE, 1, 2),
    L(false, "llama",  2, 1, 2, 1, 1, 0, 0, ONE, 1, 1),
    // three and four at once
    L(true, "llama",  2, 2, 1, 2, 1, 1, 0, ONE, 1, 1),
    L(false, "gpt2",   2, 2, 1, 2, 1, 1, 0, ZBH1, 1, 1),
    L(false, "llama",  2, 2, 1, 2, 1, 3, 0, INTER, 2, 1),
    L(true, "llama",  2, 2, 2, 2, 1, 3, 0, ONE, 1, 1),
    L(false, "gpt2",   2, 2, 2, 2, 1, 1, 0, ONE, 1, 1),
    L(false, "untied", 2, 2, 2, 2, 1, 2, 0, ZBV, 2, 1),
    L(false, "llama",  4, 2, 1, 2, 1, 1, 0, ONE, 1, 1),
    L(false, "llama",  2, 2, 1, 4, 1, 1, 0, ONE, 1, 1),
    L(false, "llama",  4, 1, 2, 2, 1, 0, 0, GPIPE, 1, 2),
    // dropout
    L(true, "gpt2",   1, 2, 1, 2, 1, 1, 0, ONE, 1, 1, .dropout = 0.1),
    L(true, "gpt2",   2, 2, 2, 2, 1, 3, 0, ONE, 1, 1, .dropout = 0.1),
    L(false, "llama", 2, 1, 2, 1, 1, 0, 0, ZBV, 2, 1, .dropout = 0.2),
    // bf16
    L(true, "llama",  2, 2, 1, 1, 1, 1, 0, ONE, 1, 1, .bf16 = true),
    L(false, "gpt2",   2, 1, 1, 2, 1, 0, 0, ZBV, 2, 1, .bf16 = true),
    L(false, "llama",  1, 4, 1, 1, 1, 3, 0, ONE, 1, 2, .bf16 = true, .bf16_wire = true),
    // clang-format on
};
enum { LINES = sizeof lines / sizeof lines[0] };

// One process with the same micro-batches; those of data rank 0 come first, as in the global batch.
static struct world_layout one_process(const struct world_layout *l) {
    return (struct world_layout){.model = l->model,
                                 .pp = 1,
                                 .dp = 1,
                                 .cp = 1,
                                 .tp = 1,
                                 .ep = 1,
                                 .schedule = PIPELINE_1F1B,
                                 .chunks = 1,
                                 .rows = l->rows,
                                 .samples = l->samples,
                                 .bf16 = l->bf16,
                                 .dropout = l->dropout};
}

// The base of a comparison by bits: docs/determinism.md.
static struct world_layout base_of(const struct world_layout *l) {
    struct world_layout b = *l;
    b.pp = b.chunks = 1;
    b.zero = 0;
    b.schedule = PIPELINE_1F1B;
    b.no_overlap = true;
    return b;
}

// ZeRO 2 and 3 add up over ranks before they add up over micro-batches.
static bool other_order(const struct world_layout *l) {
    return l->zero >= 2 && !l->per_micro_batch && world_micro_batches(l) > 1;
}

static void expect_same(const struct world_layout *l, const char *what, struct world_layout other,
                        const struct world_result *result) {
    char name[160];
    struct world_result r;
    world_run(&other, &r);
    if (!world_same(&r, result, WORLD_STEPS))
        test_fail(__FILE__, __LINE__,
                  "%s: %s changes bits (loss of step 1: %a, %a; of step %d: %a, %a)",
                  world_name(l, name), what, result->loss[0], r.loss[0], WORLD_STEPS,
                  result->loss[WORLD_STEPS - 1], r.loss[WORLD_STEPS - 1]);
    world_free(&r);
}

static void expect_close(const struct world_layout *l, const char *what, struct world_layout other,
                         const struct world_result *result) {
    char name[160], text[200];
    struct world_result r;
    world_run(&other, &r);
    const char *apart = world_apart(result, &r, WORLD_STEPS, text);
    if (apart) test_fail(__FILE__, __LINE__, "%s: %s: %s", world_name(l, name), what, apart);
    world_free(&r);
}

static void check_line(const struct world_layout *l, bool thorough) {
    struct world_result r;
    world_run(l, &r);
    CHECK(r.planned_is_allocated);
    CHECK(r.copies_are_equal);
    CHECK(r.counted > 0);
    if (!l->bf16) expect_close(l, "one process", one_process(l), &r);
    if (other_order(l))
        expect_close(l, "base", base_of(l), &r);
    else if (!l->shard)
        expect_same(l, "pipeline, sharding or overlap", base_of(l), &r);
    if (thorough) {
        struct world_layout v = *l;
        v.threads = 2;
        v.bucket_bytes = 3000;
        expect_same(l, "threads and bucket size", v, &r);
        v = *l;
        v.resume_at = 4;
        expect_same(l, "a resume", v, &r);
        char folder[4096];
        snprintf(folder, sizeof folder, "%s", test_path("snapshots"));
        v.snapshots = folder;
        expect_same(l, "a resume from memory", v, &r);
        file_remove_tree(folder, NULL);
        v = *l;
        v.recompute = RECOMPUTE_FULL;
        if (l->schedule != PIPELINE_ZB_H1 && l->schedule != PIPELINE_ZB_V)
            expect_same(l, "recomputation", v, &r);
    }
    world_free(&r);
}

static void check_lines(int from, int to) {
    bool all = getenv("WEFT_TEST_ALL") != NULL; // make test-parallel
    for (int i = from; i < to && i < LINES; i++)
        if (all || lines[i].fast) check_line(&lines[i].l, all || i % 4 == 0);
}

#define BLOCK(number)                                                                              \
    TEST_LIMIT(matrix_##number, 1200) {                                                            \
        check_lines(number * 8, number * 8 + 8);                                                   \
    }
BLOCK(0)
BLOCK(1)
BLOCK(2)
BLOCK(3)
BLOCK(4)
BLOCK(5)
BLOCK(6)
BLOCK(7)
BLOCK(8)
BLOCK(9)
_Static_assert(LINES <= 80, "a block more");

// A whole backward pass writes what a weight half writes: gradients are final behind the last of
// either.
TEST(a_list_that_mixes_whole_backward_passes_and_halves_keeps_the_bits) {
    struct world_layout l = {.model = "llama",
                             .pp = 2,
                             .dp = 2,
                             .cp = 1,
                             .tp = 1,
                             .ep = 1,
                             .zero = 1,
                             .schedule = PIPELINE_FILE,
                             .schedule_csv = "0F0,0F1,0B0,0F2,0I1,0W1,0I2,0W2,0F3,0B3\n"
                                             "1F0,1B0,1F1,1I1,1W1,1F2,1B2,1F3,1I3,1W3\n",
                             .chunks = 1,
                             .rows = 1,
                             .samples = 8};
    check_line(&l, false);
    // both kinds of last action
    l.schedule_csv = "0F0,0F1,0B0,0B1,0F2,0F3,0I2,0W2,0I3,0W3\n"
                     "1F0,1I0,1W0,1F1,1I1,1W1,1F2,1B2,1F3,1B3\n";
    check_line(&l, false);
}

// What the comparisons above must be able to see.
TEST(control_other_runs_differ) {
    struct world_layout l = one_process(&(struct world_layout){.model = "gpt2", .rows = 1}), v = l;
    struct world_result plain, dropped, flipped;
    char text[200];
    world_run(&l, &plain);
    v.dropout = 0.1;
    world_run(&v, &dropped);
    CHECK(!world_same(&plain, &dropped, 1));
    CHECK(world_apart(&plain, &dropped, 1, text) != NULL);
    world_run(&l, &flipped);
    CHECK(world_same(&plain, &flipped, WORLD_STEPS));
    ((unsigned char *)flipped.weights)[flipped.weight_count] ^= 1;
    CHECK(!world_same(&plain, &flipped, WORLD_STEPS));
    world_free(&plain);
    world_free(&dropped);
    world_free(&flipped);
}
