// Products with weights against the reference: both types, plain and packed, strides, odd sizes;
// and what must not change a bit: threads and the number of rows.
#include "base/record.h"
#include "device/cpu/gemm.h"
#include "device/reference/reference.h"
#include "kernel_test.h"

static void one_product(struct run *r, int64_t tokens, int64_t n, int64_t k, bool packed,
                        bool wide) {
    struct device *d = &r->device;
    size_t size = dtype_bytes(r->type);
    int64_t extra = wide ? 24 : 0, xs = k + extra, ys = n + extra;
    struct values x = run_values(r, r->type, tokens * k, 1), w = run_values(r, r->type, n * k, 1);
    struct values bias = run_values(r, DTYPE_F32, n, 1), dy = run_values(r, r->type, tokens * n, 1);
    struct values y = run_output(r, r->type, tokens * n),
                  logits = run_output(r, DTYPE_F32, tokens * n);
    struct values dx = run_output(r, r->type, tokens * k), dw = run_values(r, DTYPE_F32, n * k, 1);
    char *x_wide = run_memory(r, (size_t)(tokens * xs) * size),
         *dy_wide = run_memory(r, (size_t)(tokens * ys) * size);
    char *y_wide = run_memory(r, (size_t)(tokens * ys) * 4),
         *dx_wide = run_memory(r, (size_t)(tokens * xs) * size);
    for (int64_t t = 0; t < tokens; t++) {
        memcpy(x_wide + (size_t)(t * xs) * size, (char *)x.data + (size_t)(t * k) * size,
               (size_t)k * size);
        memcpy(dy_wide + (size_t)(t * ys) * size, (char *)dy.data + (size_t)(t * n) * size,
               (size_t)n * size);
    }
    struct device_weight weight = {.n = n, .k = k, .type = r->type, .plain = w.data};
    for (int backward = 0; packed && backward < 2; backward++) {
        void *copy = run_memory(r, d->pack_bytes(d, &weight, backward));
        if (backward) weight.packed_backward = copy;
        if (!backward) weight.packed_forward = copy;
        d->pack(d, &weight, backward);
    }
    double *dw_exact = run_memory(r, (size_t)(n * k) * 8), *db_exact = run_memory(r, (size_t)n * 8);
    for (int form = 0; form < 2; form++) { // bias and compute type; no bias and FP32
        struct values *out = form ? &logits : &y;
        size_t out_size = dtype_bytes(out->type);
        d->linear_forward(d, &weight, tokens, x_wide, xs, form ? NULL : run_floats(&bias), y_wide,
                          ys, out->type);
        for (int64_t t = 0; t < tokens; t++)
            memcpy((char *)out->data + (size_t)(t * n) * out_size,
                   y_wide + (size_t)(t * ys) * out_size, (size_t)n * out_size);
        reference_linear_forward(tokens, n, k, x.exact, w.exact, form ? NULL : bias.exact,
                                 out->exact);
        run_check(r, "y", out, form ? 1e-5 : run_tolerance(r, 1e-5));
    }
    reference_linear_backward(tokens, n, k, dy.exact, x.exact, w.exact, dx.exact, dw_exact,
                              db_exact);
    d->linear_backward_input(d, &weight, tokens, dy_wide, ys, dx_wide, xs);
    for (int64_t t = 0; t < tokens; t++)
        memcpy((char *)dx.data + (size_t)(t * k) * size, dx_wide + (size_t)(t * xs) * size,
               (size_t)k * size);
    run_check(r, "dx", &dx, run_tolerance(r, 1e-5));
    for (int64_t i = 0; i < n * k; i++) dw.exact[i] += dw_exact[i];
    d->linear_backward_weight(d, &weight, tokens, dy_wide, ys, x_wide, xs, dw.data, false);
    run_check(r, "dw added", &dw, 1e-5);
    memcpy(dw.exact, dw_exact, (size_t)(n * k) * 8);
    d->linear_backward_weight(d, &weight, tokens, dy_wide, ys, x_wide, xs, dw.data, true);
    run_check(r, "dw stored", &dw, 1e-5);
    while (r->owned_count) free(r->owned[--r->owned_count]);
}

