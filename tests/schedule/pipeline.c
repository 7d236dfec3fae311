// Pipelines as lists: every kind for many shapes, and what the validator refuses.
#include "schedule/pipeline.h"
#include "test.h"
#include <string.h>

static const enum pipeline_kind kinds[] = {PIPELINE_GPIPE, PIPELINE_1F1B, PIPELINE_INTERLEAVED,
                                           PIPELINE_ZB_H1, PIPELINE_ZB_V};

static struct pipeline open_one(enum pipeline_kind kind, int ranks, int chunks, int micro_batches) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {kind, ranks, chunks, micro_batches, 0, true, true};
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
                for (int most = 1; most <= 6 * ranks; most += ranks > 4 ? 11 : 3) {
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

TEST(shapes_that_cannot_be) {
    const struct {
        struct pipeline_shape shape;
        const char *part;
    } cases[] = {
        {{PIPELINE_GPIPE, 4, 2, 8, 0, false, false}, "gpipe has 1 stage per rank, not 2"},
        {{PIPELINE_ZB_V, 4, 3, 8, 0, false, false}, "zb-v has 2 stages per rank, not 3"},
        {{PIPELINE_1F1B, 4, 1, 0, 0, false, false}, "0 micro-batches: expected at least 1"},
        {{PIPELINE_1F1B, 0, 1, 8, 0, false, false}, "0 ranks"},
        {{PIPELINE_INTERLEAVED, 64, 64, 4096, 0, false, false}, "more than the"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct pipeline p;
        struct err err = {0};
        CHECK(pipeline_open(&p, &cases[k].shape, &err) != 0);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, cases[k].part);
    }
    enum pipeline_kind kind;
    struct err err = {0};
    CHECK(pipeline_parse_kind("zb-x", &kind, &err) != 0);
    CHECK_CONTAINS(err.text, "\"zb-x\", expected gpipe, 1f1b");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        CHECK_OK(pipeline_parse_kind(pipeline_kind_name(kinds[k]), &kind, &err), err);
        CHECK_EQ_INT(kind, kinds[k]);
    }
}

static void check_list(const struct schedule *list, const char *expected) {
    struct text text = {0};
    CHECK_EQ_INT(schedule_print(list, &text), 0);
    CHECK_STR(text.data, expected);
    text_free(&text);
}

TEST(lists_as_text) {
    struct pipeline p = open_one(PIPELINE_1F1B, 2, 0, 2);
    check_list(&p.ranks[0], "0G 0F0 0>0 0{0 0F1 0>1 0{1 0B0 0B1 0R 0S\n");
    check_list(&p.ranks[1], "1G 1<0 1F0 1B0 1}0 1<1 1F1 1B1 1}1 1R 1S\n");
    pipeline_close(&p);
    p = open_one(PIPELINE_GPIPE, 2, 0, 2);
    check_list(&p.compute[0], "0F0 0F1 0B0 0B1\n");
    pipeline_close(&p);
    // One rank accumulates, whatever the kind.
    p = open_one(PIPELINE_GPIPE, 1, 0, 2);
    check_list(&p.ranks[0], "0G 0F0 0B0 0F1 0B1 0R 0S\n");
    pipeline_close(&p);
    p = open_one(PIPELINE_ZB_H1, 1, 0, 2);
    check_list(&p.compute[0], "0F0 0I0 0W0 0F1 0I1 0W1\n");
    pipeline_close(&p);
    p = open_one(PIPELINE_ZB_V, 1, 0, 1);
    check_list(&p.compute[0], "0F0 1F0 1I0 0I0 1W0 0W0\n");
    pipeline_close(&p);
    p = open_one(PIPELINE_INTERLEAVED, 1, 3, 1);
    check_list(&p.compute[0], "0F0 1F0 2F0 2B0 1B0 0B0\n");
    pipeline_close(&p);
    p = open_one(PIPELINE_INTERLEAVED, 2, 2, 2);
    check_list(&p.compute[0], "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n");
    check_list(&p.compute[1], "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n");
    pipeline_close(&p);
}

TEST(peaks_in_flight) {
    for (int r = 0; r < 4; r++) {
        struct pipeline p = open_one(PIPELINE_1F1B, 4, 0, 8);
        CHECK_EQ_INT(p.slots[r], 4 - r);
        CHECK_EQ_INT(p.flows[r], 1);
        CHECK_EQ_INT(pipeline_in_flight(&p, r), 4 - r);
        pipeline_close(&p);
        p = open_one(PIPELINE_ZB_V, 4, 0, 8); // two half-depth stages: as much as rank 0 of 1f1b
        CHECK_EQ_INT(pipeline_in_flight(&p, r), 2 * 4);
        CHECK_EQ_INT(p.slots[r] + p.slots[7 - r], 2 * 4);
        CHECK_EQ_INT(p.stage_rank[7 - r], r);
        pipeline_close(&p);
    }
    struct pipeline p = open_one(PIPELINE_GPIPE, 4, 0, 8);
    CHECK_EQ_INT(pipeline_in_flight(&p, 3), 8);
    pipeline_close(&p);
}

// ---- lists that are broken

