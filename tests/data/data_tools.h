// Shards and loaders of a few tokens, for the tests of this folder.
#pragma once
#include "base/error.h"
#include "data/loader.h"
#include "data/shard_write.h"
#include <stddef.h>
#include <stdint.h>

// Documents as one list, each closed by -1, the whole by -2.
#define DOCUMENTS(...) ((const int[]){__VA_ARGS__, -2})

// "SCRATCH/name" of the running test.
const char *tools_path(const char *name);
void tools_write(const char *path, const void *data, size_t bytes);
struct shard_info tools_like(enum shard_kind kind, uint64_t vocab); // no eod, no bos
void tools_shard(const char *path, const struct shard_info *like, const int *documents);
// One document with ids 0, 1, ... count - 1 (modulo vocab).
void tools_counting_shard(const char *path, uint64_t vocab, uint32_t first, uint32_t count);
// Documents of varied lengths with random ids.
void tools_random_shard(const char *path, uint64_t seed, uint64_t vocab, uint32_t documents,
                        uint32_t longest);

struct tools_loader {
    struct loader_options options;
    void *memory;
    struct loader *loader;
};
struct loader_options tools_options(const char *path, int context); // one set, one row, one reader
void tools_open(struct tools_loader *t, const struct loader_options *options); // fails the test
void tools_close(struct tools_loader *t);
struct batch *const *tools_step(struct tools_loader *t, uint64_t sample);
