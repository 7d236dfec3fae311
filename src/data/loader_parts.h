// What the files loader*.c share: the sets, and a reader's view of them.
#pragma once
#include "base/record.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/mix.h"
#include "data/order.h"
#include "data/pack.h"
#include "data/store.h"

struct loader_source { // one set
    struct dataset data;
    uint64_t *first_token;  // [shards + 1] in the shards laid end to end
    uint64_t *first_sample; // [shards + 1]
    uint64_t samples;
    uint64_t sample_base; // samples of the sets before
    uint32_t store_base;  // number of the first shard in the store
    struct order order;
    struct pack_plan plan; // LOADER_PACK
};

struct loader_sets {
    struct loader_source *source;
    int count;
    struct mix mix;
    struct store *store;
    uint64_t digest;
};

struct loader_reader { // one thread's working memory
    const struct loader_options *options;
    struct loader_sets *sets;
    struct order_space spaces[LOADER_MAX_SETS];
    struct store_counts counts;
    uint64_t reads;
    double read_seconds;
    struct record_lane lane;
};

int loader_sets_open(struct loader_sets *sets, const struct loader_options *options,
                     struct err *err);
void loader_sets_close(struct loader_sets *sets);
int loader_reader_open(struct loader_reader *reader, const struct loader_options *options,
                       struct loader_sets *sets, struct err *err);
void loader_reader_close(struct loader_reader *reader);

// Which sample is drawn at place `n` of the run; *next_shard (of the set) is the one whose turn
// comes next.
uint64_t loader_draw(struct loader_reader *reader, uint64_t n, int *set, uint32_t *next_shard);
// Fills a micro-batch with the samples drawn at n, n + 1, ...
int loader_fill(struct loader_reader *reader, uint64_t n, struct batch *batch, struct err *err);
// Shard of a set that holds a token of its shards laid end to end.
uint32_t loader_shard_of_token(const struct loader_source *source, uint64_t token);
// loader_origin with a reader of the caller's own.
int loader_find_origin(struct loader_reader *reader, uint64_t n, struct loader_origin *out,
                       struct err *err);
