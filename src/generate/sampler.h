// Choosing the next token from logits. The choice at a position is a pure function of the logits,
// the options and (seed, position): no state runs along, so a text can be continued or repeated
// from any place.
//
// Order of the filters, as usual elsewhere: temperature, then top-k, then top-p over what top-k
// left (Holtzman et al. 2020: the smallest set of the most probable tokens whose share reaches p).
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct sampler_options {
    bool greedy;        // the most probable token; the lowest id among equals
    double temperature; // > 0; 0 means greedy
    int top_k;          // 0: off
    double top_p;       // (0, 1]; 1: off
    uint64_t seed;
};

struct sampler;
struct sampler *sampler_open(const struct sampler_options *options, int vocab, struct err *err);
void sampler_close(struct sampler *s);

// Id for the token at `position` (counted from the beginning of the text). -1 with a message when a
// logit is NaN or all are minus infinity.
int32_t sampler_pick(struct sampler *s, const float *logits, int64_t position, struct err *err);
