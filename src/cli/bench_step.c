// weft bench step CONFIG: training steps on random tokens, and where their time and memory go, in
// one process or under weft launch. No data is read, so that the figure is the engine's own;
// everything is counted as docs/definitions.md says.
#include "cli/bench_step.h"
#include "base/affinity.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/launched.h"
#include "observe/resident.h"
#include "operate/launched.h"
#include "train/parallel.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP_STEPS = 2, MOST_STEPS = 1000, TRACE_SPANS = 1 << 20 };

static const char help[] =
    "usage: weft bench step CONFIG [key=value ...] [--steps N] [--warm-up N] [--json]\n"
    "       weft launch -n RANKS bench step CONFIG ...\n\n"
    "Runs N (5) timed training steps of the configured model on random tokens, after two to warm\n"
    "up, and prints tokens/s, model FLOP/s and their share of the best GEMM rate (measured before\n"
    "and after in this process), planned and resident memory, and seconds by phase and by group\n"
    "of kernels. The time is the median over the steps.\n\n"
    "Of several ranks: tokens/s of all together at the pace of the slowest, memory of each, and\n"
    "for every stream and kind of message the seconds in flight and those exposed, mean over the\n"
    "ranks. train.gemm_seconds=0 leaves the GEMM rate out. Refuses to start where ranks have more "
    "threads than cores. train.trace writes the\n"
    "timeline of every rank.\n";

struct arguments {
    struct bench_target target;
    int steps, warm_up;
    bool json;
};

// A measurement in progress.
struct bench {
    const struct arguments *arguments;
    struct train_config *config;
    struct comm *comm;         // NULL: one process
    struct comm_stream *world; // NULL: one process
    int rank;
    struct layout layout;
    struct engine_parallel parallel;
    char *schedule_csv;
    struct record_lane lane;
    struct device device;
    struct model model;
    struct engine *engine;
    struct batch *batches, **list;
    struct bench_rank own;
    struct bench_step out;
};

static int read_arguments(int argc, char **argv, struct arguments *a, struct err *err) {
    const struct option options[] = {
        {"--steps", OPTION_COUNT, &a->steps, 1},
        {"--warm-up", OPTION_COUNT, &a->warm_up, 0},
        {"--json", OPTION_FLAG, &a->json, 0},
    };
    *a = (struct arguments){.steps = 5, .warm_up = WARM_UP_STEPS};
    int got =
        bench_target_read(&a->target, argc, argv, options, sizeof options / sizeof options[0], err);
    if (got == 0 && (a->steps > MOST_STEPS || a->warm_up > MOST_STEPS))
        return err_set(err, ERR_USAGE,
                       "bench step: --steps %d, --warm-up %d: expected at most %d of each",
                       a->steps, a->warm_up, MOST_STEPS);
    return got;
}

// ---- steps --------------------------------------------------------------------------------------

static void add_messages(struct bench *b, double factor) {
    int count = engine_stream_count(b->engine);
    engine_settle(b->engine);
    for (int s = 0; s < count && s < BENCH_STREAMS; s++)
        for (int k = 0; k < COMM_KIND_COUNT; k++) {
            struct comm_counts c, *to = &b->own.messages[s][k];
            engine_stream_counts(b->engine, s, (enum comm_kind)k, &c);
            to->operations = c.operations - to->operations;
            to->bytes = c.bytes - to->bytes;
            to->queued_seconds = (c.queued_seconds - to->queued_seconds) * factor;
            to->in_flight_seconds = (c.in_flight_seconds - to->in_flight_seconds) * factor;
            to->exposed_seconds = (c.exposed_seconds - to->exposed_seconds) * factor;
        }
}

static void divide_messages(struct bench *b, int steps) {
    for (int s = 0; s < BENCH_STREAMS; s++)
        for (int k = 0; k < COMM_KIND_COUNT; k++) {
            b->own.messages[s][k].operations /= (uint64_t)steps;
            b->own.messages[s][k].bytes /= (uint64_t)steps;
        }
}

