// From what is seen to what is done: failures, planned restarts, and their record. See
// supervise_parts.h.
#include "base/clock.h"
#include "base/log.h"
#include "operate/supervise_parts.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATUS_IO = 4,
    STATUS_RETRY = 75,
    STATUS_BAD_HOST = 76,
    STATUS_INTERRUPTED = 130,
    FOUND_MOST = 16
};
static const double TELL_SECONDS = 0.4;    // see patience_with
static const double SIGNAL_SECONDS = 0.05; // the same when a signal says it all
static const double LEAVE_SECONDS = 3;     // the same where all leave by themselves
static const double STOP_SECONDS = 0.7;    // that mpirun gets for leaving by itself
// of the one message of comm/transfer.c about a checksum
static const char damaged_text[] = "were damaged on their way";

// ---- records

void failure_say(struct supervisor *s, enum incident_kind kind, int rank, const char *host,
                 int64_t step, const char *evidence, const char *action) {
    struct incident i = {
        .kind = kind, .rank = rank, .step = step, .attempt = s->state.attempts - 1};
    if (i.attempt < 0) i.attempt = 0;
    snprintf(i.host, sizeof i.host, "%s", host);
    snprintf(i.evidence, sizeof i.evidence, "%s", evidence);
    snprintf(i.action, sizeof i.action, "%s", action);
    incidents_put(s->incidents, &i);
}

// What a rank reports of itself, by the beginning of its name.
static enum incident_kind kind_of(const char *name) {
    static const struct {
        const char *begin;
        enum incident_kind kind;
    } kinds[] = {{"loss", INCIDENT_SPIKE},
                 {"norm", INCIDENT_SPIKE},
                 {"grad", INCIDENT_SPIKE},
                 {"spike", INCIDENT_SPIKE},
                 {"roll", INCIDENT_SPIKE},
                 {"silent", INCIDENT_CORRUPTION},
                 {"corruption", INCIDENT_CORRUPTION},
                 {"software", INCIDENT_CORRUPTION}, // or so it looked: no machine is to blame
                 {"replay", INCIDENT_CORRUPTION},
                 {"checkpoint", INCIDENT_DISK},
                 {"snapshot", INCIDENT_DISK},
                 {"disk", INCIDENT_DISK},
                 {"link", INCIDENT_LINK},
                 {"hardware", INCIDENT_HARDWARE},
                 {"counter", INCIDENT_HARDWARE}};
    for (int i = 0; i < INCIDENT_KINDS; i++)
        if (strcmp(name, incident_kind_name((enum incident_kind)i)) == 0)
            return (enum incident_kind)i;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(name, kinds[i].begin, strlen(kinds[i].begin)) == 0) return kinds[i].kind;
    return INCIDENT_HEALTH;
}

// {"type":"report","kind":...,"step":...,"evidence":{"text":...,"action":...,...}}
void failure_report(struct supervisor *s, int rank, const json_t *message) {
    const char *kind = json_string_value(json_object_get(message, "kind"));
    const json_t *evidence = json_object_get(message, "evidence");
    const json_t *step = json_object_get(message, "step");
    const char *text = json_string_value(json_object_get(evidence, "text"));
    const char *action = json_string_value(json_object_get(evidence, "action"));
    const json_t *own_step = json_object_get(evidence, "step");
    if (json_is_integer(own_step)) step = own_step;
    char *all = evidence ? json_dumps(evidence, JSON_INDENT(2)) : NULL;
    struct incident i = {.kind = kind_of(kind ? kind : ""),
                         .time = json_number_value(json_object_get(message, "time")),
                         .rank = rank,
                         .step = json_is_integer(step) ? json_integer_value(step) : -1,
                         .attempt = s->state.attempts - 1};
    int host = s->watch.ranks[rank].host;
    if (host >= 0) snprintf(i.host, sizeof i.host, "%s", s->place.hosts[host].name);
    if (text)
        snprintf(i.evidence, sizeof i.evidence, "rank %d: %.900s", rank, text);
    else
        snprintf(i.evidence, sizeof i.evidence, "rank %d: %s in step %lld", rank,
                 kind ? kind : "a report without a kind", (long long)i.step);
    snprintf(i.action, sizeof i.action, "%s", action ? action : "left to the rank");
    // The file of details is worth its place where the sentence leaves something out.
    i.details =
        all && json_object_size(evidence) > (size_t)(text != NULL) + (size_t)(action != NULL)
            ? all
            : NULL;
    incidents_put(s->incidents, &i);
    free(all);
}

