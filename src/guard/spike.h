// Spikes of loss and gradient norm: a rule over reduced values, so that all ranks decide alike
// (silent data corruption, layer 1).
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { SPIKE_WINDOW = 128, SPIKE_RECENT = 100 };
struct spike_rule {
    double loss_factor;                      // over the moving average; 0: off
    double loss_deviations, norm_deviations; // z-score over the window; 0: off
    int warm_up;                             // accepted steps before the rule judges
    int most_in_recent; // skipped steps of the last 100 that are borne; one more: roll back
};
struct spike { // state; saved with checkpoints as JSON numbers
    struct spike_rule rule;
    double average; // of the loss, exponential
    double loss[SPIKE_WINDOW], norm[SPIKE_WINDOW];
    int64_t accepted;
    int64_t skipped[SPIKE_RECENT]; // steps, ring
    int64_t skipped_count;
};
enum spike_verdict { SPIKE_NONE, SPIKE_SKIP, SPIKE_ROLL_BACK };
// Judges a step, and takes its values into the state when it is accepted. `why` gets the figures.
enum spike_verdict spike_judge(struct spike *s, int64_t step, double loss, double gradient_norm,
                               char why[200]);
