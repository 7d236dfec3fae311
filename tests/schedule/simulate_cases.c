// Whole steps of every pipeline kind against times worked out by hand: equal and unequal stages,
// and what stages cost beside their compute. Times in the comments are begin-end of each action.
#include "schedule/pipeline.h"
#include "test.h"

#define STAGE(forward_, input_, weight_)                                                           \
    { .forward = forward_, .input = input_, .weight = weight_ }

struct hand {
    enum pipeline_kind kind;
    int ranks, chunks, micro_batches;
    struct pipeline_stage_costs stages[8];
    double total, ideal;
    double busy; // of all ranks
};

static void check_hand(const struct hand *h) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {h->kind, h->ranks, h->chunks, h->micro_batches, 0, false, false};
    CHECK_OK(pipeline_open(&p, &shape, &err), err);
    struct pipeline_costs costs = {.stages = h->stages};
    struct pipeline_times t;
    CHECK_OK(pipeline_simulate(&p, &costs, &t, &err), err);
    CHECK_CLOSE(t.total, h->total, 1e-12);
    CHECK_CLOSE(t.ideal, h->ideal, 1e-12);
    CHECK_CLOSE(t.bubble, 1 - h->busy / (h->ranks * h->total), 1e-12);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

TEST(gpipe_by_hand) {
    // Equal. r0: F0 0-1 F1 1-2, B0 5-7 B1 7-9. r1: F0 1-2 F1 2-3 B0 3-5 B1 5-7.
    check_hand(&(struct hand){PIPELINE_GPIPE, 2, 0, 2, {STAGE(1, 1, 1), STAGE(1, 1, 1)}, 9, 6, 12});
    // Stage 1 takes three times as long. r0: F0 0-1 F1 1-2, B0 13-15, B1 19-21. r1: F0 1-4 F1 4-7
    // B0 7-13 B1 13-19.
    check_hand(
        &(struct hand){PIPELINE_GPIPE, 2, 0, 2, {STAGE(1, 1, 1), STAGE(3, 3, 3)}, 21, 18, 24});
}

TEST(one_forward_one_backward_by_hand) {
    // Equal. r0: F0 0-1 F1 1-2, B0 4-6, B1 7-9. r1: F0 1-2 B0 2-4 F1 4-5 B1 5-7.
    check_hand(&(struct hand){PIPELINE_1F1B, 2, 0, 2, {STAGE(1, 1, 1), STAGE(1, 1, 1)}, 9, 6, 12});
    // Slow last stage. r0: F0 0-1 F1 1-2, B0 10-12, B1 19-21. r1: F0 1-4 B0 4-10 F1 10-13 B1 13-19.
    check_hand(
        &(struct hand){PIPELINE_1F1B, 2, 0, 2, {STAGE(1, 1, 1), STAGE(3, 3, 3)}, 21, 18, 24});
    // Slow first stage: it never waits. r0: F0 0-3 F1 3-6 B0 6-12 F2 12-15 B1 15-21 B2 21-27. r1:
    // F0 3-4 B0 4-6, F1 6-7 B1 7-9, F2 15-16 B2 16-18.
    check_hand(
        &(struct hand){PIPELINE_1F1B, 2, 0, 3, {STAGE(3, 3, 3), STAGE(1, 1, 1)}, 27, 27, 36});
    // A whole backward that takes less than its halves: r0: F0 0-1 F1 1-2, B0 3.5-5, B1 6-7.5. r1:
    // F0 1-2 B0 2-3.5 F1 3.5-4.5 B1 4.5-6.
    check_hand(&(struct hand){PIPELINE_1F1B,
                              2,
                              0,
                              2,
                              {{1, 1, 1, .backward = 1.5}, {1, 1, 1, .backward = 1.5}},
                              7.5,
                              5,
                              10});
}

