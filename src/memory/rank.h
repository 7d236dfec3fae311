// Every buffer that a rank holds during training or evaluation, enumerated from the model's
// description and the run's shape. The engine takes exactly these; a planner that never runs the
// model reads the same list.
#pragma once
#include "base/dtype.h"
#include "layout/layout.h"
#include "memory/flat.h"
#include "memory/memory.h"
#include "model/model.h"

// What is kept of a layer between forward and backward; the rest is redone. docs/definitions.md
// says which is which.
enum engine_recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_SELECTIVE_MLP,
    RECOMPUTE_FULL
};

enum {
    RANK_MOST_SLOTS = 512, // micro-batches whose activations a stage holds at once
    RANK_SEND_RING = 2     // tensors of a stage on their way to a neighbour on another rank
};

// What a layer's forward writes. Shapes per token; NORM_BEFORE and NORM_AFTER name the place of the
// norms. What belongs to the residual stream (hidden wide, and statistics of its norms) has the
// tokens of this rank under sequence parallelism, the rest all tokens of the micro-batch. Widths
// are local.
enum rank_activation {
    ACT_INPUT,         // [hidden] the stored residual stream
    ACT_NORM1,         // [hidden] what the attention reads (before)
    ACT_RSTD1,         // FP32 [1] statistics of the attention's norm
    ACT_MEAN1,         // FP32 [1] (LayerNorm)
    ACT_QKV_RAW,       // [qkv] before the norm of q and k (only with such a norm); the latents
    ACT_Q_RSTD,        // FP32 [heads] or [1]
    ACT_K_RSTD,        // FP32 [kv_heads] or [1]
    ACT_QKV,           // [qkv] rotated
    ACT_ATTENTION,     // [heads head_dim]
    ACT_LSE,           // FP32 [heads]
    ACT_ATTENTION_OUT, // [hidden] behind the output projection (after)
    ACT_MIDDLE,        // [hidden] the stored residual stream after attention
    ACT_NORM2,         // [hidden] what the MLP reads (before)
    ACT_RSTD2,
    ACT_MEAN2,
    ACT_UP,        // [ffn] or [2 ffn]; backward leaves its gradient in the same place
    ACT_ACTIVATED, // [ffn]
    ACT_DOWN,      // [hidden] behind the down projection (after)
    ACT_COUNT
};

// What a layer's input half of backward leaves for its weight half and for the layer below.
enum rank_flow {
    FLOW_OUT,     // [hidden] gradient of the layer's output
    FLOW_DOWN,    // [hidden] of the down projection's output (before: FLOW_OUT itself)
    FLOW_MIDDLE,  // [hidden] of the residual stream after attention
    FLOW_PROJECT, // [hidden] of the output projection's output (before: FLOW_MIDDLE itself)
    FLOW_QKV,     // [qkv]
    FLOW_IN,      // [hidden] of the layer's input; FLOW_OUT of the layer below
    // all tokens of FLOW_DOWN and FLOW_PROJECT; themselves unless the residual stream is cut
    FLOW_DOWN_ALL,
    FLOW_PROJECT_ALL,
    FLOW_COUNT
};

// Per stage and micro-batch, tensors that cross its borders: [hidden] of the residual stream.
enum rank_border {
    BORDER_OUTPUT,   // what the next stage reads
    BORDER_GRADIENT, // gradient of the stage's output; FLOW_OUT of its last layer
    BORDER_BACK,     // gradient of the stage's input, on its way to the stage before
    BORDER_COUNT
};

