// The buffers and products of a layer with experts, as the memory plan counts them; see moe.h.
#include "engine/moe.h"

static int64_t rounded(int64_t rows, int64_t to) {
    return (rows + to - 1) / to * to;
}

int64_t moe_wave_rows(const struct moe_shape *s, int64_t wanted) {
    int64_t local = s->experts / s->ep, pairs = s->tokens * s->top_k;
    int64_t most = pairs * s->ep + local * (MOE_PAD - 1);
    int64_t rows = wanted;
    if (rows <= 0) rows = s->ep == 1 ? most : pairs + pairs / 4 + local * (MOE_PAD - 1);
    if (rows > most) rows = most;
    return rounded(rows < MOE_CHUNK ? MOE_CHUNK : rows, MOE_PAD);
}

const char *moe_buffer_name(enum moe_buffer buffer) {
    static const char *const names[MOE_BUFFER_COUNT] = {
        [MOE_EXPERT] = "experts of tokens",
        [MOE_WEIGHT] = "weights of experts",
        [MOE_SCORE] = "router scores",
        [MOE_LSE] = "router log-sum-exp",
        [MOE_SLOT] = "places of rows",
        [MOE_COUNTS] = "rows per expert",
        [MOE_LOADS] = "choices per sequence",
        [MOE_TILES] = "rows of experts",
        [MOE_TILE_WEIGHT] = "weights of rows",
        [MOE_UP] = "up projection of experts",
        [MOE_SHARED_UP] = "up projection of the shared expert",
        [MOE_ACTIVATED] = "activation of experts",
        [MOE_DOWN] = "gradient of experts' output",
        [MOE_DLOGITS] = "gradient of router logits",
        [MOE_SHARED_ACTIVATED] = "activation of the shared expert",
        [MOE_INPUT] = "router input",
        [MOE_LOGITS] = "router logits",
        [MOE_TOKEN] = "tokens of sorted rows",
        [MOE_ROW_WEIGHT] = "weights of sorted rows",
        [MOE_CHOICE_GRADIENT] = "gradient of weights",
        [MOE_ROWS] = "sorted rows",
        [MOE_RECEIVED] = "received rows",
        [MOE_RECEIVED_WEIGHT] = "received weights",
        [MOE_MAP] = "sources of rows",
        [MOE_MAP_TOKEN] = "tokens of rows",
        [MOE_OUT] = "output of experts",
        [MOE_WIDE] = "gradient of activations",
        [MOE_SHARED_WIDE] = "gradient of the shared activation",
        [MOE_SHARED_OUT] = "output of the shared expert",
        [MOE_TILE_GRADIENT] = "gradient of rows' weights",
        [MOE_SMALL] = "counters of dispatch",
        [MOE_AUX] = "balancing loss",
        [MOE_SEQUENCE] = "sequences of tokens",
        [MOE_IDLE] = "padding",
        [MOE_PLACES] = "choices of other parts",
    };
    return names[buffer];
}