// ---- a failure becomes known

// In which other ranks say what they know. That a rank accuses its host all have agreed on, and
// another one may accuse its own.
static double patience_with(const struct policy_failure *f) {
    if (f->signal) return SIGNAL_SECONDS;
    bool agreed = f->kind == INCIDENT_EXIT && f->status == STATUS_BAD_HOST;
    return agreed ? LEAVE_SECONDS : TELL_SECONDS;
}

void failure_begin(struct supervisor *s, const struct policy_failure *failure, const char *evidence,
                   double happened) {
    double now = clock_seconds();
    s->failure = *failure;
    s->failing = true;
    s->failed = happened > 0 && happened <= now ? happened : now;
    s->detected = now;
    s->failure.time = now;
    s->incident = (struct incident){.kind = failure->kind,
                                    .time = clock_wall_seconds() - (now - s->failed),
                                    .rank = failure->rank,
                                    .step = failure->step,
                                    .attempt = s->state.attempts - 1};
    snprintf(s->incident.evidence, sizeof s->incident.evidence, "%s", evidence);
    if (failure->host >= 0)
        snprintf(s->incident.host, sizeof s->incident.host, "%s",
                 s->place.hosts[failure->host].name);
    s->details.size = 0;
    s->phase = SUPERVISE_COLLECT;
    s->deadline = now + patience_with(failure);
    if (failure->kind != INCIDENT_HANG) return;
    peers_journals(s);
    hosts_stacks(s);
}

static void begin_to_stop(struct supervisor *s) {
    s->phase = SUPERVISE_STOP;
    s->deadline = clock_seconds() + STOP_SECONDS;
    hosts_kill(s);
}

// Wall time of the keeper's host; clocks may differ.
static double when_ended(const struct report_rank *r) {
    double ago = clock_wall_seconds() - r->time;
    return r->time > 0 && ago >= 0 && ago < 5 ? clock_seconds() - ago : 0;
}

// The step that the rank was in: its keeper knows it exactly, beats may be a second old.
static int64_t step_of(const struct supervisor *s, int rank) {
    int64_t step = s->reader.rank[rank].step;
    const struct watch_rank *r = &s->watch.ranks[rank];
    if (step > 0) return step;
    bool begun = r->heard > 0 && r->phase != BEAT_START && r->phase != BEAT_LOAD;
    return begun && r->step > 0 ? r->step : -1;
}

static void exit_of(struct supervisor *s, int rank) {
    const struct report_rank *r = &s->reader.rank[rank];
    struct policy_failure f = {.kind = INCIDENT_EXIT,
                               .rank = rank,
                               .host = s->watch.ranks[rank].host,
                               .status = r->status,
                               .signal = r->signal,
                               .step = step_of(s, rank)};
    struct text text = {0};
    report_failed(&s->reader, rank, &text);
    if (f.step > 0)
        text_printf(&text, " in step %lld", (long long)f.step);
    else
        text_puts(&text, " before its first step");
    failure_begin(s, &f, text.data ? text.data : "", when_ended(r));
    text_free(&text);
}

// Another rank than the one that was seen to end first. What it ended of may have been known before
// it ended itself.
static void charge(struct supervisor *s, int rank) {
    double deadline = s->deadline, detected = s->detected, failed = s->failed;
    exit_of(s, rank);
    s->deadline = deadline;
    s->detected = detected;
    if (s->failed > failed) s->failed = failed;
}

// A rank that accuses its machine has the last word.
static void look_for_bad_host(struct supervisor *s) {
    if (s->failure.kind != INCIDENT_EXIT || s->failure.status == STATUS_BAD_HOST) return;
    for (int i = 0; i < s->ranks; i++) {
        if (!s->reader.rank[i].ended || s->reader.rank[i].status != STATUS_BAD_HOST) continue;
        charge(s, i);
        return;
    }
}

// The others were told of it by the rank that failed.
static void look_for_culprit(struct supervisor *s) {
    bool sure;
    if (s->failure.kind != INCIDENT_EXIT || s->failure.rank < 0 ||
        s->failure.status == STATUS_BAD_HOST)
        return;
    int rank = report_culprit(&s->reader, &sure);
    if (rank >= 0 && rank != s->failure.rank) charge(s, rank);
    s->failure.hearsay = !sure;
}

