// The hosts of a run, as the supervisor deals with them: their agents, orders to them, and whose
// snapshots go where. See supervise_parts.h.
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "operate/supervise_hosts_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double QUIET_SECONDS = 2.5; // since its last word, and a host may be lost
static const double KILL_ORDER_SECONDS = 3, STACKS_ORDER_SECONDS = 4, SHORT_ORDER_SECONDS = 10;
static const double LEAVE_SECONDS = 1;
static const double COPY_SECONDS = 8; // that copies fail before it is told

bool hosts_is_quiet(const struct supervisor *s, int host) {
    return !hosts_is_ready(s, host) || clock_seconds() > hosts_view(s, host)->heard + QUIET_SECONDS;
}

// Of the program that ranks and agents are started from now: after --reload, or where the file was
// replaced, another one than this process.
static const char *program_now(void *context) {
    const struct supervisor *s = context;
    struct supervise_hosts *h = s->hosts;
    struct err err = {0};
    char mark[PROGRAM_MARK_BYTES];
    program_mark(s->options->program, mark);
    if (strcmp(mark, h->program_mark) == 0) return h->program_digest;
    memcpy(h->program_mark, mark, sizeof mark);
    h->program_digest[0] = 0;
    if (program_digest(s->options->program, h->program_digest, &err) != 0)
        log_line(LOG_WARN, "%s", err.text);
    return h->program_digest;
}

int hosts_open(struct supervisor *s, struct err *err) {
    const struct supervise_options *o = s->options;
    struct supervise_hosts *h = calloc(1, sizeof *h);
    struct agents_options options = {.control = s->control,
                                     .program = o->program,
                                     .remote = o->remote,
                                     .slurm = o->slurm,
                                     .loader_path = o->loader_path,
                                     .run = s->state.run,
                                     .address = o->address,
                                     .port = control_port(s->control),
                                     .key = s->key,
                                     .snapshot_folder = o->snapshot_folder,
                                     .binary = version_digest(),
                                     .binary_now = program_now,
                                     .context = s};
    if (h) h->list = calloc((size_t)s->place.count, sizeof *h->list);
    if (!h || !h->list) {
        free(h);
        return err_set(err, ERR_MEMORY, "no memory for the hosts");
    }
    s->hosts = h;
    h->count = s->place.count;
    // Agents of other hosts do not begin in this folder.
    if (!realpath(o->run_folder, h->folder)) return err_set_errno(err, "%s", o->run_folder);
    options.disk_folder = h->folder;
    if (agents_open(&h->agents, &options, err) != 0) return -1;
    for (int i = 0; i < h->count; i++) {
        h->list[i].buddy = h->list[i].partner = -1;
        if (agents_add(h->agents, hosts_placed(s, i)->name, err) < 0) return -1;
    }
    return 0;
}

static void ignore_event(void *context, const struct control_event *event) {
    struct supervisor *s = context;
    if (event->role == CONTROL_AGENT) agents_event(s->hosts->agents, event, clock_seconds());
}

void hosts_ignore(void *context, int host, const json_t *reply, const char *error) {
    (void)context, (void)host, (void)reply, (void)error;
}

// A run that is over needs no snapshots; one that goes on later does.
void hosts_close(struct supervisor *s) {
    struct supervise_hosts *h = s->hosts;
    if (!h) return;
    if (h->agents) {
        double until = clock_seconds() + LEAVE_SECONDS;
        bool waiting = true;
        bool over = s->phase == SUPERVISE_OVER && s->status == 0;
        for (int i = 0; i < agents_count(h->agents) && over; i++)
            if (hosts_is_ready(s, i))
                agents_order(h->agents, i, "forget", NULL, LEAVE_SECONDS, hosts_ignore, NULL);
        agents_leave(h->agents);
        while (waiting && clock_seconds() < until) {
            waiting = false;
            if (control_wait(s->control, NULL, 0, 0.02, ignore_event, s, NULL) != 0) break;
            for (int i = 0; i < agents_count(h->agents); i++)
                waiting = waiting || hosts_is_ready(s, i);
        }
        agents_close(h->agents);
    }
    json_decref(h->discard);
    free(h->list);
    free(h);
    s->hosts = NULL;
}

// ---- orders to all ------------------------------------------------------------------------------

static void on_killed(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    s->pending--;
    hosts_killed(s, host, reply);
    if (error) log_line(LOG_INFO, "ranks on %s: %s", hosts_placed(s, host)->name, error);
}

