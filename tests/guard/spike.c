// The rule of spikes: what is one, what is none, and that a restored state decides alike.
#include "guard/spike.h"
#include "base/random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct spike_rule usual = {
    .loss_factor = 3, .norm_deviations = 20, .warm_up = 20, .most_in_recent = 3};
static char why[200];

// As a run does it, step by step.
static enum spike_verdict judge(struct spike *s, int64_t step, double loss, double norm,
                                char text[200]) {
    text[0] = 0;
    if (spike_is(s, loss, norm, text)) return spike_skip(s, step);
    spike_accept(s, loss, norm);
    return SPIKE_NONE;
}

static double noise(int64_t step, const char *name) { // in [-1, 1)
    uint64_t bits = random_key((uint64_t)step * 977 + 5, name);
    return (double)(bits >> 11) / (double)(1ull << 52) - 1;
}

// A loss that falls from 5 towards 0.4, and a norm that falls too.
static double falling(int64_t step) {
    return 0.4 + 4.6 * exp(-(double)step / 12) + 0.05 * noise(step, "loss");
}
static double norm_of(int64_t step) {
    return 1 + 4 * exp(-(double)step / 20) + 0.2 * noise(step, "norm");
}

TEST(exactly_the_spike_is_skipped) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 300; step++) {
        double loss = step == 50 ? 9 : falling(step);
        CHECK_EQ_INT(judge(&s, step, loss, norm_of(step), why),
                     step == 50 ? SPIKE_SKIP : SPIKE_NONE);
        if (step == 50) CHECK_CONTAINS(why, "loss 9 is above 3 times the moving average");
    }
    CHECK_EQ_INT(s.accepted, 299);
    CHECK_EQ_INT(s.skipped[0], 50);
}

TEST(a_spike_of_the_norm_alone) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 200; step++) {
        double norm = step == 150 ? 40 : norm_of(step);
        CHECK_EQ_INT(judge(&s, step, falling(step), norm, why),
                     step == 150 ? SPIKE_SKIP : SPIKE_NONE);
        if (step == 150) CHECK_CONTAINS(why, "gradient norm 40 is more than 20 deviations");
    }
}

TEST(what_is_not_finite_is_skipped_from_the_first_step) {
    struct spike s = {.rule = usual};
    CHECK_EQ_INT(judge(&s, 1, NAN, 1, why), SPIKE_SKIP);
    CHECK_CONTAINS(why, "not finite");
    CHECK_EQ_INT(judge(&s, 2, 1, INFINITY, why), SPIKE_SKIP);
    CHECK_EQ_INT(judge(&s, 3, 1, 1, why), SPIKE_NONE);
    CHECK_CLOSE(s.average, 1, 0);
}

TEST(nothing_is_judged_while_warming_up) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 20; step++)
        CHECK_EQ_INT(judge(&s, step, step == 20 ? 100 : 1, 1, why), SPIKE_NONE);
    CHECK_EQ_INT(judge(&s, 21, 1000, 1, why), SPIKE_SKIP);
}

TEST(rules_can_be_off) {
    struct spike s = {.rule = {.warm_up = 5, .most_in_recent = 3}};
    for (int64_t step = 1; step <= 100; step++)
        CHECK_EQ_INT(judge(&s, step, step % 9 ? 1 : 1e6, step % 7 ? 1 : 1e9, why), SPIKE_NONE);
    CHECK_EQ_INT(judge(&s, 101, NAN, 1, why), SPIKE_SKIP); // this one cannot
}

TEST(loss_deviations_are_a_rule_of_their_own) {
    struct spike s = {.rule = {.loss_deviations = 6, .warm_up = 20, .most_in_recent = 3}};
    for (int64_t step = 1; step <= 60; step++)
        CHECK_EQ_INT(judge(&s, step, 2 + 0.01 * noise(step, "loss"), 1, why), SPIKE_NONE);
    CHECK_EQ_INT(judge(&s, 61, 2.5, 1, why),
                 SPIKE_NONE); // a deviation is a tenth of the mean
    CHECK_EQ_INT(judge(&s, 62, 3.5, 1, why), SPIKE_SKIP);
    CHECK_CONTAINS(why, "loss 3.5 is more than 6 deviations");
}

