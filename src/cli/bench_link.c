// weft bench link: latency and bandwidth of messages and collectives between ranks: the processes
// of a launch, or threads of this process.
#include "base/clock.h"
#include "base/numbers.h"
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "cli/options.h"
#include "comm/comm.h"
#include "operate/launched.h"
#include "train/parallel.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft launch -n RANKS bench link [options]\n"
    "       weft bench link --ranks N [options]       ranks as threads of this process\n\n"
    "The time of a message one way between the first two ranks (half of there and back), and of\n"
    "each collective over all ranks, by size: median over repetitions. Bytes are those of a\n"
    "member's piece (of the whole in an all-reduce and a broadcast); the rate is what a rank "
    "sends\n"
    "over the time.\n\n"
    "  --most BYTES         largest size (16777216)\n"
    "  --rate X             bytes/s of a simulated link between hosts\n"
    "  --latency X          seconds\n"
    "  --ranks-per-host N   what a host is for these (1)\n"
    "  --ranks N            threads of this process, where no launcher started it (2)\n"
    "  --work SECONDS       each rank works so long before each operation, and writes what it "
    "sends\n"
    "                       anew, as between the messages of a step (0)\n"
    "  --threads N          compute threads that a rank would have, for the check of cores (1)\n"
    "  --no-checksums       messages without checksums (comm.checksums: false)\n"
    "  --json\n";

enum {
    MOST_RANKS = 1024,
    MOST_SAMPLES = 200,
    WORK_SAMPLES = 40, // with work in between
    LEAST_SAMPLES = 5,
    LEAST_BYTES = 16,
    MOST_BYTES = 1 << 30
};
static const double SAMPLE_BYTES = 256e6; // so many in all of a size, within the bounds above

struct link_bench {
    int most, ranks, threads, ranks_per_host;
    double rate, latency, work;
    bool json, launched, bare;
};

struct link_rank {
    const struct link_bench *bench;
    struct comm *comm;
    struct comm_stream *world;
    unsigned char *own, *all, *scratch;
    uint64_t *offsets, *sizes; // of an all-to-all
    double samples[MOST_SAMPLES];
    int printed;
    pthread_t thread;
    struct err err;
};

static const enum comm_kind kinds[] = {COMM_SEND,       COMM_ALL_GATHER, COMM_REDUCE_SCATTER,
                                       COMM_ALL_REDUCE, COMM_ALL_TO_ALL, COMM_BROADCAST,
                                       COMM_BARRIER};

// ---- one operation

// There and back between the first two ranks; others pass.
static void ping(struct link_rank *r, uint64_t bytes) {
    int rank = comm_rank(r->comm);
    if (rank > 1) return;
    if (rank == 0) {
        comm_wait(comm_send(r->comm, 1, 1, r->own, bytes), NULL);
        comm_wait(comm_receive(r->comm, 1, 1, r->all, bytes), NULL);
    } else {
        comm_wait(comm_receive(r->comm, 0, 1, r->all, bytes), NULL);
        comm_wait(comm_send(r->comm, 0, 1, r->own, bytes), NULL);
    }
}

static void exchange(struct link_rank *r, uint64_t bytes) {
    int n = comm_stream_size(r->world);
    for (int i = 0; i < n; i++) {
        r->offsets[i] = bytes * (uint64_t)i;
        r->sizes[i] = bytes;
    }
    comm_wait(
        comm_all_to_all(r->world, r->all, r->offsets, r->sizes, r->scratch, r->offsets, r->sizes),
        NULL);
}

static void perform(struct link_rank *r, enum comm_kind kind, uint64_t bytes) {
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    int64_t elements = (int64_t)(bytes / sizeof(float));
    switch (kind) {
    case COMM_SEND:
        ping(r, bytes);
        break;
    case COMM_ALL_GATHER:
        comm_wait(comm_all_gather(r->world, r->own, r->all, bytes), NULL);
        break;
    case COMM_REDUCE_SCATTER:
        comm_wait(comm_reduce_scatter(r->world, r->all, r->scratch, r->own, elements, &sum), NULL);
        break;
    case COMM_ALL_REDUCE:
        comm_wait(comm_all_reduce(r->world, r->own, r->scratch, elements, &sum), NULL);
        break;
    case COMM_ALL_TO_ALL:
        exchange(r, bytes);
        break;
    case COMM_BROADCAST:
        comm_wait(comm_broadcast(r->world, 0, r->own, bytes), NULL);
        break;
    default:
        comm_wait(comm_barrier(r->world), NULL);
        break;
    }
}

// What a rank sends in it (the first one in a broadcast to two, the most that anybody sends).
static double sent_bytes(enum comm_kind kind, int ranks, uint64_t bytes) {
    double b = (double)bytes, n = ranks;
    switch (kind) {
    case COMM_ALL_REDUCE:
        return 2 * (n - 1) / n * b;
    case COMM_SEND:
    case COMM_BROADCAST:
        return b;
    case COMM_BARRIER:
        return 0;
    default:
        return (n - 1) * b;
    }
}

