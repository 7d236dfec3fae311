// What sharding, buckets, message types and prefetch do to the bits of a run, and what each stage
// holds. Runs are short: the matrix has the long ones.
#include "device/device.h"
#include "world.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static struct world_layout data_parallel(const char *model, int dp, int micro_batches, int zero) {
    return (struct world_layout){.model = model,
                                 .pp = 1,
                                 .dp = dp,
                                 .cp = 1,
                                 .tp = 1,
                                 .ep = 1,
                                 .zero = zero,
                                 .schedule = PIPELINE_1F1B,
                                 .chunks = 1,
                                 .rows = 1,
                                 .samples = dp * micro_batches,
                                 .steps = STEPS};
}

static void run(const struct world_layout *l, struct world_result *out) {
    world_run(l, out);
    CHECK(out->planned_is_allocated);
    CHECK(out->copies_are_equal);
    CHECK(out->counted > 0 && isfinite(out->norm[STEPS - 1]) && out->norm[0] > 0);
}

static void expect(struct world_layout a, struct world_layout b, bool same, const char *what) {
    struct world_result x, y;
    char first[160], second[160];
    run(&a, &x);
    run(&b, &y);
    if (world_same(&x, &y, STEPS) != same)
        test_fail(__FILE__, __LINE__, "%s: %s and %s %s (norms %a, %a)", what,
                  world_name(&a, first), world_name(&b, second), same ? "differ" : "do not differ",
                  x.norm[STEPS - 1], y.norm[STEPS - 1]);
    world_free(&x);
    world_free(&y);
}

static void expect_close(struct world_layout a, struct world_layout b) {
    struct world_result x, y;
    char name[160], text[200];
    run(&a, &x);
    run(&b, &y);
    const char *apart = world_apart(&x, &y, STEPS, text);
    if (apart) test_fail(__FILE__, __LINE__, "%s: %s", world_name(&a, name), apart);
    world_free(&x);
    world_free(&y);
}

// ---- stages -------------------------------------------------------------------------------------

static void compare_stages(const char *model, int dp) {
    struct world_layout zero[4], sum[4];
    for (int z = 0; z < 4; z++) {
        zero[z] = sum[z] = data_parallel(model, dp, 12 / dp < 3 ? 12 / dp : 3, z);
        sum[z].per_micro_batch = true;
    }
    expect(zero[0], zero[1], true, "several micro-batches");
    expect(zero[2], zero[3], true, "several micro-batches");
    expect(sum[0], sum[1], true, "one reduction per micro-batch");
    expect(sum[0], sum[2], true, "one reduction per micro-batch");
    expect(zero[2], sum[2], true, "stage 2 reduces every micro-batch");
    expect_close(zero[2], zero[0]);
    for (int z = 0; z < 4; z++) zero[z] = data_parallel(model, dp, 1, z);
    for (int z = 1; z < 4; z++) expect(zero[0], zero[z], true, "one micro-batch");
}

TEST(stages_of_two_ranks) {
    compare_stages("llama", 2);
}
TEST(stages_of_three_ranks) {
    compare_stages("gpt2", 3);
}
TEST(stages_of_four_ranks) {
    compare_stages("untied", 4);
}

// The comparison sees an order: over ranks first or over micro-batches first.
TEST(control_order_of_sums_differs) {
    expect(data_parallel("untied", 3, 3, 0), data_parallel("untied", 3, 3, 2), false, "order");
    expect(data_parallel("untied", 4, 3, 1), data_parallel("untied", 1, 12, 0), false,
           "sums of ranks");
}

TEST(buckets_keep_the_bits) {
    for (int z = 0; z < 2; z++) {
        struct world_layout a = data_parallel("gpt2", 3, 2, z), b = a;
        a.bucket_bytes = 1000; // a matrix each
        b.bucket_bytes = 40000;
        expect(a, b, true, "bucket size");
        expect(a, data_parallel("gpt2", 3, 2, z), true, "bucket size");
    }
}

TEST(prefetch_keeps_the_bits) {
    struct world_layout base = data_parallel("llama", 2, 3, 3);
    base.no_overlap = true;
    for (int ahead = -1; ahead < 4; ahead += 2)
        for (int in_flight = 1; in_flight < 4; in_flight += 2) {
            struct world_layout l = data_parallel("llama", 2, 3, 3);
            l.prefetch = ahead;
            l.in_flight = in_flight;
            expect(base, l, true, "prefetch");
        }
    struct world_layout redone = data_parallel("llama", 2, 3, 3);
    redone.recompute = RECOMPUTE_FULL;
    expect(base, redone, true, "recomputation of gathered layers");
}

