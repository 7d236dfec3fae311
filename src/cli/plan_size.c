// weft plan size: the data path, packing, checkpoints, storage and pools around a training.
#include "cli/cli.h"
#include "cli/plan.h"
#include "cli/words.h"
#include "model/flops.h"
#include "plan/inputs.h"
#include "plan/size.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: weft plan size WORD [options]\n"
    "\n"
    "  data        --tokens-per-second R, or --batch N --context T --steps-per-second R\n"
    "              [--model M | --vocab N] [--shard-tokens N (1e8)] [--workers N (64)]\n"
    "              [--operations N of opening a shard (1)] [--cluster C]\n"
    "              read bandwidth and metadata operations per second\n"
    "  packing     --model M [--context T] [--document N tokens (600)] [--cluster C] [--dollars "
    "D]\n"
    "              what packing documents brings, against padding and against chunks\n"
    "  checkpoint  --model M | --params N  [--cluster C] [--seconds S (60)]\n"
    "              [--host-bandwidth R of an accelerator (25e9)]\n"
    "              size, burst bandwidth, time on each tier\n"
    "  storage     --model M | --params N  [--cluster C] [--days D (30)] [--interval S (600)]\n"
    "              [--keep N (3)] [--archive-every N (100)] [--tokens N] [--vocab N]\n"
    "              bytes on nodes, parallel file system and object store, and their price\n"
    "  rlhf        --policy M [--reward M] [--value M] --cluster C\n"
    "              [--shares ROLLOUT,REWARD,REFERENCE,VALUE,UPDATE (0.4,0.15,0.25,0,0.2)]\n"
    "              [--replicas accelerators of one, same order (8,4,8,8,16)]\n"
    "              [--samples N (1024)] [--prompt N (512)] [--response N (1024)] [--epochs N (1)]\n"
    "              [--rank N of LoRA (16)] [--forward-mfu P (0.5)] [--train-mfu P (0.4)]\n"
    "              pools of whole replicas, decoding, memory of shared weights, DPO beside PPO\n"
    "\n"
    "M: a name (llama3-70b) or config.json. C: h100-sxm:512, a name or a file. --json: as JSON.\n";

struct sizes { // all options of all words
    const char *model, *cluster_text, *policy, *reward, *value, *shares, *replicas;
    double tokens_per_second, batch, steps_per_second, shard_tokens, operations, document, dollars;
    double params, seconds, host_bandwidth, days, interval, tokens, forward_mfu, train_mfu;
    int vocab, context, workers, keep, archive_every, samples, prompt, response, epochs, rank;
    bool json;
    // read from the texts
    struct catalogue *catalogue;
    struct cluster cluster;
    struct model_config config;
};

static int read_inputs(struct sizes *s, struct err *err) {
    if (s->model && plan_read_model(s->model, &s->config, err) != 0) return -1;
    if (!s->cluster_text) return 0;
    if (catalogue_open(&s->catalogue, err) != 0) return -1;
    return catalogue_cluster(s->catalogue, s->cluster_text, &s->cluster, err);
}

static int accelerators(const struct sizes *s) {
    return s->cluster_text ? s->cluster.nodes * s->cluster.per_node : 0;
}

static int need(bool given, const char *word, const char *options, struct err *err) {
    return given ? 0 : err_set(err, ERR_USAGE, "plan size %s: expected %s", word, options);
}

static int word_data(struct sizes *s, struct size_sheet *sheet, struct err *err) {
    if (need(!isnan(s->tokens_per_second) ||
                 (!isnan(s->batch) && s->context && !isnan(s->steps_per_second)),
             "data", "--tokens-per-second, or --batch, --context and --steps-per-second", err) != 0)
        return -1;
    struct size_data in = {.tokens_per_second = s->tokens_per_second,
                           .vocab = s->model ? s->config.vocab : s->vocab,
                           .shard_tokens = s->shard_tokens,
                           .workers = s->workers,
                           .operations = s->operations};
    if (isnan(in.tokens_per_second))
        in.tokens_per_second = s->batch * s->context * s->steps_per_second;
    if (s->model) in.products_per_token = 6 * (double)flops_matmul_params(&s->config);
    if (s->model && s->context) in.flops_per_token = flops_per_token_full(&s->config, s->context);
    if (s->cluster_text) {
        const struct storage *files = &s->cluster.storage[STORAGE_PARALLEL];
        in.metadata_limit = files->metadata_per_second.value;
        in.read_limit = files->read.value;
        in.rate = accelerators(s) * s->cluster.accelerator.dense[HARDWARE_BF16].value;
    }
    return size_data(&in, sheet, err);
}

