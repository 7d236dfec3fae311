// Who speaks with the supervisor: ranks, agents, and the operator's commands. See
// supervise_parts.h.
#include "base/clock.h"
#include "operate/supervise_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- to the ranks

static json_t *make_facts(const struct supervisor *s) {
    double running = s->state.seconds;
    if (s->starter > 0) running += clock_seconds() - s->begun;
    double mtbf = s->state.failures > 0 ? running / (double)s->state.failures : 0;
    return json_pack("{s:s,s:f}", "type", "facts", "mtbf_seconds", mtbf);
}

void peers_facts(struct supervisor *s) {
    json_t *facts = make_facts(s);
    if (facts) control_send_ranks(s->control, facts);
    json_decref(facts);
}

static void order_leave(struct supervisor *s, int connection) {
    json_t *order = json_pack("{s:s,s:s,s:b}", "type", "order", "order", "leave", "again",
                              s->leave == LEAVE_RESTART && !s->memory_moves);
    if (!order) return;
    if (connection >= 0)
        control_send(s->control, connection, order);
    else
        control_send_ranks(s->control, order);
    json_decref(order);
}

void peers_leave(struct supervisor *s) {
    order_leave(s, -1);
}

void peers_journals(struct supervisor *s) {
    json_t *order = json_pack("{s:s,s:s}", "type", "order", "order", "journal");
    if (order) control_send_ranks(s->control, order);
    json_decref(order);
}

// The latest messages of a rank, beside the stacks of a hang.
static void take_journal(struct supervisor *s, int rank, const json_t *message) {
    const char *text = json_string_value(json_object_get(message, "text"));
    if (text && s->phase == SUPERVISE_COLLECT && s->details.size < DETAILS_MOST_BYTES)
        text_printf(&s->details, "---- messages of rank %d\n%s\n", rank, text);
}

// ---- ranks

// Looks at each rank once or twice in all: ranks that are there, or past loading, stay so.
static void look_at_start(struct supervisor *s) {
    const struct watch_rank *r = s->watch.ranks;
    if (s->loaded > 0) return;
    while (s->seen < s->ranks && r[s->seen].heard > 0) s->seen++;
    if (s->seen < s->ranks) return;
    if (s->arrived <= 0) s->arrived = clock_seconds();
    while (s->seen_loaded < s->ranks && r[s->seen_loaded].phase != BEAT_START &&
           r[s->seen_loaded].phase != BEAT_LOAD)
        s->seen_loaded++;
    if (s->seen_loaded < s->ranks) return;
    s->loaded = clock_seconds();
    s->resumed = true;
    s->first_step = s->watch.step;
    s->known.learning = false;
    peers_facts(s);
}

static void rank_said(struct supervisor *s, const struct control_event *e) {
    struct err err = {0};
    const char *type = json_string_value(json_object_get(e->message, "type"));
    if (type && strcmp(type, "report") == 0) {
        const char *kind = json_string_value(json_object_get(e->message, "kind"));
        if (kind && strcmp(kind, "set_aside") == 0)
            hosts_discard(s, json_object_get(e->message, "evidence"));
        else
            failure_report(s, e->rank, e->message);
        return;
    }
    if (type && strcmp(type, "journal") == 0) {
        take_journal(s, e->rank, e->message);
        return;
    }
    if (watch_beat(&s->watch, e->rank, e->message, clock_seconds(), &err) != 0) {
        control_drop(s->control, e->connection, err.text);
        return;
    }
    look_at_start(s);
    if (s->loaded > 0 && json_number_value(json_object_get(e->message, "step_seconds")) > 0)
        failure_over(s);
}

