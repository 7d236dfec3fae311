// Checks between keys, in the user's words and with values that would do; and what the rooms below
// get from a configuration. See config.h.
#include "train/config_table.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count_items(const char *list) {
    int count = list[0] != 0;
    for (; *list; list++) count += *list == ',';
    return count;
}

// The batch that `parts` divides next to `batch`, as "8 or 16".
static const char *near_batches(int batch, int64_t parts, char out[64]) {
    int64_t below = batch / parts * parts, above = below + parts;
    if (below > 0)
        snprintf(out, 64, "%lld or %lld", (long long)below, (long long)above);
    else
        snprintf(out, 64, "%lld", (long long)above);
    return out;
}

int config_usual_micro_batch(const struct train_config *config, int replicas) {
    enum { MOST_TOKENS = 8192 };
    int share = config->batch % replicas == 0 ? config->batch / replicas : config->batch;
    for (int rows = share; rows > 1; rows--)
        if (share % rows == 0 && (int64_t)rows * config->context / config->cp <= MOST_TOKENS)
            return rows;
    return 1;
}

int config_check_batches(const struct train_config *c, int replicas, struct err *err) {
    char near[64], batches[64], place[1200];
    int64_t parts = (int64_t)replicas * c->micro_batch;
    if (c->batch % replicas != 0)
        return err_set(
            err, ERR_USAGE,
            "%s: train.batch (%d) is not a multiple of the %d replicas of dp, each of which takes "
            "an equal share; with this batch dp can be %s, or with this dp the batch %s",
            config_place(c, CONFIG_OPTION(batch), place), c->batch, replicas,
            mesh_nearest_divisors(c->batch, replicas, near),
            near_batches(c->batch, parts, batches));
    if (c->batch % parts != 0)
        return err_set(err, ERR_USAGE,
                       "%s: train.micro_batch (%d) does not divide %s (%d%s); with this "
                       "batch use a micro-batch of %s, or with this micro-batch a batch of %s",
                       config_place(c, CONFIG_OPTION(micro_batch), place), c->micro_batch,
                       replicas > 1 ? "a replica's share of train.batch" : "train.batch",
                       c->batch / replicas, replicas > 1 ? ", train.batch / dp" : "",
                       mesh_nearest_divisors(c->batch / replicas, c->micro_batch, near),
                       near_batches(c->batch, parts, batches));
    struct train_schedule s;
    config_schedule(c, &s);
    if (schedule_parse_ramp(&s, c->batch_ramp, err) != 0)
        return err_context(err, "%s: train.batch_ramp",
                           config_place(c, CONFIG_OPTION(batch_ramp), place));
    for (int i = 0; i < s.ramp_count; i++)
        if (s.ramp[i].batch % parts != 0 || s.ramp[i].batch > c->batch)
            return err_set(
                err, ERR_USAGE,
                "%s: train.batch_ramp: %d must be a multiple of train.micro_batch (%d)%s and at "
                "most train.batch (%d)",
                config_place(c, CONFIG_OPTION(batch_ramp), place), s.ramp[i].batch, c->micro_batch,
                replicas > 1 ? " times the replicas of dp" : "", c->batch);
    return 0;
}

static int check_schedule(const struct train_config *c, struct err *err) {
    static const char *const units[] = {"steps", "samples", "tokens"};
    struct train_schedule s;
    char place[1200];
    config_schedule(c, &s);
    int64_t length = schedule_length(&s);
    if (c->warmup > length)
        return err_set(err, ERR_USAGE,
                       "%s: schedule.warmup (%lld %s) is longer than the run (%lld %s)",
                       config_place(c, CONFIG_OPTION(warmup), place), (long long)c->warmup,
                       units[c->unit], (long long)length, units[c->unit]);
    if (c->schedule != SCHEDULE_WSD && c->decay > 0)
        return err_set(err, ERR_USAGE, "%s: schedule.decay is for schedule.kind wsd only",
                       config_place(c, CONFIG_OPTION(decay), place));
    if (c->schedule == SCHEDULE_WSD && c->warmup + c->decay > length)
        return err_set(
            err, ERR_USAGE,
            "%s: schedule.warmup (%lld) and schedule.decay (%lld) together are longer than the run "
            "(%lld %s)",
            config_place(c, CONFIG_OPTION(decay), place), (long long)c->warmup, (long long)c->decay,
            (long long)length, units[c->unit]);
    if (c->stop_at > c->steps)
        return err_set(err, ERR_USAGE, "%s: train.stop_at (%lld) lies behind train.steps (%lld)",
                       config_place(c, CONFIG_OPTION(stop_at), place), (long long)c->stop_at,
                       (long long)c->steps);
    return 0;
}