static int word_packing(struct sizes *s, struct size_sheet *sheet, struct err *err) {
    if (need(s->model != NULL, "packing", "--model", err) != 0) return -1;
    struct size_packing in = {.model = &s->config,
                              .context = s->context ? s->context : s->config.context,
                              .document_tokens = s->document,
                              .accelerators = accelerators(s),
                              .run_dollars = s->dollars};
    return size_packing(&in, sheet, err);
}

// Parameters of the model, or as given.
static int params_of(const struct sizes *s, const char *word, double *params, struct err *err) {
    if (need(s->model || !isnan(s->params), word, "--model or --params", err) != 0) return -1;
    *params = s->model ? (double)flops_all_params(&s->config) : s->params;
    return 0;
}

static int word_checkpoint(struct sizes *s, struct size_sheet *sheet, struct err *err) {
    struct size_checkpoint in = {.seconds = s->seconds,
                                 .host_bandwidth = s->host_bandwidth,
                                 .cluster = s->cluster_text ? &s->cluster : NULL};
    return params_of(s, "checkpoint", &in.params, err) != 0 ? -1 : size_checkpoint(&in, sheet, err);
}

static int word_storage(struct sizes *s, struct size_sheet *sheet, struct err *err) {
    struct size_storage in = {.run_seconds = s->days * 86400,
                              .interval_seconds = s->interval,
                              .keep = s->keep,
                              .archive_every = s->archive_every,
                              .dataset_tokens = s->tokens,
                              .vocab = s->model ? s->config.vocab : s->vocab,
                              .cluster = s->cluster_text ? &s->cluster : NULL};
    return params_of(s, "storage", &in.params, err) != 0 ? -1 : size_storage(&in, sheet, err);
}

// Five numbers with commas between them.
static int five(const char *option, const char *text, double out[SIZE_POOLS], struct err *err) {
    const char *at = text;
    for (int i = 0; text && i < SIZE_POOLS; i++) {
        char *end;
        out[i] = strtod(at, &end);
        if (end == at || !isfinite(out[i]) || *end != (i + 1 < SIZE_POOLS ? ',' : 0))
            return err_set(err, ERR_USAGE,
                           "plan size rlhf: %s \"%.100s\": expected five numbers with commas "
                           "between them: rollout, reward, reference, value, update",
                           option, text);
        at = end + 1;
    }
    return 0;
}

static int word_rlhf(struct sizes *s, struct size_sheet *sheet, struct err *err) {
    static struct model_config policy, reward, value;
    struct size_rlhf in;
    double replicas[SIZE_POOLS];
    if (need(s->policy && s->cluster_text, "rlhf", "--policy and --cluster", err) != 0 ||
        plan_read_model(s->policy, &policy, err) != 0 ||
        plan_read_model(s->reward ? s->reward : s->policy, &reward, err) != 0 ||
        plan_read_model(s->value    ? s->value
                        : s->reward ? s->reward
                                    : s->policy,
                        &value, err) != 0)
        return -1;
    size_rlhf_defaults(&in);
    for (int p = 0; p < SIZE_POOLS; p++) replicas[p] = in.replica[p];
    if (five("--shares", s->shares, in.share, err) != 0 ||
        five("--replicas", s->replicas, replicas, err) != 0)
        return -1;
    for (int p = 0; p < SIZE_POOLS; p++) {
        if (!(replicas[p] >= 1 && replicas[p] <= 1e6))
            return err_set(err, ERR_USAGE,
                           "plan size rlhf: --replicas %g for %s: expected 1 to 1000000",
                           replicas[p], size_pool_name((enum size_pool)p));
        in.replica[p] = (int)replicas[p];
    }
    in.policy = &policy;
    in.reward = &reward;
    in.value = &value;
    in.accelerator = &s->cluster.accelerator;
    in.accelerators = accelerators(s);
    in.samples = s->samples;
    in.prompt_tokens = s->prompt;
    in.response_tokens = s->response;
    in.epochs = s->epochs;
    in.lora_rank = s->rank;
    in.forward_mfu = s->forward_mfu;
    in.train_mfu = s->train_mfu;
    in.host_bandwidth = s->host_bandwidth;
    return size_rlhf(&in, sheet, err);
}