static int run_steps(struct bench *b, struct err *err) {
    static double times[MOST_STEPS];
    int warm_up = b->arguments->warm_up, steps = b->arguments->steps;
    const struct train_config *c = b->config;
    struct record_lane at_start = {0};
    for (int s = 0; s < warm_up + steps; s++) {
        if (s == warm_up) {
            add_messages(b, 1); // what was before is taken away at the end
            at_start = b->lane;
        }
        double begin = clock_seconds();
        b->out.last = (struct engine_step){
            .learning_rate = c->learning_rate, .clip_norm = c->clip, .update = s + 1};
        if (engine_run_step(b->engine, b->list, config_micro_batches(c), &b->out.last, err) != 0)
            return -1;
        if (s >= warm_up) times[s - warm_up] = clock_seconds() - begin;
    }
    for (int k = 0; k < RECORD_KIND_COUNT; k++) // before the messages, which are waited for
        b->own.seconds[k] = (b->lane.seconds[k] - at_start.seconds[k]) / steps;
    add_messages(b, 1.0 / steps);
    divide_messages(b, steps);
    b->own.step_seconds = numbers_median(times, (size_t)steps);
    return 0;
}

// The best rate of all ranks together, which multiply at the same time.
static double measure_rate(struct bench *b) {
    enum dtype type = b->config->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    if (b->config->gemm_seconds <= 0) return 0;
    if (b->world) comm_wait(comm_barrier(b->world), NULL);
    double rate = device_gemm_rate(&b->device, type, b->config->gemm_seconds);
    if (b->world) comm_sum_doubles(b->world, &rate, 1);
    return rate;
}

static int place_batches(struct bench *b, uint64_t each, struct err *err) {
    const struct train_config *c = b->config;
    int count = config_micro_batches(c), at[MESH_AXES];
    mesh_at(&b->layout.mesh, b->rank, at);
    b->batches = calloc((size_t)count, sizeof *b->batches);
    b->list = calloc((size_t)count, sizeof *b->list);
    if (!b->batches || !b->list) return err_set(err, ERR_MEMORY, "no memory for the batches");
    for (int m = 0; m < count; m++) {
        batch_place(&b->batches[m], (char *)engine_other_memory(b->engine) + each * (uint64_t)m,
                    c->micro_batch, c->context);
        bench_fill_batch(&b->batches[m], c->model.vocab, (uint64_t)(at[MESH_DP] * count + m) + 1);
        b->list[m] = &b->batches[m];
    }
    return 0;
}

static int measure(struct bench *b, struct err *err) {
    struct engine_options options;
    config_engine(b->config, &options);
    options.parallel = &b->parallel;
    options.snapshots = 0; // nothing is saved
    uint64_t each = batch_bytes(options.rows * options.context);
    options.other_bytes = each * (uint64_t)options.micro_batches;
    // Before any of the run's memory exists: the rate, and what a process holds that has opened MPI
    // and multiplied once.
    b->out.rate_before = measure_rate(b);
    b->own.base_pss = resident_pss_bytes();
    b->engine = engine_open(&b->model, &b->device, &options, err);
    if (!b->engine) return -1;
    engine_initialise(b->engine, (uint64_t)b->config->seed);
    if (place_batches(b, each, err) != 0 || run_steps(b, err) != 0) return -1;
    const struct memory_plan *plan = engine_memory(b->engine);
    b->own.peak_pss = resident_peak_pss_bytes();
    b->own.planned = plan->total_bytes;
    b->own.allocated = engine_allocated_bytes(b->engine);
    for (int k = 0; k < BUFFER_KIND_COUNT; k++)
        b->own.planned_by_kind[k] = memory_plan_kind_bytes(plan, k);
    b->out.rate_after = measure_rate(b);
    return 0;
}

// ---- figures of all ranks -----------------------------------------------------------------------

static int gather(struct bench *b, struct err *err) {
    struct bench_step *out = &b->out;
    out->rank = calloc((size_t)out->ranks, sizeof *out->rank);
    if (!out->rank) return err_set(err, ERR_MEMORY, "no memory for the figures");
    out->rank[0] = b->own;
    if (!b->world) return 0;
    comm_wait(comm_all_gather(b->world, &b->own, out->rank, sizeof b->own), NULL);
    return comm_check(b->comm, err);
}

static void derive(struct bench *b) {
    const struct train_config *c = b->config;
    struct bench_step *out = &b->out;
    double rate = out->rate_before > out->rate_after ? out->rate_before : out->rate_after;
    for (int r = 0; r < out->ranks; r++)
        if (out->rank[r].step_seconds > out->step_seconds)
            out->step_seconds = out->rank[r].step_seconds;
    out->recompute_flops = engine_recompute_flops(&c->model, c->recompute, c->context);
    struct mfu_step step = {out->last.processed, out->last.attended_pairs, out->step_seconds, rate,
                            out->recompute_flops};
    out->mfu = mfu_of_step(&c->model, c->context, &step);
}

