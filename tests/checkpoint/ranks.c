#include "ranks.h"
#include "test.h"
#include <pthread.h>

enum { MOST_RANKS = 16 };

struct one {
    struct comm *comm;
    int rank, count;
    rank_work *work;
    void *context;
};

static void *run_one(void *argument) {
    struct one *one = argument;
    int members[MOST_RANKS];
    struct err err = {0};
    for (int i = 0; i < one->count; i++) members[i] = i;
    struct comm_stream *world = comm_stream_open(one->comm, "world", members, one->count, &err);
    if (!world) test_fail(__FILE__, __LINE__, "%s", err.text);
    one->work(one->context, world, one->rank);
    comm_stream_close(world);
    comm_close(one->comm);
    return NULL;
}

void run_ranks(int count, double watchdog_seconds, rank_work *work, void *context) {
    struct comm *ends[MOST_RANKS];
    struct one ones[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    struct err err = {0};
    struct comm_options options = {.watchdog_seconds = watchdog_seconds};
    CHECK(count <= MOST_RANKS);
    CHECK_OK(comm_open_threads(ends, count, &options, &err), err);
    for (int i = 0; i < count; i++) {
        ones[i] = (struct one){ends[i], i, count, work, context};
        CHECK(pthread_create(&threads[i], NULL, run_one, &ones[i]) == 0);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

int64_t random_below(unsigned *state, int64_t limit) {
    return (int64_t)next_random(state) % limit;
}
