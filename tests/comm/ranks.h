// Runs the ranks of a small world as threads of the test.
#pragma once
#include "comm/comm.h"
#include "test.h"

struct rank_case {
    struct comm *comm;
    int rank, size;
    void *context;
};
typedef void rank_body(struct rank_case *rank);
// Opens a world, runs the body on one thread per rank, closes. A body closes its streams.
void ranks_run(int size, const struct comm_options *options, rank_body *body, void *context);
// The stream "all" of all ranks.
struct comm_stream *ranks_stream(struct rank_case *rank, const char *name);
void ranks_check(struct rank_case *rank); // fails the test when the world has failed
// Element `i` of rank `r` in a test's data: of widely differing size, so that sums round.
float ranks_value(int r, int64_t i);
// All bodies of collective.c, with small messages: what every transport must pass.
void collectives_on(struct rank_case *rank);
void points_on(struct rank_case *rank);
