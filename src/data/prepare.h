// From text to shards: documents are read in order, tokenised by many threads and written in order,
// so that the result does not depend on the number of threads.
//
// What is made in the folder `out`:
//     train/shard-00000.weft ...       (or train/data.bin and .idx in Megatron's format)
//     validation/...                   when a part is held out
//     tokenizer/                       tokenizer.json and its configuration, which training and
//     export look for dataset.json                     shards, counts and hashes; written last
// As long as dataset.json is missing, dataset.unfinished says so.
#pragma once
#include "base/error.h"
#include "data/input.h"
#include "data/shard.h"
#include "data/tokenizer.h"

enum { PREPARE_NONE = -1 };

struct prepare_counts {
    uint64_t documents[2], tokens[2], text_bytes[2]; // [0] training, [1] validation
    uint64_t skipped_empty;                          // documents of nothing or white space
    uint64_t skipped_bad;                            // lines that are not JSON or lack the field
    uint64_t invalid_bytes;                  // outside valid UTF-8; kept where the tokenizer can
    uint64_t input_bytes, input_total_bytes; // read so far, on disk
    uint64_t files;
    double seconds;
};

struct prepare_options {
    struct input_options input;
    const char *field; // of JSON lines
    bool skip_bad;     // lines that are not usable are counted, not refused
    const struct tokenizer *tokenizer;
    bool parse_special; // special tokens written in the text become their ids
    int32_t eod, bos;   // ids put behind and in front of every document, or PREPARE_NONE
    const char *out;
    bool overwrite;         // a data set that stands there is replaced
    enum shard_kind format; // SHARD_WEFT or SHARD_MEGATRON
    uint64_t
        shard_tokens;  // a shard ends with the document that reaches this; 0: PREPARE_SHARD_TOKENS
    double validation; // below 1: share of documents, chosen by hash of their number; from 1 on:
                       // exactly so many
    uint64_t seed;     // of that choice
    int threads;       // 0: as many as OpenMP has
    void (*progress)(const struct prepare_counts *counts, void *context); // may be NULL
    void *context;
};
#define PREPARE_SHARD_TOKENS ((uint64_t)256 << 20)

int prepare_run(const struct prepare_options *options, struct prepare_counts *counts,
                struct err *err);
