// The step as a whole: skipping, clipping, learning, memory, masters.
#include "fixture.h"
#include "schedule/schedule.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void open_kind(struct fixture *f, const char *kind, enum dtype type, int rows, int context) {
    struct model_config c = fixture_config(kind);
    struct engine_options o = {.compute = type,
                               .rows = rows,
                               .context = context,
                               .train = true,
                               .micro_batches = 2,
                               .weight_decay = 0.1};
    fixture_open(f, &c, o, 1, DEVICE_ISA_BEST);
}

static void check_skipped(struct fixture *f, struct batch *b, const char *what) {
    size_t n, m;
    float *w0 = fixture_copy(f, ENGINE_MASTER, &n), *m0 = fixture_copy(f, ENGINE_MOMENTS, &m);
    struct engine_step step = fixture_step(f, b, 1, true);
    if (!step.skipped) test_fail(__FILE__, __LINE__, "%s: not skipped", what);
    float *w1 = fixture_copy(f, ENGINE_MASTER, &n), *m1 = fixture_copy(f, ENGINE_MOMENTS, &m);
    CHECK(memcmp(w0, w1, n * sizeof(float)) == 0 && memcmp(m0, m1, m * sizeof(float)) == 0);
    free(w0);
    free(w1);
    free(m0);
    free(m1);
}

TEST(step_without_targets_or_with_nan_changes_nothing) {
    struct fixture f;
    open_kind(&f, "gpt2", DTYPE_BF16, 1, 16);
    struct batch b = fixture_batch(1, 16, f.model.config.vocab, 1);
    fixture_step(&f, &b, 1, true);
    struct batch empty = fixture_batch(1, 16, f.model.config.vocab, 2);
    for (int i = 0; i < 16; i++) empty.target[i] = -1;
    fixture_count(&empty);
    check_skipped(&f, &empty, "no target");
    struct err err = {0};
    struct tensor *masters;
    int count;
    CHECK_OK(engine_tensors(f.engine, ENGINE_MASTER, &masters, &count, &err), err);
    float *norm = masters[model_param(&f.model, -1, PARAM_FINAL_NORM)].data, kept = norm[3];
    norm[3] = NAN;
    engine_weights_changed(f.engine);
    check_skipped(&f, &b, "NaN");
    norm[3] = INFINITY;
    check_skipped(&f, &b, "infinity");
    norm[3] = kept;
    struct engine_step step = fixture_step(&f, &b, 1, true);
    CHECK(!step.skipped && isfinite(step.loss));
    free(masters);
    fixture_free(&b);
    fixture_free(&empty);
    fixture_close(&f);
}

