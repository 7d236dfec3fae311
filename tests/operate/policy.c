// What is done about failures, in histories without processes.
#include "operate/policy.h"
#include "test.h"
#include <signal.h>
#include <string.h>

static struct policy *open_policy(enum crash_loop crash_loop, int budget) {
    struct err err = {0};
    struct policy *p;
    struct policy_options options = {budget, 1, 60, crash_loop};
    CHECK_OK(policy_open(&p, &options, &err), err);
    return p;
}

static struct policy_decision fail_with(struct policy *p, struct policy_failure f) {
    struct policy_decision out;
    policy_decide(p, &f, &out);
    CHECK(out.why[0]);
    return out;
}

static struct policy_failure status(int code, int64_t step) {
    return (struct policy_failure){
        .kind = INCIDENT_EXIT, .rank = 1, .host = 0, .status = code, .step = step};
}

static struct policy_failure killed(int number, int64_t step) {
    return (struct policy_failure){
        .kind = INCIDENT_EXIT, .rank = 1, .host = 0, .signal = number, .step = step};
}

TEST(policy_crash_at_start_is_not_tried_again) {
    static const int codes[] = {1, 2, 3, 4, 70};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
        CHECK_EQ_INT(fail_with(p, status(codes[i], -1)).action, POLICY_STOP);
        policy_close(p);
    }
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    CHECK_EQ_INT(fail_with(p, killed(SIGSEGV, 1)).action, POLICY_STOP);
    policy_close(p);
}

// Somebody else killed it, or asked it to leave: that says nothing about the program.
TEST(policy_kill_at_start_is_tried_again) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    CHECK_EQ_INT(fail_with(p, killed(SIGKILL, -1)).action, POLICY_RESTART);
    policy_close(p);
    p = open_policy(CRASH_LOOP_BACK, 10);
    CHECK_EQ_INT(fail_with(p, status(75, -1)).action, POLICY_RESTART);
    policy_close(p);
}

// A run that had steps, whose restart then meets a fault of the configuration.
TEST(policy_fault_of_the_user_behind_a_restart) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 11);
    CHECK_EQ_INT(fail_with(p, status(1, 12)).action, POLICY_RESTART);
    CHECK_EQ_INT(fail_with(p, status(3, -1)).action, POLICY_STOP);
    policy_close(p);
}

TEST(policy_interrupt_is_the_end) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 11);
    CHECK_EQ_INT(fail_with(p, status(130, 12)).action, POLICY_STOP);
    policy_close(p);
}

TEST(policy_crash_loop_goes_back_then_stops) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 11);
    struct policy_decision d = fail_with(p, status(1, 12));
    CHECK_EQ_INT(d.action, POLICY_RESTART);
    CHECK_EQ_INT(d.states_back, 0);
    CHECK(d.wait_seconds == 0);
    policy_progress(p, 11); // done again: no progress
    d = fail_with(p, status(1, 12));
    CHECK_EQ_INT(d.action, POLICY_RESTART);
    CHECK_EQ_INT(d.states_back, 1);
    CHECK(d.wait_seconds == 1);
    policy_progress(p, 11);
    d = fail_with(p, status(1, 12));
    CHECK_EQ_INT(d.action, POLICY_STOP);
    CHECK_EQ_INT(d.skip_step, 12);
    CHECK_CONTAINS(d.why, "step 12");
    policy_close(p);
}

// The rank that is seen to fail may be a step behind another.
TEST(policy_crash_loop_is_a_step_wide) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 11);
    fail_with(p, status(1, 12));
    policy_progress(p, 11);
    CHECK_EQ_INT(fail_with(p, status(1, 11)).states_back, 1);
    struct policy_decision d = fail_with(p, status(1, 12));
    CHECK_EQ_INT(d.action, POLICY_STOP);
    CHECK_EQ_INT(d.skip_step, 12);
    policy_close(p);
}

