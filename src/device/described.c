// Sizes of a device that is not here, see device_described in device.h. Kernels as they are written
// for accelerators: attention in tiles, whose backward pass adds up the gradient of the queries in
// FP32 and needs one FP32 number per query and head; gradients of vectors are summed by each
// processor, then over them.
#include "device/device.h"

static uint64_t pack_bytes(struct device *device, const struct device_weight *weight,
                           bool backward) {
    (void)device, (void)weight, (void)backward;
    return 0;
}

// The library's workspace is one, whatever the shape.
static int prepare_linear(struct device *device, const struct device_weight *weight, char kind,
                          int64_t tokens, int64_t x_stride, int64_t y_stride, enum dtype out_type,
                          uint64_t *workspace_bytes, struct err *err) {
    (void)weight, (void)kind, (void)tokens, (void)x_stride, (void)y_stride, (void)out_type;
    (void)err;
    const struct device_described_options *options = device->state;
    *workspace_bytes = options->products_bytes;
    return 0;
}

static uint64_t attention_workspace_bytes(struct device *device,
                                          const struct device_attention *shape, bool backward) {
    (void)device;
    if (!backward) return 0;
    uint64_t rows = (uint64_t)shape->queries * (uint64_t)shape->heads;
    return rows * ((uint64_t)shape->head_dim + 1) * sizeof(float);
}

static uint64_t sums_bytes(const struct device *device, int64_t width) {
    const struct device_described_options *options = device->state;
    return (uint64_t)options->units * (uint64_t)width * sizeof(float);
}

static uint64_t bias_backward_workspace_bytes(struct device *device, int64_t tokens, int64_t n) {
    (void)tokens;
    return sums_bytes(device, n);
}

static uint64_t norm_backward_workspace_bytes(struct device *device, int64_t tokens,
                                              int64_t width) {
    (void)tokens;
    return sums_bytes(device, 2 * width);
}

static uint64_t rope_backward_workspace_bytes(struct device *device,
                                              const struct device_rope *shape) {
    int64_t width = shape->norm_over_all_heads
                        ? (int64_t)(shape->heads + shape->kv_heads) * shape->head_dim
                        : 2 * (int64_t)shape->head_dim;
    return shape->q_norm ? sums_bytes(device, width) : 0;
}

void device_described(struct device *device, const struct device_described_options *options) {
    *device = (struct device){.name = "described",
                              .threads = 1,
                              .state = (void *)options, // read only
                              .pack_bytes = pack_bytes,
                              .prepare_linear = prepare_linear,
                              .bias_backward_workspace_bytes = bias_backward_workspace_bytes,
                              .norm_backward_workspace_bytes = norm_backward_workspace_bytes,
                              .rope_backward_workspace_bytes = rope_backward_workspace_bytes,
                              .attention_workspace_bytes = attention_workspace_bytes};
}
