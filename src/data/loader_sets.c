// Opening the sets of a loader: shards, samples, orders, packing plans; see loader.h.
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "data/loader_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_WINDOW = 16384 };

static int check_options(const struct loader_options *o, struct err *err) {
    if (o->set_count < 1 || o->set_count > LOADER_MAX_SETS)
        return err_set(err, ERR_USAGE, "%d data sets; expected 1 to %d", o->set_count,
                       LOADER_MAX_SETS);
    if (o->context < 1 || o->rows < 1 || o->micro_batches < 1 || o->readers < 1 ||
        o->steps_ahead < 1)
        return err_set(err, ERR_USAGE,
                       "context %d, rows %d, micro-batches %d, readers %d, steps ahead %d: each "
                       "must be at least 1",
                       o->context, o->rows, o->micro_batches, o->readers, o->steps_ahead);
    if ((int64_t)o->rows * o->context > INT32_MAX / 4)
        return err_set(err, ERR_USAGE, "%d rows of %d positions are too many for one micro-batch",
                       o->rows, o->context);
    if (o->ranks < 1 || o->rank < 0 || o->rank >= o->ranks)
        return err_set(err, ERR_USAGE, "rank %d of %d", o->rank, o->ranks);
    return 0;
}

static int open_data(struct loader_source *s, const char *path, const struct loader_options *o,
                     struct err *err) {
    if (dataset_open(&s->data, path, err) != 0) return -1;
    size_t count = s->data.count;
    s->first_token = malloc((count + 1) * sizeof *s->first_token);
    s->first_sample = malloc((count + 1) * sizeof *s->first_sample);
    if (!s->first_token || !s->first_sample)
        return err_set(err, ERR_MEMORY, "%s: no memory for its %zu shards", path, count);
    s->first_token[0] = 0;
    for (size_t i = 0; i < count; i++) {
        if (shard_check(&s->data.infos[i], s->data.paths[i], (uint64_t)o->vocab,
                        o->tokenizer_fingerprint, err) != 0)
            return -1;
        s->first_token[i + 1] = s->first_token[i] + s->data.infos[i].tokens;
    }
    return 0;
}

static int cut_into_chunks(struct loader_source *s, const char *path, uint64_t context,
                           struct err *err) {
    uint64_t tokens = s->data.tokens;
    s->samples = (tokens - 1) / context;
    if (s->samples == 0)
        return err_set(
            err, ERR_DATA,
            "%s: holds %llu tokens, fewer than the %llu that one sample takes (context + "
            "1); use more text or a shorter context",
            path, (unsigned long long)tokens, (unsigned long long)context + 1);
    for (size_t i = 0; i <= s->data.count; i++) {
        uint64_t sample = (s->first_token[i] + context - 1) / context;
        s->first_sample[i] = sample < s->samples ? sample : s->samples;
    }
    s->first_sample[s->data.count] = s->samples;
    return 0;
}

static int pack_documents(struct loader_source *s, const char *path, uint32_t context,
                          struct err *err) {
    if (pack_open(&s->plan, context, err) != 0) return -1;
    s->first_sample[0] = 0;
    for (size_t i = 0; i < s->data.count; i++) {
        struct shard shard;
        if (shard_open(&shard, s->data.paths[i], NULL, err) != 0) return -1;
        int result = pack_add(&s->plan, &shard, err);
        shard_close(&shard);
        if (result != 0) return -1;
        s->first_sample[i + 1] = s->plan.rows;
    }
    s->samples = s->plan.rows;
    if (s->samples == 0)
        return err_set(err, ERR_DATA, "%s: no document has the two tokens that packing needs",
                       path);
    if (s->data.documents <= s->data.count && s->data.infos[0].kind != SHARD_WEFT)
        log_line(LOG_WARN,
                 "%s: %s files do not say where documents end, so each file is packed as one "
                 "document",
                 path, shard_kind_name(s->data.infos[0].kind));
    return 0;
}

