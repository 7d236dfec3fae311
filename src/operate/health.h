// Is this machine fit to compute? Each check says what it measured; none needs a run.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>

enum { HEALTH_CHECKS_MOST = 32 };
struct health_options {
    double gemm_seconds;   // per type; results are compared bit by bit with those of a first pass,
                           // and a sample of them with the plain reference
    uint64_t memory_bytes; // written and read with patterns; 0: 256 MB
    const char *folder;    // for a file that is written, synced, read, compared; NULL: no disk
    const char *const *peers; // "host:port" of agents, for latency, rate and damaged bytes
    int peer_count;
    double least_gemm_share, least_link_bytes_per_second; // of the expected; 0: only told
};
struct health_check {
    char name[64]; // "gemm fp32", "memory", "disk /x", "link node3", "ecc"
    bool passed;
    char found[256]; // "312 GFLOP/s, 64 results equal"
};
struct health {
    struct health_check checks[HEALTH_CHECKS_MOST];
    int count;
    bool passed;
    double seconds;
};
int health_run(const struct health_options *options, struct health *out, struct err *err);
json_t *health_json(const struct health *health);
