// Micro-batches for a training step, filled ahead of time by reader threads.
//
// The sample that stands at place i of epoch e is a pure function of (seed, e, i); the loader's
// only state is one global sample counter, so a resume or another number of ranks reads the same
// samples in the same order. Of the samples of a step, rank r takes the r-th contiguous part.
//
// Chunk mode: sample k of a set holds positions k * context and following of its shards laid end to
// end, with the token behind as last label. Packing: a sample is a row of whole documents (pack.h),
// the rest filled up: such positions have target -1 and see only themselves. With the document mask
// on, no query sees another document and the label at a document's end is ignored; with positions
// reset, they count from 0 in each document (or from the beginning of the row).
#pragma once
#include "base/error.h"
#include "base/record.h"
#include "data/batch.h"
#include <stdbool.h>
#include <stdint.h>

enum loader_mode {
    LOADER_CHUNK,
    LOADER_PACK
}; // concatenate-and-chunk; best-fit packing of whole documents
enum loader_shuffle { SHUFFLE_SAMPLE, SHUFFLE_SHARD, SHUFFLE_NONE };

enum { LOADER_MAX_SETS = 64 };

struct loader_set {
    const char
        *path;     // a file or folder of prepared shards, a Megatron prefix, a llm.c / nanoGPT .bin
    double weight; // share of drawn samples; the weights of all sets are normalised to 1
};

struct loader_options {
    struct loader_set sets[LOADER_MAX_SETS];
    int set_count;
    int context;       // positions per sample
    int rows;          // samples per micro-batch
    int micro_batches; // per step (of this rank)
    enum loader_mode mode;
    bool document_mask, reset_positions; // two switches; both on by default in packing
    enum loader_shuffle shuffle;
    int64_t shuffle_window; // samples, for SHUFFLE_SHARD
    uint64_t seed;
    int readers;     // threads
    int steps_ahead; // steps prepared in advance, >= 1
    int vocab; // ids must be below; checked at open against the shards' headers and in every batch
    uint64_t tokenizer_fingerprint; // 0: not checked
    const char *cache_folder;       // or NULL: local copies of shards on slow storage
    uint64_t cache_bytes;           // bound of that folder
    int rank, ranks;                // this rank takes its part of the global batch; 0 of 1 here
    struct record_lane
        *lane; // of the thread that calls loader_step: gets RECORD_DATA_WAIT; may be NULL
    uint64_t trace_spans; // room for spans in each reader's own lane
};

struct loader_counts {   // since open
    double wait_seconds; // the caller stood still
    uint64_t shard_opens, shard_reads;
    double open_seconds, read_seconds;
    uint64_t cache_hits, cache_misses;
};

struct loader;
// Bytes of the batches that a loader of these options holds: a buffer of the memory plan. `memory`
// is that buffer.
uint64_t loader_bytes(const struct loader_options *options);
struct loader *loader_open(const struct loader_options *options, void *memory, struct err *err);
void loader_close(struct loader *loader);

// Micro-batches of the step that starts at global sample `sample` (rows x micro_batches x ranks
// samples belong to it). Steps in sequence come from the prepared ones; any other `sample` is a
// seek. The batches stay valid until the next call.
int loader_step(struct loader *loader, uint64_t sample, struct batch *const **batches,
                struct err *err);

uint64_t loader_samples_per_epoch(const struct loader *loader); // of all sets, each once
uint64_t loader_tokens(const struct loader *loader);            // of all sets, one pass
uint64_t loader_text_bytes(const struct loader *loader); // the same; 0 when a set does not know
void loader_counts(const struct loader *loader, struct loader_counts *out);
// Digest of (sets, seed, order): equal on all ranks that will read the same samples.
uint64_t loader_digest(const struct loader *loader);
// Ids of this rank's samples in the step, for logs of skipped or spiking steps: fills rows x
// micro_batches. An id names content: the number of the sample in file order in its set, behind the
// samples of the sets before.
void loader_sample_ids(struct loader *loader, uint64_t sample, uint64_t *ids);

// Where the sample drawn at place `n` of the run comes from, whatever rank reads it.
enum { LOADER_ORIGIN_DOCUMENTS = 8 };
struct loader_origin {
    uint64_t id;     // as above
    const char *set; // as given in the options
    struct {
        const char *shard;
        uint64_t number;                 // of the document in its shard, from 0
    } document[LOADER_ORIGIN_DOCUMENTS]; // the first ones, in the order of the row
    int documents;                       // all of them
};
int loader_origin(struct loader *loader, uint64_t n, struct loader_origin *out, struct err *err);
// Fills a micro-batch of the caller's own with the samples drawn at `n` and behind it, whatever rank
// they belong to. Reads in the calling thread.
int loader_read(struct loader *loader, uint64_t n, struct batch *batch, struct err *err);

// What `draws` samples from the beginning of a run amount to, by set: a dry run of the mixture.
struct loader_mix_row {
    const char *path;
    double share;     // of drawn samples
    uint64_t samples; // that the set holds
    uint64_t drawn;   // among the draws
    uint64_t tokens;  // positions in them
    double epochs;    // drawn / samples
};
int loader_mix_rows(const struct loader *loader, uint64_t draws,
                    struct loader_mix_row *rows); // returns the number of sets

// Ends the readers (loader_close does it too). Afterwards their lanes may be read.
void loader_stop(struct loader *loader);
const struct record_lane *loader_lane(const struct loader *loader, int reader);
