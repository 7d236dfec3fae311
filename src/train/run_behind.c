// Snapshots of a run, and saves that are written behind it. See run_save.h.
#include "base/clock.h"
#include "base/log.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double day_seconds = 86400;
enum { FIRST_STEPS = 20 }; // of checkpoint.interval=auto, when nothing is known yet

// ---- opening

// Rank 0 knows the run's folder; all use its name for the run.
static int agree_on_run(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    int status = 0;
    if (run_leads(run)) {
        s->session = snapshot_new_session();
        status = snapshot_run_id(run->config->folder, s->id, err);
    }
    if (run_agree(run, status, err) != 0) return -1;
    if (run->world) {
        comm_wait(comm_broadcast(run->world, 0, s->id, sizeof s->id), NULL);
        comm_wait(comm_broadcast(run->world, 0, &s->session, sizeof s->session), NULL);
        if (comm_check(run->comm, err) != 0) return -1;
    }
    return snapshot_run_folder(run->config->snapshot_folder, s->id, s->memory, err);
}

// Under a supervisor agents keep copies of other hosts' snapshots.
static bool has_buddies(const struct run *run) {
    if (!run->control || !run->control->heartbeat || !run->comm) return false;
    for (int i = 1; i < run->ranks; i++)
        if (strcmp(comm_host(run->comm, i), comm_host(run->comm, 0)) != 0) return true;
    return false;
}

static int plan_memory(struct run *run, const struct engine_options *options,
                       struct snapshot_options *out, struct err *err) {
    struct memory_plan totals;
    if (engine_plan_totals(&totals, &run->model, &run->device, options, NULL, err) != 0) return -1;
    uint64_t snapshots = memory_plan_kind_bytes(&totals, BUFFER_SNAPSHOT);
    *out = (struct snapshot_options){
        .folder = run->saves.memory,
        .run = run->saves.id,
        .rank = run->rank,
        .ranks = run->ranks,
        .session = run->saves.session,
        .generation_bytes = snapshots / (uint64_t)(options->snapshots * SNAPSHOT_GENERATIONS),
        .part_bytes = run->config->part_bytes,
        .threads = run->device.threads,
        .other_bytes = totals.total_bytes - snapshots};
    return 0;
}

// On all ranks or on none. `home`: whether there is a folder to trust.
static int take_memory(struct run *run, const struct engine_options *options, int home,
                       struct err *err) {
    struct snapshot_options own;
    if (home == 0) home = plan_memory(run, options, &own, err);
    if (run_agree(run, home, err) != 0 || run_snapshot_room(run, &own, err) != 0) return -1;
    return run_agree(run, snapshot_open(&run->saves.snapshot, &own, err), err);
}

int run_saves_open(struct run *run, struct engine_options *options, struct err *err) {
    struct run_saves *s = &run->saves;
    struct err why = {0};
    s->durable_step = s->copied_step = s->wanted_copy = s->last_step = -1;
    if (run_agree(run, agree_on_run(run, err), err) != 0) return -1;
    int status = config_keep_steps(run->config, &s->keep_steps, &s->keep_step_count, err);
    if (run_agree(run, status, err) != 0) return -1;
    int home = snapshot_home(run->config->snapshot_folder, &why);
    if (home != 0) s->memory[0] = 0;
    if (options->snapshots == 0) return 0;
    if (has_buddies(run)) options->snapshots = 2;
    if (home == 0) snapshot_sweep(run->config->snapshot_folder);
    if (take_memory(run, options, home, &why) == 0) {
        snapshot_mark(s->memory, run->config->folder);
        return 0;
    }
    if (run_is_broken(run)) {
        *err = why;
        return -1;
    }
    run_forget_failure(run);
    log_line(LOG_WARN,
             "no snapshots in memory: %s; checkpoints are written straight to disk, and "
             "the run waits for each",
             why.text);
    snapshot_give_back(s->snapshot);
    s->snapshot = NULL;
    options->snapshots = 0;
    return 0;
}

