// The shards that readers use: opened when first needed, shared by all readers, closed when many
// are open; and, where a cache folder is given, replaced by local copies that a thread makes ahead
// of use.
//
// The cache is an accelerator and never a reason to fail: when the folder is full, too small or
// cannot be written, there is one warning and shards are read where they lie. A copy has a name
// made from path, size, time and content of its original and gets that name only when it is
// complete and on disk, so a later run may trust it and a killed one leaves nothing that looks
// finished.
#pragma once
#include "base/error.h"
#include "base/record.h"
#include "data/shard.h"
#include <stdbool.h>
#include <stdint.h>

struct store_shard { // what the caller knows of a shard; the path must stay
    const char *path;
    struct shard_info info;
};
struct store_counts {
    uint64_t opens, cache_hits, cache_misses;
    double open_seconds;
};
struct store;
// `evict`: the cache gives up the shard that was not used for longest; without it, a full cache
// stays as it is (right for orders that jump between all shards).
struct store *store_open(const struct store_shard *shards, uint32_t count, const char *cache_folder,
                         uint64_t cache_bytes, bool evict, struct err *err);
void store_close(struct store *store);

// A shard to read from until store_release. `lane` may be NULL.
const struct shard *store_acquire(struct store *store, uint32_t id, struct store_counts *counts,
                                  struct record_lane *lane, struct err *err);
void store_release(struct store *store, uint32_t id);
// A shard that will be read soon: copied into the cache.
void store_expect(struct store *store, uint32_t id);
