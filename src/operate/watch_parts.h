// The rules of watch.h by file: watch_read.c takes messages, watch_hang.c, watch_slow.c judge.
#pragma once
#include "operate/watch.h"

enum { WATCH_BEAT_SECONDS = 1 }; // between two messages of a rank

struct watch_found { // a list with an end
    struct incident *list;
    int count, most;
};
// Adds an incident and returns it, to be given its evidence; NULL: no room.
struct incident *watch_add(const struct watch *w, struct watch_found *found,
                           enum incident_kind kind, int rank, int host);

// Says something once: false when it was said already. `over` clears it.
bool watch_say(uint32_t *said, enum incident_kind kind);
void watch_over(uint32_t *said, enum incident_kind kind);

// Busy with long work that it has announced, and not for too long.
bool watch_busy(const struct watch *w, int rank, double now);
const char *watch_host_name(const struct watch *w, int rank);
bool watch_silent(const struct watch *w, int rank, double now);
// Sum of stalls between both ranks within the window.
int64_t watch_stalls(const struct watch *w, int a, int b);

void watch_look_hang(struct watch *w, double now, struct watch_found *found);
void watch_look_slow(struct watch *w, struct watch_found *found);
void watch_look_memory(struct watch *w, struct watch_found *found);
void watch_look_links(struct watch *w, struct watch_found *found);
