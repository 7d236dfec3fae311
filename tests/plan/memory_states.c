// Formulas that the memory plan has to give: states by sharding, activations of a layer.
#include "layout/layout.h"
#include "model/families.h"
#include "model/flops.h"
#include "plan/memory.h"
#include "plan/memory_kept.h"
#include "test.h"
#include <math.h>
#include <string.h>

static const struct stack own = {.name = "weft", .own = true};
static const struct stack megatron = {.name = "plain",
                                      .selective = STACK_SELECTIVE_CORE,
                                      .fused_softmax = true,
                                      .fused_activation = true,
                                      .fused_norm = true,
                                      .masters = true};
static const struct stack flash = {.name = "flash",
                                   .selective = STACK_SELECTIVE_CORE,
                                   .flash_attention = true,
                                   .fused_activation = true,
                                   .fused_norm = true,
                                   .masters = true};

static void spread(struct job *job, int pp, int dp, int tp, int zero) {
    struct err err = {0};
    job->layout.mesh = (struct mesh){.size = {pp, dp, 1, tp},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = 1,
                                     .shard = dp};
    job->layout.zero = zero;
    CHECK_OK(layout_split_layers(&job->layout, &job->model, NULL, 0, false, &err), err);
}

static void open_job(struct job *job, const struct stack *stack, const char *preset) {
    struct err err = {0};
    job_defaults(job);
    CHECK_OK(model_preset(preset, &job->model, &err), err);
    job->stack = stack;
    job->cluster.accelerator.units = 132;
    job->context = job->model.context = 4096;
}

static double states(const struct plan_memory *m) {
    return m->bytes[PLAN_WEIGHTS] + m->bytes[PLAN_GRADIENTS] + m->bytes[PLAN_MASTERS] +
           m->bytes[PLAN_MOMENTS];
}

// Mean over the pipeline's ranks, bytes.
static double mean_states(const struct job *job) {
    struct plan_memory ranks[64];
    struct err err = {0};
    double sum = 0;
    int count = job->layout.mesh.size[MESH_PP];
    CHECK_OK(plan_memory(job, ranks, &err), err);
    for (int i = 0; i < count; i++) sum += states(&ranks[i]);
    return sum / count;
}

// User requirement 81: 1e9 parameters at 18 bytes, sharded over 8 ranks; tensor and data ranks must
// not divide twice.
TEST(r81_states_of_a_billion_parameters) {
    static const struct {
        int dp, tp, zero;
        double gb;
    } rows[] = {{8, 1, 0, 18.0}, {8, 1, 1, 7.5}, {8, 1, 2, 4.0}, {8, 1, 3, 2.25}, {4, 2, 3, 2.25}};
    struct job job;
    open_job(&job, &own, "llama3.2-1b");
    job.model.tied_head = false;
    double parameters = (double)flops_all_params(&job.model);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        spread(&job, 1, rows[i].dp, rows[i].tp, rows[i].zero);
        CHECK_CLOSE(mean_states(&job) / parameters, rows[i].gb, 0.01);
    }
}

// 70e9 parameters at 16 bytes (BF16 gradients), N = 64: 293.1, 155.3 and 17.5 GB, so ZeRO-1 saves
// 3.82 times and ZeRO-2 7.21 times. Under TP 8 and PP 4 a rank of 16 replicas holds 2.2 GB with
// ZeRO-3, 2.5 GB with FP32 gradients; any stage of them 35 GB without sharding.
TEST(states_of_70_billion_parameters) {
    static const struct {
        int pp, dp, tp, zero;
        enum dtype gradients;
        double gb;
    } rows[] = {{1, 64, 1, 0, DTYPE_BF16, 1120},  {1, 64, 1, 1, DTYPE_BF16, 293.1},
                {1, 64, 1, 2, DTYPE_BF16, 155.3}, {1, 64, 1, 3, DTYPE_BF16, 17.5},
                {4, 16, 8, 3, DTYPE_BF16, 2.19},  {4, 16, 8, 3, DTYPE_F32, 2.46},
                {4, 16, 8, 0, DTYPE_BF16, 35.0}};
    struct job job;
    open_job(&job, &own, "llama3-70b");
    double scale = 70e9 / (double)flops_all_params(&job.model);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        job.accumulate_type = rows[i].gradients;
        spread(&job, rows[i].pp, rows[i].dp, rows[i].tp, rows[i].zero);
        CHECK_CLOSE(mean_states(&job) * scale / 1e9, rows[i].gb, 0.01);
    }
}

