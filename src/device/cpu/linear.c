// Products with weights: forward, input gradient, weight gradient, and packed copies of the
// weights.
//
// Without AVX-512 they are this backend's own (product.h); with it those with small weights are,
// whose odd shapes oneDNN may cut by the number of threads, and the others are oneDNN's. Where the
// processor multiplies bf16 itself the operands go to oneDNN as they are; elsewhere they are
// converted to FP32 in the workspace, multiplied there, and the result is rounded once. Weight
// gradients run in chunks of DEVICE_TOKEN_CHUNK tokens, one after the other, so that no split over
// threads can change the order of a sum.
#include "device/cpu/cpu.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// Where the pieces lie in the workspace of one product.
struct plan {
    struct gemm_spec spec;
    uint64_t a_bytes, b_bytes, c_bytes; // FP32 copies, 0 where the operand is used as it is
};

static uint64_t round_64(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static bool converts(const struct cpu_device *cpu, enum dtype type) {
    return type == DTYPE_BF16 && !cpu->bf16_products;
}

// oneDNN reads a plain FP32 B in place. When its rows lie a multiple of 4 KiB apart, a column of it
// falls into one set of the first cache and the product runs at half speed (measured with 3072
// columns): a copy with other strides is cheap.
static bool needs_spread(const struct gemm_spec *spec) {
    return spec->in_type == DTYPE_F32 && !spec->b_packed && !spec->b_transposed &&
           spec->b_stride % 1024 == 0;
}

static int64_t spread(int64_t stride) {
    return stride % 1024 ? stride : stride + 16;
}

// From here on `spec` has FP32 operands when they must be converted.
static struct plan plan_of(const struct cpu_device *cpu, struct gemm_spec spec, bool b_ready) {
    struct plan plan = {.spec = spec};
    int64_t a_rows = spec.a_transposed ? spec.inner : spec.rows;
    int64_t b_rows = spec.b_transposed ? spec.columns : spec.inner;
    if (!converts(cpu, spec.in_type)) {
        if (needs_spread(&spec)) {
            plan.spec.b_stride = spread(spec.columns);
            plan.b_bytes = round_64((uint64_t)(b_rows * plan.spec.b_stride) * 4);
        }
        return plan;
    }
    plan.spec.in_type = plan.spec.out_type = DTYPE_F32;
    plan.spec.b_packed = false;
    plan.spec.a_stride = spec.a_transposed ? spec.rows : spec.inner;
    plan.spec.b_stride = spec.b_transposed ? spec.inner : spec.columns;
    plan.a_bytes = round_64((uint64_t)(a_rows * plan.spec.a_stride) * 4);
    if (!b_ready && !spec.b_transposed) plan.spec.b_stride = spread(spec.columns);
    if (!b_ready) plan.b_bytes = round_64((uint64_t)(b_rows * plan.spec.b_stride) * 4);
    if (spec.out_type != DTYPE_F32) {
        plan.spec.c_stride = spec.columns;
        plan.c_bytes = round_64((uint64_t)(spec.rows * spec.columns) * 4);
    }
    return plan;
}

uint64_t product_workspace_bytes(const struct product_kernels *kernels, int threads,
                                 const struct gemm_spec *spec) {
    int64_t columns = spec->b_packed                   ? 0
                      : spec->columns < PRODUCT_STRIPE ? spec->columns
                                                       : PRODUCT_STRIPE;
    uint64_t own = (uint64_t)PRODUCT_ROWS * (PRODUCT_COLUMNS + PRODUCT_INNER) * sizeof(float);
    return round_64(product_pack_bytes(kernels, spec->inner, columns, spec->in_type)) +
           (uint64_t)threads * own;
}

// NULL: oneDNN's. `elements`: of the weight.
static const struct product_kernels *own_of(const struct cpu_device *cpu, int64_t elements) {
    return elements < cpu->own_below ? cpu->own_products : NULL;
}

static int64_t weight_elements(const struct gemm_spec *spec) {
    return spec->a_transposed ? spec->rows * spec->columns : spec->columns * spec->inner;
}

static uint64_t plan_bytes(const struct plan *plan, const struct gemm_entry *entry) {
    return round_64(gemm_workspace_bytes(entry)) + plan->a_bytes + plan->b_bytes + plan->c_bytes;
}

// Rows from one stride and type to another.
static void convert_rows(struct device *device, int64_t rows, int64_t columns, const void *from,
                         int64_t from_stride, enum dtype from_type, void *to, int64_t to_stride,
                         enum dtype to_type) {
    if (from_stride == columns && to_stride == columns) {
        struct record_lane *lane = device->lane; // this time belongs to the product
        device->lane = NULL;
        device->convert(device, rows * columns, from, from_type, to, to_type);
        device->lane = lane;
        return;
    }
#pragma omp parallel for schedule(static) num_threads(device->threads)
    for (int64_t i = 0; i < rows; i++) {
        const char *source =
            (const char *)from + (size_t)(i * from_stride) * dtype_bytes(from_type);
        char *target = (char *)to + (size_t)(i * to_stride) * dtype_bytes(to_type);
        if (from_type == to_type) {
            memcpy(target, source, (size_t)columns * dtype_bytes(to_type));
        } else {
            dtype_convert(target, to_type, source, from_type, (size_t)columns);
        }
    }
}

// A broken promise: shapes are refused by prepare_linear, before any step. The first one is kept.
static void keep_failure(struct device *device, const struct err *err) {
    if (device->failure.kind == ERR_NONE) device->failure = *err;
}

static unsigned char *workspace_of(struct device *device, uint64_t bytes) {
    struct cpu_device *cpu = cpu_device_of(device);
    if (bytes <= cpu->workspace_bytes) return cpu->workspace;
    if (bytes > cpu->own_workspace_bytes) {
        free(cpu->own_workspace);
        cpu->own_workspace = aligned_alloc(64, round_64(bytes));
        if (!cpu->own_workspace) {
            struct err err = {0};
            (void)err_set(&err, ERR_MEMORY, "no memory for %llu bytes of product workspace",
                          (unsigned long long)bytes);
            keep_failure(device, &err);
            cpu->own_workspace_bytes = 0;
            return NULL;
        }
        cpu->own_workspace_bytes = bytes;
    }
    return cpu->own_workspace;
}

static void own_product(struct device *device, const struct product_kernels *own,
                        const struct gemm_spec *spec, const void *a, const void *b,
                        const float *bias, void *c) {
    uint64_t bytes = product_workspace_bytes(own, device->threads, spec);
    void *workspace = workspace_of(device, bytes);
    if (workspace) own->run(device->threads, spec, a, b, bias, c, workspace);
}

// One product, converted where needed. `b_ready`: b is packed (or, when converting, FP32 already).
static void product(struct device *device, const struct gemm_spec *spec, bool b_ready,
                    const void *a, const void *b, const float *bias, void *c) {
    struct cpu_device *cpu = cpu_device_of(device);
    const struct product_kernels *own = own_of(cpu, weight_elements(spec));
    if (own) {
        own_product(device, own, spec, a, b, bias, c);
        return;
    }
    struct plan plan = plan_of(cpu, *spec, b_ready);
    struct gemm_entry *entry = gemm_find(&cpu->products, &plan.spec);
    if (!entry) {
        struct err err = {0};
        cpu->products.late++;
        entry = gemm_prepare(&cpu->products, &plan.spec, &err);
        if (!entry) {
            keep_failure(device, &err);
            return;
        }
    }
    unsigned char *scratch = workspace_of(device, plan_bytes(&plan, entry));
    if (!scratch && plan_bytes(&plan, entry)) return;
    unsigned char *at = scratch + round_64(gemm_workspace_bytes(entry));
    const void *used_a = a, *used_b = b;
    void *used_c = c;
    if (plan.a_bytes) {
        bool t = spec->a_transposed;
        convert_rows(device, t ? spec->inner : spec->rows, t ? spec->rows : spec->inner, a,
                     spec->a_stride, DTYPE_BF16, at, plan.spec.a_stride, DTYPE_F32);
        used_a = at;
        at += plan.a_bytes;
    }
    if (plan.b_bytes) {
        bool t = spec->b_transposed;
        convert_rows(device, t ? spec->columns : spec->inner, t ? spec->inner : spec->columns, b,
                     spec->b_stride, spec->in_type, at, plan.spec.b_stride, DTYPE_F32);
        used_b = at;
        at += plan.b_bytes;
    }
    if (plan.c_bytes) used_c = at;
    struct err failure = {0};
    if (gemm_run(&cpu->products, entry, used_a, used_b, bias, used_c, scratch, &failure) != 0)
        keep_failure(device, &failure);
    if (plan.c_bytes) {
        convert_rows(device, spec->rows, spec->columns, used_c, spec->columns, DTYPE_F32, c,
                     spec->c_stride, spec->out_type);
    }
}

static struct gemm_spec forward_spec(const struct device_weight *w, int64_t tokens,
                                     int64_t x_stride, int64_t y_stride, enum dtype y_type,
                                     bool bias) {
    return (struct gemm_spec){.rows = tokens,
                              .columns = w->n,
                              .inner = w->k,
                              .a_stride = x_stride,
                              .b_stride = w->k,
                              .c_stride = y_stride,
                              .b_transposed = true,
                              .b_packed = w->packed_forward != NULL,
                              .bias = bias,
                              .in_type = w->type,
                              .out_type = y_type};
}

static struct gemm_spec input_spec(const struct device_weight *w, int64_t tokens, int64_t dy_stride,
                                   int64_t dx_stride) {
    return (struct gemm_spec){.rows = tokens,
                              .columns = w->k,
                              .inner = w->n,
                              .a_stride = dy_stride,
                              .b_stride = w->k,
                              .c_stride = dx_stride,
                              .b_packed = w->packed_backward != NULL,
                              .in_type = w->type,
                              .out_type = w->type};
}

static struct gemm_spec weight_spec(const struct device_weight *w, int64_t tokens,
                                    int64_t dy_stride, int64_t x_stride, bool add) {
    return (struct gemm_spec){.rows = w->n,
                              .columns = w->k,
                              .inner = tokens,
                              .a_stride = dy_stride,
                              .b_stride = x_stride,
                              .c_stride = w->k,
                              .a_transposed = true,
                              .add = add,
                              .in_type = w->type,
                              .out_type = DTYPE_F32};
}

static uint64_t pack_bytes(struct device *device, const struct device_weight *weight,
                           bool backward) {
    struct cpu_device *cpu = cpu_device_of(device);
    const struct product_kernels *own = own_of(cpu, weight->n * weight->k);
    if (own) {
        int64_t inner = backward ? weight->n : weight->k,
                columns = backward ? weight->k : weight->n;
        return round_64(product_pack_bytes(own, inner, columns, weight->type));
    }
    if (converts(cpu, weight->type)) return round_64((uint64_t)(weight->n * weight->k) * 4);
    omp_set_num_threads(device->threads);
    struct gemm_spec spec =
        backward ? input_spec(weight, 1024, weight->n, weight->k)
                 : forward_spec(weight, 1024, weight->k, weight->n, weight->type, false);
    return gemm_pack_bytes(&cpu->products, &spec);
}

static void pack(struct device *device, const struct device_weight *weight, bool backward) {
    struct cpu_device *cpu = cpu_device_of(device);
    double begin = record_begin(device->lane);
    void *packed = backward ? weight->packed_backward : weight->packed_forward;
    const struct product_kernels *own = own_of(cpu, weight->n * weight->k);
    if (own) {
        struct gemm_spec spec =
            backward ? input_spec(weight, 1, weight->n, weight->k)
                     : forward_spec(weight, 1, weight->k, weight->n, weight->type, false);
        own->pack(device->threads, &spec, weight->plain, packed);
    } else if (converts(cpu, weight->type)) {
        device->convert(device, weight->n * weight->k, weight->plain, DTYPE_BF16, packed,
                        DTYPE_F32);
    } else {
        omp_set_num_threads(device->threads);
        struct err err = {0};
        struct gemm_spec spec =
            backward ? input_spec(weight, 1024, weight->n, weight->k)
                     : forward_spec(weight, 1024, weight->k, weight->n, weight->type, false);
        if (gemm_pack(&cpu->products, &spec, weight->plain, packed, &err))
            keep_failure(device, &err);
    }
    record_end(device->lane, RECORD_PACK, "pack", -1, begin);
}

static int prepare_one(struct device *device, const struct gemm_spec *spec, bool b_ready,
                       uint64_t *most, struct err *err) {
    struct cpu_device *cpu = cpu_device_of(device);
    const struct product_kernels *own = own_of(cpu, weight_elements(spec));
    if (own) { // nothing to make
        uint64_t bytes = product_workspace_bytes(own, device->threads, spec);
        if (bytes > *most) *most = bytes;
        return 0;
    }
    struct plan plan = plan_of(cpu, *spec, b_ready);
    struct gemm_entry *entry = gemm_prepare(&cpu->products, &plan.spec, err);
    if (!entry) return -1;
    uint64_t bytes = plan_bytes(&plan, entry);
    if (bytes > *most) *most = bytes;
    return 0;
}

static int prepare_linear(struct device *device, const struct device_weight *weight, char kind,
                          int64_t tokens, int64_t x_stride, int64_t y_stride, enum dtype out_type,
                          uint64_t *workspace_bytes, struct err *err) {
    uint64_t most = 0;
    omp_set_num_threads(device->threads);
    if (tokens < 1 || weight->n < 1 || weight->k < 1) {
        return err_set(err, ERR_INTERNAL,
                       "a product of %lld tokens with a weight [%lld, %lld]: all must be positive",
                       (long long)tokens, (long long)weight->n, (long long)weight->k);
    }
    if (kind == 'f') {
        for (int bias = 0; bias < 2; bias++) {
            struct gemm_spec spec =
                forward_spec(weight, tokens, x_stride, y_stride, out_type, bias);
            if (prepare_one(device, &spec, weight->packed_forward != NULL, &most, err)) return -1;
        }
    } else if (kind == 'i') {
        struct gemm_spec spec = input_spec(weight, tokens, y_stride, x_stride);
        if (prepare_one(device, &spec, weight->packed_backward != NULL, &most, err)) return -1;
    } else {
        int64_t rest = tokens % DEVICE_TOKEN_CHUNK;
        for (int add = 0; add < 2; add++) {
            struct gemm_spec whole =
                weight_spec(weight, DEVICE_TOKEN_CHUNK, y_stride, x_stride, add);
            struct gemm_spec last = weight_spec(weight, rest, y_stride, x_stride, add);
            if (tokens >= DEVICE_TOKEN_CHUNK && prepare_one(device, &whole, false, &most, err))
                return -1;
            if (rest && prepare_one(device, &last, false, &most, err)) return -1;
        }
    }
    *workspace_bytes = most;
    return 0;
}

static void linear_forward(struct device *device, const struct device_weight *weight,
                           int64_t tokens, const void *x, int64_t x_stride, const float *bias,
                           void *y, int64_t y_stride, enum dtype y_type) {
    double begin = record_begin(device->lane);
    omp_set_num_threads(device->threads);
    struct gemm_spec spec = forward_spec(weight, tokens, x_stride, y_stride, y_type, bias != NULL);
    const void *w = weight->packed_forward ? weight->packed_forward : weight->plain;
    product(device, &spec, weight->packed_forward != NULL, x, w, bias, y);
    record_end(device->lane, RECORD_GEMM, "forward product", -1, begin);
}

static void linear_backward_input(struct device *device, const struct device_weight *weight,
                                  int64_t tokens, const void *dy, int64_t dy_stride, void *dx,
                                  int64_t dx_stride) {
    double begin = record_begin(device->lane);
    omp_set_num_threads(device->threads);
    struct gemm_spec spec = input_spec(weight, tokens, dy_stride, dx_stride);
    const void *w = weight->packed_backward ? weight->packed_backward : weight->plain;
    product(device, &spec, weight->packed_backward != NULL, dy, w, NULL, dx);
    record_end(device->lane, RECORD_GEMM, "input gradient product", -1, begin);
}

static void linear_backward_weight(struct device *device, const struct device_weight *weight,
                                   int64_t tokens, const void *dy, int64_t dy_stride, const void *x,
                                   int64_t x_stride, float *dw, bool store) {
    double begin = record_begin(device->lane);
    omp_set_num_threads(device->threads);
    size_t size = dtype_bytes(weight->type);
    for (int64_t first = 0; first < tokens; first += DEVICE_TOKEN_CHUNK) {
        int64_t count = tokens - first < DEVICE_TOKEN_CHUNK ? tokens - first : DEVICE_TOKEN_CHUNK;
        struct gemm_spec spec =
            weight_spec(weight, count, dy_stride, x_stride, !(store && first == 0));
        product(device, &spec, false, (const char *)dy + (size_t)(first * dy_stride) * size,
                (const char *)x + (size_t)(first * x_stride) * size, NULL, dw);
    }
    record_end(device->lane, RECORD_GEMM, "weight gradient product", -1, begin);
}

static void set_workspace(struct device *device, void *memory, uint64_t bytes) {
    struct cpu_device *cpu = cpu_device_of(device);
    cpu->workspace = memory;
    cpu->workspace_bytes = bytes;
}

void linear_fill(struct device *device) {
    device->pack_bytes = pack_bytes;
    device->pack = pack;
    device->prepare_linear = prepare_linear;
    device->linear_forward = linear_forward;
    device->linear_backward_input = linear_backward_input;
    device->linear_backward_weight = linear_backward_weight;
    device->set_workspace = set_workspace;
}
