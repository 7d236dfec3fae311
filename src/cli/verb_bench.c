// weft bench NAME: measures a part of the program on this machine.
#include "base/affinity.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bench {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} benches[] = {
    {"attention", bench_attention,
     "tiled attention against the product rate, and against storing the scores"},
    {"checkpoint", bench_checkpoint,
     "how long a save holds the run up, how soon it is durable, how fast it is loaded"},
    {"faults", bench_faults, "bits that flip in a small run: what is found, and how soon"},
    {"control", bench_control, "the supervisor's share of a core for the heartbeats of many ranks"},
    {"guards", bench_guards, "what the checksums of weights, gradients and optimizer state cost"},
    {"hardware", bench_hardware, "measures this machine, for predictions of runs on it"},
    {"hosts", bench_hosts, "tensor parallelism inside a host, and across hosts on slow links"},
    {"link", bench_link, "messages and collectives between ranks: time and rate by size"},
    {"loader", bench_loader, "micro-batches from shards, in every mode and order"},
    {"overlap", bench_overlap,
     "how much of the traffic of data parallelism hides behind compute on a slow link"},
    {"predict", bench_predict, "predictions from bench hardware beside runs on this machine"},
    {"ranks", bench_ranks, "a step by one process of several threads, and by ranks of one thread"},
    {"schedule", bench_schedule,
     "step time of every pipeline schedule in slow motion, and its simulation"},
    {"soak", bench_soak, "useful time of a run under faults (scripts/soak), beside the formula"},
    {"step", bench_step,
     "a training step: tokens per second, MFU, memory, seconds by kernel group"},
    {"gemm", bench_gemm,
     "matrix products and the kernels between them: rates, share of the bandwidth"},
    {"tokenizer", bench_tokenizer, "text to ids, and learning a vocabulary"},
    {NULL, NULL, NULL},
};

static void print_help(FILE *to) {
    fprintf(to, "usage: weft bench NAME [options] [--json]\n\n");
    for (const struct bench *b = benches; b->name; b++)
        fprintf(to, "  %-12s %s\n", b->name, b->summary);
    fprintf(to, "\nweft bench NAME --help describes one of them\n");
}

// Every benchmark that has threads calls the option so; it says itself what is wrong with a value.
static int threads_of(int argc, char **argv) {
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], "--threads") == 0) return atoi(argv[i + 1]);
    return 0;
}

static int run_bench(const struct bench *bench, int argc, char **argv) {
    struct err err = {0};
    struct launch_environment launched;
    int threads = threads_of(argc, argv);
    if (cli_launched(&launched, false, &err) != 0 ||
        affinity_check(&launched, cli_threads(&launched, threads), &err) != 0)
        return cli_fail(&err);
    cli_settle_threads(&launched, threads);
    char title[40];
    snprintf(title, sizeof title, "bench %s", bench->name);
    argv[1] = title;
    return bench->run(argc - 1, argv + 1);
}

int verb_bench(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return 0;
    }
    const char *names[sizeof benches / sizeof *benches];
    size_t count = 0;
    for (const struct bench *b = benches; b->name; b++) {
        if (strcmp(b->name, argv[1]) == 0) return run_bench(b, argc, argv);
        names[count++] = b->name;
    }
    const char *nearest = text_nearest(argv[1], names, count);
    struct err err = {0};
    err_set(&err, ERR_USAGE, "unknown benchmark \"%s\"%s%s%s", argv[1],
            nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    return cli_fail(&err);
}
