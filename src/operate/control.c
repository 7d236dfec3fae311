// See control.h. All connections hang on one epoll descriptor, since a run may have tens of
// thousands of ranks, of which few say something at one time.
#include "operate/control.h"
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static const double HELLO_SECONDS = 10;  // a connection says who it is, or ends
static const double PAUSE_SECONDS = 0.2; // without a free descriptor for another connection
static const double ECHO_SECONDS = 10;   // between questions for the time of an agent's host
enum {
    EVENTS_AT_ONCE = 512,
    ACCEPTS_AT_ONCE = 256,
    SLOT_BITS = 18, // of a connection's number; above them how often the slot was used
    SLOT_LIMIT = 1 << SLOT_BITS,
    USES_LIMIT = 1 << 12,
    ECHOES_KEPT = 8
};

struct link {
    struct wire *wire;         // NULL: a free slot
    bool known, doomed, tells; // said who it is; to be closed; its end is an event
    bool ends;                 // as soon as all is sent
    enum control_role role;
    int rank, uses;
    char *host;
    double since;
    bool wants_out;           // epoll waits until it can be written to
    double asked, asked_wall; // for the time; 0: not under way
    double offsets[ECHOES_KEPT], delays[ECHOES_KEPT];
    int echoes;
};

struct control {
    struct wire_key key;
    int listener, port, epoll, attempt;
    struct link *links;
    int link_count, link_capacity, free_hint;
    int *rank_slots; // of each rank its slot, -1: none
    int rank_count;
    int *doomed; // slots
    int doomed_count, doomed_capacity;
    double paused_until, next_look;
    uint64_t dropped;
    char why[256];
    control_handler *handler;
    void *context;
};

static const uint64_t LISTENER = UINT64_MAX;

// ---- opening ------------------------------------------------------------------------------------

static int watch_descriptor(int epoll, int operation, int fd, uint32_t events, uint64_t slot) {
    struct epoll_event event = {.events = events, .data.u64 = slot};
    return epoll_ctl(epoll, operation, fd, &event);
}

