// The plan of the engine's own memory against engines that are really opened, every rank a thread.
#include "engine/engine.h"
#include "model/families.h"
#include "plan/memory.h"
#include "test.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct stack own = {.name = "weft", .own = true};

enum { BF16 = 1, NO_SEQUENCE = 2, PER_MICRO_BATCH = 4, BF16_GRADIENTS = 8 };

struct shape {
    const char *model; // "gpt2", "llama", "untied", "moe", "shared"
    int pp, dp, cp, tp, ep, zero, chunks;
    enum pipeline_kind schedule;
    enum engine_recompute recompute;
    int rows, micro_batches;
    int options;
};

static struct model_config model_of(const char *kind) {
    struct model_config c;
    bool gpt2 = strcmp(kind, "gpt2") == 0;
    model_family_defaults(gpt2 ? FAMILY_GPT2 : FAMILY_LLAMA, &c);
    c.layers = 5, c.hidden = 32, c.heads = 8, c.kv_heads = gpt2 ? 8 : 2, c.head_dim = 4;
    c.ffn = 48, c.vocab = 90, c.context = 32;
    c.tied_head = gpt2 || strcmp(kind, "llama") == 0;
    if (strcmp(kind, "moe") == 0 || strcmp(kind, "shared") == 0) {
        strcpy(c.variant, "mixtral");
        c.experts = 4;
        c.top_k = 2;
        c.expert_ffn = 24;
    }
    if (strcmp(kind, "shared") == 0) {
        c.layer_dense[1] = true;
        c.shared_ffn = 16;
    }
    return c;
}

static void make_job(struct job *job, const struct shape *s) {
    struct err err = {0};
    *job = (struct job){.model = model_of(s->model),
                        .stack = &own,
                        .schedule = s->schedule,
                        .rows = s->rows,
                        .context = 32,
                        .micro_batches = s->micro_batches,
                        .recompute = s->recompute,
                        .precision = s->options & BF16 ? HARDWARE_BF16 : HARDWARE_FP32,
                        .reduce_per_micro_batch = s->options & PER_MICRO_BATCH,
                        .gather_type = s->options & BF16 ? DTYPE_BF16 : DTYPE_F32,
                        .reduce_type = DTYPE_F32,
                        .accumulate_type = s->options & BF16_GRADIENTS ? DTYPE_BF16 : DTYPE_F32,
                        .imbalance = 1,
                        .threads = 1};
    job->cluster.accelerator.cpu = true;
    job->layout = (struct layout){.mesh = {.size = {s->pp, s->dp, s->cp, s->tp},
                                           .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                           .ep = s->ep,
                                           .shard = s->dp * s->cp},
                                  .chunks = s->chunks,
                                  .placement = s->schedule == PIPELINE_ZB_V ? PLACE_V : PLACE_LOOP,
                                  .sequence_parallel = s->tp > 1 && !(s->options & NO_SEQUENCE),
                                  .zero = s->zero};
    CHECK_OK(layout_split_layers(&job->layout, &job->model, NULL, 0, false, &err), err);
}

struct opened {
    const struct job *job;
    const struct model *model;
    struct comm *comm;
    int rank;
    uint64_t bytes;
};

static void *open_one(void *argument) {
    struct opened *o = argument;
    const struct job *job = o->job;
    struct err err = {0};
    struct device device;
    struct device_cpu_options cpu = {.threads = 1};
    CHECK_OK(device_cpu_open(&device, &cpu, &err), err);
    struct engine_parallel parallel = {.comm = o->comm,
                                       .rank = o->rank,
                                       .layout = &job->layout,
                                       .schedule = job->schedule,
                                       .reduce_per_micro_batch = job->reduce_per_micro_batch,
                                       .gather_type = job->gather_type,
                                       .reduce_type = job->reduce_type,
                                       .accumulate_type = job->accumulate_type,
                                       .prefetch = 1,
                                       .gathers_in_flight = 2};
    struct engine_options options = {.parallel = &parallel,
                                     .compute =
                                         job->precision == HARDWARE_FP32 ? DTYPE_F32 : DTYPE_BF16,
                                     .recompute = job->recompute,
                                     .rows = job->rows,
                                     .context = job->context,
                                     .micro_batches = job->micro_batches,
                                     .train = true,
                                     .guards = {job->seals_optimizer, job->seals_gradients,
                                                job->seals_weights, job->seals_products}};
    struct engine *engine = engine_open(o->model, &device, &options, &err);
    if (!engine) test_fail(__FILE__, __LINE__, "rank %d: %s", o->rank, err.text);
    o->bytes = engine_allocated_bytes(engine);
    engine_close(engine);
    device.close(&device);
    comm_close(o->comm);
    return NULL;
}

