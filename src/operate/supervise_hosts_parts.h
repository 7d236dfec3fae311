// What the two files about the hosts of a run share: supervise_hosts.c has their agents,
// supervise_fitness.c decides which of them may take ranks.
#pragma once
#include "operate/agents.h"
#include "operate/supervise_parts.h"
#include <limits.h>

// CHECK_LOST: it could not be made to the end; that says nothing about what the host computes.
enum check { CHECK_NONE, CHECK_ORDERED, CHECK_PASSED, CHECK_FAILED, CHECK_LOST };

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
    int damaged;    // messages to and from it, since it was checked for that
    int partner;    // the other end of those, until the check is ordered; -1: none
    // Processes of the last attempt that did not end, and since when; the latest try to end them.
    int left;
    double left_since, left_tried;
    bool left_asked, left_told; // the answer is still to come; the operator knows
    // the last order about copies: to whom, over which connections
    int buddy, buddy_connection, connection;
    int discarded;  // connection over which it was last told what to discard
    double failing; // since when copies of its snapshots fail; 0: they do not
    bool told_copy; // and that was said
};

struct supervise_hosts {
    struct agents *agents;
    struct one_host *list;
    int count;
    char folder[PATH_MAX];                 // of the run, absolute
    char isa[32];                          // that the ranks compute with
    char program_mark[PROGRAM_MARK_BYTES]; // of the file whose digest was asked for last
    char program_digest[PROGRAM_DIGEST_BYTES];
    double asked; // since when ranks are to be started; 0: they are not
    bool started; // there was a first start
    bool wants_grow;
    int grown_by;    // the host that came back
    json_t *discard; // what no host may keep, see hosts_discard; NULL: nothing
};

static inline struct place_host *hosts_placed(const struct supervisor *s, int host) {
    return &s->place.hosts[host];
}

static inline const struct agent_view *hosts_view(const struct supervisor *s, int host) {
    return agents_view(s->hosts->agents, host);
}

static inline bool hosts_is_ready(const struct supervisor *s, int host) {
    return hosts_view(s, host)->state == AGENT_READY;
}
// Not ready, or not heard of for a while: it will not answer.
bool hosts_is_quiet(const struct supervisor *s, int host);
// An answer that nobody waits for.
void hosts_ignore(void *context, int host, const json_t *reply, const char *error);

// ---- supervise_leftovers.c
// The answer to the order "kill".
void hosts_killed(struct supervisor *s, int host, const json_t *reply);
// Kills what is left there, once more; the answer comes later where it is another machine.
void hosts_kill_left(struct supervisor *s, int host);
// 1: nothing of the last attempt is left on the host; 0: not yet; -1: it does not end (`why`).
int hosts_look_for_left(struct supervisor *s, int host, char *why, size_t bytes);

// ---- supervise_fitness.c
// What is to be seen of a host while ranks run: a spare that is away, or is checked because it will
// be needed; a host that is out and may be back.
void hosts_look(struct supervisor *s, int host, double now);