int control_open(struct control **out, const char *address, int port, const struct wire_key *key,
                 struct err *err) {
    struct control *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, ERR_MEMORY, "no memory for the control plane");
    c->key = *key;
    c->listener = -1;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    int status = c->epoll < 0 ? err_set_errno(err, "the control plane cannot wait for connections")
                              : wire_listen(address, port, &c->listener, &c->port, err);
    if (status == 0 &&
        watch_descriptor(c->epoll, EPOLL_CTL_ADD, c->listener, EPOLLIN, LISTENER) != 0)
        status = err_set_errno(err, "the control plane cannot wait for connections");
    if (status != 0) {
        control_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void control_close(struct control *c) {
    if (!c) return;
    for (int i = 0; i < c->link_count; i++) {
        wire_close(c->links[i].wire);
        free(c->links[i].host);
    }
    if (c->listener >= 0) close(c->listener);
    if (c->epoll >= 0) close(c->epoll);
    free(c->links);
    free(c->rank_slots);
    free(c->doomed);
    free(c);
}

int control_port(const struct control *c) {
    return c->port;
}

uint64_t control_dropped(const struct control *c, const char **why) {
    if (why) *why = c->why;
    return c->dropped;
}

// ---- connections --------------------------------------------------------------------------------

static int number_of(const struct control *c, int slot) {
    return c->links[slot].uses << SLOT_BITS | slot;
}

static struct link *find(const struct control *c, int connection) {
    int slot = connection & (SLOT_LIMIT - 1);
    if (connection < 0 || slot >= c->link_count) return NULL;
    struct link *l = &c->links[slot];
    return l->wire && !l->doomed && l->uses == connection >> SLOT_BITS ? l : NULL;
}

static int free_slot(struct control *c) {
    while (c->free_hint < c->link_count && c->links[c->free_hint].wire) c->free_hint++;
    if (c->free_hint < c->link_count) return c->free_hint;
    if (c->link_count == SLOT_LIMIT) return -1;
    if (c->link_count == c->link_capacity) {
        int capacity = c->link_capacity ? 2 * c->link_capacity : 64;
        struct link *more = realloc(c->links, (size_t)capacity * sizeof *more);
        int *doomed = realloc(c->doomed, (size_t)capacity * sizeof *doomed);
        if (more) c->links = more;
        if (doomed) c->doomed = doomed;
        if (!more || !doomed) return -1;
        c->link_capacity = c->doomed_capacity = capacity;
    }
    c->links[c->link_count] = (struct link){0};
    return c->link_count++;
}

// Closed at the end of the round: its message may be in somebody's hands. `tells`: with an event,
// if it is known who it is.
static void doom(struct control *c, int slot, bool tells) {
    struct link *l = &c->links[slot];
    if (l->doomed) return;
    l->doomed = true;
    l->tells = tells && l->known;
    c->doomed[c->doomed_count++] = slot;
}

static void count_drop(struct control *c, const char *why) {
    c->dropped++;
    snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
}

static void tell(struct control *c, int slot, int what, const json_t *message) {
    struct link *l = &c->links[slot];
    struct control_event event = {.what = what,
                                  .role = l->role,
                                  .connection = number_of(c, slot),
                                  .rank = l->rank,
                                  .host = l->host,
                                  .message = message,
                                  .clock_offset_seconds = NAN,
                                  .delay_seconds = NAN};
    for (int i = 0; i < l->echoes && i < ECHOES_KEPT; i++) {
        if (l->delays[i] >= event.delay_seconds) continue;
        event.delay_seconds = l->delays[i];
        event.clock_offset_seconds = l->offsets[i];
    }
    if (c->handler) c->handler(c->context, &event);
}

// The handler may end further connections meanwhile.
static void close_doomed(struct control *c) {
    for (int i = 0; i < c->doomed_count; i++) {
        int slot = c->doomed[i];
        if (c->links[slot].tells) tell(c, slot, CONTROL_LEFT, NULL);
        struct link *l = &c->links[slot];
        wire_close(l->wire); // which takes it off the epoll
        free(l->host);
        *l = (struct link){.uses = (l->uses + 1) % USES_LIMIT};
        if (slot < c->free_hint) c->free_hint = slot;
    }
    c->doomed_count = 0;
}

static void accept_all(struct control *c, double now) {
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct err err = {0};
        struct wire *wire = wire_accept(c->listener, &c->key, &err);
        int slot = wire ? free_slot(c) : -1;
        if (slot >= 0 && watch_descriptor(c->epoll, EPOLL_CTL_ADD, wire_descriptor(wire),
                                          EPOLLIN | EPOLLOUT, (uint64_t)slot) == 0) {
            int uses = c->links[slot].uses;
            c->links[slot] = (struct link){
                .wire = wire, .uses = uses, .since = now, .rank = -1, .wants_out = true};
            continue;
        }
        wire_close(wire);
        if (err.kind == ERR_RETRY) return;
        // Out of descriptors or memory. The listener stays ready, so it is left alone for a while.
        log_line(LOG_WARN, "control plane: %s",
                 err.text[0] ? err.text : "no room for another connection");
        watch_descriptor(c->epoll, EPOLL_CTL_MOD, c->listener, 0, LISTENER);
        c->paused_until = now + PAUSE_SECONDS;
        return;
    }
}

// Sends what can be sent, and has epoll wait for the rest.
static int push(struct control *c, int slot, struct err *err) {
    struct link *l = &c->links[slot];
    int status = wire_work(l->wire, err);
    bool wants_out = (wire_events(l->wire) & POLLOUT) != 0;
    if (wants_out != l->wants_out) {
        watch_descriptor(c->epoll, EPOLL_CTL_MOD, wire_descriptor(l->wire),
                         wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN, (uint64_t)slot);
        l->wants_out = wants_out;
    }
    return status;
}

// ---- who it is ----------------------------------------------------------------------------------

static int read_role(const char *name, enum control_role *role) {
    static const char *const names[] = {"rank", "agent", "command"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *role = (enum control_role)i;
            return 0;
        }
    return -1;
}

static int room_for_rank(struct control *c, int rank, struct err *err) {
    if (rank < c->rank_count) return 0;
    int count = 2 * rank + 64;
    int *more = realloc(c->rank_slots, (size_t)count * sizeof *more);
    if (!more) return err_set(err, ERR_MEMORY, "no memory for the connection of rank %d", rank);
    for (int i = c->rank_count; i < count; i++) more[i] = -1;
    c->rank_slots = more;
    c->rank_count = count;
    return 0;
}

static bool is_known_as(const struct control *c, int slot, enum control_role role) {
    const struct link *l = &c->links[slot];
    return l->wire && l->known && !l->doomed && l->role == role;
}

// A rank or an agent that comes anew has lost its connection before this end noticed.
static void end_predecessor(struct control *c, int slot) {
    struct link *l = &c->links[slot];
    if (l->role == CONTROL_RANK) {
        int before = c->rank_slots[l->rank];
        c->rank_slots[l->rank] = slot;
        if (before >= 0 && before != slot && is_known_as(c, before, CONTROL_RANK) &&
            c->links[before].rank == l->rank)
            doom(c, before, false);
    }
    for (int i = 0; i < c->link_count && l->role == CONTROL_AGENT; i++)
        if (i != slot && is_known_as(c, i, CONTROL_AGENT) && strcmp(c->links[i].host, l->host) == 0)
            doom(c, i, false);
}

