// What the price of a step's parts depends on: one structure that the planner fills from a layout.
#pragma once
#include "hardware/hardware.h"
#include "hardware/stack.h"
#include "layout/layout.h"
#include "memory/rank.h"
#include "model/model.h"

struct cost_shape {
    const struct model_config *model; // of the whole model
    const struct cluster *cluster;
    const struct stack *stack;
    struct mesh mesh;
    bool sequence_parallel;
    int rows, context; // of a micro-batch of a data rank, before the cut over cp
    enum engine_recompute recompute;
    enum hardware_precision precision; // of products that may be narrower than BF16
    bool gather_keys;                  // context parallelism: all-gather in place of the ring
    int predictions;  // modules that foretell further tokens (DeepSeek-V3: 1), behind the last
                      // layer: each a layer and a pass of the head more, no useful operations
    double imbalance; // MoE: tokens of the busiest rank over the mean; 1: forced balance
    int threads;      // CPU: of a rank; 0: those of the measurement
    double dropout;   // of weft's engine; other stacks say themselves whether they drop
    bool no_overlap;  // every message is waited for where it is posted
};
