#include "ranks.h"
#include <pthread.h>
#include <stdlib.h>

struct start {
    struct rank_case rank;
    rank_body *body;
};

static void *run_one(void *argument) {
    struct start *start = argument;
    start->body(&start->rank);
    comm_close(start->rank.comm);
    return NULL;
}

void ranks_run(int size, const struct comm_options *options, rank_body *body, void *context) {
    struct comm *ends[64];
    struct start starts[64];
    pthread_t threads[64];
    struct err err = {0};
    CHECK(size <= 64);
    CHECK_OK(comm_open_threads(ends, size, options, &err), err);
    for (int i = 0; i < size; i++) {
        starts[i] = (struct start){{ends[i], i, size, context}, body};
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, run_one, &starts[i]), 0);
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
}

struct comm_stream *ranks_stream(struct rank_case *rank, const char *name) {
    int members[64];
    struct err err = {0};
    for (int i = 0; i < rank->size; i++) members[i] = i;
    struct comm_stream *s = comm_stream_open(rank->comm, name, members, rank->size, &err);
    if (!s) test_fail(__FILE__, __LINE__, "%s", err.text);
    return s;
}

void ranks_check(struct rank_case *rank) {
    struct err err = {0};
    CHECK_OK(comm_check(rank->comm, &err), err);
}

float ranks_value(int r, int64_t i) {
    uint64_t x = ((uint64_t)i * 1000003u + (uint64_t)r + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    float unit = (float)(int64_t)(x >> 40) / 16777216.0f - 0.5f;
    return unit * (float)(1 << (x & 15));
}