// Long steps, and a kill in each of three: none of them failed twice.
TEST(policy_steps_in_a_row_are_no_crash_loop) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    for (int64_t step = 12; step < 20; step++) {
        policy_progress(p, step - 1);
        struct policy_decision d = fail_with(p, killed(SIGKILL, step));
        CHECK_EQ_INT(d.action, POLICY_RESTART);
        CHECK_EQ_INT(d.states_back, 0);
    }
    // nor where they had been done before the run went back
    policy_progress(p, 100);
    for (int64_t step = 50; step < 55; step++) {
        policy_progress(p, step - 1);
        CHECK_EQ_INT(fail_with(p, killed(SIGKILL, step)).states_back, 0);
    }
    policy_close(p);
}

TEST(policy_crash_loop_skips_where_allowed) {
    struct policy *p = open_policy(CRASH_LOOP_SKIP, 10);
    policy_progress(p, 11);
    fail_with(p, status(1, 12));
    fail_with(p, status(1, 12));
    struct policy_decision d = fail_with(p, status(1, 12));
    CHECK_EQ_INT(d.action, POLICY_RESTART);
    CHECK_EQ_INT(d.skip_step, 12);
    // that did not help
    CHECK_EQ_INT(fail_with(p, status(1, 12)).action, POLICY_STOP);
    policy_close(p);
}

TEST(policy_crash_loop_may_stop_at_once) {
    struct policy *p = open_policy(CRASH_LOOP_STOP, 10);
    policy_progress(p, 11);
    CHECK_EQ_INT(fail_with(p, status(1, 12)).action, POLICY_RESTART);
    CHECK_EQ_INT(fail_with(p, status(1, 12)).action, POLICY_STOP);
    policy_close(p);
}

// Kills from outside may fall on one step again and again: what counts is the budget.
TEST(policy_crash_loop_may_be_none) {
    struct policy *p = open_policy(CRASH_LOOP_RETRY, 5);
    policy_progress(p, 11);
    for (int i = 0; i < 5; i++) {
        struct policy_decision d = fail_with(p, status(1, 12));
        CHECK_EQ_INT(d.action, POLICY_RESTART);
        CHECK_EQ_INT(d.states_back, 0);
    }
    CHECK_EQ_INT(fail_with(p, status(1, 12)).action, POLICY_STOP);
    policy_close(p);
}

TEST(policy_progress_ends_a_loop) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 11);
    for (int64_t step = 12; step < 60; step += 12) {
        struct policy_decision d = fail_with(p, status(1, step));
        CHECK_EQ_INT(d.action, POLICY_RESTART);
        CHECK_EQ_INT(d.states_back, 0);
        CHECK(d.wait_seconds == 0);
        policy_progress(p, step + 11);
    }
    policy_close(p);
}

TEST(policy_budget_and_waits) {
    static const double waits[] = {0, 1, 2, 4, 8, 16, 32, 60, 60, 60};
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 100);
    for (int i = 0; i < 10; i++) {
        struct policy_decision d = fail_with(p, status(75, 101));
        CHECK_EQ_INT(d.action, POLICY_RESTART);
        CHECK(d.wait_seconds == waits[i]);
    }
    struct policy_decision d = fail_with(p, status(75, 101));
    CHECK_EQ_INT(d.action, POLICY_STOP);
    CHECK_CONTAINS(d.why, "10 restarts");
    policy_progress(p, 101); // gives them back
    CHECK_EQ_INT(fail_with(p, status(75, 102)).action, POLICY_RESTART);
    policy_close(p);
    p = open_policy(CRASH_LOOP_BACK, 0);
    policy_progress(p, 100);
    CHECK_EQ_INT(fail_with(p, killed(SIGKILL, 101)).action, POLICY_STOP);
    policy_close(p);
}

TEST(policy_hosts) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 100);
    policy_progress(p, 10);
    struct policy_decision d = fail_with(p, status(76, 11));
    CHECK_EQ_INT(d.evict_host, 0);
    d = fail_with(
        p, (struct policy_failure){.kind = INCIDENT_HOST_LOST, .rank = -1, .host = 2, .step = 20});
    CHECK_EQ_INT(d.evict_host, 2);
    CHECK_EQ_INT(d.check_host, -1);
    policy_close(p);
    // twice the same host, and no other
    p = open_policy(CRASH_LOOP_BACK, 100);
    policy_progress(p, 10);
    d = fail_with(p, killed(SIGKILL, 11));
    CHECK_EQ_INT(d.check_host, -1);
    CHECK_EQ_INT(d.evict_host, -1);
    policy_progress(p, 20);
    d = fail_with(p, killed(SIGSEGV, 21));
    CHECK_EQ_INT(d.evict_host, 0);
    CHECK_EQ_INT(d.check_host, 0);
    CHECK(d.suspicion);
    policy_close(p);
    // all hosts alike: it is not the host
    p = open_policy(CRASH_LOOP_BACK, 100);
    for (int i = 0; i < 6; i++) {
        policy_progress(p, 10 * i + 10);
        struct policy_failure f = killed(SIGKILL, 10 * i + 11);
        f.host = i % 2;
        CHECK_EQ_INT(fail_with(p, f).evict_host, -1);
    }
    policy_close(p);
}

