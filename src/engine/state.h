// What the files of the engine share: the rank's part of the model, pointers into its memory by
// layer and by parameter, and the groups of ranks that it talks to.
#pragma once
#include "base/arena.h"
#include "data/batch_share.h"
#include "engine/engine.h"
#include "engine/tags.h"
#include "memory/flat.h"
#include "memory/rank.h"
#include "schedule/pipeline.h"

// A layer as the current action sees it: engine_enter points it at the micro-batch's activations
// and flows.
struct engine_layer {
    int param[PARAM_ROLE_COUNT]; // index in the local model, or -1
    void *act[ACT_COUNT];        // NULL: this model has none
    void *flow[FLOW_COUNT];      // training only
    int32_t window;
    int whole;             // its number in the whole model
    int slot, flow_number; // of the current action
};

// Where the gradients lie whose checksums stand (seals.h).
enum seal_place { SEAL_NONE, SEAL_MADE, SEAL_KEPT };

// A parameter of the local model.
struct engine_param {
    void *plain;     // compute type; of a matrix in its unit's place of the moment (ZeRO-3)
    float *vector;   // FP32 values, vectors only
    float *gradient; // FP32; where this micro-batch's gradients go at the moment
    bool written;    // the gradient there has been stored, so the next one is added
    enum seal_place sealed;
};

enum { ENGINE_SHAPES = 4 }; // micro-batch sizes whose products stay prepared

struct engine_stage { // one of the rank's stages
    struct stage_part part;
    int previous_rank, next_rank; // world ranks of the neighbouring stages; own rank: a local stage
    void *output[RANK_SEND_RING]; // on their way to the next stage's rank
    void *gradient[RANK_MOST_SLOTS]; // [slots] gradient of the stage's output
    void *back[RANK_SEND_RING];      // gradient of the stage's input, on its way
    struct comm_event sent[RANK_SEND_RING], sent_back[RANK_SEND_RING];
    struct comm_event received[RANK_MOST_SLOTS], received_gradient[RANK_MOST_SLOTS];
    int sends, sends_back; // so far, for the place in the rings
    int *slot_of;          // [micro_batches] from the action list
};

struct engine {
    const struct model *whole;
    struct local_model local;
    const struct model *model; // &local.model
    struct layout layout;
    struct engine_parallel parallel;
    int rank;
    enum dtype type;
    struct device *device;
    struct engine_options options;
    struct rank_shape shape;
    struct flat flat;
    struct memory_plan plan;
    struct rank_buffers buffers;
    struct arena arena;
    struct pipeline pipeline;
    const struct pipeline *pipeline_given; // a plan without a run may borrow it; else NULL
    bool totals_only;                      // such a plan lists no buffers
    const struct schedule *schedule;       // of this rank

    struct comm *comm;                            // NULL: one process
    struct comm_stream *stream[GROUP_KIND_COUNT]; // NULL: a group of one
    struct comm_stream *reduce[FLAT_GROUPS];      // over the shard groups, for gradients
    struct comm_stream *gather[FLAT_GROUPS];      // the same ranks, for weights
    int tp, tp_index, cp, cp_index;
    int cp_previous, cp_next; // world ranks of the neighbours along cp
    bool sequence;            // the residual stream is cut over tp

    struct device_weight *weight;  // [params] matrices that enter a product
    struct engine_param *param_at; // [params]
    int param[PARAM_ROLE_COUNT];   // outside the layers
    int head;                      // param of the head (its own, or the table), or -1
    struct engine_layer *layers;   // [local layers]
    struct engine_stage stages[LAYOUT_MAX_CHUNKS];

    void *single[SINGLE_COUNT];
    void *final_input; // [tokens, hidden] the residual stream behind the last layer, of the
                       // micro-batch at hand
    float *final_rstd, *final_mean;
    bool keeps[ACT_COUNT];

    // of the step
    bool drops; // dropout is on: a training step of a run that has it
    bool lookup_written;
    int looked_up; // rows of the look-up accumulator in use
    float loss_scale;
    uint64_t dropout_key;
    int data_shift;       // of engine_step
    double *batch_loss;   // [micro_batches]
    struct batch *shared; // [micro_batches] this rank's part of the sequences (context parallelism)
    struct batch_share *shares;   // [micro_batches] how they were cut
    struct batch **shared_list;   // pointers to them
    struct batch *const *batches; // of the step: shared_list, or the caller's
    int batch_count, prepared_count;
    int64_t prepared[ENGINE_SHAPES]; // tokens of micro-batches whose products are made
    void *states;                    // states.c's own
    struct seals *seals;             // seals.c's own
    struct engine_moe *moe;          // layer_moe.c's own; NULL: no layer with experts here
};

