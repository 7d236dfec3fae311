// The engine's own enumeration, sorted into the items of the plan. Nothing is counted here: every
// byte comes from the list that engine_open allocates.
#include "device/device.h"
#include "engine/engine.h"
#include "plan/memory_parts.h"
#include <stdlib.h>
#include <string.h>

struct plan_memory_cache {
    bool has_model, has_device;
    struct model model;
    struct device device;
    bool device_cpu;
    int device_threads;
    struct device_described_options described;
};

struct plan_memory_cache *plan_memory_own_open(void) {
    return calloc(1, sizeof(struct plan_memory_cache));
}

static void drop_model(struct plan_memory_cache *c) {
    if (c->has_model) model_free(&c->model);
    c->has_model = false;
}

static void drop_device(struct plan_memory_cache *c) {
    if (c->has_device && c->device.close) c->device.close(&c->device);
    c->has_device = false;
}

void plan_memory_own_close(struct plan_memory_cache *cache) {
    drop_model(cache);
    drop_device(cache);
    free(cache);
}

static int need_model(struct plan_memory_cache *c, const struct job *job, struct err *err) {
    if (c->has_model && memcmp(&c->model.config, &job->model, sizeof job->model) == 0) return 0;
    drop_model(c);
    if (model_describe(&c->model, &job->model, err) != 0) return -1;
    c->has_model = true;
    return 0;
}

// Sizes of an accelerator's kernels: cuBLAS recommends a workspace of 32 MiB on Hopper, see
// CUBLAS_WORKSPACE_CONFIG in its documentation.
enum { PRODUCTS_BYTES = 32 << 20 };

static int need_device(struct plan_memory_cache *c, const struct job *job, struct err *err) {
    const struct accelerator *a = &job->cluster.accelerator;
    if (c->has_device && c->device_cpu == a->cpu &&
        (a->cpu ? c->device_threads == job->threads : c->described.units == a->units))
        return 0;
    drop_device(c);
    if (a->cpu) {
        struct device_cpu_options options = {.threads = job->threads};
        if (device_cpu_open(&c->device, &options, err) != 0) return -1;
    } else {
        c->described =
            (struct device_described_options){.products_bytes = PRODUCTS_BYTES, .units = a->units};
        device_described(&c->device, &c->described);
    }
    c->has_device = true;
    c->device_cpu = a->cpu;
    c->device_threads = job->threads;
    return 0;
}

static enum plan_memory_item item_of(enum buffer_kind kind) {
    switch (kind) {
    case BUFFER_WEIGHT:
        return PLAN_WEIGHTS;
    case BUFFER_GRADIENT:
        return PLAN_GRADIENTS;
    case BUFFER_MASTER:
        return PLAN_MASTERS;
    case BUFFER_MOMENT:
        return PLAN_MOMENTS;
    case BUFFER_ACTIVATION:
        return PLAN_ACTIVATIONS;
    case BUFFER_SCRATCH:
        return PLAN_WORKING;
    case BUFFER_LOGITS:
        return PLAN_LOGITS;
    case BUFFER_COMM:
        return PLAN_MESSAGES;
    case BUFFER_SNAPSHOT:
        return PLAN_SNAPSHOTS;
    case BUFFER_PACKED:
    case BUFFER_WORKSPACE:
    case BUFFER_DATA:
    case BUFFER_TABLE:
    case BUFFER_KIND_COUNT:
        break;
    }
    return PLAN_WORKSPACE;
}

static struct engine_options options_of(const struct job *job,
                                        const struct engine_parallel *parallel) {
    return (struct engine_options){.parallel = parallel,
                                   .compute =
                                       job->precision == HARDWARE_FP32 ? DTYPE_F32 : DTYPE_BF16,
                                   .recompute = job->recompute,
                                   .rows = job->rows,
                                   .context = job->context,
                                   .micro_batches = job->micro_batches,
                                   .train = true,
                                   .dropout = job->dropout,
                                   .guards = {.optimizer = job->seals_optimizer,
                                              .gradients = job->seals_gradients,
                                              .weights_every = job->seals_weights,
                                              .products_every = job->seals_products},
                                   .other_bytes = job->other_bytes,
                                   .snapshots = job->cluster.accelerator.cpu ? job->snapshots : 0,
                                   .experts = {.wave = job->expert_wave},
                                   .split_backward = job->split_backward_own};
}

static struct engine_parallel parallel_of(const struct job *job) {
    return (struct engine_parallel){.layout = &job->layout,
                                    .schedule = job->schedule,
                                    .schedule_csv = job->schedule_csv,
                                    .bucket_bytes = job->bucket_bytes,
                                    .reduce_per_micro_batch = job->reduce_per_micro_batch,
                                    .gather_type = job->gather_type,
                                    .reduce_type = job->reduce_type,
                                    .accumulate_type = job->accumulate_type,
                                    .gathers_in_flight =
                                        job->gathers_in_flight ? job->gathers_in_flight : 2,
                                    .gather_keys = job->gather_keys,
                                    .no_overlap = job->no_overlap};
}

static int plan_ranks(const struct job *job, const struct pipeline *pipeline,
                      struct plan_memory_cache *c, struct plan_memory *ranks, struct err *err) {
    struct engine_parallel parallel = parallel_of(job);
    struct engine_options options = options_of(job, &parallel);
    for (int pp = 0; pp < job->layout.mesh.size[MESH_PP]; pp++) {
        // tensor and data ranks of a stage hold equally much: vocabularies and shards are padded
        int at[MESH_AXES] = {[MESH_PP] = pp};
        struct memory_plan totals;
        parallel.rank = mesh_rank(&job->layout.mesh, at);
        if (engine_plan_totals(&totals, &c->model, &c->device, &options, pipeline, err) != 0)
            return -1;
        for (int kind = 0; kind < BUFFER_KIND_COUNT; kind++)
            ranks[pp].bytes[item_of((enum buffer_kind)kind)] +=
                (double)memory_plan_kind_bytes(&totals, (enum buffer_kind)kind);
    }
    return 0;
}

int plan_memory_own(const struct job *job, const struct pipeline *pipeline,
                    struct plan_memory_cache *cache, struct plan_memory *ranks, struct err *err) {
    struct plan_memory_cache *c = cache ? cache : plan_memory_own_open();
    if (!c) return err_set(err, ERR_MEMORY, "no memory for the memory plan");
    int result = -1;
    if (need_model(c, job, err) == 0 && need_device(c, job, err) == 0)
        result = plan_ranks(job, pipeline, c, ranks, err);
    if (!cache) plan_memory_own_close(c);
    return result;
}