TEST(interleaved_by_hand) {
    // r0 holds the stages 0 and 2, r1 1 and 3; numbers are stage, kind, micro-batch.
    // Equal. r0: 0F0 0-1 0F1 1-2 2F0 2-3 2F1 3-4, 2B0 6-8, 2B1 9-11 0B0 11-13 0B1 13-15. r1: 1F0
    // 1-2 1F1 2-3 3F0 3-4 3B0 4-6 3F1 6-7 3B1 7-9 1B0 9-11 1B1 11-13.
    const struct pipeline_stage_costs one = STAGE(1, 1, 1), two = STAGE(2, 2, 2);
    check_hand(&(struct hand){PIPELINE_INTERLEAVED, 2, 2, 2, {one, one, one, one}, 15, 12, 24});
    // Last stage twice as long. r1: 1F0 1-2 1F1 2-3 3F0 3-5 3B0 5-9 3F1 9-11 3B1 11-15 1B0 15-17
    // 1B1 17-19. r0: 2B0 9-11, 2B1 15-17 0B0 17-19 0B1 19-21.
    check_hand(&(struct hand){PIPELINE_INTERLEAVED, 2, 2, 2, {one, one, one, two}, 21, 18, 30});
}

TEST(zb_h1_by_hand) {
    // Equal. r0: F0 0-1 F1 1-2, I0 3-4 W0 4-5 I1 5-6 W1 6-7. r1: F0 1-2 I0 2-3 F1 3-4 I1 4-5 W0 5-6
    // W1 6-7.
    check_hand(&(struct hand){PIPELINE_ZB_H1, 2, 0, 2, {STAGE(1, 1, 1), STAGE(1, 1, 1)}, 7, 6, 12});
    // r0: F0 0-1 F1 1-2, I0 6-7 W0 7-9, I1 11-12 W1 12-14. r1: F0 1-3 I0 3-6 F1 6-8 I1 8-11 W0
    // 11-12 W1 12-13.
    check_hand(
        &(struct hand){PIPELINE_ZB_H1, 2, 0, 2, {STAGE(1, 1, 2), STAGE(2, 3, 1)}, 14, 12, 20});
}

TEST(zb_v_by_hand) {
    // r0 holds the stages 0 and 3, r1 1 and 2.
    // Equal. r0: 0F0 0-1 0F1 1-2, 3F0 3-4 3I0 4-5 3W0 5-6 3F1 6-7 3I1 7-8 0I0 8-9 3W1 9-10 0I1
    // 10-11 0W0 11-12 0W1 12-13. r1: 1F0 1-2 2F0 2-3 1F1 3-4 2F1 4-5 2I0 5-6 1I0 6-7 2W0 7-8 2I1
    // 8-9 1I1 9-10 1W0 10-11 2W1 11-12 1W1 12-13.
    const struct pipeline_stage_costs one = STAGE(1, 1, 1);
    check_hand(&(struct hand){PIPELINE_ZB_V, 2, 0, 2, {one, one, one, one}, 13, 12, 24});
    // Last stage: forward and input half 2. r0: 0F0 0-1 0F1 1-2, 3F0 3-5 3I0 5-7 3W0 7-8 3F1 8-10
    // 3I1 10-12 0I0 12-13 3W1 13-14 0I1 14-15 0W0 15-16 0W1 16-17. r1: 1F0 1-2 2F0 2-3 1F1 3-4 2F1
    // 4-5, 2I0 7-8 1I0 8-9 2W0 9-10, 2I1 12-13 1I1 13-14 1W0 14-15 2W1 15-16 1W1 16-17.
    check_hand(&(struct hand){PIPELINE_ZB_V, 2, 0, 2, {one, one, one, STAGE(2, 2, 1)}, 17, 16, 28});
}