static int report(struct bench *b, struct err *err) {
    struct bench_step *out = &b->out;
    out->config = b->config;
    out->device = &b->device;
    out->mesh = &b->layout.mesh;
    out->engine = b->engine;
    out->steps = b->arguments->steps;
    out->ranks = b->comm ? comm_size(b->comm) : 1;
    if (gather(b, err) != 0) return -1;
    derive(b);
    if (b->rank != 0) return 0;
    if (b->arguments->json) return bench_step_json(out);
    bench_step_text(out);
    return 0;
}

static int write_trace(struct bench *b, struct err *err) {
    const struct record_lane *lanes[2] = {&b->lane};
    char path[4096];
    if (!b->config->trace[0]) return 0;
    if (b->comm) lanes[1] = comm_lane(b->comm);
    return parallel_write_trace(b->config->trace, b->comm, lanes, b->comm ? 2 : 1, path,
                                sizeof path, err);
}

// ---- opening and closing ------------------------------------------------------------------------

static int open_ranks(struct bench *b, const struct launch_environment *launched, struct err *err) {
    if (parallel_join(b->config, launched, b->config->trace[0] ? TRACE_SPANS : 0, &b->comm, err) !=
        0)
        return -1;
    if (b->comm) {
        b->rank = comm_rank(b->comm);
        b->world = parallel_world(b->comm, "bench", err);
        if (!b->world) return -1;
    }
    return parallel_describe(b->config, b->comm, &b->layout, &b->schedule_csv, &b->parallel, err);
}

static int walk(struct bench *b, const struct launch_environment *launched, struct err *err) {
    struct device_cpu_options cpu;
    if (open_ranks(b, launched, err) != 0) return -1;
    config_device(b->config, &cpu);
    cpu.lane = &b->lane;
    if (record_lane_open(&b->lane, "compute", b->config->trace[0] ? TRACE_SPANS : 0) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the record");
    if (device_cpu_open(&b->device, &cpu, err) != 0 ||
        model_describe(&b->model, &b->config->model, err) != 0)
        return -1;
    return measure(b, err) != 0 || report(b, err) != 0 || write_trace(b, err) != 0 ? -1 : 0;
}

// A rank that has failed ends the others; who was told by another rank says nothing.
static int leave(struct bench *b, int status, const struct err *err) {
    bool told = b->comm && comm_failed_elsewhere(b->comm);
    int exit_status = status == 0 ? 0 : told ? err_exit_status(err) : cli_fail(err);
    if (status != 0 && b->comm) {
        comm_fail(b->comm, err);
        comm_abort(b->comm, exit_status);
    }
    engine_close(b->engine);
    free(b->batches);
    free(b->list);
    free(b->out.rank);
    free(b->schedule_csv);
    model_free(&b->model);
    if (b->device.close) b->device.close(&b->device);
    record_lane_close(&b->lane);
    comm_stream_close(b->world);
    comm_close(b->comm);
    return exit_status;
}

// What all ranks find alike, before they come together: one of them says it.
static int load(struct bench *b, const struct launch_environment *launched, struct err *err) {
    const struct arguments *a = b->arguments;
    struct train_config *c = b->config;
    if (config_load(c, a->target.config, a->target.settings, a->target.setting_count, err) != 0 ||
        launched_check(launched, comm_library(), err) != 0 ||
        config_layout(c, launched->ranks, &b->layout, err) != 0)
        return -1;
    return affinity_check(launched, cli_threads(launched, c->threads), err);
}

int bench_step(int argc, char **argv) {
    static struct train_config config;
    static struct bench bench;
    struct arguments arguments;
    struct launch_environment launched;
    struct err err = {0};
    int got = read_arguments(argc, argv, &arguments, &err);
    if (got < 0) return cli_fail(&err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    bench = (struct bench){.arguments = &arguments, .config = &config};
    if (cli_launched(&launched, false, &err) != 0) return cli_fail(&err);
    if (load(&bench, &launched, &err) != 0)
        return launched_speaks(&launched) ? cli_fail(&err) : err_exit_status(&err);
    return leave(&bench, walk(&bench, &launched, &err), &err);
}
