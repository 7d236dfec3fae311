// Pipelines as lists: every kind for many shapes, and what the validator refuses.
#include "schedule/pipeline.h"
#include "test.h"
#include <string.h>

static const enum pipeline_kind kinds[] = {PIPELINE_GPIPE, PIPELINE_1F1B, PIPELINE_INTERLEAVED,
                                           PIPELINE_ZB_H1, PIPELINE_ZB_V};

static struct pipeline open_one(enum pipeline_kind kind, int ranks, int chunks, int micro_batches) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {kind, ranks, chunks, micro_batches, true, true};
    CHECK_OK(pipeline_open(&p, &shape, &err), err);
    return p;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

// The kind's bound on micro-batches of a stage whose activations are held.
static int slot_bound(const struct pipeline *p, int stage) {
    int ranks = p->shape.ranks, m = p->shape.micro_batches, rank = p->stage_rank[stage];
    if (ranks == 1) return 1;
    switch (p->shape.kind) {
    case PIPELINE_1F1B:
        return least(ranks - rank, m);
    case PIPELINE_ZB_H1:
        return least(ranks, m);
    case PIPELINE_ZB_V:
        return least(stage < ranks ? 2 * ranks - 1 - stage : rank + 1, m);
    default:
        return m;
    }
}

static void check_one(enum pipeline_kind kind, int ranks, int chunks, int micro_batches) {
    struct pipeline p = open_one(kind, ranks, chunks, micro_batches);
    struct err err = {0};
    if (pipeline_validate(&p, &err) != 0)
        test_fail(__FILE__, __LINE__, "%s p %d v %d m %d: %s", pipeline_kind_name(kind), ranks,
                  chunks, micro_batches, err.text);
    CHECK(pipeline_ascending(&p));
    CHECK_EQ_INT(p.stages, ranks * p.shape.chunks);
    for (int s = 0; s < p.stages; s++) {
        if (p.slots[s] > slot_bound(&p, s) || p.slots[s] < 1 || p.flows[s] < 1 ||
            p.flows[s] > micro_batches)
            test_fail(__FILE__, __LINE__, "%s p %d v %d m %d: stage %d has %d slots, %d flows",
                      pipeline_kind_name(kind), ranks, chunks, micro_batches, s, p.slots[s],
                      p.flows[s]);
    }
    pipeline_close(&p);
}

TEST(every_shape_is_valid) {
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int p = 1; p <= 8; p++)
            for (int m = 1; m <= 20; m++)
                for (int v = 1; v <= (kinds[k] == PIPELINE_INTERLEAVED ? 4 : 1); v++)
                    check_one(kinds[k], p, kinds[k] == PIPELINE_INTERLEAVED ? v : 0, m);
}

TEST(large_shapes_are_valid) {
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        check_one(kinds[k], 16, 0, 64);
        check_one(kinds[k], 12, 0, 7);
    }
}

// A batch that grows: fewer micro-batches run in the same room.
TEST(remaking_fits_the_room) {
    struct err err = {0};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int v = 1; v <= (kinds[k] == PIPELINE_INTERLEAVED ? 4 : 1); v++)
                for (int most = 1; most <= 6 * ranks; most += ranks > 4 ? 7 : 3) {
                    struct pipeline p =
                        open_one(kinds[k], ranks, kinds[k] == PIPELINE_INTERLEAVED ? v : 0, most);
                    for (int m = 1; m <= most; m++) {
                        struct pipeline same = open_one(kinds[k], ranks, p.shape.chunks, m);
                        CHECK_OK(pipeline_remake(&p, m, &err), err);
                        CHECK_OK(pipeline_validate(&p, &err), err);
                        for (int r = 0; r < ranks; r++) {
                            CHECK_EQ_INT(p.ranks[r].count, same.ranks[r].count);
                            CHECK_BYTES(p.ranks[r].actions, same.ranks[r].actions,
                                        (size_t)p.ranks[r].count * sizeof(struct action));
                        }
                        pipeline_close(&same);
                    }
                    pipeline_close(&p);
                }
}
