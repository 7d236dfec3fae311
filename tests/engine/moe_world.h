// A layer with experts by itself: the same micro-batch on one rank or spread over ranks that are
// threads, with weights and inputs made from names, and everything that comes out.
#pragma once
#include "engine/moe.h"
#include "test.h"

struct moe_case {
    int rows, context, hidden, ffn, shared, experts, top_k;
    int padding;                    // positions at the end of the last row
    double capacity_factor, aux, z; // aux and z: scales
    // how it runs
    int64_t wave;          // 0: the default
    const float *bias;     // [experts]
    const int32_t *chosen; // [rows context, top_k] or NULL
    const float *weights;  // of moe_weight_count elements, or NULL: made here
    int ep, threads;       // rows are spread over ep ranks; 0: 1
    enum moe_aux_scope scope;
    enum dtype type;
    bool normalise;
    bool keeps_up, split;
    bool no_loss; // dy is zero: only the router's own losses act
    bool calm;    // the router's weights are zero: equal scores
};

struct moe_result {
    int64_t tokens;
    float *y, *dx;          // [tokens, hidden]
    float *gradients;       // router, experts (up, down each), shared up, shared down
    int32_t *expert, *slot; // [tokens, top_k]; slots are those of the token's rank
    struct moe_statistics statistics;
    int waves;
    double loss; // sum of y r + scales times aux and z, in double from the results
};

int64_t moe_weight_count(const struct moe_case *c);
// Offset of a part in weights and gradients: 0 router, 1 + 2 e up, 2 + 2 e down, then shared.
int64_t moe_weight_offset(const struct moe_case *c, int part);
void moe_make_weights(const struct moe_case *c, float *out);
float moe_input(int64_t token, int column);       // x
float moe_gradient_of(int64_t token, int column); // r: dy
void moe_run(const struct moe_case *c, struct moe_result *out);
void moe_free(struct moe_result *r);
