// Matrix products through oneDNN: C [rows, columns] = A [rows, inner] B [inner, columns] (+ bias)
// (+ C). The only file that includes oneDNN's headers is gemm_dnnl.c, which knows the differences
// between its versions 2 and 3.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct gemm_spec {
    int64_t rows, columns, inner;
    int64_t a_stride, b_stride, c_stride; // of rows as stored
    bool a_transposed;                    // stored [inner, rows]
    bool b_transposed;                    // stored [columns, inner]
    bool b_packed; // in the layout that gemm_pack makes; b_stride counts for nothing
    bool bias;     // FP32 [columns] added
    bool add;      // added to C, which is FP32
    enum dtype in_type, out_type;
};

struct gemm_entry;
struct gemm_packing;
struct gemm_cache {
    void *engine, *stream;
    struct gemm_entry **entries;
    int count, capacity;
    struct gemm_entry *last;       // most recent hit
    struct gemm_packing *packings; // list
    int late; // products that had to be made after preparation ended (gemm_run without
              // gemm_prepare)
};

int gemm_open(struct gemm_cache *cache, struct err *err);
void gemm_close(struct gemm_cache *cache);

// Whether the library multiplies bf16 by bf16 with the processor's own instructions.
bool gemm_has_bf16(void);
const char *gemm_version(void);

// Makes the product if it is not there. NULL with a message when the library refuses it.
struct gemm_entry *gemm_prepare(struct gemm_cache *cache, const struct gemm_spec *spec,
                                struct err *err);
struct gemm_entry *gemm_find(struct gemm_cache *cache,
                             const struct gemm_spec *spec); // NULL: not prepared
uint64_t gemm_workspace_bytes(const struct gemm_entry *entry);
int gemm_run(struct gemm_cache *cache, struct gemm_entry *entry, const void *a, const void *b,
             const float *bias, void *c, void *workspace, struct err *err);

// Packed copies of B; the first of a shape makes the conversion, later ones reuse it. `spec`
// describes the product with plain B (rows: any typical number); its b_packed is ignored.
uint64_t gemm_pack_bytes(struct gemm_cache *cache, const struct gemm_spec *spec);
int gemm_pack(struct gemm_cache *cache, const struct gemm_spec *spec, const void *plain,
              void *packed, struct err *err);