// The job's elements are those of the list that the engine's layout cuts, but for padding of the
// vocabulary.
TEST(elements_of_a_job_are_those_of_its_parameters) {
    static const char *const presets[] = {"gpt2-124m",    "llama3-8b",   "qwen3-30b-a3b",
                                          "mixtral-8x7b", "deepseek-v3", "llama3.2-1b"};
    for (size_t p = 0; p < sizeof presets / sizeof presets[0]; p++)
        for (int tp = 1; tp <= 4; tp *= 4) {
            struct job job;
            struct model model;
            struct err err = {0};
            open_job(&job, &own, presets[p]);
            spread(&job, 2, 4, tp, 0);
            if (job.model.experts > 0) job.layout.mesh.ep = 4;
            CHECK_OK(model_describe(&model, &job.model, &err), err);
            for (int pp = 0; pp < 2; pp++) {
                int at[MESH_AXES] = {[MESH_PP] = pp};
                struct local_model local;
                struct job_elements e = job_stage_elements(&job, pp);
                double dense = 0, expert = 0, vectors = 0;
                CHECK_OK(layout_local(&local, &model, &job.layout, mesh_rank(&job.layout.mesh, at),
                                      &err),
                         err);
                for (int i = 0; i < local.model.param_count; i++) {
                    const struct param *q = &local.model.params[i];
                    double n = (double)param_elements_padded(q);
                    *(q->expert >= 0 ? &expert : param_is_matrix(q) ? &dense : &vectors) += n;
                }
                CHECK_CLOSE(e.dense, dense, 1e-12);
                CHECK_CLOSE(e.expert, expert, 1e-12);
                CHECK_CLOSE(e.vectors, vectors, 1e-12);
                local_model_free(&local);
            }
            model_free(&model);
        }
}

// ---- activations

static double kept(const struct plan_layer *layer, const char *name) {
    double sum = 0;
    for (int i = 0; i < layer->count; i++)
        if (strcmp(layer->kept[i].name, name) == 0) sum += layer->kept[i].bytes;
    return sum;
}

static struct plan_layer layer_of(const struct job *job) {
    struct plan_layer layer;
    double sum = 0;
    plan_layer_kept(job, 0, &layer);
    for (int i = 0; i < layer.count; i++) sum += layer.kept[i].bytes;
    CHECK_CLOSE(sum, layer.kept_bytes, 1e-12);
    return layer;
}

// s b h (34 + 5 a s / h) bytes of a GPT layer with dropout, scores stored (Korthikanti et al.
// 2022).
TEST(a_gpt_layer_keeps_34_and_5_a_s_over_h) {
    struct job job;
    open_job(&job, &megatron, "gpt3-175b");
    job.context = 2048;
    job.dropout = 0.1;
    spread(&job, 1, 1, 1, 0);
    double h = job.model.hidden, a = job.model.heads, sbh = 2048 * h;
    struct plan_layer l = layer_of(&job);
    CHECK_CLOSE(l.kept_bytes, sbh * (34 + 5 * a * 2048 / h), 1e-12);
    CHECK_CLOSE(kept(&l, "scores"), sbh * 5 * a * 2048 / h, 1e-12);
    CHECK_CLOSE(l.halved_bytes, 32 * sbh, 1e-12); // Qi et al. 2024
    job.recompute = RECOMPUTE_SELECTIVE;
    CHECK_CLOSE(layer_of(&job).kept_bytes, 34 * sbh, 1e-12);
    job.recompute = RECOMPUTE_FULL;
    CHECK_CLOSE(layer_of(&job).kept_bytes, 2 * sbh, 1e-12);
    job.recompute = RECOMPUTE_NONE;
    spread(&job, 1, 1, 8, 0);
    CHECK_CLOSE(layer_of(&job).kept_bytes, sbh * (10 + 24 / 8.0 + 5 * a * 2048 / h / 8), 1e-12);
    job.layout.sequence_parallel = true;
    CHECK_CLOSE(layer_of(&job).kept_bytes, sbh * (34 + 5 * a * 2048 / h) / 8, 1e-12);
}

// What sequence parallelism cuts: 8 to 10 s b h bytes a layer, 1.1 GB at a micro-batch of 4 x 4096
// and h 8192, 1.3 GB with dropout's masks.
TEST(sequence_parallelism_cuts_1_1_to_1_3_gb_a_layer) {
    struct job job;
    open_job(&job, &flash, "llama3-70b");
    job.rows = 4;
    for (int dropout = 0; dropout < 2; dropout++) {
        job.dropout = dropout * 0.1;
        job.layout.sequence_parallel = false;
        spread(&job, 1, 1, 8, 0);
        double whole = layer_of(&job).kept_bytes;
        job.layout.sequence_parallel = true;
        double cut = (whole - layer_of(&job).kept_bytes) * 8 / 7;
        CHECK_CLOSE(cut / 1e9, dropout ? 1.342 : 1.074, 1e-3);
    }
}

