// The order of things in a run, see run.h.
#include "train/run.h"
#include "base/clock.h"
#include "base/log.h"
#include "observe/resident.h"
#include "train/run_parts.h"
#include "train/world.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A save that fails costs nothing but itself; without messages between ranks there is no next step.
static int try_to_save(struct run *run, struct err *err) {
    struct err own = {0};
    run_phase(run, BEAT_SAVE, run->step);
    if (run->saves.snapshot) return run_save_behind(run, err);
    double begin = clock_seconds();
    if (run_save(run, &own) == 0) return 0;
    if (run_is_broken(run)) {
        *err = own;
        return -1;
    }
    run_forget_failure(run);
    run_tell_failed(run, run->step, &own, clock_seconds() - begin);
    return 0;
}

// Behind those that are still under way. Who is asked to leave has no time for a second folder.
static int last_save(struct run *run, struct err *err) {
    run_phase(run, BEAT_SAVE, run->step);
    if (run->stopped && run->saves.second) run_saves_skip_copies(run);
    if (run_saves_finish(run, false, err) != 0) return -1;
    if (run->saves.durable_step == run->step) return 0;
    double begin = clock_seconds();
    if (run_agree(run, run_save(run, err), err) == 0)
        return run->stopped ? 0 : run_saves_finish(run, false, err); // the second folder
    run_report_failed(run, run->step, err, clock_seconds() - begin);
    return err_context(err, "the state of step %lld could not be saved", (long long)run->step);
}

// 1: into memory; 0: onto disk.
static int leaving_save(struct run *run, struct err *err) {
    bool restarts = run->signals[SIGNAL_LEAVE] == BEAT_LEAVES_FOR_A_RESTART;
    run_phase(run, BEAT_SAVE, run->step);
    int saved = restarts && !run->signals[SIGNAL_STOP] ? run_save_to_memory(run, err) : 0;
    return saved == 0 ? last_save(run, err) : saved;
}

// The user's own signal, or one that asks to make room for a while.
static int interrupted(struct run *run, struct err *err) {
    bool stop = run->signals[SIGNAL_STOP];
    enum err_kind kind = stop ? ERR_INTERRUPT : ERR_RETRY;
    const char *what = stop ? "interrupted" : "asked to leave";
    int in_memory = run->step > 0 ? leaving_save(run, err) : 0;
    if (in_memory < 0) return -1;
    run->left = true;
    run->result->silent = run->world && !run_leads(run); // of what all know, one speaks
    if (run->step == 0)
        return err_set(err, kind, "%s before the first step; nothing to save", what);
    return err_set(err, kind,
                   "%s after step %lld, which is %s; the same command goes on from there", what,
                   (long long)run->step, in_memory ? "in memory" : "saved");
}

static int walk(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    int64_t last = c->stop_at ? c->stop_at : c->steps;
    if (run->step >= last)
        log_line(LOG_INFO, "nothing to do: step %lld of %lld is done already", (long long)run->step,
                 (long long)last);
    bool worked = run->step < last;
    run_look_at_signals(run);
    while (run->step < last && !run->stopped) {
        int went_back = run_one_step(run, err);
        if (went_back < 0) return -1;
        run_look_at_signals(run);
        if (run_saves_settle(run, err) != 0) return -1;
        if (went_back == 0) went_back = run_guard_settle(run, err);
        if (went_back < 0) return -1;
        if (run->stopped) break;
        if (went_back > 0) continue;
        bool ends = run->step == last;
        bool evaluates = (c->eval_every > 0 && run->step % c->eval_every == 0) ||
                         (run->step == c->steps && c->eval_at_end);
        if (run->validation && evaluates) {
            run_phase(run, BEAT_EVALUATE, run->step);
            if (run_evaluate(run, err) != 0) return -1;
        }
        if (!ends && run_save_is_due(run) && try_to_save(run, err) != 0) return -1;
    }
    if (run->stopped) return interrupted(run, err);
    // A state that another process has left in memory alone is not on disk yet.
    bool owes = worked || (run->step > 0 && run->saves.durable_step != run->step);
    if (owes && c->checkpoint_at_end) return last_save(run, err);
    return run_saves_finish(run, false, err);
}

// The ratio says something only where the plan outweighs the program itself and its libraries.
static void say_end(const struct run *run) {
    enum { LEAST_BYTES = 256000000 };
    char planned[32], peak[32], ratio[32] = "";
    uint64_t plan = run->result->planned_bytes, most = run->result->peak_resident_bytes;
    if (plan >= LEAST_BYTES)
        snprintf(ratio, sizeof ratio, " (%.3f of planned)", (double)most / (double)plan);
    log_line(LOG_INFO, "memory: planned %s, peak resident of the whole process %s%s",
             text_bytes(plan, planned), text_bytes(most, peak), ratio);
}

// All ranks have come together; what fails before the first step fails on all of them.
static int start(struct run *run, struct err *err) {
    int status = config_check_run(run->config, err);
    if (status == 0) status = config_layout(run->config, run->ranks, &run->layout, err);
    if (run_agree(run, status, err) != 0) return -1;
    if (run->world && world_check(run->comm, run->world, run->config, err) != 0) {
        run->result->silent = !run_leads(run);
        return -1;
    }
    if (run->control) { // ranks of one stage have the same work, so they are compared
        int at[MESH_AXES];
        mesh_at(&run->layout.mesh, run->rank, at);
        heartbeat_stage(run->control->heartbeat, at[MESH_PP]);
    }
    return run_agree(run, run_open(run, err), err);
}

// Of the run alone: measuring the GEMM rate may have taken more than anything of its own.
static uint64_t own_peak(const struct run *run) {
    uint64_t peak = resident_peak_pss_bytes(), now = resident_pss_bytes();
    uint64_t most = run->gemm_peak_bytes + run->gemm_peak_bytes / 100; // the system counts in steps
    if (run->gemm_peak_bytes == 0 || peak > most) return peak;
    return run->own_peak_bytes > now ? run->own_peak_bytes : now;
}

static int carry_out(struct run *run, struct err *err) {
    run->result->base_pss_bytes = resident_pss_bytes();
    if (start(run, err) != 0) return -1;
    run->result->step = run->step;
    run->result->start_seconds = clock_since_exec_seconds();
    log_line(LOG_INFO, "start-up: %.2f s from exec to the first step", run->result->start_seconds);
    int status = walk(run, err);
    if (status != 0 && !run->left) run_fail(run, err);
    if (status == 0 || run->left) run_saves_forget(run);
    run_phase(run, BEAT_END, run->step);
    run_settle_step_times(run);
    run->result->peak_pss_bytes = own_peak(run);
    if (run->result->peak_resident_bytes > 0) say_end(run);
    if (status == 0) run_say_messages(run);
    if (run->config->trace[0]) run_write_trace(run);
    return status;
}

int train_run(struct train_config *config, const struct run_control *control,
              struct run_result *result, struct err *err) {
    struct run *run = calloc(1, sizeof *run);
    if (!run) return err_set(err, ERR_MEMORY, "no memory for the run");
    *result = (struct run_result){.loss = NAN, .validation_loss = NAN};
    run->config = config;
    run->control = control;
    run->result = result;
    run->lock = -1;
    int status = run_join(run, err);
    if (status == 0) {
        if (!run_leads(run) && run->owns_comm) log_to(NULL, NULL, LOG_NONE);
        status = carry_out(run, err);
    }
    run_close(run);
    run_leave(run);
    free(run);
    return status;
}
