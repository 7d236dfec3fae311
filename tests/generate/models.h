// Tiny models of every kind with random weights, for the tests of this folder.
#pragma once
#include "generate/generator.h"

enum tiny_kind {
    TINY_GPT2,
    TINY_LLAMA,   // grouped heads, plain rotation
    TINY_QWEN2,   // biases on q, k, v; tied head
    TINY_QWEN3,   // norm of q and k per head
    TINY_OLMO2,   // norm behind the blocks, norm of q and k over all heads
    TINY_WINDOW,  // layers that see four keys, and all
    TINY_EXPERTS, // a dense layer, and one of experts with a shared one
    TINY_COUNT
};
enum { TINY_VOCAB = 70, TINY_CONTEXT = 48 };

struct tiny {
    struct model model;
    struct device device;
    struct generator *g;
};
void tiny_open(struct tiny *t, enum tiny_kind kind, enum dtype compute, int chunk, int threads);
void tiny_fill(struct generator *g);
void tiny_close(struct tiny *t);
// Ids 0 .. TINY_VOCAB - 1, a function of (seed, index).
void tiny_tokens(uint64_t seed, int count, int32_t *ids);
