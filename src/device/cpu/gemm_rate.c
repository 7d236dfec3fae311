// The best GEMM rate: pre-packed products of a training step's own large shapes.
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

static double rate_of(struct device *device, enum dtype type, int64_t tokens, int64_t k, int64_t n,
                      double seconds) {
    size_t size = dtype_bytes(type);
    struct device_weight weight = {.n = n, .k = k, .type = type};
    uint64_t packed_bytes = device->pack_bytes(device, &weight, false);
    unsigned char *x = calloc((size_t)(tokens * k), size), *w = calloc((size_t)(n * k), size);
    unsigned char *y = calloc((size_t)(tokens * n), size), *packed = NULL;
    if (packed_bytes) packed = aligned_alloc(64, (packed_bytes + 63) / 64 * 64);
    double rate = 0;
    if (x && w && y && (packed || !packed_bytes)) {
        // Ones cost as much as any other numbers, zeros might not.
        for (int64_t i = 0; i < tokens * k; i++)
            memcpy(x + (size_t)i * size, &(uint32_t){0x3f803f80}, size);
        for (int64_t i = 0; i < n * k; i++)
            memcpy(w + (size_t)i * size, &(uint32_t){0x3c003c00}, size);
        weight.plain = w;
        weight.packed_forward = packed;
        if (packed) device->pack(device, &weight, false);
        device->linear_forward(device, &weight, tokens, x, k, NULL, y, n, type); // made and warm
        int64_t runs = 0;
        double begin = clock_seconds(), end;
        do {
            device->linear_forward(device, &weight, tokens, x, k, NULL, y, n, type);
            runs++;
            end = clock_seconds();
        } while (end - begin < seconds);
        rate = 2.0 * (double)tokens * (double)n * (double)k * (double)runs / (end - begin);
    }
    free(x);
    free(w);
    free(y);
    free(packed);
    return rate;
}

double device_gemm_rate(struct device *device, enum dtype type, double seconds) {
    struct record_lane *lane = device->lane; // a measurement is no part of a step
    device->lane = NULL;
    double wide = rate_of(device, type, 4096, 768, 3072, seconds);
    double narrow = rate_of(device, type, 4096, 3072, 768, seconds);
    device->lane = lane;
    return wide > narrow ? wide : narrow;
}
