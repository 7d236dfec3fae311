// The step: walks the rank's action list, each action a sequence of device calls, over buffers that
// the memory plan enumerated before. Weights, gradients and optimizer state live here; the outside
// sees them as described tensors.
#pragma once
#include "base/error.h"
#include "base/slice.h"
#include "base/tensor.h"
#include "comm/comm.h"
#include "data/batch.h"
#include "device/device.h"
#include "engine/guards.h"
#include "layout/layout.h"
#include "memory/memory.h"
#include "memory/rank.h"
#include "model/model.h"
#include "schedule/pipeline.h"
#include <stdbool.h>
#include <stdint.h>

// The recomputation modes, enum engine_recompute, stand in memory/rank.h: they decide which buffers
// exist.

// How the work is spread over ranks. All ranks of the world open their engines with equal values.
struct engine_parallel {
    struct comm *comm; // NULL: a plan without a run (weft layout, --dry-run); engine_open needs it
    const char *name;  // of this engine among those that share `comm` (all ranks use them in one
                       // order), a few letters; NULL: it is the only one
    int rank;
    const struct layout *layout;
    enum pipeline_kind schedule;
    const char *schedule_csv; // PIPELINE_FILE
    uint64_t bucket_bytes;    // of FP32 gradients; 0: 32 MB
    bool reduce_per_micro_batch;
    enum dtype gather_type, reduce_type, accumulate_type; // F32 or BF16: weights on the wire (no
                                                          // wider than the compute type), gradients
                                                          // on the wire, gradients in memory
    int prefetch, gathers_in_flight;                      // ZeRO-3, in units
    bool gather_keys;  // context parallelism: all-gather of keys and values in place of the ring
    bool per_document; // context parallelism: documents are balanced one by one
    bool no_overlap;   // wait for every operation where it is posted (studies, comparisons)
};

// Models with experts.
struct engine_experts {
    double aux_coefficient; // of the balancing loss: mean over the global batch, summed over layers
    bool aux_global;      // its fractions are those of the whole step, not of each sequence. Where
                          // a backward comes before the last forward, the step begins with a
                          // forward pass over all micro-batches that only counts
    double z_coefficient; // of the squared log-sum-exp of the router's logits
    double capacity_factor; // 0: nothing is dropped
    double bias_rate;       // of the bias that balances instead of a loss; 0: none
    int64_t wave;           // rows of experts in memory at a time; 0: see moe_wave_rows
};

struct engine_options {
    const struct engine_parallel *parallel; // NULL: one process holds everything
    enum dtype compute;                     // DTYPE_BF16 (FP32 masters) or DTYPE_F32
    enum engine_recompute recompute;
    int rows, context;    // of a micro-batch
    int micro_batches;    // most per step and data rank
    bool train;           // false: no gradients and no optimizer state (evaluation)
    uint64_t other_bytes; // buffers of others that belong into the same plan (loader batches)
    int snapshots;        // generations of the state outside of the region, see rank_shape
    double beta1, beta2, eps, weight_decay;
    double dropout;      // of the embedding and of the blocks' outputs, while training; 0: none
    bool split_backward; // input and weight halves of backward as actions of their own; recompute
                         // none only
    struct engine_experts experts;
    struct engine_guards guards;
};

struct engine;

// Enumerates every buffer of the rank. The same list that engine_open allocates.
int engine_plan(struct memory_plan *plan, const struct model *model, struct device *device,
                const struct engine_options *options, struct err *err);
// Its bytes by kind without the list itself, for planners. `pipeline`: what options->parallel would
// make, opened once for all ranks; NULL: made for the call.
int engine_plan_totals(struct memory_plan *totals, const struct model *model, struct device *device,
                       const struct engine_options *options, const struct pipeline *pipeline,
                       struct err *err);
struct engine *engine_open(const struct model *model, struct device *device,
                           const struct engine_options *options, struct err *err);
void engine_close(struct engine *engine);
const struct memory_plan *engine_memory(const struct engine *engine);
uint64_t engine_allocated_bytes(const struct engine *engine); // equals the plan's total without
                                                              // snapshots, which others take
void *engine_other_memory(struct engine *engine);             // the `other_bytes`

// Weights: from the seed, or written by a loader into the FP32 masters of engine_tensors; after the
// latter engine_weights_changed rounds and packs them.
void engine_initialise(struct engine *engine, uint64_t seed);
void engine_weights_changed(struct engine *engine);
// Waits for what the last step left under way: updated weights that are being gathered. Counts of
// messages are complete then.
void engine_settle(struct engine *engine);
// Masters, moments and biases of experts become zero, padding too, as where a run begins. Before
// other state is written over what a rank has: writers know nothing of padding, and a flipped bit
// there would stay.
void engine_clear_state(struct engine *engine);

