// The benchmarks of `weft bench`, each in a file bench_<name>.c. argv[0] is "bench NAME";
// returns the exit status. A new one is a line here and a line in the table of verb_bench.c.
#pragma once
#include "cli/options.h"
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

// What a benchmark of one configuration is told beside its options.
enum { BENCH_MOST_SETTINGS = 64 };
struct bench_target {
    const char *config;
    char *settings[BENCH_MOST_SETTINGS]; // key=value, of argv
    int setting_count;
};
// As options_read; the words that are no options are one CONFIG, which has to be there, and
// settings.
int bench_target_read(struct bench_target *target, int argc, char **argv,
                      const struct option *options, int count, struct err *err);

// Random tokens and targets, plain causal rows; places and sizes are there (batch_place).
void bench_fill_batch(struct batch *b, int vocab, uint64_t seed);
