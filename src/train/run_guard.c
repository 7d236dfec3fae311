// A step under guard, see run_guard.h: the hook before the update, what follows from a suspicion,
// and the state that checkpoints carry.
#include "train/run_guard.h"
#include "base/file.h"
#include "base/log.h"
#include "train/run_fault.h"
#include "train/run_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 2 };

static struct spike_rule rule_of(const struct train_config *c) {
    return (struct spike_rule){.loss_factor = c->loss_factor,
                               .loss_deviations = c->loss_deviations,
                               .norm_deviations = c->norm_deviations,
                               .warm_up = c->spike_warm_up,
                               .most_in_recent = c->most_spikes};
}

static int watch_counters(struct run *run, struct err *err) {
    const struct train_config *c = run->config;
    bool elsewhere = c->counters_folder[0] != 0;
    struct counters_places places = {.edac_folder = elsewhere ? c->counters_folder : NULL};
    if (elsewhere && !file_is_folder(c->counters_folder))
        return err_set(err, ERR_USAGE, "guard.counters_folder: %s is no folder",
                       c->counters_folder);
    return counters_watch_open(&run->guard.counters, &places, c->counters_seconds, err);
}

// One rank of each host watches its counters. Not being able to is told and does not hinder.
static void open_counters(struct run *run) {
    struct err err = {0};
    if (!run->config->guard_counters) return;
    for (int r = 0; r < run->rank; r++)
        if (strcmp(comm_host(run->comm, r), comm_host(run->comm, run->rank)) == 0) return;
    if (watch_counters(run, &err) != 0)
        log_line(LOG_WARN, "error counters of this machine are not watched: %s", err.text);
}

int run_guard_open(struct run *run, struct err *err) {
    run->guard.rollback_step = -1;
    open_counters(run);
    return run_guard_load(run, NULL, "train.skip_steps", err);
}

void run_guard_close(struct run *run) {
    counters_watch_close(run->guard.counters);
    run->guard.counters = NULL;
}

// ---- a pass ------------------------------------------------------------------------------------

bool run_may_update(void *context, const struct engine_step *step) {
    struct run *run = context;
    struct run_guard *g = &run->guard;
    run_wait_for_snapshot(run); // it copies what the update changes
    run_guard_look_at_replicas(run);
    spike_is(&g->spike, step->loss, step->gradient_norm, g->why);
    run_guard_exchange(run);
    if (g->failed.kind != ERR_NONE || g->found[0] > 0 || g->found[1] > 0 || g->found[2] > 0)
        return false;
    spike_accept(&g->spike, step->loss, step->gradient_norm);
    return true;
}

int run_guard_pass(struct run *run, struct batch *const *batches, int count,
                   struct engine_step *step, bool update, struct err *err) {
    struct run_guard *g = &run->guard;
    g->own_findings = 0;
    g->found[0] = g->found[1] = g->found[2] = 0;
    g->odd.of = 0;
    g->failed = (struct err){0};
    g->why[0] = 0;
    step->no_update = !update;
    step->may_update = update ? run_may_update : NULL;
    step->context = run;
    run_fault_pass(run);
    if (engine_run_step(run->engine, batches, count, step, err) != 0) return -1;
    if (g->failed.kind == ERR_NONE) return 0;
    *err = g->failed;
    return -1;
}

// ---- what follows ------------------------------------------------------------------------------

static int too_many_in_a_row(struct run *run, int64_t step, const char *why, struct err *err) {
    err_set(err, ERR_DATA,
            "stopped at step %lld: %d steps in a row were skipped, the last one since %s; lower "
            "optimizer.learning_rate, or look at the samples named above (the last checkpoint is "
            "of step %lld)",
            (long long)step, run->bad_steps, why, (long long)run->saved_step);
    return run_agree(run, -1, err);
}

// The data or the program itself gave these values: they are passed over.
static int skip(struct run *run, const struct engine_step *step, const char *why, struct err *err) {
    struct run_guard *g = &run->guard;
    int64_t number = run->step + 1, samples = step->counted;
    char text[600];
    int batch = run->loader_batch;
    enum spike_verdict verdict = spike_skip(&g->spike, number);
    int64_t first = spike_first_recent(&g->spike, number);
    run->bad_steps++;
    json_t *from = run_samples(run, run->samples, batch, text);
    json_t *more = json_pack("{s:o,s:i,s:I}", "samples", from ? from : json_array(), "in_a_row",
                             run->bad_steps, "tokens", (json_int_t)samples);
    char all[1200];
    snprintf(all, sizeof all, "%s; samples %s", why, text);
    run_guard_tell(run, "loss_spike", "the step was skipped", number, -1, all, more);
    if (run->bad_steps >= run->config->max_bad_steps)
        return too_many_in_a_row(run, number, why, err);
    if (verdict != SPIKE_ROLL_BACK) return 0;
    if (run->saved_step >= 0) return run_roll_back_spikes(run, first, why, err);
    if (run_leads(run))
        log_line(LOG_WARN,
                 "step %lld: more than %d of the last %d steps were skipped, but there is no older "
                 "state to go back to",
                 (long long)number, g->spike.rule.most_in_recent, SPIKE_RECENT);
    return 0;
}

