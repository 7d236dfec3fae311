// What each recomputation mode adds to a step.
#include "engine/engine.h"

// Of a token in one layer: the up and the down projection of all MLPs that it visits.
static void mlp_flops(const struct model_config *c, int layer, double *up, double *down) {
    double hidden = c->hidden, ffn = c->ffn;
    bool gated = c->activation == ACTIVATION_SWIGLU;
    if (model_layer_has_experts(c, layer)) ffn = (double)c->top_k * c->expert_ffn + c->shared_ffn;
    *up = 2 * hidden * (gated ? 2 * ffn : ffn);
    *down = 2 * hidden * ffn;
}

double engine_recompute_flops(const struct model_config *config, enum engine_recompute mode,
                              double pairs_per_token) {
    const struct model_config *c = config;
    double hidden = c->hidden, q = (double)model_q_width(c), added = 0;
    double attention = 2 * hidden * (double)model_qkv_width(c) + 4 * q * pairs_per_token;
    double out = 2 * hidden * q;
    for (int l = 0; l < c->layers; l++) {
        double up, down;
        mlp_flops(c, l, &up, &down);
        if (mode == RECOMPUTE_SELECTIVE_MLP) added += up;
        if (mode == RECOMPUTE_FULL) added += attention + out + up;
        if (mode == RECOMPUTE_FULL && c->norm_place == NORM_AFTER)
            added += down; // its norm needs it
    }
    return added;
}

const char *engine_recompute_text(enum engine_recompute mode) {
    switch (mode) {
    case RECOMPUTE_NONE:
        return "nothing";
    case RECOMPUTE_SELECTIVE:
        return "norms, activation";
    case RECOMPUTE_SELECTIVE_MLP:
        return "norms, activation, up projection";
    case RECOMPUTE_FULL:
        return "norms, query-key-value projection, rotation, attention, output projection, up "
               "projection, activation";
    }
    return "";
}
