// Kernels of mixtures of experts, a part of device.h (member `experts` of struct device). The
// products with an expert's weights are those of device.h, on row tiles.
//
// A token's way: its row of router logits becomes top_k experts with weights (route); rows go by
// index into tiles of their expert (gather); the weight of a row is multiplied into the activation
// (weighted SwiGLU), so that the down projection's rows are added up as they are (combine).
#pragma once
#include "base/dtype.h"
#include <stdbool.h>
#include <stdint.h>

struct device;

enum { DEVICE_MOST_TOP_K = 64 };

struct device_route {
    int64_t tokens;
    int experts, top_k;
    const float *logits; // [tokens, experts]
    const float *bias;   // [experts] or NULL: added to the scores for the choice only
    const uint8_t *idle; // [tokens] or NULL: nonzero: the token visits no expert
    bool normalise;      // weights are divided by their sum
    bool chosen;         // `expert` is given (routes of an earlier run); else it is filled
    // The experts with the largest softmax(logits) + bias, in falling order; of equal ones the
    // lower index comes first. -1 for idle tokens.
    int32_t *expert; // [tokens, top_k]
    float *weight;   // [tokens, top_k] softmax at the experts (divided by their sum); idle: 0
    float *score;    // [tokens, experts] softmax of the logits
    float *lse;      // [tokens] log of the sum of their exponentials
};

// dlogits [tokens, experts] of
//   sum over k dweight weight  +  sum over i aux[group[t]][i] score[t][i]  +  z_scale lse[t]^2
// Idle tokens: 0.
struct device_route_backward {
    int64_t tokens;
    int experts, top_k;
    bool normalise;
    const uint8_t *idle;               // or NULL
    const int32_t *expert;             // [tokens, top_k]
    const float *weight, *score, *lse; // of the forward pass
    const float *dweight;              // [tokens, top_k]; NULL: zero
    const float *aux;                  // [groups, experts]; NULL: zero
    const int32_t *group;              // [tokens] row of aux; NULL: all have row 0
    float z_scale;
    float *dlogits; // may be NULL when nothing is wanted of it
};

struct device_experts {
    void (*route)(struct device *device, const struct device_route *args);
    void (*route_backward)(struct device *device, const struct device_route_backward *args);
    // to[i] = from[index[i]], zeros where index[i] is -1; rows of `width` elements
    void (*gather_rows)(struct device *device, enum dtype type, int64_t rows, int64_t width,
                        const int32_t *index, const void *from, void *to);
    // to[index[i]] = from[i], nothing where index[i] is -1; no index twice
    void (*scatter_rows)(struct device *device, enum dtype type, int64_t rows, int64_t width,
                         const int32_t *index, const void *from, void *to);
    // out[t] = base[t] + base32[t] + rows[slot[t][0]] + rows[slot[t][1]] + ..., in this order in
    // FP32, rounded once; slots of -1 and bases that are NULL add nothing
    void (*combine_rows)(struct device *device, enum dtype type, int64_t tokens, int64_t width,
                         int top_k, const int32_t *slot, const void *rows, const void *base,
                         const float *base32, void *out);
    // out [rows, ffn] = weight[row] silu(gate) up of gate_up [rows, 2 ffn]
    void (*swiglu_forward)(struct device *device, enum dtype type, int64_t rows, int64_t ffn,
                           const void *gate_up, const float *weight, void *out);
    // dgate_up (may be gate_up) and dweight [rows] from dout; `out`, when not NULL, is redone
    void (*swiglu_backward)(struct device *device, enum dtype type, int64_t rows, int64_t ffn,
                            const void *gate_up, const float *weight, const void *dout,
                            void *dgate_up, float *dweight, void *out);
};