// A head worth two layers makes the last of four stages the slowest; two of its layers elsewhere
// make the step shorter.
TEST(layers_move_away_from_the_head) {
    static const int layers[2][4] = {{4, 4, 4, 4}, {5, 5, 4, 2}};
    double total[2];
    for (int k = 0; k < 2; k++) {
        struct pipeline p;
        struct err err = {0};
        struct pipeline_stage_costs stages[4];
        for (int s = 0; s < 4; s++) {
            double each = layers[k][s] + (s == 3 ? 2 : 0);
            stages[s] = (struct pipeline_stage_costs)STAGE(each, each, each);
        }
        struct pipeline_shape shape = {PIPELINE_1F1B, 4, 0, 8, 0, false, false};
        CHECK_OK(pipeline_open(&p, &shape, &err), err);
        struct pipeline_times t;
        CHECK_OK(pipeline_simulate(&p, &(struct pipeline_costs){.stages = stages}, &t, &err), err);
        total[k] = t.total;
        pipeline_times_free(&t);
        pipeline_close(&p);
    }
    // Before: three forwards (12), the last stage's 8 x 18, three backwards (24).
    // After, the steady state has the first stages' period of 15. r0: F0-F3 0-20, B0 44-54, then F4
    // B1 to F7 B4 until 114, B5 119-129. r1: F0-F2 5-20, B0 34-44, F3 B1 to F7 B5 44-119, B6
    // 121-131. r2: F0 10-14 F1 15-19, B0 26-34 F2 34-38 B1 38-46, F3 B2 from 49 on, F6 B5 94-106,
    // F7 109-113 B6 113-121. r3: F0 14-18 B0 18-26, F6 98-102 B6 102-110, F7 113-117 B7 117-125.
    // Then B7 on r2 125-133, r1 133-143, r0 143-153.
    CHECK_CLOSE(total[0], 180, 1e-12);
    CHECK_CLOSE(total[1], 153, 1e-12);
}

// ---- beside compute

static struct pipeline_times times_of(const struct pipeline_shape *shape,
                                      const struct pipeline_costs *costs) {
    struct pipeline p;
    struct err err = {0};
    CHECK_OK(pipeline_open(&p, shape, &err), err);
    struct pipeline_times t;
    CHECK_OK(pipeline_simulate(&p, costs, &t, &err), err);
    struct pipeline_times sums = t;
    sums.spans = NULL;
    pipeline_times_free(&t);
    // The same sums without spans.
    struct pipeline_costs short_ = *costs;
    short_.no_spans = true;
    CHECK_OK(pipeline_simulate(&p, &short_, &t, &err), err);
    CHECK(!t.spans && t.span_count == 0);
    CHECK(t.total == sums.total && t.longest == sums.longest && t.bubble == sums.bubble);
    pipeline_times_free(&t);
    pipeline_close(&p);
    return sums;
}

static double step_of(const struct pipeline_shape *shape, const struct pipeline_costs *costs) {
    return times_of(shape, costs).total;
}

static double longest_of(const struct pipeline_shape *shape, const struct pipeline_costs *costs) {
    return times_of(shape, costs).longest;
}

TEST(sends_of_each_border_and_direction) {
    // Three ranks, one micro-batch: F 0-1, 4-5, 7-8 (sends of 3 and 2), B 8-10, 10.5-12.5, 12.75-
    // 14.75 (0.5 and 0.25).
    const struct pipeline_stage_costs stages[3] = {
        {1, 1, 1, .send_forward = 3},
        {1, 1, 1, .send_forward = 2, .send_backward = 0.25},
        {1, 1, 1, .send_backward = 0.5}};
    struct pipeline_shape shape = {PIPELINE_1F1B, 3, 0, 1, 0, false, false};
    CHECK_CLOSE(step_of(&shape, &(struct pipeline_costs){.stages = stages}), 14.75, 1e-12);
}