// The step in which a hang or a lost host met the run. A rank that is silent may have begun one
// more than it could say.
static int64_t step_that_stopped(const struct supervisor *s, const struct incident *found) {
    if (found->rank < 0) return s->watch.step;
    int64_t step = step_of(s, found->rank);
    return step > 0 && found->step > step ? found->step : step;
}

static void look_at_beats(struct supervisor *s) {
    struct incident found[FOUND_MOST];
    double now = clock_seconds();
    int count = watch_look(&s->watch, now, found, FOUND_MOST);
    for (int i = 0; i < count; i++) {
        struct incident *one = &found[i];
        one->attempt = s->state.attempts - 1;
        if (one->kind != INCIDENT_HANG && one->kind != INCIDENT_HOST_LOST) {
            snprintf(one->action, sizeof one->action, "none");
            incidents_put(s->incidents, one);
            continue;
        }
        int host = one->host[0] ? place_find(&s->place, one->host) : -1;
        bool spare = host >= 0 && s->place.hosts[host].state != PLACE_IN_USE;
        if (s->failing || spare) continue; // supervise_hosts.c deals with those that run nothing
        double happened = now;
        if (one->rank >= 0) happened = s->watch.ranks[one->rank].moved;
        if (one->kind == INCIDENT_HOST_LOST && host >= 0) happened = s->watch.hosts[host].heard;
        struct policy_failure f = {
            .kind = one->kind, .rank = one->rank, .host = host, .step = step_that_stopped(s, one)};
        failure_begin(s, &f, one->evidence, happened);
    }
}

static void note_progress(struct supervisor *s) {
    if (s->loaded <= 0 || s->watch.step <= s->first_step) return;
    policy_progress(s->policy, s->watch.step - 1);
    if (s->kept) return;
    s->kept = true; // once: a relaunch is to know that the program works
    supervise_keep(s);
}

static void starter_ended(struct supervisor *s) {
    bool done = s->starter_status == 0 && s->ended == s->ranks;
    if (done || s->leave != LEAVE_NOT) {
        begin_to_stop(s);
        return;
    }
    struct policy_failure f = {.kind = INCIDENT_EXIT,
                               .rank = -1,
                               .host = -1,
                               .status = s->starter_status < 128 ? s->starter_status : 0,
                               .signal = s->starter_status >= 128 ? s->starter_status - 128 : 0,
                               .step = s->loaded > 0 ? s->watch.step : -1};
    char text[200];
    snprintf(text, sizeof text, "mpirun ended with status %d before a rank said why",
             s->starter_status);
    failure_begin(s, &f, text, 0);
}

void failure_look(struct supervisor *s) {
    note_progress(s);
    bool leaving = s->leave != LEAVE_NOT;
    double now = clock_seconds();
    if (s->phase == SUPERVISE_RUN) {
        bool late = s->leave != LEAVE_INTERRUPT && now > s->leave_by;
        if (!leaving && s->reader.first_rank >= 0)
            exit_of(s, s->reader.first_rank);
        else if (s->starter_left)
            starter_ended(s);
        else if (leaving && (s->ended == s->ranks || late))
            begin_to_stop(s);
        else if (!leaving)
            look_at_beats(s);
    }
    if (s->phase != SUPERVISE_COLLECT) return;
    look_for_bad_host(s);
    look_for_culprit(s);
    bool all_said = s->ended == s->ranks || s->starter_left || now >= s->deadline;
    // Stacks are of processes that live; their orders have a deadline of their own.
    if (all_said && s->pending == 0) begin_to_stop(s);
}

// ---- what is done

static void over(struct supervisor *s, int status) {
    s->phase = SUPERVISE_OVER;
    s->status = status;
}

static void give_up(struct supervisor *s, const struct policy_decision *d) {
    char line[700];
    snprintf(s->incident.action, sizeof s->incident.action, "stop: %.240s", d->why);
    s->incident.details = s->details.size > 0 ? s->details.data : NULL;
    incidents_put(s->incidents, &s->incident);
    if (d->skip_step < 0) return;
    struct text samples = {0};
    struct err err = {0};
    bool known = s->calls->samples(s->calls->context, d->skip_step, &samples, &err) == 0;
    snprintf(line, sizeof line, "step %lld fails again and again; its samples: %.600s",
             (long long)d->skip_step, known ? samples.data : err.text);
    failure_say(s, INCIDENT_GIVEN_UP, s->failure.rank, s->incident.host, d->skip_step, line,
                "stop; train.skip_steps or --crash-loop skip pass over a batch");
    text_free(&samples);
}

