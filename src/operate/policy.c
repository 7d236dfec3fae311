// See policy.h.
#include "operate/policy.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOST_FAILURES_MOST = 2, // of a host whose peers had fewer
    LOOP_RESTARTS = 2,      // at one step before the loop is ended
    STATUS_USAGE = 2,
    STATUS_DATA = 3,
    STATUS_INTERNAL = 70,
    STATUS_RETRY = 75,
    STATUS_BAD_HOST = 76,
    STATUS_INTERRUPTED = 130
};
static const double HOST_SECONDS = 86400; // in which failures of a host count together

struct policy_host {
    double times[HOST_FAILURES_MOST]; // of its latest failures, the newest first
    int failures;                     // of those that are known
};

struct policy {
    struct policy_options options;
    struct policy_history run;
    int64_t attempt_done; // newest step that was done since the last restart; 0: none
    struct policy_host *hosts;
    int host_count;
};

int policy_open(struct policy **out, const struct policy_options *options, struct err *err) {
    struct policy *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, ERR_MEMORY, "no memory for the history of restarts");
    p->options = *options;
    p->run = policy_history_none();
    *out = p;
    return 0;
}

void policy_close(struct policy *p) {
    if (p) free(p->hosts);
    free(p);
}

struct policy_history policy_history_none(void) {
    return (struct policy_history){.loop_step = -1};
}

void policy_keep(const struct policy *p, struct policy_history *out) {
    *out = p->run;
}

void policy_recall(struct policy *p, const struct policy_history *history) {
    p->run = *history;
}

static void end_loop(struct policy *p) {
    p->run.loop_step = -1;
    p->run.loop_failures = 0;
    p->run.loop_skipped = false;
}

void policy_progress(struct policy *p, int64_t step) {
    if (step > p->attempt_done) p->attempt_done = step;
    if (step <= p->run.newest) return;
    p->run.newest = step;
    p->run.vain = 0;
    if (step >= p->run.loop_step) end_loop(p); // the step that failed was done
}

static struct policy_host *find_host(struct policy *p, int host) {
    if (host >= p->host_count) {
        struct policy_host *grown = realloc(p->hosts, sizeof *grown * (size_t)(host + 1));
        if (!grown) return NULL;
        memset(grown + p->host_count, 0, sizeof *grown * (size_t)(host + 1 - p->host_count));
        p->hosts = grown;
        p->host_count = host + 1;
    }
    return &p->hosts[host];
}

// Whether the host has failed its ranks often of late, and no other has.
static bool is_bad_host(struct policy *p, int host, double now) {
    struct policy_host *h = host >= 0 ? find_host(p, host) : NULL;
    if (!h) return false;
    memmove(h->times + 1, h->times, sizeof h->times - sizeof *h->times);
    h->times[0] = now;
    if (h->failures < HOST_FAILURES_MOST) h->failures++;
    for (int i = 0; i < p->host_count; i++)
        if (i != host && p->hosts[i].failures > 0 && now <= p->hosts[i].times[0] + HOST_SECONDS)
            return false;
    return h->failures == HOST_FAILURES_MOST &&
           now <= h->times[HOST_FAILURES_MOST - 1] + HOST_SECONDS;
}

static bool is_own_fault(const struct policy_failure *f) {
    if (f->kind != INCIDENT_EXIT) return false;
    if (f->signal)
        return f->signal == SIGSEGV || f->signal == SIGABRT || f->signal == SIGBUS ||
               f->signal == SIGFPE || f->signal == SIGILL || f->signal == SIGSYS;
    return f->status != STATUS_RETRY && f->status != STATUS_BAD_HOST;
}

// Of a machine rather than of the step: says nothing about a batch.
static bool is_of_machine(const struct policy_failure *f) {
    return f->kind == INCIDENT_HOST_LOST || f->kind == INCIDENT_HEALTH ||
           (f->kind == INCIDENT_EXIT && !f->signal &&
            (f->status == STATUS_RETRY || f->status == STATUS_BAD_HOST));
}

static bool is_planned(enum incident_kind kind) {
    return kind == INCIDENT_RELOAD || kind == INCIDENT_GROW;
}

static void stop(struct policy_decision *out, const char *why) {
    out->action = POLICY_STOP;
    out->check_host = out->evict_host = -1;
    snprintf(out->why, sizeof out->why, "%s", why);
}

// A person will look at it; the next launch begins with the whole budget.
static void give_up(struct policy *p) {
    p->run.vain = 0;
    end_loop(p);
}

// What another try cannot mend. True: decided.
static bool is_hopeless(const struct policy *p, const struct policy_failure *f,
                        struct policy_decision *out) {
    if (f->kind != INCIDENT_EXIT) return false;
    if (!f->signal && f->status == STATUS_INTERRUPTED) {
        stop(out, "the user interrupted the run");
        return true;
    }
    bool permanent = !f->signal && (f->status == STATUS_USAGE || f->status == STATUS_DATA ||
                                    f->status == STATUS_INTERNAL);
    if (p->attempt_done == 0 && (permanent || (p->run.newest == 0 && is_own_fault(f)))) {
        stop(out, permanent ? "a fault of configuration, data or program, before any step: another "
                              "start would end in the same way"
                            : "the program failed before any step was done: another start would "
                              "end in the same way");
        return true;
    }
    return false;
}

