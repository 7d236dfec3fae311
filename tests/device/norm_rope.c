// Norms and rotation of every instruction set against the reference.
#include "device/reference/reference.h"
#include "kernel_test.h"

static void norm_shape(struct run *r, int64_t tokens, int64_t width, bool centred,
                       bool with_delta) {
    struct device *d = &r->device;
    int64_t count = tokens * width;
    struct values x = run_values(r, r->type, count, 2), delta = run_values(r, r->type, count, 1);
    struct values w = run_values(r, DTYPE_F32, width, 1), b = run_values(r, DTYPE_F32, width, 1);
    struct values y = run_output(r, r->type, count), residual = run_output(r, r->type, count);
    struct values rstd = run_output(r, DTYPE_F32, tokens), mean = run_output(r, DTYPE_F32, tokens);
    struct device_norm a = {.type = r->type,
                            .tokens = tokens,
                            .width = width,
                            .centred = centred,
                            .eps = 1e-5,
                            .x = x.data,
                            .delta = with_delta ? delta.data : NULL,
                            .residual = residual.data,
                            .y = y.data,
                            .weight = run_floats(&w),
                            .bias = centred ? run_floats(&b) : NULL,
                            .rstd = rstd.data,
                            .mean = centred ? mean.data : NULL};
    d->norm_forward(d, &a);
    if (with_delta) { // the norm sees what is stored
        for (int64_t i = 0; i < count; i++) residual.exact[i] = x.exact[i] + delta.exact[i];
        run_check(r, "residual", &residual, run_tolerance(r, 1e-6));
        dtype_convert(x.exact, DTYPE_F64, residual.data, r->type, (size_t)count);
        memcpy(x.data, residual.data, (size_t)count * dtype_bytes(r->type));
    }
    struct reference_norm ref = {
        tokens, width, centred, 1e-5, x.exact, w.exact, centred ? b.exact : NULL};
    reference_norm_forward(&ref, y.exact);
    run_check(r, "norm", &y, run_tolerance(r, 3e-6));

    struct values dy = run_values(r, r->type, count, 1), add = run_values(r, r->type, count, 1);
    struct values dx = run_output(r, r->type, count);
    struct values dw = run_values(r, DTYPE_F32, width, 1), db = run_values(r, DTYPE_F32, width, 1);
    struct device_norm_backward back = {
        .type = r->type,
        .tokens = tokens,
        .width = width,
        .centred = centred,
        .x = x.data,
        .dy = dy.data,
        .weight = run_floats(&w),
        .rstd = rstd.data,
        .mean = mean.data,
        .dx_add = with_delta ? add.data : NULL,
        .dx = dx.data,
        .dweight = dw.data,
        .dbias = centred ? db.data : NULL,
        .store = !with_delta,
        .workspace = run_memory(r, d->norm_backward_workspace_bytes(d, tokens, width))};
    d->norm_backward(d, &back);
    double *dw_exact = run_memory(r, (size_t)width * 8),
           *db_exact = run_memory(r, (size_t)width * 8);
    reference_norm_backward(&ref, dy.exact, dx.exact, dw_exact, db_exact);
    for (int64_t i = 0; with_delta && i < count; i++) dx.exact[i] += add.exact[i];
    for (int64_t i = 0; i < width; i++) {
        dw.exact[i] = dw_exact[i] + (with_delta ? dw.exact[i] : 0);
        db.exact[i] = db_exact[i] + (with_delta ? db.exact[i] : 0);
    }
    run_check(r, "norm dx", &dx, run_tolerance(r, 1e-5));
    run_check(r, "norm dweight", &dw, 1e-5);
    if (centred) run_check(r, "norm dbias", &db, 1e-5);
}

static void norms(struct run *r) {
    static const int64_t shapes[][2] = {{1, 5},   {1, 768},   {3, 17},  {5, 64},
                                        {65, 33}, {130, 100}, {2, 9001}};
    for (int s = 0; s < 7; s++) {
        for (int form = 0; form < 4; form++)
            norm_shape(r, shapes[s][0], shapes[s][1], form & 1, form & 2);
        while (r->owned_count) free(r->owned[--r->owned_count]);
    }
}
TEST(norms_equal_the_reference) {
    for_every_device(norms);
}

