// Tiny models, hand-made micro-batches and comparisons that the engine's tests share.
#pragma once
#include "data/batch.h"
#include "engine/engine.h"
#include "test.h"

// "gpt2", "llama" (grouped heads, untied), "tied" (llama with a tied head and a window in one
// layer), "qwen3" (norm of q and k per head, biases), "olmo2" (norms after, norm over all heads),
// "experts" (a dense layer, then experts with a shared one), "experts after" (the same, norms
// after).
struct model_config fixture_config(const char *kind);

struct fixture {
    struct device device;
    struct model model;
    struct engine *engine;
};
// Initial weights from seed 1, scaled up so that gradients are not tiny. options.context and rows
// are as given; zero fields of `options` get defaults (one micro-batch, AdamW of 0.9, 0.95, 1e-8,
// no decay).
void fixture_open(struct fixture *f, const struct model_config *config,
                  struct engine_options options, int threads, enum device_isa isa);
void fixture_close(struct fixture *f);

// A micro-batch of random tokens: plain causal rows.
struct batch fixture_batch(int rows, int context, int vocab, uint64_t seed);
void fixture_count(struct batch *batch); // counted and pairs after a change
void fixture_free(struct batch *batch);
// Documents of the given lengths in one row of `context` positions; the rest is padding. Tokens of
// document d come from seed + d.
struct batch fixture_packed(const int *lengths, int documents, int context, int vocab,
                            uint64_t seed);

struct engine_step fixture_step(struct fixture *f, struct batch *batches, int count, bool update);
// Copies of all gradients or masters in parameter order, padding left out.
float *fixture_copy(struct fixture *f, enum engine_part part, size_t *count);
double fixture_difference(const float *a, const float *b,
                          size_t count); // largest, over the largest of b
