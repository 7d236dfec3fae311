// Back to an older state without leaving the process, and leaving for good, see run_guard.h.
#include "base/clock.h"
#include "base/log.h"
#include "train/run_guard.h"
#include "train/run_parts.h"
#include <stdio.h>
#include <string.h>

static struct heartbeat *heart_of(const struct run *run) {
    return run->control ? run->control->heartbeat : NULL;
}

// The rank concerned tells it; what concerns nobody in particular, rank 0.
void run_guard_tell(struct run *run, const char *kind, const char *action, int64_t step, int rank,
                    const char *text, json_t *more) {
    json_t *all = json_pack("{s:s,s:s}", "text", text, "action", action);
    if (rank >= 0) {
        json_object_set_new(all, "rank", json_integer(rank));
        json_object_set_new(all, "host", json_string(run_host(run, rank)));
    }
    if (more) json_object_update_missing(all, more);
    json_decref(more);
    metrics_put_object(&run->metrics, kind, step, all);
    if (run_leads(run)) log_line(LOG_WARN, "step %lld: %s: %s", (long long)step, action, text);
    json_object_set_new(all, "step", json_integer(step));
    if (run->rank == (rank >= 0 ? rank : 0))
        heartbeat_report(heart_of(run), kind, all);
    else
        json_decref(all);
}

bool run_guard_count_fault(struct run *run, int rank) {
    struct run_guard *g = &run->guard;
    int64_t now = run->step + 1;
    int count = 0;
    if (rank < 0) return false;
    g->fault[g->fault_count % RUN_FAULTS].rank = rank;
    g->fault[g->fault_count % RUN_FAULTS].step = now;
    g->fault_count++;
    for (int i = 0; i < RUN_FAULTS && i < g->fault_count; i++)
        count += g->fault[i].rank == rank && g->fault[i].step > now - RUN_FAULT_STEPS;
    return count > run->config->most_faults;
}

// ---- back --------------------------------------------------------------------------------------

// The files read as if the run had never been further.
static int cut_journals(struct run *run, struct err *err) {
    char path[4096];
    if (!run_leads(run)) return 0;
    memcpy(path, run->metrics.path, sizeof path);
    metrics_close(&run->metrics);
    if (metrics_open(&run->metrics, path, run->step, err) != 0) return -1;
    struct err own = {0};
    if (run->has_tensorboard &&
        tensorboard_resume(&run->tensorboard, clock_wall_seconds(), run->step + 1, &own) != 0) {
        log_line(LOG_WARN, "TensorBoard events end here: %s", own.text);
        tensorboard_close(&run->tensorboard);
        run->has_tensorboard = false;
    }
    return 0;
}

static int too_often(struct run *run, const char *why, enum err_kind kind, struct err *err) {
    err_set(err, kind,
            "stopped: the run went back %d times from step %lld or before and did not get past it; "
            "the last time since %s. Look at the events of metrics.jsonl, lower "
            "optimizer.learning_rate, or resume from further back (checkpoint.back)",
            run->guard.rollbacks - 1, (long long)run->guard.rollback_step, why);
    return run_agree(run, -1, err);
}

static bool count_rollback(struct run *run) {
    struct run_guard *g = &run->guard;
    bool further = run->step > g->rollback_step;
    g->rollbacks = further ? 1 : g->rollbacks + 1;
    if (further) g->rollback_step = run->step;
    return g->rollbacks > RUN_MOST_ROLLBACKS;
}

static int go_back(struct run *run, int64_t good_step, struct err *err) {
    struct run_guard *g = &run->guard;
    double begin = record_begin(&run->lane);
    run_phase(run, BEAT_LOAD, run->step);
    int status = run_restore_older(run, 0, good_step, err);
    if (status == 0) status = cut_journals(run, err);
    run_busy(run, NULL);
    if (run_agree(run, status, err) != 0)
        return err_context(err, "the run could not go back to step %lld or before",
                           (long long)good_step);
    g->loaded_step = g->good_step = run->step;
    g->updated = false;
    run->steps_here = 0; // its times would count twice
    record_end(&run->lane, RECORD_CHECKPOINT, "roll back", run->step, begin);
    run_phase(run, BEAT_STEP, run->step + 1);
    return 0;
}

int run_roll_back(struct run *run, const struct run_suspect *s, struct err *err) {
    int64_t from = run->step;
    char action[96];
    if (count_rollback(run)) return too_often(run, s->text, ERR_INTERNAL, err);
    if (go_back(run, s->good_step, err) != 0) return -1;
    snprintf(action, sizeof action, "the run went back to step %lld", (long long)run->step);
    json_t *more = json_pack("{s:I,s:I,s:s}", "from_step", (json_int_t)from, "to_step",
                             (json_int_t)run->step, "parameter", s->parameter);
    run_guard_tell(run, "silent_corruption", action, run->step, s->other < 0 ? s->rank : -1,
                   s->text, more);
    return 1;
}

int run_roll_back_spikes(struct run *run, int64_t from, const char *why, struct err *err) {
    int64_t to = run->step + 1;
    char action[160], text[600];
    if (count_rollback(run)) return too_often(run, why, ERR_DATA, err);
    if (go_back(run, from - 1, err) != 0) return -1;
    if (!run_skip_add(run, from, to)) {
        err_set(err, ERR_DATA, "stopped at step %lld: more than %d stretches of steps had spikes",
                (long long)to, RUN_SKIP_RANGES);
        return run_agree(run, -1, err);
    }
    snprintf(action, sizeof action,
             "the run went back to step %lld and passes over steps %lld to %lld",
             (long long)run->step, (long long)from, (long long)to);
    snprintf(text, sizeof text,
             "more than %d steps of the last %d were spikes, the last one since "
             "%s",
             run->guard.spike.rule.most_in_recent, SPIKE_RECENT, why);
    json_t *more =
        json_pack("{s:I,s:I,s:[I,I]}", "from_step", (json_int_t)to, "to_step",
                  (json_int_t)run->step, "passed_over", (json_int_t)from, (json_int_t)to);
    run_guard_tell(run, "loss_spike", action, run->step, -1, text, more);
    return 1;
}

// ---- for good ----------------------------------------------------------------------------------

// Every rank knows it: nothing is to be agreed on any more. The supervisor starts the run again
// without the hosts of the ranks that end with this kind.
int run_leave_host(struct run *run, int rank, int other, const char *why, struct err *err) {
    bool own = run->rank == rank || run->rank == other;
    char who[300];
    if (rank < 0)
        snprintf(who, sizeof who, "a host");
    else if (other < 0)
        snprintf(who, sizeof who, "rank %d (%s)", rank, run_host(run, rank));
    else
        snprintf(who, sizeof who, "rank %d (%s) or rank %d (%s)", rank, run_host(run, rank), other,
                 run_host(run, other));
    run->agreed = true;
    run->result->silent = rank >= 0 ? run->rank != rank : !run_leads(run);
    return err_set(err, own ? ERR_BAD_HOST : ERR_RETRY,
                   "%s cannot be trusted: %s. Start again elsewhere; the state on disk is from "
                   "before",
                   who, why);
}
