// Mixing of several sets: which set does the n-th sample of the run come from?
//
// A weight is a share of drawn samples. Sets are split off one after the other: of n draws, the
// first set has had round(share * n); what is left is divided among the others in the same way. So
// every prefix of the draws is within about two samples of its shares, counts are exact whenever the
// shares come out whole, and any n is answered in O(sets) from integers alone.
#pragma once
#include "base/error.h"
#include <stdint.h>

enum { MIX_MAX_SETS = 64 };

struct mix {
    int count;
    uint64_t share[MIX_MAX_SETS]; // of what the sets before it left over, in units of 2^-63
};
int mix_open(struct mix *mix, const double *weights, int count, struct err *err);
// Set of draw `n`, and how many draws it had before.
int mix_pick(const struct mix *mix, uint64_t n, uint64_t *before);
// Draws that a set gets among the first `n`.
uint64_t mix_draws(const struct mix *mix, int set, uint64_t n);