// 128K tokens: the scores of one head are 34.4 GB in BF16, keys and values of 8 heads 0.54 GB.
TEST(scores_of_128k_tokens) {
    struct job job;
    open_job(&job, &megatron, "llama3-70b");
    job.context = job.model.context = 131072;
    spread(&job, 1, 1, 1, 0);
    struct plan_layer l = layer_of(&job);
    CHECK_CLOSE(kept(&l, "scores") / job.model.heads / 1e9, 34.36, 1e-3);
    double keys_and_values = kept(&l, "qkv") * 16 / (64 + 16);
    CHECK_CLOSE(keys_and_values / 1e9, 0.537, 1e-2);
    job.stack = &flash;
    l = layer_of(&job);
    CHECK(kept(&l, "scores") == 0);
}

// User requirement 83: 8 experts, 2 of them visited, of width 1024, and a dense MLP of width 2048
// keep the same hidden activations of 4096 tokens; twice the experts visited doubles that alone.
TEST(r83_experts_keep_by_top_k_and_width) {
    struct job job;
    open_job(&job, &flash, "llama3.2-1b");
    spread(&job, 1, 1, 1, 0);
    job.model.ffn = 2048;
    struct plan_layer dense = layer_of(&job);
    CHECK_CLOSE(kept(&dense, "activated"), 4096.0 * 2048 * 2, 1e-12);
    job.model.experts = 8;
    job.model.top_k = 2;
    job.model.expert_ffn = 1024;
    struct plan_layer two = layer_of(&job);
    CHECK_CLOSE(kept(&two, "activated of experts"), kept(&dense, "activated"), 1e-12);
    CHECK_CLOSE(kept(&two, "up of experts"), kept(&dense, "up"), 1e-12);
    CHECK(kept(&two, "router") > 0);
    job.model.top_k = 4;
    struct plan_layer four = layer_of(&job);
    CHECK_CLOSE(kept(&four, "activated of experts"), 2 * kept(&two, "activated of experts"), 1e-12);
    CHECK_CLOSE(kept(&four, "router"), kept(&two, "router"), 1e-12);
    CHECK_CLOSE(kept(&four, "attention"), kept(&two, "attention"), 1e-12);
    job.imbalance = 1.5;
    struct plan_layer uneven = layer_of(&job);
    CHECK_CLOSE(kept(&uneven, "up of experts"), 1.5 * kept(&four, "up of experts"), 1e-12);
    job.model.shared_ffn = 512;
    struct plan_layer shared = layer_of(&job);
    CHECK_CLOSE(kept(&shared, "shared expert"), 4096.0 * 3 * 512 * 2, 1e-12);
}

// The engine's own plan of the same: rows of experts rounded up to whole tiles.
TEST(r83_own_experts_keep_by_top_k_and_width) {
    struct job job;
    struct plan_memory two, four;
    struct err err = {0};
    open_job(&job, &own, "llama3.2-1b");
    job.model.experts = 8;
    job.model.top_k = 2;
    job.model.expert_ffn = 1024;
    job.model.ffn = 2048;
    spread(&job, 1, 1, 1, 0);
    CHECK_OK(plan_memory(&job, &two, &err), err);
    job.model.top_k = 4;
    CHECK_OK(plan_memory(&job, &four, &err), err);
    // rows and gate and up (2 x 1024), in BF16, of two more experts for each token
    double more = job.model.layers * 4096.0 * 2 * (job.model.hidden + 2 * 1024) * 2;
    CHECK_CLOSE(four.bytes[PLAN_ACTIVATIONS] - two.bytes[PLAN_ACTIVATIONS], more, 0.03);
}

// ---- the bound that a search looks at first

static void check_bound(struct job *job, const char *name) {
    struct plan_memory ranks[16];
    struct err err = {0};
    const int *size = job->layout.mesh.size;
    if (plan_memory(job, ranks, &err) != 0) return; // refused
    double bound = plan_memory_bound(job);
    int fullest = plan_memory_fullest(ranks, size[MESH_PP]);
    if (!(bound > 0 && bound <= ranks[fullest].total))
        test_fail(__FILE__, __LINE__,
                  "%s on %s pp%d dp%d tp%d ep%d zero%d %s recompute %d: bound %.0f, plan %.0f",
                  name, job->stack->name, size[MESH_PP], size[MESH_DP], size[MESH_TP],
                  job->layout.mesh.ep, job->layout.zero, pipeline_kind_name(job->schedule),
                  (int)job->recompute, bound, ranks[fullest].total);
}

