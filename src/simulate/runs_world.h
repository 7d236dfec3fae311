// The state of one run by chance; see runs_world.c.
#pragma once
#include "simulate/runs_parts.h"

// A run with more failures is cut, or that takes so many times its work: it hardly goes on.
enum { RUNS_MOST_FAILURES = 200000, RUNS_MOST_TIMES = 50 };

struct runs_world {
    const struct runs *runs;
    uint64_t key, counter; // of the random numbers
    double interval, total, shape, weibull_mean;

    double now;
    double until_failure, until_straggler; // in expected numbers of them
    double done, durable;                  // useful seconds: behind us, in the newest checkpoint
    double since;                          // of `done`, since the last snapshot
    bool pending;                          // a snapshot is being written
    double snapshot, written_at;
    bool held; // the next snapshot waits for the one that is being written
    bool saving;
    double saving_left;
    bool closing, finished; // all steps done, the last checkpoint not yet; the run's end

    bool slow;
    double slow_left; // until the straggler is found

    int running, spare;
    double *repairs; // when each node under repair is back
    double first_back;
    int repairing, repair_capacity, peak_repair;

    double seconds[RUNS_CAUSES];
    int64_t failures, stragglers, taken_out, found_spare, waits;
};
// Of the run's random numbers: a function of the seed and the run's number.
uint64_t runs_key(uint64_t seed, int number);
// `repairs` and its capacity are kept from the run before; begin with zeros and free it.
void runs_world_start(struct runs_world *w, const struct runs *runs, uint64_t key);
// -1: no memory.
int runs_world_go(struct runs_world *w, double most_seconds);