static void rank_event(struct supervisor *s, const struct control_event *e) {
    if (e->rank < 0 || e->rank >= s->ranks) {
        if (e->what != CONTROL_LEFT)
            control_drop(s->control, e->connection, "from a rank that this run does not have");
        return;
    }
    if (e->what == CONTROL_LEFT) {
        s->connection[e->rank] = -1;
        s->watch.ranks[e->rank].connected = false;
        return;
    }
    if (e->what == CONTROL_CAME) {
        s->connection[e->rank] = e->connection;
        if (s->leave == LEAVE_PREEMPT || s->leave == LEAVE_RESTART) order_leave(s, e->connection);
    }
    rank_said(s, e);
}

// ---- commands

static json_t *failed(const char *text) {
    return json_pack("{s:s}", "error", text);
}

static json_t *rank_status(const struct supervisor *s, int rank, double now) {
    const struct watch_rank *r = &s->watch.ranks[rank];
    int host = r->host;
    json_t *one =
        json_pack("{s:i,s:s,s:s,s:I}", "rank", rank, "host",
                  host >= 0 && host < s->place.count ? s->place.hosts[host].name : "", "phase",
                  r->ended ? "ended" : beat_phase_name(r->phase), "step", (json_int_t)r->step);
    json_object_set_new(one, "pid", json_integer(r->pid));
    json_object_set_new(one, "stage", r->stage >= 0 ? json_integer(r->stage) : json_null());
    json_object_set_new(one, "connected", json_boolean(s->connection[rank] >= 0));
    json_object_set_new(one, "heard_seconds_ago",
                        r->heard > 0 ? json_real(now - r->heard) : json_null());
    json_object_set_new(one, "moved_seconds_ago",
                        r->heard > 0 ? json_real(now - r->progressed) : json_null());
    if (r->waiting) {
        char what[64];
        snprintf(what, sizeof what, "%s %s", r->waits.kind, r->waits.stream);
        json_object_set_new(one, "waits", json_string(what));
    }
    return one;
}

static json_t *host_status(const struct supervisor *s, int host, double now) {
    static const char *const states[] = {
        [PLACE_IN_USE] = "in use", [PLACE_SPARE] = "spare", [PLACE_EVICTED] = "evicted"};
    const struct place_host *p = &s->place.hosts[host];
    const struct watch_host *w = &s->watch.hosts[host];
    json_t *one =
        json_pack("{s:s,s:i,s:s}", "host", p->name, "slots", p->slots, "state", states[p->state]);
    json_object_set_new(one, "heard_seconds_ago",
                        w->heard > 0 ? json_real(now - w->heard) : json_null());
    json_object_set_new(one, "disk_free_bytes", json_integer((json_int_t)w->disk_free_bytes));
    json_object_set_new(one, "memory_free_bytes", json_integer((json_int_t)w->memory_free_bytes));
    json_object_set_new(one, "copies", hosts_copies(s, host));
    return one;
}

static json_t *status(struct supervisor *s) {
    static const char *const phases[] = {[SUPERVISE_RUN] = "running",
                                         [SUPERVISE_COLLECT] = "failed, collecting evidence",
                                         [SUPERVISE_STOP] = "stopping what is left",
                                         [SUPERVISE_WAIT] = "waiting before a restart",
                                         [SUPERVISE_OVER] = "over"};
    double now = clock_seconds();
    const char *why = "", *phase = phases[s->phase];
    if (s->phase == SUPERVISE_RUN && s->leave != LEAVE_NOT) phase = "saving and leaving";
    if (s->phase == SUPERVISE_RUN && s->leave == LEAVE_NOT && s->loaded <= 0) phase = "starting";
    uint64_t dropped = control_dropped(s->control, &why);
    json_t *ranks = json_array(), *hosts = json_array();
    for (int i = 0; i < s->ranks; i++) json_array_append_new(ranks, rank_status(s, i, now));
    for (int i = 0; i < s->place.count; i++) json_array_append_new(hosts, host_status(s, i, now));
    json_t *facts = make_facts(s);
    json_t *answer = json_pack(
        "{s:s,s:i,s:s,s:i,s:I,s:f,s:I,s:O?,s:o,s:o}", "run", s->state.run, "pid", (int)getpid(),
        "state", phase, "launches", s->state.attempts, "step", (json_int_t)s->watch.step,
        "attempt_seconds", now - s->begun, "failures", (json_int_t)s->state.failures,
        "mtbf_seconds", json_object_get(facts, "mtbf_seconds"), "ranks", ranks, "hosts", hosts);
    json_decref(facts);
    json_object_set_new(answer, "dropped_messages", json_integer((json_int_t)dropped));
    if (dropped > 0) json_object_set_new(answer, "dropped_why", json_string(why));
    if (s->state.skip[0]) json_object_set_new(answer, "skip_steps", json_string(s->state.skip));
    return answer;
}

