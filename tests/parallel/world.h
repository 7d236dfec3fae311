// A run of a layout with its ranks as threads of this process: tiny models, hand-made batches, what
// came out.
#pragma once
#include "data/batch.h"
#include "engine/engine.h"
#include "test.h"

enum { WORLD_STEPS = 10, WORLD_MOST_STEPS = 100, WORLD_MOST_SAMPLES = 12, WORLD_CONTEXT = 32 };

struct world_layout {
    const char *model; // "gpt2", "llama" (grouped heads, tied), "untied", "moe", "shared" (experts,
                       // one shared, tied)
    int pp, dp, cp, tp, ep;
    int zero, shard; // shard 0: all data ranks
    enum pipeline_kind schedule;
    int chunks;
    const char *schedule_csv; // PIPELINE_FILE
    int rows;                 // of a micro-batch
    int samples;              // of a step; 0: 8
    bool no_sequence;         // tensor parallelism without sequence parallelism
    bool per_micro_batch;     // zero.reduce
    bool gather_keys, per_document;
    // what must not change a bit
    int threads; // 0: 1
    uint64_t bucket_bytes;
    enum engine_recompute recompute;
    bool no_overlap;
    bool bf16, bf16_wire;
    bool bf16_gradients, bf16_gather; // zero.accumulate_precision, zero.gather_precision
    int prefetch, in_flight;          // 0: 1 and 2; prefetch -1: none
    int steps;                        // 0: WORLD_STEPS
    double dropout;
    struct engine_experts experts; // models with experts
    // Routes of another run: replayed, or only compared with what this run chooses.
    const struct world_result *replay, *compare;
    int resume_at; // save the state after this step, load it into new engines of `resume_as` (NULL:
                   // the same layout)
    const struct world_layout *resume_as;
    // The state goes through snapshots below this folder, as of ranks on two hosts, of which one is
    // lost and known from its buddy's copies alone.
    const char *snapshots;
    // Changes a filled micro-batch, `index` among those of all data ranks; may shorten it. Sets
    // non_pad; targets and pairs are counted anew.
    void (*edit)(struct batch *batch, int step, int index);
    void (*at_start)(struct engine *engine, struct comm *comm); // on every rank, before the steps
    struct engine_guards guards;
    // On every rank, before and behind each step; the first one may change what the step is asked.
    void (*before_step)(struct engine *engine, int rank, int step, struct engine_step *asked);
    void (*after_step)(struct engine *engine, int rank, int step, const struct engine_step *done);
    bool ranks_differ;  // in loss or norm: something is wrong on one on purpose
    const float *start; // weights of the whole model in place of initial ones
    bool frozen;        // learning rate 0
    double clip;        // 0: 1.0
};

struct world_result {
    double loss[WORLD_MOST_STEPS], norm[WORLD_MOST_STEPS];
    struct engine_step last; // of rank 0
    int64_t counted;
    float *weights, *moments, *initial; // of the whole model, in parameter order, no padding
    unsigned char *ignored;             // of each weight: its gradient is mathematically zero
    size_t weight_count;
    bool planned_is_allocated;
    // of models with experts: choices [step][layer][sample][position][top_k], of the last step the
    // figures of balance, over all steps what `compare` found
    int32_t *routes;
    double balance;
    int64_t dropped, flipped;
    double gap;
    bool copies_are_equal; // what several ranks hold has the same bits on all of them
};

void world_run(const struct world_layout *layout, struct world_result *out);
void world_free(struct world_result *r);
const char *world_name(const struct world_layout *layout, char out[160]);
int world_micro_batches(const struct world_layout *layout); // of a data rank
int world_ranks(const struct world_layout *layout);
struct model_config world_model(const char *kind);

// Bits of losses, norms and weights.
bool world_same(const struct world_result *a, const struct world_result *b, int steps);
// NULL, or what is too far apart (docs/definitions.md, "close").
const char *world_apart(const struct world_result *a, const struct world_result *b, int steps,
                        char out[200]);
