// A model that writes: weights in the compute type, a key/value cache, and the forward pass over
// the same device kernels as the engine. One text at a time; tokens are appended and never
// recomputed.
//
// The weights come from outside, param by param (generator_set_param), so that this room needs to
// know no file format; memory is planned from the description and taken once.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "device/device.h"
#include "memory/memory.h"
#include "model/model.h"
#include <stdint.h>

struct generator_options {
    enum dtype compute; // DTYPE_BF16 or DTYPE_F32
    // Positions that the cache holds; 0: the model's context. Never more than that, or than its
    // multiple by the factor where rotary scaling is dynamic.
    int context;
    int chunk; // most tokens of a pass over a prompt; 0: 256
};

struct generator;

// `model` and `device` are borrowed. The device's workspace belongs to the generator from here on:
// an engine on the same device must have finished.
struct generator *generator_open(const struct model *model, struct device *device,
                                 const struct generator_options *options, struct err *err);
void generator_close(struct generator *g);

// FP32 values [rows, columns] (logical) of a param of the model. Values that are not finite are
// refused. After the last one generator_weights_changed lays the products' copies out.
int generator_set_param(struct generator *g, int param, const float *values, struct err *err);
void generator_weights_changed(struct generator *g);
// Bias of the choice of experts in a layer, [experts]; zero unless given.
void generator_set_expert_bias(struct generator *g, int layer, const float *values);

const struct memory_plan *generator_memory(const struct generator *g);
uint64_t generator_allocated_bytes(const struct generator *g); // equals the plan's total
const struct model *generator_model(const struct generator *g);
int generator_context(const struct generator *g); // positions that fit
int generator_length(const struct generator *g);  // positions that the cache holds now
// Forgets all but the first `length` positions; 0 begins a new text.
void generator_rewind(struct generator *g, int length);

// Appends `count` >= 1 tokens. Afterwards generator_logits are those of the last one.
int generator_feed(struct generator *g, const int32_t *ids, int count, struct err *err);
// FP32 [vocab], valid until the next call; the place may be written to.
float *generator_logits(struct generator *g);

// Appends as generator_feed and gives, for every one of the tokens, the loss in nats of predicting
// targets[i] after it (0 where targets[i] is -1) into losses [count].
int generator_score(struct generator *g, const int32_t *ids, const int32_t *targets, int count,
                    float *losses, struct err *err);
// Appends as generator_feed and gives the logits of every token, [count, vocab].
int generator_feed_all(struct generator *g, const int32_t *ids, int count, float *logits,
                       struct err *err);