static json_t *inject(struct supervisor *s, const json_t *command) {
    json_t *fault = json_object_get(command, "fault");
    json_int_t rank = json_integer_value(json_object_get(fault, "rank"));
    if (!json_is_object(fault)) return failed("inject: a fault is needed");
    if (s->phase != SUPERVISE_RUN) return failed("inject: no ranks run now; try again");
    if (rank < -1 || rank >= s->ranks) {
        char text[100];
        snprintf(text, sizeof text, "inject: rank %lld: the run has ranks 0 to %d", (long long)rank,
                 s->ranks - 1);
        return failed(text);
    }
    json_t *order = json_pack("{s:s,s:s,s:O}", "type", "order", "order", "fault", "fault", fault);
    int sent = 0;
    for (int i = 0; i < s->ranks; i++)
        if ((rank < 0 || rank == i) && s->connection[i] >= 0)
            sent += control_send(s->control, s->connection[i], order) == 0;
    json_decref(order);
    return sent > 0 ? json_pack("{s:i}", "ranks", sent)
                    : failed("inject: that rank is not connected yet; try again");
}

// The words belong to the message.
static json_t *reload(struct supervisor *s, const json_t *command) {
    struct err err = {0};
    struct text changes = {0};
    const json_t *list = json_object_get(command, "words");
    const char *program = json_string_value(json_object_get(command, "program"));
    size_t count = json_array_size(list);
    if (s->leave != LEAVE_NOT) return failed("reload: the run is leaving already");
    char **words = calloc(count + 1, sizeof *words);
    if (!words) return failed("reload: no memory");
    for (size_t i = 0; i < count; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        words[i] = (char *)(word ? word : "");
    }
    int result = s->calls->reload(s->calls->context, program, words, (int)count, &changes, &err);
    free(words);
    if (result != 0) {
        text_free(&changes);
        return failed(err.text);
    }
    if (program) s->program_mark[0] = 0; // another file, as asked
    s->memory_moves = changes.data && strstr(changes.data, "checkpoint.snapshot_folder: ");
    json_t *answer = json_pack("{s:s}", "changes", changes.data ? changes.data : "");
    failure_reload(s, program, changes.data ? changes.data : "");
    text_free(&changes);
    return answer;
}

static void command_said(struct supervisor *s, const struct control_event *e) {
    const char *name = json_string_value(json_object_get(e->message, "command"));
    json_t *answer;
    if (name && strcmp(name, "status") == 0)
        answer = status(s);
    else if (name && strcmp(name, "inject") == 0)
        answer = inject(s, e->message);
    else if (name && strcmp(name, "reload") == 0)
        answer = reload(s, e->message);
    else
        answer = failed("unknown command; this weft launch is of another version");
    if (answer) control_send(s->control, e->connection, answer);
    json_decref(answer);
    control_end(s->control, e->connection);
}

void peers_event(void *context, const struct control_event *event) {
    struct supervisor *s = context;
    switch (event->role) {
    case CONTROL_RANK:
        rank_event(s, event);
        break;
    case CONTROL_AGENT:
        hosts_event(s, event);
        break;
    case CONTROL_COMMAND:
        if (event->what == CONTROL_SAID) command_said(s, event);
        break;
    }
}