static void products(struct run *r) {
    static const int64_t shapes[][3] = {
        {1, 1, 1},     {1, 96, 64},   {3, 17, 31},    {64, 64, 64},  {130, 65, 48},
        {517, 40, 24}, {1100, 8, 16}, {70, 16, 1024}, {2, 1000, 32}, {1030, 64, 130}};
    for (int s = 0; s < 10; s++) {
        one_product(r, shapes[s][0], shapes[s][1], shapes[s][2], s % 2, s % 3 == 1);
        one_product(r, shapes[s][0], shapes[s][1], shapes[s][2], !(s % 2), s % 3 == 2);
    }
}
TEST(products_equal_the_reference) {
    for_every_device(products);
}

// A processor without AVX-512.
TEST(products_below_avx512) {
    struct run run;
    if (!run_open(&run, DEVICE_ISA_AVX2, DTYPE_BF16, 2)) SKIP("no AVX2");
    CHECK_CONTAINS(run.device.name, "avx2, bf16 products in fp32");
    one_product(&run, 70, 33, 40, false, true);
    one_product(&run, 600, 33, 40, true, false);
    run.type = DTYPE_F32;
    one_product(&run, 70, 33, 40, true, true);
    run_close(&run);
    CHECK(run_open(&run, DEVICE_ISA_PORTABLE, DTYPE_BF16, 1));
    CHECK_CONTAINS(run.device.name, "portable");
    one_product(&run, 70, 33, 40, true, true);
    run_close(&run);
}

// ---- bits ------------------------------------------------------------------------------------

struct model_shape {
    int64_t n, k;
};
// The weights of GPT-2 124M (its vocabulary cut), of a Llama of 288 and of small models.
static const struct model_shape model_shapes[] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072},
                                                  {864, 288},  {288, 288}, {1536, 288}, {288, 768},
                                                  {64, 64},    {16, 256}};

struct results {
    unsigned char *y, *dx;
    float *dw;
};

static struct results compute(struct run *r, struct model_shape s, int64_t tokens,
                              const struct values *x, const struct values *w,
                              const struct values *dy, bool packed) {
    struct device *d = &r->device;
    struct device_weight weight = {.n = s.n, .k = s.k, .type = r->type, .plain = w->data};
    for (int backward = 0; packed && backward < 2; backward++) {
        void *copy = run_memory(r, d->pack_bytes(d, &weight, backward));
        if (backward) weight.packed_backward = copy;
        if (!backward) weight.packed_forward = copy;
        d->pack(d, &weight, backward);
    }
    size_t size = dtype_bytes(r->type);
    struct results out = {run_memory(r, (size_t)(tokens * s.n) * size),
                          run_memory(r, (size_t)(tokens * s.k) * size),
                          run_memory(r, (size_t)(s.n * s.k) * 4)};
    d->linear_forward(d, &weight, tokens, x->data, s.k, NULL, out.y, s.n, r->type);
    d->linear_backward_input(d, &weight, tokens, dy->data, s.n, out.dx, s.k);
    d->linear_backward_weight(d, &weight, tokens, dy->data, s.n, x->data, s.k, out.dw, true);
    return out;
}

