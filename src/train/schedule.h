// Batch size and learning rate as pure functions of counters: nothing to save, nothing that a
// resume could lose.
//
// Position. The step with number s (from 1) stands at position s in steps, and in samples or tokens
// at what is consumed when it ends. So warm-up over 10 steps reaches the peak at step 10, and the
// last step has the final rate.
#pragma once
#include "base/error.h"
#include <stdint.h>

enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_WSD, SCHEDULE_CONSTANT };
enum schedule_unit { UNIT_STEPS, UNIT_SAMPLES, UNIT_TOKENS };
enum schedule_decay { DECAY_LINEAR, DECAY_SQRT }; // of WSD: 1 - x, or 1 - sqrt(x)

enum { SCHEDULE_MAX_RAMP = 16 };

struct train_schedule {
    enum schedule_kind kind;
    enum schedule_unit unit;
    double peak, min_ratio; // learning rate; the lowest one as a share of it
    int64_t warmup, decay;  // in units; decay: the last part of WSD
    enum schedule_decay decay_shape;
    int64_t steps;   // of the whole run
    int64_t context; // tokens of a sample
    int batch;       // samples of a step behind the ramp
    struct {
        int batch;
        int64_t until_samples; // this batch while fewer were consumed
    } ramp[SCHEDULE_MAX_RAMP];
    int ramp_count;
};

// Batch of the step that begins when `samples` were consumed.
int schedule_batch(const struct train_schedule *s, int64_t samples);
// Samples consumed after `steps` steps from the beginning.
int64_t schedule_samples(const struct train_schedule *s, int64_t steps);
// Length of the whole run in the schedule's unit.
int64_t schedule_length(const struct train_schedule *s);
// Learning rate of the step with number `step` (from 1) at whose end `samples` are consumed.
double schedule_rate(const struct train_schedule *s, int64_t step, int64_t samples);
// Reads "8@160,16@480": batch 8 until 160 samples are consumed, then 16 until 480.
int schedule_parse_ramp(struct train_schedule *s, const char *text, struct err *err);
