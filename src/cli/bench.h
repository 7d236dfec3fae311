// The benchmarks of `weft bench`, each in a file bench_<name>.c. argv[0] is the benchmark's name;
// returns the exit status. A new one is a line here and a line in the table of verb_bench.c.
#pragma once
#include "data/batch.h"

int bench_attention(int argc, char **argv);
int bench_checkpoint(int argc, char **argv);
int bench_faults(int argc, char **argv);
int bench_control(int argc, char **argv);
int bench_gemm(int argc, char **argv);
int bench_guards(int argc, char **argv);
int bench_hardware(int argc, char **argv);
int bench_hosts(int argc, char **argv);
int bench_link(int argc, char **argv);
int bench_loader(int argc, char **argv);
int bench_overlap(int argc, char **argv);
int bench_predict(int argc, char **argv);
int bench_ranks(int argc, char **argv);
int bench_schedule(int argc, char **argv);
int bench_soak(int argc, char **argv);
int bench_step(int argc, char **argv);
int bench_tokenizer(int argc, char **argv);

// Random tokens and targets, plain causal rows; places and sizes are there (batch_place).
void bench_fill_batch(struct batch *b, int vocab, uint64_t seed);
