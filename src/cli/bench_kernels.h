// Memory bandwidth, and what share of it the kernels between the products reach.
#pragma once
#include "device/device.h"

struct kernel_figure {
    const char *name;
    double bytes, seconds; // bytes that must pass through memory in one call, the best call's time
};
enum { KERNEL_FIGURES = 20 };

struct bandwidth_figures {
    double copy_rate, triad_rate; // bytes/s, reads and writes of the program counted
    struct kernel_figure kernel[KERNEL_FIGURES];
    int count;
};

// Each kernel for about `seconds`, on buffers far beyond the caches.
int bench_kernels(struct device *device, enum dtype type, double seconds,
                  struct bandwidth_figures *out, struct err *err);