static void check_shape(const struct shape *s) {
    struct err err = {0};
    struct job job;
    struct model model;
    struct plan_memory planned[8];
    struct comm *ends[16];
    struct opened ranks[16];
    pthread_t threads[16];
    struct comm_options options = {0};
    make_job(&job, s);
    int count = mesh_ranks(&job.layout.mesh);
    CHECK_OK(plan_memory(&job, planned, &err), err);
    CHECK_OK(model_describe(&model, &job.model, &err), err);
    CHECK_OK(comm_open_threads(ends, count, &options, &err), err);
    for (int i = 0; i < count; i++) {
        ranks[i] = (struct opened){&job, &model, ends[i], i, 0};
        CHECK_EQ_INT(pthread_create(&threads[i], NULL, open_one, &ranks[i]), 0);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    for (int pp = 0; pp < s->pp; pp++) {
        uint64_t most = 0;
        for (int i = 0; i < count; i++) {
            int at[MESH_AXES];
            mesh_at(&job.layout.mesh, i, at);
            if (at[MESH_PP] == pp && ranks[i].bytes > most) most = ranks[i].bytes;
        }
        if ((uint64_t)planned[pp].allocated != most)
            test_fail(__FILE__, __LINE__,
                      "%s pp%d dp%d cp%d tp%d ep%d zero%d, pipeline rank %d: planned %.0f, "
                      "allocated %llu",
                      s->model, s->pp, s->dp, s->cp, s->tp, s->ep, s->zero, pp,
                      planned[pp].allocated, (unsigned long long)most);
        CHECK(planned[pp].total == planned[pp].allocated);
    }
    int fullest = plan_memory_fullest(planned, s->pp);
    CHECK(plan_memory_bound(&job) <= planned[fullest].total);
    CHECK(plan_memory_bound(&job) > 0);
    model_free(&model);
}

static const struct shape shapes[] = {
    {"gpt2", 1, 1, 1, 1, 1, 0, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 2, 2, 0},
    {"llama", 1, 1, 1, 1, 1, 0, 1, PIPELINE_1F1B, RECOMPUTE_FULL, 2, 2, BF16},
    {"llama", 1, 2, 1, 2, 1, 1, 1, PIPELINE_1F1B, RECOMPUTE_SELECTIVE, 1, 4, BF16},
    {"untied", 1, 4, 1, 1, 1, 2, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 2, BF16},
    {"untied", 1, 4, 1, 1, 1, 3, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 1, 0},
    {"llama", 1, 2, 1, 1, 1, 0, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 2, BF16 | BF16_GRADIENTS},
    {"gpt2", 4, 1, 1, 2, 1, 0, 1, PIPELINE_1F1B, RECOMPUTE_SELECTIVE, 2, 8, BF16},
    {"llama", 4, 1, 1, 1, 1, 0, 1, PIPELINE_GPIPE, RECOMPUTE_NONE, 1, 6, 0},
    {"llama", 2, 2, 1, 1, 1, 1, 2, PIPELINE_INTERLEAVED, RECOMPUTE_NONE, 1, 4, BF16},
    {"llama", 4, 1, 1, 1, 1, 0, 1, PIPELINE_ZB_H1, RECOMPUTE_NONE, 1, 8, BF16},
    {"untied", 2, 1, 1, 2, 1, 0, 2, PIPELINE_ZB_V, RECOMPUTE_NONE, 1, 4, BF16 | NO_SEQUENCE},
    {"llama", 1, 1, 4, 1, 1, 1, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 2, BF16},
    {"llama", 2, 2, 2, 2, 1, 1, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 4, BF16 | PER_MICRO_BATCH},
    {"moe", 1, 2, 1, 1, 2, 1, 1, PIPELINE_1F1B, RECOMPUTE_NONE, 1, 2, BF16},
    {"shared", 2, 2, 1, 2, 2, 1, 1, PIPELINE_1F1B, RECOMPUTE_SELECTIVE_MLP, 1, 4, BF16},
    {"moe", 1, 4, 1, 1, 2, 3, 1, PIPELINE_1F1B, RECOMPUTE_FULL, 2, 2, 0},
};

TEST(plan_memory_is_what_engines_allocate) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_shape(&shapes[i]);
}