static int check_data(const struct train_config *c, struct err *err) {
    char place[1200];
    int sets = count_items(c->train_sets), weights = count_items(c->weights);
    if (c->context > c->model.context)
        return err_set(
            err, ERR_USAGE,
            "%s: data.context (%d) is longer than the model's context (%d); shorten it, or "
            "raise model.context",
            config_place(c, CONFIG_OPTION(context), place), c->context, c->model.context);
    if ((int64_t)c->context * c->micro_batch > INT32_MAX / 2)
        return err_set(err, ERR_USAGE,
                       "train.micro_batch (%d) of data.context (%d) tokens is more than can be "
                       "processed at once",
                       c->micro_batch, c->context);
    if (weights > 0 && weights != sets)
        return err_set(err, ERR_USAGE,
                       "%s: data.weights has %d values for the %d sets of data.train",
                       config_place(c, CONFIG_OPTION(weights), place), weights, sets);
    if (sets > LOADER_MAX_SETS || count_items(c->validation_sets) > LOADER_MAX_SETS)
        return err_set(err, ERR_USAGE, "data.train and data.validation: at most %d sets each",
                       LOADER_MAX_SETS);
    double sum = 0;
    for (const char *at = c->weights; *at; at += *at == ',') {
        char *end;
        sum += strtod(at, &end);
        at = end;
    }
    if (weights > 0 && !(sum > 0))
        return err_set(err, ERR_USAGE, "%s: data.weights: at least one must be above 0",
                       config_place(c, CONFIG_OPTION(weights), place));
    return 0;
}

static int small_vocabulary(const struct train_config *c, struct err *err) {
    char place[1200];
    return err_set(err, ERR_USAGE,
                   "%s: model.vocab (%d) is smaller than the vocabulary of the tokenizer %s (%u); "
                   "raise it to %u, or leave it away to follow the tokenizer",
                   config_place(c, CONFIG_OPTION(model.vocab), place), c->model.vocab, c->tokenizer,
                   c->tokenizer_vocab, c->tokenizer_vocab);
}

static int check_faults(const struct train_config *config, struct err *err) {
    struct fault list[FAULT_MOST];
    char place[1200];
    int count;
    if (config_faults(config, list, &count, err) == 0) return 0;
    return err_context(err, "%s", config_place(config, CONFIG_OPTION(fault_kind), place));
}

int config_keep_steps(const struct train_config *c, int64_t **steps, int *count, struct err *err) {
    char place[1200];
    int64_t *list = malloc(((size_t)count_items(c->keep_steps) + 1) * sizeof *list);
    int used = 0;
    if (!list) return err_set(err, ERR_MEMORY, "no memory for checkpoint.keep_steps");
    for (char *at = (char *)c->keep_steps; *at; at += *at == ',') {
        double step = strtod(at, &at); // was checked when it was read
        list[used++] = (int64_t)step;
        if (step == floor(step)) continue;
        free(list);
        return err_set(err, ERR_USAGE, "%s: checkpoint.keep_steps: %.10g is not a whole number",
                       config_place(c, CONFIG_OPTION(keep_steps), place), step);
    }
    *steps = list;
    *count = used;
    return 0;
}

static int check_keep_steps(const struct train_config *c, struct err *err) {
    int64_t *steps;
    int count;
    if (config_keep_steps(c, &steps, &count, err) != 0) return -1;
    free(steps);
    return 0;
}

int config_cross_check(struct train_config *config, struct err *err) {
    int replicas = config->dp > 0 ? config->dp : 1; // 0: the world is not known yet
    if (check_data(config, err) != 0 || config_check_batches(config, replicas, err) != 0 ||
        check_schedule(config, err) != 0 || config_check_parallel(config, err) != 0 ||
        check_faults(config, err) != 0 || check_keep_steps(config, err) != 0)
        return -1;
    if (config->from[0]) return 0;
    // ids that are written into exported models must exist there
    const struct model_config *m = &config->model;
    if (config->tokenizer_vocab > (uint32_t)m->vocab) return small_vocabulary(config, err);
    if (m->bos_id >= m->vocab || m->eos_id >= m->vocab)
        return err_set(
            err, ERR_USAGE,
            "model.bos (%d) and model.eos (%d) must be below model.vocab (%d); -1 means none",
            m->bos_id, m->eos_id, m->vocab);
    return 0;
}

int config_check_run(struct train_config *config, struct err *err) {
    char place[1200];
    if (!config->train_sets[0])
        return err_set(
            err, ERR_USAGE,
            "%s: data.train is not given; it names the shards that \"weft data prepare\" made",
            config->path[0] ? config->path : "command line");
    if (config->eval_every > 0 && !config->validation_sets[0])
        return err_set(err, ERR_USAGE, "%s: eval.every is given, but data.validation is not",
                       config_place(config, CONFIG_OPTION(eval_every), place));
    if (config_read_tokenizer(config, err) != 0) return -1;
    if (config->tokenizer_vocab > (uint32_t)config->model.vocab)
        return small_vocabulary(config, err);
    return 0;
}

