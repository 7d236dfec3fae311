// weft bench guards CONFIG: what the checksums of the engine's state cost. Steps without guards and
// with one of them alternate in one process, on the same memory; shares are medians over the pairs.
#include "base/clock.h"
#include "base/numbers.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "train/config.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 100, VARIANTS = 6 };

static const char help[] =
    "usage: weft bench guards CONFIG [key=value ...] [--rounds N] [--tokens N]\n"
    "                         [--json]\n\n"
    "Training steps of the configured model on random tokens in one process: without guards, with\n"
    "each of guard.optimizer, guard.gradients, guard.weights_every=1 and guard.products_every=1,\n"
    "and with all of them as configured, one after the other, N (3) times. Of each guard: seconds\n"
    "that it adds to a step (median of the rounds), by the wall clock and of the processors, and\n"
    "their share of a step without guards. Where other programs run beside, the processors' time\n"
    "says more. Guards cost by weight and micro-batch, hardly by token: with --tokens the\n"
    "alternating steps have micro-batches of N tokens only, which takes a fraction of the time,\n"
    "and shares are those of one whole step without guards, run behind them. \"inside\" is the "
    "time of the passes over memory that belong to guards alone; "
    "what\n"
    "the optimizer's kernel does on the way is not in it.\n";

struct variant {
    const char *name;
    struct engine_guards guards;
    int every; // steps over which the measured cost is spread
};

struct bench {
    struct bench_target target;
    int rounds, short_tokens;
    bool json;
    struct train_config *config;
    struct device device;
    struct model model;
    struct engine *engine;
    struct batch *batches, **list;
    struct variant variant[VARIANTS];
    double wall[VARIANTS][MOST_ROUNDS], cpu[VARIANTS][MOST_ROUNDS], inside[VARIANTS];
    int64_t tokens;
    double whole_seconds, whole_processors; // of a step without guards
};

static int read_arguments(int argc, char **argv, struct bench *b, struct err *err) {
    const struct option options[] = {
        {"--rounds", OPTION_COUNT, &b->rounds, 1},
        {"--tokens", OPTION_COUNT, &b->short_tokens, 1},
        {"--json", OPTION_FLAG, &b->json, 0},
    };
    b->rounds = 3;
    int got =
        bench_target_read(&b->target, argc, argv, options, sizeof options / sizeof options[0], err);
    if (got == 0 && b->rounds > MOST_ROUNDS)
        return err_set(err, ERR_USAGE, "bench guards: --rounds %d: expected at most %d", b->rounds,
                       MOST_ROUNDS);
    return got;
}

// Micro-batches of `tokens` in one row; 0: whole ones.
static void fill_batches(struct bench *b, int tokens) {
    const struct train_config *c = b->config;
    uint64_t each = batch_bytes(c->micro_batch * c->context);
    for (int m = 0; m < config_micro_batches(c); m++) {
        batch_place(&b->batches[m], (char *)engine_other_memory(b->engine) + each * (uint64_t)m,
                    tokens ? 1 : c->micro_batch, tokens ? tokens : c->context);
        bench_fill_batch(&b->batches[m], c->model.vocab, (uint64_t)m + 1);
        b->list[m] = &b->batches[m];
    }
}