static void skip(struct supervisor *s, int64_t step) {
    char text[32];
    size_t used = strlen(s->state.skip);
    snprintf(text, sizeof text, "%s%lld", used ? "," : "", (long long)step);
    if (used + strlen(text) < sizeof s->state.skip) // else half a number: another step
        memcpy(s->state.skip + used, text, strlen(text) + 1);
}

int failure_evict(struct supervisor *s, int host, struct text *action) {
    struct err err = {0};
    int spare, before = s->place.replicas;
    const char *name = s->place.hosts[host].name;
    if (place_evict(&s->place, host, &spare, &err) != 0) {
        text_printf(action, "stop: %s", err.text);
        return -1;
    }
    text_printf(action, "evict %s, ", name);
    if (spare >= 0) text_printf(action, "%s takes its place; ", s->place.hosts[spare].name);
    if (s->place.replicas != before) {
        char text[200];
        snprintf(text, sizeof text, "%d of %d data-parallel replicas go on, on %d ranks",
                 s->place.replicas, before, place_ranks(&s->place));
        text_printf(action, "%s; ", text);
        failure_say(s, INCIDENT_SHRINK, -1, name, s->incident.step, text,
                    "the same batch and order of samples");
    }
    return 0;
}

static void describe(struct supervisor *s, const struct policy_decision *d, struct text *action) {
    if (s->failure.kind == INCIDENT_GROW)
        text_printf(action, "restart with %d data-parallel replicas", place_grow(&s->place));
    else
        text_puts(action, d->evict_host >= 0 ? "restart" : "restart on the same hosts");
    if (d->states_back > 0)
        text_printf(action, " from %d state%s before the newest", d->states_back,
                    d->states_back == 1 ? "" : "s");
    if (d->skip_step >= 0) text_printf(action, " without step %lld", (long long)d->skip_step);
    if (d->wait_seconds > 0) text_printf(action, " in %g s", d->wait_seconds);
    text_printf(action, " (%s)", d->why);
}

static void restart(struct supervisor *s, struct policy_decision *d) {
    struct text action = {0};
    bool may_evict = d->evict_host >= 0;
    // Suspicion alone costs no replica.
    if (may_evict && d->suspicion && place_count(&s->place, PLACE_SPARE) == 0) {
        d->evict_host = -1;
        may_evict = false;
    }
    if (s->failure.status == STATUS_BAD_HOST && may_evict) hosts_bar(s, d->evict_host);
    if (d->check_host >= 0 && d->check_host != d->evict_host) hosts_suspect(s, d->check_host);
    if (may_evict && failure_evict(s, d->evict_host, &action) != 0) {
        snprintf(s->incident.action, sizeof s->incident.action, "%s", action.data);
        incidents_put(s->incidents, &s->incident);
        over(s, s->failure.status == STATUS_BAD_HOST ? STATUS_BAD_HOST : STATUS_RETRY);
        text_free(&action);
        return;
    }
    describe(s, d, &action);
    snprintf(s->incident.action, sizeof s->incident.action, "%s", action.data ? action.data : "");
    s->incident.details = s->details.size > 0 ? s->details.data : NULL;
    s->number = incidents_put(s->incidents, &s->incident);
    text_free(&action);
    s->states_back = d->states_back;
    if (d->skip_step >= 0) skip(s, d->skip_step);
    if (s->failure.kind != INCIDENT_RELOAD && s->failure.kind != INCIDENT_GROW) s->state.failures++;
    s->failing = false;
    s->leave = LEAVE_NOT;
    s->memory_moves = false;
    s->phase = SUPERVISE_WAIT;
    s->deadline = clock_seconds() + d->wait_seconds;
}

// `said`: a rank has said how it ended.
static void decide(struct supervisor *s, bool said, int status, struct text *last) {
    struct policy_decision d;
    if (s->failure.step > 1) policy_progress(s->policy, s->failure.step - 1);
    policy_decide(s->policy, &s->failure, &d);
    if (d.action == POLICY_RESTART) {
        restart(s, &d);
        return;
    }
    if (status == STATUS_INTERRUPTED && !s->failure.signal) {
        over(s, status); // a rank was told to by its user, and has said so
        return;
    }
    give_up(s, &d);
    // A hang or a lost host has no status of its own, and mpirun was ended from here.
    if (s->failure.kind != INCIDENT_EXIT && !said) {
        over(s, STATUS_IO);
        return;
    }
    // A rank that left for another start has said why itself.
    if (last->size > 0 && status != STATUS_RETRY)
        s->calls->show(s->calls->context, last->data, last->size);
    over(s, status ? status : STATUS_IO);
}

