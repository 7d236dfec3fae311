// The loop of the supervisor: opening, signals, time. See supervise.h and supervise_parts.h.
#include "operate/supervise.h"
#include "base/clock.h"
#include "base/log.h"
#include "operate/leftovers.h"
#include "operate/marks.h"
#include "operate/supervise_parts.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const double LOOK_SECONDS = 0.5; // at what beats say, at least so often
static const double KILL_SECONDS = 0.01;
static const double OLD_SECONDS = 3;    // for what another supervisor left
static const double SETTLE_SECONDS = 3; // nothing of an attempt outlives its order so long

// ---- opening ------------------------------------------------------------------------------------

static int open_signals(struct supervisor *s, sigset_t *before, struct err *err) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD};
    struct sigaction hangup;
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&set, numbers[i]);
    // nohup ignores it, but the system keeps an ignored signal for whoever has blocked it
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, before) != 0)
        return err_set_errno(err, "launch: signals cannot be blocked");
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0) return err_set_errno(err, "launch: no descriptor for signals");
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

static int open_place(struct supervisor *s, struct err *err) {
    char name[256] = "";
    const struct supervise_options *o = s->options;
    if (gethostname(name, sizeof name - 1) != 0 || !name[0])
        snprintf(name, sizeof name, "localhost");
    struct host here = {.name = name, .slots = o->shape.unit * o->shape.replicas};
    struct hosts one = {.list = &here, .count = 1, .slots = here.slots};
    if (place_open(&s->place, o->hosts ? o->hosts : &one, o->hosts ? o->spares : 0, &o->shape,
                   err) != 0)
        return -1;
    if (watch_open(&s->watch, place_ranks(&s->place), s->place.count, err) != 0) return -1;
    for (int i = 0; i < s->place.count; i++)
        snprintf(s->watch.hosts[i].name, sizeof s->watch.hosts[i].name, "%s",
                 s->place.hosts[i].name);
    return 0;
}

// The user has taken them (--accept-changes); the log keeps them.
static void tell_changes(struct supervisor *s) {
    struct text line = {0};
    if (!s->options->changes || !s->options->changes[0]) return;
    supervise_one_line(&line, "changed since the last launch: ", s->options->changes);
    failure_say(s, INCIDENT_CONFIG, -1, "", -1, line.data ? line.data : "", "taken, as told");
    text_free(&line);
}

// Of a supervisor that was killed: nobody else is at work on this run, since we hold the lock.
static void end_old(struct supervisor *s) {
    int left;
    marks_kill(s->state.run, 0, false, OLD_SECONDS, &left);
    hosts_left_here(s, left);
    leftovers_remove(s->options->temporary_folder, "/dev/shm", s->state.starter);
    s->state.starter = 0;
}

// What failed before the user changed something may not fail now.
static void recall(struct supervisor *s) {
    struct policy_history h = s->state.history;
    if (s->options->changes && s->options->changes[0]) {
        h = policy_history_none();
        h.newest = s->state.history.newest;
    }
    policy_recall(s->policy, &h);
}

static int open_all(struct supervisor *s, sigset_t *before, struct err *err) {
    const struct supervise_options *o = s->options;
    if (supervise_read_state(o->run_folder, &s->state, err) != 0 ||
        incidents_open(&s->incidents, o->run_folder, err) != 0 ||
        policy_open(&s->policy, &o->policy, err) != 0 || open_place(s, err) != 0 ||
        wire_key_make(&s->key, err) != 0 ||
        control_open(&s->control, o->address, o->port, &s->key, err) != 0 ||
        open_signals(s, before, err) != 0 || hosts_open(s, err) != 0)
        return -1;
    recall(s);
    return supervise_publish(o->run_folder, o->address, control_port(s->control), &s->key,
                             s->state.run, err);
}

static void close_all(struct supervisor *s) {
    hosts_close(s);
    if (s->control) {
        supervise_withdraw(s->options->run_folder);
        control_close(s->control);
    }
    if (s->signals >= 0) close(s->signals);
    policy_close(s->policy);
    if (s->incidents) incidents_close(s->incidents);
    watch_close(&s->watch);
    place_close(&s->place);
    text_free(&s->details);
    text_free(&s->changed);
    free(s->connection);
}

void supervise_keep(struct supervisor *s) {
    struct err err = {0};
    policy_keep(s->policy, &s->state.history);
    if (supervise_write_state(s->options->run_folder, &s->state, &err) != 0)
        log_line(LOG_WARN, "%s", err.text);
}

