// A cluster of namespaces (tests/cluster/cluster) as tests use it. Each test has one of its own,
// which goes down with it.
#pragma once
#include "test.h"

extern char cluster_out[1 << 20]; // what the last command said

// "CLUSTER=... tests/cluster/cluster": the words in front of a verb of the script.
const char *cluster(void);
const char *cluster_environment(void); // the same without owner and script
const char *cluster_folder(void);      // that all hosts see
void cluster_need(void);               // skips the test where there can be none
void cluster_need_mpi(void);
void cluster_long_trial(void); // skips it in `make test`; `make test-cluster` plays all
void cluster_up(int hosts, const char *rate);

// Runs a command line; a fault ends the test with what it said.
#define RUN(...) cluster_run(__FILE__, __LINE__, __VA_ARGS__)
void cluster_run(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
