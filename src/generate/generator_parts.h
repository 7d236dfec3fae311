// Inner parts of the generator, shared by generator.c (memory and weights) and forward.c (the
// pass).
#pragma once
#include "base/arena.h"
#include "generate/generator.h"

enum { GENERATOR_HEAD_ROWS = 64 }; // rows whose logits exist at the same time

struct generator_slot { // a pointer that waits for the arena
    void *place;        // address of the pointer
    int buffer;         // in the plan
};

struct generator_experts {        // of a pass through a layer with experts
    float *bias;                  // [layers, experts]
    float *input;                 // [chunk, hidden] FP32 for the router (bf16 mode)
    float *router_logits, *score; // [chunk, experts]
    float *lse;                   // [chunk]
    int32_t *expert, *slot;       // [chunk, top_k] chosen expert and place of the row
    float *weight;                // [chunk, top_k]
    int32_t *token;               // [chunk top_k] of the sorted rows
    float *row_weight;
    int32_t *first; // [experts + 1]
    void *gathered; // [chunk, hidden]
    void *rows;     // [chunk top_k, hidden] results of the sorted rows
};

struct generator {
    const struct model *model;
    struct device *device;
    struct generator_options options;
    struct memory_plan plan;
    struct arena arena;
    struct generator_slot *slots;
    int slot_count;

    int *index;    // [layers + 1, PARAM_ROLE_COUNT] param or -1; row 0: outside the layers
    void **values; // [params] matrices in the compute type, vectors in FP32
    struct device_weight *weights; // [params] used by products only
    struct device_weight head;     // the embedding again when tied
    int head_param;
    bool weights_ready;

    void **cache;         // [layers] keys and values [context, 2 kv_width]
    float *cosine, *sine; // [context, head_dim / 2]; NULL with learned positions
    // of a pass, `chunk` rows each
    int32_t *ids, *position, *attend_from, *attend_to;
    void *residual, *normed, *delta; // [chunk, hidden]
    void *qkv;                       // [chunk, qkv_width]
    void *attended;                  // [chunk, q_width]
    void *up;                        // [chunk, ffn or 2 ffn], the widest of all MLPs
    void *activated;                 // [chunk, ffn]
    float *rstd;                     // [chunk, heads + kv_heads]
    float *logits;                   // [GENERATOR_HEAD_ROWS, padded vocab]
    int32_t *targets;                // [GENERATOR_HEAD_ROWS]
    float *losses;                   // [GENERATOR_HEAD_ROWS]
    struct generator_experts experts;
    void *attention_workspace;
    void *workspace; // of the products
    uint64_t workspace_bytes;

    int length;         // positions in the cache
    float *last_logits; // of the last fed token
};

// Sizes of passes: `most`, a quarter of it, and so on down to 1; a run of tokens is cut into these,
// so that few shapes of products exist. The next size below `size`, 0 behind 1.
static inline int generator_next_size(int size) {
    return size > 4 ? size / 4 : size > 1 ? 1 : 0;
}

static inline int generator_param(const struct generator *g, int layer, enum param_role role) {
    return g->index[(layer + 1) * PARAM_ROLE_COUNT + (int)role];
}
// Values of a param as FP32 (vectors), or NULL where the model has none.
static inline const float *generator_vector(const struct generator *g, int layer,
                                            enum param_role role) {
    int i = generator_param(g, layer, role);
    return i < 0 ? NULL : g->values[i];
}

// Puts a buffer on the list; `place` gets its address once the arena stands.
int generator_want(struct generator *g, void *place, enum buffer_kind kind, int layer,
                   uint64_t bytes, const char *name, struct err *err);
// experts.c: delta = MLP of the rows x in a layer with experts
void generator_experts(struct generator *g, int rows, int layer, const void *x);
int generator_plan_experts(struct generator *g, struct err *err);