static inline const float *engine_vector(const struct engine *e, int param) {
    return param < 0 ? NULL : e->param_at[param].vector;
}
static inline float *engine_gradient(const struct engine *e, int param) {
    return param < 0 ? NULL : e->param_at[param].gradient;
}
static inline void *engine_weight(const struct engine *e, int param) {
    return e->param_at[param].plain;
}
// seals.c: compares an accumulated gradient with its checksum before it is used.
void seals_check_gradient(struct engine *e, int param);
// True on the first call for this gradient since it was empty: it is to be stored, not added to.
static inline bool engine_first(struct engine *e, int param) {
    struct engine_param *p = &e->param_at[param];
    bool first = !p->written;
    p->written = true;
    if (!first && p->sealed == SEAL_MADE) seals_check_gradient(e, param);
    return first;
}
static inline bool engine_alone(const struct engine *e) {
    return e->comm == NULL;
}
static inline int engine_micro_batch(const struct engine *e, const struct batch *batch) {
    int m = 0;
    while (e->batches[m] != batch) m++;
    return m;
}
static inline int64_t engine_residual(const struct engine *e, const struct batch *batch) {
    return e->sequence ? batch->tokens / e->tp : batch->tokens;
}

void *engine_buffer(const struct engine *e, int index); // of the plan; -1: NULL

// plan.c. Makes the products of a micro-batch of `tokens`; *bytes: the largest workspace of a
// product.
int engine_prepare(struct device *device, const struct model *model, int head,
                   const struct rank_shape *shape, struct device_weight *weights, int64_t tokens,
                   uint64_t *bytes, struct err *err);
void engine_describe_weights(const struct model *model, int head, struct device *device,
                             const struct rank_shape *shape, struct device_weight *weights,
                             uint64_t *pack_forward, uint64_t *pack_backward);
// layer_moe.c: layers with experts. x and dy [all tokens, hidden]; y and dx are partial sums over
// tp. `again`: a recomputation, which counts nothing.
void layer_moe_forward(struct engine *e, int layer, const struct batch *batch, const void *x,
                       void *y, bool again);
void layer_moe_backward_input(struct engine *e, int layer, const struct batch *batch, const void *x,
                              const void *dy, void *dx);
void layer_moe_backward_weight(struct engine *e, int layer, const struct batch *batch,
                               const void *x, const void *dy);
int engine_moe_open(struct engine *e, struct err *err);
void engine_moe_close(struct engine *e);
void engine_moe_enter(struct engine *e, int layer, int slot, int flow);
void engine_moe_begin(struct engine *e, int64_t tokens); // of a step whose batch has so many
bool engine_moe_counts_ahead(const struct engine *e);    // a counting pass comes before the step
void engine_moe_ahead(struct engine *e, bool begin);
void engine_moe_end(struct engine *e, struct engine_step *step); // sums, before the update
void engine_moe_update(struct engine *e);
// layer_moe_plan.c. Raises *bytes to the workspace of the experts' products with micro-batches of
// `tokens`.
int engine_moe_prepare(struct device *device, const struct model *model,
                       const struct rank_shape *shape, const struct device_weight *weights,
                       int64_t tokens, uint64_t *bytes, struct err *err);
struct moe_shape;
// Fills `buffers`, which has room for MOE_BUFFER_COUNT + 1, and `out`. Returns how many there are;
// 0: no layer here has experts.
int engine_moe_enumerate(struct engine *e, struct rank_expert_buffer *buffers,
                         struct moe_shape *out);

// Fills local, flat, pipeline, shape, plan and buffers of an engine whose whole, device and options
// are set. On failure nothing of them stays open.
int engine_enumerate(struct engine *e, struct err *err);
void engine_describe_close(struct engine *e);

// stage.c: a stage of the pipeline, and what crosses its borders
void engine_enter(struct engine *e, int stage, int slot,
                  int flow); // points e->layers at a micro-batch
// Up to the final norm, or to the stage's output; `target`: the slot of a next stage on this rank.
// engine_enter came before.
void stage_layers_forward(struct engine *e, int index, int slot, int target,
                          const struct batch *batch);
void stage_forward(struct engine *e, const struct action *a, const struct batch *batch);
void stage_backward(struct engine *e, const struct action *a, const struct batch *batch, bool input,
                    bool weight);
void stage_message(struct engine *e, const struct action *a); // begins a send or a receive
int stage_of(const struct engine *e, int stage);              // index among the rank's stages
// World rank that holds the stage at this rank's place along the other axes.
int engine_rank_of_stage(const struct engine *e, int stage);

