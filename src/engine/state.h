// What the files of the engine share: pointers into the rank's memory, by layer and by parameter.
#pragma once
#include "base/arena.h"
#include "engine/engine.h"
#include "memory/rank.h"
#include "schedule/schedule.h"

struct engine_layer {
    int param[PARAM_ROLE_COUNT]; // index, or -1
    void *act[ACT_COUNT];        // NULL: this model has none
    void *flow[FLOW_COUNT];      // training only
    int32_t window;
};

enum { ENGINE_SHAPES = 4 }; // micro-batch sizes whose products stay prepared

struct engine {
    const struct model *model;
    struct device *device;
    struct engine_options options;
    struct rank_shape shape;
    struct memory_plan plan;
    struct rank_buffers buffers;
    struct arena arena;
    struct schedule schedule;
    enum dtype type;

    struct device_weight *weight; // [params] matrices that enter a product
    int64_t *offset;              // [params + 1] into the flat buffers
    bool *written;                // [params] the gradient has been stored in this step
    int param[PARAM_ROLE_COUNT];  // outside the layers
    int head;                     // param of the head: its own or the embedding
    struct engine_layer *layers;

    void *single[SINGLE_COUNT];
    float *master; // flat; the weights themselves in FP32 mode
    bool keeps[ACT_COUNT];

    // of the step
    float loss_scale;
    int looked_up; // rows of the look-up accumulator in use
    bool lookup_written;
    double *batch_loss; // [micro_batches]
    int64_t prepared[ENGINE_SHAPES];
    int prepared_count;
};

static inline float *engine_master(struct engine *e, int param) {
    return param < 0 ? NULL : e->master + e->offset[param];
}
static inline float *engine_gradient(struct engine *e, int param) {
    return param < 0 ? NULL : (float *)e->single[SINGLE_GRADIENTS] + e->offset[param];
}
static inline void *engine_weight(struct engine *e, int param) {
    return (char *)e->single[SINGLE_WEIGHTS] + (size_t)e->offset[param] * dtype_bytes(e->type);
}
// True on the first call for this gradient in a step: it is to be stored, not added to.
static inline bool engine_first(struct engine *e, int param) {
    bool first = !e->written[param];
    e->written[param] = true;
    return first;
}

// plan.c. Makes the products of a micro-batch of `tokens`; *bytes: the largest workspace of a
// product.
int engine_prepare(struct device *device, const struct model *model, const struct rank_shape *shape,
                   struct device_weight *weights, int64_t tokens, uint64_t *bytes, struct err *err);
void engine_describe_weights(const struct model *model, struct device *device,
                             const struct rank_shape *shape, struct device_weight *weights,
                             uint64_t *pack_forward, uint64_t *pack_backward);
int engine_enumerate(struct memory_plan *plan, struct rank_buffers *buffers,
                     const struct model *model, struct device *device,
                     const struct rank_shape *shape, struct err *err);
struct rank_shape engine_shape(const struct engine_options *options);

// layer_forward.c
void layer_forward(struct engine *e, int layer, const struct batch *batch);
void layer_recompute(struct engine *e, int layer, const struct batch *batch);
struct device_norm layer_norm(struct engine *e, int weight, int bias, const void *x, void *y,
                              float *rstd, float *mean, int64_t tokens);
struct device_rope layer_rope(struct engine *e, int layer, const struct batch *batch);
struct device_attention layer_attention(struct engine *e, int layer, const struct batch *batch);
// layer_backward.c
void layer_backward_input(struct engine *e, int layer, const struct batch *batch);
void layer_backward_weight(struct engine *e, int layer, const struct batch *batch);
void layer_norm_backward(struct engine *e, int weight, int bias, const void *x, const void *dy,
                         const float *rstd, const float *mean, const void *dx_add, void *dx,
                         int64_t tokens);
// ends.c: embedding, final norm, head and loss
void embedding_forward(struct engine *e, const struct batch *batch);
void embedding_backward(struct engine *e, const struct batch *batch);
void final_norm_forward(struct engine *e, const struct batch *batch);
void final_norm_backward(struct engine *e, const struct batch *batch);
double head_loss(struct engine *e, const struct batch *batch, bool gradients);
void lookup_begin(struct engine *e, struct batch *const *batches, int count);
void lookup_end(struct engine *e);
// update.c
double engine_gradient_norm(struct engine *e);
void engine_update(struct engine *e, const struct engine_step *step);
// weights.c
void engine_pack(struct engine *e, int param);