// Epsilon stands inside the root: 0.001 everywhere and 1e-6 give 1 / sqrt(2).
static void epsilon(struct run *r) {
    double eps[] = {1e-6, 1e-5}, expected[] = {0.707107, 0.301511};
    for (int i = 0; i < 2; i++) {
        struct values x = run_output(r, DTYPE_F32, 40), w = run_output(r, DTYPE_F32, 40);
        struct values y = run_output(r, DTYPE_F32, 40);
        for (int j = 0; j < 40; j++) {
            ((float *)x.data)[j] = 0.001f;
            ((float *)w.data)[j] = 1;
            y.exact[j] = expected[i];
        }
        struct device_norm a = {.type = DTYPE_F32,
                                .tokens = 1,
                                .width = 40,
                                .eps = eps[i],
                                .x = x.data,
                                .y = y.data,
                                .weight = run_floats(&w)};
        r->device.norm_forward(&r->device, &a);
        run_check(r, "epsilon", &y, 1e-6);
    }
}
TEST(epsilon_is_inside_the_root) {
    for_every_device(epsilon);
}

// In place: the residual may be x, dx may be dy.
static void norm_in_place(struct run *r) {
    int64_t tokens = 7, width = 50, count = 350;
    struct device *d = &r->device;
    struct values x = run_values(r, r->type, count, 1), delta = run_values(r, r->type, count, 1);
    struct values w = run_values(r, DTYPE_F32, width, 1), y = run_output(r, r->type, count);
    struct values y2 = run_output(r, r->type, count), apart = run_output(r, r->type, count);
    struct device_norm a = {.type = r->type,
                            .tokens = tokens,
                            .width = width,
                            .eps = 1e-5,
                            .x = x.data,
                            .delta = delta.data,
                            .residual = apart.data,
                            .y = y.data,
                            .weight = run_floats(&w)};
    d->norm_forward(d, &a);
    a.residual = x.data;
    a.y = y2.data;
    d->norm_forward(d, &a);
    CHECK_BYTES(y2.data, y.data, (size_t)count * dtype_bytes(r->type));
    CHECK_BYTES(x.data, apart.data, (size_t)count * dtype_bytes(r->type));
}
TEST(norm_in_place_is_the_same) {
    for_every_device(norm_in_place);
}