// tensor.c: tensor and sequence parallelism
// All tokens [tokens, hidden] of what is cut over tp (the shard itself when nothing is cut); `full`
// gets them.
const void *tensor_gather(struct engine *e, const struct batch *batch, const void *shard,
                          void *full);
// Where a product writes its partial sum of [tokens, hidden] that tensor_reduce turns into `out`.
void *tensor_partial(const struct engine *e, void *out);
// Adds the partial sums of the tp ranks; `out` gets this rank's tokens, all of them without
// sequence parallelism.
void tensor_reduce(struct engine *e, const struct batch *batch, void *partial, void *out);

// Ids counted from this rank's first row of the vocabulary, -1: elsewhere. The list stands until
// the next call.
const int32_t *tensor_local_ids(const struct engine *e, const int32_t *ids, int64_t count);

// layer_context.c: attention of a layer, also over a sequence that is spread over cp ranks
void layer_attend(struct engine *e, int layer, const struct batch *batch);
void layer_attend_backward(struct engine *e, int layer, const struct batch *batch, const void *dout,
                           void *dqkv);
uint64_t layer_context_bytes(const struct engine *e);         // of SINGLE_CONTEXT
uint64_t layer_context_batches_bytes(const struct engine *e); // of SINGLE_BATCHES
// This rank's part of the step's sequences, into e->batches.
int layer_context_share(struct engine *e, struct batch *const *batches, int count, struct err *err);

// dropout.c. `out` may be `x`, and is left alone when there is no dropout now.
enum dropout_place { DROPOUT_EMBEDDING, DROPOUT_ATTENTION, DROPOUT_MLP };
void layer_dropout(struct engine *e, int layer, enum dropout_place place, const struct batch *batch,
                   const void *x, void *out);

// layer_forward.c
void layer_forward(struct engine *e, int layer, const struct batch *batch, bool carried,
                   void *next);
void layer_recompute(struct engine *e, int layer, const struct batch *batch);
struct device_norm layer_norm(struct engine *e, int weight, int bias, const void *x, void *y,
                              float *rstd, float *mean, int64_t tokens);
struct device_rope layer_rope(struct engine *e, int layer, const struct batch *batch);
struct device_attention layer_attention(struct engine *e, int layer, const struct batch *batch);
// layer_backward.c
void layer_backward_input(struct engine *e, int layer, const struct batch *batch);
void layer_backward_weight(struct engine *e, int layer, const struct batch *batch);
void layer_norm_backward(struct engine *e, int weight, int bias, const void *x, const void *dy,
                         const float *rstd, const float *mean, const void *dx_add, void *dx,
                         int64_t tokens);
// ends.c: embedding, final norm, head and loss
void embedding_forward(struct engine *e, int layer, const struct batch *batch);
void embedding_backward(struct engine *e, int layer, const struct batch *batch);
// `carried` NULL: the norm's input stands in final_input already; else it becomes `carried` +
// SINGLE_DELTA.
void final_norm_forward(struct engine *e, const void *carried, int64_t tokens);
void final_norm_backward(struct engine *e, void *flow, int64_t tokens);
// Sum of the token losses; with `gradient` [tokens, hidden] also that of the final norm's output
// there and of the head.
double head_loss(struct engine *e, const struct batch *batch, void *gradient);
void lookup_begin(struct engine *e);

// states.c and its neighbours: weights, gradients, masters and moments in their flat buffers, whole
// or sharded.
//
// Life of a step: states_begin; for every unit of every action unit_acquire .. unit_release around
// the use of its weights, unit_gradients_begin .. unit_gradients_end around the writing of its
// weights' gradients; at the end states_finish_gradients (waits, sums over groups), states_norm,
// states_update (AdamW, rounding, packing; the gather of sharded weights is only begun).
int states_open(struct engine *e, struct err *err); // sets param_at, packed copies of e->weight
void states_close(struct engine *e);
void states_begin(struct engine *e, int micro_batches);
void unit_acquire(struct engine *e, int unit, bool backward);
void unit_release(struct engine *e, int unit);
// `last`: no further micro-batch of this step writes to this unit's gradients on this rank.
void unit_gradients_begin(struct engine *e, int unit);
void unit_gradients_end(struct engine *e, int unit, bool last);
void states_finish_gradients(struct engine *e);
double states_norm(struct engine *e); // global gradient norm, every logical parameter once
void states_update(struct engine *e, const struct engine_step *step);
int engine_unit_of_embedding(const struct engine *e); // -1: not on this rank
int engine_unit_of_head(const struct engine *e);
