// weft bench schedule: the engine walks each pipeline schedule in slow motion, and the time of a
// step stands beside the simulated one of the same list.
//
// Four ranks are threads of this process. Their device does a tiny model's work and sleeps: an
// attention forward lasts a layer's forward time, an attention backward its input half, the weight
// gradient of the output projection its weight half, the first update of a step the optimizer. So
// two cores show what four would do.
#include "base/clock.h"
#include "base/numbers.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "device/device.h"
#include "engine/engine.h"
#include "schedule/pipeline.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: weft bench schedule [options]\n\n"
    "Trains a tiny model on 4 pipeline ranks (threads) with every schedule, each layer slowed down "
    "by sleeping,\nand compares the time of a step with the simulation of the same lists. The time "
    "is the median over the steps.\n\n"
    "  --layer-ms X         of a layer's forward, input half, weight half, each (20)\n"
    "  --send-ms X          latency of a message (2)\n"
    "  --step-ms X          of the optimizer (20)\n"
    "  --micro-batches N    (8)\n"
    "  --steps N            timed, after one to warm up (3)\n"
    "  --json\n";

enum { RANKS = 4, LAYERS = 8, CONTEXT = 16, MOST_STEPS = 100, MOST_MICRO_BATCHES = 64 };

struct schedule_bench {
    double layer_ms, send_ms, step_ms;
    int micro_batches, steps;
    bool json;
};

// ---- a device that takes its time

struct slow_device {
    struct device base; // what the engine calls; first, so that its address is ours
    struct device fast;
    double layer_seconds, step_seconds;
    int64_t last_step;
};

static void sleep_until(double seconds) {
    double left;
    while ((left = seconds - clock_seconds()) > 0) {
        struct timespec t = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&t, NULL);
    }
}

static void slow_attention_forward(struct device *d, const struct device_attention *args) {
    struct slow_device *s = (struct slow_device *)d;
    double end = clock_seconds() + s->layer_seconds;
    s->fast.attention_forward(d, args);
    sleep_until(end);
}

static void slow_attention_backward(struct device *d, const struct device_attention_backward *a) {
    struct slow_device *s = (struct slow_device *)d;
    double end = clock_seconds() + s->layer_seconds;
    s->fast.attention_backward(d, a);
    sleep_until(end);
}

static void slow_weight(struct device *d, const struct device_weight *w, int64_t tokens,
                        const void *dy, int64_t dy_stride, const void *x, int64_t x_stride,
                        float *dw, bool store) {
    struct slow_device *s = (struct slow_device *)d;
    double end = clock_seconds() + (w->n == w->k ? s->layer_seconds : 0); // one square per layer
    s->fast.linear_backward_weight(d, w, tokens, dy, dy_stride, x, x_stride, dw, store);
    sleep_until(end);
}

static void slow_adamw(struct device *d, const struct device_adamw *args) {
    struct slow_device *s = (struct slow_device *)d;
    double end = clock_seconds() + (args->step != s->last_step ? s->step_seconds : 0);
    s->last_step = args->step;
    s->fast.adamw(d, args);
    sleep_until(end);
}

static int open_slow(struct slow_device *s, const struct schedule_bench *b, struct err *err) {
    struct device_cpu_options options = {.threads = 1};
    *s = (struct slow_device){.layer_seconds = b->layer_ms / 1e3, .step_seconds = b->step_ms / 1e3};
    if (device_cpu_open(&s->base, &options, err) != 0) return -1;
    s->fast = s->base;
    s->base.attention_forward = slow_attention_forward;
    s->base.attention_backward = slow_attention_backward;
    s->base.linear_backward_weight = slow_weight;
    s->base.adamw = slow_adamw;
    return 0;
}

// ---- one rank

struct run {
    const struct schedule_bench *bench;
    const struct model *model;
    struct layout layout;
    enum pipeline_kind kind;
    struct batch batches[MOST_MICRO_BATCHES];
    double seconds[MOST_STEPS]; // of rank 0, from the end of a step to that of the next one
    double simulated;
};

struct run_rank {
    struct run *run;
    struct comm *comm;
    pthread_t thread;
    int rank;
    struct err err;
};

static int simulate(struct run *r, const struct pipeline *p, struct err *err) {
    const struct schedule_bench *b = r->bench;
    double stage = b->layer_ms / 1e3 * LAYERS / p->stages;
    struct pipeline_costs costs = {.forward = stage,
                                   .input = stage,
                                   .weight = stage,
                                   .send = b->send_ms / 1e3,
                                   .step = b->step_ms / 1e3,
                                   .eager = true}; // the latency runs on the sender's side
    struct pipeline_times times;
    if (pipeline_simulate(p, &costs, &times, err) != 0) return -1;
    r->simulated = times.total;
    pipeline_times_free(&times);
    return 0;
}

