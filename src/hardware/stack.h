// How a training program performs a step, as plain data: what it fuses, keeps, overlaps, and how
// wide its gradients are. "weft" is this program's engine; the others describe published systems,
// from their documentation and papers, so that measurements of theirs can be compared with
// predictions. Read from YAML in the catalogue.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "hardware/hardware.h"
#include <stdbool.h>

// What selective recomputation means.
enum stack_selective {
    STACK_SELECTIVE_OWN,  // as docs/definitions.md: norms, activation, casts
    STACK_SELECTIVE_CORE, // the attention core alone (Megatron, 2022)
    STACK_SELECTIVE_HALF  // every second product is done again (torchtitan's "op")
};

struct stack {
    const char *name, *title, *source;
    bool own;                       // weft's engine: memory is the engine's own enumeration
    bool flash_attention;           // scores are never stored
    struct figure attention_share;  // of the accelerator's rate of fused attention; absent: 1
    struct figure attention_copies; // copies of queries, keys and values around fused attention,
                                    // forward and as many backward, each of their whole width
    bool older_attention;  // FlashAttention-2 also where there are kernels for the generation
    bool fused_softmax;    // scale, mask, softmax in one kernel (only where scores are stored)
    bool fused_activation; // bias and activation in one kernel
    bool fused_residual;   // bias, dropout and residual in one kernel
    bool fused_accumulate; // the weight-gradient product adds into the FP32 gradient itself
    enum stack_selective selective;
    bool fused_norm, fused_rope, fused_loss;
    bool dropout;                 // masks are made and kept
    bool sequence_parallel;       // where tp > 1, unless a job says otherwise
    bool overlap_reduce;          // gradients are reduced while backward goes on
    bool overlap_gather;          // sharded weights are gathered while forward goes on
    bool overlap_tensor;          // collectives of tensor parallelism run beside products
    bool overlap_weight;          // sums of input gradients over tensor ranks run beside the
                                  // products of weight gradients
    bool overlap_pipeline;        // sends run beside compute
    bool serial_pipeline;         // sends and receives one after the other, each keeps both ranks
    bool split_sends;             // tensor ranks send a part each and gather it behind
    bool overlap_experts;         // expert all-to-all runs beside compute
    bool experts_whole;           // not cut over tensor ranks (Megatron's ETP 1)
    bool copy_per_node;           // a token goes once to each node that holds experts of it
    bool graphs;                  // kernels are launched without the host (CUDA graphs)
    bool blocking_launch;         // the host waits for each kernel (CUDA_LAUNCH_BLOCKING=1)
    bool post_validation;         // ranks do not wait for each other at the end of a step (Qi et
                                  // al., arXiv 2401.10241, sec. 4)
    struct figure launch_seconds; // host time per kernel: below it kernels wait for the host
    struct figure step_seconds;   // host time per step that nothing hides
    struct figure shard_copies;   // kernels of a step for each tensor and rank of a sharded group,
                                  // where shards are cut and put back one by one
    enum dtype gradient, reduce;  // gradients in memory, and on the wire
    bool masters;                 // FP32 masters beside the weights of the compute type
    bool both_gradients;          // those of the compute type stay beside the FP32 ones
    bool step_gradients;          // the update makes FP32 copies of the gradients of its shard
    bool dummy_gradients;         // one of the compute type is held for each shape of weights,
                                  // though nothing is in it (Transformer Engine)
    struct figure loss_bytes;     // per logit while the loss is taken
    struct figure spread_loss_bytes; // the same with the vocabulary over tensor ranks; 0: as there
    struct figure bucket_bytes;      // of gradients reduced together
    struct figure allocator_share;   // of activations and transient buffers, lost to fragmentation
    struct figure context_bytes;     // driver, libraries, communicator buffers
};
// NULL with a message that names the nearest one.
const struct stack *catalogue_stack(const struct catalogue *catalogue, const char *name,
                                    struct err *err);
