// One step of a run and what is reported about it. See run_parts.h.
#include "base/clock.h"
#include "base/log.h"
#include "base/numbers.h"
#include "base/random.h"
#include "observe/resident.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static uint64_t peak_resident_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

static void fill_metrics(struct run *run, const struct engine_step *step, double seconds,
                         struct metrics_step *m) {
    struct loader_counts now;
    double cpu = clock_process_cpu_seconds();
    loader_counts(run->loader, &now);
    *m = (struct metrics_step){
        .step = run->step,
        .samples = run->samples,
        .processed = step->processed,
        .non_pad = step->non_pad,
        .supervised = step->counted,
        .total_tokens = run->tokens,
        .loss = step->loss,
        .gradient_norm = step->gradient_norm,
        .clip_factor = step->clip_factor,
        .learning_rate = step->learning_rate,
        .skipped = step->skipped,
        .seconds = seconds,
        .data_wait_seconds = now.wait_seconds - run->counts.wait_seconds,
        .shard_opens = now.shard_opens - run->counts.shard_opens,
        .shard_reads = now.shard_reads - run->counts.shard_reads,
        .open_seconds = now.open_seconds - run->counts.open_seconds,
        .read_seconds = now.read_seconds - run->counts.read_seconds,
        .cores_busy = (cpu - run->cpu_seconds) / (seconds * run->device.threads),
        .resident_bytes = peak_resident_bytes(),
        .has_experts = run->config->model.experts > 0,
        .expert_balance = step->expert_balance,
        .expert_max_load = step->expert_max_load,
        .dropped = step->dropped,
    };
    struct mfu_step figures = {.processed = step->processed,
                               .attended_pairs = step->attended_pairs,
                               .seconds = seconds,
                               .gemm_rate = run->gemm_rate,
                               .recomputed_flops = run->recomputed_flops};
    m->mfu = mfu_of_step(&run->config->model, run->config->context, &figures);
    for (int kind = 0; kind < RECORD_KIND_COUNT; kind++) {
        m->phase[kind] = run->lane.seconds[kind] - run->phase[kind];
        run->phase[kind] = run->lane.seconds[kind];
    }
    run->counts = now;
}

static void put_scalars(struct run *run, int64_t step, const struct tensorboard_scalar *scalars,
                        size_t count) {
    struct err err = {0};
    if (!run->has_tensorboard ||
        tensorboard_put(&run->tensorboard, clock_wall_seconds(), step, scalars, count, &err) == 0)
        return;
    log_line(LOG_WARN, "TensorBoard events end here: %s", err.text);
    tensorboard_close(&run->tensorboard);
    run->has_tensorboard = false;
}

static void put_tensorboard(struct run *run, const struct metrics_step *m) {
    double norm_mean, norm_deviation;
    spike_norm_window(&run->guard.spike, &norm_mean, &norm_deviation);
    struct tensorboard_scalar scalars[] = {
        {"train/loss", m->loss},
        {"train/gradient_norm", m->gradient_norm},
        {"train/learning_rate", m->learning_rate},
        {"guard/loss_average", run->guard.spike.average},
        {"guard/norm_mean", norm_mean},
        {"guard/norm_deviation", norm_deviation},
        {"speed/tokens_per_second", m->mfu.tokens_per_second},
        {"speed/step_seconds", m->seconds},
        {"speed/data_wait_seconds", m->data_wait_seconds},
        {"speed/cores_busy", m->cores_busy},
        {"speed/mfu", m->mfu.full},
        {"speed/mfu_causal", m->mfu.causal},
    };
    size_t count = sizeof scalars / sizeof scalars[0] - (run->gemm_rate > 0 ? 0 : 2);
    put_scalars(run, m->step, scalars, count);
    struct tensorboard_scalar experts[] = {{"experts/balance", m->expert_balance},
                                           {"experts/max_load", m->expert_max_load},
                                           {"experts/dropped", (double)m->dropped}};
    if (m->has_experts) put_scalars(run, m->step, experts, sizeof experts / sizeof experts[0]);
}

static void say_step(struct run *run, const struct metrics_step *m) {
    char left[32], speed[32], memory[32], mfu[64] = "";
    int64_t last = run->config->stop_at ? run->config->stop_at : run->config->steps;
    text_duration((double)(last - run->step) * run->step_seconds, left);
    text_count((int64_t)llround(m->mfu.tokens_per_second), speed);
    text_bytes(m->resident_bytes, memory);
    if (run->gemm_rate > 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f %% (causal %.1f %%)", 100 * m->mfu.full,
                 100 * m->mfu.causal);
    log_line(LOG_INFO,
             "step %lld/%lld  loss %.4f  grad norm %.3g  lr %.3g  %s tok/s%s  %s left  %s",
             (long long)run->step, (long long)last, m->loss, m->gradient_norm, m->learning_rate,
             speed, mfu, left, memory);
}

