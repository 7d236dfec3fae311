// The hosts of a run, as the supervisor deals with them: their agents, which of them may take
// ranks, and whose snapshots go where. See supervise_parts.h.
//
// Before every start of the ranks hosts_ready looks at the hosts that are to run them: the agent
// must be there, and a host that came in (a spare), or that is suspected, must pass its health
// check; who does not is taken out, and the next one is looked at. A host that was lost and is
// back, healthy, becomes a spare again, or the run grows by a planned restart.
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "operate/agents.h"
#include "operate/supervise_parts.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double START_PATIENCE_SECONDS = 40; // for agents, before the first start
static const double PATIENCE_SECONDS = 3;        // for one that was there before
static const double SPARE_SECONDS = 5;           // that a spare's agent may be away
static const double CHECK_SECONDS = 20;
static const double FRESH_SECONDS = 60;       // that a passed check is good for
static const double QUIET_SECONDS = 2.5;      // since its last word, and a host may be lost
static const double CHECK_AGAIN_SECONDS = 60; // of a host that is out
static const double KILL_ORDER_SECONDS = 3, STACKS_ORDER_SECONDS = 4, SHORT_ORDER_SECONDS = 10;
static const double LEAVE_SECONDS = 1;
enum {
    PEERS_MOST = 4,
    TRIES = 2, // of starting an agent
    CHECK_MEMORY_BYTES = 16 << 20,
    CHECK_DISK_BYTES = 1 << 20,
    CHECK_LINK_BYTES = 1 << 20
};
static const uint64_t CHECK_DISK_LEAST_BYTES = 256 << 20; // a full disk is no fault of the machine

enum check { CHECK_NONE, CHECK_ORDERED, CHECK_PASSED, CHECK_FAILED };

struct one_host {
    enum agent_state seen;
    bool told_isa;
    bool barred; // for good: it failed its check, or its ranks accused it
    bool proven; // has run ranks since it was last out
    bool suspected;
    enum check check;
    char verdict[512];
    double checked; // when the last check was ordered
    double passed;  // when one was passed; 0: never
    // the last order about copies: to whom, over which connections
    int buddy, buddy_connection, connection;
};

struct supervise_hosts {
    struct agents *agents;
    struct one_host *list;
    int count;
    char folder[PATH_MAX]; // of the run, absolute
    char isa[32];          // that the ranks compute with
    double asked;          // since when ranks are to be started; 0: they are not
    bool started;          // there was a first start
    bool wants_grow;
    int grown_by; // the host that came back
};

static struct place_host *placed(struct supervisor *s, int host) {
    return &s->place.hosts[host];
}

static const struct agent_view *view_of(const struct supervisor *s, int host) {
    return agents_view(s->hosts->agents, host);
}

static bool is_ready(const struct supervisor *s, int host) {
    return view_of(s, host)->state == AGENT_READY;
}

// Not ready, or not heard of for a while: it will not answer.
static bool is_quiet(const struct supervisor *s, int host) {
    return !is_ready(s, host) || clock_seconds() > view_of(s, host)->heard + QUIET_SECONDS;
}

int hosts_open(struct supervisor *s, struct err *err) {
    const struct supervise_options *o = s->options;
    struct supervise_hosts *h = calloc(1, sizeof *h);
    struct agents_options options = {.control = s->control,
                                     .program = o->program,
                                     .remote = o->remote,
                                     .slurm = o->slurm,
                                     .library_path = o->library_path,
                                     .run = s->state.run,
                                     .address = o->address,
                                     .port = control_port(s->control),
                                     .key = s->key,
                                     .snapshot_folder = o->snapshot_folder,
                                     .binary = version_digest()};
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
        h->list[i].buddy = -1;
        if (agents_add(h->agents, placed(s, i)->name, err) < 0) return -1;
    }
    return 0;
}

static void ignore_event(void *context, const struct control_event *event) {
    struct supervisor *s = context;
    if (event->role == CONTROL_AGENT) agents_event(s->hosts->agents, event, clock_seconds());
}

static void ignore_answer(void *context, int host, const json_t *reply, const char *error) {
    (void)context, (void)host, (void)reply, (void)error;
}

// A run that is over needs no snapshots; one that goes on later does.
void hosts_close(struct supervisor *s) {
    struct supervise_hosts *h = s->hosts;
    if (!h) return;
    if (h->agents) {
        double until = clock_seconds() + LEAVE_SECONDS;
        bool waiting = true;
        for (int i = 0; i < h->count && s->status == 0; i++)
            if (is_ready(s, i))
                agents_order(h->agents, i, "forget", NULL, LEAVE_SECONDS, ignore_answer, NULL);
        agents_leave(h->agents);
        while (waiting && clock_seconds() < until) {
            waiting = false;
            if (control_wait(s->control, NULL, 0, 0.02, ignore_event, s, NULL) != 0) break;
            for (int i = 0; i < h->count; i++) waiting = waiting || is_ready(s, i);
        }
        agents_close(h->agents);
    }
    free(h->list);
    free(h);
    s->hosts = NULL;
}