// Weeks of a run bring failures everywhere; what counts is of the same day.
TEST(policy_hosts_are_judged_by_a_day) {
    static const double day = 86400;
    struct policy *p = open_policy(CRASH_LOOP_BACK, 100);
    struct policy_failure f = killed(SIGKILL, 11);
    f.time = 1000;
    f.host = 3;
    policy_progress(p, 10);
    fail_with(p, f);
    f.time += 2 * day;
    f.host = 0;
    f.step = 21;
    policy_progress(p, 20);
    CHECK_EQ_INT(fail_with(p, f).evict_host, -1);
    f.time += 2 * day; // too far apart
    f.step = 31;
    policy_progress(p, 30);
    CHECK_EQ_INT(fail_with(p, f).evict_host, -1);
    f.time += 100; // host 3 failed long ago
    f.step = 41;
    policy_progress(p, 40);
    CHECK_EQ_INT(fail_with(p, f).evict_host, 0);
    policy_close(p);
}

// A scheduler starts the run anew at night: steps, budget and a crash loop go on counting.
TEST(policy_history_outlives_the_supervisor) {
    struct policy_history kept;
    struct policy *p = open_policy(CRASH_LOOP_BACK, 10);
    policy_progress(p, 1000);
    fail_with(p, killed(SIGKILL, 1001));
    fail_with(p, killed(SIGKILL, 1001));
    policy_keep(p, &kept);
    policy_close(p);
    p = open_policy(CRASH_LOOP_BACK, 10);
    policy_recall(p, &kept);
    // the program is known to work
    CHECK_EQ_INT(fail_with(p, killed(SIGBUS, -1)).action, POLICY_RESTART);
    CHECK_EQ_INT(fail_with(p, status(4, -1)).action, POLICY_RESTART);
    CHECK_EQ_INT(fail_with(p, killed(SIGKILL, 1001)).action, POLICY_STOP);
    policy_keep(p, &kept); // given up: who starts it again has looked at it
    policy_close(p);
    CHECK_EQ_INT(kept.newest, 1000);
    CHECK_EQ_INT(kept.vain, 0);
    CHECK_EQ_INT(kept.loop_step, -1);
    p = open_policy(CRASH_LOOP_BACK, 2);
    kept.vain = 2;
    policy_recall(p, &kept);
    CHECK_EQ_INT(fail_with(p, status(75, 1001)).action, POLICY_STOP);
    policy_close(p);
}

// Lost machines do not accuse the batch that they were at.
TEST(policy_lost_hosts_are_no_crash_loop) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 100);
    policy_progress(p, 11);
    for (int i = 0; i < 5; i++) {
        struct policy_decision d = fail_with(
            p,
            (struct policy_failure){.kind = INCIDENT_HOST_LOST, .rank = -1, .host = i, .step = 12});
        CHECK_EQ_INT(d.action, POLICY_RESTART);
        CHECK_EQ_INT(d.states_back, 0);
    }
    policy_close(p);
}

TEST(policy_planned_restarts_cost_no_budget) {
    struct policy *p = open_policy(CRASH_LOOP_BACK, 1);
    policy_progress(p, 11);
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(fail_with(p,
                               (struct policy_failure){
                                   .kind = INCIDENT_RELOAD, .rank = -1, .host = -1, .step = 12})
                         .action,
                     POLICY_RESTART);
    CHECK_EQ_INT(fail_with(p, killed(SIGKILL, 12)).action, POLICY_RESTART);
    policy_close(p);
}
