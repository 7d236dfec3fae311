// weft bench step CONFIG: training steps on random tokens, and where their time and memory go. No
// data is read, so that the figure is the engine's own; everything is counted as
// docs/definitions.md says.
#include "base/clock.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "observe/mfu.h"
#include "observe/resident.h"
#include "train/config.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP_STEPS = 2, MOST_STEPS = 1000 };

static const char help[] = "usage: weft bench step CONFIG [key=value ...] [--steps N] [--json]\n\n"
                           "Runs N (5) timed training steps of the configured model on random "
                           "tokens, after two to warm up, and prints tokens/s,\n"
                           "model FLOP/s and their share of the best GEMM rate (measured before "
                           "and after in this process), planned and resident\n"
                           "memory, and seconds by phase and by group of kernels. The time is the "
                           "median over the steps.\n";

struct arguments {
    const char *config;
    char **words;
    int word_count, steps;
    bool json, help;
};

// What was measured. Seconds are of the median step or, by kind, the mean over the timed steps.
struct figures {
    int steps;
    double step_seconds, rate_before, rate_after, seconds[RECORD_KIND_COUNT];
    struct mfu mfu;
    double recompute_flops; // per token
    struct engine_step last;
    uint64_t planned, allocated, base_pss, peak_pss;
    const struct memory_plan *plan;
};

static int parse(int argc, char **argv, struct arguments *a, struct err *err) {
    *a = (struct arguments){.steps = 5, .words = argv};
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            a->help = true;
        } else if (strcmp(word, "--json") == 0) {
            a->json = true;
        } else if (strcmp(word, "--steps") == 0 && i + 1 < argc) {
            a->steps = (int)strtol(argv[++i], NULL, 10);
        } else if (strchr(word, '=')) {
            a->words[a->word_count++] = word; // never behind the word that is read
        } else if (word[0] != '-' && !a->config) {
            a->config = word;
        } else {
            return err_set(err, ERR_USAGE,
                           "bench step: \"%s\" is none of CONFIG, key=value, --steps N, --json",
                           word);
        }
    }
    if (a->help) return 0;
    if (!a->config)
        return err_set(err, ERR_USAGE,
                       "bench step: no configuration given; configs/bench/gpt2-124m.yaml is one");
    if (a->steps < 1 || a->steps > MOST_STEPS)
        return err_set(err, ERR_USAGE, "bench step: --steps %d: expected 1 to %d", a->steps,
                       MOST_STEPS);
    return 0;
}

