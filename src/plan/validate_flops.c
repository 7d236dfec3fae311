// Operations of a step as each source counts them, and times from printed rates. See validate.h.
#include "model/flops.h"
#include "plan/validate.h"
#include <math.h>
#include <string.h>

// What recomputation does again, per token: with "full" every layer's forward, with "selective" of
// 2022 the attention's two products (arXiv 2205.05198, appendix A).
static double again_per_token(const struct job *job) {
    const struct model_config *c = &job->model;
    double attention = 4.0 * c->layers * c->heads * c->head_dim * job->context;
    if (job->recompute == RECOMPUTE_FULL)
        return (flops_per_token_full(c, job->context) - 6.0 * c->vocab * c->hidden) / 3;
    return job->recompute == RECOMPUTE_SELECTIVE && !job->stack->flash_attention ? attention : 0;
}

double validate_flops(const struct job *job, enum validate_flops which) {
    double tokens = (double)job_sequences(job) * job->context;
    if (which == VALIDATE_FLOPS_CAUSAL)
        return tokens * flops_per_token_half(&job->model, job->context);
    double full = flops_per_token_full(&job->model, job->context);
    return tokens * (which == VALIDATE_FLOPS_FULL ? full : full + again_per_token(job));
}

static bool says(const struct published *row, const char *word) {
    return strcasestr(row->definition, word) != NULL;
}

// The definitions that occur: eq. (3) of arXiv 2104.04473 and its kin count recomputation; "half",
// "s/2" and "causal" count the keys before a query, unless they say that they do not.
static enum validate_flops definition(const struct published *row) {
    if (says(row, "hardware flops") || says(row, "hardware tflops") || says(row, "eq. (3)") ||
        says(row, "96*") || says(row, "incl. recompute"))
        return VALIDATE_FLOPS_HARDWARE;
    if (says(row, "not halved") || says(row, "non-causal") || says(row, "full attention") ||
        says(row, "full (non"))
        return VALIDATE_FLOPS_FULL;
    if (says(row, "half") || says(row, "s/2") || says(row, "causal")) return VALIDATE_FLOPS_CAUSAL;
    return VALIDATE_FLOPS_FULL;
}

double published_flops(const struct published *row, const struct job *job) {
    // BigScience's first estimator: 8 operations per nominal parameter and token
    if (says(row, "old estimator") && row->params_billions > 0)
        return 8e9 * row->params_billions * (double)job_sequences(job) * job->context;
    return validate_flops(job, definition(row));
}

double published_seconds(const struct published *row, const struct job *job) {
    double gpus = mesh_ranks(&job->layout.mesh);
    double sequences = (double)job_sequences(job);
    // A last micro-batch may be smaller: the job's step has a little more than the row's
    double longer = row->sequences > 0 ? sequences / (double)row->sequences : 1;
    if (row->seconds > 0) return row->seconds * longer;
    if (row->tokens_per_second > 0)
        return sequences * job->context / (row->tokens_per_second * gpus);
    if (row->tflops > 0) return published_flops(row, job) / (row->tflops * 1e12 * gpus);
    double peak = job->cluster.accelerator.dense[HARDWARE_BF16].value;
    if (job->precision == HARDWARE_FP8 && says(row, "FP8 peak"))
        peak = job->cluster.accelerator.dense[HARDWARE_FP8].value;
    bool half = definition(row) == VALIDATE_FLOPS_CAUSAL;
    double model = validate_flops(job, half ? VALIDATE_FLOPS_CAUSAL : VALIDATE_FLOPS_FULL);
    if (row->mfu > 0) return model / (row->mfu / 100 * peak * gpus);
    if (row->hfu > 0)
        return validate_flops(job, VALIDATE_FLOPS_HARDWARE) / (row->hfu / 100 * peak * gpus);
    return 0;
}