static int open_savers(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    struct saver_options options = {.folder = c->checkpoint_folder,
                                    .snapshot = run->saves.snapshot,
                                    .rank = run->rank,
                                    .ranks = run->ranks,
                                    .keep_last = c->keep_last,
                                    .keep_every = c->keep_every,
                                    .keep_steps = run->saves.keep_steps,
                                    .keep_step_count = run->saves.keep_step_count};
    if (run->saves.snapshot && saver_open(&run->saves.saver, &options, err) != 0) return -1;
    if (!c->second_folder[0]) return 0;
    options.folder = c->second_folder;
    options.from = c->checkpoint_folder;
    options.snapshot = NULL;
    return saver_open(&run->saves.second, &options, err);
}

int run_saves_attach(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    struct tensor_slice *slices = NULL;
    int count = 0, result = 0;
    s->begun = clock_seconds();
    if (s->snapshot) {
        result = run_state_slices(run, &slices, &count, err);
        if (result == 0) result = snapshot_slices(s->snapshot, slices, count, err);
        free(slices);
    }
    return result == 0 ? open_savers(run, err) : -1;
}

void run_saves_close(struct run *run) {
    struct run_saves *s = &run->saves;
    saver_close(s->second);
    saver_close(s->saver);
    snapshot_close(s->snapshot);
    free(s->keep_steps);
    s->keep_steps = NULL;
    s->saver = s->second = NULL;
    s->snapshot = NULL;
}

// A supervised run that is asked to leave comes back at once, and from memory.
void run_saves_forget(struct run *run) {
    struct run_saves *s = &run->saves;
    bool comes_back = run->signals[SIGNAL_LEAVE] && run->control && run->control->heartbeat;
    if (comes_back || (run->saves.durable_step != run->step && run->step != run->config->steps))
        return;
    if (s->snapshot) snapshot_remove(s->snapshot);
    if (run->world) comm_wait(comm_barrier(run->world), NULL); // then also what others have left
    snapshot_forget(run->config->snapshot_folder, s->id, NULL);
}

// ---- when

static double mean_time_between_failures(const struct run *run) {
    double measured = 0;
    if (run->config->mtbf_seconds > 0) return run->config->mtbf_seconds;
    if (run->control && run->control->heartbeat)
        measured = heartbeat_mtbf_seconds(run->control->heartbeat);
    return measured > 0 ? measured : day_seconds;
}

static double interval_seconds(const struct run *run) {
    const struct run_saves *s = &run->saves;
    double best = sqrt(2 * s->blocking_seconds * mean_time_between_failures(run));
    return best > s->persist_seconds ? best : s->persist_seconds;
}

// Rank 0 decides for all.
static bool interval_is_over(const struct run *run) {
    const struct run_saves *s = &run->saves;
    int64_t first = run->config->checkpoint_every > 0 ? run->config->checkpoint_every : FIRST_STEPS;
    int64_t since = s->last_step >= 0 ? s->last_step : run->result->resumed_from;
    if (run->step <= since) return false;
    if (s->persist_seconds <= 0) return run->step >= since + first;
    return clock_seconds() - s->begun >= interval_seconds(run);
}

bool run_save_is_due(struct run *run) {
    const struct train_config *c = run->config;
    if (run->saves.due) return true;
    if (c->checkpoint_interval == INTERVAL_AUTO) return run->signals[SIGNAL_SAVE_DUE] > 0;
    return c->checkpoint_every > 0 && run->step % c->checkpoint_every == 0;
}

static void average(double *mean, double value) {
    *mean = *mean > 0 ? 0.7 * *mean + 0.3 * value : value;
}

void run_saves_measure(struct run *run, double blocking, double persist) {
    if (blocking > 0) average(&run->saves.blocking_seconds, blocking);
    if (persist > 0) average(&run->saves.persist_seconds, persist);
    run->saves.begun = clock_seconds() - blocking;
    run->saves.last_step = run->step;
}

// ---- a save begins

static void begin_writing(struct run *run) {
    struct run_saves *s = &run->saves;
    s->next.waits = false;
    if (s->next.generation >= 0)
        saver_begin(s->saver, s->next.step, s->next.generation, s->session, s->next.number);
    else
        saver_begin_failed(s->saver, s->next.step, &s->next.why);
}