static int open_engine(struct bench *b, struct err *err) {
    const struct train_config *c = b->config;
    struct engine_options options;
    struct device_cpu_options cpu;
    config_engine(c, &options);
    config_device(c, &cpu);
    uint64_t each = batch_bytes(options.rows * options.context);
    int count = options.micro_batches;
    options.other_bytes = each * (uint64_t)count;
    options.guards = (struct engine_guards){true, true, 1, 1};
    if (device_cpu_open(&b->device, &cpu, err) != 0 ||
        model_describe(&b->model, &c->model, err) != 0)
        return -1;
    b->engine = engine_open(&b->model, &b->device, &options, err);
    b->batches = calloc((size_t)count, sizeof *b->batches);
    b->list = calloc((size_t)count, sizeof *b->list);
    if (!b->engine) return -1;
    if (!b->batches || !b->list) return err_set(err, ERR_MEMORY, "no memory for the batches");
    if (b->short_tokens > c->context) b->short_tokens = c->context;
    fill_batches(b, b->short_tokens);
    engine_initialise(b->engine, (uint64_t)c->seed);
    return 0;
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_step(struct bench *b, int variant, int64_t update, double *wall, double *cpu,
                    struct err *err) {
    const struct train_config *c = b->config;
    struct engine_finding found;
    struct engine_step step = {
        .learning_rate = c->learning_rate, .clip_norm = c->clip, .update = update};
    engine_set_guards(b->engine, &b->variant[variant].guards);
    double inside = engine_guard_seconds(b->engine), begin = clock_seconds();
    double used = processor_seconds();
    if (engine_run_step(b->engine, b->list, config_micro_batches(c), &step, err) != 0) return -1;
    *cpu = processor_seconds() - used;
    *wall = clock_seconds() - begin;
    b->inside[variant] += engine_guard_seconds(b->engine) - inside;
    b->tokens = step.processed;
    if (engine_findings(b->engine, &found, 1) == 0) return 0;
    return err_set(err, ERR_BAD_HOST, "step %lld: a %s of %s is not what was written there",
                   (long long)update, engine_found_name(found.kind), found.parameter);
}

static int measure(struct bench *b, struct err *err) {
    const struct train_config *c = b->config;
    struct engine_options options;
    double unused;
    config_engine(c, &options);
    const struct variant variants[VARIANTS] = {
        {"none", {0}, 1},
        {"optimizer", {.optimizer = true}, 1},
        {"gradients", {.gradients = true}, 1},
        {"weights", {.weights_every = 1}, options.guards.weights_every},
        {"products", {.products_every = 1}, options.guards.products_every},
        {"all, as configured", options.guards, 1},
    };
    memcpy(b->variant, variants, sizeof variants);
    if (open_engine(b, err) != 0) return -1;
    for (int64_t update = 1; update <= 2; update++) // warm up
        if (run_step(b, 0, update, &unused, &unused, err) != 0) return -1;
    for (int round = 0; round < b->rounds; round++)
        for (int v = 0; v < VARIANTS; v++) // each variant as often first as last
            if (run_step(b, (v + round) % VARIANTS, 3 + round * VARIANTS + v,
                         &b->wall[(v + round) % VARIANTS][round],
                         &b->cpu[(v + round) % VARIANTS][round], err) != 0)
                return -1;
    b->whole_seconds = numbers_median(b->wall[0], (size_t)b->rounds);
    b->whole_processors = numbers_median(b->cpu[0], (size_t)b->rounds);
    if (!b->short_tokens) return 0;
    int64_t update = 3 + (int64_t)b->rounds * VARIANTS;
    fill_batches(b, 0);
    for (int i = 0; i < 2; i++) // the first one meets memory for the first time
        if (run_step(b, 0, update + i, &b->whole_seconds, &b->whole_processors, err) != 0)
            return -1;
    return 0;
}

struct cost {                 // of a guard, in a step
    double wall, cpu, inside; // seconds; cpu of all processors together
    double wall_share, cpu_share;
};

static double added(const double times[VARIANTS][MOST_ROUNDS], int variant, int rounds) {
    double more[MOST_ROUNDS];
    for (int r = 0; r < rounds; r++) more[r] = times[variant][r] - times[0][r];
    return numbers_median(more, (size_t)rounds);
}

static struct cost cost_of(const struct bench *b, int v) {
    double every = b->variant[v].every > 0 ? b->variant[v].every : 1;
    struct cost c = {.wall = added(b->wall, v, b->rounds) / every,
                     .cpu = added(b->cpu, v, b->rounds) / every,
                     .inside = b->inside[v] / b->rounds / every};
    c.wall_share = c.wall / b->whole_seconds;
    c.cpu_share = c.cpu / b->whole_processors;
    return c;
}

static int report(struct bench *b, struct err *err) {
    const struct train_config *c = b->config;
    if (!b->json)
        printf("%s, micro-batch %d x %d, %lld tokens a step: %.3f s without guards, %.3f s of "
               "processors\n\n%-20s %12s %8s %12s %8s %12s\n",
               b->device.name, c->micro_batch, c->context, (long long)b->tokens, b->whole_seconds,
               b->whole_processors, "guard", "seconds", "share", "processors", "share", "inside");
    json_t *root =
        json_pack("{s:f, s:f, s:I, s:[]}", "step_seconds", b->whole_seconds, "processor_seconds",
                  b->whole_processors, "tokens", (json_int_t)b->tokens, "guards");
    if (!root) return err_set(err, ERR_MEMORY, "no memory for the figures");
    for (int v = 1; v < VARIANTS; v++) {
        struct cost k = cost_of(b, v);
        json_array_append_new(json_object_get(root, "guards"),
                              json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "name",
                                        b->variant[v].name, "every", b->variant[v].every, "seconds",
                                        k.wall, "share", k.wall_share, "processor_seconds", k.cpu,
                                        "processor_share", k.cpu_share, "inside_seconds",
                                        k.inside));
        if (!b->json)
            printf("%-20s %12.4f %7.2f%% %12.4f %7.2f%% %12.4f\n", b->variant[v].name, k.wall,
                   100 * k.wall_share, k.cpu, 100 * k.cpu_share, k.inside);
    }
    if (b->json) json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    if (b->json) printf("\n");
    json_decref(root);
    return 0;
}

int bench_guards(int argc, char **argv) {
    static struct train_config config;
    static struct bench b;
    struct err err = {0};
    b = (struct bench){.config = &config};
    int got = read_arguments(argc, argv, &b, &err);
    if (got < 0) return cli_fail(&err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    int status =
        config_load(&config, b.target.config, b.target.settings, b.target.setting_count, &err);
    if (status == 0) status = measure(&b, &err);
    if (status == 0) status = report(&b, &err);
    engine_close(b.engine);
    free(b.batches);
    free(b.list);
    model_free(&b.model);
    if (b.device.close) b.device.close(&b.device);
    return status == 0 ? 0 : cli_fail(&err);
}
