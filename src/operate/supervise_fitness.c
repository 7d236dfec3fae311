// Which hosts of a run may take ranks. See supervise_parts.h.
//
// Before every start of the ranks hosts_ready looks at the hosts that are to run them: the agent
// must be there, and a host that came in (a spare), or that is suspected, must pass its health
// check; who does not is taken out, and the next one is looked at. What computes, stores or passes
// on something wrong stays out for good. A host that did not answer, or whose disk did not, is
// lost: as any host that was lost and is back, healthy, it becomes a spare again, or the run grows.
#include "base/clock.h"
#include "base/log.h"
#include "operate/supervise_hosts_parts.h"
#include <stdio.h>
#include <string.h>

static const double START_PATIENCE_SECONDS = 40; // for agents, before the first start
static const double PATIENCE_SECONDS = 3;        // for one that was there before
static const double SPARE_SECONDS = 5;           // that a spare's agent may be away
static const double CHECK_SECONDS = 20;
static const double FRESH_SECONDS = 60;       // that a passed check is good for
static const double CHECK_AGAIN_SECONDS = 60; // of a host that is out
static const double SHORT_ORDER_SECONDS = 10;
enum {
    PEERS_MOST = 4,
    TRIES = 2,        // of starting an agent
    RETURNS_MOST = 5, // evictions of a host before it stays out
    STATUS_BAD_HOST = 76,
    CHECK_MEMORY_BYTES = 16 << 20,
    CHECK_DISK_BYTES = 1 << 20,
    CHECK_LINK_BYTES = 1 << 20,
    DAMAGED_LINK_BYTES = 32 << 20
};
static const uint64_t CHECK_DISK_LEAST_BYTES = 256 << 20; // a full disk is no fault of the machine

// ---- health -------------------------------------------------------------------------------------

static bool starts_with(const char *text, const char *begin) {
    return text && strncmp(text, begin, strlen(begin)) == 0;
}

// What an answer says of the host. A link takes two: one peer that is silent may be the reason
// itself, where several are, and none answers, it is the host that is cut off.
static enum check judge(const json_t *reply, const char *error) {
    const json_t *list = json_object_get(reply, "checks"), *one;
    int links = 0, silent = 0;
    size_t i;
    bool lost = false;
    if (error) return json_is_true(json_object_get(reply, "crashed")) ? CHECK_FAILED : CHECK_LOST;
    if (json_is_true(json_object_get(reply, "passed"))) return CHECK_PASSED;
    if (json_array_size(list) == 0) return CHECK_FAILED;
    json_array_foreach(list, i, one) {
        bool link = starts_with(json_string_value(json_object_get(one, "name")), "link ");
        links += link;
        if (json_is_true(json_object_get(one, "passed"))) continue;
        if (!json_is_true(json_object_get(one, "unanswered"))) return CHECK_FAILED;
        silent += link;
        lost = lost || !link;
    }
    return lost || (silent > 1 && silent == links) ? CHECK_LOST : CHECK_PASSED;
}

static void on_checked(void *context, int host, const json_t *reply, const char *error) {
    struct supervisor *s = context;
    struct one_host *one = &s->hosts->list[host];
    const char *name = hosts_placed(s, host)->name;
    const char *verdict = json_string_value(json_object_get(reply, "verdict"));
    if (error) verdict = error;
    if (!verdict) verdict = "no reason given";
    one->check = judge(reply, error);
    if (one->check == CHECK_PASSED) {
        bool all = json_is_true(json_object_get(reply, "passed"));
        one->passed = clock_seconds();
        log_line(LOG_INFO, "host %s has passed its health check in %.1f s%s%s", name,
                 one->passed - one->checked,
                 all ? "" : ", as far as it is up to the host: ", all ? "" : verdict);
    } else {
        snprintf(one->verdict, sizeof one->verdict, "the health check of %.100s %s: %.360s", name,
                 one->check == CHECK_FAILED ? "failed" : "came to no end", verdict);
    }
}

static void add_peer(struct supervisor *s, int host, json_t *peers) {
    const struct agent_view *v = hosts_view(s, host);
    char peer[100];
    if (hosts_placed(s, host)->state != PLACE_IN_USE || hosts_is_quiet(s, host)) return;
    snprintf(peer, sizeof peer, "%s:%d", v->address, v->port);
    json_array_append_new(peers, json_string(peer));
}

static json_t *peers_of(struct supervisor *s, int host) {
    int partner = s->hosts->list[host].partner;
    json_t *peers = json_array();
    if (partner >= 0) add_peer(s, partner, peers);
    for (int i = 0; i < s->hosts->count && json_array_size(peers) < PEERS_MOST; i++)
        if (i != host && i != partner) add_peer(s, i, peers);
    return peers;
}

