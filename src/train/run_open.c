// Opening a run: folder, device, engine with all memory, data, journals. See run_parts.h.
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/lock.h"
#include "base/log.h"
#include "checkpoint/hf_folder.h"
#include "memory/memory.h"
#include "model/flops.h"
#include "observe/trace.h"
#include "train/config_table.h"
#include "train/parallel.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include "train/world.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READER_TRACE_SPANS = 1 << 16 };
static const double LOCK_SECONDS = 120; // longer than the lease of a lock on NFS

static int write_file(struct run *run, const char *name, const char *text, size_t bytes,
                      struct err *err) {
    char path[4096];
    if (file_join(path, sizeof path, run->config->folder, name, err) != 0) return -1;
    return file_replace(path, text, bytes, err);
}

static bool is_to_go_on(const void *context) {
    const struct run_control *control = context;
    return !(control->stop && *control->stop) && !(control->preempted && *control->preempted) &&
           !heartbeat_wants_leave(control->heartbeat);
}

// A former rank of this run may hold it: its host was lost, and the server of files does not know
// yet; or it stands in a write to a disk that does not answer, where no signal ends it.
static int wait_for_lock(struct run *run, struct err *err) {
    const struct run_control *control = run->control;
    log_line(LOG_WARN,
             "%s: another process still holds the lock of this folder; waiting for it, %.0f s at "
             "most",
             run->config->folder, LOCK_SECONDS);
    run_busy(run, "waits for the lock of its folder");
    int taken = lock_take(run->lock, LOCK_SECONDS, is_to_go_on, control);
    run_busy(run, NULL);
    if (taken > 0) return 0;
    if (taken < 0) return err_set_errno(err, "%s: its lock cannot be taken", run->config->folder);
    if (control->stop && *control->stop)
        return err_set(err, ERR_INTERRUPT, "interrupted before the first step");
    return err_set(err, ERR_RETRY,
                   "%s: another process still trains in this folder, or a file server holds its "
                   "lock for a host that is gone; end it, or choose another train.folder",
                   run->config->folder);
}

// Two processes in one folder would write over each other.
static int take_lock(struct run *run, struct err *err) {
    char path[4096];
    bool supervised = run->control && run->control->heartbeat;
    if (file_join(path, sizeof path, run->config->folder, "lock", err) != 0) return -1;
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->lock < 0)
        return err_set_errno(err, "%s: the run folder cannot be written", run->config->folder);
    int taken = lock_take(run->lock, 0, NULL, NULL);
    if (taken > 0) return 0;
    if (taken == 0 && supervised) return wait_for_lock(run, err);
    if (taken < 0) return err_set_errno(err, "%s: cannot be locked", path);
    return err_set(err, ERR_USAGE,
                   "%s: another process trains in this folder; wait for it or choose another "
                   "train.folder",
                   run->config->folder);
}

static int copy_tokenizer(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    if (!c->tokenizer[0]) return 0;
    if (file_is_folder(c->tokenizer))
        return hf_folder_copy_tokenizer(c->tokenizer, c->folder, err) < 0 ? -1 : 0;
    char *text;
    size_t bytes;
    const char *slash = strrchr(c->tokenizer, '/');
    if (file_read(c->tokenizer, 0, &text, &bytes, err) != 0) return -1;
    int result = write_file(run, slash ? slash + 1 : c->tokenizer, text, bytes, err);
    free(text);
    return result;
}

static int keep_journal(struct run *run, struct err *err) {
    char path[4096];
    if (!run->world) return 0;
    if (file_join(path, sizeof path, run->config->folder, "journals", err) != 0) return -1;
    return comm_keep_journal(run->comm, path, err);
}

