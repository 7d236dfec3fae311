// A small state spread over ranks at random, for tests of checkpoints of several ranks.
#pragma once
#include "base/slice.h"
#include "checkpoint/checkpoint.h"
#include "ranks.h"

enum { SPREAD_TENSORS = 8, SPREAD_MOST_RANKS = 8, SPREAD_MOST_SLICES = 1000 };

struct spread { // which rank holds what
    int ranks;
    struct tensor_slice *slices[SPREAD_MOST_RANKS];
    int counts[SPREAD_MOST_RANKS];
    uint64_t bytes[SPREAD_MOST_RANKS]; // that it holds
};

extern const struct tensor spread_tensors[SPREAD_TENSORS];

// Boxes cut at random, each held by one rank or by several as copies; rows lie apart in memory.
void spread_random(struct spread *s, int ranks, unsigned *state);
// Every tensor cut into runs of elements of the whole order, as sharded optimizer states are.
void spread_runs(struct spread *s, int ranks);
// Pieces of one row and at most six columns, dealt out one by one.
void spread_crumbs(struct spread *s, int ranks);
void spread_fill(struct spread *s, int64_t step); // with the values of that step, NaN between rows
void spread_clear(struct spread *s);
void spread_check(const struct spread *s, int rank,
                  int64_t step); // the values, and what lies between
void spread_free(struct spread *s);

// The stored bytes of an element, by its place alone.
void spread_value(const struct tensor *t, int64_t step, int64_t index, void *out);

// One rank's part of a save with a step's state, and what it says.
int spread_save(const char *folder, const struct spread *s, int rank, int64_t step,
                uint64_t part_bytes, struct comm_stream *world, struct checkpoint_saved *saved,
                struct err *err);
