// Mixing of several sets: which set does the n-th sample of the run come from?
//
// A weight is a share of drawn samples. The sets are halved by weight again and again: of the n
// draws that reach a group, its first half has had round(share * n). So every prefix of the draws
// is within about one sample of its shares, counts are exact whenever the shares come out whole,
// and any n is answered in a few integer steps, without walking there.
#pragma once
#include "base/error.h"
#include <stdint.h>

enum { MIX_MAX_SETS = 64 };

struct mix {
    int count;
    struct mix_node {   // a group of sets; the first half's node follows it
        uint64_t share; // of the first half, in units of 2^-63
        int begin, middle, end;
    } nodes[2 * MIX_MAX_SETS];
};
int mix_open(struct mix *mix, const double *weights, int count, struct err *err);
// Set of draw `n`, and how many draws it had before.
int mix_pick(const struct mix *mix, uint64_t n, uint64_t *before);
// Draws that a set gets among the first `n`.
uint64_t mix_draws(const struct mix *mix, int set, uint64_t n);