TEST(losses_near_zero_are_no_spikes) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 200; step++)
        CHECK_EQ_INT(judge(&s, step, step % 37 ? 0.01 : 0.2, 1, why), SPIKE_NONE);
}

TEST(a_norm_that_stands_still_does_not_alarm_at_trifles) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 200; step++)
        CHECK_EQ_INT(judge(&s, step, 1, step % 50 ? 1 : 2.9, why), SPIKE_NONE);
}

TEST(the_fourth_in_a_hundred_rolls_back) {
    struct spike s = {.rule = usual};
    for (int64_t step = 1; step <= 400; step++) {
        bool spike = step == 30 || step == 131 || step == 160 || step == 200 || step == 230;
        enum spike_verdict want = !spike ? SPIKE_NONE : step == 230 ? SPIKE_ROLL_BACK : SPIKE_SKIP;
        CHECK_EQ_INT(judge(&s, step, spike ? 50 : 2, 1, why), want);
        if (step == 230) CHECK_EQ_INT(spike_first_recent(&s, step), 131);
    }
    CHECK_EQ_INT(spike_first_recent(&s, 331), -1);
}

TEST(many_spikes_wrap_around) {
    struct spike s = {.rule = {.warm_up = 1, .loss_factor = 2, .most_in_recent = 99}};
    CHECK_EQ_INT(judge(&s, 1, 1, 1, why), SPIKE_NONE);
    for (int64_t step = 2; step <= 100; step++)
        CHECK_EQ_INT(judge(&s, step, 9, 1, why), SPIKE_SKIP);
    CHECK_EQ_INT(judge(&s, 101, 9, 1, why), SPIKE_ROLL_BACK);
    for (int64_t step = 102; step <= 250; step++)
        CHECK_EQ_INT(judge(&s, step, 9, 1, why), SPIKE_ROLL_BACK);
    CHECK_EQ_INT(spike_first_recent(&s, 250), 151);
}

// Through text, as a checkpoint does it, at several places of the ring.
TEST(a_restored_state_decides_alike) {
    static const int cuts[] = {0, 1, 19, 57, 128, 300};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        struct spike whole = {.rule = usual}, cut = {.rule = usual};
        for (int64_t step = 1; step <= 600; step++) {
            if (step == cuts[c] + 1) {
                struct err err = {0};
                json_t *written = spike_write(&whole);
                char *text = json_dumps(written, JSON_COMPACT);
                json_t *read = json_parse(text, strlen(text), "manifest", &err);
                CHECK(read != NULL);
                CHECK_OK(spike_read(&cut, read, "manifest", &err), err);
                json_decref(read);
                json_decref(written);
                free(text);
                CHECK_BYTES(&cut, &whole, sizeof cut);
            }
            double loss = falling(step) * (step % 91 == 0 ? 7 : 1) + 0.3 * noise(step, "more");
            enum spike_verdict a = judge(&whole, step, loss, norm_of(step), why);
            if (step > cuts[c]) CHECK_EQ_INT(judge(&cut, step, loss, norm_of(step), why), a);
        }
        CHECK_BYTES(&cut, &whole, sizeof cut);
        CHECK(whole.skipped_count > 0);
    }
}

TEST(a_broken_state_is_refused) {
    static const char *const broken[] = {
        "{}",
        "{\"average\":1,\"accepted\":2,\"loss\":[1],\"norm\":[1,1],\"skipped_count\":0,\"skipped\":"
        "[]}",
        "{\"average\":1,\"accepted\":-2,\"loss\":[],\"norm\":[],\"skipped_count\":0,\"skipped\":[]"
        "}",
        "{\"average\":1,\"accepted\":1,\"loss\":[\"x\"],\"norm\":[1],\"skipped_count\":0,"
        "\"skipped\":[]}",
        "{\"average\":1,\"accepted\":1,\"loss\":[1],\"norm\":[1],\"skipped_count\":2,\"skipped\":["
        "3]}",
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct err err = {0};
        struct spike s = {.rule = usual, .accepted = 7};
        json_t *read = json_parse(broken[i], strlen(broken[i]), "manifest", &err);
        CHECK(read != NULL);
        CHECK(spike_read(&s, read, "manifest", &err) != 0);
        CHECK_CONTAINS(err.text, "manifest");
        CHECK_EQ_INT(s.accepted, 7);
        json_decref(read);
    }
}
