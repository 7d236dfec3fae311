// Action lists: what the generator makes, and what the validator refuses.
#include "schedule/schedule.h"
#include "test.h"
#include <string.h>

static void check_text(int micro_batches, bool split, const char *expected) {
    struct schedule s;
    struct text text = {0};
    struct err err = {0};
    CHECK_OK(schedule_open(&s, micro_batches, &err), err);
    schedule_accumulate(&s, micro_batches, split);
    CHECK_EQ_INT(schedule_print(&s, &text), 0);
    CHECK_STR(text.data, expected);
    CHECK_OK(schedule_validate(&s, micro_batches, &err), err);
    CHECK(schedule_ascending(&s));
    text_free(&text);
    schedule_close(&s);
}

TEST(accumulation) {
    check_text(1, false, "0F0 0B0 0S\n");
    check_text(3, false, "0F0 0B0 0F1 0B1 0F2 0B2 0S\n");
    check_text(2, true, "0F0 0I0 0W0 0F1 0I1 0W1 0S\n");
}

static void check_fault(struct action *actions, int count, int micro_batches, const char *part) {
    struct schedule s = {actions, count, count};
    struct err err = {0};
    CHECK(schedule_validate(&s, micro_batches, &err) != 0);
    CHECK_CONTAINS(err.text, part);
}

TEST(faults) {
    enum action_kind f = ACTION_FORWARD, b = ACTION_BACKWARD, i = ACTION_BACKWARD_INPUT,
                     w = ACTION_BACKWARD_WEIGHT, s = ACTION_STEP;
    check_fault((struct action[]){{b, 0, 0, 0, 0, -1}, {f, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
                3, 1, "0B0: its forward");
    check_fault(
        (struct action[]){
            {f, 0, 0, 0, 0, -1}, {f, 0, 0, 0, 0, -1}, {b, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
        4, 1, "second forward");
    check_fault(
        (struct action[]){
            {f, 0, 0, 0, 0, -1}, {b, 0, 0, 0, 0, -1}, {b, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
        4, 1, "second backward");
    check_fault(
        (struct action[]){
            {f, 0, 0, 0, 0, -1}, {w, 0, 0, 0, 0, -1}, {i, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
        4, 1, "input half");
    check_fault((struct action[]){{f, 0, 0, 0, 0, -1}, {i, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
                3, 1, "lacks the weight half");
    check_fault((struct action[]){{f, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}}, 2, 1,
                "backward is missing");
    check_fault((struct action[]){{f, 0, 0, 0, 0, -1}, {b, 0, 0, 0, 0, -1}}, 2, 1, "no step");
    check_fault((struct action[]){{f, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}, {b, 0, 0, 0, 0, -1}},
                3, 1, "behind the step");
    check_fault((struct action[]){{f, 0, 1, 0, 0, -1}, {b, 0, 1, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
                3, 1, "no such micro-batch");
    check_fault((struct action[]){{f, 0, 0, 0, 0, -1}, {b, 0, 0, 0, 0, -1}, {s, 0, -1, 0, 0, -1}},
                3, 2, "1 of the step's 2");
}

TEST(descending_order_is_seen) {
    struct action lifo[] = {{ACTION_FORWARD, 0, 0, 0, 0, -1},
                            {ACTION_FORWARD, 0, 1, 0, 0, -1},
                            {ACTION_BACKWARD, 0, 1, 0, 0, -1},
                            {ACTION_BACKWARD, 0, 0, 0, 0, -1},
                            {ACTION_STEP, 0, -1, 0, 0, -1}};
    struct schedule s = {lifo, 5, 5};
    struct err err = {0};
    CHECK_OK(schedule_validate(&s, 2, &err), err);
    CHECK(!schedule_ascending(&s));
    struct action late[] = {{ACTION_FORWARD, 0, 0, 0, 0, -1},
                            {ACTION_BACKWARD_INPUT, 0, 0, 0, 0, -1},
                            {ACTION_FORWARD, 0, 1, 0, 0, -1},
                            {ACTION_BACKWARD_INPUT, 0, 1, 0, 0, -1},
                            {ACTION_BACKWARD_WEIGHT, 0, 1, 0, 0, -1},
                            {ACTION_BACKWARD_WEIGHT, 0, 0, 0, 0, -1},
                            {ACTION_STEP, 0, -1, 0, 0, -1}};
    s = (struct schedule){late, 7, 7};
    CHECK_OK(schedule_validate(&s, 2, &err), err);
    CHECK(!schedule_ascending(&s));
}