static void rope_shape(struct run *r, int64_t tokens, int heads, int kv_heads, int head_dim,
                       int norm, bool rotate) {
    struct device *d = &r->device;
    int64_t row = ((int64_t)heads + 2 * kv_heads) * head_dim, half = head_dim / 2, positions = 20;
    struct values in = run_values(r, r->type, tokens * row, 1),
                  out = run_output(r, r->type, tokens * row);
    struct values cosine = run_values(r, DTYPE_F32, positions * half, 1);
    struct values sine = run_values(r, DTYPE_F32, positions * half, 1);
    int64_t q_width = norm == 2 ? (int64_t)heads * head_dim : head_dim;
    int64_t k_width = norm == 2 ? (int64_t)kv_heads * head_dim : head_dim;
    struct values qw = run_values(r, DTYPE_F32, q_width, 1),
                  kw = run_values(r, DTYPE_F32, k_width, 1);
    struct values dqw = run_values(r, DTYPE_F32, q_width, 1),
                  dkw = run_values(r, DTYPE_F32, k_width, 1);
    int32_t *position = run_memory(r, (size_t)tokens * 4);
    for (int64_t t = 0; t < tokens; t++) position[t] = run_below(r, (int)positions);
    struct device_rope a = {.type = r->type,
                            .tokens = tokens,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .head_dim = head_dim,
                            .qkv_in = in.data,
                            .qkv_out = out.data,
                            .position = position,
                            .cosine = rotate ? run_floats(&cosine) : NULL,
                            .sine = run_floats(&sine),
                            .q_norm = norm ? run_floats(&qw) : NULL,
                            .k_norm = norm ? run_floats(&kw) : NULL,
                            .norm_over_all_heads = norm == 2,
                            .eps = 1e-6,
                            .q_rstd = run_memory(r, (size_t)(tokens * heads) * 4),
                            .k_rstd = run_memory(r, (size_t)(tokens * kv_heads) * 4)};
    struct reference_rope ref = {tokens,
                                 heads,
                                 kv_heads,
                                 head_dim,
                                 in.exact,
                                 position,
                                 rotate ? cosine.exact : NULL,
                                 sine.exact,
                                 norm ? qw.exact : NULL,
                                 norm ? kw.exact : NULL,
                                 norm == 2,
                                 1e-6};
    d->rope_forward(d, &a);
    reference_rope_forward(&ref, out.exact);
    run_check(r, "rope", &out, run_tolerance(r, 3e-6));

    struct values dout = run_values(r, r->type, tokens * row, 1),
                  din = run_output(r, r->type, tokens * row);
    struct device_rope_backward back = {.forward = a,
                                        .dqkv_in = dout.data,
                                        .dqkv_out = din.data,
                                        .dq_norm = norm ? dqw.data : NULL,
                                        .dk_norm = norm ? dkw.data : NULL,
                                        .store = true,
                                        .workspace =
                                            run_memory(r, d->rope_backward_workspace_bytes(d, &a))};
    d->rope_backward(d, &back);
    reference_rope_backward(&ref, dout.exact, din.exact, dqw.exact, dkw.exact);
    run_check(r, "rope gradient", &din, run_tolerance(r, 1e-5));
    if (norm) run_check(r, "q norm gradient", &dqw, 1e-5);
    if (norm) run_check(r, "k norm gradient", &dkw, 1e-5);
    // In place, and added to what is there.
    back.dqkv_out = dout.data;
    back.store = false;
    d->rope_backward(d, &back);
    CHECK_BYTES(dout.data, din.data, (size_t)(tokens * row) * dtype_bytes(r->type));
    for (int64_t i = 0; i < q_width; i++) dqw.exact[i] *= 2;
    if (norm) run_check(r, "q norm gradient added", &dqw, 1e-5);
}

static void ropes(struct run *r) {
    static const int shapes[][4] = {
        {1, 1, 1, 2}, {3, 2, 1, 6}, {2, 4, 2, 48}, {70, 3, 3, 64}, {140, 2, 1, 10}};
    for (int s = 0; s < 5; s++) {
        for (int norm = 0; norm < 3; norm++) {
            for (int rotate = 0; rotate < 2; rotate++)
                rope_shape(r, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], norm, rotate);
        }
        while (r->owned_count) free(r->owned[--r->owned_count]);
    }
}
TEST(rope_equals_the_reference) {
    for_every_device(ropes);
}

static void bias_sums(struct run *r) {
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {1, 70, 90}, {63, 33, 40}, {65, 129, 129}, {1100, 20, 24}};
    struct device *d = &r->device;
    for (int s = 0; s < 5; s++) {
        int64_t tokens = shapes[s][0], n = shapes[s][1], stride = shapes[s][2];
        struct values dy = run_values(r, r->type, tokens * stride, 1),
                      db = run_values(r, DTYPE_F32, n, 1);
        float *workspace = run_memory(r, d->bias_backward_workspace_bytes(d, tokens, n));
        for (int store = 1; store >= 0; store--) {
            d->bias_backward(d, r->type, tokens, n, dy.data, stride, db.data, store, workspace);
            for (int64_t i = 0; i < n; i++) {
                if (store) db.exact[i] = 0;
                for (int64_t t = 0; t < tokens; t++) db.exact[i] += dy.exact[t * stride + i];
            }
            run_check(r, "bias gradient", &db, 1e-5);
        }
    }
}
TEST(bias_gradients_equal_the_reference) {
    for_every_device(bias_sums);
}