TEST(shards_in_groups_are_close) {
    for (int z = 1; z < 4; z++) {
        struct world_layout hybrid = data_parallel("llama", 4, 2, z), one_shard = hybrid;
        hybrid.shard = 2;
        one_shard.shard = 1; // copies everywhere
        expect_close(hybrid, data_parallel("llama", 1, 8, 0));
        expect_close(one_shard, data_parallel("llama", 1, 8, 0));
        if (z > 1) continue;
        struct world_layout other = data_parallel("llama", 4, 1, 3), first = other;
        other.shard = first.shard = 2;
        first.zero = 1;
        expect(first, other, true, "hybrid, one micro-batch");
    }
}

// Partial sums over tp ranks (norm weights, position table, rows of shared keys and values) come
// before the sums over data ranks, unit by unit or at the end.
TEST(stages_with_tensor_parallelism) {
    static const char *const models[] = {"llama", "gpt2"};
    for (int m = 0; m < 2; m++) {
        struct world_layout l[4];
        for (int z = 0; z < 4; z++) {
            l[z] = data_parallel(models[m], 2, 1, z);
            l[z].tp = 4; // llama has two key heads
            l[z].no_sequence = z == 1 && m == 1;
        }
        expect(l[0], l[2], true, "tensor parallelism, one micro-batch");
        expect(l[0], l[3], true, "tensor parallelism, one micro-batch");
        expect_close(l[1], data_parallel(models[m], 1, 2, 0));
        for (int z = 0; z < 4; z++) {
            l[z].samples = 6;
            l[z].bf16_gradients = true;
            l[z].no_sequence = false;
        }
        expect(l[0], l[1], true, "tensor parallelism, BF16 gradients");
        expect(l[2], l[3], true, "tensor parallelism, BF16 gradients");
    }
}

TEST(shards_in_groups_with_other_axes) {
    for (int z = 1; z < 4; z++) {
        struct world_layout l = data_parallel("llama", 4, 2, z), calm;
        l.shard = 2;
        l.tp = 2;
        l.pp = z == 3 ? 1 : 2;
        calm = l;
        calm.no_overlap = true;
        calm.bucket_bytes = 2000;
        expect_close(l, data_parallel("llama", 1, 8, 0));
        expect(l, calm, true, "overlap of hybrid sharding");
        l.bf16_wire = calm.bf16_wire = true;
        expect(l, calm, true, "overlap of hybrid sharding, BF16 messages");
    }
}

// ---- types --------------------------------------------------------------------------------------

TEST(rounded_contributions_keep_the_equalities) {
    struct world_layout l[4];
    for (int z = 0; z < 4; z++) {
        l[z] = data_parallel("gpt2", 3, 1, z);
        l[z].bf16_wire = true;
    }
    for (int z = 1; z < 4; z++) expect(l[0], l[z], true, "BF16 messages");
    expect(l[0], data_parallel("gpt2", 3, 1, 0), false, "BF16 messages and FP32 messages");
    struct world_layout many = l[0], small = l[0];
    many.samples = small.samples = 9;
    small.bucket_bytes = 3000;
    expect(many, small, true, "buckets of BF16 messages");
}

TEST(gradients_kept_in_bf16) {
    struct world_layout l[4];
    for (int z = 0; z < 4; z++) {
        l[z] = data_parallel("llama", 2, 3, z);
        l[z].bf16_gradients = true;
    }
    expect(l[0], l[1], true, "BF16 gradients");
    expect(l[2], l[3], true, "BF16 gradients");
    expect(l[0], data_parallel("llama", 2, 3, 0), false, "BF16 and FP32 gradients");
    struct world_result a, b;
    struct world_layout alone = data_parallel("llama", 1, 6, 0), plain = alone;
    alone.bf16_gradients = true;
    run(&alone, &a);
    run(&plain, &b);
    CHECK_CLOSE(a.norm[0], b.norm[0], 0.01);
    CHECK(a.norm[0] != b.norm[0]);
    world_free(&a);
    world_free(&b);
}

// FP32 products on weights that travelled as BF16: every rank computes with the rounded ones, its
// own shard too.
TEST(weights_gathered_in_bf16) {
    struct world_layout l[4];
    for (int z = 1; z < 4; z++) {
        l[z] = data_parallel("gpt2", 3, 1, z);
        l[z].bf16_gather = true;
        l[z].bucket_bytes = 20000;
    }
    expect(l[1], l[2], true, "BF16 gathers");
    expect(l[1], l[3], true, "BF16 gathers");
    expect(l[1], data_parallel("gpt2", 3, 1, 1), false, "BF16 gathers and FP32 gathers");
}

TEST(bf16_training_in_all_stages) {
    struct world_layout l[4];
    for (int z = 0; z < 4; z++) {
        l[z] = data_parallel("llama", 3, 1, z);
        l[z].bf16 = true;
    }
    for (int z = 1; z < 4; z++) expect(l[0], l[z], true, "bf16");
}

// ---- norm and initial values --------------------------------------------------------------------