static const struct {
    const char *name;
    int (*run)(struct sizes *sizes, struct size_sheet *sheet, struct err *err);
    const char *takes; // options, each between spaces
} words[] = {{"data", word_data,
              " tokens-per-second batch context steps-per-second model vocab shard-tokens workers "
              "operations cluster json "},
             {"packing", word_packing, " model context document cluster dollars json "},
             {"checkpoint", word_checkpoint, " model params cluster seconds host-bandwidth json "},
             {"storage", word_storage,
              " model params cluster days interval keep archive-every tokens vocab json "},
             {"rlhf", word_rlhf,
              " policy reward value cluster shares replicas samples prompt response epochs rank "
              "forward-mfu train-mfu host-bandwidth json "}};
enum { WORDS = sizeof words / sizeof words[0] };

static int run_word(const char *name, struct sizes *s, struct size_sheet *sheet, struct err *err) {
    const char *names[WORDS];
    for (int i = 0; i < WORDS; i++) {
        names[i] = words[i].name;
        if (name && strcmp(words[i].name, name) == 0)
            return read_inputs(s, err) != 0 ? -1 : words[i].run(s, sheet, err);
    }
    const char *nearest = name ? text_nearest(name, names, WORDS) : NULL;
    return err_set(err, ERR_USAGE,
                   "plan size%s%.100s%s: expected data, packing, checkpoint, storage or rlhf%s%s%s",
                   name ? " \"" : "", name ? name : "", name ? "\"" : "",
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static int print(const struct size_sheet *sheet, bool json, struct err *err) {
    struct text out = {0};
    char *text = NULL;
    if (json) {
        json_t *value = size_json(sheet);
        text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        json_decref(value);
    } else if (size_print(sheet, &out) == 0)
        text = out.data;
    if (text) fputs(text, stdout);
    if (text && json) putchar('\n');
    if (json) free(text);
    text_free(&out);
    return text ? 0 : err_set(err, ERR_MEMORY, "plan size: no memory for the sheet");
}

static const struct word options[] = {
    {"model", WORD_TEXT, offsetof(struct sizes, model)},
    {"cluster", WORD_TEXT, offsetof(struct sizes, cluster_text)},
    {"policy", WORD_TEXT, offsetof(struct sizes, policy)},
    {"reward", WORD_TEXT, offsetof(struct sizes, reward)},
    {"value", WORD_TEXT, offsetof(struct sizes, value)},
    {"shares", WORD_TEXT, offsetof(struct sizes, shares)},
    {"replicas", WORD_TEXT, offsetof(struct sizes, replicas)},
    {"tokens-per-second", WORD_NUMBER, offsetof(struct sizes, tokens_per_second)},
    {"batch", WORD_NUMBER, offsetof(struct sizes, batch)},
    {"steps-per-second", WORD_NUMBER, offsetof(struct sizes, steps_per_second)},
    {"shard-tokens", WORD_NUMBER, offsetof(struct sizes, shard_tokens)},
    {"operations", WORD_NUMBER, offsetof(struct sizes, operations)},
    {"document", WORD_NUMBER, offsetof(struct sizes, document)},
    {"dollars", WORD_NUMBER, offsetof(struct sizes, dollars)},
    {"params", WORD_NUMBER, offsetof(struct sizes, params)},
    {"seconds", WORD_SECONDS, offsetof(struct sizes, seconds)},
    {"host-bandwidth", WORD_NUMBER, offsetof(struct sizes, host_bandwidth)},
    {"days", WORD_NUMBER, offsetof(struct sizes, days)},
    {"interval", WORD_SECONDS, offsetof(struct sizes, interval)},
    {"tokens", WORD_NUMBER, offsetof(struct sizes, tokens)},
    {"forward-mfu", WORD_NUMBER, offsetof(struct sizes, forward_mfu)},
    {"train-mfu", WORD_NUMBER, offsetof(struct sizes, train_mfu)},
    {"vocab", WORD_COUNT, offsetof(struct sizes, vocab)},
    {"context", WORD_COUNT, offsetof(struct sizes, context)},
    {"workers", WORD_COUNT, offsetof(struct sizes, workers)},
    {"keep", WORD_COUNT, offsetof(struct sizes, keep)},
    {"archive-every", WORD_COUNT, offsetof(struct sizes, archive_every)},
    {"samples", WORD_COUNT, offsetof(struct sizes, samples)},
    {"prompt", WORD_COUNT, offsetof(struct sizes, prompt)},
    {"response", WORD_COUNT, offsetof(struct sizes, response)},
    {"epochs", WORD_COUNT, offsetof(struct sizes, epochs)},
    {"rank", WORD_COUNT, offsetof(struct sizes, rank)},
    {"json", WORD_FLAG, offsetof(struct sizes, json)},
};

static bool is_given(const struct words *given, const char *name) {
    for (int k = 0; k < given->count; k++)
        if (strcmp(given->list[k].name, name) == 0) return given->given[k] != NULL;
    return false;
}

// That the word takes what is given, and that no two options say the same thing.
static int check_given(const struct words *given, const char *word, struct err *err) {
    static const char *const pairs[][2] = {{"model", "params"},
                                           {"model", "vocab"},
                                           {"tokens-per-second", "batch"},
                                           {"tokens-per-second", "steps-per-second"}};
    const char *takes = NULL;
    for (int i = 0; word && i < WORDS; i++)
        if (strcmp(words[i].name, word) == 0) takes = words[i].takes;
    for (int k = 0; takes && k < given->count; k++) {
        char name[64];
        snprintf(name, sizeof name, " %s ", given->list[k].name);
        if (given->given[k] && !strstr(takes, name))
            return err_set(err, ERR_USAGE, "plan size %s: --%s is no option of it; expected%.*s",
                           word, given->list[k].name, (int)strlen(takes) - 1, takes);
    }
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++)
        if (is_given(given, pairs[p][0]) && is_given(given, pairs[p][1]))
            return err_set(err, ERR_USAGE, "plan size: --%s and --%s: expected one of the two",
                           pairs[p][0], pairs[p][1]);
    return 0;
}

static int check_counts(const struct words *given, const struct sizes *s, struct err *err) {
    if (is_given(given, "context") && s->context < 1)
        return err_set(err, ERR_USAGE, "plan size: --context %d: expected 1 at least", s->context);
    if (is_given(given, "vocab") && s->vocab < 1)
        return err_set(err, ERR_USAGE, "plan size: --vocab %d: expected 1 at least", s->vocab);
    return 0;
}

int plan_size(int argc, char **argv) {
    static struct size_sheet sheet;
    struct sizes s = {.tokens_per_second = NAN,
                      .batch = NAN,
                      .steps_per_second = NAN,
                      .params = NAN,
                      .shard_tokens = 1e8,
                      .operations = 1,
                      .document = 600,
                      .seconds = 60,
                      .host_bandwidth = SIZE_HOST_BANDWIDTH,
                      .days = 30,
                      .interval = 600,
                      .forward_mfu = 0.5,
                      .train_mfu = 0.4,
                      .vocab = 128256,
                      .workers = 64,
                      .keep = 3,
                      .archive_every = 100,
                      .samples = 1024,
                      .prompt = 512,
                      .response = 1024,
                      .epochs = 1,
                      .rank = 16};
    struct err err = {0};
    const char *word = NULL;
    struct words *given = calloc(1, sizeof *given);
    int result = given ? words_read_options(given, options, sizeof options / sizeof options[0],
                                            argc, argv, &word, &err)
                       : err_set(&err, ERR_MEMORY, "no memory for the options");
    if (result == 1) fputs(usage, stdout);
    if (result == 0) result = check_given(given, word, &err);
    if (result == 0) result = words_store(given, &s, &err);
    if (result == 0) result = check_counts(given, &s, &err);
    if (result == 0) result = run_word(word, &s, &sheet, &err);
    if (s.catalogue) catalogue_close(s.catalogue);
    if (result == 0) result = print(&sheet, s.json, &err);
    if (given) words_free(given);
    free(given);
    return result >= 0 ? 0 : cli_fail(&err);
}