static void bound_of_schedule(struct job *job, const char *name, enum pipeline_kind kind) {
    struct err err = {0};
    bool v = kind == PIPELINE_ZB_V, halves = v || kind == PIPELINE_ZB_H1;
    job->schedule = kind;
    job->layout.chunks = v || kind == PIPELINE_INTERLEAVED ? 2 : 1;
    job->layout.placement = v ? PLACE_V : PLACE_LOOP;
    if (layout_split_layers(&job->layout, &job->model, NULL, 0, false, &err) != 0) return;
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
        if (halves && mode > RECOMPUTE_NONE) continue;
        job->recompute = (enum engine_recompute)mode;
        check_bound(job, name);
    }
}

TEST(plan_memory_bound_is_never_more_than_the_plan) {
    static const char *const presets[] = {"gpt2-124m", "llama3.2-1b", "llama3-8b", "qwen3-30b-a3b",
                                          "deepseek-v2-lite"};
    static const struct stack *const stacks[] = {&own, &flash, &megatron};
    for (size_t p = 0; p < sizeof presets / sizeof presets[0]; p++)
        for (size_t s = 0; s < 3; s++)
            for (int pp = 1; pp <= 4; pp *= 2)
                for (int zero = 0; zero <= 3; zero++)
                    for (int kind = 0; kind < PIPELINE_FILE; kind++) {
                        struct job job;
                        open_job(&job, stacks[s], presets[p]);
                        job.context = job.model.context = 1024;
                        job.micro_batches = 1 + (zero + kind) * 2;
                        if (zero == 2) job.precision = HARDWARE_FP32;
                        job.layout.mesh =
                            (struct mesh){.size = {pp, 4, 1, zero % 2 ? 2 : 1},
                                          .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                          .ep = job.model.experts > 0 ? 4 : 1,
                                          .shard = 4};
                        job.layout.zero = zero;
                        bound_of_schedule(&job, presets[p], (enum pipeline_kind)kind);
                    }
}

// Products in FP8 keep their inputs in it; attention keeps its output in BF16 beside that.
TEST(fp8_keeps_inputs_of_products_narrow) {
    struct job job;
    open_job(&job, &flash, "llama3-8b");
    spread(&job, 1, 1, 1, 0);
    struct plan_layer wide = layer_of(&job);
    job.precision = HARDWARE_FP8;
    struct plan_layer narrow = layer_of(&job);
    double h = job.model.hidden, saved = 2 * h + job.model.ffn - h; // two norms, gate x up; output
    CHECK_CLOSE(wide.kept_bytes - narrow.kept_bytes, 4096 * saved, 1e-12);
    CHECK_CLOSE(kept(&narrow, "input"), kept(&wide, "input"), 1e-12);
}

// User requirement 87: each mode keeps less than the one before, and the whole plan is smaller.
TEST(r87_recomputation_orders_the_plan) {
    static const char *const presets[] = {"gpt2-124m", "llama3-8b", "mixtral-8x7b"};
    for (size_t p = 0; p < 3; p++) {
        struct job job;
        double last[2] = {1e300, 1e300}; // activations, total
        open_job(&job, &own, presets[p]);
        job.context = 1024;
        spread(&job, 2, 2, 1, 1);
        job.micro_batches = 4;
        for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
            struct plan_memory ranks[2];
            struct err err = {0};
            job.recompute = (enum engine_recompute)mode;
            CHECK_OK(plan_memory(&job, ranks, &err), err);
            CHECK(ranks[0].bytes[PLAN_ACTIVATIONS] < last[0]);
            CHECK(ranks[0].total < last[1]);
            last[0] = ranks[0].bytes[PLAN_ACTIVATIONS];
            last[1] = ranks[0].total;
        }
    }
}

// What the engine would refuse is refused, in one line; nothing is added up for it.
TEST(plan_memory_refuses_what_the_engine_refuses) {
    struct job job;
    struct plan_memory ranks[4];
    struct err err = {0};
    open_job(&job, &own, "llama3-8b");
    spread(&job, 1, 1, 3, 0); // 32 heads
    CHECK(plan_memory(&job, ranks, &err) != 0);
    CHECK_CONTAINS(err.text, "does not divide heads");
    CHECK(strchr(err.text, '\n') == NULL);
    err = (struct err){0};
    open_job(&job, &own, "llama3-8b");
    spread(&job, 1, 1, 1, 0);
    job.rows = 1 << 20;
    job.context = 1 << 13;
    CHECK(plan_memory(&job, ranks, &err) != 0);
    CHECK_CONTAINS(err.text, "tokens in a micro-batch");
    err = (struct err){0};
    open_job(&job, &own, "llama3-8b");
    spread(&job, 4, 1, 1, 0);
    job.schedule = PIPELINE_ZB_H1;
    job.recompute = RECOMPUTE_FULL;
    CHECK(plan_memory(&job, ranks, &err) != 0);
    CHECK_CONTAINS(err.text, "recompute none");
}