// Once, behind the second step: nothing is taken later than that.
static void say_memory(const struct run *run) {
    char planned[32], allocated[32], resident[32], line[RUN_PLAN_TEXT];
    uint64_t held = resident_pss_bytes();
    log_line(LOG_INFO,
             "memory after step %lld: planned %s (%s), allocated %s, resident %s with the program "
             "and its libraries",
             (long long)run->step, text_bytes(run->result->planned_bytes, planned),
             run_plan_text(engine_memory(run->engine), line),
             text_bytes(run->result->allocated_bytes, allocated),
             held > 0 ? text_bytes(held, resident) : "unknown");
}

// Once, behind the first step, so that it delays no start.
static void measure_gemm(struct run *run) {
    if (run->gemm_rate > 0 || run->config->gemm_seconds <= 0) return;
    bool bf16_run = run->config->precision == PRECISION_BF16;
    run->own_peak_bytes = resident_peak_pss_bytes(); // what it takes is not the run's
    double own = device_gemm_rate(&run->device, bf16_run ? DTYPE_BF16 : DTYPE_F32,
                                  run->config->gemm_seconds);
    run->gemm_peak_bytes = resident_peak_pss_bytes();
    malloc_trim(0); // freed, but still the process's
    run->gemm_rate = run_sum(run, own);
    log_line(LOG_INFO,
             "best GEMM rate: %.1f GFLOP/s in %s%s; mfu is the share of it that the model's "
             "operations reach (full attention counted; causal: attended pairs only)",
             run->gemm_rate / 1e9, bf16_run ? "bf16" : "fp32",
             run->world ? ", of all ranks together" : "");
}

// The first two steps are for warming up, unless there are no others.
static void keep_step_time(struct run *run, const struct metrics_step *m) {
    if (run->steps_here == RUN_WARM_UP) run->tokens_here = run->exposed_here = 0;
    run->step_times[run->steps_here++ % RUN_STEP_TIMES] = m->seconds;
    run->tokens_here += (double)m->processed;
    run->exposed_here += m->phase[RECORD_COMM_WAIT];
}

void run_settle_step_times(struct run *run) {
    double *t = run->step_times;
    int64_t warm_up = run->steps_here > RUN_WARM_UP ? RUN_WARM_UP : 0;
    int64_t steps = run->steps_here - warm_up;
    if (steps < 1) return;
    if (run->steps_here <= RUN_STEP_TIMES) t += warm_up; // else they are overwritten
    int64_t kept = steps < RUN_STEP_TIMES ? steps : RUN_STEP_TIMES;
    if (run->steps_here > RUN_STEP_TIMES) kept = RUN_STEP_TIMES;
    run->result->step_seconds = numbers_median(t, (size_t)kept);
    run->result->step_tokens = run->tokens_here / (double)steps;
    run->result->step_exposed_seconds = run->exposed_here / (double)steps;
}

int run_one_step(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    int batch = schedule_batch(&run->schedule, run->samples);
    if (run_passes_over(run, run->step + 1)) {
        run_pass_over(run, batch);
        return 0;
    }
    run_phase(run, BEAT_STEP, run->step + 1);
    if (batch != run->loader_batch && run_open_loader(run, batch, err) != 0) return -1;
    run->cpu_seconds = clock_process_cpu_seconds();
    // What was waited for since the step before (an evaluation, a save) is not of this one.
    run->phase[RECORD_COMM_WAIT] = run->lane.seconds[RECORD_COMM_WAIT];
    double begin = clock_seconds();
    struct batch *const *batches;
    if (loader_step(run->loader, (uint64_t)run->samples, &batches, err) != 0) return -1;
    struct engine_step step = {
        .learning_rate = schedule_rate(&run->schedule, run->step + 1, run->samples + batch),
        .clip_norm = c->clip,
        .update = run->updates + 1,
        .dropout_seed = random_key((uint64_t)c->seed, "dropout") + (uint64_t)run->step};
    int count = batch / c->micro_batch / run->layout.mesh.size[MESH_DP];
    run_fault_step(run);
    int went_back = run_guard_step(run, batches, count, &step, err);
    if (went_back != 0) return went_back;
    double seconds = clock_seconds() - begin;
    run->step++;
    run->samples += batch;
    run->tokens += step.processed;
    run->updates += !step.skipped;
    run->result->step = run->step;
    run->result->loss = step.loss;
    run->step_seconds = run->step_seconds > 0 ? 0.9 * run->step_seconds + 0.1 * seconds : seconds;

    struct metrics_step m;
    fill_metrics(run, &step, seconds, &m);
    run_fault_computed(run, seconds - m.phase[RECORD_COMM_WAIT]);
    run->result->peak_resident_bytes = m.resident_bytes;
    if (run->control)
        heartbeat_step(run->control->heartbeat, run->step, seconds,
                       seconds - m.phase[RECORD_COMM_WAIT]);
    keep_step_time(run, &m);
    metrics_put_step(&run->metrics, &m);
    put_tensorboard(run, &m);
    bool first = run->step == run->result->resumed_from + 1;
    int64_t last = c->stop_at ? c->stop_at : c->steps;
    if (first || run->step % c->log_every == 0 || run->step == last) say_step(run, &m);
    if (first) measure_gemm(run);
    if (run->step == run->result->resumed_from + 2) say_memory(run);
    if (step.counted == 0)
        log_line(LOG_WARN, "step %lld has no token to learn from; nothing changed",
                 (long long)run->step);
    return 0;
}