TEST(blocking_sends_keep_their_sender) {
    // r0: F0 0-2, sends 2-3, F1 3-5, sends 5-6, B0 10-14, B1 18-22. r1: F0 3-5 B0 5-9, sends 9-10;
    // its only slot is free then: the second input is there at 11, F1 11-13 B1 13-17, sends 17-18.
    const struct pipeline_stage_costs stage = {2, 2, 2, .send_forward = 1, .send_backward = 1};
    const struct pipeline_stage_costs stages[2] = {stage, stage};
    struct pipeline_shape shape = {PIPELINE_1F1B, 2, 0, 2, 0, false, false};
    struct pipeline_costs costs = {.stages = stages, .blocking = true};
    CHECK_CLOSE(step_of(&shape, &costs), 22, 1e-12);
    costs.eager = true; // the second input lies there at 10
    CHECK_CLOSE(step_of(&shape, &costs), 21, 1e-12);
}

TEST(serial_sends_keep_both_ranks) {
    // r0: F0 0-2, sends 2-3, F1 3-5, sends 5-6, receives 9-10, B0 10-14, receives 17-18, B1 18-22.
    // r1: receives 2-3, F0 3-5 B0 5-9, sends 9-10, receives 10-11, F1 11-13 B1 13-17, sends 17-18.
    const struct pipeline_stage_costs stage = {2, 2, 2, .send_forward = 1, .send_backward = 1};
    const struct pipeline_stage_costs stages[2] = {stage, stage};
    struct pipeline_shape shape = {PIPELINE_1F1B, 2, 0, 2, 0, false, false};
    struct pipeline_costs costs = {.stages = stages, .serial = true};
    CHECK_CLOSE(step_of(&shape, &costs), 22, 1e-12);
    // Steady state of the middle rank of three: two sends and two receives for each micro-batch.
    const struct pipeline_stage_costs three[3] = {stage, stage, stage};
    struct pipeline_shape long_ = {PIPELINE_1F1B, 3, 0, 40, 0, false, false};
    struct pipeline_shape longer = {PIPELINE_1F1B, 3, 0, 41, 0, false, false};
    costs.stages = three;
    CHECK_CLOSE(step_of(&longer, &costs) - step_of(&long_, &costs), 2 + 4 + 4, 1e-12);
}

TEST(sends_share_their_senders_link) {
    // Without: r0 F0 0-1 F1 1-2, r1 F0 4-5 F1 5-6 B0 6-7 B1 7-8, r0 B0 10-11 B1 11-12. With: the
    // second input leaves at 4, F1 7-8 B0 8-9 B1 9-10; the second gradient leaves at 12, B1 15-16.
    const struct pipeline_stage_costs stage = {1, 0.5, 0.5, .send_forward = 3, .send_backward = 3};
    const struct pipeline_stage_costs stages[2] = {stage, stage};
    struct pipeline_shape shape = {PIPELINE_GPIPE, 2, 0, 2, 0, false, false};
    struct pipeline_costs costs = {.stages = stages};
    CHECK_CLOSE(step_of(&shape, &costs), 12, 1e-12);
    costs.occupied = true;
    CHECK_CLOSE(step_of(&shape, &costs), 16, 1e-12);
}

TEST(gathers_hide_behind_the_first_forward) {
    // One rank, F 4, B 8, two micro-batches. Whole: F0 8-12. In four pieces: F0 begins with the
    // first at 2 and ends a quarter of a forward behind the last, at 9. A gather of 2 in two
    // pieces: 1-5.
    struct pipeline_stage_costs stage = {4, 4, 4, .gather = 8};
    struct pipeline_shape shape = {PIPELINE_1F1B, 1, 0, 2, 0, true, false};
    struct pipeline_costs costs = {.stages = &stage};
    CHECK_CLOSE(step_of(&shape, &costs), 8 + 24, 1e-12);
    stage.gather_pieces = 4;
    CHECK_CLOSE(step_of(&shape, &costs), 9 + 20, 1e-12);
    stage.gather_first = 3; // everything so much later
    CHECK_CLOSE(step_of(&shape, &costs), 12 + 20, 1e-12);
    stage.gather_first = 0;
    stage.gather = 2;
    stage.gather_pieces = 2;
    CHECK_CLOSE(step_of(&shape, &costs), 5 + 20, 1e-12);
}