// Requirement 146: the global norm before clipping, the same whatever the layout.
TEST(norm_of_the_first_step_is_that_of_one_process) {
    struct world_result one, r;
    struct world_layout alone = data_parallel("gpt2", 1, 12, 0);
    run(&alone, &one);
    for (int dp = 1; dp <= 4; dp++)
        for (int z = 0; z < 4; z++) {
            struct world_layout l = data_parallel("gpt2", dp, 12 / dp, z);
            l.steps = 1;
            if (dp == 2 && z > 0) l.pp = 2;
            world_run(&l, &r);
            CHECK_CLOSE(r.norm[0], one.norm[0], 1e-6);
            world_free(&r);
        }
    world_free(&one);
}

// Requirement 44: initial values depend on the seed, the name and the place in the whole tensor.
TEST(initial_weights_do_not_depend_on_the_layout) {
    struct world_result one, r;
    struct world_layout alone = data_parallel("llama", 1, 4, 0);
    run(&alone, &one);
    double squares = 0;
    for (size_t i = 0; i < one.weight_count; i++) squares += one.initial[i] * one.initial[i];
    CHECK(squares > 1);
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int pp = 1; pp <= 2; pp++)
            for (int z = 0; z < 4; z += 3) {
                struct world_layout l = data_parallel("llama", 2, 2, z);
                l.tp = tp;
                l.pp = pp;
                l.steps = 1;
                world_run(&l, &r);
                CHECK(r.copies_are_equal);
                CHECK_BYTES(r.initial, one.initial, one.weight_count * sizeof(float));
                world_free(&r);
            }
    world_free(&one);
}

// Requirement 32: the two copies of a tied table on different pipeline ranks.
TEST(tied_tables_stay_equal) {
    for (int z = 0; z < 4; z++) {
        struct world_layout l = data_parallel("gpt2", 2, 2, z), flat = l;
        l.pp = 2;
        expect(l, flat, true, "tied table on two ranks");
        l.tp = 2;
        struct world_result r;
        run(&l, &r);
        world_free(&r);
    }
}

// ---- bytes --------------------------------------------------------------------------------------

// (4 + 12 / N) P, (2 + 14 / N) P and 16 P / N with BF16 gradients and weights, P and P / N of the
// padded matrices; with FP32 gradients 2 bytes more where they lie. Vectors stay whole.
static void check_bytes(int zero, enum dtype gradients, int ranks) {
    struct err err = {0};
    struct model_config c = world_model("untied");
    struct model model;
    struct device device;
    struct device_cpu_options cpu = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    CHECK_OK(model_describe(&model, &c, &err), err);
    struct layout layout = {.mesh = {.size = {1, ranks, 1, 1},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = 1,
                                     .shard = ranks},
                            .chunks = 1,
                            .zero = zero};
    CHECK_OK(layout_split_layers(&layout, &c, NULL, 0, false, &err), err);
    struct engine_parallel parallel = {.layout = &layout,
                                       .rank = 1,
                                       .schedule = PIPELINE_1F1B,
                                       .gather_type = DTYPE_BF16,
                                       .accumulate_type = gradients,
                                       .gathers_in_flight = 1};
    struct engine_options o = {.parallel = &parallel,
                               .compute = DTYPE_BF16,
                               .rows = 1,
                               .context = WORLD_CONTEXT,
                               .micro_batches = 2,
                               .train = true};
    struct memory_plan plan;
    CHECK_OK(engine_plan(&plan, &model, &device, &o, &err), err);
    struct local_model local;
    struct flat flat;
    CHECK_OK(layout_local(&local, &model, &layout, 1, &err), err);
    struct flat_options options = flat_options_for(&layout, 1, 32000000);
    options.by_unit = gradients == DTYPE_BF16;
    CHECK_OK(flat_open(&flat, &local, &options, &err), err);
    int64_t vectors = flat.vectors_end[FLAT_DENSE] - flat.vectors_begin[FLAT_DENSE];
    int64_t whole = flat.elements, shard = zero ? flat.shard_elements : whole;
    CHECK(vectors > 0 && (zero == 0 || (shard - vectors) * ranks == whole - vectors));
    int64_t gradient = zero >= 2 ? shard : whole, weight = zero == 3 ? shard : whole;
    CHECK_EQ_INT(memory_plan_kind_bytes(&plan, BUFFER_WEIGHT), 2 * weight);
    CHECK_EQ_INT(memory_plan_kind_bytes(&plan, BUFFER_MASTER), 4 * shard);
    CHECK_EQ_INT(memory_plan_kind_bytes(&plan, BUFFER_MOMENT), 8 * shard);
    CHECK_EQ_INT(memory_plan_kind_bytes(&plan, BUFFER_GRADIENT),
                 (int64_t)dtype_bytes(gradients) * gradient);
    flat_close(&flat);
    local_model_free(&local);
    memory_plan_free(&plan);
    model_free(&model);
    device.close(&device);
}

TEST(state_bytes_follow_the_formulas) {
    for (int zero = 0; zero < 4; zero++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            check_bytes(zero, DTYPE_F32, ranks);
            check_bytes(zero, DTYPE_BF16, ranks);
        }
}
