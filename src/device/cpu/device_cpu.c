// Opening the CPU backend: which instruction set, how many threads, and the table of kernels.
#include "device/cpu/attention.h"
#include "device/cpu/cpu.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static enum device_isa best_isa(void) {
#ifdef WEFT_X86_64
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return DEVICE_ISA_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return DEVICE_ISA_AVX512;
    return DEVICE_ISA_AVX2;
#else
    return DEVICE_ISA_PORTABLE;
#endif
}

enum { SMALL_WEIGHT = 1 << 14 }; // elements

static const char *isa_name(enum device_isa isa) {
    return isa == DEVICE_ISA_AVX512 ? "avx512" : isa == DEVICE_ISA_AVX2 ? "avx2" : "portable";
}

#define FILL(isa)                                                                                  \
    do {                                                                                           \
        norm_fill_##isa(device);                                                                   \
        rope_fill_##isa(device);                                                                   \
        pointwise_fill_##isa(device);                                                              \
        attention_merge_fill_##isa(device);                                                        \
        dropout_fill_##isa(device);                                                                \
        embedding_fill_##isa(device);                                                              \
        experts_fill_##isa(device);                                                                \
        cross_entropy_fill_##isa(device);                                                          \
        optimizer_fill_##isa(device);                                                              \
    } while (0)

static void fill_kernels(struct device *device, enum device_isa isa) {
#ifdef WEFT_X86_64
    if (isa == DEVICE_ISA_AVX512) {
        FILL(avx512);
        return;
    }
    if (isa == DEVICE_ISA_AVX2) {
        FILL(avx2);
        return;
    }
#endif
    (void)isa;
    FILL(portable);
}

static void close_cpu(struct device *device) {
    struct cpu_device *cpu = cpu_device_of(device);
    gemm_close(&cpu->products);
    free(cpu->own_workspace);
    free(cpu);
    device->state = NULL;
}

int device_cpu_open(struct device *device, const struct device_cpu_options *options,
                    struct err *err) {
    enum device_isa best = best_isa(),
                    isa = options->limit == DEVICE_ISA_BEST ? best : options->limit;
    if (isa > best) {
        return err_set(err, ERR_USAGE,
                       "this processor has no %s instructions; the highest set it offers is %s",
                       isa_name(isa), isa_name(best));
    }
    if (options->threads < 0)
        return err_set(err, ERR_USAGE, "%d threads: expected 0 (all) or more", options->threads);
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return err_set(err, ERR_MEMORY, "no memory for the CPU device");
    *device = (struct device){.state = cpu, .lane = options->lane, .close = close_cpu};
    device->threads = options->threads ? options->threads : omp_get_max_threads();
    omp_set_num_threads(device->threads);
    if (gemm_open(&cpu->products, err)) {
        free(cpu);
        return -1;
    }
    cpu->isa = isa;
    cpu->own_products =
        isa == DEVICE_ISA_PORTABLE ? &product_kernels_portable : &product_kernels_avx2;
    cpu->own_below = isa == DEVICE_ISA_AVX512 ? SMALL_WEIGHT : INT64_MAX;
    cpu->bf16_products = isa == DEVICE_ISA_AVX512 && gemm_has_bf16();
    snprintf(cpu->name, sizeof cpu->name, "cpu %s%s, %d thread%s", isa_name(isa),
             cpu->bf16_products ? "-bf16" : ", bf16 products in fp32", device->threads,
             device->threads == 1 ? "" : "s");
    device->name = cpu->name;
    fill_kernels(device, isa);
    linear_fill(device);
    attention_fill(device);
    return 0;
}

int device_cpu_late_products(struct device *device) {
    return cpu_device_of(device)->products.late;
}
