// What a replay's digests say: every cause, with three ranks, two and one.
#include "guard/replay.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

// Work w has the right digest 100 + w. Rank `bad` gets it wrong in the passes that are named.
enum { FIRST = 1, AGAIN = 2, OTHERS = 4 };
static struct replay_verdict trial(int ranks, int bad, int passes, bool own_value, bool found) {
    struct replay_part parts[8];
    struct replay_verdict v;
    for (int r = 0; r < ranks; r++) {
        int other = ranks > 1 ? (r + 1) % ranks : -1;
        uint64_t right = 100 + (uint64_t)r, wrong = 900 + (uint64_t)r;
        parts[r] = (struct replay_part){
            .rank = 10 + r,
            .other = other < 0 ? -1 : 10 + other,
            .first = r == bad && (passes & FIRST) ? wrong : right,
            .again = r == bad && (passes & AGAIN) ? wrong + (own_value ? 50 : 0) : right,
            .elsewhere = other == bad && (passes & OTHERS) ? wrong : right,
            .found = found && r == bad,
        };
    }
    replay_decide(parts, ranks, &v);
    return v;
}

TEST(the_same_everywhere_is_no_machine) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct replay_verdict v = trial(ranks, -1, 0, false, false);
        CHECK_EQ_INT(v.cause, REPLAY_SOFTWARE);
        CHECK_EQ_INT(v.rank, -1);
    }
}

TEST(wrong_once_is_a_passing_fault) {
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int bad = 0; bad < ranks; bad++) {
            struct replay_verdict v = trial(ranks, bad, FIRST, false, false);
            CHECK_EQ_INT(v.cause, REPLAY_PASSING);
            CHECK_EQ_INT(v.rank, 10 + bad);
            v = trial(ranks, bad, AGAIN, false, false); // in the replay
            CHECK_EQ_INT(v.cause, REPLAY_PASSING);
            CHECK_EQ_INT(v.rank, 10 + bad);
        }
}

TEST(wrong_always_is_a_persistent_fault_by_majority) {
    for (int ranks = 3; ranks <= 6; ranks++)
        for (int bad = 0; bad < ranks; bad++) {
            struct replay_verdict v = trial(ranks, bad, FIRST | AGAIN | OTHERS, false, false);
            CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
            CHECK_EQ_INT(v.rank, 10 + bad);
            char name[16];
            snprintf(name, sizeof name, "rank %d", 10 + bad);
            CHECK_CONTAINS(v.why, name);
        }
}

TEST(wrong_each_time_in_another_way_is_persistent) {
    struct replay_verdict v = trial(2, 1, FIRST | AGAIN | OTHERS, true, false);
    CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
    CHECK_EQ_INT(v.rank, 11);
}

TEST(two_ranks_need_a_checksum) {
    struct replay_verdict v = trial(2, 1, FIRST | AGAIN | OTHERS, false, false);
    CHECK_EQ_INT(v.cause, REPLAY_UNDECIDED);
    CHECK_EQ_INT(v.rank + v.other, 21);
    v = trial(2, 1, FIRST | AGAIN | OTHERS, false, true);
    CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
    CHECK_EQ_INT(v.rank, 11);
}

// All digests are the same and a checksum of the ranks in `own` complains of their work again; of
// those in `others` when they do another rank's.
static struct replay_verdict complaints(int ranks, bool elsewhere, unsigned own, unsigned others) {
    struct replay_part parts[8];
    struct replay_verdict v;
    for (int r = 0; r < ranks; r++) {
        int other = (r + 1) % ranks;
        parts[r] = (struct replay_part){.rank = 10 + r,
                                        .other = elsewhere ? 10 + other : -1,
                                        .first = 100 + (uint64_t)r,
                                        .again = 100 + (uint64_t)r,
                                        .elsewhere = 100 + (uint64_t)r,
                                        .found = own >> r & 1,
                                        .found_elsewhere = elsewhere && (others >> other & 1)};
    }
    replay_decide(parts, ranks, &v);
    return v;
}

TEST(a_checksum_that_complains_of_one_rank_alone_is_persistent) {
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int bad = 0; bad < ranks; bad++)
            for (unsigned others = 0; others <= 1; others++) {
                struct replay_verdict v = complaints(ranks, true, 1U << bad, others << bad);
                CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
                CHECK_EQ_INT(v.rank, 10 + bad);
                CHECK_CONTAINS(v.why, "complains again, and nowhere else");
                v = complaints(ranks, false, 1U << bad, 0); // nobody can do its work
                CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
                CHECK_EQ_INT(v.rank, 10 + bad);
            }
}

TEST(a_checksum_that_complains_everywhere_is_software) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        unsigned all = (1U << ranks) - 1;
        CHECK_EQ_INT(complaints(ranks, true, all, all).cause, REPLAY_SOFTWARE);
        CHECK_EQ_INT(complaints(ranks, false, all, 0).cause, REPLAY_SOFTWARE);
        // of one rank's work only, whoever does it
        CHECK_EQ_INT(complaints(ranks, true, 1, 2).cause, REPLAY_SOFTWARE);
    }
}

TEST(one_rank_alone) {
    struct replay_verdict v = trial(1, 0, FIRST | AGAIN, false, false);
    CHECK_EQ_INT(v.cause, REPLAY_SOFTWARE); // it repeats itself, and nobody else can tell
    v = trial(1, 0, FIRST | AGAIN, false, true);
    CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
    CHECK_EQ_INT(v.rank, 10);
}

TEST(the_gravest_of_several) {
    struct replay_part parts[] = {
        {.rank = 0, .first = 1, .again = 2, .other = 1, .elsewhere = 2},
        {.rank = 1, .first = 5, .again = 5, .other = 2, .elsewhere = 5},
        {.rank = 2, .first = 7, .again = 8, .other = 0, .elsewhere = 9},
    };
    struct replay_verdict v;
    replay_decide(parts, 3, &v);
    CHECK_EQ_INT(v.cause, REPLAY_PERSISTENT);
    CHECK_EQ_INT(v.rank, 2);
}

TEST(majority_names_the_odd_ones) {
    bool wrong[5];
    uint64_t one[] = {4, 4, 9, 4, 4}, two[] = {4, 9}, split[] = {4, 9, 9, 4, 1}, truth = 9;
    CHECK_EQ_INT(replay_majority(one, 5, NULL, wrong), 1);
    CHECK(wrong[2] && !wrong[0] && !wrong[4]);
    CHECK_EQ_INT(replay_majority(one, 2, NULL, wrong), 0);
    CHECK_EQ_INT(replay_majority(two, 2, NULL, wrong), -1);
    CHECK_EQ_INT(replay_majority(two, 2, &truth, wrong), 1);
    CHECK(wrong[0] && !wrong[1]);
    CHECK_EQ_INT(replay_majority(split, 5, NULL, wrong), -1);
    CHECK_EQ_INT(replay_majority(split, 5, &truth, wrong), 3);
    CHECK(wrong[0] && wrong[3] && wrong[4]);
}