static void swap(struct pipeline *p, int rank, int i, int j) {
    struct action a = p->ranks[rank].actions[i];
    p->ranks[rank].actions[i] = p->ranks[rank].actions[j];
    p->ranks[rank].actions[j] = a;
}

static int find(const struct pipeline *p, int rank, enum action_kind kind, int stage,
                int micro_batch) {
    for (int i = 0; i < p->ranks[rank].count; i++) {
        struct action a = p->ranks[rank].actions[i];
        if (a.kind == kind && a.stage == stage && a.micro_batch == micro_batch) return i;
    }
    test_fail(__FILE__, __LINE__, "no such action");
}

static void check_refused(struct pipeline *p, const char *part) {
    struct err err = {0};
    CHECK(pipeline_validate(p, &err) != 0);
    CHECK_CONTAINS(err.text, part);
    pipeline_close(p);
}

TEST(deadlock_is_named) {
    // Rank 1 wants the gradient of micro-batch 0 before it does the forward of 1; rank 2 turns that
    // around.
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {0};
    CHECK(pipeline_open_csv(&p, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2F1,2B0,2B1\n", "swapped",
                            &shape, &err) != 0);
    CHECK_CONTAINS(err.text, "swapped: schedule: rank 0, action ");
    CHECK_CONTAINS(err.text, "0B0: deadlock: waits for 1B0 of rank 1, which never comes");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    int send = find(&p, 0, ACTION_SEND_FORWARD, 0, 0); // never sent
    memmove(p.ranks[0].actions + send, p.ranks[0].actions + send + 1,
            (size_t)(--p.ranks[0].count - send) * sizeof(struct action));
    struct pipeline_times times;
    struct pipeline_costs costs = {.forward = 1};
    err = (struct err){0};
    CHECK(pipeline_simulate(&p, &costs, &times, &err) != 0);
    CHECK_CONTAINS(err.text, "rank 0, action 6, 0B0: deadlock: waits for 1B0 of rank 1");
    check_refused(&p, "rank 0, action 6, 0B0: deadlock: waits for 1B0 of rank 1");
}

TEST(broken_lists_are_refused) {
    enum action_kind f = ACTION_FORWARD, b = ACTION_BACKWARD;
    struct pipeline p = open_one(PIPELINE_1F1B, 2, 0, 2);
    swap(&p, 0, find(&p, 0, f, 0, 0), find(&p, 0, ACTION_BACKWARD, 0, 0));
    check_refused(&p, "rank 0, action 1, 0B0: its forward must come before");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    swap(&p, 1, find(&p, 1, f, 1, 0), find(&p, 1, ACTION_RECEIVE_FORWARD, 1, 0));
    check_refused(&p, "1F0: its receive must come before");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].actions[find(&p, 0, f, 0, 1)].micro_batch = 0;
    check_refused(&p, "0F0: a second forward");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].actions[find(&p, 0, f, 0, 1)].micro_batch = 2;
    check_refused(&p, "0F2: no such micro-batch");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].actions[find(&p, 0, f, 0, 1)].stage = 1;
    check_refused(&p, "1F1: this rank does not hold the stage");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].actions[find(&p, 0, b, 0, 1)].kind = ACTION_GATHER;
    check_refused(&p, "the backward of micro-batch 1 of stage 0 is missing");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].count--;
    check_refused(&p, "rank 0 has no step");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    swap(&p, 0, find(&p, 0, ACTION_REDUCE, 0, -1), find(&p, 0, b, 0, 1));
    check_refused(&p, "0R: stands before the stage's last backward");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    swap(&p, 0, find(&p, 0, ACTION_GATHER, 0, -1), find(&p, 0, f, 0, 0));
    check_refused(&p, "0G: stands behind the stage's first action");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.slots[0] = 1;
    check_refused(&p, "0F1: its place is beyond the stage's bound");
    p = open_one(PIPELINE_1F1B, 2, 0, 2);
    p.ranks[0].actions[find(&p, 0, f, 0, 1)].slot = 0;
    check_refused(&p, "0F1: its place is taken");
    p = open_one(PIPELINE_ZB_H1, 2, 0, 2);
    swap(&p, 1, find(&p, 1, ACTION_BACKWARD_INPUT, 1, 1),
         find(&p, 1, ACTION_BACKWARD_WEIGHT, 1, 1));
    check_refused(&p, "1W1: its input half must come before");
    p = open_one(PIPELINE_ZB_V, 2, 0, 2); // stages 1 and 2 share rank 1
    p.ranks[1].actions[find(&p, 1, f, 1, 1)].target = 5;
    check_refused(&p, "1F1: its place is beyond the stage's bound");
}

TEST(descending_backward_is_seen) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {0};
    CHECK_OK(pipeline_open_csv(&p, "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", "lifo", &shape, &err),
             err);
    CHECK(!pipeline_ascending(&p));
    pipeline_close(&p);
    CHECK_OK(pipeline_open_csv(&p, "0F0,0I0,0F1,0I1,0W1,0W0\n", "late", &shape, &err), err);
    CHECK(!pipeline_ascending(&p));
    pipeline_close(&p);
}
