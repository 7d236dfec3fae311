// See agents.h.
#include "operate/agents.h"
#include "base/clock.h"
#include "operate/agents_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double AGAIN_SECONDS = 10;
static const double START_SECONDS = 30;   // until a word must have come
static const double RETURN_SECONDS = 2;   // in which an agent finds its supervisor again by itself
static const double REFUSED_SECONDS = 60; // until a host that was refused is tried again
enum { QUICK_TRIES = 2 };                 // before a host is tried every AGAIN_SECONDS

const char *agent_state_name(enum agent_state state) {
    static const char *const names[] = {"off", "starting", "ready", "lost", "refused"};
    return names[state];
}

int agents_open(struct agents **out, const struct agents_options *options, struct err *err) {
    struct agents *a = calloc(1, sizeof *a);
    if (!a) return err_set(err, ERR_MEMORY, "no memory for the agents");
    a->options = *options;
    if (!(a->options.again_seconds > 0)) a->options.again_seconds = AGAIN_SECONDS;
    a->next_id = 1;
    *out = a;
    return 0;
}

int agents_count(const struct agents *a) {
    return a->count;
}

const struct agent_view *agents_view(const struct agents *a, int host) {
    return &a->hosts[host].view;
}

int agents_add(struct agents *a, const char *host, struct err *err) {
    struct agents_host *list = realloc(a->hosts, sizeof *list * (size_t)(a->count + 1));
    if (!list) return err_set(err, ERR_MEMORY, "no memory for the agent of %.200s", host);
    a->hosts = list;
    struct agents_host *h = &list[a->count];
    *h = (struct agents_host){.output = -1};
    snprintf(h->view.host, sizeof h->view.host, "%s", host);
    h->view.here = hosts_is_here(host);
    h->view.connection = -1;
    h->view.copied_step = -1;
    h->view.clock_offset_seconds = NAN;
    return a->count++;
}

static void enter(struct agents_host *h, enum agent_state state, double now) {
    h->view.state = state;
    h->view.since = now;
}

// ---- orders -------------------------------------------------------------------------------------

int agents_pending(const struct agents *a) {
    return a->order_count;
}

void agents_order(struct agents *a, int host, const char *order, json_t *arguments, double seconds,
                  agents_done *done, void *context) {
    struct agents_order *list = realloc(a->orders, sizeof *list * (size_t)(a->order_count + 1));
    json_t *message = arguments ? arguments : json_object();
    struct agent_view *v = &a->hosts[host].view;
    if (!list) { // the callback comes in any case
        json_decref(message);
        done(context, host, NULL, "no memory for an order");
        return;
    }
    a->orders = list;
    struct agents_order *o = &list[a->order_count++];
    *o = (struct agents_order){.id = a->next_id++,
                               .host = host,
                               .deadline = clock_seconds() + seconds,
                               .done = done,
                               .context = context};
    json_object_set_new(message, "type", json_string("order"));
    json_object_set_new(message, "order", json_string(order));
    json_object_set_new(message, "id", json_integer(o->id));
    json_object_set_new(message, "deadline_seconds", json_real(seconds));
    if (v->state != AGENT_READY || control_send(a->options.control, v->connection, message) != 0)
        snprintf(o->error, sizeof o->error, "the agent of %.100s is %s", v->host,
                 v->state == AGENT_READY ? "gone" : agent_state_name(v->state));
    json_decref(message);
}

static void finish_order(struct agents *a, int index, const json_t *reply, const char *error) {
    struct agents_order o = a->orders[index];
    a->orders[index] = a->orders[--a->order_count];
    o.done(o.context, o.host, reply, error);
}

static void hear_done(struct agents *a, int host, const json_t *message) {
    int64_t id = json_integer_value(json_object_get(message, "id"));
    for (int i = 0; i < a->order_count; i++)
        if (a->orders[i].id == id && a->orders[i].host == host) {
            finish_order(a, i, message, json_string_value(json_object_get(message, "error")));
            return;
        }
}

static void end_orders_of(struct agents *a, int host) {
    for (int i = 0; i < a->order_count; i++)
        if (a->orders[i].host == host && !a->orders[i].error[0])
            snprintf(a->orders[i].error, sizeof a->orders[i].error, "the agent of %.100s is lost",
                     a->hosts[host].view.host);
}