static int stop_for_software(struct run *run, const struct run_suspect *s,
                             const struct replay_verdict *v, struct err *err) {
    run_guard_tell(run, "software_fault", "the run was stopped", run->step + 1, -1, s->text, NULL);
    err_set(err, ERR_INTERNAL,
            "%s; computed again it is the same (%s): no machine, but this program or a library is "
            "at fault. Switch the guard off that complains (docs/guards.md) and report this",
            s->text, v->why);
    return run_agree(run, -1, err);
}

static int give_up_host(struct run *run, int rank, int other, const char *why, struct err *err) {
    run_guard_tell(run, "silent_corruption", "the host is given up", run->step, rank, why, NULL);
    return run_leave_host(run, rank, other, why, err);
}

static int leave(struct run *run, const struct run_suspect *s, const struct replay_verdict *v,
                 struct err *err) {
    char why[700], step[40] = ""; // what checksums find begins with it
    if (s->kind == SUSPECT_SPIKE)
        snprintf(step, sizeof step, "step %lld: ", (long long)run->step + 1);
    snprintf(why, sizeof why, "%s%s; %s: %s", step, s->text, replay_cause_name(v->cause), v->why);
    return give_up_host(run, v->rank, v->other, why, err);
}

enum { AGAIN = 2 };

// A result of this step cannot be right; weights and optimizer state are as they were.
static int settle_result(struct run *run, struct batch *const *batches, int count, int round,
                         const struct run_suspect *s, const struct engine_step *fresh,
                         const struct engine_step *step, struct err *err) {
    bool finding = s->kind != SUSPECT_SPIKE, found_again = false;
    struct replay_verdict v = {.cause = REPLAY_PASSING, .rank = s->rank, .other = -1};
    snprintf(v.why, sizeof v.why, "not replayed");
    if (s->kind == SUSPECT_COPY) engine_weights_changed(run->engine);
    if (!finding && !run->config->guard_replay) return skip(run, step, s->text, err);
    if (run->config->guard_replay &&
        run_replay(run, batches, count, fresh, step, &v, &found_again, err) != 0)
        return -1;
    if (v.cause == REPLAY_SOFTWARE && !finding) return skip(run, step, s->text, err);
    if (v.cause == REPLAY_SOFTWARE && found_again) return stop_for_software(run, s, &v, err);
    if (v.cause == REPLAY_SOFTWARE) v.cause = REPLAY_PASSING; // behind the digest, and not again
    // Digests are others wherever a wrong value went; the checksum complained where it arose.
    if (v.cause == REPLAY_PASSING && finding) v.rank = s->rank;
    if (v.cause != REPLAY_PASSING) return leave(run, s, &v, err);
    if (run_guard_count_fault(run, v.rank) || round == MOST_REPEATS) {
        v.cause = REPLAY_PERSISTENT;
        return leave(run, s, &v, err);
    }
    char text[700];
    snprintf(text, sizeof text, "%s; passing fault: %s", s->text, v.why);
    run_guard_tell(run, "silent_corruption", "the step was done again", run->step + 1, v.rank, text,
                   NULL);
    return AGAIN;
}

// Who is to blame is known, or the same steps, done again, will tell.
static int settle_state(struct run *run, const struct run_suspect *s, struct err *err) {
    bool faulty = s->rank >= 0 && s->other < 0 && run_guard_count_fault(run, s->rank);
    if (run->config->on_corruption == CORRUPTION_LEAVE)
        return give_up_host(run, s->rank, s->other, s->text, err);
    int result = run_roll_back(run, s, err);
    if (result < 0 || !faulty) return result;
    char why[700];
    snprintf(why, sizeof why, "%s; more than %d faults of rank %d within %d steps", s->text,
             run->config->most_faults, s->rank, RUN_FAULT_STEPS);
    return give_up_host(run, s->rank, -1, why, err);
}

