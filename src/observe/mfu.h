// Rates of a step, counted as docs/definitions.md says: model FLOPs in both conventions over time
// and over the best GEMM rate; HFU adds what recomputation repeats.
#pragma once
#include "model/model.h"
#include <stdint.h>

struct mfu_step {
    int64_t processed;       // tokens, padding included
    int64_t attended_pairs;  // of one layer without a window
    double seconds;          // data wait included, checkpoint and evaluation excluded
    double gemm_rate;        // FLOP/s; 0: not measured
    double recomputed_flops; // per token, see mfu_recomputed_*
};
struct mfu {
    double tokens_per_second;
    double flops_full, flops_causal; // model FLOPs per second
    double full, causal,
        hfu; // shares of the GEMM rate; 0 when it was not measured. hfu: full convention
};
struct mfu mfu_of_step(const struct model_config *config, int64_t context,
                       const struct mfu_step *step);

// FLOPs per token that the modes repeat: gate and up (selective_mlp); the whole forward of all
// blocks (full). Mode selective repeats no product.
double mfu_recomputed_mlp(const struct model_config *config);
double mfu_recomputed_full(const struct model_config *config, int64_t context);