static void tick_orders(struct agents *a, double now) {
    for (int i = 0; i < a->order_count;) { // callbacks may give further orders, behind these
        struct agents_order *o = &a->orders[i];
        char error[200];
        if (o->error[0])
            snprintf(error, sizeof error, "%s", o->error);
        else if (now > o->deadline)
            snprintf(error, sizeof error, "the agent of %.100s did not answer in time",
                     a->hosts[o->host].view.host);
        else {
            i++;
            continue;
        }
        finish_order(a, i, NULL, error);
    }
}

// ---- states -------------------------------------------------------------------------------------

static void lose(struct agents *a, int host, double now, const char *why) {
    struct agents_host *h = &a->hosts[host];
    snprintf(h->view.why, sizeof h->view.why, "%s", why);
    h->view.connection = -1;
    h->left = now;
    h->view.failures++;
    h->due = now + (h->view.failures <= QUICK_TRIES ? RETURN_SECONDS : a->options.again_seconds);
    enter(h, AGENT_LOST, now);
    end_orders_of(a, host);
}

static void refuse(struct agents *a, int host, double now, const char *why) {
    struct agents_host *h = &a->hosts[host];
    json_t *leave = json_pack("{s:s, s:s, s:i}", "type", "order", "order", "leave", "id", 0);
    snprintf(h->view.why, sizeof h->view.why, "%s", why);
    if (leave) control_send(a->options.control, h->view.connection, leave);
    json_decref(leave);
    control_end(a->options.control, h->view.connection);
    h->view.connection = -1;
    h->due = now + REFUSED_SECONDS;
    enter(h, AGENT_REFUSED, now);
}

static void copy_text(char *out, size_t bytes, const json_t *message, const char *key) {
    const char *text = json_string_value(json_object_get(message, key));
    snprintf(out, bytes, "%s", text ? text : "");
}

// NULL: it is the program that is wanted; else of which sources that is.
static const char *wants_another(const struct agents *a, const char *binary) {
    const struct agents_options *o = &a->options;
    if (!o->binary || strcmp(binary, o->binary) == 0) return NULL;
    const char *now = o->binary_now ? o->binary_now(o->context) : "";
    if (strcmp(binary, now) == 0) return NULL;
    return now[0] ? now : o->binary;
}

static void hear_hello(struct agents *a, int host, const struct control_event *e, double now) {
    struct agents_host *h = &a->hosts[host];
    struct agent_view *v = &h->view;
    char why[512];
    v->connection = e->connection;
    copy_text(v->address, sizeof v->address, e->message, "address");
    copy_text(v->isa, sizeof v->isa, e->message, "isa");
    copy_text(v->binary, sizeof v->binary, e->message, "binary");
    copy_text(v->machine, sizeof v->machine, e->message, "machine");
    v->port = (int)json_integer_value(json_object_get(e->message, "port"));
    v->pid = (int)json_integer_value(json_object_get(e->message, "pid"));
    v->copied_step = -1;
    v->heard = now;
    const char *wanted = wants_another(a, v->binary);
    if (wanted) {
        snprintf(why, sizeof why,
                 "host %.100s has another program at %.200s: its sources are %.20s, here they are "
                 "%.20s; install the same one",
                 v->host, a->options.program, v->binary, wanted);
        refuse(a, host, now, why);
        return;
    }
    for (int i = 0; i < a->count; i++)
        if (i != host && a->hosts[i].view.state == AGENT_READY && v->machine[0] &&
            strcmp(a->hosts[i].view.machine, v->machine) == 0) {
            snprintf(
                why, sizeof why,
                "hosts %.200s and %.200s are the same machine; name it once, with all its slots",
                a->hosts[i].view.host, v->host);
            refuse(a, host, now, why);
            return;
        }
    h->view.failures = 0;
    v->why[0] = 0;
    enter(h, AGENT_READY, now);
}