// Once each until a save is durable again: that a save waits, and that the run does.
static void tell_late(struct run *run, int64_t for_step, bool run_waits, const char *what) {
    bool *told = run_waits ? &run->saves.told_wait : &run->saves.told_late;
    if (*told) return;
    *told = true;
    log_line(LOG_INFO, "step %lld: a save is due while that of step %lld %s", (long long)run->step,
             (long long)for_step, what);
    metrics_put_event(&run->metrics, "checkpoint_waits", run->step,
                      "\"for_step\":%lld,\"run_waits\":%s", (long long)for_step,
                      run_waits ? "true" : "false");
}

static int look(struct run *run, double *pause, struct err *err);
static void tell_work(struct run *run, const char *work);

// Until `flag` is no longer set, but not longer than a moment unless it must be. Tiny runs come so
// fast that a disk which is not slow at all is late.
static int wait_while(struct run *run, const bool *flag, bool must, struct err *err) {
    enum { MOMENTS = 8 };
    double pause = 0.005;
    int status = 0;
    for (int i = 0; *flag && (must || i < MOMENTS) && status == 0; i++)
        status = look(run, &pause, err);
    tell_work(run, NULL);
    return status;
}

static bool is_to_stay(const struct run *run, int64_t step) {
    const struct run_saves *s = &run->saves;
    for (int i = 0; i < s->keep_step_count; i++)
        if (s->keep_steps[i] == step) return true;
    return run->config->keep_every > 0 && step % run->config->keep_every == 0;
}

// What waits for the disk would be written over: of steps that are to stay that must not be.
static int make_way(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    int64_t old = s->next.step;
    if (wait_while(run, &s->next.waits, false, err) != 0) return -1;
    if (s->next.waits && is_to_stay(run, old)) {
        tell_late(run, old, true,
                  "waits for the disk, which is slower than saves come; the run waits too");
        if (wait_while(run, &s->next.waits, true, err) != 0) return -1;
    }
    if (!s->next.waits) return 0;
    log_line(LOG_WARN,
             "checkpoint of step %lld is replaced by that of step %lld before it was "
             "written: the disk is slower than saves come",
             (long long)old, (long long)run->step);
    metrics_put_event(&run->metrics, "checkpoint_replaced", old, "\"by_step\":%lld",
                      (long long)run->step);
    s->next.waits = false;
    return 0;
}

// One that is not complete in memory on all ranks is written over next, and the one before it stays
// until then: when the saver has let go of it.
static int pass_over_failed(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    double pause = 0.0005;
    if (!run->signals[SIGNAL_SNAPSHOT_FAILED]) return 0;
    while (!saver_idle(s->saver) && saver_step(s->saver) == s->next.step)
        if (look(run, &pause, err) != 0) return -1;
    snapshot_keep_older(s->snapshot);
    return 0;
}

int run_save_behind(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    double clock = clock_seconds();
    s->due = run->signals[SIGNAL_SNAPSHOT_BUSY] > 0;
    if (wait_while(run, &s->due, is_to_stay(run, run->step), err) != 0) return -1;
    if (s->due) {
        tell_late(run, s->last_step, false, "is not complete in memory; it begins when that is");
        return 0;
    }
    if (make_way(run, err) != 0 || pass_over_failed(run, err) != 0) return -1;
    run_fault_save(run);
    double begin = record_begin(&run->lane);
    struct checkpoint_state state = run_state(run);
    s->next.step = run->step;
    s->next.why = (struct err){0};
    s->next.waits = true;
    s->next.number = ++s->number;
    s->next.generation =
        snapshot_begin(s->snapshot, &state, &run->config->model, s->next.number, &s->next.why);
    json_decref((json_t *)state.extra);
    record_end(&run->lane, RECORD_CHECKPOINT, "snapshot", run->step, begin);
    s->stall = clock_seconds() - clock;
    s->copies = s->next.generation >= 0;
    s->begun = clock;
    s->last_step = run->step;
    metrics_put_event(&run->metrics, "checkpoint_requested", run->step,
                      "\"behind\":true,\"seconds\":%.4f", s->stall);
    if (saver_idle(s->saver))
        begin_writing(run);
    else
        tell_late(run, saver_step(s->saver), false,
                  "is still being written; it follows, from memory");
    return 0;
}

void run_wait_for_snapshot(struct run *run) {
    struct run_saves *s = &run->saves;
    if (!s->copies) return;
    double begin = record_begin(&run->lane);
    s->stall += snapshot_wait(s->snapshot);
    s->copies = false;
    average(&s->blocking_seconds, s->stall);
    record_end(&run->lane, RECORD_CHECKPOINT, "snapshot", run->step, begin);
}