uint64_t moe_buffer_bytes(const struct moe_shape *s, enum moe_buffer buffer) {
    uint64_t element = dtype_bytes(s->type), tokens = (uint64_t)s->tokens, wave = (uint64_t)s->wave;
    uint64_t pairs = tokens * (uint64_t)s->top_k, scores = tokens * (uint64_t)s->experts;
    uint64_t hidden = (uint64_t)s->hidden * element, ffn = (uint64_t)s->expert_ffn * element;
    uint64_t shared = tokens * (uint64_t)s->shared_ffn * element, spread = s->ep > 1;
    uint64_t train = s->train;
    switch (buffer) {
    case MOE_EXPERT:
    case MOE_WEIGHT:
    case MOE_SLOT:
    case MOE_TOKEN:
    case MOE_ROW_WEIGHT:
        return pairs * 4;
    case MOE_CHOICE_GRADIENT:
        return train * pairs * 4;
    case MOE_SCORE:
    case MOE_LOGITS:
        return scores * 4;
    case MOE_DLOGITS:
        return train * scores * 4;
    case MOE_LSE:
    case MOE_SEQUENCE:
        return tokens * 4;
    case MOE_IDLE:
        return tokens;
    case MOE_COUNTS:
        return (uint64_t)s->ep * (uint64_t)s->experts * 8;
    case MOE_LOADS:
        return (uint64_t)s->sequences * (uint64_t)s->experts * 8;
    case MOE_TILES:
    case MOE_OUT:
        return wave * hidden;
    case MOE_DOWN:
        return train * wave * hidden;
    case MOE_TILE_WEIGHT:
        return wave * 4;
    case MOE_TILE_GRADIENT:
        return train * wave * 4;
    case MOE_UP:
        return 2 * wave * ffn;
    case MOE_ACTIVATED:
        return train * wave * ffn;
    case MOE_WIDE:
        return wave * ffn;
    case MOE_SHARED_UP:
        return 2 * shared;
    case MOE_SHARED_ACTIVATED:
        return train * shared;
    case MOE_SHARED_WIDE:
        return shared;
    case MOE_SHARED_OUT:
        return s->shared_ffn > 0 ? tokens * hidden : 0;
    case MOE_INPUT:
        return train || s->type != DTYPE_F32 ? tokens * (uint64_t)s->hidden * 4 : 0;
    case MOE_ROWS:
        return pairs * hidden;
    case MOE_RECEIVED:
        return spread * wave * hidden;
    case MOE_RECEIVED_WEIGHT:
        return spread * wave * 4;
    case MOE_MAP:
    case MOE_MAP_TOKEN:
        return wave * 4;
    case MOE_SMALL:
        return moe_small_bytes(s);
    case MOE_AUX:
        return train * (uint64_t)s->sequences * (uint64_t)s->experts * 4;
    case MOE_PLACES:
        return s->cp > 1 ? ((uint64_t)s->cp + 1) * tokens * (1 + (uint64_t)s->top_k) * 4 : 0;
    case MOE_BUFFER_COUNT:
        break;
    }
    return 0;
}

enum moe_place moe_buffer_place(const struct moe_shape *s, enum moe_buffer buffer) {
    if (!s->train) return MOE_ONCE;
    switch (buffer) {
    case MOE_EXPERT:
    case MOE_WEIGHT:
    case MOE_SCORE:
    case MOE_LSE:
    case MOE_SLOT:
    case MOE_COUNTS:
    case MOE_LOADS:
        return MOE_KEPT;
    case MOE_TILES:
    case MOE_TILE_WEIGHT:
    case MOE_UP:
    case MOE_SHARED_UP:
        return s->keeps_up ? MOE_KEPT : MOE_ONCE;
    case MOE_ACTIVATED:
    case MOE_DOWN:
    case MOE_DLOGITS:
    case MOE_SHARED_ACTIVATED:
        return MOE_FLOW;
    default:
        return MOE_ONCE;
    }
}

static int prepare(struct device *device, const struct device_weight *w, const char *kinds,
                   int64_t tokens, uint64_t *most, struct err *err) {
    for (; *kinds; kinds++) {
        uint64_t bytes = 0;
        if (device->prepare_linear(device, w, *kinds, tokens, w->k, w->n, w->type, &bytes, err) !=
            0)
            return -1;
        if (bytes > *most) *most = bytes;
    }
    return 0;
}

int moe_prepare(struct device *device, const struct moe_shape *s,
                const struct device_weight *router, const struct device_weight *up,
                const struct device_weight *down, const struct device_weight *shared_up,
                const struct device_weight *shared_down, uint64_t *bytes, struct err *err) {
    const char *kinds = s->train ? "fiw" : "f";
    uint64_t most = 0;
    for (int64_t rows = MOE_PAD; rows <= MOE_CHUNK; rows += MOE_PAD)
        if (prepare(device, up, kinds, rows, &most, err) != 0 ||
            prepare(device, down, kinds, rows, &most, err) != 0)
            return err_context(err, "experts");
    if (prepare(device, router, kinds, s->tokens, &most, err) != 0)
        return err_context(err, "router");
    if (shared_up && (prepare(device, shared_up, kinds, s->tokens, &most, err) != 0 ||
                      prepare(device, shared_down, kinds, s->tokens, &most, err) != 0))
        return err_context(err, "shared expert");
    if (bytes) *bytes = most;
    return 0;
}
