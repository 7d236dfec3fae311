// Work that succeeds or fails for all ranks: long, failing, and with a rank that is gone.
#include "checkpoint/together.h"
#include "base/clock.h"
#include "ranks.h"
#include "test.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4 };

struct plan {
    int slow, failing; // ranks, or -1
    double slow_seconds;
    atomic_int stopped, agreed;
};

struct task {
    struct plan *plan;
    int rank;
};

static int work(void *context, const atomic_bool *stop, struct err *err) {
    struct task *task = context;
    struct plan *plan = task->plan;
    if (task->rank == plan->failing) return err_set(err, ERR_IO, "disk %d is full", task->rank);
    for (double begin = clock_seconds();
         task->rank == plan->slow && clock_seconds() - begin < plan->slow_seconds;) {
        usleep(5000);
        if (!*stop) continue;
        plan->stopped++;
        return err_set(err, ERR_INTERNAL, "gave up");
    }
    return 0;
}

static void one_run(void *context, struct comm_stream *world, int rank) {
    struct plan *plan = context;
    struct task task = {plan, rank};
    struct err err = {0};
    int result = together_run(world, "rank", work, &task, &err);
    if (plan->failing < 0) {
        CHECK_OK(result, err);
    } else {
        CHECK_EQ_INT(result, -1);
        CHECK_EQ_INT(err.kind, ERR_IO);
        CHECK_STR(err.text, "rank 2: disk 2 is full");
    }
    plan->agreed++;
}

TEST(a_rank_that_takes_longer_than_the_watchdog_does_not_trip_it) {
    struct plan plan = {.slow = 1, .failing = -1, .slow_seconds = 3};
    run_ranks(RANKS, 1, one_run, &plan);
    CHECK_EQ_INT(plan.agreed, RANKS);
}

TEST(a_failure_is_everybodys_and_stops_the_others) {
    struct plan plan = {.slow = 0, .failing = 2, .slow_seconds = 60};
    run_ranks(RANKS, 0, one_run, &plan); // rank 0 gives up, and is not the one named
    CHECK_EQ_INT(plan.agreed, RANKS);
    CHECK_EQ_INT(plan.stopped, 1);
}

static void with_a_dead_one(void *context, struct comm_stream *world, int rank) {
    struct plan *plan = context;
    struct task task = {plan, rank};
    struct err err = {0};
    if (rank == 3) {
        struct err why = {0};
        (void)err_set(&why, ERR_IO, "rank 3 burned down");
        comm_fail(comm_stream_comm(world), &why);
        return;
    }
    CHECK_EQ_INT(together_run(world, "rank", work, &task, &err), -1);
    CHECK_CONTAINS(err.text, "rank 3 burned down");
    plan->agreed++;
}

TEST(a_failed_world_ends_the_work) {
    struct plan plan = {.slow = 1, .failing = -1, .slow_seconds = 60};
    run_ranks(RANKS, 0, with_a_dead_one, &plan);
    CHECK_EQ_INT(plan.agreed, 3);
    CHECK_EQ_INT(plan.stopped, 1);
}

static int stuck(void *context, const atomic_bool *stop, struct err *err) {
    (void)stop, (void)err;
    usleep(*(int *)context == 1 ? 1500000 : 1000);
    return 0;
}

static void with_a_stuck_one(void *context, struct comm_stream *world, int rank) {
    struct plan *plan = context;
    struct err err = {0};
    CHECK_EQ_INT(together_run_within(world, 0.4, "rank", stuck, &rank, &err), -1);
    CHECK_CONTAINS(err.text, "rank 1 has not ended");
    plan->agreed++;
}

TEST(a_disk_that_stalls_for_good_ends_the_world) {
    struct plan plan = {0};
    run_ranks(RANKS, 0, with_a_stuck_one, &plan);
    CHECK_EQ_INT(plan.agreed, RANKS);
}

static void compare_numbers(void *context, struct comm_stream *world, int rank) {
    struct err err = {0};
    (void)context;
    CHECK_EQ_INT(together_same(world, UINT64_MAX - 7, &err), 1);
    CHECK_EQ_INT(together_same(world, rank == 2 ? 8 : 7, &err), 0);
    CHECK_EQ_INT(together_same(world, rank == 2 ? UINT64_MAX : 7, &err), 0);
}

TEST(numbers_that_differ_are_seen_by_all) {
    struct err err = {0};
    run_ranks(RANKS, 0, compare_numbers, NULL);
    CHECK_EQ_INT(together_same(NULL, 3, &err), 1);
    CHECK_EQ_INT(together_size(NULL), 1);
}

TEST(one_process_needs_no_threads_and_no_prefix) {
    struct plan plan = {.slow = -1, .failing = 0};
    struct task task = {&plan, 0};
    struct err err = {0};
    CHECK_EQ_INT(together_run(NULL, "rank", work, &task, &err), -1);
    CHECK_STR(err.text, "disk 0 is full");
    CHECK_EQ_INT(together_run(NULL, "rank", NULL, NULL, &err), 0);
}
