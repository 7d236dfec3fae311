// A data set: the shards behind one path, in order.
//
// The path may be a folder with dataset.json (its train split), one of the split folders in it, any
// folder of *.weft or
// *.bin files, a single shard, or the prefix of a Megatron pair.
#pragma once
#include "base/error.h"
#include "data/shard.h"
#include <stdint.h>

#define DATASET_UNFINISHED "dataset.unfinished" // stands in the folder while it is being prepared

struct dataset {
    char **paths;
    struct shard_info *infos;
    size_t count;
    uint64_t tokens, documents, text_bytes; // sums
};
// Looks into the header of every shard; all must be of one vocabulary, tokenizer and kind of ends.
int dataset_open(struct dataset *set, const char *path, struct err *err);
void dataset_close(struct dataset *set);

// Folder of the tokenizer that a prepared data set was made with: "tokenizer" in the folder or
// beside it. 0, or -1 with a message when there is none.
int dataset_tokenizer(const char *path, char out[4096], struct err *err);
