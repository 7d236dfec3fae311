// Rates of a step, counted as docs/definitions.md says: model FLOPs in both conventions over time
// and over the best GEMM rate; HFU adds what recomputation repeats.
#pragma once
#include "model/model.h"
#include <stdint.h>

struct mfu_step {
    int64_t processed;       // tokens, padding included
    double attended_pairs;   // mean over the layers
    double seconds;          // data wait included, checkpoint and evaluation excluded
    double gemm_rate;        // FLOP/s; 0: not measured
    double recomputed_flops; // per token; of the full convention, as hfu is
};
struct mfu {
    double tokens_per_second;
    double flops_full, flops_causal; // model FLOPs per second
    double full, causal,
        hfu; // shares of the GEMM rate; 0 when it was not measured. hfu: full convention
};
struct mfu mfu_of_step(const struct model_config *config, int64_t context,
                       const struct mfu_step *step);