TEST(reductions_run_inside_the_last_backward) {
    // The last backward is 16-24. Whole: behind it. Four buckets are ready at 18, 20, 22, 24; of 2
    // each: until 26; of 3 each: 21, 24, 27, 30; of 1 each: 25.
    struct pipeline_stage_costs stage = {4, 4, 4, .reduce = 8};
    struct pipeline_shape shape = {PIPELINE_1F1B, 1, 0, 2, 0, false, true};
    struct pipeline_costs costs = {.stages = &stage};
    CHECK_CLOSE(step_of(&shape, &costs), 32, 1e-12);
    stage.reduce_pieces = 4;
    CHECK_CLOSE(step_of(&shape, &costs), 26, 1e-12);
    stage.reduce = 12;
    CHECK_CLOSE(step_of(&shape, &costs), 30, 1e-12);
    stage.reduce_behind = 5; // behind all of them
    CHECK_CLOSE(step_of(&shape, &costs), 35, 1e-12);
    stage.reduce_behind = 0;
    stage.reduce = 4;
    CHECK_CLOSE(step_of(&shape, &costs), 25, 1e-12);
}

TEST(reductions_of_two_stages_wait_for_each_other_or_for_the_end) {
    // 0F0 0-1 1F0 1-2 1B0 2-4 0B0 4-6. Stage 1 reduces 4-7, stage 0 7-12; at the end both 6-14.
    const struct pipeline_stage_costs stages[2] = {{1, 1, 1, .reduce = 5}, {1, 1, 1, .reduce = 3}};
    struct pipeline_shape shape = {PIPELINE_INTERLEAVED, 1, 2, 1, 0, false, true};
    struct pipeline_costs costs = {.stages = stages};
    CHECK_CLOSE(step_of(&shape, &costs), 12, 1e-12);
    costs.reduce_last = true;
    CHECK_CLOSE(step_of(&shape, &costs), 14, 1e-12);
}

TEST(the_fullest_rank_updates_longest) {
    const struct pipeline_stage_costs stages[2] = {STAGE(1, 1, 1), STAGE(1, 1, 1)};
    const double updates[2] = {5, 7};
    struct pipeline_shape shape = {PIPELINE_1F1B, 2, 0, 2, 0, false, false};
    struct pipeline_costs costs = {.stages = stages, .rank_step = updates};
    CHECK_CLOSE(step_of(&shape, &costs), 9 + 7, 1e-12);
}

TEST(without_barrier_steps_follow_each_other) {
    // zb-h1 as above: r0 computes 0-14, r1 1-13. With updates of 2: together until 16; apart r0
    // 0-16, r1 1-15. Here r0 is the longer one.
    const struct pipeline_stage_costs stages[2] = {STAGE(1, 1, 2), STAGE(2, 3, 1)};
    struct pipeline_shape shape = {PIPELINE_ZB_H1, 2, 0, 2, 0, false, false};
    struct pipeline_costs costs = {.stages = stages, .step = 2, .no_barrier = true};
    CHECK_CLOSE(longest_of(&shape, &costs), 16, 1e-12);
    // Equal stages: r0 0-7, r1 1-7; updates of 1 and 3: r1 1-10.
    const struct pipeline_stage_costs equal[2] = {STAGE(1, 1, 1), STAGE(1, 1, 1)};
    const double updates[2] = {1, 3};
    costs = (struct pipeline_costs){.stages = equal, .rank_step = updates, .no_barrier = true};
    CHECK_CLOSE(longest_of(&shape, &costs), 9, 1e-12);
    CHECK_CLOSE(step_of(&shape, &costs), 10, 1e-12);
}
