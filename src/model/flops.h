// Operations counted as docs/definitions.md says: N counts parameters that enter a
// matrix product (the output head once, tied or not; no look-ups, norms or biases); attention
// counts attended pairs. Of a layer with experts count the router, the top_k experts that a token
// visits and the shared one.
#pragma once
#include "model/model.h"
#include <stdint.h>

int64_t flops_matmul_params(const struct model_config *config); // N
// Every stored parameter, a tied head once; and those of them that one token uses: without the
// experts that it does not visit. -1: the shape is refused.
int64_t flops_all_params(const struct model_config *config);
int64_t flops_active_params(const struct model_config *config);

// Attended (query, key) pairs of one causal sequence: window 0 means all.
int64_t flops_attended_pairs(int64_t tokens, int64_t window);

// Training FLOPs per token: 6 N + 12 sum over layers of heads x head_dim x (pairs of a layer /
// tokens). "half": every query sees context / 2 keys, windows ignored: 6 N + 6 L H T, the figure
// without the diagonal. "full": every query sees `context` keys, windows ignored: 6 N + 12 L H T.
// "causal": exact pairs.
double flops_per_token_full(const struct model_config *config, int64_t context);
double flops_per_token_causal(const struct model_config *config, int64_t context);
double flops_per_token_half(const struct model_config *config, int64_t context);
// The same for pairs counted elsewhere (packed documents, windows): pairs per token, mean over the
// layers.
double flops_per_token_pairs(const struct model_config *config, double pairs_per_token);