void hosts_kill(struct supervisor *s) {
    for (int i = 0; i < s->hosts->count; i++) {
        if (hosts_is_quiet(s, i) || hosts_view(s, i)->here) continue; // here it is done directly
        s->pending++;
        agents_order(s->hosts->agents, i, "kill", json_pack("{s:f}", "seconds", 2.0),
                     KILL_ORDER_SECONDS, on_killed, s);
    }
}

static void on_stacks(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    const char *text = json_string_value(json_object_get(reply, "text"));
    s->pending--;
    if (s->failing || s->number > 0)
        text_printf(&s->details, "host %s:\n%s%s\n", hosts_placed(s, host)->name,
                    error ? error : "", text ? text : "");
}

void hosts_stacks(struct supervisor *s) {
    for (int i = 0; i < s->hosts->count; i++) {
        json_t *pids = json_array();
        for (int rank = 0; rank < s->ranks; rank++)
            if (s->watch.ranks[rank].host == i && s->watch.ranks[rank].pid > 0) {
                json_array_append_new(pids, json_integer(s->watch.ranks[rank].pid));
                text_printf(&s->details, "rank %d is process %d on %s\n", rank,
                            s->watch.ranks[rank].pid, hosts_placed(s, i)->name);
            }
        if (!hosts_is_quiet(s, i) && json_array_size(pids) > 0) {
            s->pending++;
            agents_order(s->hosts->agents, i, "stacks", json_pack("{s:O}", "pids", pids),
                         STACKS_ORDER_SECONDS, on_stacks, s);
        }
        json_decref(pids);
    }
}

// ---- what changes while ranks run ---------------------------------------------------------------

// Another instruction set sums in another order.
static void compare_isa(struct supervisor *s, int host) {
    struct supervise_hosts *h = s->hosts;
    const struct agent_view *v = hosts_view(s, host);
    char evidence[600];
    if (!h->isa[0] && hosts_placed(s, host)->state == PLACE_IN_USE)
        snprintf(h->isa, sizeof h->isa, "%s", v->isa);
    if (!h->isa[0] || h->list[host].told_isa || strcmp(h->isa, v->isa) == 0) return;
    h->list[host].told_isa = true;
    snprintf(evidence, sizeof evidence,
             "host %.200s computes with %s, the others with %s: with ranks on it, bits may differ "
             "(device.isa makes all use the same)",
             v->host, v->isa, h->isa);
    failure_say(s, INCIDENT_MISMATCH, -1, v->host, -1, evidence,
                hosts_placed(s, host)->state == PLACE_IN_USE ? "none" : "it stays a spare");
}

static void refused(struct supervisor *s, int host) {
    struct err err = {0};
    int spare;
    const struct agent_view *v = hosts_view(s, host);
    if (hosts_placed(s, host)->state == PLACE_IN_USE) {
        log_line(LOG_WARN, "%s", v->why); // hosts_ready deals with it at the next start
        return;
    }
    place_evict(&s->place, host, &spare, &err);
    failure_say(s, INCIDENT_MISMATCH, -1, v->host, -1, v->why,
                "it is no spare until this is mended");
}

static void see_change(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct agent_view *v = hosts_view(s, host);
    enum agent_state before = one->seen;
    if (v->state == before) return;
    one->seen = v->state;
    if (v->state == AGENT_READY) {
        if (hosts_placed(s, host)->state == PLACE_EVICTED) one->checked = -INFINITY; // at once
    } else if (v->state == AGENT_REFUSED) {
        refused(s, host);
    } else if (v->state == AGENT_LOST && (before == AGENT_READY || one->proven)) {
        log_line(LOG_WARN, "host %s: %s", v->host, v->why);
    }
}

static void copy_to_buddy(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct agent_view *v = hosts_view(s, host);
    if (v->state != AGENT_READY) return;
    int buddy = place_buddy(&s->place, host);
    if (buddy >= 0 && !hosts_is_ready(s, buddy)) buddy = -1;
    int connection = buddy >= 0 ? hosts_view(s, buddy)->connection : -1;
    if (one->connection != v->connection) one->buddy = -1; // a new agent copies nothing yet
    if (one->buddy == buddy && (buddy < 0 || one->buddy_connection == connection)) {
        one->connection = v->connection;
        return;
    }
    one->buddy = buddy;
    one->buddy_connection = connection;
    one->connection = v->connection;
    json_t *to = buddy >= 0
                     ? json_pack("{s:s, s:s, s:i}", "host", hosts_view(s, buddy)->host, "address",
                                 hosts_view(s, buddy)->address, "port", hosts_view(s, buddy)->port)
                     : NULL;
    agents_order(s->hosts->agents, host, "buddy", to, SHORT_ORDER_SECONDS, hosts_ignore, NULL);
}

