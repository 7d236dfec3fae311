// What `weft simulate run` is asked: options, a YAML file with the same words, a cluster, a plan.
#pragma once
#include "base/error.h"
#include "simulate/runs_report.h"

struct simulate_request {
    struct runs_report report; // upper half
    int count;                 // runs by chance
    bool json, pessimistic;
    const char *svg; // file to write, or NULL
};
// Fills the request, whose texts live until simulate_input_close. 1: --help was asked for.
struct simulate_input;
int simulate_input_read(int argc, char **argv, struct simulate_input **input,
                        struct simulate_request *out, struct err *err);
void simulate_input_close(struct simulate_input *input);
