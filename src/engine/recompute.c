// What each recomputation mode adds to a step.
#include "engine/engine.h"

double engine_recompute_flops(const struct model_config *config, enum engine_recompute mode,
                              double pairs_per_token) {
    const struct model_config *c = config;
    double hidden = c->hidden, ffn = c->ffn, q = (double)model_q_width(c);
    double up = 2 * hidden * (c->activation == ACTIVATION_SWIGLU ? 2 * ffn : ffn);
    double attention = 2 * hidden * (double)model_qkv_width(c) + 4 * q * pairs_per_token;
    double out = 2 * hidden * q;
    double down = c->norm_place == NORM_AFTER ? 2 * hidden * ffn : 0; // its norm needs it
    double added = 0;
    if (mode == RECOMPUTE_SELECTIVE_MLP) added = up;
    if (mode == RECOMPUTE_FULL) added = attention + out + up + down;
    return added * c->layers;
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