// Buffers that exist once.
enum rank_single {
    // states, see rank_state.c
    SINGLE_WEIGHTS,   // compute type, flat; in FP32 mode these are the masters. Sharded with ZeRO-3
    SINGLE_MASTERS,   // FP32, flat (bf16 mode); sharded from ZeRO-1 on
    SINGLE_GRADIENTS, // FP32, flat: of all parameters; where gradients are made by unit, of vectors
                      // and a tied table
    SINGLE_GRADIENT_SHARDS, // by unit: what adds up over micro-batches, of this rank's shards or of
                            // all parameters
    SINGLE_MOMENT1,         // FP32, flat; sharded from ZeRO-1 on
    SINGLE_MOMENT2,
    SINGLE_UNIT_WEIGHTS,   // ZeRO-3: places for gathered units
    SINGLE_UNIT_GRADIENTS, // by unit: places for the gradients of a micro-batch
    SINGLE_WIRE,           // rounded copies on their way
    SINGLE_REDUCE,         // contributions of the other ranks
    SINGLE_LOOKUP,     // FP32 [looked-up ids, hidden]: the look-up's own gradient accumulator (tied
                       // head)
    SINGLE_LOOKUP_IDS, // I32 [looked-up ids] the vocabulary row of each accumulator row
    SINGLE_LOOKUP_SLOT, // I32 [vocab] accumulator row of an id
    SINGLE_LOOKUP_ROWS, // I32 [tokens of a micro-batch] accumulator row of each token
    SINGLE_NORM_SUMS,   // F64, one per norm block
    SINGLE_SEALS,       // U64: checksums of states at rest (struct rank_seals)
    SINGLE_FINAL_NORM,  // [tokens, hidden]
    SINGLE_DELTA,       // [tokens, hidden] a block's output before it joins the residual stream
    SINGLE_PARTIAL,     // [all tokens, hidden] this tp rank's part of a sum (tp > 1)
    SINGLE_GATHERED,    // [all tokens, hidden] of a norm's output (sequence parallelism)
    SINGLE_TP_SCRATCH,  // contributions of the other tp ranks
    SINGLE_LOCAL_IDS,  // I32 [tokens] ids, then targets, counted from the first vocabulary row here
                       // (tp > 1)
    SINGLE_STATISTICS, // FP32 [1 + tp][chunk][3] of the softmax over a vocabulary that is spread
    SINGLE_BATCHES,    // this rank's part of the sequences (context parallelism)
    SINGLE_CONTEXT,    // what attention over a spread sequence needs
    SINGLE_WIDE,       // [tokens, max(ffn, heads head_dim)] gradient of the activation, then of the
                       // attention's output
    SINGLE_LOSS,       // FP32 [tokens]
    SINGLE_LOGITS,     // FP32 [chunk, vocab padded]; the gradient overlays it
    SINGLE_COSINE,     // FP32 [context, head_dim / 2]
    SINGLE_SINE,
    SINGLE_PRODUCTS, // workspace of matrix products
    SINGLE_KERNELS,  // workspace of the other kernels
    SINGLE_OTHER,    // the loader's batches and what else the run holds
    SINGLE_SNAPSHOT, // the last one, see rank_snapshot_bytes
    SINGLE_COUNT
};

struct rank_shape {
    enum dtype compute; // DTYPE_BF16 or DTYPE_F32
    enum engine_recompute recompute;
    bool train;
    bool dropout;        // outputs of blocks have gradients of their own
    bool split_backward; // weight halves run later than input halves: flows are kept per layer
    int64_t tokens;      // of a micro-batch, on this rank (all of them under tensor parallelism)
    int64_t residual;    // of which the residual stream holds so many: tokens / tp under sequence
                         // parallelism
    int tp;
    int micro_batches;             // of a step
    int context;                   // positions
    int chunk;                     // tokens whose logits exist at a time
    uint64_t shared_batches_bytes; // this rank's part of the sequences (context parallelism)
    uint64_t other_bytes;
    int snapshots; // 0: none; 1: this rank's; 2: as much for those of another host
    struct rank_stage {
        struct stage_part part;
        int slots, flows;                // micro-batches whose activations (flows) are held at once
        bool next_local, previous_local; // neighbouring stages on this rank
    } stages[LAYOUT_MAX_CHUNKS];
    int stage_count;
    // states
    const struct flat *flat;
    int zero;
    int ranks[FLAT_GROUPS]; // over how many (GROUP_DATA, GROUP_EXPERT_DATA); 0 counts as 1
    int ep;                 // ranks that hold the different experts; 0 counts as 1
    bool reduce_per_micro_batch;
    enum dtype gather_type, reduce_type, accumulate_type;
    int gathers_in_flight;
    // checksums that are kept: of masters and moments; of accumulated gradients; of packed and
    // gathered copies of weights
    bool seals_optimizer, seals_gradients, seals_weights;
    bool seals_products; // room to look at a product
    bool totals_only; // see struct memory_plan
};