// ---- all of them

static void print(struct link_rank *r, enum comm_kind kind, uint64_t bytes, double seconds) {
    double rate = sent_bytes(kind, comm_size(r->comm), bytes) / seconds;
    const char *way = kind == COMM_SEND ? "" : comm_algorithm(r->world, kind, bytes);
    if (comm_rank(r->comm) != 0) return;
    if (r->bench->json)
        printf("%s\n {\"kind\": \"%s\", \"bytes\": %llu, \"seconds\": %.9f, \"bytes_per_second\": "
               "%.0f, \"algorithm\": \"%s\"}",
               r->printed++ ? "," : "", comm_kind_name(kind), (unsigned long long)bytes, seconds,
               rate, way);
    else
        printf("%-16s %12llu %14.1f %14.1f   %s\n", comm_kind_name(kind), (unsigned long long)bytes,
               seconds * 1e6, rate / 1e6, way);
    fflush(stdout);
}

// Whoever drives the messages sleeps by then, and the data lies where a computation left it.
static void work(struct link_rank *r, uint64_t bytes) {
    double until = clock_seconds() + r->bench->work;
    if (r->bench->work <= 0) return;
    memset(r->own, 0, bytes);
    if (bytes * (uint64_t)comm_size(r->comm) <= (uint64_t)r->bench->most)
        memset(r->all, 0, bytes * (uint64_t)comm_size(r->comm));
    while (clock_seconds() < until) continue;
}

static int measure(struct link_rank *r, enum comm_kind kind, uint64_t bytes, struct err *err) {
    int samples = (int)(SAMPLE_BYTES / (double)(bytes + 1));
    if (samples > MOST_SAMPLES) samples = MOST_SAMPLES;
    if (r->bench->work > 0 && samples > WORK_SAMPLES) samples = WORK_SAMPLES;
    if (samples < LEAST_SAMPLES) samples = LEAST_SAMPLES;
    perform(r, kind, bytes); // to warm up
    comm_wait(comm_barrier(r->world), NULL);
    for (int i = 0; i < samples; i++) {
        work(r, bytes);
        double begin = clock_seconds();
        perform(r, kind, bytes);
        r->samples[i] = (clock_seconds() - begin) / (kind == COMM_SEND ? 2 : 1);
    }
    comm_wait(comm_barrier(r->world), NULL);
    if (comm_check(r->comm, err) != 0) return -1;
    print(r, kind, bytes, numbers_median(r->samples, (size_t)samples));
    return 0;
}

static int measure_all(struct link_rank *r, struct err *err) {
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (uint64_t bytes = LEAST_BYTES; bytes <= (uint64_t)r->bench->most; bytes *= 16) {
            if (measure(r, kinds[k], bytes, err) != 0) return -1;
            if (kinds[k] == COMM_BARRIER) break;
        }
    return 0;
}

static int allocate(struct link_rank *r, struct err *err) {
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    size_t most = (size_t)r->bench->most, n = (size_t)comm_size(r->comm), scratch = most * n;
    uint64_t needed = comm_all_reduce_scratch(r->world, (int64_t)(most / sizeof(float)), &sum);
    if (needed > scratch) scratch = needed;
    needed = comm_reduce_scatter_scratch(r->world, (int64_t)(most / sizeof(float)), &sum);
    if (needed > scratch) scratch = needed;
    r->own = calloc(1, most);
    r->all = calloc(n, most);
    r->scratch = malloc(scratch);
    r->offsets = calloc(n, sizeof *r->offsets);
    r->sizes = calloc(n, sizeof *r->sizes);
    if (!r->own || !r->all || !r->scratch || !r->offsets || !r->sizes)
        return err_set(err, ERR_MEMORY,
                       "bench link: no memory for messages of %zu bytes to %zu "
                       "ranks; a smaller --most helps",
                       most, n);
    memset(r->scratch, 0, scratch);
    return 0;
}

static int run_rank(struct link_rank *r, struct err *err) {
    int n = comm_size(r->comm);
    r->world = parallel_world(r->comm, "link", err);
    if (!r->world || allocate(r, err) != 0) return -1;
    if (comm_rank(r->comm) == 0) {
        if (r->bench->json)
            printf("{\"ranks\": %d, \"library\": \"%s\", \"messages\": [", n,
                   r->bench->launched ? comm_library() : "threads");
        else
            printf("%d ranks, %s\n%-16s %12s %14s %14s\n", n,
                   r->bench->launched ? comm_library() : "threads of one process", "", "bytes",
                   "microseconds", "MB/s");
    }
    if (measure_all(r, err) != 0) return -1;
    if (comm_rank(r->comm) == 0 && r->bench->json) printf("\n]}\n");
    return 0;
}

static void close_rank(struct link_rank *r) {
    comm_stream_close(r->world);
    free(r->own);
    free(r->all);
    free(r->scratch);
    free(r->offsets);
    free(r->sizes);
}

// ---- ranks as processes, and as threads

