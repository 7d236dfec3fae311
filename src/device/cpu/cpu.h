// What the files of the CPU backend share: its state, and how the files under isa/ hand over their
// kernels.
#pragma once
#include "device/cpu/gemm.h"
#include "device/cpu/product.h"
#include "device/device.h"

struct cpu_device {
    enum device_isa isa; // of the kernels
    bool bf16_products;  // false: products of bf16 operands are computed in FP32 from converted
                         // copies
    // The own products serve weights of fewer than own_below elements (all of them without
    // AVX-512), oneDNN the others.
    const struct product_kernels *own_products;
    int64_t own_below;
    bool attention_pairs; // bf16 attention multiplies pairs of bf16, see attention.c
    char name[96];
    struct gemm_cache products;
    unsigned char *workspace; // of the products
    uint64_t workspace_bytes;
    unsigned char
        *own_workspace; // taken only when a product was not prepared or no workspace was set
    uint64_t own_workspace_bytes;
};

static inline struct cpu_device *cpu_device_of(struct device *device) {
    return device->state;
}

// Files under isa/ are compiled once per instruction set; what they export carries its name:
// ISA(norm_fill) is norm_fill_avx512, norm_fill_avx2 or norm_fill_portable. A `fill` writes
// function pointers into the device.
#define ISA_JOIN2(name, isa) name##_##isa
#define ISA_JOIN(name, isa) ISA_JOIN2(name, isa)
#define ISA(name) ISA_JOIN(name, WEFT_ISA)

#define CPU_FILLS(isa)                                                                             \
    void norm_fill_##isa(struct device *device);                                                   \
    void rope_fill_##isa(struct device *device);                                                   \
    void pointwise_fill_##isa(struct device *device);                                              \
    void attention_merge_fill_##isa(struct device *device);                                        \
    void dropout_fill_##isa(struct device *device);                                                \
    void embedding_fill_##isa(struct device *device);                                              \
    void experts_fill_##isa(struct device *device);                                                \
    void cross_entropy_fill_##isa(struct device *device);                                          \
    void optimizer_fill_##isa(struct device *device);
CPU_FILLS(portable)
CPU_FILLS(avx2)
CPU_FILLS(avx512)

void linear_fill(struct device *device); // products, the same for every instruction set

// Number of chunks of `size` that `count` items fill.
static inline int64_t cpu_chunks(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}