// ---- between steps

void run_saves_report(struct run *run) {
    struct run_saves *s = &run->saves;
    int64_t *signals = run->signals;
    if (s->saver) saver_report(s->saver, &signals[SIGNAL_SAVE]);
    if (s->second) saver_report(s->second, &signals[SIGNAL_COPY]);
    signals[SIGNAL_SNAPSHOT_BUSY] = s->snapshot && snapshot_busy(s->snapshot);
    signals[SIGNAL_SNAPSHOT_FAILED] = s->snapshot && snapshot_failed(s->snapshot);
    signals[SIGNAL_SAVE_DUE] = run_leads(run) &&
                               run->config->checkpoint_interval == INTERVAL_AUTO &&
                               interval_is_over(run);
}

static void heed_save(struct run *run, const struct saver_result *r) {
    struct run_saves *s = &run->saves;
    if (r->news == SAVER_FAILED) run_tell_failed(run, r->step, &r->why, r->seconds);
    if (r->news != SAVER_PERSISTED) return;
    average(&s->persist_seconds, r->seconds);
    s->told_late = s->told_wait = false;
    run_tell_persisted(run, r->step, r->path, r->bytes, r->seconds);
    snapshot_tidy(s->memory, run->ranks);
}

static void heed_copy(struct run *run, const struct saver_result *r) {
    char size[32];
    if (r->news == SAVER_FAILED) {
        log_line(LOG_WARN, "the checkpoint of step %lld was not copied to %s: %s",
                 (long long)r->step, run->config->second_folder, r->why.text);
        metrics_put_event(&run->metrics, "checkpoint_copy_failed", r->step, "\"seconds\":%.3f",
                          r->seconds);
    }
    if (r->news != SAVER_PERSISTED) return;
    log_line(LOG_INFO, "copied to %s, %s in %.2f s", r->path, text_bytes(r->bytes, size),
             r->seconds);
    metrics_put_event(&run->metrics, "checkpoint_copied", r->step,
                      "\"bytes\":%llu,\"seconds\":%.3f", (unsigned long long)r->bytes, r->seconds);
}

// The newest durable one, one at a time; one that failed is not tried again.
static void begin_copy(struct run *run) {
    struct run_saves *s = &run->saves;
    if (!s->second || !saver_idle(s->second)) return;
    if (s->saver) saver_pin(s->saver, -1);
    if (s->wanted_copy < 0 || s->wanted_copy == s->copied_step) return;
    s->copied_step = s->wanted_copy;
    if (s->saver) saver_pin(s->saver, s->copied_step);
    s->number++;
    saver_begin(s->second, s->copied_step, -1, s->session, s->number);
}

int run_saves_settle(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    struct saver_result result;
    if (s->saver) {
        if (saver_agree(s->saver, &run->signals[SIGNAL_SAVE], run->world, &result, err) != 0)
            return -1;
        heed_save(run, &result);
        if (s->next.waits && saver_idle(s->saver)) begin_writing(run);
    }
    if (!s->second) return 0;
    if (saver_agree(s->second, &run->signals[SIGNAL_COPY], run->world, &result, err) != 0)
        return -1;
    heed_copy(run, &result);
    begin_copy(run);
    return 0;
}

// ---- until all is done

// What others wait for: this rank's own part of saves. Without it a file server that is gone would
// leave all ranks asking each other for ever, and nobody would be to blame.
static void tell_work(struct run *run, const char *work) {
    if (work != run->saves.work) run_busy(run, work);
    run->saves.work = work;
}

static const char *own_work(const struct run *run) {
    if (run->signals[SIGNAL_SAVE] > 0) return "writes a checkpoint";
    if (run->signals[SIGNAL_COPY] > 0) return "copies a checkpoint";
    return run->signals[SIGNAL_SNAPSHOT_BUSY] > 0 ? "completes a snapshot" : NULL;
}

