#include "base/clock.h"
#include "device/device.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>

TEST(gemm_rate_is_measured) {
    struct device device;
    struct err err = {0};
    struct device_cpu_options options = {0};
    CHECK_OK(device_cpu_open(&device, &options, &err), err);
    printf("%s: bf16 %.1f GFLOP/s, f32 %.1f\n", device.name, device_gemm_rate(&device, DTYPE_BF16, 0.5) / 1e9,
           device_gemm_rate(&device, DTYPE_F32, 0.5) / 1e9);
    device.close(&device);
}