// Only when it lasts: a host that is lost, or an agent that starts again, is told of elsewhere.
static void look_at_copies(struct supervisor *s, int host, double now) {
    struct one_host *one = &s->hosts->list[host];
    const struct agent_view *v = hosts_view(s, host);
    char evidence[900], action[256];
    if (v->state != AGENT_READY) return;
    if (!v->copy_error[0]) {
        one->failing = 0;
        if (!one->told_copy || v->copied_step < 0) return;
        one->told_copy = false;
        snprintf(evidence, sizeof evidence,
                 "snapshots of %.200s up to step %lld lie on %.200s again", v->host,
                 (long long)v->copied_step, v->copied_to);
        failure_say(s, INCIDENT_COPY, -1, v->host, v->copied_step, evidence, "none");
        return;
    }
    if (one->failing <= 0) one->failing = now;
    if (one->told_copy || now < one->failing + COPY_SECONDS) return;
    one->told_copy = true;
    snprintf(evidence, sizeof evidence,
             "snapshots of %.100s are not copied to %.100s: %.400s; should %.100s be lost, its "
             "state comes from the disk",
             v->host, v->copied_to, v->copy_error, v->host);
    snprintf(action, sizeof action,
             "it is tried again, at least once a minute; make room on %.100s, or see what is wrong "
             "there",
             v->copied_to);
    failure_say(s, INCIDENT_COPY, v->copy_rank, v->host, v->copied_step, evidence, action);
}

json_t *hosts_copies(const struct supervisor *s, int host) {
    const struct agent_view *v = hosts_view(s, host);
    if (v->state != AGENT_READY || !v->copied_to[0]) return json_null();
    json_t *copies = json_pack("{s:s,s:I}", "to", v->copied_to, "step", (json_int_t)v->copied_step);
    if (v->copy_error[0]) json_object_set_new(copies, "error", json_string(v->copy_error));
    return copies;
}

void hosts_discard(struct supervisor *s, const json_t *what) {
    struct supervise_hosts *h = s->hosts;
    json_decref(h->discard);
    h->discard = json_deep_copy(what);
    for (int i = 0; i < h->count; i++) h->list[i].discarded = -1;
}

static void tell_discard(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    int connection = hosts_view(s, host)->connection;
    if (!s->hosts->discard || !hosts_is_ready(s, host) || one->discarded == connection) return;
    one->discarded = connection;
    agents_order(s->hosts->agents, host, "discard", json_copy(s->hosts->discard),
                 SHORT_ORDER_SECONDS, hosts_ignore, NULL);
}

void hosts_tick(struct supervisor *s) {
    struct supervise_hosts *h = s->hosts;
    double now = clock_seconds();
    agents_tick(h->agents, now);
    for (int i = 0; i < h->count; i++) {
        see_change(s, i);
        if (hosts_is_ready(s, i)) compare_isa(s, i);
        hosts_look(s, i, now);
        copy_to_buddy(s, i);
        tell_discard(s, i);
        look_at_copies(s, i, now);
        s->watch.hosts[i].connected = hosts_is_ready(s, i);
    }
    if (h->wants_grow && s->phase == SUPERVISE_RUN && s->loaded > 0 && s->leave == LEAVE_NOT) {
        h->wants_grow = false;
        // it may have been needed in another place meanwhile
        if (hosts_placed(s, h->grown_by)->state == PLACE_SPARE &&
            place_return(&s->place, h->grown_by))
            failure_grow(s, hosts_placed(s, h->grown_by)->name);
    }
}

void hosts_event(struct supervisor *s, const struct control_event *event) {
    struct err err = {0};
    double now = clock_seconds();
    int host = agents_event(s->hosts->agents, event, now);
    if (host < 0 || event->what == CONTROL_LEFT) return;
    const char *type = json_string_value(json_object_get(event->message, "type"));
    if (isfinite(event->clock_offset_seconds))
        s->watch.hosts[host].clock_offset_seconds = event->clock_offset_seconds;
    if (type && (strcmp(type, "hello") == 0 || strcmp(type, "facts") == 0) &&
        watch_facts(&s->watch, host, event->message, now, &err) != 0)
        control_drop(s->control, event->connection, err.text);
}
