// The order in which a set's samples are drawn: which sample stands at place p of epoch e. A
// function of the seed, the epoch and the place alone; every epoch holds every sample once.
#pragma once
#include "base/error.h"
#include "data/loader.h"
#include <stdint.h>

struct order {
    enum loader_shuffle shuffle;
    uint64_t key;    // of the seed and the set
    uint64_t window; // samples, SHUFFLE_SHARD
    uint32_t shards;
    const uint64_t *first; // [shards + 1] first sample of each shard
};

// Working memory of a thread: SHUFFLE_SHARD keeps the order of shards of one epoch.
struct order_space {
    uint64_t epoch;  // UINT64_MAX: none yet
    uint32_t *shard; // [shards] in drawing order
    uint64_t *place; // [shards + 1] place at which each begins
};
int order_space_open(struct order_space *space, const struct order *order, struct err *err);
void order_space_close(struct order_space *space);

// The sample, and in *next_shard the shard whose turn is next (the same shard when it is the last
// of the epoch).
uint64_t order_sample(const struct order *order, struct order_space *space, uint64_t epoch,
                      uint64_t place, uint32_t *next_shard);
// Shard that a sample begins in.
uint32_t order_shard_of(const struct order *order, uint64_t sample);
