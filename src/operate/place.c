// See place.h.
#include "operate/place.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int place_fitting(const struct place_shape *s, int most) {
    int samples = s->batch / s->micro_batch;
    for (int n = most < samples ? most : samples; n > 0; n--)
        if (samples % n == 0 && (!s->fits || s->fits(s->context, n))) return n;
    return 0;
}

int place_ranks(const struct place *p) {
    return p->replicas * p->shape.unit;
}

int place_find(const struct place *p, const char *name) {
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->hosts[i].name, name) == 0) return i;
    return -1;
}

int place_count(const struct place *p, enum place_state state) {
    int count = 0;
    for (int i = 0; i < p->count; i++) count += p->hosts[i].state == state;
    return count;
}

static int at_position(const struct place *p, int position) {
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_IN_USE && p->hosts[i].position == position) return i;
    return -1;
}

static long room_of(const struct place *p, int host) {
    return (long)p->hosts[host].slots * p->crowding;
}

static long room_in_use(const struct place *p) {
    long room = 0;
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_IN_USE) room += room_of(p, i);
    return room;
}

// Positions become 0, 1, 2, ... again; a new host without one comes last.
static void number_positions(struct place *p) {
    for (int next = 0, done = -1; next < p->count; next++) {
        int least = -1;
        for (int i = 0; i < p->count; i++)
            if (p->hosts[i].state == PLACE_IN_USE && p->hosts[i].position > done &&
                (least < 0 || p->hosts[i].position < p->hosts[least].position))
                least = i;
        if (least < 0) return;
        done = p->hosts[least].position;
        p->hosts[least].position = next;
    }
}

static int last_position(const struct place *p) {
    int last = -1;
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_IN_USE && p->hosts[i].position > last)
            last = p->hosts[i].position;
    return last;
}

static void put_to_use(struct place *p, int host, int position) {
    p->hosts[host].state = PLACE_IN_USE;
    p->hosts[host].position = position;
}

// Hosts to which no rank falls are spares.
static void release_idle(struct place *p) {
    long before = 0;
    int last = last_position(p);
    for (int position = 0; position <= last; position++) {
        int host = at_position(p, position);
        if (host < 0) continue;
        if (before >= place_ranks(p)) p->hosts[host].state = PLACE_SPARE;
        before += room_of(p, host);
    }
    number_positions(p);
}

int place_open(struct place *p, const struct hosts *hosts, int spares,
               const struct place_shape *shape, struct err *err) {
    if (spares < 0 || spares >= hosts->count)
        return err_set(err, ERR_USAGE,
                       "%d spare host%s of %d: at least one host must be left to run on", spares,
                       spares == 1 ? "" : "s", hosts->count);
    struct place_host *list = calloc((size_t)hosts->count, sizeof *list);
    if (!list) return err_set(err, ERR_MEMORY, "no memory for %d hosts", hosts->count);
    *p = (struct place){.hosts = list,
                        .count = hosts->count,
                        .shape = *shape,
                        .replicas = shape->replicas,
                        .crowding = 1};
    long slots = 0;
    for (int i = 0; i < hosts->count; i++) {
        bool is_spare = i >= hosts->count - spares;
        snprintf(list[i].name, sizeof list[i].name, "%s", hosts->list[i].name);
        list[i].slots = hosts->list[i].slots;
        list[i].state = is_spare ? PLACE_SPARE : PLACE_IN_USE;
        list[i].position = i;
        if (!is_spare) slots += list[i].slots;
    }
    p->crowding = (int)((place_ranks(p) + slots - 1) / slots);
    if (p->crowding < 1) p->crowding = 1;
    release_idle(p);
    return 0;
}

void place_close(struct place *p) {
    free(p->hosts);
    *p = (struct place){0};
}

// The smallest spare with `room`, or else the largest of all; -1: none.
static int choose_spare(const struct place *p, long room) {
    int best = -1;
    for (int i = 0; i < p->count; i++) {
        if (p->hosts[i].state != PLACE_SPARE) continue;
        long here = room_of(p, i), there = best < 0 ? 0 : room_of(p, best);
        bool better = best < 0 || (there >= room ? here >= room && here < there : here > there);
        if (better) best = i;
    }
    return best;
}

