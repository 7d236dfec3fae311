// The MLP of one layer with experts on one rank: router, dispatch to the ranks that hold the
// experts, grouped products, combination, and all of that backward. Knows nothing of the engine:
// everything comes in struct moe_layer.
//
// How rows move. The router gives each token top_k experts (moe_route.c sorts the pairs by expert,
// then token). The rows of an expert stand in one list, ordered by source rank, then token. The
// list is cut into chunks of MOE_CHUNK rows; a chunk is what products see, its rows rounded up to a
// multiple of MOE_PAD with zero rows. A wave is as many chunks, in order, as the planned buffers
// hold; when more arrive than one wave holds there are more waves, and backward repeats their
// dispatch and up projection. So nothing is dropped, nothing is allocated, products have few
// shapes, and results do not depend on the size of a wave or on arrival.
//
// Weights of experts are multiplied into the activation, so their gradient needs no stored output.
// Under tensor parallelism x is whole on every tp rank and routed there alike; y, dx and the
// router's gradient are partial sums over tp (the losses of the router itself count on tp index 0).
#pragma once
#include "comm/comm.h"
#include "data/batch.h"
#include "device/device.h"
#include "model/model.h"

enum { MOE_CHUNK = DEVICE_TOKEN_CHUNK / 2, MOE_PAD = 32 };

enum moe_aux_scope {  // what the fractions of the balancing loss count
    MOE_AUX_SEQUENCE, // each sequence of the global batch by itself
    MOE_AUX_GLOBAL    // all tokens of the step on all ranks: known before the first backward
};

// Sizes on one rank. `config` is the local model's, but experts counts the whole model's.
struct moe_shape {
    enum dtype type;
    bool train;
    bool keeps_up;       // rows and up projection stay from forward to backward (none, selective)
    bool split_backward; // the weight half of backward runs later
    int64_t tokens; // most of a micro-batch on this rank, all of them under sequence parallelism
    int sequences;  // rows of a micro-batch
    int hidden, expert_ffn, shared_ffn; // local widths
    int experts, top_k;                 // of the whole model
    int ep, cp;
    int64_t wave; // rows of a wave: moe_wave_rows
};
// Rows of a wave: `wanted` (0: what always suffices on one rank, 1.25 times the even share
// otherwise), made large enough for one chunk and rounded to whole multiples of MOE_PAD.
int64_t moe_wave_rows(const struct moe_shape *shape, int64_t wanted);

// ---- buffers
enum moe_place {
    MOE_KEPT, // per layer and micro-batch in flight, from forward until backward
    MOE_FLOW, // per layer and flow when backward is split, from its input half until its weight
              // half; else once
    MOE_ONCE
};
enum moe_buffer {
    MOE_EXPERT,      // I32 [tokens, top_k] chosen experts
    MOE_WEIGHT,      // FP32 [tokens, top_k]
    MOE_SCORE,       // FP32 [tokens, experts]
    MOE_LSE,         // FP32 [tokens]
    MOE_SLOT,        // I32 [tokens, top_k] place of the row among the sorted ones; -1: not sent
    MOE_COUNTS,      // I64 [ep, experts] rows of each source for each expert
    MOE_LOADS,       // I64 [sequences, experts] choices per sequence, over cp (scope sequence)
    MOE_TILES,       // [wave, hidden] rows of the local experts, chunk by chunk
    MOE_TILE_WEIGHT, // FP32 [wave]
    MOE_UP,          // [wave, 2 expert_ffn]; backward leaves its gradient there
    MOE_SHARED_UP,   // [tokens, 2 shared_ffn]; the same
    MOE_ACTIVATED,   // [wave, expert_ffn] with weights multiplied in
    MOE_DOWN,        // [wave, hidden] gradient of the down projection's output
    MOE_DLOGITS,     // FP32 [tokens, experts]
    MOE_SHARED_ACTIVATED, // [tokens, shared_ffn]
    MOE_INPUT,            // FP32 [tokens, hidden] router input, then its gradient
    MOE_LOGITS,           // FP32 [tokens, experts]
    MOE_TOKEN,            // I32 [tokens top_k] token of a sorted row
    MOE_ROW_WEIGHT,       // FP32 [tokens top_k] weight of a sorted row, then its gradient
    MOE_CHOICE_GRADIENT,  // FP32 [tokens, top_k]
    MOE_ROWS,             // [tokens top_k, hidden] sorted rows, going out and coming back
    MOE_RECEIVED,         // [wave, hidden] rows by source (ep > 1)
    MOE_RECEIVED_WEIGHT,  // FP32 [wave] (ep > 1)
    MOE_MAP,              // I32 [wave] received (ep 1: sorted) row of a tile row, -1: padding
    MOE_MAP_TOKEN,        // I32 [wave] its token (ep 1)
    MOE_OUT,              // [wave, hidden] results of the down projection; gradient of MOE_TILES
    MOE_WIDE,             // [wave, expert_ffn] activation forward, its gradient backward
    MOE_SHARED_WIDE,      // [tokens, shared_ffn] the shared expert's
    MOE_SHARED_OUT,       // [tokens, hidden] the shared expert's output, and gradient of its input
    MOE_TILE_GRADIENT,    // FP32 [wave] gradient of MOE_TILE_WEIGHT
    MOE_SMALL,            // counters and offsets
    MOE_AUX,              // FP32 [sequences, experts] rows of the balancing loss
    MOE_SEQUENCE,         // I32 [tokens] sequence of a token in its micro-batch
    MOE_IDLE,             // U8 [tokens] 1: visits no expert (padding)
    MOE_PLACES,           // I32 [cp, tokens, 1 + top_k] places and choices of the sequence's other
                          // parts (capacity under cp)
    MOE_BUFFER_COUNT
};
const char *moe_buffer_name(enum moe_buffer buffer);
// 0: this shape has none.
uint64_t moe_buffer_bytes(const struct moe_shape *shape, enum moe_buffer buffer);
enum moe_place moe_buffer_place(const struct moe_shape *shape, enum moe_buffer buffer);