static int open_folder(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    if (config_print(c, false, &run->config_text) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the configuration");
    if (keep_journal(run, err) != 0) return -1;
    if (!run_leads(run)) return 0;
    if (file_make_folders(c->folder, err) != 0)
        return err_context(err, "train.folder cannot be made");
    return take_lock(run, err) != 0 ? -1 : copy_tokenizer(run, err);
}

static void say_model(const struct run *run, const struct engine_options *options) {
    char parameters[32];
    const struct train_config *c = run->config;
    text_count(flops_all_params(&c->model), parameters);
    log_line(LOG_INFO, "model: %s, %s parameters, %d layers, hidden %d, vocabulary %d",
             c->model.family == FAMILY_GPT2 ? "gpt2" : "llama", parameters, c->model.layers,
             c->model.hidden, c->model.vocab);
    log_line(LOG_INFO, "device: %s; %s; %d x %d tokens in a micro-batch, %d of them in a step%s",
             run->device.name, options->compute == DTYPE_BF16 ? "bf16" : "fp32", options->rows,
             options->context, options->micro_batches,
             c->replicas > 1 ? " on each data-parallel rank" : "");
    double per_token = flops_per_token_full(&c->model, c->context);
    char mode[64];
    config_choice(&config_options[CONFIG_OPTION(recompute)], (int)c->recompute, mode);
    log_line(LOG_INFO, "recompute: %s (again: %s), adds %.1f %% to the operations of a step", mode,
             engine_recompute_text(c->recompute), 100 * run->recomputed_flops / per_token);
}

const char *run_plan_text(const struct memory_plan *plan, char line[RUN_PLAN_TEXT]) {
    char part[32];
    line[0] = 0;
    for (int kind = 0; kind < BUFFER_KIND_COUNT; kind++) {
        uint64_t bytes = memory_plan_kind_bytes(plan, kind);
        if (bytes > 0)
            snprintf(line + strlen(line), RUN_PLAN_TEXT - strlen(line), "%s%s %s",
                     line[0] ? ", " : "", buffer_kind_name(kind), text_bytes(bytes, part));
    }
    return line;
}

// Before anything is taken, so that a shortage stands beside what was planned.
static int say_plan(struct run *run, const struct engine_options *options, struct err *err) {
    struct memory_plan plan = {0};
    char total[32], line[RUN_PLAN_TEXT];
    if (engine_plan(&plan, &run->model, &run->device, options, err) != 0) {
        memory_plan_free(&plan);
        return -1;
    }
    log_line(LOG_INFO, "memory: %s planned%s (%s)", text_bytes(plan.total_bytes, total),
             run->world ? " on rank 0" : "", run_plan_text(&plan, line));
    memory_plan_free(&plan);
    return 0;
}

// This rank's share of the samples: ranks that differ in dp alone read different ones.
static int loader_for(struct run *run, bool validation, int batch, struct loader_options *out,
                      struct err *err) {
    struct config_paths *paths = validation ? &run->validation_paths : &run->paths;
    int at[MESH_AXES];
    if (config_loader(run->config, validation, batch, paths, out, err) != 0) return -1;
    mesh_at(&run->layout.mesh, run->rank, at);
    out->rank = at[MESH_DP];
    out->ranks = run->layout.mesh.size[MESH_DP];
    return 0;
}

// What a rank finds out by itself, before it speaks with the others again.
static int describe_engine(struct run *run, struct engine_options *options, uint64_t *loader_part,
                           struct err *err) {
    const struct train_config *c = run->config;
    struct device_cpu_options device_options;
    config_device(c, &device_options);
    config_engine(c, options);
    if (record_lane_open(&run->lane, "compute", c->trace[0] ? RUN_TRACE_SPANS : 0) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the trace");
    device_options.lane = &run->lane;
    if (model_describe(&run->model, &c->model, err) != 0 ||
        device_cpu_open(&run->device, &device_options, err) != 0 ||
        config_loader_bytes(c, loader_part, &options->other_bytes, err) != 0 ||
        parallel_describe(c, run->comm, &run->layout, &run->schedule_csv, &run->parallel, err) != 0)
        return -1;
    options->parallel = &run->parallel;
    run->recomputed_flops = engine_recompute_flops(&c->model, c->recompute, c->context);
    return 0;
}

static int open_engine(struct run *run, struct err *err) {
    struct engine_options options = {0};
    uint64_t loader_part = 0;
    if (run_agree(run, describe_engine(run, &options, &loader_part, err), err) != 0) return -1;
    run_say_world(run);
    if (run->world)
        world_warn(run->comm, run->world, &run->layout.mesh,
                   run->control ? run->control->launch : NULL, run->device.threads);
    say_model(run, &options);
    if (run_saves_open(run, &options, err) != 0) return -1;
    if (run_agree(run, say_plan(run, &options, err), err) != 0) return -1;
    run->engine = engine_open(&run->model, &run->device, &options, err);
    if (run_agree(run, run->engine ? 0 : -1, err) != 0) return -1;
    run->loader_memory = engine_other_memory(run->engine);
    run->validation_memory = run->loader_memory + loader_part;
    run->result->planned_bytes = engine_memory(run->engine)->total_bytes;
    // the copies of another host's snapshots are taken by this host's agent
    run->result->allocated_bytes =
        engine_allocated_bytes(run->engine) +
        memory_plan_kind_bytes(engine_memory(run->engine), BUFFER_SNAPSHOT);
    if (run_agree(run, run_saves_attach(run, err), err) != 0) return -1;
    char allocated[32];
    run_say_streams(run);
    log_line(LOG_INFO, "memory: %s allocated and touched",
             text_bytes(run->result->allocated_bytes, allocated));
    return 0;
}

int run_open_loader(struct run *run, int batch, struct err *err) {
    struct loader_options options;
    if (run->loader) loader_close(run->loader);
    run->loader = NULL;
    memset(&run->counts, 0, sizeof run->counts);
    if (loader_for(run, false, batch, &options, err) != 0) return -1;
    options.lane = &run->lane;
    options.trace_spans = run->config->trace[0] ? READER_TRACE_SPANS : 0;
    run->loader = loader_open(&options, run->loader_memory, err);
    run->loader_batch = batch;
    return run->loader ? 0 : err_context(err, "data.train");
}

static int open_validation(struct run *run, struct err *err) {
    struct loader_options options;
    if (!run->config->validation_sets[0]) return 0;
    if (loader_for(run, true, run->config->batch, &options, err) != 0) return -1;
    run->validation = loader_open(&options, run->validation_memory, err);
    return run->validation ? 0 : err_context(err, "data.validation");
}

static void say_data(const struct run *run) {
    char tokens[32], samples[32], hash[17];
    uint64_t drawn = (uint64_t)schedule_samples(&run->schedule, run->schedule.steps);
    hash_text(loader_digest(run->loader), hash);
    text_count((int64_t)loader_tokens(run->loader), tokens);
    text_count((int64_t)loader_samples_per_epoch(run->loader), samples);
    log_line(LOG_INFO, "data: %s tokens, %s samples, %.2f epochs in %lld steps, order %s", tokens,
             samples, (double)drawn / (double)loader_samples_per_epoch(run->loader),
             (long long)run->schedule.steps, hash);
}

// An unwritable place is better known now than after the last step, when the trace is written.
static int try_trace(const struct run *run, struct err *err) {
    struct file_writer file;
    char path[4096];
    if (!run->config->trace[0]) return 0;
    snprintf(path, sizeof path, "%s", run->config->trace);
    if (run->world && trace_rank_path(path, sizeof path, run->config->trace, run->rank, err) != 0)
        return err_context(err, "train.trace");
    if (file_writer_open(&file, path, err) != 0 || file_writer_close(&file, false, err) != 0)
        return err_context(err, "train.trace");
    return 0;
}

static int open_journals(struct run *run, struct err *err) {
    char path[4096];
    const struct train_config *c = run->config;
    if (try_trace(run, err) != 0) return -1;
    if (!run_leads(run)) return 0;
    if (file_join(path, sizeof path, c->folder, "metrics.jsonl", err) != 0 ||
        run_open_journal(run, path, err) != 0)
        return -1;
    if (write_file(run, "config.yaml", run->config_text.data, run->config_text.size, err) != 0)
        return -1;
    // As with the trace: a run that cannot save is better refused than lost.
    if (file_make_folders(c->checkpoint_folder, err) != 0)
        return err_context(err, "checkpoint.folder cannot be made");
    if (c->tensorboard) {
        double now = clock_wall_seconds();
        if (tensorboard_open(&run->tensorboard, c->folder, now, err) != 0) return -1;
        run->has_tensorboard = true;
        if (run->step > 0 && tensorboard_resume(&run->tensorboard, now, run->step + 1, err) != 0)
            return -1;
    }
    metrics_put_event(&run->metrics, "start", run->step,
                      "\"planned_bytes\":%llu,\"allocated_bytes\":%llu",
                      (unsigned long long)run->result->planned_bytes,
                      (unsigned long long)run->result->allocated_bytes);
    return 0;
}

static int open_parts(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    if (run_agree(run, open_folder(run, err), err) != 0 || open_engine(run, err) != 0) return -1;
    run->sample_ids = malloc(sizeof *run->sample_ids * (size_t)c->batch);
    int status = run->sample_ids ? 0 : err_set(err, ERR_MEMORY, "no memory for sample ids");
    return run_agree(run, status, err);
}

static int open_data(struct run *run, struct err *err) {
    if (run_open_loader(run, schedule_batch(&run->schedule, run->samples), err) != 0 ||
        open_validation(run, err) != 0)
        return -1;
    say_data(run);
    return open_journals(run, err);
}

// Ranks with private caches or other files would learn from other samples than they count, or wait
// for each other in evaluations of different length.
static int compare_order(struct run *run, const struct loader *loader, const char *key,
                         struct err *err) {
    if (!run->world || !loader) return 0;
    int64_t own = (int64_t)(loader_digest(loader) >> 1), most = run_most(run, own);
    int64_t other = own != most ? run->rank : -1;
    other = run_most(run, other);
    if (other < 0) return 0;
    return err_set(err, ERR_DATA,
                   "rank %lld (%s) reads other samples than the rest: its files of %s, or their "
                   "order, differ; give all ranks the same shards",
                   (long long)other, comm_host(run->comm, (int)other), key);
}

// The rank's own part of a checkpoint goes into the folder that rank 0 has made.
static int try_folder(const struct run *run, const char *token, struct err *err) {
    char path[4096], name[96];
    const char *folder = run->config->checkpoint_folder;
    if (file_join(path, sizeof path, folder, token, err) != 0) return -1;
    if (!file_exists(path))
        return err_set(err, ERR_USAGE,
                       "checkpoint.folder: rank %d (%s) does not see in %s what rank 0 (%s) has "
                       "just written there; all ranks need one folder",
                       run->rank, comm_host(run->comm, run->rank), folder, comm_host(run->comm, 0));
    snprintf(name, sizeof name, "%s-%d", token, run->rank);
    if (file_join(path, sizeof path, folder, name, err) != 0 || file_replace(path, "", 0, err) != 0)
        return err_context(err, "checkpoint.folder: rank %d (%s)", run->rank,
                           comm_host(run->comm, run->rank));
    unlink(path);
    return 0;
}

// Better known now than after the first steps, at the first checkpoint.
static int share_folder(struct run *run, struct err *err) {
    char token[64], path[4096];
    int status = 0;
    if (!run->world) return 0;
    // A name that nobody has looked for yet, so that no cache knows it as absent.
    int64_t now = run_most(run, run_leads(run) ? (int64_t)(clock_wall_seconds() * 1e6) : 0);
    snprintf(token, sizeof token, "try-%lld", (long long)now);
    if (run_leads(run))
        status = file_join(path, sizeof path, run->config->checkpoint_folder, token, err) != 0
                     ? -1
                     : file_replace(path, "", 0, err);
    if (run_agree(run, status, err) != 0) return -1;
    status = run_agree(run, run_leads(run) ? 0 : try_folder(run, token, err), err);
    if (run_leads(run)) unlink(path);
    return status;
}

int run_open(struct run *run, struct err *err) {
    run->saved_step = -1;
    config_schedule(run->config, &run->schedule);
    if (run_fault_open(run, err) != 0 || open_parts(run, err) != 0 ||
        run_agree(run, run_guard_open(run, err), err) != 0)
        return -1;
    run_busy(run, "loads its weights");
    run_phase(run, BEAT_LOAD, 0);
    int status = run_restore(run, err);
    run_phase(run, BEAT_START, run->step);
    run_busy(run, NULL);
    if (run_agree(run, status, err) != 0) return -1;
    // Copies of shards into data.cache may take one host longer than the watchdog lets others wait.
    run_busy(run, "opens data.train");
    status = open_data(run, err);
    run_busy(run, NULL);
    if (run_agree(run, status, err) != 0) return -1;
    if (compare_order(run, run->loader, "data.train", err) != 0 ||
        compare_order(run, run->validation, "data.validation", err) != 0)
        return -1;
    run_busy(run, "tries its checkpoint folder");
    status = share_folder(run, err);
    run_busy(run, NULL);
    return status;
}

void run_close(struct run *run) {
    run_fault_close(run);
    run_guard_close(run);
    metrics_close(&run->metrics);
    if (run->has_tensorboard) tensorboard_close(&run->tensorboard);
    if (run->loader) loader_close(run->loader);
    if (run->validation) loader_close(run->validation);
    run_saves_close(run);
    if (!run_is_broken(run)) { // else the memory stays until the process ends
        if (run->engine) engine_close(run->engine);
        if (run->device.close) run->device.close(&run->device);
    }
    model_free(&run->model);
    record_lane_close(&run->lane);
    text_free(&run->config_text);
    free(run->sample_ids);
    free(run->schedule_csv);
    if (run->lock >= 0) close(run->lock);
}
