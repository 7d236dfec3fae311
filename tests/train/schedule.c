// Learning rates and batch sizes as functions of counters, to the digit.
#include "train/schedule.h"
#include "test.h"
#include <math.h>
#include <string.h>

static struct train_schedule plain(enum schedule_kind kind, int64_t steps) {
    return (struct train_schedule){
        .kind = kind, .peak = 1, .steps = steps, .context = 1, .batch = 1};
}

TEST(cosine_from_1_to_0_over_200_steps) {
    struct train_schedule s = plain(SCHEDULE_COSINE, 200);
    CHECK_CLOSE(schedule_rate(&s, 100, 100), 0.5, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 150, 150), 0.146447, 1e-6);
    CHECK_CLOSE(schedule_rate(&s, 200, 200), 0, 1e-15);
    CHECK(schedule_rate(&s, 1, 1) < 1 && schedule_rate(&s, 1, 1) > 0.9999);
}

TEST(wsd_with_a_batch_ramp) { // 100 steps: batch 8 for 160 samples, then 16
    struct train_schedule s = plain(SCHEDULE_WSD, 100);
    struct err err = {0};
    s.batch = 16;
    s.warmup = 10;
    s.decay = 20;
    CHECK_OK(schedule_parse_ramp(&s, "8@160", &err), err);
    CHECK_EQ_INT(schedule_samples(&s, 10), 80);
    CHECK_EQ_INT(schedule_samples(&s, 80), 1120);
    CHECK_EQ_INT(schedule_samples(&s, 100), 1440);
    CHECK_CLOSE(schedule_rate(&s, 9, 72), 0.9, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 10, 80), 1, 0);
    CHECK_CLOSE(schedule_rate(&s, 80, 1120), 1, 0);
    CHECK_CLOSE(schedule_rate(&s, 81, 1136), 0.95, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 100, 1440), 0, 1e-15);

    s.unit = UNIT_SAMPLES; // the same in samples: the peak at 80, the fall over the last 320
    s.warmup = 80;
    s.decay = 320;
    CHECK_EQ_INT(schedule_length(&s), 1440);
    CHECK_CLOSE(schedule_rate(&s, 10, 80), 1, 0);
    CHECK_CLOSE(schedule_rate(&s, 80, 1120), 1, 0);
    CHECK_CLOSE(schedule_rate(&s, 90, 1280), 0.5, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 100, 1440), 0, 1e-15);

    s.unit = UNIT_TOKENS;
    s.context = 32;
    s.warmup = 80 * 32;
    s.decay = 320 * 32;
    CHECK_EQ_INT(schedule_length(&s), 1440 * 32);
    CHECK_CLOSE(schedule_rate(&s, 90, 1280), 0.5, 1e-15);
}

TEST(ramp_batches_follow_samples_and_agree_with_the_sum) {
    struct train_schedule s = plain(SCHEDULE_CONSTANT, 50);
    struct err err = {0};
    s.batch = 12;
    CHECK_OK(schedule_parse_ramp(&s, "4@10,8@30", &err), err);
    int64_t samples = 0;
    for (int64_t step = 0; step < 50; step++) {
        CHECK_EQ_INT(schedule_samples(&s, step), samples);
        int expected = samples < 10 ? 4 : samples < 30 ? 8 : 12;
        CHECK_EQ_INT(schedule_batch(&s, samples), expected);
        samples += expected;
    }
}

TEST(other_kinds) {
    struct train_schedule s = plain(SCHEDULE_LINEAR, 110);
    s.warmup = 10;
    s.min_ratio = 0.1;
    s.peak = 2;
    CHECK_CLOSE(schedule_rate(&s, 5, 5), 1, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 60, 60), 2 * 0.55, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 110, 110), 0.2, 1e-15);
    CHECK_CLOSE(schedule_rate(&s, 500, 500), 0.2, 1e-15); // behind the end it stays
    s.kind = SCHEDULE_CONSTANT;
    CHECK_CLOSE(schedule_rate(&s, 110, 110), 2, 0);
    s.kind = SCHEDULE_WSD;
    s.decay = 100;
    s.decay_shape = DECAY_SQRT;
    CHECK_CLOSE(schedule_rate(&s, 35, 35), 2 * (0.1 + 0.9 * 0.5), 1e-15);
    s.decay = 0;
    CHECK_CLOSE(schedule_rate(&s, 110, 110), 2, 0);
}

TEST(ramps_that_are_none) {
    static const char *const wrong[] = {
        "8",     "8@",     "@160",         "8@160,", "8@160;16@200",
        "0@100", "-4@100", "8@100,16@100", "x@3",    "8@160 16@480"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct train_schedule s = plain(SCHEDULE_COSINE, 10);
        struct err err = {0};
        if (schedule_parse_ramp(&s, wrong[i], &err) == 0)
            test_fail(__FILE__, __LINE__, "\"%s\" was accepted", wrong[i]);
    }
}