// Makes every product of a layer with these weights; *bytes: the largest workspace of one.
// `router`, `up`, `down` as described weights (packed_* as they will be); shared ones may be NULL.
int moe_prepare(struct device *device, const struct moe_shape *shape,
                const struct device_weight *router, const struct device_weight *up,
                const struct device_weight *down, const struct device_weight *shared_up,
                const struct device_weight *shared_down, uint64_t *bytes, struct err *err);

// ---- statistics of a layer, added up over the micro-batches of a step by forward passes
struct moe_statistics {
    int64_t *counts;   // [experts] choices, dropped ones included
    double *score_sum; // [experts] sum of scores over tokens
    int64_t tokens;    // that visit experts
    int64_t dropped;   // choices beyond the capacity
    double aux;        // scope sequence: sum over tokens of E sum f p
    double z;          // sum of lse^2
};

struct moe_gradient {
    float *data; // FP32, as the param
    bool store;  // overwrite; else add
};

struct moe_layer {
    struct moe_shape shape;
    struct device *device;
    struct comm_stream *ep_stream, *cp_stream; // NULL: groups of one
    int ep_index, tp_index;
    void *buffer[MOE_BUFFER_COUNT];
    struct device_weight router; // FP32
    // The others by param; expert e has the params expert_up + 2 e and the one behind it.
    const struct device_weight *weight;
    int router_param, expert_up, shared_up, shared_down; // shared ones -1: none
    bool normalise;
    // Backward only: where a param's gradient goes; asked once per param and micro-batch, not for
    // experts without rows.
    struct moe_gradient (*gradient)(void *context, int param);
    void *context;

    const struct batch *batch; // this rank's part of the micro-batch
    const int32_t *place;      // [tokens] place of a token in its whole sequence (context
                               // parallelism); NULL: its place in the row
    int64_t sequence_tokens;   // positions of a whole sequence
    double capacity_factor;    // 0: nothing is dropped; else an expert takes at most
                               // ceil(factor top_k sequence_tokens / experts) rows of a sequence
    const float *bias;         // [experts] or NULL: added for the choice only
    const int32_t *chosen;     // [tokens, top_k] routes to replay, or NULL
    struct moe_statistics *statistics; // or NULL: do not count (recomputation, evaluation)
    // Losses of the router. The scales are coefficient / (tokens of the global batch that visit
    // experts), so that gradients are those of means over the global batch however it is split.
    enum moe_aux_scope aux_scope;
    double aux_scale, z_scale;
    const int64_t *global_counts; // [experts] choices of the whole step (scope global)
};

// y [tokens, hidden] from x [tokens, hidden] (what the MLP's norm wrote). Blocks in messages.
void moe_forward(const struct moe_layer *m, const void *x, void *y);
// dx (may not be dy or x) from dy. x and dy are kept until moe_backward_weight. When the rows came
// in several waves, both halves dispatch them again and redo what a wave needs.
void moe_backward_input(const struct moe_layer *m, const void *x, const void *dy, void *dx);
void moe_backward_weight(const struct moe_layer *m, const void *x, const void *dy);
// ---- balance (moe_balance.c)
// Choices of a step summed over the ranks of `data` (NULL: one), exactly.
void moe_sum_counts(int64_t *counts, int experts, struct comm_stream *data);
// bias += rate sign(mean count - count), once per step with the counts of all ranks.
void moe_update_bias(float *bias, const int64_t *counts, int experts, double rate);
// E sum f p before the coefficient: 1 is perfect balance. Of the whole step.
double moe_balance(const struct moe_statistics *s, int experts);
// Largest count over the mean count.
double moe_max_load(const struct moe_statistics *s, int experts);

// ---- inner parts, shared by moe*.c
struct moe_small {                                             // in MOE_SMALL
    uint64_t *from_offset, *from_bytes, *to_offset, *to_bytes; // [ep] of the current message
    int64_t *send_first, *send_rows;       // [ep] of the wave: runs of sorted rows
    int64_t *receive_first, *receive_rows; // [ep] pieces by source
    int64_t *at;                           // [ep], [cp] running places
    int64_t *list_from, *list_to;          // [local experts] rows of each expert's list in the wave
    int32_t *tile_first, *tile_rows;       // [local experts] where they stand in the tiles
    struct moe_gradient *up, *down;        // [local experts] data NULL: not asked for yet
    int32_t *load;                         // [sequences, experts]
};
struct moe_small moe_small(const struct moe_layer *m);
uint64_t moe_small_bytes(const struct moe_shape *shape);
// Route, capacity, sorting, counts of all sources: everything until rows move.
void moe_route(const struct moe_layer *m, const void *x);
// MOE_TOKEN and MOE_ROW_WEIGHT again, from what is kept.
void moe_sorted_rows(const struct moe_layer *m);
// Padding and sequences of the batch into MOE_IDLE and MOE_SEQUENCE.
void moe_mark_tokens(const struct moe_layer *m);
// Rows of the balancing loss into MOE_AUX; false when there is none here.
bool moe_aux_rows(const struct moe_layer *m);

// One wave as this rank takes part in it.
struct moe_wave {
    int number;
    int64_t sent, received; // rows
    int64_t tile_rows;      // rows of the tiles, padding included
};
int moe_wave_count(const struct moe_layer *m);
void moe_wave_begin(const struct moe_layer *m, int number, struct moe_wave *wave);