// One exchange as between steps, and a pause when there is more to wait for.
static int look(struct run *run, double *pause, struct err *err) {
    struct timespec moment = {0, (long)(*pause * 1e9)};
    nanosleep(&moment, NULL);
    if (*pause < 0.05) *pause *= 1.5;
    run_saves_report(run);
    tell_work(run, own_work(run));
    if (run->world) {
        comm_max_integers(run->world, &run->signals[SIGNAL_SAVE], RUN_SIGNALS - SIGNAL_SAVE);
        if (comm_check(run->comm, err) != 0) return -1;
    }
    if (run->saves.due) run->saves.due = run->signals[SIGNAL_SNAPSHOT_BUSY] > 0;
    return run_saves_settle(run, err);
}

static bool works(const struct run *run) {
    const struct run_saves *s = &run->saves;
    return (s->saver && (!saver_idle(s->saver) || s->next.waits)) ||
           (s->second && (!saver_idle(s->second) || s->wanted_copy != s->copied_step)) ||
           run->signals[SIGNAL_SNAPSHOT_BUSY] > 0;
}

static void drop_all(struct run *run) {
    struct run_saves *s = &run->saves;
    struct err why = {0};
    (void)err_set(&why, ERR_INTERRUPT, "no longer wanted");
    if (s->next.waits) run_tell_failed(run, s->next.step, &why, clock_seconds() - s->begun);
    s->next.waits = s->due = false;
    s->wanted_copy = s->copied_step;
    if (s->saver) saver_cancel(s->saver);
    if (s->second) saver_cancel(s->second);
}

// ---- for a restart that follows at once

// Of steps that are to stay on disk, whatever comes.
static bool owes_disk(struct run *run) {
    const struct run_saves *s = &run->saves;
    return (!saver_idle(s->saver) && is_to_stay(run, saver_step(s->saver))) ||
           (s->next.waits && is_to_stay(run, s->next.step)) ||
           (run_save_is_due(run) && is_to_stay(run, run->step));
}

static int snapshot_now(struct run *run, struct err *err) {
    static const atomic_bool never = false;
    struct run_saves *s = &run->saves;
    struct checkpoint_state state = run_state(run);
    int generation = snapshot_begin(s->snapshot, &state, &run->config->model, ++s->number, err);
    json_decref((json_t *)state.extra);
    if (generation < 0) return -1;
    snapshot_wait(s->snapshot);
    return snapshot_settle(s->snapshot, generation, &never, err);
}

static void tell_replaced(struct run *run) {
    struct run_saves *s = &run->saves;
    if (s->next.waits)
        metrics_put_event(&run->metrics, "checkpoint_replaced", s->next.step, "\"by_step\":%lld",
                          (long long)run->step);
    s->next.waits = false;
}

int run_save_to_memory(struct run *run, struct err *err) {
    struct run_saves *s = &run->saves;
    double begin = clock_seconds();
    if (!s->snapshot || owes_disk(run)) return 0;
    run_fault_save(run);
    run_wait_for_snapshot(run);
    s->due = run->signals[SIGNAL_SNAPSHOT_BUSY] > 0;
    if (wait_while(run, &s->due, true, err) != 0 || pass_over_failed(run, err) != 0) return -1;
    tell_replaced(run);
    if (run_agree(run, snapshot_now(run, err), err) == 0) {
        double seconds = clock_seconds() - begin;
        log_line(LOG_INFO, "step %lld is in memory after %.2f s; the next start goes on from there",
                 (long long)run->step, seconds);
        metrics_put_event(&run->metrics, "checkpoint_in_memory", run->step, "\"seconds\":%.3f",
                          seconds);
        return 1;
    }
    if (run_is_broken(run)) return -1;
    run_forget_failure(run);
    log_line(LOG_WARN, "step %lld is not in memory, and goes to disk: %s", (long long)run->step,
             err->text);
    *err = (struct err){0};
    return 0;
}

// ---- at the end

void run_saves_skip_copies(struct run *run) {
    run->saves.wanted_copy = run->saves.copied_step;
    saver_cancel(run->saves.second);
}

int run_saves_finish(struct run *run, bool drop, struct err *err) {
    int status;
    double pause = 0.0005;
    run_wait_for_snapshot(run);
    if (drop) drop_all(run);
    do {
        status = look(run, &pause, err);
        if (drop) drop_all(run);
    } while (status == 0 && works(run));
    tell_work(run, NULL);
    return status;
}
