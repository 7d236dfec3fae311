// Attention with its scores written to memory, as a comparison for weft bench attention.
#pragma once
#include "device/device.h"

struct plain_times {
    double forward_seconds, backward_seconds;
    double forward_bytes, backward_bytes; // scores and weights through memory, operands once
    double largest_difference;            // of its output to the tiled one
};

// Runs forward and backward of a causal square (queries = keys, one row) as products of the device
// with whole score matrices between them. `args` was run before: its `out` is compared.
int attention_plain(struct device *device, const struct device_attention_backward *args,
                    struct plain_times *times, struct err *err);