// A buffer of layers with experts.
enum rank_expert_place {
    RANK_EXPERT_KEPT, // of each layer and micro-batch in flight, from forward until backward
    RANK_EXPERT_FLOW, // of each layer and flow when backward is split; else once
    RANK_EXPERT_ONCE
};
struct rank_expert_buffer {
    const char *name;
    uint64_t bytes; // 0: none
    enum rank_expert_place place;
};

// Sizes that only the device and the messages know; both arrays have an entry per param (NULL:
// none).
struct rank_workspace {
    const uint64_t *pack_forward, *pack_backward;
    uint64_t products_bytes, kernels_bytes;
    uint64_t tp_scratch_bytes; // of the largest reduction over tp
    uint64_t context_bytes;    // of attention over a spread sequence
    const struct rank_expert_buffer *experts;
    int expert_count;
};

// Which buffer of the plan is what; -1: this run has none. Activations that are not kept, and
// flows, share buffers.
struct rank_buffers {
    int single[SINGLE_COUNT];
    int *activation;                              // by slot and layer: rank_activation_buffer
    int *flow;                                    // by flow and layer: rank_flow_buffer
    int (*border)[BORDER_COUNT][RANK_MOST_SLOTS]; // [stage]
    int (*final)[3];                              // [slot] input, rstd, mean of the final norm
    int *packed_forward, *packed_backward;        // [params]
    int layers;
    int *expert; // of layers with experts, see rank_expert_buffer; NULL: none
    enum rank_expert_place *expert_place;
    int expert_numbers;
};

// Room for the contributions of the other members of a sum over ranks. Small sums are exchanged
// whole: comm's COMM_WHOLE_BYTES is the same number; the engine asserts it.
enum { RANK_WHOLE_BYTES = 1 << 14 };
uint64_t rank_sum_scratch_bytes(int64_t elements, int members, size_t element_bytes);

// Blocks of a param, counted from its own first element, that the gradient norm sums apart. The
// device's DEVICE_NORM_BLOCK is the same number; the engine asserts it.
enum { RANK_NORM_BLOCK = 4096 };
int64_t rank_norm_blocks(const struct param *param);
// Whether forward's output stays until backward.
bool rank_keeps(const struct model_config *config, const struct rank_shape *shape,
                enum rank_activation activation);

// Room for one generation of what this rank stores of the state (masters, moments, biases of
// experts), as the part files of a checkpoint behind each other: at most what any of the ranks
// needs that differ in data or tensor coordinate alone, so that all of them take the same. Replicas
// share the storing (checkpoint/pieces.h divides; RANK_SHARE_BYTES and RANK_SHARE_ROWS are its
// numbers).
enum { RANK_SNAPSHOT_GENERATIONS = 2, RANK_SHARE_BYTES = 4096, RANK_SHARE_ROWS = 16 };
uint64_t rank_snapshot_bytes(const struct local_model *local, const struct rank_shape *shape);

// What one layer with a dense MLP keeps of one micro-batch, without the rounding of buffers.
// `config`: local sizes. With a mixture in place of the MLP: without what experts keep.
uint64_t rank_kept_bytes(const struct model_config *config, const struct rank_shape *shape,
                         bool experts);

int rank_plan(struct memory_plan *plan, struct rank_buffers *buffers,
              const struct local_model *local, const struct rank_shape *shape,
              const struct rank_workspace *workspace, struct err *err);
int rank_activation_buffer(const struct rank_buffers *buffers, int slot, int layer,
                           enum rank_activation activation);
int rank_flow_buffer(const struct rank_buffers *buffers, int flow, int layer, enum rank_flow which);
// Buffer number `which` of rank_workspace.experts for a micro-batch in this slot and flow; -1:
// none.
int rank_expert_buffer(const struct rank_buffers *buffers, int which, int slot, int flow,
                       int layer);
void rank_buffers_free(struct rank_buffers *buffers);
