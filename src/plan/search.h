// Which layouts of a model on a cluster are quickest. Every way to cut the cluster's accelerators
// that the engine would accept is a candidate; a bound on memory and one on time decide which of
// them are worth the exact memory plan and the simulation of their step. Both bounds are safe: what
// they turn away cannot be among the answers, so that the result is that of trying everything.
//
// The global batch and the context are given and never change: candidates differ in how a step is
// performed, not in what it computes.
#pragma once
#include "plan/estimate.h"
#include "plan/job.h"
#include <stdbool.h>
#include <stdint.h>

// What a candidate is made of. The values of SCHEDULE and RECOMPUTE are those of their enums.
enum search_key {
    SEARCH_PRECISION,
    SEARCH_TP,
    SEARCH_PP,
    SEARCH_CP,
    SEARCH_DP,
    SEARCH_EP,
    SEARCH_SEQUENCE, // sequence parallelism, 0 or 1
    SEARCH_MICRO,    // sequences of a micro-batch
    SEARCH_RECOMPUTE,
    SEARCH_SCHEDULE,
    SEARCH_CHUNKS,
    SEARCH_ENDS, // embedding and head weigh a layer each when layers are spread, 0 or 1
    SEARCH_ZERO,
    SEARCH_KEYS
};
const char *search_key_name(enum search_key key); // "tp", "micro_batch"
struct search_choice {
    int value[SEARCH_KEYS];
};
// "tp 8 pp 4 ...", without what is at its plain value; the result is `out`.
const char *search_choice_text(const struct search_choice *choice, char out[192]);
// The value as text: "8", "full", "interleaved".
const char *search_value_text(enum search_key key, int value, char out[24]);

struct search_pins {
    bool set[SEARCH_KEYS];
    int value[SEARCH_KEYS];
};
// "tp=8", "zero=1", "schedule=zb-v", "recompute=full", or the names of a configuration
// ("parallel.tp=8", "train.micro_batch=2"). Refuses unknown keys and values with the nearest ones,
// and a key that is pinned twice to different values.
int search_pin(struct search_pins *pins, const char *text, struct err *err);

struct search_request {
    const struct model_config *model;
    const struct cluster *cluster;
    const struct stack *stack;
    int64_t batch; // sequences of a step, all replicas together
    int context;
    struct search_pins pins; // BF16 unless the precision is pinned
    double imbalance;        // MoE, see struct job; 0: 1
    int threads;             // CPU: of a rank
    bool no_overlap;
    double fill;     // share of an accelerator's memory that may be taken; 0: SEARCH_FILL
    int best;        // answers wanted
    bool every;      // answers may differ in details only; else one per mesh (tp, pp, cp, ep)
    bool exhaustive; // tries everything that fits: for tests
};

// What a layout may take of an accelerator's memory: `fill` of it, or SEARCH_FILL, on a processor
// all. What driver, libraries and fragmentation take is known to a few percent only.
#define SEARCH_FILL 0.93
double search_capacity(const struct search_request *request);

// Why a candidate is no answer. The first ones turn away a whole mesh.
enum search_reason {
    REASON_HEADS,      // tp does not divide heads
    REASON_KV_HEADS,   // tp and kv_heads do not divide each other
    REASON_QK_NORM,    // tp would cut a norm over all heads
    REASON_FFN,        // tp does not divide the width of the MLP or of an expert
    REASON_EXPERTS,    // ep does not divide the experts
    REASON_LAYERS,     // fewer layers than stages
    REASON_CONTEXT,    // 2 cp does not divide the context
    REASON_BATCH,      // dp does not divide the batch
    REASON_PINNED,     // a value that the user fixed otherwise
    REASON_MICRO,      // the pinned micro-batch does not divide a replica's share
    REASON_ENGINE,     // job_check refuses
    REASON_MEMORY,     // does not fit
    REASON_SLOW_BOUND, // slower than the answers whatever the details
    REASON_SLOW,       // estimated, and slower
    SEARCH_REASONS
};
const char *search_reason_text(enum search_reason reason);

struct search_entry {
    struct search_choice choice;
    double bound_seconds; // its step takes no less
    double step_seconds;  // 0: not estimated
    double memory_bytes;  // of the fullest rank; 0: not planned
};
enum { SEARCH_MOST_BEST = 64, SEARCH_MOST_TIGHT = 8 };

struct search_result {
    struct search_entry best[SEARCH_MOST_BEST];
    int count;
    int64_t meshes, layouts; // seen: ways to cut the world; candidates of those that are possible
    int64_t planned, estimated;
    int64_t rejected_meshes[SEARCH_REASONS], rejected[SEARCH_REASONS];
    struct search_choice example[SEARCH_REASONS]; // the first of each reason
    struct err refusal;                           // of REASON_ENGINE, the first
    // Candidates that would be quicker than the first answer, but do not fit: the least over first.
    struct search_entry tight[SEARCH_MOST_TIGHT];
    int tight_count;
    double seconds; // that the search took
};
// 0 with count 0: candidates exist, but none fits; see search_missing. ERR_USAGE when there is no
// candidate at all: a batch, a world or pinned values that cannot be, by name, with what would do.
int search_run(const struct search_request *request, struct search_result *out, struct err *err);

// The job of a candidate.
int search_job(const struct search_request *request, const struct search_choice *choice,
               struct job *out, struct err *err);
// A candidate's memory and step, whatever the search found. ERR_USAGE when it is none.
int search_try(const struct search_request *request, const struct search_choice *choice,
               struct search_entry *out, struct err *err);

// When nothing fits: the candidate that lacks least, its bytes, and the smallest number of nodes of
// this kind that would do (0: not even 1,024 times as many).
struct search_shortage {
    struct search_entry least;
    double short_bytes;
    int nodes;
    enum search_key release; // a fixed key that would let it fit on these nodes with another value;
    int release_value;       // SEARCH_KEYS: none
};
int search_missing(const struct search_request *request, struct search_shortage *out,
                   struct err *err);
