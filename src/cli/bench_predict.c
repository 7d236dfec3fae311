// weft bench predict: how near predictions from weft bench hardware come to runs on this machine.
// Each case is a short training run of this program started anew, all of them in turns, round by
// round; what is compared is the median over the rounds.
#include "base/affinity.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/bench_child.h"
#include "cli/cli.h"
#include "cli/machine_file.h"
#include "cli/options.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: weft bench predict [--hardware FILE] [--rounds N] [--steps N] [--only TEXT] "
    "[--json]\n\n"
    "Measures this machine (weft bench hardware), then trains GPT-2 124M and two sizes of Llama "
    "on\n"
    "random tokens, alone and as 2 and 4 ranks with data, tensor and pipeline parallelism, in "
    "turns,\n"
    "and prints predicted and measured step time, the median error of single actions (weft plan\n"
    "explain), and planned over resident memory where that is 256 MB and more. Ranks that share\n"
    "cores are measured too. Some minutes.\n\n"
    "  --hardware FILE  measured before, instead of now\n"
    "  --rounds N       (3)\n"
    "  --steps N        of a run, two of them to warm up (5)\n"
    "  --only TEXT      cases whose name has it\n"
    "  --json\n";

enum { MOST_ROUNDS = 32, TOKENS = 1 << 18, VOCAB = 30000 };
static const double LEAST_PLANNED_BYTES = 256e6;