// Loaders write logical rows only: what stands in padding must go before they do.
TEST(cleared_state_is_zero_in_padding_too) {
    struct fixture f;
    struct err err = {0};
    open_kind(&f, "gpt2", DTYPE_BF16, 1, 16);
    static const enum engine_part parts[] = {ENGINE_MASTER, ENGINE_MOMENTS};
    int padded = 0;
    for (int turn = 0; turn < 2; turn++) { // writes behind the logical rows, then looks there
        for (int k = 0; k < 2; k++) {
            struct tensor *list;
            int count;
            CHECK_OK(engine_tensors(f.engine, parts[k], &list, &count, &err), err);
            for (int i = 0; i < count; i++) {
                const struct param *p = &f.model.params[i / (k + 1)];
                float *data = list[i].data;
                int64_t logical = p->rows * p->columns;
                for (int64_t j = 0; j < param_elements_padded(p); j++) {
                    if (turn == 0) data[j] = 1;
                    padded += j >= logical;
                    if (turn == 1 && data[j] != 0)
                        test_fail(__FILE__, __LINE__, "%s: element %lld of %lld is not zero",
                                  list[i].name, (long long)j, (long long)logical);
                }
            }
            free(list);
        }
        if (turn == 0) engine_clear_state(f.engine);
    }
    CHECK(padded > 0);
    fixture_close(&f);
}
TEST(clipping_reports_the_norm_before) {
    struct fixture f;
    open_kind(&f, "llama", DTYPE_F32, 2, 16);
    struct batch b = fixture_batch(2, 16, f.model.config.vocab, 1);
    struct batch *list[1] = {&b};
    struct err err = {0};
    struct engine_step step = {.learning_rate = 0, .clip_norm = 1e9, .update = 1};
    CHECK_OK(engine_run_step(f.engine, list, 1, &step, &err), err);
    double norm = step.gradient_norm, sum = 0;
    CHECK(step.clip_factor == 1);
    size_t n;
    float *g = fixture_copy(&f, ENGINE_GRADIENTS, &n);
    for (size_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
    CHECK_CLOSE(norm, sqrt(sum), 1e-7);
    step.clip_norm = 0.1;
    CHECK_OK(engine_run_step(f.engine, list, 1, &step, &err), err);
    CHECK(step.gradient_norm == norm);
    CHECK_CLOSE(step.clip_factor, 0.1 / norm, 1e-12);
    free(g);
    fixture_free(&b);
    fixture_close(&f);
}

static void check_overfit(const char *kind, enum dtype type) {
    struct fixture f;
    open_kind(&f, kind, type, 2, 50);
    struct batch b = fixture_batch(2, 50, f.model.config.vocab, 7);
    struct batch *list[1] = {&b};
    struct engine_step step = {.clip_norm = 1};
    for (int i = 1; i <= 250; i++) {
        struct err err = {0};
        step.learning_rate = 0.01 * fmin(1, i / 20.0);
        step.update = i;
        CHECK_OK(engine_run_step(f.engine, list, 1, &step, &err), err);
    }
    if (!(step.loss < 0.05))
        test_fail(__FILE__, __LINE__, "%s, %s: loss %g after 250 steps on 100 tokens", kind,
                  dtype_name(type), step.loss);
    fixture_free(&b);
    fixture_close(&f);
}

TEST(a_tiny_model_overfits_100_tokens) {
    check_overfit("gpt2", DTYPE_BF16);
    check_overfit("llama", DTYPE_F32);
}

TEST(planned_equals_allocated) {
    static const char *const kinds[] = {"gpt2", "llama", "qwen3", "olmo2", "experts"};
    uint64_t last = 0;
    for (int k = 0; k < 5; k++)
        for (int mode = 0; mode < 5; mode++) { // 4: evaluation only
            struct model_config c = fixture_config(kinds[k]);
            struct engine_options o = {.compute = mode % 2 ? DTYPE_BF16 : DTYPE_F32,
                                       .recompute = mode < 4 ? (enum engine_recompute)mode : 0,
                                       .rows = 3,
                                       .context = 40,
                                       .micro_batches = 2,
                                       .train = mode < 4,
                                       .other_bytes = 1000};
            struct fixture f;
            struct err err = {0};
            fixture_open(&f, &c, o, 1, DEVICE_ISA_BEST);
            struct memory_plan plan;
            CHECK_OK(engine_plan(&plan, &f.model, &f.device, &o, &err), err);
            CHECK(plan.total_bytes > 0);
            CHECK_EQ_INT(engine_allocated_bytes(f.engine), plan.total_bytes);
            CHECK_EQ_INT(engine_memory(f.engine)->total_bytes, plan.total_bytes);
            CHECK_EQ_INT(memory_plan_kind_bytes(&plan, BUFFER_DATA), 1024);
            memset(engine_other_memory(f.engine), 1, 1000);
            uint64_t kept = memory_plan_kind_bytes(&plan, BUFFER_ACTIVATION);
            if (mode % 2 == 0 && mode > 0 && mode < 4) CHECK(kept < last);
            if (mode % 2 == 0) last = kept;
            memory_plan_free(&plan);
            fixture_close(&f);
        }
}

// Small updates of a bf16 weight move the FP32 master, and the bf16 view follows when it must.
TEST(masters_keep_small_updates) {
    struct fixture f;
    open_kind(&f, "llama", DTYPE_BF16, 1, 16);
    int param = model_param(&f.model, 0, PARAM_QKV);
    float master[4] = {1, 1, 1, 1}, moment1[4] = {0}, moment2[4] = {0}, gradient[4] = {1, 1, 1, 1};
    bf16 weight[4];
    for (int i = 1; i <= 8; i++) {
        struct device_adamw args = {.count = 4,
                                    .master = master,
                                    .moment1 = moment1,
                                    .moment2 = moment2,
                                    .gradient = gradient,
                                    .weight = weight,
                                    .learning_rate = 0.001,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .gradient_scale = 1,
                                    .step = i};
        f.device.adamw(&f.device, &args);
    }
    CHECK_CLOSE(master[0], 0.992, 1e-6);
    CHECK(bf16_to_float(weight[0]) == 0.9921875f);
    struct batch b = fixture_batch(1, 16, f.model.config.vocab, 1);
    size_t n;
    float *before = fixture_copy(&f, ENGINE_MASTER, &n);
    struct batch *list[1] = {&b};
    struct err err = {0};
    struct engine_step step = {.learning_rate = 1e-7, .update = 1};
    CHECK_OK(engine_run_step(f.engine, list, 1, &step, &err), err);
    float *after = fixture_copy(&f, ENGINE_MASTER, &n);
    CHECK(memcmp(before, after, n * sizeof(float)) != 0);
    CHECK(param >= 0 && step.gradient_norm > 0);
    free(before);
    free(after);
    fixture_free(&b);
    fixture_close(&f);
}

// Gradients accumulate in FP32: 256 micro-batches that add 2^-9 of the first each are not lost.
TEST(accumulation_is_fp32) {
    struct fixture f;
    open_kind(&f, "llama", DTYPE_BF16, 1, 16);
    float db[16];
    bf16 dy[16];
    uint64_t bytes = f.device.bias_backward_workspace_bytes(&f.device, 1, 16);
    float *workspace = malloc(bytes + 64);
    for (int i = 0; i < 16; i++) dy[i] = bf16_from_float(1.0f);
    f.device.bias_backward(&f.device, DTYPE_BF16, 1, 16, dy, 16, db, true, workspace);
    for (int i = 0; i < 16; i++) dy[i] = bf16_from_float(1.0f / 512);
    for (int m = 0; m < 256; m++)
        f.device.bias_backward(&f.device, DTYPE_BF16, 1, 16, dy, 16, db, false, workspace);
    for (int i = 0; i < 16; i++) CHECK(db[i] == 1.5f);
    free(workspace);
    fixture_close(&f);
}

TEST(wrong_batches_are_refused) {
    struct fixture f;
    open_kind(&f, "gpt2", DTYPE_F32, 1, 16);
    struct batch b = fixture_batch(1, 16, f.model.config.vocab, 1), *list[3] = {&b, &b, &b};
    struct engine_step step = {.update = 1};
    struct err err = {0};
    CHECK(engine_run_step(f.engine, list, 3, &step, &err) != 0);
    CHECK_CONTAINS(err.text, "planned were at most 2");
    err = (struct err){0};
    b.input[3] = f.model.config.vocab;
    CHECK(engine_run_step(f.engine, list, 1, &step, &err) != 0);
    CHECK_CONTAINS(err.text, "vocabulary has 90");
    b.input[3] = 0;
    b.position[5] = 16;
    err = (struct err){0};
    CHECK(engine_run_step(f.engine, list, 1, &step, &err) != 0);
    CHECK_CONTAINS(err.text, "position 16");
    fixture_free(&b);
    b = fixture_batch(2, 16, f.model.config.vocab, 1);
    err = (struct err){0};
    CHECK(engine_run_step(f.engine, list, 1, &step, &err) != 0);
    CHECK_CONTAINS(err.text, "32 tokens");
    fixture_free(&b);
    fixture_close(&f);
}

// The norm adds blocks of one parameter in parameter order. Subtotals by layer, as pipeline stages
// would have them, give another double now and then: with enough gradients the comparison must see
// it.
TEST(control_norm_from_subtotals_differs) {
    struct fixture f;
    open_kind(&f, "gpt2", DTYPE_F32, 2, 30);
    struct batch b = fixture_batch(2, 30, f.model.config.vocab, 1);
    struct err err = {0};
    int differ = 0;
    for (int trial = 0; trial < 8; trial++) {
        b.input[trial] = (b.input[trial] + 1) % f.model.config.vocab;
        struct engine_step step = fixture_step(&f, &b, 1, true);
        struct tensor *g;
        int count;
        double in_order = 0, subtotals[4] = {0}, sums[8];
        CHECK_OK(engine_tensors(f.engine, ENGINE_GRADIENTS, &g, &count, &err), err);
        for (int i = 0; i < count; i++) {
            int64_t n = tensor_elements(&g[i]), blocks = (n + 4095) / 4096;
            CHECK(blocks <= 8);
            f.device.square_sums(&f.device, n, g[i].data, sums, NULL);
            for (int64_t k = 0; k < blocks; k++) {
                in_order += sums[k];
                subtotals[f.model.params[i].layer + 1] += sums[k];
            }
        }
        CHECK(sqrt(in_order) == step.gradient_norm);
        double by_layer = subtotals[0] + subtotals[1] + subtotals[2] + subtotals[3];
        CHECK_CLOSE(by_layer, in_order, 1e-12);
        differ += by_layer != in_order;
        free(g);
    }
    CHECK(differ > 0);
    fixture_free(&b);
    fixture_close(&f);
}

// 124M parameters in 8,192 tokens a step: what the plan needs, by mode, without taking it.
TEST(plan_of_gpt2_124m) {
    struct model_config c = fixture_config("gpt2");
    c.layers = c.heads = c.kv_heads = 12;
    c.hidden = 768;
    c.head_dim = 64;
    c.ffn = 3072;
    c.vocab = 50257;
    c.context = 1024;
    struct device device;
    struct model model;
    struct err err = {0};
    struct device_cpu_options cpu = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    CHECK_OK(model_describe(&model, &c, &err), err);
    uint64_t last = UINT64_MAX;
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
        struct engine_options o = {.compute = DTYPE_BF16,
                                   .recompute = (enum engine_recompute)mode,
                                   .rows = 2,
                                   .context = 1024,
                                   .micro_batches = 4,
                                   .train = true};
        struct memory_plan plan;
        CHECK_OK(engine_plan(&plan, &model, &device, &o, &err), err);
        uint64_t state = memory_plan_kind_bytes(&plan, BUFFER_WEIGHT) +
                         memory_plan_kind_bytes(&plan, BUFFER_MASTER) +
                         memory_plan_kind_bytes(&plan, BUFFER_MOMENT);
        CHECK_EQ_INT(state / 14 / 1000000, 124);
        CHECK(plan.total_bytes < last);
        CHECK(plan.total_bytes < 3700000000u);
        if (mode > RECOMPUTE_NONE) CHECK(plan.total_bytes < 3500000000u);
        last = plan.total_bytes;
        memory_plan_free(&plan);
    }
    model_free(&model);
    device.close(&device);
}