static int open_source(struct loader_source *s, int index, const struct loader_options *o,
                       struct err *err) {
    const char *path = o->sets[index].path;
    if (open_data(s, path, o, err) != 0) return -1;
    int result = o->mode == LOADER_PACK ? pack_documents(s, path, (uint32_t)o->context, err)
                                        : cut_into_chunks(s, path, (uint64_t)o->context, err);
    if (result != 0) return -1;
    char stream[32];
    snprintf(stream, sizeof stream, "data.order.%d", index);
    s->order = (struct order){.shuffle = o->shuffle,
                              .key = random_key(o->seed, stream),
                              .window = o->shuffle_window > 0 ? (uint64_t)o->shuffle_window
                                                              : DEFAULT_WINDOW,
                              .shards = (uint32_t)s->data.count,
                              .first = s->first_sample};
    return 0;
}

static int open_store(struct loader_sets *sets, const struct loader_options *o, struct err *err) {
    uint64_t count = 0;
    for (int i = 0; i < sets->count; i++) {
        sets->source[i].store_base = (uint32_t)count;
        count += sets->source[i].data.count;
    }
    bool sane = count > 0 && count < UINT32_MAX;
    struct store_shard *shards = sane ? calloc(count, sizeof *shards) : NULL;
    if (!shards)
        return err_set(err, ERR_MEMORY, "no memory for %llu shards", (unsigned long long)count);
    uint64_t at = 0;
    for (int i = 0; i < sets->count; i++)
        for (size_t j = 0; j < sets->source[i].data.count; j++)
            shards[at++] =
                (struct store_shard){sets->source[i].data.paths[j], sets->source[i].data.infos[j]};
    sets->store = store_open(shards, (uint32_t)count, o->cache_folder, o->cache_bytes,
                             o->shuffle != SHUFFLE_SAMPLE, err);
    free(shards);
    return sets->store ? 0 : -1;
}

// Content and order, but no paths: ranks may hold their data in different places.
static uint64_t digest(const struct loader_sets *sets, const struct loader_options *o) {
    struct hash_stream h;
    hash_begin(&h);
    for (int i = 0; i < sets->count; i++) {
        const struct loader_source *s = &sets->source[i];
        for (size_t j = 0; j < s->data.count; j++) {
            uint64_t facts[3] = {s->data.infos[j].content_hash, s->first_token[j + 1],
                                 s->first_sample[j + 1]};
            hash_put(&h, facts, sizeof facts);
        }
    }
    uint64_t facts[] = {o->seed,           (uint64_t)o->context,         o->mode,
                        o->shuffle,        sets->source[0].order.window, o->document_mask,
                        o->reset_positions};
    hash_put(&h, facts, sizeof facts);
    for (int i = 0; i < 2 * sets->count - 1; i++) hash_put(&h, &sets->mix.nodes[i].share, 8);
    return hash_end(&h);
}

int loader_sets_open(struct loader_sets *sets, const struct loader_options *o, struct err *err) {
    *sets = (struct loader_sets){.count = 0};
    if (check_options(o, err) != 0) return -1;
    sets->source = calloc((size_t)o->set_count, sizeof *sets->source);
    if (!sets->source) return err_set(err, ERR_MEMORY, "no memory for %d data sets", o->set_count);
    sets->count = o->set_count;
    double weights[LOADER_MAX_SETS];
    for (int i = 0; i < o->set_count; i++) weights[i] = o->sets[i].weight;
    if (o->set_count == 1 && weights[0] == 0) weights[0] = 1;
    int result = mix_open(&sets->mix, weights, o->set_count, err);
    uint64_t samples = 0;
    for (int i = 0; i < o->set_count && result == 0; i++) {
        result = open_source(&sets->source[i], i, o, err);
        sets->source[i].sample_base = samples;
        samples += sets->source[i].samples;
    }
    if (result == 0) result = open_store(sets, o, err);
    if (result == 0)
        sets->digest = digest(sets, o);
    else
        loader_sets_close(sets);
    return result;
}

void loader_sets_close(struct loader_sets *sets) {
    store_close(sets->store);
    for (int i = 0; i < sets->count; i++) {
        struct loader_source *s = &sets->source[i];
        dataset_close(&s->data);
        pack_close(&s->plan);
        free(s->first_token);
        free(s->first_sample);
    }
    free(sets->source);
    *sets = (struct loader_sets){.count = 0};
}
