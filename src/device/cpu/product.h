// Matrix products of this backend's own, for processors without AVX-512: C [rows, columns] = A
// [rows, inner] B [inner, columns] (+ bias) (+ C), computed in FP32. There oneDNN chooses how it
// cuts a sum by the shape and by the number of threads (measured with version 2.6 on AVX2), so its
// results change bits with both. Here every element of C is one chain of multiply-adds along
// `inner`, from its first element to its last, whatever the shape, the tiles and the threads.
#pragma once
#include "device/cpu/gemm.h"

// As gemm_spec says, with any in_type and out_type; b_packed: panels that `pack` made.
typedef void product_run(int threads, const struct gemm_spec *spec, const void *a, const void *b,
                         const float *bias, void *c, void *workspace);
typedef void product_pack(int threads, const struct gemm_spec *spec, const void *b, void *panels);

struct product_kernels {
    product_run *run;
    product_pack *pack;
    int panel; // columns of B that lie together
};

// One per instruction set.
extern const struct product_kernels product_kernels_portable, product_kernels_avx2;

// Of a packed B [inner, columns], which has its elements' type.
static inline uint64_t product_pack_bytes(const struct product_kernels *kernels, int64_t inner,
                                          int64_t columns, enum dtype type) {
    int64_t panels = (columns + kernels->panel - 1) / kernels->panel;
    return (uint64_t)(panels * kernels->panel * inner) * dtype_bytes(type);
}
uint64_t product_workspace_bytes(const struct product_kernels *kernels, int threads,
                                 const struct gemm_spec *spec);

enum {
    PRODUCT_ROWS = 120,    // of a tile of C; whole groups of 6
    PRODUCT_COLUMNS = 256, // of a tile of C; whole panels
    PRODUCT_INNER = 256,   // steps between two visits of a tile
    PRODUCT_STRIPE = 1024  // columns of a plain B that are packed at a time
};