static void order_check(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct watch_host *w = &s->watch.hosts[host];
    json_t *options = json_pack(
        "{s:f, s:i, s:i, s:o, s:b}", "gemm_seconds", 0.1, "memory_bytes", CHECK_MEMORY_BYTES,
        "link_bytes", one->partner >= 0 ? DAMAGED_LINK_BYTES : CHECK_LINK_BYTES, "peers",
        peers_of(s, host), "disk", w->disk_free_bytes > CHECK_DISK_LEAST_BYTES);
    json_object_set_new(options, "disk_bytes", json_integer(CHECK_DISK_BYTES));
    one->partner = -1;
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

bool hosts_damaged(struct supervisor *s, int from, int to) {
    const int ends[] = {from, to};
    int most = s->options->most_faults, count = from == to ? 1 : 2;
    bool often = false;
    for (int i = 0; i < count; i++) often |= ++s->hosts->list[ends[i]].damaged > most;
    for (int i = 0; i < count && often; i++) {
        s->hosts->list[ends[i]].damaged = 0;
        s->hosts->list[ends[i]].partner = count == 2 ? ends[1 - i] : -1;
        hosts_suspect(s, ends[i]);
    }
    return often;
}

bool hosts_is_barred(const struct supervisor *s, int host) {
    return s->hosts->list[host].barred;
}

// ---- which of them take ranks -------------------------------------------------------------------

// Takes a host out, and says so. -1: no place is left to run on.
static int take_out(struct supervisor *s, int host, enum incident_kind kind, const char *evidence,
                    struct err *err) {
    struct text action = {0};
    int result = failure_evict(s, host, &action);
    if (text_ends_with(action.data ? action.data : "", "; ")) action.data[action.size - 2] = 0;
    failure_say(s, kind, -1, hosts_placed(s, host)->name, -1, evidence,
                action.data ? action.data : "");
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

// Of a host whose check has come to its end. 1: it may take ranks; -1: no place is left.
static int take_verdict(struct supervisor *s, int host, struct err *err) {
    struct one_host *one = &s->hosts->list[host];
    bool lost = one->check == CHECK_LOST, alone = s->hosts->count == 1 && hosts_view(s, host)->here;
    char evidence[900];
    if (one->check == CHECK_PASSED || (lost && alone)) {
        // A machine that is busy is not worse for that, and there is no other.
        if (lost) log_line(LOG_WARN, "%s; the run goes on there", one->verdict);
        one->suspected = false;
        one->check = CHECK_NONE;
        return 1;
    }
    if (!lost) one->barred = true;
    snprintf(evidence, sizeof evidence, "%s", one->verdict);
    return take_out(s, host, lost ? INCIDENT_HOST_LOST : INCIDENT_HEALTH, evidence, err);
}

// 1: it may take ranks; 0: not known yet; -1: no place is left.
static int look_at_host(struct supervisor *s, int host, struct err *err) {
    struct supervise_hosts *h = s->hosts;
    struct one_host *one = &h->list[host];
    const struct agent_view *v = hosts_view(s, host);
    double waited = clock_seconds() - h->asked;
    double patience = h->started && one->proven ? PATIENCE_SECONDS : START_PATIENCE_SECONDS;
    char evidence[900];
    int free = v->here || !hosts_is_quiet(s, host)
                   ? hosts_look_for_left(s, host, evidence, sizeof evidence)
                   : 1;
    if (free < 0) return take_out(s, host, INCIDENT_HOST_LOST, evidence, err);
    if (free == 0) return 0;
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
    if (hosts_is_quiet(s, host) && h->count > 1) {
        double silence = clock_seconds() - v->heard;
        if (silence <= s->watch.limits.silence_seconds) return 0;
        snprintf(evidence, sizeof evidence,
                 "nothing was heard from %.200s for %.1f s (allowed: %.1f s)", v->host, silence,
                 s->watch.limits.silence_seconds);
        return take_out(s, host, INCIDENT_HOST_LOST, evidence, err);
    }
    if (one->check == CHECK_NONE && !needs_check(s, host)) return 1;
    if (one->check == CHECK_NONE) order_check(s, host);
    return one->check == CHECK_ORDERED ? 0 : take_verdict(s, host, err);
}

// A host that came back while the others were awaited: it takes ranks now, rather than by another
// restart. True: there is more to look at.
static bool grows(struct supervisor *s) {
    struct supervise_hosts *h = s->hosts;
    int before = s->place.replicas;
    if (!h->wants_grow) return false;
    h->wants_grow = false;
    if (place_grow(&s->place) == before) return false;
    char text[400];
    snprintf(text, sizeof text, "host %.200s is back and healthy: %d ranks fit",
             hosts_placed(s, h->grown_by)->name, place_ranks(&s->place));
    failure_say(s, INCIDENT_GROW, -1, hosts_placed(s, h->grown_by)->name, -1, text,
                "taken by the start that is under way");
    return true;
}

int hosts_ready(struct supervisor *s, struct err *err) {
    struct supervise_hosts *h = s->hosts;
    int ready = 1;
    if (h->asked <= 0) {
        h->asked = clock_seconds();
        if (h->started) place_grow(&s->place);
    }
    for (int i = 0; i < h->count; i++) {
        if (hosts_placed(s, i)->state != PLACE_IN_USE) continue;
        int one = look_at_host(s, i, err);
        if (one < 0) return -1;
        if (one == 0 || hosts_placed(s, i)->state != PLACE_IN_USE) ready = 0;
    }
    if (!ready || grows(s)) return 0;
    h->asked = 0;
    h->started = true;
    for (int i = 0; i < h->count; i++)
        if (hosts_placed(s, i)->state == PLACE_IN_USE) {
            h->list[i].proven = true;
            if (!h->isa[0]) snprintf(h->isa, sizeof h->isa, "%s", hosts_view(s, i)->isa);
        }
    return 1;
}

// ---- while ranks run ----------------------------------------------------------------------------

// A spare that is away is none. It comes back as every host does.
static void look_at_spare(struct supervisor *s, int host, double now) {
    struct err err = {0};
    int spare;
    char evidence[800];
    const struct agent_view *v = hosts_view(s, host);
    if (hosts_placed(s, host)->state != PLACE_SPARE || v->state != AGENT_LOST ||
        now < v->since + SPARE_SECONDS)
        return;
    place_evict(&s->place, host, &spare, &err);
    snprintf(evidence, sizeof evidence, "the agent of the spare %.200s is away: %.500s", v->host,
             v->why);
    failure_say(s, INCIDENT_HOST_LOST, -1, v->host, -1, evidence,
                "it is no spare until it is back");
}

// A host is lost, it seems: spares are checked while what is left of the attempt is ended.
static void prepare_spare(struct supervisor *s, int host) {
    struct one_host *one = &s->hosts->list[host];
    const struct policy_failure *f = &s->failure;
    bool wanted = f->kind == INCIDENT_HOST_LOST || (f->kind == INCIDENT_EXIT && f->host < 0) ||
                  f->status == STATUS_BAD_HOST;
    if (hosts_placed(s, host)->state != PLACE_SPARE) return;
    if (one->check == CHECK_PASSED) {
        one->check = CHECK_NONE; // `passed` says when
    } else if (one->check == CHECK_FAILED || one->check == CHECK_LOST) {
        struct err err = {0};
        int spare;
        bool lost = one->check == CHECK_LOST;
        one->check = CHECK_NONE;
        if (!lost) one->barred = true;
        place_evict(&s->place, host, &spare, &err);
        failure_say(s, lost ? INCIDENT_HOST_LOST : INCIDENT_HEALTH, -1, hosts_placed(s, host)->name,
                    -1, one->verdict,
                    lost ? "it is no spare until it passes" : "it is no spare any more");
    } else if (one->check == CHECK_NONE && s->failing && wanted && !hosts_is_quiet(s, host) &&
               clock_seconds() > one->checked + FRESH_SECONDS) {
        order_check(s, host);
    }
}

// A host that is out, and whose agent is there: is it fit again?
static void look_at_evicted(struct supervisor *s, int host, double now) {
    struct supervise_hosts *h = s->hosts;
    struct one_host *one = &h->list[host];
    if (hosts_placed(s, host)->state != PLACE_EVICTED || one->barred) return;
    if (one->check == CHECK_NONE && hosts_is_quiet(s, host)) return;
    if (hosts_placed(s, host)->failures >= RETURNS_MOST) {
        one->barred = true;
        log_line(LOG_WARN, "host %s was taken out %d times: it stays out",
                 hosts_placed(s, host)->name, hosts_placed(s, host)->failures);
        return;
    }
    if (one->check == CHECK_NONE && now > one->checked + CHECK_AGAIN_SECONDS) {
        // What it did before is of no use: the run went on without it.
        // (On this machine the supervisor has ended it itself, and mpirun of this attempt runs.)
        if (!hosts_view(s, host)->here) {
            hosts_kill_left(s, host);
            agents_order(h->agents, host, "forget", NULL, SHORT_ORDER_SECONDS, hosts_ignore, NULL);
        }
        order_check(s, host);
    } else if (one->check == CHECK_PASSED) {
        one->check = CHECK_NONE;
        h->wants_grow = place_return(&s->place, host);
        h->grown_by = host;
        log_line(LOG_INFO, "host %s is back%s", hosts_placed(s, host)->name,
                 h->wants_grow ? "" : ": it is a spare now");
    } else if (one->check == CHECK_FAILED || one->check == CHECK_LOST) {
        log_line(LOG_WARN, "%s: it stays out%s", one->verdict,
                 one->check == CHECK_LOST ? " until it passes" : "");
        one->check = CHECK_NONE;
    }
}

void hosts_look(struct supervisor *s, int host, double now) {
    look_at_spare(s, host, now);
    prepare_spare(s, host);
    look_at_evicted(s, host, now);
    if (hosts_placed(s, host)->state == PLACE_EVICTED) s->hosts->list[host].proven = false;
}