static void check_bits(enum dtype type, bool packed) {
    static const int64_t rows[] = {1, 7, 100, 513, 1024};
    const int last = 4,
              first = gemm_version()[0] == '2' ? 0 : 1; // oneDNN 3 treats one row as a vector
    for (int i = 0; i < (int)(sizeof model_shapes / sizeof *model_shapes); i++) {
        struct model_shape s = model_shapes[i];
        struct run one, more;
        CHECK(run_open(&one, DEVICE_ISA_BEST, type, 1));
        struct values x = run_values(&one, type, 1024 * s.k, 1),
                      w = run_values(&one, type, s.n * s.k, 1);
        struct values dy = run_values(&one, type, 1024 * s.n, 1);
        size_t size = dtype_bytes(type);
        struct results all = compute(&one, s, 1024, &x, &w, &dy, packed);
        for (int threads = 1; threads <= 3; threads++) {
            CHECK(run_open(&more, DEVICE_ISA_BEST, type, threads));
            for (int j = threads == 2 ? first : last; j <= last; j++) {
                struct results part = compute(&more, s, rows[j], &x, &w, &dy, packed);
                if (memcmp(part.y, all.y, (size_t)(rows[j] * s.n) * size) != 0)
                    test_fail(__FILE__, __LINE__, "y of n %d k %d: %d rows, %d threads differ",
                              (int)s.n, (int)s.k, (int)rows[j], threads);
                // One row against a plain FP32 matrix that had to be spread (linear.c) is a
                // matrix-vector product.
                bool single = rows[j] == 1 && type == DTYPE_F32 && !packed && s.k % 1024 == 0;
                if (!single && memcmp(part.dx, all.dx, (size_t)(rows[j] * s.k) * size) != 0)
                    test_fail(__FILE__, __LINE__, "dx of n %d k %d: %d rows, %d threads differ",
                              (int)s.n, (int)s.k, (int)rows[j], threads);
                if (rows[j] == 1024 && memcmp(part.dw, all.dw, (size_t)(s.n * s.k) * 4) != 0)
                    test_fail(__FILE__, __LINE__, "dw of n %d k %d: %d threads differ", (int)s.n,
                              (int)s.k, threads);
            }
            run_close(&more);
        }
        run_close(&one);
    }
}
TEST(bf16_rows_and_threads_change_no_bit) {
    check_bits(DTYPE_BF16, false);
}
TEST(bf16_rows_and_threads_change_no_bit_packed) {
    check_bits(DTYPE_BF16, true);
}
TEST(f32_rows_and_threads_change_no_bit) {
    check_bits(DTYPE_F32, false);
}
TEST(f32_rows_and_threads_change_no_bit_packed) {
    check_bits(DTYPE_F32, true);
}

// Small contributions are not lost: 1 + 256 x 2^-9 is 1.5 in the FP32 gradient, whatever the
// compute type.
TEST(gradients_accumulate_in_fp32) {
    struct run run;
    CHECK(run_open(&run, DEVICE_ISA_BEST, DTYPE_BF16, 2));
    bf16 one = bf16_from_float(1), small = bf16_from_float(1.0f / 512);
    struct device_weight weight = {.n = 1, .k = 1, .type = DTYPE_BF16, .plain = &one};
    float dw = 1;
    for (int i = 0; i < 256; i++)
        run.device.linear_backward_weight(&run.device, &weight, 1, &small, 1, &one, 1, &dw, false);
    CHECK(dw == 1.5f);
    run_close(&run);
}

TEST(prepared_products_make_nothing_later) {
    struct run run;
    struct err err = {0};
    CHECK(run_open(&run, DEVICE_ISA_BEST, DTYPE_BF16, 2));
    struct record_lane lane;
    CHECK(record_lane_open(&lane, "test", 0) == 0);
    run.device.lane = &lane;
    struct device_weight weight = {.n = 192, .k = 128, .type = DTYPE_BF16};
    uint64_t bytes = 0, most = 0;
    const char *kinds = "fiw";
    for (int i = 0; i < 3; i++) {
        CHECK_OK(run.device.prepare_linear(&run.device, &weight, kinds[i], 700, 128, 192,
                                           DTYPE_BF16, &bytes, &err),
                 err);
        if (bytes > most) most = bytes;
    }
    run.device.set_workspace(&run.device, run_memory(&run, most), most);
    struct values x = run_values(&run, DTYPE_BF16, 700 * 128, 1),
                  w = run_values(&run, DTYPE_BF16, 192 * 128, 1);
    struct values dy = run_values(&run, DTYPE_BF16, 700 * 192, 1);
    compute(&run, (struct model_shape){192, 128}, 700, &x, &w, &dy, false);
    CHECK_EQ_INT(device_cpu_late_products(&run.device), 0);
    CHECK_EQ_INT(lane.events[RECORD_GEMM], 3);
    compute(&run, (struct model_shape){192, 128}, 701, &x, &w, &dy, false); // the control
    if (strstr(run.device.name, "avx512")) // elsewhere there is nothing to prepare
        CHECK(device_cpu_late_products(&run.device) > 0);
    run.device.lane = NULL;
    record_lane_close(&lane);
    run_close(&run);
}

TEST(bad_options_are_refused) {
    struct device device;
    struct err err = {0};
    struct device_cpu_options options = {.threads = -1};
    CHECK(device_cpu_open(&device, &options, &err) == -1);
    CHECK_CONTAINS(err.text, "-1 threads");
}