// Of a run that was asked to leave for good.
static void left(struct supervisor *s, int status, const struct text *last) {
    if (s->failing) { // what it was about when it was asked
        snprintf(s->incident.action, sizeof s->incident.action, "none: the run was asked to leave");
        s->incident.details = s->details.size > 0 ? s->details.data : NULL;
        incidents_put(s->incidents, &s->incident);
        s->failing = false;
    }
    if (s->leave == LEAVE_INTERRUPT) {
        bool at_once = s->interrupts > 1 || s->ended == 0;
        if (last->size > 0 && !at_once) s->calls->show(s->calls->context, last->data, last->size);
        over(s, at_once || status == 0 ? STATUS_INTERRUPTED : status);
        return;
    }
    bool saved = s->ended == s->ranks && status == STATUS_RETRY;
    failure_say(s, INCIDENT_PREEMPTED, -1, "", s->watch.step,
                saved ? "the run was asked to leave; all ranks have saved and left"
                      : "the run was asked to leave; not all ranks have saved within the grace "
                        "time, so the newest complete state counts",
                "leave with status 75; the same command goes on");
    over(s, STATUS_RETRY);
}

// What the rank itself says of its end, by the time that all is said.
static void add_message(struct supervisor *s) {
    struct incident *i = &s->incident;
    if (s->failure.kind != INCIDENT_EXIT || s->failure.signal) return;
    attempt_read(s);
    const char *message = report_message(&s->reader, s->failure.rank);
    size_t used = strlen(i->evidence);
    if (!message[0]) return;
    snprintf(i->evidence + used, sizeof i->evidence - used, ": %s", message);
    if (strstr(message, damaged_text)) i->kind = INCIDENT_CORRUPTION;
}

// Which hosts had to do with it is said by the rank that saw it first, and passed on by others.
static void look_for_damage(struct supervisor *s) {
    struct incident *i = &s->incident;
    int from, to;
    if (s->failure.kind != INCIDENT_EXIT || s->failure.signal) return;
    const char *at, *message = report_message(&s->reader, s->failure.rank);
    if (!strstr(message, damaged_text) || !(at = strstr(message, " bytes from rank ")) ||
        sscanf(at, " bytes from rank %d (%*[^)]) to rank %d (", &from, &to) != 2 || from < 0 ||
        to < 0 || from >= s->ranks || to >= s->ranks)
        return;
    size_t used = strlen(i->evidence);
    from = s->watch.ranks[from].host;
    to = s->watch.ranks[to].host;
    if (from < 0 || to < 0 || !hosts_damaged(s, from, to)) return;
    const char *name = s->place.hosts[from].name, *other = s->place.hosts[to].name;
    if (from == to)
        snprintf(i->evidence + used, sizeof i->evidence - used,
                 "; it happens again and again: %s has to pass a health check", name);
    else
        snprintf(i->evidence + used, sizeof i->evidence - used,
                 "; it happens again and again: %s and %s have to pass a health check", name,
                 other);
}

// Two replicas that contradict each other cannot tell which is wrong, so that the ranks of both
// accuse their hosts. One of these is taken out; the others have to prove themselves.
static void suspect_others(struct supervisor *s) {
    struct incident *i = &s->incident;
    attempt_read(s);
    for (int r = 0; r < s->ranks; r++) {
        int host = s->watch.ranks[r].host;
        if (!s->reader.rank[r].ended || s->reader.rank[r].status != STATUS_BAD_HOST || host < 0 ||
            host == s->failure.host)
            continue;
        hosts_suspect(s, host);
        size_t used = strlen(i->evidence);
        snprintf(i->evidence + used, sizeof i->evidence - used,
                 "; rank %d on %s accuses its host, too: it is checked before ranks run there "
                 "again",
                 r, s->place.hosts[host].name);
    }
}

// mpirun was quicker than what it had to pass on.
static void look_again(struct supervisor *s) {
    attempt_read(s);
    bool unsaid = s->failure.kind == INCIDENT_EXIT && s->failure.rank < 0 && !s->failure.status &&
                  !s->failure.signal;
    if (s->failing && unsaid && s->reader.first_rank < 0 && s->ended == s->ranks)
        s->failing = false;
}