static int take_hello(struct control *c, int slot, json_t *message, struct err *err) {
    struct link *l = &c->links[slot];
    struct json_at at = {message, wire_peer(l->wire)};
    const char *type, *role, *host = NULL;
    int64_t rank = -1, attempt = c->attempt;
    if (json_get_string(at, "type", true, NULL, &type, err) != 0 ||
        json_get_string(at, "role", strcmp(type, "hello") == 0, "", &role, err) != 0)
        return -1;
    if (strcmp(type, "hello") != 0)
        return err_set(err, ERR_DATA, "%s: the first message is \"%.40s\", expected \"hello\"",
                       at.where, type);
    if (read_role(role, &l->role) != 0)
        return err_set(err, ERR_DATA, "%s: role \"%.40s\", expected rank, agent or command",
                       at.where, role);
    bool ranked = l->role == CONTROL_RANK;
    if (json_get_int(at, "rank", ranked, -1, &rank, err) != 0 ||
        json_get_int(at, "attempt", ranked, c->attempt, &attempt, err) != 0 ||
        json_get_string(at, "host", l->role != CONTROL_COMMAND, NULL, &host, err) != 0)
        return -1;
    if (ranked && (rank < 0 || rank >= SLOT_LIMIT))
        return err_set(err, ERR_DATA, "%s: rank %lld, expected one of 0..%d", at.where,
                       (long long)rank, SLOT_LIMIT - 1);
    if (attempt != c->attempt)
        return err_set(err, ERR_DATA, "%s: rank %lld of attempt %lld, now is attempt %d", at.where,
                       (long long)rank, (long long)attempt, c->attempt);
    if (ranked && room_for_rank(c, (int)rank, err) != 0) return -1;
    if (host && !(l->host = strdup(host))) return err_set(err, ERR_MEMORY, "no memory for a host");
    l->rank = (int)rank;
    l->known = true;
    end_predecessor(c, slot);
    return 0;
}

// ---- clocks of hosts ----------------------------------------------------------------------------

static const int ECHO_ID = -1; // orders of the supervisor have ids of 0 and above

static void ask_time(struct control *c, int slot, double now) {
    struct link *l = &c->links[slot];
    json_t *order = json_pack("{s:s,s:s,s:i}", "type", "order", "order", "echo", "id", ECHO_ID);
    l->asked_wall = clock_wall_seconds();
    if (order && control_send(c, number_of(c, slot), order) == 0) l->asked = now;
    json_decref(order);
}

// Takes the answer to that question; false: it is another message. The host's clock was read about
// half way between question and answer; the quicker an answer, the better is that known.
static bool take_time(struct control *c, int slot, const json_t *message) {
    struct link *l = &c->links[slot];
    const json_t *id = json_object_get(message, "id"), *time = json_object_get(message, "time");
    const char *type = json_string_value(json_object_get(message, "type"));
    if (l->role != CONTROL_AGENT || !type || strcmp(type, "done") != 0 || !json_is_integer(id) ||
        json_integer_value(id) != ECHO_ID)
        return false;
    if (l->asked > 0 && json_is_number(time)) {
        int at = l->echoes++ % ECHOES_KEPT;
        l->delays[at] = clock_seconds() - l->asked;
        l->offsets[at] = json_number_value(time) - (l->asked_wall + l->delays[at] / 2);
    }
    l->asked = 0;
    return true;
}

// ---- messages -----------------------------------------------------------------------------------

static void take_all(struct control *c, int slot, double now) {
    struct err err = {0};
    json_t *message;
    int taken = 0;
    while (!c->links[slot].doomed &&
           (taken = wire_take(c->links[slot].wire, &message, &err)) == 1) {
        bool came = !c->links[slot].known;
        int status = came ? take_hello(c, slot, message, &err) : 0;
        if (status == 0 && !take_time(c, slot, message))
            tell(c, slot, came ? CONTROL_CAME : CONTROL_SAID, message);
        json_decref(message);
        if (status != 0) break;
        if (came && c->links[slot].role == CONTROL_AGENT) ask_time(c, slot, now);
    }
    if (err.kind == ERR_NONE || c->links[slot].doomed) return;
    count_drop(c, err.text);
    doom(c, slot, true);
}