// ---- signals ------------------------------------------------------------------------------------

static void take_signals(struct supervisor *s) {
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGINT) {
            s->interrupts++;
            supervise_ask_to_leave(s, LEAVE_INTERRUPT);
        } else if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGUSR1 ||
                   info.ssi_signo == SIGHUP) {
            // Schedulers repeat themselves; shell and kernel both tell of a terminal that is gone.
            if (s->leave != LEAVE_PREEMPT)
                log_line(LOG_INFO,
                         "asked to leave: ranks finish their step and save, within %.0f s at most",
                         s->options->grace_seconds);
            supervise_ask_to_leave(s, LEAVE_PREEMPT);
        }
    }
    attempt_reap(s);
}

// ---- the loop -----------------------------------------------------------------------------------

static void tell_dropped(struct supervisor *s) {
    const char *why;
    uint64_t dropped = control_dropped(s->control, &why);
    if (dropped == s->dropped) return;
    // Once for the first, then at every doubling: who knocks all night fills no log.
    if (s->dropped == 0 || dropped >= 2 * s->dropped) {
        char text[512];
        snprintf(text, sizeof text, "%llu message%s dropped so far; the last: %.300s",
                 (unsigned long long)dropped, dropped == 1 ? "" : "s", why ? why : "");
        failure_say(s, INCIDENT_FORGED, -1, "", -1, text, "dropped");
        s->dropped = dropped;
    }
}

static void stop(struct supervisor *s) {
    int left;
    if (attempt_kill(s, &left) && s->pending == 0) {
        failure_settle(s);
    } else if (clock_seconds() > s->deadline + SETTLE_SECONDS) {
        hosts_left_here(s, left);
        failure_settle(s); // hosts that do not answer are lost, and will be found so
    }
}

static void launch(struct supervisor *s) {
    struct err err = {0};
    if (clock_seconds() < s->deadline) return;
    int ready = hosts_ready(s, &err);
    if (ready == 0) return;
    s->phase = SUPERVISE_RUN;
    if (ready > 0 && attempt_start(s, &err) == 0) return;
    log_line(LOG_WARN, "the ranks cannot be started: %s", err.text);
    s->phase = SUPERVISE_OVER;
    s->status = err_exit_status(&err);
}

static void act(struct supervisor *s) {
    attempt_reap(s);
    hosts_tick(s);
    if (s->starter > 0 && s->starter_left) attempt_read(s); // what it said last
    if (s->phase == SUPERVISE_RUN || s->phase == SUPERVISE_COLLECT) failure_look(s);
    if (s->phase == SUPERVISE_STOP) stop(s);
    if (s->phase == SUPERVISE_WAIT) launch(s);
}

static double patience(const struct supervisor *s) {
    double now = clock_seconds(), wait = LOOK_SECONDS;
    if (s->phase == SUPERVISE_STOP) return KILL_SECONDS;
    if (s->phase == SUPERVISE_COLLECT || s->phase == SUPERVISE_WAIT) wait = s->deadline - now;
    if (wait > LOOK_SECONDS) wait = LOOK_SECONDS;
    return wait > KILL_SECONDS ? wait : KILL_SECONDS;
}

static int run(struct supervisor *s, struct err *err) {
    s->phase = SUPERVISE_WAIT;
    s->deadline = 0;
    while (s->phase != SUPERVISE_OVER) {
        act(s);
        if (s->phase == SUPERVISE_OVER) break;
        struct pollfd others[2] = {{s->signals, POLLIN, 0}, {s->errors, POLLIN, 0}};
        int count = s->starter > 0 && s->errors >= 0 ? 2 : 1;
        if (control_wait(s->control, others, count, patience(s), peers_event, s, err) != 0)
            return -1;
        if (others[0].revents) take_signals(s);
        if (count == 2 && others[1].revents) attempt_read(s);
        tell_dropped(s);
    }
    return s->status;
}

int supervise(const struct supervise_options *options, const struct supervise_calls *calls,
              struct err *err) {
    sigset_t before;
    struct supervisor *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, ERR_MEMORY, "no memory for the supervisor");
    s->options = options;
    s->calls = calls;
    s->signals = s->errors = -1;
    s->watch.step = -1;
    int status = open_all(s, &before, err);
    if (status == 0) {
        end_old(s);
        tell_changes(s);
        status = run(s, err);
        struct err own = {0};
        supervise_keep(s);
        if (supervise_write_evicted(s, &own) != 0) log_line(LOG_WARN, "%s", own.text);
    }
    close_all(s);
    free(s);
    return status;
}
