// Batch ramp and learning rate, see schedule.h.
#include "train/schedule.h"
#include <math.h>
#include <stdlib.h>

int schedule_batch(const struct train_schedule *s, int64_t samples) {
    for (int i = 0; i < s->ramp_count; i++)
        if (samples < s->ramp[i].until_samples) return s->ramp[i].batch;
    return s->batch;
}

int64_t schedule_samples(const struct train_schedule *s, int64_t steps) {
    int64_t samples = 0;
    for (int i = 0; i < s->ramp_count && steps > 0; i++) {
        int64_t batch = s->ramp[i].batch, missing = s->ramp[i].until_samples - samples;
        if (missing <= 0) continue;
        int64_t here =
            (missing + batch - 1) / batch; // the step that crosses the border keeps its batch
        if (here > steps) here = steps;
        samples += here * batch;
        steps -= here;
    }
    return samples + steps * s->batch;
}

static double position(const struct train_schedule *s, int64_t steps, int64_t samples) {
    switch (s->unit) {
    case UNIT_STEPS:
        return (double)steps;
    case UNIT_SAMPLES:
        return (double)samples;
    case UNIT_TOKENS:
        break;
    }
    return (double)samples * (double)s->context;
}

int64_t schedule_length(const struct train_schedule *s) {
    return (int64_t)position(s, s->steps, schedule_samples(s, s->steps));
}

double schedule_rate(const struct train_schedule *s, int64_t step, int64_t samples) {
    double at = position(s, step, samples), end = (double)schedule_length(s);
    double warmup = (double)s->warmup, low = s->min_ratio, share = 1; // share of the peak
    if (at < warmup) return s->peak * at / warmup;
    double gone = end > warmup ? (at - warmup) / (end - warmup) : 1;
    if (gone > 1) gone = 1;
    switch (s->kind) {
    case SCHEDULE_CONSTANT:
        break;
    case SCHEDULE_LINEAR:
        share = 1 - gone;
        break;
    case SCHEDULE_COSINE:
        share = 0.5 * (1 + cos(M_PI * gone));
        break;
    case SCHEDULE_WSD:
        gone = s->decay > 0 ? (at - (end - (double)s->decay)) / (double)s->decay : 0;
        gone = gone < 0 ? 0 : gone > 1 ? 1 : gone;
        share = s->decay_shape == DECAY_SQRT ? 1 - sqrt(gone) : 1 - gone;
        break;
    }
    return s->peak * (low + (1 - low) * share);
}

int schedule_parse_ramp(struct train_schedule *s, const char *text, struct err *err) {
    int64_t before = 0;
    s->ramp_count = 0;
    while (*text) {
        char *end;
        long batch = strtol(text, &end, 10);
        long long until = *end == '@' ? strtoll(end + 1, &end, 10) : 0;
        if (batch < 1 || batch > 1 << 24 || until <= before || (*end && *end != ',') ||
            (*end == ',' && !end[1]))
            return err_set(
                err, ERR_USAGE,
                "expected a list like \"8@160, 16@480\" (batch 8 until 160 sequences are "
                "consumed, then 16 until 480), found \"%s\"",
                text);
        if (s->ramp_count == SCHEDULE_MAX_RAMP)
            return err_set(err, ERR_USAGE, "at most %d stages are possible", SCHEDULE_MAX_RAMP);
        s->ramp[s->ramp_count].batch = (int)batch;
        s->ramp[s->ramp_count++].until_samples = before = until;
        text = *end ? end + 1 : end;
    }
    return 0;
}