static void comm_options_of(const struct link_bench *b, int expected, struct comm_options *out) {
    *out = (struct comm_options){.link_bytes_per_second = b->rate,
                                 .link_latency_seconds = b->latency,
                                 .ranks_per_host =
                                     b->rate > 0 || b->latency > 0 ? b->ranks_per_host : 0,
                                 .expected_ranks = expected,
                                 .checksums = !b->bare};
}

static int run_process(const struct link_bench *b, int ranks) {
    static struct link_rank r;
    struct comm_options options;
    struct err err = {0};
    comm_options_of(b, ranks, &options);
    r = (struct link_rank){.bench = b};
    int result = comm_open_mpi(&r.comm, &options, &err);
    if (result == 0) result = run_rank(&r, &err);
    if (result != 0) {
        bool told = r.comm && comm_failed_elsewhere(r.comm);
        int status = told ? err_exit_status(&err) : cli_fail(&err);
        if (r.comm) {
            comm_fail(r.comm, &err);
            comm_abort(r.comm, status);
        }
        return status;
    }
    close_rank(&r);
    comm_close(r.comm);
    return 0;
}

static void *thread_main(void *argument) {
    struct link_rank *r = argument;
    if (run_rank(r, &r->err) != 0) comm_fail(r->comm, &r->err);
    return NULL;
}

static int run_threads(const struct link_bench *b, struct link_rank *rank, struct comm **ends,
                       struct err *err) {
    struct comm_options options;
    int started = 0, result = 0;
    comm_options_of(b, 0, &options);
    if (comm_open_threads(ends, b->ranks, &options, err) != 0) return -1;
    for (; started < b->ranks && result == 0; started++) {
        rank[started] = (struct link_rank){.bench = b, .comm = ends[started]};
        if (pthread_create(&rank[started].thread, NULL, thread_main, &rank[started]) != 0) {
            result = err_set(err, ERR_MEMORY, "bench link: no thread for rank %d", started);
            comm_fail(ends[started], err);
            break;
        }
    }
    for (int i = 0; i < started; i++) pthread_join(rank[i].thread, NULL);
    for (int i = 0; i < started; i++) {
        if (rank[i].err.kind && result == 0)
            result = err_set(err, rank[i].err.kind, "%s", rank[i].err.text);
        close_rank(&rank[i]);
    }
    for (int i = 0; i < b->ranks; i++) comm_close(ends[i]);
    return result;
}

static int run_here(const struct link_bench *b) {
    struct err err = {0};
    struct link_rank *ranks = calloc((size_t)b->ranks, sizeof *ranks);
    struct comm **ends = calloc((size_t)b->ranks, sizeof(struct comm *));
    int result = ranks && ends ? run_threads(b, ranks, ends, &err)
                               : err_set(&err, ERR_MEMORY, "no memory for the ranks");
    free(ranks);
    free(ends);
    return result == 0 ? 0 : cli_fail(&err);
}

static int check(const struct link_bench *b, struct err *err) {
    if (b->ranks > MOST_RANKS || b->most > MOST_BYTES)
        return err_set(err, ERR_USAGE,
                       "bench link: --ranks %d, --most %d: expected at most %d and %d", b->ranks,
                       b->most, MOST_RANKS, MOST_BYTES);
    if (b->work < 0 || b->work > 1)
        return err_set(err, ERR_USAGE, "bench link: --work %g: expected 0 to 1 s", b->work);
    if (b->rate < 0 || b->latency < 0 || b->latency > 10)
        return err_set(err, ERR_USAGE,
                       "bench link: --rate %g, --latency %g: expected 0 or more, and 0 to 10",
                       b->rate, b->latency);
    return 0;
}

int bench_link(int argc, char **argv) {
    struct link_bench b = {.most = 1 << 24, .ranks = 2, .threads = 1, .ranks_per_host = 1};
    const struct option options[] = {
        {"--most", OPTION_COUNT, &b.most, LEAST_BYTES},
        {"--rate", OPTION_NUMBER, &b.rate, 0},
        {"--latency", OPTION_NUMBER, &b.latency, 0},
        {"--work", OPTION_NUMBER, &b.work, 0},
        {"--ranks-per-host", OPTION_COUNT, &b.ranks_per_host, 1},
        {"--ranks", OPTION_COUNT, &b.ranks, 2},
        {"--threads", OPTION_THREADS, &b.threads, 1},
        {"--no-checksums", OPTION_FLAG, &b.bare, 0},
        {"--json", OPTION_FLAG, &b.json, 0},
    };
    struct launch_environment launched;
    struct err err = {0};
    int words, got = options_read(argc, argv, options, sizeof options / sizeof options[0], NULL, 0,
                                  &words, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = check(&b, &err);
    if (got == 0) got = cli_launched(&launched, false, &err);
    if (got == 0) got = launched_check(&launched, comm_library(), &err);
    if (got != 0) return cli_fail(&err);
    b.launched = launched.ranks > 1;
    return b.launched ? run_process(&b, launched.ranks) : run_here(&b);
}