void failure_settle(struct supervisor *s) {
    struct text last = {0};
    look_again(s);
    bool done = !s->failing && s->reader.first_rank < 0 && s->ended == s->ranks;
    int ended = s->ended;
    bool said = s->reader.first_rank >= 0;
    if (s->failing) add_message(s);
    if (s->failing) look_for_damage(s);
    if (s->failing) suspect_others(s);
    attempt_close(s, &last);
    s->ended = ended;
    int status = s->status;
    if (done)
        over(s, 0);
    else if (s->leave == LEAVE_INTERRUPT || s->leave == LEAVE_PREEMPT)
        left(s, status, &last);
    else
        decide(s, said, status, &last);
    text_free(&last);
}

// ---- planned

void supervise_ask_to_leave(struct supervisor *s, enum supervise_leave leave) {
    bool was = s->leave == leave, connected = false;
    bool at_once = leave == LEAVE_INTERRUPT && s->interrupts > 1;
    if (leave < s->leave && s->leave != LEAVE_RESTART && !at_once) return;
    // Who asks again gets no more time.
    if (leave != s->leave) s->leave_by = clock_seconds() + s->options->grace_seconds;
    s->leave = leave;
    if (s->phase == SUPERVISE_WAIT) {
        if (leave == LEAVE_RESTART) return;
        over(s, leave == LEAVE_PREEMPT ? STATUS_RETRY : STATUS_INTERRUPTED);
        return;
    }
    if (s->phase != SUPERVISE_RUN) return;
    for (int i = 0; i < s->ranks; i++) connected = connected || s->connection[i] >= 0;
    if (leave == LEAVE_INTERRUPT) {
        if (at_once || !connected) // nothing to save yet, and mpirun may not listen yet
            begin_to_stop(s);
        else
            attempt_interrupt(s);
        return;
    }
    if (!connected)
        begin_to_stop(s); // nothing to save yet
    else if (!was)
        peers_leave(s);
}

void supervise_one_line(struct text *out, const char *begin, const char *lines) {
    text_puts(out, begin);
    for (const char *p = lines; *p; p++) {
        if (*p != '\n')
            text_put(out, p, 1);
        else if (p[1])
            text_puts(out, "; ");
    }
}

static void describe_reload(const char *program, const char *changes, struct text *out) {
    text_puts(out, "the operator asked for a restart");
    if (program) text_printf(out, " as %s", program);
    if (changes[0])
        supervise_one_line(out, " with changes: ", changes);
    else
        text_puts(out, ", nothing in the configuration changed");
}

static void plan_restart(struct supervisor *s, enum incident_kind kind, const char *evidence) {
    double now = clock_seconds();
    s->failing = true;
    s->failure = (struct policy_failure){
        .kind = kind, .rank = -1, .host = -1, .step = s->watch.step, .time = now};
    s->failed = s->detected = now;
    s->incident = (struct incident){
        .kind = kind, .rank = -1, .step = s->watch.step, .attempt = s->state.attempts - 1};
    snprintf(s->incident.evidence, sizeof s->incident.evidence, "%s", evidence);
    s->details.size = 0;
    supervise_ask_to_leave(s, LEAVE_RESTART);
}

void failure_grow(struct supervisor *s, const char *host) {
    char text[400];
    snprintf(text, sizeof text,
             "host %.200s is back and healthy: %d ranks run, more data-parallel replicas fit", host,
             s->ranks);
    plan_restart(s, INCIDENT_GROW, text);
}

void failure_reload(struct supervisor *s, const char *program, const char *changes) {
    struct text text = {0};
    describe_reload(program, changes, &text);
    if (s->phase != SUPERVISE_RUN) { // a restart is under way, and takes it
        failure_say(s, INCIDENT_RELOAD, -1, "", s->watch.step, text.data ? text.data : "",
                    "taken by the restart that is under way");
        text_free(&text);
        return;
    }
    plan_restart(s, INCIDENT_RELOAD, text.data ? text.data : "");
    text_free(&text);
}

// The run is back in a step.
void failure_over(struct supervisor *s) {
    if (s->stepped) return;
    double now = clock_seconds();
    s->stepped = true;
    s->states_back = 0;
    if (s->number <= 0) return;
    const double seconds[PHASES] = {[PHASE_DETECT] = s->detected - s->failed,
                                    [PHASE_EVICT] = s->begun - s->detected,
                                    [PHASE_LAUNCH] = s->arrived - s->begun,
                                    [PHASE_LOAD] = s->loaded - s->arrived,
                                    [PHASE_FIRST_STEP] = now - s->loaded};
    incidents_restarted(s->incidents, s->number, seconds);
    s->number = 0;
}