bool config_takes_snapshots(const struct train_config *c) {
    bool saves = c->checkpoint_every > 0 || c->checkpoint_interval == INTERVAL_AUTO;
    return c->snapshot == SWITCH_ON || (c->snapshot == SWITCH_AUTO && saves);
}

void config_engine(const struct train_config *c, struct engine_options *out) {
    *out = (struct engine_options){
        .compute = c->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32,
        .recompute = c->recompute,
        .rows = c->micro_batch,
        .context = c->context,
        .micro_batches = config_micro_batches(c),
        .train = true,
        .snapshots = config_takes_snapshots(c),
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .weight_decay = c->weight_decay,
        .dropout = c->dropout,
        .guards = {.optimizer = c->guard_optimizer,
                   .gradients = c->guard_gradients,
                   .weights_every = (int)c->weights_every,
                   .products_every = (int)c->products_every},
        .experts = {.aux_coefficient = c->model.aux_coefficient,
                    .aux_global = c->aux_scope == AUX_GLOBAL,
                    .z_coefficient = c->z_coefficient,
                    .capacity_factor = c->capacity,
                    .bias_rate = c->bias_rate,
                    .wave = c->wave},
    };
}

void config_device(const struct train_config *c, struct device_cpu_options *out) {
    *out = (struct device_cpu_options){.threads = c->threads, .limit = c->isa};
}

int config_loader(const struct train_config *c, bool validation, int batch,
                  struct config_paths *storage, struct loader_options *out, struct err *err) {
    bool packs = c->mode == LOADER_PACK;
    *out = (struct loader_options){
        .context = c->context,
        .rows = c->micro_batch,
        .micro_batches = validation ? 1 : batch / c->replicas / c->micro_batch,
        .mode = c->mode,
        .document_mask = c->document_mask == SWITCH_AUTO ? packs : c->document_mask == SWITCH_ON,
        .reset_positions =
            c->reset_positions == SWITCH_AUTO ? packs : c->reset_positions == SWITCH_ON,
        .shuffle = validation ? SHUFFLE_NONE : c->shuffle,
        .shuffle_window = c->shuffle_window,
        .seed = (uint64_t)c->seed,
        .readers = validation ? 1 : c->readers,
        .steps_ahead = validation ? 1 : c->steps_ahead,
        .vocab = c->model.vocab,
        .tokenizer_fingerprint = c->tokenizer_fingerprint,
        .cache_folder = c->cache_folder[0] && !validation ? c->cache_folder : NULL,
        .cache_bytes = c->cache_bytes,
        .ranks = c->replicas,
    };
    snprintf(storage->text, sizeof storage->text, "%s",
             validation ? c->validation_sets : c->train_sets);
    const char *weight = validation ? "" : c->weights;
    for (char *path = storage->text; *path; out->set_count++) {
        char *end = path + strcspn(path, ","), *after = NULL;
        if (out->set_count == LOADER_MAX_SETS)
            return err_set(err, ERR_USAGE, "at most %d sets", LOADER_MAX_SETS);
        struct loader_set *set = &out->sets[out->set_count];
        set->path = path;
        set->weight = *weight ? strtod(weight, &after) : 1;
        if (after) weight = after + (*after == ',');
        path = *end ? end + 1 : end;
        *end = 0;
    }
    return 0;
}

int config_loader_bytes(const struct train_config *c, uint64_t *training, uint64_t *both,
                        struct err *err) {
    struct loader_options options;
    struct config_paths *paths = malloc(sizeof *paths);
    if (!paths) return err_set(err, ERR_MEMORY, "no memory for the paths of the data");
    int status = config_loader(c, false, c->batch, paths, &options, err);
    if (status == 0) *training = *both = (loader_bytes(&options) + 63) / 64 * 64;
    if (status == 0) status = config_loader(c, true, c->batch, paths, &options, err);
    if (status == 0 && options.set_count > 0) *both += loader_bytes(&options);
    free(paths);
    return status;
}

void config_schedule(const struct train_config *c, struct train_schedule *out) {
    *out = (struct train_schedule){
        .kind = c->schedule,
        .unit = c->unit,
        .peak = c->learning_rate,
        .min_ratio = c->min_ratio,
        .warmup = c->warmup,
        .decay = c->decay,
        .decay_shape = c->decay_shape,
        .steps = c->steps,
        .context = c->context,
        .batch = c->batch,
    };
    schedule_parse_ramp(out, c->batch_ramp, NULL); // was checked when the configuration was read
}