struct predict_case {
    const char *name;
    int ranks;
    const char *settings[8];
};
static const struct predict_case cases[] = {
    {"llama-15m", 1, {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=4"}},
    {"llama-42m", 1, {"model.preset=llama-42m", "data.context=512", "train.batch=2"}},
    {"gpt2-124m", 1, {"model.preset=gpt2-124m", "data.context=512", "train.batch=1"}},
    {"llama-15m dp2",
     2,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=2", "parallel.dp=2"}},
    {"llama-15m dp2 zero1",
     2,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=2", "parallel.dp=2",
      "parallel.zero=1"}},
    {"llama-15m tp2",
     2,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=4", "parallel.tp=2"}},
    {"llama-15m pp2 1f1b",
     2,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=2", "parallel.pp=2"}},
    {"llama-15m pp2 zb-h1",
     2,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=2", "parallel.pp=2",
      "pipeline.schedule=zb-h1"}},
    {"llama-42m tp2",
     2,
     {"model.preset=llama-42m", "data.context=512", "train.batch=2", "parallel.tp=2"}},
    {"gpt2-124m dp2",
     2,
     {"model.preset=gpt2-124m", "data.context=256", "train.batch=2", "parallel.dp=2"}},
    {"gpt2-124m tp2",
     2,
     {"model.preset=gpt2-124m", "data.context=512", "train.batch=1", "parallel.tp=2"}},
    {"gpt2-124m pp2 1f1b",
     2,
     {"model.preset=gpt2-124m", "data.context=256", "train.batch=2", "train.micro_batch=1",
      "parallel.pp=2"}},
    {"llama-15m dp4",
     4,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=2", "parallel.dp=4"}},
    {"llama-15m dp2 tp2",
     4,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=4", "parallel.dp=2",
      "parallel.tp=2"}},
    {"llama-15m dp2 pp2",
     4,
     {"model.preset=llama-15m", "train.batch=8", "train.micro_batch=1", "parallel.dp=2",
      "parallel.pp=2"}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

struct result {
    double predicted[MOST_ROUNDS], measured[MOST_ROUNDS], action_error[MOST_ROUNDS];
    double memory[MOST_ROUNDS]; // planned over resident; 0: too small to say
};

struct predict_bench {
    const char *hardware, *only;
    int rounds, steps;
    bool json;
    char folder[64], machine[4096], config[4096];
    struct result results[CASES];
};

// ---- what runs need -----------------------------------------------------------------------------

static int write_inputs(struct predict_bench *b, struct err *err) {
    char data[4096], text[8192];
    uint16_t *ids = malloc(TOKENS * sizeof *ids);
    if (!ids) return err_set(err, ERR_MEMORY, "no memory for tokens");
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint16_t)(VOCAB * random_uniform(7, (uint64_t)i));
    int status = file_join(data, sizeof data, b->folder, "tokens.bin", err);
    if (status == 0) status = file_replace(data, ids, TOKENS * sizeof *ids, err);
    free(ids);
    if (status == 0) status = file_join(b->config, sizeof b->config, b->folder, "run.yaml", err);
    if (status != 0) return -1;
    snprintf(text, sizeof text,
             "data.train: %s\n"
             "train: {steps: %d, gemm_seconds: 0, log_every: 1000000, tensorboard: false}\n"
             "checkpoint: {at_end: false}\n",
             data, b->steps);
    return file_replace(b->config, text, strlen(text), err);
}

static int calibrate(struct predict_bench *b, struct err *err) {
    if (b->hardware) {
        snprintf(b->machine, sizeof b->machine, "%s", b->hardware);
        return 0;
    }
    if (file_join(b->machine, sizeof b->machine, b->folder, "machine.yaml", err) != 0) return -1;
    const char *const words[] = {"bench",    "hardware", "--out",  b->machine,
                                 "--folder", b->folder,  "--json", NULL};
    json_t *root = child_run(1, words, err);
    json_decref(root);
    return root ? 0 : -1;
}

// ---- runs ---------------------------------------------------------------------------------------

static double median_error(const json_t *explained) {
    return child_number(json_object_get(json_object_get(explained, "actions"), "all"),
                        "median_error");
}

static int run_case(struct predict_bench *b, int number, int round, struct err *err) {
    const struct predict_case *c = &cases[number];
    struct result *r = &b->results[number];
    char folder[4200], trace[4200], threads[48], path[4096], name[32];
    const char *words[CHILD_MOST_WORDS] = {"train", b->config};
    int count = 2, cores = affinity_host_cpus();
    snprintf(name, sizeof name, "run-%d-%d", number, round);
    if (file_join(path, sizeof path, b->folder, name, err) != 0) return -1;
    snprintf(folder, sizeof folder, "train.folder=%s", path);
    snprintf(trace, sizeof trace, "train.trace=%s.json", path);
    snprintf(threads, sizeof threads, "device.threads=%d",
             cores / c->ranks > 1 ? cores / c->ranks : 1);
    for (int i = 0; i < 8 && c->settings[i]; i++) words[count++] = c->settings[i];
    const char *const rest[] = {folder,       trace,      threads, "train.resume=false",
                                "--hardware", b->machine, "--json"};
    for (int i = 0; i < 7; i++) words[count++] = rest[i];
    json_t *root = child_run(c->ranks, words, err);
    const json_t *both = json_object_get(root, "prediction");
    const json_t *predicted = json_object_get(both, "predicted");
    const json_t *measured = json_object_get(both, "measured");
    if (!predicted || !measured) {
        json_decref(root);
        if (root) err_set(err, ERR_INTERNAL, "the run was not set beside a prediction");
        return err_context(err, "%s", c->name);
    }
    r->predicted[round] = child_number(predicted, "step_seconds");
    r->measured[round] = child_number(measured, "step_seconds");
    double planned = child_number(predicted, "memory_bytes");
    double resident = child_number(measured, "memory_bytes");
    r->memory[round] = planned >= LEAST_PLANNED_BYTES && resident > 0 ? planned / resident : 0;
    json_decref(root);
    const char *const explain[] = {"plan", "explain", path, "--json", NULL};
    root = child_run(1, explain, err);
    if (!root) return err_context(err, "%s", c->name);
    r->action_error[round] = median_error(root);
    json_decref(root);
    return 0;
}

static bool wanted(const struct predict_bench *b, int number) {
    return !b->only || strstr(cases[number].name, b->only);
}

static int run_all(struct predict_bench *b, struct err *err) {
    for (int round = 0; round < b->rounds; round++)
        for (int i = 0; i < CASES; i++) {
            if (!wanted(b, i)) continue;
            fprintf(stderr, "round %d: %s\n", round + 1, cases[i].name);
            if (run_case(b, i, round, err) != 0) return -1;
        }
    return 0;
}

// ---- what comes of it ---------------------------------------------------------------------------

static void print(struct predict_bench *b) {
    double errors[CASES], actions[CASES];
    int count = 0;
    if (b->json)
        printf("{\"rounds\": %d, \"cases\": [", b->rounds);
    else
        printf("%-22s %6s %12s %12s %9s %14s %18s\n", "", "ranks", "predicted", "measured", "error",
               "actions", "planned/resident");
    for (int i = 0; i < CASES; i++) {
        struct result *r = &b->results[i];
        if (!wanted(b, i)) continue;
        double predicted = numbers_median(r->predicted, (size_t)b->rounds);
        double measured = numbers_median(r->measured, (size_t)b->rounds);
        double memory = numbers_median(r->memory, (size_t)b->rounds);
        char share[16] = "-"; // too small to say
        if (memory > 0) snprintf(share, sizeof share, "%.3f", memory);
        double error = predicted / measured - 1;
        double action = numbers_median(r->action_error, (size_t)b->rounds);
        if (b->json)
            printf("%s\n {\"name\": \"%s\", \"ranks\": %d, \"predicted_seconds\": %.6f, "
                   "\"measured_seconds\": %.6f, \"error\": %.5f, \"median_action_error\": %.5f, "
                   "\"planned_over_resident\": %.5f}",
                   count ? "," : "", cases[i].name, cases[i].ranks, predicted, measured, error,
                   action, memory);
        else
            printf("%-22s %6d %10.4f s %10.4f s %+7.1f %% %11.1f %% %18s\n", cases[i].name,
                   cases[i].ranks, predicted, measured, 100 * error, 100 * action, share);
        errors[count] = fabs(error);
        actions[count++] = action;
    }
    double mean = 0;
    for (int i = 0; i < count; i++) mean += errors[i] / count;
    double step = numbers_median(errors, (size_t)count),
           action = numbers_median(actions, (size_t)count);
    if (b->json)
        printf("\n], \"median_error\": %.5f, \"mean_error\": %.5f, \"median_action_error\": "
               "%.5f}\n",
               step, mean, action);
    else
        printf("step time: median error %.1f %%, mean %.1f %%; actions: median %.1f %%\n",
               100 * step, 100 * mean, 100 * action);
}

int bench_predict(int argc, char **argv) {
    static struct predict_bench b;
    struct err err = {0};
    int words;
    b = (struct predict_bench){.rounds = 3, .steps = 5};
    snprintf(b.folder, sizeof b.folder, "/tmp/weft-bench-predict-XXXXXX");
    const struct option options[] = {
        {"--hardware", OPTION_TEXT, &b.hardware, 0}, {"--only", OPTION_TEXT, &b.only, 0},
        {"--rounds", OPTION_COUNT, &b.rounds, 1},    {"--steps", OPTION_COUNT, &b.steps, 3},
        {"--json", OPTION_FLAG, &b.json, 0},
    };
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], NULL, 0, &words,
                           &err);
    if (got > 0) {
        fputs(help, stdout);
        return 0;
    }
    if (got == 0 && b.rounds > MOST_ROUNDS)
        got = err_set(&err, ERR_USAGE, "bench predict: --rounds %d: expected 1 to %d", b.rounds,
                      MOST_ROUNDS);
    int any = 0;
    for (int i = 0; i < CASES; i++) any += wanted(&b, i);
    if (got == 0 && any == 0)
        got = err_set(&err, ERR_USAGE, "bench predict: no case's name has \"%s\"", b.only);
    if (got != 0) return cli_fail(&err);
    if (!mkdtemp(b.folder)) {
        err_set_errno(&err, "%s: cannot make a temporary folder", b.folder);
        return cli_fail(&err);
    }
    got = write_inputs(&b, &err);
    if (got == 0) got = calibrate(&b, &err);
    if (got == 0) got = run_all(&b, &err);
    if (got == 0) print(&b);
    struct err ignored = {0};
    file_remove_tree(b.folder, &ignored);
    return got == 0 ? 0 : cli_fail(&err);
}
