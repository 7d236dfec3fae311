// What a stack other than weft's keeps of one micro-batch in one layer, tensor by tensor, and what
// it needs beside that while the layer is worked on. Inside the room only.
#pragma once
#include "plan/job.h"

enum { PLAN_MOST_KEPT = 32 };
struct plan_kept {
    const char *name; // "norm1", "scores", "router"
    double bytes;     // of one micro-batch on one rank
};
struct plan_layer {
    struct plan_kept kept[PLAN_MOST_KEPT];
    int count;
    double kept_bytes;    // their sum
    double working_bytes; // gradients on their way, and what recomputation brings back
    double halved_bytes;  // of a backward pass in halves, from the first to the second: inputs of
                          // products and gradients of their outputs
};
void plan_layer_kept(const struct job *job, int layer, struct plan_layer *out);