int run_guard_step(struct run *run, struct batch *const *batches, int count,
                   struct engine_step *step, struct err *err) {
    struct run_guard *g = &run->guard;
    struct engine_step fresh = *step;
    for (int round = 0;; round++) {
        struct run_suspect s;
        if (run_guard_pass(run, batches, count, step, true, err) != 0) return -1;
        if (!step->skipped) {
            run->bad_steps = 0;
            g->updated = true;
            return 0;
        }
        if (step->counted == 0) return 0;
        run_guard_exchange(run); // what rests was compared, now that there was no update
        run_guard_describe(run, &s);
        if (s.kind >= SUSPECT_STATE) return settle_state(run, &s, err);
        int result = settle_result(run, batches, count, round, &s, &fresh, step, err);
        if (result != AGAIN) return result;
        *step = fresh;
    }
}

// As the last save of a run, but that it may fail.
static void save_to_leave(struct run *run) {
    struct err err = {0};
    run_phase(run, BEAT_SAVE, run->step);
    if (run->saves.second) run_saves_skip_copies(run);
    if (run_saves_finish(run, false, &err) == 0 &&
        (run->saved_step == run->step || run_save(run, &err) == 0))
        return;
    if (run_leads(run))
        log_line(LOG_WARN, "step %lld could not be saved: %s", (long long)run->step, err.text);
    run_forget_failure(run);
}

static int settle_hardware(struct run *run, int64_t key, struct err *err) {
    struct run_guard *g = &run->guard;
    int rank = run->ranks - 1 - (int)((key - 1) % run->ranks);
    int level = 1 + (int)((key - 1) / run->ranks);
    char why[300];
    memcpy(why, g->hardware_why, sizeof why);
    if (run->world) comm_wait(comm_broadcast(run->world, rank, why, sizeof why), NULL);
    g->hardware = 0;
    bool leaves =
        level >= 2 && run->control && run->control->heartbeat; // others can take its place
    run_guard_tell(run, "hardware_counter", leaves ? "the host is given up" : "noted", run->step,
                   rank, why, NULL);
    if (!leaves) return 0;
    save_to_leave(run);
    return run_leave_host(run, rank, -1, why, err);
}

int run_guard_settle(struct run *run, struct err *err) {
    struct run_guard *g = &run->guard;
    int64_t found = run->signals[SIGNAL_FOUND], hardware = run->signals[SIGNAL_HARDWARE];
    bool updated = g->updated;
    g->updated = false;
    if (found > 0) {
        struct run_suspect s;
        run_guard_describe_updated(run, found, &s);
        return settle_state(run, &s, err);
    }
    // What this update has read was sound since the one before.
    if (updated && run->step - 1 > g->good_step) g->good_step = run->step - 1;
    return hardware > 0 ? settle_hardware(run, hardware, err) : 0;
}

// ---- with checkpoints --------------------------------------------------------------------------

json_t *run_guard_state(const struct run *run) {
    const struct run_guard *g = &run->guard;
    json_t *ranges = json_array();
    for (int i = 0; i < g->skip_count; i++)
        json_array_append_new(
            ranges, json_pack("[I,I]", (json_int_t)g->skip[i].from, (json_int_t)g->skip[i].to));
    return json_pack("{s:o,s:o}", "spike", spike_write(&g->spike), "passed_over", ranges);
}

static int read_ranges(struct run *run, json_t *list, const char *where, struct err *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *range = json_array_get(list, i);
        json_int_t from = json_integer_value(json_array_get(range, 0));
        json_int_t to = json_integer_value(json_array_get(range, 1));
        if (from < 1 || to < from)
            return err_set(err, ERR_DATA, "%s: guard.passed_over[%zu]: expected [FROM, TO]", where,
                           i);
        if (!run_skip_add(run, from, to))
            return err_set(err, ERR_DATA, "%s: guard.passed_over: more than %d ranges", where,
                           RUN_SKIP_RANGES);
    }
    return 0;
}

int run_guard_load(struct run *run, json_t *state, const char *where, struct err *err) {
    struct run_guard *g = &run->guard;
    g->spike = (struct spike){.rule = rule_of(run->config)};
    g->skip_count = 0;
    g->loaded_step = g->good_step = run->step;
    g->updated = false;
    for (const char *at = run->config->skip_steps; *at;) {
        char *end;
        int64_t step = (int64_t)strtod(at, &end); // was checked when it was read
        if (!run_skip_add(run, step, step))
            return err_set(err, ERR_USAGE, "train.skip_steps: more than %d steps apart",
                           RUN_SKIP_RANGES);
        at = *end ? end + 1 : end;
    }
    if (!state) return 0;
    json_t *spike = json_object_get(state, "spike");
    if (spike && spike_read(&g->spike, spike, where, err) != 0) return -1;
    return read_ranges(run, json_object_get(state, "passed_over"), where, err);
}
