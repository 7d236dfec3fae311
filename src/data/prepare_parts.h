// What the files prepare*.c share: the encoding of a block of records, and the folder being
// written.
#pragma once
#include "data/prepare.h"
#include "data/shard_write.h"
#include <jansson.h>

// --- encoding (prepare_encode.c) ---

enum prepare_fate { FATE_KEPT, FATE_EMPTY, FATE_BAD };
struct prepared_record {
    enum prepare_fate fate;
    size_t tokens, text_bytes;
};
struct prepared_piece {  // consecutive records, encoded by one thread
    size_t first, count; // records of the block
    struct token_list ids;
    struct text text; // of a JSON line with escapes
    struct err err;
};
struct prepare_encoder {
    const struct prepare_options *options;
    const struct input *input;
    int threads;
    struct tokenizer_scratch **scratch; // [threads]
    struct prepared_record *records;    // of the block
    size_t record_capacity;
    struct prepared_piece *pieces;
    size_t piece_count, piece_capacity;
    uint64_t large_invalid_bytes;
};
int prepare_encoder_open(struct prepare_encoder *encoder, const struct prepare_options *options,
                         const struct input *input, struct err *err);
void prepare_encoder_close(struct prepare_encoder *encoder);
// Fills records and pieces of the block; with `count_only`, fates without ids.
int prepare_encode(struct prepare_encoder *encoder, const struct input_block *block,
                   bool count_only, struct err *err);
uint64_t prepare_invalid_bytes(const struct prepare_encoder *encoder);

// --- the folder (prepare_write.c) ---

struct prepare_split {
    const char *name;            // "train", "validation"
    struct shard_writer *writer; // NULL: no shard open
    uint64_t shards;
    json_t *list; // of finished shards, for dataset.json
};
struct prepare_folder {
    const struct prepare_options *options;
    struct shard_info like;
    struct prepare_split splits[2];
};
int prepare_folder_open(struct prepare_folder *folder, const struct prepare_options *options,
                        struct err *err);
int prepare_folder_document(struct prepare_folder *folder, int split, const uint32_t *ids,
                            size_t count, size_t text_bytes, struct err *err);
// Last shards, tokenizer, dataset.json.
int prepare_folder_finish(struct prepare_folder *folder, const struct prepare_counts *counts,
                          struct err *err);
void prepare_folder_close(struct prepare_folder *folder);