static void hear_facts(struct agent_view *v, const json_t *message) {
    const json_t *copy = json_object_get(message, "buddy");
    char to[sizeof v->copied_to];
    copy_text(to, sizeof to, copy, "host");
    if (strcmp(to, v->copied_to) != 0) v->copied_step = -1; // it begins anew with another one
    memcpy(v->copied_to, to, sizeof to);
    copy_text(v->copy_error, sizeof v->copy_error, copy, "error");
    const json_t *step = json_object_get(copy, "step"), *rank = json_object_get(copy, "rank");
    if (json_is_integer(step)) v->copied_step = json_integer_value(step);
    v->copy_rank = json_is_integer(rank) ? (int)json_integer_value(rank) : -1;
}

static int find(const struct agents *a, const char *host) {
    for (int i = 0; host && i < a->count; i++)
        if (strcmp(a->hosts[i].view.host, host) == 0) return i;
    return -1;
}

int agents_event(struct agents *a, const struct control_event *e, double now) {
    int host = find(a, e->host);
    if (host < 0) {
        if (e->what != CONTROL_LEFT)
            control_drop(a->options.control, e->connection, "agent of a host that is not in use");
        return -1;
    }
    struct agent_view *v = &a->hosts[host].view;
    if (e->what == CONTROL_CAME) {
        hear_hello(a, host, e, now);
    } else if (e->connection != v->connection) {
        return host; // an older one
    } else if (e->what == CONTROL_LEFT) {
        lose(a, host, now, "its agent left, or was cut off");
    } else {
        const char *type = json_string_value(json_object_get(e->message, "type"));
        v->heard = now;
        v->clock_offset_seconds = e->clock_offset_seconds;
        if (type && strcmp(type, "facts") == 0) hear_facts(v, e->message);
        if (type && strcmp(type, "done") == 0) hear_done(a, host, e->message);
    }
    return host;
}

static void start(struct agents *a, int host, double now) {
    struct agents_host *h = &a->hosts[host];
    struct err err = {0};
    agents_end_process(h); // of a remote shell that leads nowhere
    if (agents_spawn(a, h, &err) != 0)
        lose(a, host, now, err.text);
    else
        enter(h, AGENT_STARTING, now);
}

static bool tick_host(struct agents *a, int host, double now) {
    struct agents_host *h = &a->hosts[host];
    enum agent_state before = h->view.state;
    char how[400], why[512];
    bool ended = agents_look_after(h, how, sizeof how);
    if (before == AGENT_STARTING && ended) {
        snprintf(why, sizeof why, "its agent could not be started: %s", how);
        lose(a, host, now, why);
    } else if (before == AGENT_STARTING && now > h->view.since + START_SECONDS) {
        agents_end_process(h);
        snprintf(why, sizeof why, "no word of its agent within %.0f s%s%s", START_SECONDS,
                 h->said[0] ? ": " : "", h->said);
        lose(a, host, now, why);
    } else if (before == AGENT_LOST && ended && h->said[0]) {
        snprintf(h->view.why, sizeof h->view.why, "its agent %s", how);
    } else if ((before == AGENT_OFF || before == AGENT_LOST || before == AGENT_REFUSED) &&
               now >= h->due && !a->leaving) {
        // one that lives may be on its way back
        if (before != AGENT_LOST || h->starter == 0 || now > h->left + a->options.again_seconds)
            start(a, host, now);
    }
    return h->view.state != before;
}

bool agents_tick(struct agents *a, double now) {
    bool changed = false;
    for (int i = 0; i < a->count; i++)
        if (tick_host(a, i, now)) changed = true;
    tick_orders(a, now);
    return changed;
}

void agents_leave(struct agents *a) {
    a->leaving = true;
    for (int i = 0; i < a->count; i++) {
        json_t *leave = json_pack("{s:s, s:s, s:i}", "type", "order", "order", "leave", "id", 0);
        if (a->hosts[i].view.state == AGENT_READY && leave)
            control_send(a->options.control, a->hosts[i].view.connection, leave);
        json_decref(leave);
    }
}

void agents_close(struct agents *a) {
    if (!a) return;
    for (int i = 0; i < a->count; i++) {
        agents_end_process(&a->hosts[i]);
        text_free(&a->hosts[i].line);
    }
    free(a->hosts);
    free(a->orders);
    free(a);
}