static void fill_batch(struct batch *b, int vocab, uint64_t seed) {
    uint64_t key = random_key(seed, "bench");
    for (int32_t i = 0; i < b->tokens; i++) {
        int32_t at = i % b->context;
        b->input[i] = (int32_t)(random_uniform(key, (uint64_t)i) * vocab);
        b->target[i] = (int32_t)(random_uniform(key, (uint64_t)i + 1) * vocab);
        b->position[i] = at;
        b->attend_from[i] = i - at;
        b->attend_to[i] = i + 1;
        b->attended_pairs += at + 1;
    }
    b->counted = b->non_pad = b->tokens;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run_steps(struct engine *engine, struct device *device, const struct train_config *c,
                     struct batch *const *batches, int count, struct figures *f, struct err *err) {
    static double times[MOST_STEPS];
    struct record_lane at_start = {0};
    for (int s = 0; s < WARM_UP_STEPS + f->steps; s++) {
        if (s == WARM_UP_STEPS) at_start = *device->lane;
        double begin = clock_seconds();
        f->last = (struct engine_step){
            .learning_rate = c->learning_rate, .clip_norm = c->clip, .update = s + 1};
        if (engine_run_step(engine, batches, count, &f->last, err) != 0) return -1;
        if (s >= WARM_UP_STEPS) times[s - WARM_UP_STEPS] = clock_seconds() - begin;
    }
    for (int k = 0; k < RECORD_KIND_COUNT; k++)
        f->seconds[k] = (device->lane->seconds[k] - at_start.seconds[k]) / f->steps;
    qsort(times, (size_t)f->steps, sizeof times[0], compare_doubles);
    f->step_seconds = (times[(f->steps - 1) / 2] + times[f->steps / 2]) / 2;
    return 0;
}

static void derive(const struct train_config *c, struct figures *f) {
    double rate = f->rate_before > f->rate_after ? f->rate_before : f->rate_after;
    f->recompute_flops = engine_recompute_flops(&c->model, c->recompute, c->context);
    struct mfu_step step = {f->last.processed, f->last.attended_pairs, f->step_seconds, rate,
                            f->recompute_flops};
    f->mfu = mfu_of_step(&c->model, c->context, &step);
}

static double memory_ratio(const struct figures *f) {
    return (double)(f->peak_pss - f->base_pss) / (double)f->planned;
}

static int print_json(const struct train_config *c, const struct device *device,
                      const struct figures *f) {
    json_t *phases = json_object(), *memory = json_object(), *root = json_object();
    for (int k = 0; k < RECORD_KIND_COUNT; k++)
        if (f->seconds[k] > 0)
            json_object_set_new(phases, record_kind_name(k), json_real(f->seconds[k]));
    for (int k = 0; k < BUFFER_KIND_COUNT; k++)
        json_object_set_new(memory, buffer_kind_name(k),
                            json_integer((json_int_t)memory_plan_kind_bytes(f->plan, k)));
    const struct {
        const char *name;
        double value;
    } reals[] = {{"step_seconds", f->step_seconds},
                 {"tokens_per_second", f->mfu.tokens_per_second},
                 {"model_flops_full", f->mfu.flops_full},
                 {"model_flops_causal", f->mfu.flops_causal},
                 {"gemm_rate_before", f->rate_before},
                 {"gemm_rate_after", f->rate_after},
                 {"mfu", f->mfu.full},
                 {"mfu_causal", f->mfu.causal},
                 {"hfu", f->mfu.hfu},
                 {"recomputed_flops_per_token", f->recompute_flops},
                 {"resident_over_planned", memory_ratio(f)},
                 {"loss", f->last.loss}};
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        json_object_set_new(root, reals[i].name, json_real(reals[i].value));
    const struct {
        const char *name;
        uint64_t value;
    } integers[] = {{"tokens_per_step", (uint64_t)f->last.processed},
                    {"steps", (uint64_t)f->steps},
                    {"micro_batch", (uint64_t)c->micro_batch},
                    {"planned_bytes", f->planned},
                    {"allocated_bytes", f->allocated},
                    {"base_pss_bytes", f->base_pss},
                    {"peak_resident_bytes", f->peak_pss}};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        json_object_set_new(root, integers[i].name, json_integer((json_int_t)integers[i].value));
    json_object_set_new(root, "device", json_string(device->name));
    json_object_set_new(root, "recompute_adds", json_string(engine_recompute_text(c->recompute)));
    json_object_set_new(root, "seconds", phases);
    json_object_set_new(root, "planned_by_kind", memory);
    int status = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(root);
    return status;
}

static void print_text(const struct train_config *c, const struct device *device,
                       const struct figures *f) {
    char a[32], b[32], peak[32];
    printf("device                 %s\n", device->name);
    printf("step time              %.3f s, median of %d, %lld tokens in micro-batches of %d x %d\n",
           f->step_seconds, f->steps, (long long)f->last.processed, c->micro_batch, c->context);
    printf("tokens/s               %.0f\n", f->mfu.tokens_per_second);
    printf("model FLOP/s           %.1f G full attention, %.1f G causal\n", f->mfu.flops_full / 1e9,
           f->mfu.flops_causal / 1e9);
    printf("best GEMM rate         %.1f G before, %.1f G after\n", f->rate_before / 1e9,
           f->rate_after / 1e9);
    printf("MFU                    %.3f full attention, %.3f causal; HFU %.3f\n", f->mfu.full,
           f->mfu.causal, f->mfu.hfu);
    printf("recomputation adds     %s; %.1f MFLOP of products per token\n",
           engine_recompute_text(c->recompute), f->recompute_flops / 1e6);
    printf("planned bytes          %s, allocated %s\n", text_bytes(f->planned, a),
           text_bytes(f->allocated, b));
    printf("peak resident          %s; resident over planned %.3f\n", text_bytes(f->peak_pss, peak),
           memory_ratio(f));
    for (int k = 0; k < BUFFER_KIND_COUNT; k++) {
        uint64_t bytes = memory_plan_kind_bytes(f->plan, k);
        if (bytes) printf("  %-20s %s\n", buffer_kind_name(k), text_bytes(bytes, a));
    }
    printf("seconds of a step\n");
    for (int k = 0; k < RECORD_KIND_COUNT; k++)
        if (f->seconds[k] > 0) printf("  %-20s %.3f\n", record_kind_name(k), f->seconds[k]);
}

// Before any of the run's memory exists: the rate, and what a process holds that has multiplied
// once.
static void measure_base(const struct train_config *c, struct device *device, struct figures *f) {
    enum dtype type = c->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    f->rate_before = device_gemm_rate(device, type, 0.5);
    f->base_pss = resident_pss_bytes();
}

static int measure(const struct train_config *c, const struct model *model, struct device *device,
                   bool json, struct figures *f, struct err *err) {
    struct engine_options options;
    config_engine(c, &options);
    int count = options.micro_batches;
    uint64_t each = batch_bytes(options.rows * options.context);
    options.other_bytes = each * (uint64_t)count;
    measure_base(c, device, f);
    struct engine *engine = engine_open(model, device, &options, err);
    if (!engine) return -1;
    engine_initialise(engine, (uint64_t)c->seed);
    struct batch *batches = calloc((size_t)count, sizeof *batches);
    struct batch **list = calloc((size_t)count, sizeof *list);
    int status = batches && list ? 0 : err_set(err, ERR_MEMORY, "no memory for the batches");
    for (int m = 0; status == 0 && m < count; m++) {
        batch_place(&batches[m], (char *)engine_other_memory(engine) + each * (uint64_t)m,
                    options.rows, options.context);
        fill_batch(&batches[m], c->model.vocab, (uint64_t)m + 1);
        list[m] = &batches[m];
    }
    if (status == 0) status = run_steps(engine, device, c, list, count, f, err);
    if (status == 0) {
        f->peak_pss = resident_peak_pss_bytes();
        f->rate_after = device_gemm_rate(device, options.compute, 0.5);
        f->plan = engine_memory(engine);
        f->planned = f->plan->total_bytes;
        f->allocated = engine_allocated_bytes(engine);
        derive(c, f);
        if (json)
            status = print_json(c, device, f);
        else
            print_text(c, device, f);
    }
    free(batches);
    free(list);
    engine_close(engine);
    return status;
}

static int run(const struct arguments *a, struct err *err) {
    static struct train_config config;
    struct device_cpu_options cpu;
    struct record_lane lane;
    struct device device;
    struct model model;
    struct figures figures = {.steps = a->steps};
    if (config_load(&config, a->config, a->words, a->word_count, err) != 0) return -1;
    config_device(&config, &cpu);
    cpu.lane = &lane;
    if (record_lane_open(&lane, "compute", 0) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the record");
    if (device_cpu_open(&device, &cpu, err) != 0) return -1;
    int status = -1;
    if (model_describe(&model, &config.model, err) == 0) {
        status = measure(&config, &model, &device, a->json, &figures, err);
        model_free(&model);
    }
    device.close(&device);
    record_lane_close(&lane);
    return status;
}

int bench_step(int argc, char **argv) {
    struct arguments arguments;
    struct err err = {0};
    if (parse(argc, argv, &arguments, &err) != 0) return cli_fail(&err);
    if (arguments.help) {
        fputs(help, stdout);
        return 0;
    }
    return run(&arguments, &err) == 0 ? 0 : cli_fail(&err);
}
