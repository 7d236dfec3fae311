// Ranks as threads of the test, for what several of them do together.
#pragma once
#include "base/error.h"
#include "comm/comm.h"

// Runs `work` once per rank, each in a thread of its own with a stream over all of them, and waits.
// `watchdog_seconds` 0: the default.
typedef void rank_work(void *context, struct comm_stream *world, int rank);
void run_ranks(int count, double watchdog_seconds, rank_work *work, void *context);

unsigned next_random(unsigned *state);                // 24 bits
int64_t random_below(unsigned *state, int64_t limit); // 0 .. limit - 1