static int run_steps(struct run_rank *own, struct engine *engine, struct err *err) {
    struct run *r = own->run;
    struct batch *list[MOST_MICRO_BATCHES];
    for (int m = 0; m < r->bench->micro_batches; m++) list[m] = &r->batches[m];
    double begin = 0;
    for (int s = 0; s <= r->bench->steps; s++) {
        struct engine_step step = {.learning_rate = 1e-3, .clip_norm = 1, .update = s + 1};
        if (engine_run_step(engine, list, r->bench->micro_batches, &step, err) != 0) return -1;
        double end = clock_seconds();
        if (own->rank == 0 && s > 0) r->seconds[s - 1] = end - begin;
        begin = end;
    }
    return own->rank == 0 ? simulate(r, engine_pipeline(engine), err) : 0;
}

static int run_rank(struct run_rank *own, struct slow_device *device, struct err *err) {
    const struct run *r = own->run;
    struct engine_parallel parallel = {.comm = own->comm,
                                       .rank = own->rank,
                                       .layout = &r->layout,
                                       .schedule = r->kind,
                                       .gather_type = DTYPE_F32,
                                       .reduce_type = DTYPE_F32,
                                       .accumulate_type = DTYPE_F32,
                                       .prefetch = 1,
                                       .gathers_in_flight = 2};
    struct engine_options options = {.parallel = &parallel,
                                     .compute = DTYPE_F32,
                                     .rows = 1,
                                     .context = CONTEXT,
                                     .micro_batches = r->bench->micro_batches,
                                     .train = true,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8};
    struct engine *engine = engine_open(r->model, &device->base, &options, err);
    if (!engine) return -1;
    engine_initialise(engine, 1);
    int result = run_steps(own, engine, err);
    engine_close(engine);
    return result;
}

static void *rank_main(void *argument) {
    struct run_rank *own = argument;
    struct slow_device device;
    int result = open_slow(&device, own->run->bench, &own->err);
    if (result == 0) {
        result = run_rank(own, &device, &own->err);
        device.base.close(&device.base);
    }
    if (result != 0) comm_fail(own->comm, &own->err); // the others end too
    return NULL;
}

// ---- one schedule

static void place_batches(struct run *r, void *memory, int vocab) {
    for (int m = 0; m < r->bench->micro_batches; m++) {
        struct batch *b = &r->batches[m];
        batch_place(b, (char *)memory + (size_t)m * batch_bytes(CONTEXT), 1, CONTEXT);
        for (int i = 0; i < CONTEXT; i++) {
            b->input[i] = (7 * i + 3 * m) % vocab;
            b->target[i] = (5 * i + m) % vocab;
            b->position[i] = i;
            b->attend_from[i] = 0;
            b->attend_to[i] = i + 1;
        }
        b->counted = b->non_pad = CONTEXT;
        b->attended_pairs = CONTEXT * (CONTEXT + 1) / 2;
    }
}

static int run_threads(struct run *r, struct err *err) {
    struct comm *ends[RANKS];
    struct run_rank ranks[RANKS];
    struct comm_options options = {.watchdog_seconds = 60,
                                   .link_latency_seconds = r->bench->send_ms / 1e3,
                                   .ranks_per_host = 1};
    if (comm_open_threads(ends, RANKS, &options, err) != 0) return -1;
    int started = 0, result = 0;
    for (; started < RANKS && result == 0; started++) {
        ranks[started] = (struct run_rank){.run = r, .comm = ends[started], .rank = started};
        if (pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]) != 0) {
            result = err_set(err, ERR_MEMORY, "bench schedule: no thread for rank %d", started);
            comm_fail(ends[started], err);
            break;
        }
    }
    for (int k = 0; k < started; k++) pthread_join(ranks[k].thread, NULL);
    for (int k = 0; k < started && result == 0; k++)
        if (ranks[k].err.kind) result = err_set(err, ranks[k].err.kind, "%s", ranks[k].err.text);
    for (int k = 0; k < RANKS; k++) comm_close(ends[k]);
    return result;
}

