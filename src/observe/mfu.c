// See mfu.h; operations are counted by model/flops.h.
#include "observe/mfu.h"
#include "model/flops.h"

struct mfu mfu_of_step(const struct model_config *config, int64_t context,
                       const struct mfu_step *step) {
    struct mfu m = {0};
    if (step->seconds <= 0 || step->processed <= 0) return m;
    double tokens = (double)step->processed, full = flops_per_token_full(config, context);
    double causal = flops_per_token_pairs(config, step->attended_pairs / tokens);
    m.tokens_per_second = tokens / step->seconds;
    m.flops_full = full * m.tokens_per_second;
    m.flops_causal = causal * m.tokens_per_second;
    if (step->gemm_rate <= 0) return m;
    m.full = m.flops_full / step->gemm_rate;
    m.causal = m.flops_causal / step->gemm_rate;
    m.hfu = (full + step->recomputed_flops) * m.tokens_per_second / step->gemm_rate;
    return m;
}
