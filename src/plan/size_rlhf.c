// The four models of reinforcement learning: their states, and how fast a replica generates. See
// size.h; size_pools.c has the pools.
#include "model/flops.h"
#include "plan/size.h"
#include "plan/size_parts.h"
#include <math.h>

enum { TRAINED_BYTES = 18, FROZEN_BYTES = 2 };

double size_rlhf_states(const struct size_rlhf_params *p, enum size_sharing sharing) {
    double frozen = FROZEN_BYTES * (p->reward + (sharing == SIZE_PRECOMPUTED ? 0 : p->policy));
    double trained = TRAINED_BYTES * (p->policy + p->value);
    switch (sharing) {
    case SIZE_LORA: // the reference is the policy's base without adapters; a reward model of that
                    // shape has adapters of its own, frozen
        return FROZEN_BYTES * (p->policy + (p->value_shares_base ? 0 : p->value) +
                               (p->reward_shares_base ? p->policy_adapters : p->reward)) +
               TRAINED_BYTES * (p->policy_adapters + p->value_adapters);
    case SIZE_OFFLOADED:
        return trained;
    default:
        return trained + frozen;
    }
}

double size_dpo_states(double params, bool precomputed) {
    return params * (TRAINED_BYTES + (precomputed ? 0 : FROZEN_BYTES));
}

// Two thin matrices beside every matrix of the layers, part by part: rank (rows + columns).
double size_lora_params(const struct model_config *config, int rank) {
    struct model model;
    double sum = 0;
    if (model_describe(&model, config, NULL) != 0) return 0;
    for (int i = 0; i < model.param_count; i++) {
        const struct param *p = &model.params[i];
        if (p->layer < 0 || !param_is_matrix(p) || p->role == PARAM_ROUTER) continue;
        for (int part = 0; part < p->parts; part++)
            sum += (double)rank * (double)(p->part_rows[part] + p->columns);
    }
    model_free(&model);
    return sum;
}

double size_kv_bytes(const struct model_config *c) {
    double width = model_is_latent(c) ? c->kv_lora_rank + c->qk_rope_head_dim
                                      : 2.0 * (double)model_kv_width(c);
    return 2 * width * c->layers;
}

double size_decode_seconds(double weight_bytes, double kv_bytes_per_token, double sequences,
                           double context, double bandwidth) {
    return (weight_bytes + sequences * kv_bytes_per_token * context) / bandwidth;
}

void size_generator_of(const struct size_rlhf *in, struct size_generator *out) {
    const struct accelerator *a = in->accelerator;
    int count = in->replica[POOL_ROLLOUT];
    double tokens = (double)in->prompt_tokens + in->response_tokens;
    *out =
        (struct size_generator){.weight_bytes = FROZEN_BYTES * (double)flops_all_params(in->policy),
                                .kv_bytes = size_kv_bytes(in->policy),
                                .bandwidth = count * a->memory_bandwidth.value,
                                .rate = count * a->dense[HARDWARE_BF16].value,
                                .flops_per_token = 2 * (double)flops_matmul_params(in->policy)};
    if (in->policy->experts > in->policy->top_k) {
        double idle = (double)(flops_all_params(in->policy) - flops_active_params(in->policy));
        out->missed = 1 - (double)in->policy->top_k / in->policy->experts;
        out->expert_bytes = FROZEN_BYTES * idle / out->missed;
    }
    // a tenth is left to activations, buffers and the allocator
    double room = 0.9 * count * a->memory_bytes.value - out->weight_bytes;
    out->most_sequences = room > 0 ? (int)(room / (out->kv_bytes * tokens)) : 0;
}

double size_weights_read(const struct size_generator *g, double sequences) {
    return g->weight_bytes - g->expert_bytes * pow(g->missed, sequences);
}

double size_token_seconds(const struct size_generator *g, double sequences, double context) {
    double read = size_decode_seconds(size_weights_read(g, sequences), g->kv_bytes, sequences,
                                      context, g->bandwidth);
    double compute = sequences * g->flops_per_token / g->rate;
    return read > compute ? read : compute;
}

// Prompts are read in one pass; then every token of the answer sees one more token of context. The
// reading of weights is the same for each token, that of the cache grows linearly: the mean context
// gives the sum.
double size_wave_seconds(const struct size_rlhf *in, const struct size_generator *g,
                         double sequences) {
    double prompt =
        sequences * in->prompt_tokens * g->flops_per_token / (g->rate * in->forward_mfu);
    double context = in->prompt_tokens + (in->response_tokens + 1) / 2.0;
    return prompt + in->response_tokens * size_token_seconds(g, sequences, context);
}