TEST(recomputation_adds_operations) {
    struct model_config c = fixture_config("gpt2");
    CHECK(engine_recompute_flops(&c, RECOMPUTE_NONE, 10) == 0);
    CHECK(engine_recompute_flops(&c, RECOMPUTE_SELECTIVE, 10) == 0);
    // 3 layers: up 2 x 32 x 128; full: qkv 2 x 32 x 96, attention 4 x 32 x 10 pairs, out 2 x 32 x
    // 32, up
    CHECK(engine_recompute_flops(&c, RECOMPUTE_SELECTIVE_MLP, 10) == 3 * 8192);
    CHECK(engine_recompute_flops(&c, RECOMPUTE_FULL, 10) == 3 * (6144 + 1280 + 2048 + 8192));
}

TEST(pairs_are_counted_layer_by_layer) {
    struct model_config c = fixture_config("llama");
    struct fixture f;
    struct engine_options o = {
        .compute = DTYPE_F32, .rows = 2, .context = 16, .micro_batches = 1, .train = true};
    for (int l = 0; l < c.layers; l++) c.layer_window[l] = l == 1 ? 5 : 0;
    fixture_open(&f, &c, o, 1, DEVICE_ISA_BEST);
    struct batch b = fixture_batch(2, 16, c.vocab, 1);
    double whole = 0, narrow = 0;
    for (int i = 0; i < b.tokens; i++) {
        int seen = b.attend_to[i] - b.attend_from[i];
        whole += seen;
        narrow += seen < 5 ? seen : 5;
    }
    CHECK(narrow < whole);
    struct engine_step step = fixture_step(&f, &b, 1, false);
    CHECK_CLOSE(step.attended_pairs, (whole * (c.layers - 1) + narrow) / c.layers, 1e-12);
    fixture_free(&b);
    fixture_close(&f);
}
