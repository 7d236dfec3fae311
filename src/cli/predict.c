// See predict.h.
#include "cli/predict.h"
#include "base/file.h"
#include "hardware/stack.h"
#include <stdlib.h>
#include <string.h>

// Where ranks keep all cores busy, whoever carries a message takes the core from whoever computes.
static bool messages_hide(const struct cluster *measured, int ranks, int threads) {
    return measured->cores > ranks * threads;
}

// Ranks of a pipeline that have more threads than there are cores take turns: who waits leaves the
// core to the others. 0: there are cores for all.
static double shared_processors(const struct cluster *measured, const struct layout *layout,
                                int ranks, int threads) {
    int pipelines = ranks / layout->mesh.size[MESH_PP];
    if (measured->cores == 0 || ranks * threads <= measured->cores || pipelines == ranks) return 0;
    return (double)measured->cores / threads / pipelines;
}

int predict_job(struct train_config *c, struct prediction *p, struct err *err) {
    struct engine_options engine;
    struct engine_parallel parallel;
    size_t bytes;
    struct job *job = &p->job;
    job_defaults(job);
    if (config_layout(c, p->ranks, &job->layout, err) != 0) return -1;
    job->processors = shared_processors(&p->file.cluster, &job->layout, p->ranks, p->threads);
    if (job->processors > 0) machine_share(&p->machine);
    if (c->pipeline == PIPELINE_FILE &&
        file_read(c->pipeline_file, 0, &p->schedule_csv, &bytes, err) != 0)
        return err_context(err, "pipeline.file");
    config_engine(c, &engine);
    config_parallel(c, &parallel);
    job->model = c->model;
    job->cluster = p->machine.cluster;
    job->stack = catalogue_stack(p->file.catalogue, "weft", err);
    job->schedule = parallel.schedule;
    job->schedule_csv = p->schedule_csv;
    job->rows = engine.rows;
    job->context = engine.context;
    job->micro_batches = config_micro_batches(c);
    job->recompute = engine.recompute;
    job->precision = engine.compute == DTYPE_BF16 ? HARDWARE_BF16 : HARDWARE_FP32;
    job->reduce_per_micro_batch = parallel.reduce_per_micro_batch;
    job->gather_keys = parallel.gather_keys;
    job->no_overlap = !messages_hide(&p->file.cluster, p->ranks, p->threads);
    job->bucket_bytes = parallel.bucket_bytes;
    job->gather_type = parallel.gather_type;
    job->reduce_type = parallel.reduce_type;
    job->accumulate_type = parallel.accumulate_type;
    job->split_backward_own = engine.split_backward;
    job->dropout = engine.dropout;
    job->seals_optimizer = engine.guards.optimizer;
    job->seals_gradients = engine.guards.gradients;
    job->seals_weights = engine.guards.weights_every > 0;
    job->seals_products = engine.guards.products_every > 0;
    job->threads = p->threads;
    job->snapshots = engine.snapshots;
    job->gathers_in_flight = parallel.gathers_in_flight;
    job->expert_wave = engine.experts.wave;
    uint64_t training;
    if (config_loader_bytes(c, &training, &job->other_bytes, err) != 0) return -1;
    return job->stack ? 0 : -1;
}

int predict(struct train_config *config, int ranks, int threads, const char *hardware,
            struct prediction *p, struct err *err) {
    *p = (struct prediction){.ranks = ranks, .threads = threads};
    if (machine_file_open(&p->file, hardware, err) != 0) return -1;
    if (!p->file.found) {
        predict_close(p);
        return 1;
    }
    if (machine_select(&p->file.cluster, ranks, threads, &p->machine, err) != 0 ||
        predict_job(config, p, err) != 0 || estimate_step(&p->job, false, &p->estimate, err) != 0) {
        predict_close(p);
        return -1;
    }
    return 0;
}

void predict_close(struct prediction *p) {
    estimate_free(&p->estimate);
    machine_free(&p->machine);
    machine_file_close(&p->file);
    free(p->schedule_csv);
    *p = (struct prediction){0};
}

double predict_exposed(const struct estimate *e) {
    return e->exposed_reduce + e->exposed_gather + e->exposed_pipeline + e->exposed_tensor +
           e->exposed_expert + e->exposed_context;
}