static int run_schedule(struct run *r, struct err *err) {
    const struct model_config *c = &r->model->config;
    bool two = r->kind == PIPELINE_INTERLEAVED || r->kind == PIPELINE_ZB_V;
    r->layout = (struct layout){.mesh = {.size = {RANKS, 1, 1, 1},
                                         .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                         .ep = 1,
                                         .shard = 1},
                                .chunks = two ? 2 : 1,
                                .placement = r->kind == PIPELINE_ZB_V ? PLACE_V : PLACE_LOOP};
    if (layout_split_layers(&r->layout, c, NULL, 0, false, err) != 0) return -1;
    void *memory = malloc((size_t)r->bench->micro_batches * batch_bytes(CONTEXT));
    if (!memory) return err_set(err, ERR_MEMORY, "bench schedule: no memory for micro-batches");
    place_batches(r, memory, c->vocab);
    int result = run_threads(r, err);
    free(memory);
    return result;
}

static int run_all(const struct schedule_bench *b, const struct model *model, struct err *err) {
    if (b->json)
        printf("{\"layer_ms\": %g, \"send_ms\": %g, \"step_ms\": %g, \"micro_batches\": %d, "
               "\"schedules\": [",
               b->layer_ms, b->send_ms, b->step_ms, b->micro_batches);
    else
        printf("%d ranks, %d layers, %d micro-batches; layer 3 x %g ms, message %g ms, step %g "
               "ms\n%-12s %12s %12s %24s\n",
               RANKS, LAYERS, b->micro_batches, b->layer_ms, b->send_ms, b->step_ms, "schedule",
               "measured s", "simulated s", "measured over simulated");
    for (int k = 0; k < PIPELINE_FILE; k++) {
        struct run r = {.bench = b, .model = model, .kind = (enum pipeline_kind)k};
        if (run_schedule(&r, err) != 0) return -1;
        double median = numbers_median(r.seconds, (size_t)b->steps);
        printf(b->json ? "%s\n{\"schedule\": \"%s\", \"measured_seconds\": %.6f, "
                         "\"simulated_seconds\": %.6f, \"ratio\": %.5f}"
                       : "%s%-12s %12.4f %12.4f %24.4f\n",
               b->json && k ? "," : "", pipeline_kind_name(r.kind), median, r.simulated,
               median / r.simulated);
        fflush(stdout);
    }
    if (b->json) printf("\n]}\n");
    return 0;
}

static int check(const struct schedule_bench *b, struct err *err) {
    if (b->layer_ms <= 0 || b->layer_ms > 1000 || b->send_ms < 0 || b->send_ms > 1000 ||
        b->step_ms < 0 || b->step_ms > 1000)
        return err_set(err, ERR_USAGE,
                       "bench schedule: --layer-ms %g, --send-ms %g, --step-ms %g: expected 0 to "
                       "1000, a layer more than 0",
                       b->layer_ms, b->send_ms, b->step_ms);
    if (b->micro_batches > MOST_MICRO_BATCHES || b->steps > MOST_STEPS)
        return err_set(err, ERR_USAGE,
                       "bench schedule: %d micro-batches, %d steps: expected at most %d and %d",
                       b->micro_batches, b->steps, MOST_MICRO_BATCHES, MOST_STEPS);
    return 0;
}

int bench_schedule(int argc, char **argv) {
    struct schedule_bench b = {
        .layer_ms = 20, .send_ms = 2, .step_ms = 20, .micro_batches = 8, .steps = 3};
    const struct option options[] = {
        {"--layer-ms", OPTION_NUMBER, &b.layer_ms, 0},
        {"--send-ms", OPTION_NUMBER, &b.send_ms, 0},
        {"--step-ms", OPTION_NUMBER, &b.step_ms, 0},
        {"--micro-batches", OPTION_COUNT, &b.micro_batches, 1},
        {"--steps", OPTION_COUNT, &b.steps, 1},
        {"--json", OPTION_FLAG, &b.json, 0},
    };
    const struct model_config config = {.family = FAMILY_LLAMA,
                                        .variant = "llama",
                                        .layers = LAYERS,
                                        .hidden = 32,
                                        .heads = 4,
                                        .kv_heads = 4,
                                        .head_dim = 8,
                                        .ffn = 48,
                                        .vocab = 64,
                                        .context = CONTEXT,
                                        .norm = NORM_RMS,
                                        .norm_eps = 1e-5,
                                        .activation = ACTIVATION_SWIGLU,
                                        .rope = {.theta = 10000},
                                        .init_std = 0.02,
                                        .bos_id = -1,
                                        .eos_id = -1};
    struct err err = {0};
    struct model model = {0};
    int words, got = options_read(argc, argv, options, sizeof options / sizeof options[0], NULL, 0,
                                  &words, &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0) got = check(&b, &err);
    if (got == 0) got = model_describe(&model, &config, &err);
    if (got == 0) {
        got = run_all(&b, &model, &err);
        model_free(&model);
    }
    return got == 0 ? 0 : cli_fail(&err);
}