// Failures at the same step. True: decided.
static bool is_loop(struct policy *p, const struct policy_failure *f, struct policy_decision *out) {
    if (is_of_machine(f) || f->step < 0 || p->options.crash_loop == CRASH_LOOP_RETRY) return false;
    // Ranks are at most a step apart, and another one may have been seen to fail this time. Where
    // the step was done since then, it is another failure.
    bool same = p->run.loop_step >= 0 && llabs(f->step - p->run.loop_step) <= 1 &&
                p->attempt_done < p->run.loop_step;
    if (!same) p->run.loop_skipped = false;
    p->run.loop_failures = same ? p->run.loop_failures + 1 : 1;
    if (!same || f->step > p->run.loop_step) p->run.loop_step = f->step;
    if (p->run.loop_failures == 1) return false;
    bool over = p->run.loop_failures > LOOP_RESTARTS || p->options.crash_loop == CRASH_LOOP_STOP;
    if (!over) {
        out->states_back = 1;
        snprintf(out->why, sizeof out->why,
                 "the second failure at step %lld: one state further back than the newest",
                 (long long)p->run.loop_step);
        return true;
    }
    if (p->options.crash_loop == CRASH_LOOP_SKIP && !p->run.loop_skipped) {
        out->skip_step = p->run.loop_step;
        p->run.loop_skipped = true;
        snprintf(out->why, sizeof out->why,
                 "failure %d at step %lld: its batch is passed over from now on",
                 p->run.loop_failures, (long long)p->run.loop_step);
        return true;
    }
    out->skip_step = p->run.loop_step;
    stop(out, "");
    snprintf(out->why, sizeof out->why, "a crash loop: failure %d at step %lld%s",
             p->run.loop_failures, (long long)p->run.loop_step,
             p->run.loop_skipped ? ", whose batch was passed over"
             : p->options.crash_loop == CRASH_LOOP_SKIP
                 ? ""
                 : "; look at its samples, or let --crash-loop skip pass over its batch");
    return true;
}

static double back_off(const struct policy *p) {
    double wait = p->options.back_off_seconds;
    if (p->run.vain == 0 || wait <= 0) return 0; // the first restart is made at once
    for (int i = 1; i < p->run.vain && wait < p->options.back_off_most_seconds; i++) wait *= 2;
    return wait < p->options.back_off_most_seconds ? wait : p->options.back_off_most_seconds;
}

// The host's part in it.
static void look_at_host(struct policy *p, const struct policy_failure *f,
                         struct policy_decision *out) {
    bool bad_host = f->kind == INCIDENT_EXIT && !f->signal && f->status == STATUS_BAD_HOST;
    bool lost = f->kind == INCIDENT_HOST_LOST || f->kind == INCIDENT_HEALTH;
    bool retry = f->kind == INCIDENT_EXIT && !f->signal && f->status == STATUS_RETRY;
    bool machine = f->kind == INCIDENT_HANG || f->kind == INCIDENT_CORRUPTION ||
                   f->kind == INCIDENT_HARDWARE ||
                   (f->signal && f->signal != SIGABRT && is_own_fault(f));
    if (f->host < 0 || f->hearsay || retry) return;
    out->suspicion = is_bad_host(p, f->host, f->time) && !bad_host && !lost;
    if (out->suspicion || bad_host || lost) out->evict_host = f->host;
    if (!bad_host && !lost && machine) out->check_host = f->host;
}

void policy_decide(struct policy *p, const struct policy_failure *f, struct policy_decision *out) {
    *out = (struct policy_decision){
        .action = POLICY_RESTART, .check_host = -1, .evict_host = -1, .skip_step = -1};
    if (is_planned(f->kind)) {
        p->attempt_done = 0;
        snprintf(out->why, sizeof out->why, "planned");
        return;
    }
    if (is_hopeless(p, f, out)) return;
    if (p->run.vain >= p->options.budget) {
        stop(out, "");
        snprintf(out->why, sizeof out->why,
                 p->options.budget == 0 ? "no restarts are allowed"
                                        : "%d restarts brought no step beyond the newest one",
                 p->options.budget);
        give_up(p);
        return;
    }
    look_at_host(p, f, out);
    bool decided = is_loop(p, f, out);
    if (out->action == POLICY_STOP) {
        give_up(p);
        return;
    }
    out->wait_seconds = back_off(p);
    p->run.vain++;
    p->attempt_done = 0;
    if (decided) return;
    if (out->evict_host >= 0)
        snprintf(out->why, sizeof out->why, "another machine may mend it");
    else
        snprintf(out->why, sizeof out->why, "restart %d without a new step, of at most %d",
                 p->run.vain, p->options.budget);
}