// State as described memory of a whole model (one process). ENGINE_MASTER: FP32 weights under the
// part-free param names, logical shape without padding (padding rows are behind the logical ones).
// ENGINE_MOMENTS: "NAME.moment1", "NAME.moment2". ENGINE_GRADIENTS: the last step's, unclipped. The
// caller frees `*tensors` with free().
// ENGINE_EXPERT_BIAS (engine_slices only): "layers.N.router.bias" of layers with experts.
enum engine_part { ENGINE_MASTER, ENGINE_MOMENTS, ENGINE_GRADIENTS, ENGINE_EXPERT_BIAS };
int engine_tensors(struct engine *engine, enum engine_part part, struct tensor **tensors,
                   int *count, struct err *err);

// The rank's pieces of the state, in logical coordinates of the whole tensors; names as above.
// Vectors and matrices that other ranks hold too say so. The caller frees `*slices` with free().
int engine_slices(struct engine *engine, enum engine_part part, struct tensor_slice **slices,
                  int *count, struct err *err);
const struct pipeline *engine_pipeline(const struct engine *engine);

// Messages since opening, stream by stream; the last one stands for sends and receives between
// stages. Returns the stream's name, and no operations for streams that do not exist.
int engine_stream_count(const struct engine *engine);
const char *engine_stream_counts(const struct engine *engine, int stream, enum comm_kind kind,
                                 struct comm_counts *counts);

// How the largest messages of a stream will run: "exchange"; NULL where there is no such stream.
const char *engine_stream_algorithm(const struct engine *engine, int stream, enum comm_kind kind,
                                    int *ranks);

struct engine_step {
    double learning_rate;
    double clip_norm;      // 0: no clipping
    int64_t update;        // number of this optimizer update, from 1
    bool no_update;        // gradients only (tests, skipping)
    uint64_t dropout_seed; // another one for every step
    // Replays: what the data rank that stands so many places further (modulo dp) computes. The
    // caller passes its micro-batches; dropout is its own.
    int data_shift;
    // Called on every rank when loss and gradient norm are known, finite or not, before weights and
    // moments change. The values are the same on all ranks unless memory or a computation has
    // failed. False on all ranks: the step is skipped; so it is where they are not finite. NULL:
    // none.
    bool (*may_update)(void *context, const struct engine_step *step);
    void *context;
    // results
    double loss;          // sum of token losses of the global batch / counted targets
    double gradient_norm; // global, before clipping
    double clip_factor;
    int64_t counted, non_pad, processed; // tokens
    double attended_pairs;               // mean over the layers, each with its window
    bool skipped; // no counted target, or a non-finite loss or norm: weights and moments untouched
    // of layers with experts, over the step and all ranks
    double expert_balance;  // E sum f p, mean over the layers; 1 is perfect
    double expert_max_load; // largest count of an expert over the mean count
    int64_t dropped;        // choices beyond the capacity
};
// With several ranks every rank passes its own micro-batches (equal ones inside GROUP_TP, GROUP_CP
// and GROUP_PP: whole sequences, the engine takes its part of them) and gets the same results.
int engine_run_step(struct engine *engine, struct batch *const *batches, int count,
                    struct engine_step *step, struct err *err);

// Sum of the losses (double) and counted targets of one micro-batch of each data rank, summed over
// them; no gradients. token_loss, if given, gets [tokens] (one process only).
int engine_evaluate(struct engine *engine, const struct batch *batch, double *loss_sum,
                    int64_t *counted, float *token_loss, struct err *err);
// FP32 logits [count, vocab] of the given rows of a micro-batch (tests, small outputs).
int engine_logits(struct engine *engine, const struct batch *batch, const int32_t *rows, int count,
                  float *logits, struct err *err);

// Chosen experts of a rank's tokens in a step, [layers of the whole model][micro_batches][tokens of
// a micro-batch][top_k]; engine_route_count elements. They stay until another is given; NULL: none.
enum engine_route_mode {
    ROUTES_RECORD,
    ROUTES_REPLAY, // the router's choice is replaced, its weights are computed
    ROUTES_COMPARE // adds up in `flipped` the choices that differ, and their largest gap in score
};
struct engine_routes {
    enum engine_route_mode mode;
    int32_t *expert;
    int64_t flipped;
    double gap;
};
int64_t engine_route_count(const struct engine *engine);
void engine_use_routes(struct engine *engine, struct engine_routes *routes);
// [experts of the whole model] of a local layer: state that is saved; the same on all ranks that
// hold the layer. NULL: the model has no experts.
float *engine_expert_bias(struct engine *engine, int layer);

// What a recomputation mode adds: the operations in words, and their matrix products in FLOP per
// token (attention over `pairs_per_token` pairs; the context in the full convention). HFU counts
// them, MFU does not.
double engine_recompute_flops(const struct model_config *config, enum engine_recompute mode,
                              double pairs_per_token);
const char *engine_recompute_text(enum engine_recompute mode);