// ---- orders to all ------------------------------------------------------------------------------

static void on_killed(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    (void)reply;
    s->pending--;
    if (error) log_line(LOG_INFO, "ranks on %s: %s", placed(s, host)->name, error);
}

void hosts_kill(struct supervisor *s) {
    for (int i = 0; i < s->hosts->count; i++) {
        if (is_quiet(s, i) || view_of(s, i)->here) continue; // here it is done directly
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
        text_printf(&s->details, "host %s:\n%s%s\n", placed(s, host)->name, error ? error : "",
                    text ? text : "");
}

void hosts_stacks(struct supervisor *s) {
    for (int i = 0; i < s->hosts->count; i++) {
        json_t *pids = json_array();
        for (int rank = 0; rank < s->ranks; rank++)
            if (s->watch.ranks[rank].host == i && s->watch.ranks[rank].pid > 0)
                json_array_append_new(pids, json_integer(s->watch.ranks[rank].pid));
        if (!is_quiet(s, i) && json_array_size(pids) > 0) {
            s->pending++;
            agents_order(s->hosts->agents, i, "stacks", json_pack("{s:O}", "pids", pids),
                         STACKS_ORDER_SECONDS, on_stacks, s);
        }
        json_decref(pids);
    }
}

// ---- health -------------------------------------------------------------------------------------

static void on_checked(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    struct one_host *one = &s->hosts->list[host];
    const char *verdict = json_string_value(json_object_get(reply, "verdict"));
    bool passed = !error && json_is_true(json_object_get(reply, "passed"));
    if (passed) one->passed = clock_seconds();
    one->check = passed ? CHECK_PASSED : CHECK_FAILED;
    if (!passed)
        snprintf(one->verdict, sizeof one->verdict, "the health check of %.100s failed: %.380s",
                 placed(s, host)->name,
                 error     ? error
                 : verdict ? verdict
                           : "no reason given");
}

static json_t *peers_of(struct supervisor *s, int host) {
    json_t *peers = json_array();
    for (int i = 0; i < s->hosts->count && json_array_size(peers) < PEERS_MOST; i++) {
        const struct agent_view *v = view_of(s, i);
        char peer[100];
        if (i == host || placed(s, i)->state != PLACE_IN_USE || is_quiet(s, i)) continue;
        snprintf(peer, sizeof peer, "%s:%d", v->address, v->port);
        json_array_append_new(peers, json_string(peer));
    }
    return peers;
}

static void order_check(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct watch_host *w = &s->watch.hosts[host];
    json_t *options =
        json_pack("{s:f, s:i, s:i, s:o, s:b}", "gemm_seconds", 0.1, "memory_bytes",
                  CHECK_MEMORY_BYTES, "link_bytes", CHECK_LINK_BYTES, "peers", peers_of(s, host),
                  "disk", w->disk_free_bytes > CHECK_DISK_LEAST_BYTES);
    json_object_set_new(options, "disk_bytes", json_integer(CHECK_DISK_BYTES));
    one->check = CHECK_ORDERED;
    one->checked = clock_seconds();
    agents_order(s->hosts->agents, host, "health", options, CHECK_SECONDS, on_checked, s);
}

void hosts_suspect(struct supervisor *s, int host) {
    s->hosts->list[host].suspected = true;
    s->hosts->list[host].check = CHECK_NONE;
}

void hosts_bar(struct supervisor *s, int host) {
    s->hosts->list[host].barred = true;
}

// ---- which of them take ranks -------------------------------------------------------------------

// Takes a host out, and says so. -1: no place is left to run on.
static int take_out(struct supervisor *s, int host, enum incident_kind kind, const char *evidence,
                    struct err *err) {
    struct text action = {0};
    int result = failure_evict(s, host, &action);
    if (text_ends_with(action.data ? action.data : "", "; ")) action.data[action.size - 2] = 0;
    failure_say(s, kind, -1, placed(s, host)->name, -1, evidence, action.data ? action.data : "");
    s->hosts->list[host].proven = s->hosts->list[host].suspected = false;
    s->hosts->list[host].check = CHECK_NONE;
    if (result != 0)
        err_set(err, ERR_RETRY, "%s; %s", evidence, action.data ? action.data : "nothing is left");
    text_free(&action);
    return result;
}

static bool needs_check(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    // The first start is not delayed: what is wrong with a host shows soon enough.
    bool fresh = one->passed > 0 && clock_seconds() < one->passed + FRESH_SECONDS;
    return one->suspected || (!one->proven && !fresh && s->hosts->started);
}

// 1: it may take ranks; 0: not known yet; -1: no place is left.
static int look_at_host(struct supervisor *s, int host, struct err *err) {
    struct supervise_hosts *h = s->hosts;
    struct one_host *one = &h->list[host];
    const struct agent_view *v = view_of(s, host);
    double waited = clock_seconds() - h->asked;
    double patience = h->started && one->proven ? PATIENCE_SECONDS : START_PATIENCE_SECONDS;
    char evidence[900];
    if (v->state == AGENT_REFUSED) return take_out(s, host, INCIDENT_MISMATCH, v->why, err);
    if (v->state != AGENT_READY) {
        // The machine of the supervisor is there, whatever its agent does.
        if (v->here && h->count == 1)
            return waited < PATIENCE_SECONDS ? v->state > AGENT_STARTING : 1;
        bool tried = v->state == AGENT_LOST && v->failures >= TRIES;
        if (waited < patience && !tried) return 0;
        snprintf(evidence, sizeof evidence,
                 "the agent of host %.200s does not come within %.0f s: %.500s", v->host, waited,
                 v->why[0] ? v->why : agent_state_name(v->state));
        return take_out(s, host, INCIDENT_HOST_LOST, evidence, err);
    }
    if (is_quiet(s, host) && h->count > 1) {
        double silence = clock_seconds() - v->heard;
        if (silence <= s->watch.limits.silence_seconds) return 0;
        snprintf(evidence, sizeof evidence,
                 "nothing was heard from %.200s for %.1f s (allowed: %.1f s)", v->host, silence,
                 s->watch.limits.silence_seconds);
        return take_out(s, host, INCIDENT_HOST_LOST, evidence, err);
    }
    if (one->check == CHECK_NONE && !needs_check(s, host)) return 1;
    if (one->check == CHECK_NONE) order_check(s, host);
    if (one->check == CHECK_ORDERED) return 0;
    if (one->check == CHECK_PASSED) {
        log_line(LOG_INFO, "host %s has passed its health check in %.1f s", v->host,
                 clock_seconds() - one->checked);
        one->suspected = false;
        one->check = CHECK_NONE;
        return 1;
    }
    one->barred = true;
    snprintf(evidence, sizeof evidence, "%s", one->verdict);
    return take_out(s, host, INCIDENT_HEALTH, evidence, err);
}

int hosts_ready(struct supervisor *s, struct err *err) {
    struct supervise_hosts *h = s->hosts;
    int ready = 1;
    if (h->asked <= 0) {
        h->asked = clock_seconds();
        if (h->started) place_grow(&s->place);
    }
    for (int i = 0; i < h->count; i++) {
        if (placed(s, i)->state != PLACE_IN_USE) continue;
        int one = look_at_host(s, i, err);
        if (one < 0) return -1;
        if (one == 0 || placed(s, i)->state != PLACE_IN_USE) ready = 0;
    }
    if (!ready) return 0;
    h->asked = 0;
    h->started = true;
    h->wants_grow = false;
    for (int i = 0; i < h->count; i++)
        if (placed(s, i)->state == PLACE_IN_USE) {
            h->list[i].proven = true;
            if (!h->isa[0]) snprintf(h->isa, sizeof h->isa, "%s", view_of(s, i)->isa);
        }
    return 1;
}

// ---- what changes while ranks run ---------------------------------------------------------------

// Another instruction set sums in another order.
static void compare_isa(struct supervisor *s, int host) {
    struct supervise_hosts *h = s->hosts;
    const struct agent_view *v = view_of(s, host);
    char evidence[600];
    if (!h->isa[0] && placed(s, host)->state == PLACE_IN_USE)
        snprintf(h->isa, sizeof h->isa, "%s", v->isa);
    if (!h->isa[0] || h->list[host].told_isa || strcmp(h->isa, v->isa) == 0) return;
    h->list[host].told_isa = true;
    snprintf(evidence, sizeof evidence,
             "host %.200s computes with %s, the others with %s: with ranks on it, bits may differ "
             "(device.isa makes all use the same)",
             v->host, v->isa, h->isa);
    failure_say(s, INCIDENT_MISMATCH, -1, v->host, -1, evidence,
                placed(s, host)->state == PLACE_IN_USE ? "none" : "it stays a spare");
}

static void refused(struct supervisor *s, int host) {
    struct err err = {0};
    int spare;
    const struct agent_view *v = view_of(s, host);
    if (placed(s, host)->state == PLACE_IN_USE) {
        log_line(LOG_WARN, "%s", v->why); // hosts_ready deals with it at the next start
        return;
    }
    place_evict(&s->place, host, &spare, &err);
    failure_say(s, INCIDENT_MISMATCH, -1, v->host, -1, v->why,
                "it is no spare until this is mended");
}

// A spare that is away is none. It comes back as every host does.
static void look_at_spare(struct supervisor *s, int host, double now) {
    struct err err = {0};
    int spare;
    char evidence[800];
    const struct agent_view *v = view_of(s, host);
    if (placed(s, host)->state != PLACE_SPARE || v->state != AGENT_LOST ||
        now < v->since + SPARE_SECONDS)
        return;
    place_evict(&s->place, host, &spare, &err);
    snprintf(evidence, sizeof evidence, "the agent of the spare %.200s is away: %.500s", v->host,
             v->why);
    failure_say(s, INCIDENT_HOST_LOST, -1, v->host, -1, evidence,
                "it is no spare until it is back");
}

// A host that is out, and whose agent is there: is it fit again?
static void look_at_evicted(struct supervisor *s, int host, double now) {
    struct supervise_hosts *h = s->hosts;
    struct one_host *one = &h->list[host];
    if (placed(s, host)->state != PLACE_EVICTED || one->barred) return;
    if (one->check == CHECK_NONE && is_quiet(s, host)) return;
    if (one->check == CHECK_NONE && now > one->checked + CHECK_AGAIN_SECONDS) {
        // What it did before is of no use: the run went on without it.
        agents_order(h->agents, host, "kill", NULL, SHORT_ORDER_SECONDS, ignore_answer, NULL);
        agents_order(h->agents, host, "forget", NULL, SHORT_ORDER_SECONDS, ignore_answer, NULL);
        order_check(s, host);
    } else if (one->check == CHECK_PASSED) {
        one->check = CHECK_NONE;
        h->wants_grow = place_return(&s->place, host);
        h->grown_by = host;
        log_line(LOG_INFO, "host %s is back and has passed its health check%s",
                 placed(s, host)->name, h->wants_grow ? "" : ": it is a spare now");
    } else if (one->check == CHECK_FAILED) {
        one->check = CHECK_NONE;
        log_line(LOG_WARN, "%s: it stays out", one->verdict);
    }
}

static void see_change(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct agent_view *v = view_of(s, host);
    enum agent_state before = one->seen;
    if (v->state == before) return;
    one->seen = v->state;
    if (v->state == AGENT_READY) {
        compare_isa(s, host);
        if (placed(s, host)->state == PLACE_EVICTED) one->checked = -CHECK_AGAIN_SECONDS; // at once
    } else if (v->state == AGENT_REFUSED) {
        refused(s, host);
    } else if (v->state == AGENT_LOST && (before == AGENT_READY || one->proven)) {
        log_line(LOG_WARN, "host %s: %s", v->host, v->why);
    }
}

static void copy_to_buddy(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct agent_view *v = view_of(s, host);
    if (v->state != AGENT_READY) return;
    int buddy = place_buddy(&s->place, host);
    if (buddy >= 0 && !is_ready(s, buddy)) buddy = -1;
    int connection = buddy >= 0 ? view_of(s, buddy)->connection : -1;
    if (one->connection != v->connection) one->buddy = -1; // a new agent copies nothing yet
    if (one->buddy == buddy && (buddy < 0 || one->buddy_connection == connection)) {
        one->connection = v->connection;
        return;
    }
    one->buddy = buddy;
    one->buddy_connection = connection;
    one->connection = v->connection;
    json_t *to = buddy >= 0
                     ? json_pack("{s:s, s:s, s:i}", "host", view_of(s, buddy)->host, "address",
                                 view_of(s, buddy)->address, "port", view_of(s, buddy)->port)
                     : NULL;
    agents_order(s->hosts->agents, host, "buddy", to, SHORT_ORDER_SECONDS, ignore_answer, NULL);
}

void hosts_tick(struct supervisor *s) {
    struct supervise_hosts *h = s->hosts;
    double now = clock_seconds();
    agents_tick(h->agents, now);
    for (int i = 0; i < h->count; i++) {
        see_change(s, i);
        look_at_spare(s, i, now);
        look_at_evicted(s, i, now);
        if (placed(s, i)->state == PLACE_EVICTED) h->list[i].proven = false;
        copy_to_buddy(s, i);
        s->watch.hosts[i].connected = is_ready(s, i);
    }
    if (h->wants_grow && s->phase == SUPERVISE_RUN && s->loaded > 0 && s->leave == LEAVE_NOT) {
        h->wants_grow = false;
        failure_grow(s, placed(s, h->grown_by)->name);
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
