// What the parts of sizing reinforcement learning share.
#pragma once
#include "plan/size.h"

// A replica that generates.
struct size_generator {
    double weight_bytes, kv_bytes; // of the weights; of a token of cache
    double expert_bytes, missed;   // of the weights, experts; their share that one token leaves out
    double bandwidth, rate;        // of the replica: bytes/s, FLOP/s
    double flops_per_token;        // forward
    int most_sequences;            // whose whole cache fits beside the weights
};
void size_generator_of(const struct size_rlhf *in, struct size_generator *out);
// Weights that a step of so many sequences reads: an expert only where some token visits it (tokens
// choose evenly and each for itself).
double size_weights_read(const struct size_generator *g, double sequences);
// Of one decoding step: reading, or computing where a large batch makes that longer.
double size_token_seconds(const struct size_generator *g, double sequences, double context);
// From prompts to whole answers of `sequences` at once.
double size_wave_seconds(const struct size_rlhf *in, const struct size_generator *g,
                         double sequences);
