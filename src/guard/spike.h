// Spikes of loss and gradient norm: a rule over reduced values, so that all ranks decide alike
// (silent data corruption, layer 1).
//
// A step is a spike when its loss is above `loss_factor` times the moving average of the accepted
// steps (weight 0.1 for the newest; the plain mean of the first ten) and above SPIKE_LEAST_LOSS, or
// when loss or norm lies so many standard deviations above the mean of the last 128 accepted steps.
// Below a tenth of the mean a deviation counts as a tenth of the mean: a run whose norm hardly
// moves does not alarm at trifles. Values that are not finite are always a spike. Values of spikes
// enter neither average nor window.
#pragma once
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>

enum { SPIKE_WINDOW = 128, SPIKE_RECENT = 100 };
// Ratios of losses near zero (a text known by heart) say nothing. In nats.
#define SPIKE_LEAST_LOSS 0.5

struct spike_rule {
    double loss_factor;                      // over the moving average; 0: off
    double loss_deviations, norm_deviations; // z-score over the window; 0: off
    int warm_up;                             // accepted steps before the rule judges
    int most_in_recent; // skipped steps of the last 100 that are borne; one more: roll back
};
struct spike { // state; saved with checkpoints
    struct spike_rule rule;
    double average; // of the loss, exponential
    double loss[SPIKE_WINDOW], norm[SPIKE_WINDOW];
    int64_t accepted;
    int64_t skipped[SPIKE_RECENT]; // steps, ring
    int64_t skipped_count;
};
enum spike_verdict { SPIKE_NONE, SPIKE_SKIP, SPIKE_ROLL_BACK };
// Whether the step's values are a spike; changes nothing. `why` gets the figures.
bool spike_is(const struct spike *s, double loss, double gradient_norm, char why[200]);
void spike_accept(struct spike *s, double loss, double gradient_norm);
// Counts a step as skipped; SPIKE_SKIP or SPIKE_ROLL_BACK.
enum spike_verdict spike_skip(struct spike *s, int64_t step);
// The first of the skipped steps among the last 100 before and with `step`; -1: none.
int64_t spike_first_recent(const struct spike *s, int64_t step);
// What the rule compares with, for journals: mean and deviation of the norm over the window.
void spike_norm_window(const struct spike *s, double *mean, double *deviation);

// The state without the rule. Numbers come back to the last bit.
json_t *spike_write(const struct spike *s); // NULL: no memory
int spike_read(struct spike *s, json_t *object, const char *where, struct err *err);
