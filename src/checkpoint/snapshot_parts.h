// What the sources of snapshots share. Inside the room only.
#pragma once
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"

#define SNAPSHOT_GENERATION "gen-%d"
// In the tree of a state that was put together from images: their generations, by rank.
#define SNAPSHOT_GENERATIONS_KEY "generations"

// The text of a .json, parsed and compared with its own hash. The caller releases the tree.
json_t *snapshot_read_tree(const char *text, size_t bytes, const char *where,
                           struct snapshot_image *image, struct err *err);
// Hashes the parts of `image` (mapped) and compares. `where` stands in messages.
int snapshot_check_parts(const json_t *tree, const char *image, uint64_t bytes, const char *where,
                         const atomic_bool *stop, struct err *err);
// Hash of bytes in pieces, with a look at `stop` (may be NULL) between them.
int snapshot_hash(const char *data, uint64_t bytes, const atomic_bool *stop, uint64_t *hash,
                  struct err *err);