// Brings spares in until `wanted` ranks have room or none is left; the first at `position`.
// Returns the first, -1: none.
static int fill(struct place *p, long wanted, int position) {
    int first = -1, spare;
    while (room_in_use(p) < wanted && (spare = choose_spare(p, wanted - room_in_use(p))) >= 0) {
        put_to_use(p, spare, first < 0 && position >= 0 ? position : last_position(p) + 1);
        if (first < 0) first = spare;
    }
    return first;
}

int place_evict(struct place *p, int host, int *spare, struct err *err) {
    struct place_host *h = &p->hosts[host];
    bool was_in_use = h->state == PLACE_IN_USE;
    *spare = -1;
    if (h->state != PLACE_EVICTED) h->failures++;
    h->state = PLACE_EVICTED;
    if (!was_in_use) return 0;
    long room = room_in_use(p);
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_SPARE) room += room_of(p, i);
    long most = room / p->shape.unit;
    if (most > p->replicas) most = p->replicas;
    if (most < p->replicas) most = p->shape.elastic ? place_fitting(&p->shape, (int)most) : 0;
    if (most < 1) {
        number_positions(p);
        return err_set(err, ERR_RETRY,
                       "no place is left for %s: without host %.200s %ld slots remain, %d ranks "
                       "are needed%s",
                       p->shape.elastic ? "even one replica" : "the run", h->name, room,
                       p->shape.elastic ? p->shape.unit : place_ranks(p),
                       p->shape.elastic ? "" : " and the run must not shrink");
    }
    p->replicas = (int)most;
    *spare = fill(p, place_ranks(p), h->position);
    number_positions(p);
    release_idle(p);
    return 0;
}

// Replicas for which there is room on the hosts in use and the spares.
static int most_replicas(const struct place *p) {
    long room = room_in_use(p);
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_SPARE) room += room_of(p, i);
    long most = room / p->shape.unit;
    if (most >= p->shape.replicas) return p->shape.replicas;
    return most > 0 ? place_fitting(&p->shape, (int)most) : 0;
}

bool place_return(struct place *p, int host) {
    if (p->hosts[host].state == PLACE_EVICTED) p->hosts[host].state = PLACE_SPARE;
    return most_replicas(p) > p->replicas;
}

int place_grow(struct place *p) {
    int most = most_replicas(p);
    if (most > p->replicas) p->replicas = most;
    fill(p, place_ranks(p), -1);
    number_positions(p);
    return p->replicas;
}

int place_host_of(const struct place *p, int rank) {
    long before = 0;
    for (int position = 0; rank >= 0 && rank < place_ranks(p); position++) {
        int host = at_position(p, position);
        if (host < 0) break;
        before += room_of(p, host);
        if (rank < before) return host;
    }
    return -1;
}

int place_buddy(const struct place *p, int host) {
    int in_use = place_count(p, PLACE_IN_USE);
    if (p->hosts[host].state != PLACE_IN_USE) return -1;
    if (in_use > 1) return at_position(p, (p->hosts[host].position + 1) % in_use);
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_SPARE) return i;
    return -1;
}

int place_hosts(const struct place *p, struct hosts *out, struct err *err) {
    int count = place_count(p, PLACE_IN_USE);
    struct hosts hosts = {.list = calloc((size_t)count + 1, sizeof *hosts.list)};
    for (int position = 0; hosts.list && position < count; position++) {
        int host = at_position(p, position);
        char *name = host < 0 ? NULL : strdup(p->hosts[host].name);
        if (!name) break;
        hosts.list[hosts.count++] = (struct host){.name = name, .slots = (int)room_of(p, host)};
        hosts.slots += room_of(p, host);
    }
    if (hosts.count < count || !hosts.list) {
        hosts_free(&hosts);
        return err_set(err, ERR_MEMORY, "no memory for %d hosts", count);
    }
    *out = hosts;
    return 0;
}