static void go_on(struct control *c, int slot, double now) {
    struct err err = {0};
    if (!c->links[slot].wire || c->links[slot].doomed) return; // ended within this round
    int status = push(c, slot, &err);
    take_all(c, slot, now);
    if (c->links[slot].doomed) return;
    if (c->links[slot].ends && !wire_pending(c->links[slot].wire)) doom(c, slot, false);
    if (status == 0) return;
    if (err.kind == ERR_DATA) count_drop(c, err.text);
    doom(c, slot, true);
}

// What is due at times: strangers that say nothing, questions for the time.
static void look_around(struct control *c, double now) {
    if (c->paused_until > 0 && now >= c->paused_until) {
        watch_descriptor(c->epoll, EPOLL_CTL_MOD, c->listener, EPOLLIN, LISTENER);
        c->paused_until = 0;
    }
    if (now < c->next_look) return;
    c->next_look = now + 1;
    for (int i = 0; i < c->link_count; i++) {
        struct link *l = &c->links[i];
        if (!l->wire || l->doomed) continue;
        if (!l->known && now - l->since > HELLO_SECONDS) {
            char why[160];
            snprintf(why, sizeof why, "%s: said nothing for %.0f s", wire_peer(l->wire),
                     HELLO_SECONDS);
            count_drop(c, why);
            doom(c, i, false);
        } else if (l->known && l->role == CONTROL_AGENT && l->asked == 0 &&
                   now - l->since > ECHO_SECONDS) {
            l->since = now;
            ask_time(c, i, now);
        }
    }
}

// ---- the round ----------------------------------------------------------------------------------

static int handle_ready(struct control *c, struct err *err) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    int count = epoll_wait(c->epoll, ready, EVENTS_AT_ONCE, 0);
    if (count < 0 && errno != EINTR) return err_set_errno(err, "the control plane cannot wait");
    double now = clock_seconds();
    for (int i = 0; i < count; i++) {
        if (ready[i].data.u64 == LISTENER)
            accept_all(c, now);
        else
            go_on(c, (int)ready[i].data.u64, now);
    }
    return 0;
}

int control_wait(struct control *c, struct pollfd *others, int count, double seconds,
                 control_handler *handler, void *context, struct err *err) {
    enum { OTHERS_MOST = 64 };
    struct pollfd watch[1 + OTHERS_MOST] = {{c->epoll, POLLIN, 0}};
    if (count > OTHERS_MOST)
        return err_set(err, ERR_INTERNAL, "the control plane waits for at most %d others, not %d",
                       OTHERS_MOST, count);
    if (count > 0) memcpy(watch + 1, others, (size_t)count * sizeof *others);
    c->handler = handler;
    c->context = context;
    double most = fmin(fmax(seconds, 0), c->paused_until > 0 ? PAUSE_SECONDS : 1);
    int ready = poll(watch, 1 + (nfds_t)count, (int)ceil(most * 1000));
    if (ready < 0 && errno != EINTR) return err_set_errno(err, "the control plane cannot wait");
    for (int i = 0; i < count; i++) others[i].revents = ready > 0 ? watch[1 + i].revents : 0;
    int status = ready > 0 && watch[0].revents ? handle_ready(c, err) : 0;
    look_around(c, clock_seconds());
    close_doomed(c);
    return status;
}

// ---- sending ------------------------------------------------------------------------------------

int control_send(struct control *c, int connection, const json_t *message) {
    struct link *l = find(c, connection);
    if (!l) return -1;
    int slot = (int)(l - c->links);
    struct err err = {0};
    if (wire_put(l->wire, message, &err) == 0) return push(c, slot, &err); // -1: go_on hears of it
    if (err.kind == ERR_INTERNAL) // the message's fault, not the connection's
        log_line(LOG_WARN, "control plane: %s", err.text);
    else
        doom(c, slot, true);
    return -1;
}

void control_send_ranks(struct control *c, const json_t *message) {
    for (int i = 0; i < c->link_count; i++)
        if (c->links[i].wire && c->links[i].known && c->links[i].role == CONTROL_RANK)
            control_send(c, number_of(c, i), message);
}

void control_drop(struct control *c, int connection, const char *why) {
    struct link *l = find(c, connection);
    if (!l) return;
    count_drop(c, why);
    doom(c, (int)(l - c->links), true);
}

void control_end(struct control *c, int connection) {
    struct link *l = find(c, connection);
    if (!l) return;
    l->ends = true;
    if (!wire_pending(l->wire)) doom(c, (int)(l - c->links), false);
}

void control_attempt(struct control *c, int attempt) {
    c->attempt = attempt;
    for (int i = 0; i < c->link_count; i++)
        if (c->links[i].wire && c->links[i].known && c->links[i].role == CONTROL_RANK)
            doom(c, i, false);
}
