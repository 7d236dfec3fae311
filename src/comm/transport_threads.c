// Ranks that are threads of one process. A send lies in the mailbox of its receiver until a receive
// with its sender and tag comes, and the other way round; the receiver's thread copies. Requests
// are the nodes of the lists, so nothing is allocated. A failed world touches no request any more.
#include "comm/comm.h"
#include "comm/transport.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTE_ROOM = 64 };
static const uint64_t COPY_PIECE_BYTES = 1 << 20; // copied between two looks at the lock

struct mailbox {
    pthread_mutex_t lock;
    struct transport_request *arrived, **arrived_end;   // sends that no receive has met, by age
    struct transport_request *expected, **expected_end; // receives that no send has met
    struct transport_note notes[NOTE_ROOM];
    int note_first, note_count;
    struct doorbell bell;
};

struct local_world {
    atomic_int references;
    atomic_bool failed;
    int size;
    char (*hosts)[TRANSPORT_HOST_BYTES];
    _Atomic int64_t *link_free_ns;
    struct mailbox boxes[];
};

struct local_end {
    struct transport base;
    struct local_world *world;
};

static struct local_world *world_of(struct transport *t) {
    return ((struct local_end *)t)->world;
}

static void append(struct transport_request ***end, struct transport_request *r) {
    r->next = NULL;
    **end = r;
    *end = &r->next;
}

// Takes the oldest entry of a list from `origin` with `tag` out of it.
static struct transport_request *take(struct transport_request **list,
                                      struct transport_request ***end, int origin, int tag) {
    for (struct transport_request **at = list; *at; at = &(*at)->next) {
        struct transport_request *r = *at;
        if (r->origin != origin || r->tag != tag) continue;
        *at = r->next;
        if (!*at) *end = at;
        return r;
    }
    return NULL;
}

static void local_send(struct transport *t, struct transport_request *r) {
    struct local_world *world = world_of(t);
    struct mailbox *box = &world->boxes[r->peer];
    r->origin = t->rank;
    r->sends = true;
    atomic_store(&r->done, false);
    pthread_mutex_lock(&box->lock);
    if (!atomic_load(&world->failed)) {
        struct transport_request *receive =
            take(&box->expected, &box->expected_end, r->origin, r->tag);
        if (receive)
            receive->match = r;
        else
            append(&box->arrived_end, r);
    }
    pthread_mutex_unlock(&box->lock);
    doorbell_ring(&box->bell);
}

static void local_receive(struct transport *t, struct transport_request *r) {
    struct local_world *world = world_of(t);
    struct mailbox *box = &world->boxes[t->rank];
    r->origin = r->peer;
    r->sends = false;
    r->copied_bytes = 0;
    r->match = NULL;
    atomic_store(&r->done, false);
    pthread_mutex_lock(&box->lock);
    if (!atomic_load(&world->failed)) {
        r->match = take(&box->arrived, &box->arrived_end, r->origin, r->tag);
        if (!r->match) append(&box->expected_end, r);
    }
    pthread_mutex_unlock(&box->lock);
}

// One piece of a receive that has met its send. 1: all there, 0: more to do or nothing to do.
static int copy_piece(struct local_world *world, struct transport_request *r, bool *more,
                      struct err *err) {
    struct transport_request *send = r->match;
    *more = false;
    if (!send || atomic_load(&world->failed)) return 0;
    if (send->bytes != r->bytes)
        return err_set(err, ERR_INTERNAL,
                       "message with tag %d from rank %d: expected %llu bytes, found %llu", r->tag,
                       r->origin, (unsigned long long)r->bytes, (unsigned long long)send->bytes);
    uint64_t left = r->bytes - r->copied_bytes;
    uint64_t piece = left < COPY_PIECE_BYTES ? left : COPY_PIECE_BYTES;
    if (piece)
        memcpy((char *)r->data + r->copied_bytes, (const char *)send->data + r->copied_bytes,
               piece);
    r->copied_bytes += piece;
    *more = r->copied_bytes < r->bytes;
    if (*more) return 0;
    struct doorbell *bell = &world->boxes[send->origin].bell;
    r->match = NULL;
    atomic_store(&r->done, true);
    atomic_store(&send->done, true); // from here on its memory is its owner's
    doorbell_ring(bell);
    return 1;
}

static int local_test(struct transport *t, struct transport_request *r, struct err *err) {
    if (atomic_load(&r->done)) return 1;
    struct local_world *world = world_of(t);
    if (r->sends) return 0; // the receiver's thread copies
    struct mailbox *box = &world->boxes[t->rank];
    int result;
    bool more;
    do { // the lock is free between two pieces
        pthread_mutex_lock(&box->lock);
        result = copy_piece(world, r, &more, err);
        pthread_mutex_unlock(&box->lock);
    } while (more);
    return result;
}

static void local_note_send(struct transport *t, int peer, const struct transport_note *note) {
    struct mailbox *box = &world_of(t)->boxes[peer];
    pthread_mutex_lock(&box->lock);
    if (box->note_count == NOTE_ROOM && note->kind == NOTE_FAILED) box->note_count--;
    if (box->note_count < NOTE_ROOM)
        box->notes[(box->note_first + box->note_count++) % NOTE_ROOM] = *note;
    pthread_mutex_unlock(&box->lock);
    doorbell_ring(&box->bell);
}

static bool local_note_receive(struct transport *t, struct transport_note *note) {
    struct mailbox *box = &world_of(t)->boxes[t->rank];
    pthread_mutex_lock(&box->lock);
    bool found = box->note_count > 0;
    if (found) {
        *note = box->notes[box->note_first];
        box->note_first = (box->note_first + 1) % NOTE_ROOM;
        box->note_count--;
    }
    pthread_mutex_unlock(&box->lock);
    return found;
}

// Whoever holds a lock after this sees the flag and touches no request.
static void local_withdraw(struct transport *t) {
    struct local_world *world = world_of(t);
    atomic_store(&world->failed, true);
    for (int i = 0; i < world->size; i++) {
        pthread_mutex_lock(&world->boxes[i].lock);
        pthread_mutex_unlock(&world->boxes[i].lock);
    }
}

static bool local_leave(struct transport *t) {
    (void)t;
    return true;
}

static void world_free(struct local_world *world) {
    for (int i = 0; i < world->size; i++) {
        doorbell_close(&world->boxes[i].bell);
        pthread_mutex_destroy(&world->boxes[i].lock);
    }
    free(world->link_free_ns);
    free(world->hosts);
    free(world);
}

static void local_close(struct transport *t, bool failed) {
    (void)failed;
    struct local_world *world = world_of(t);
    free(t);
    if (atomic_fetch_sub(&world->references, 1) == 1) world_free(world);
}

static const struct transport_calls local_calls = {
    .send = local_send,
    .receive = local_receive,
    .test = local_test,
    .note_send = local_note_send,
    .note_receive = local_note_receive,
    .withdraw = local_withdraw,
    .leave = local_leave,
    .close = local_close,
};

static struct local_world *world_new(int count, const struct comm_options *options) {
    struct local_world *world = calloc(1, sizeof *world + (size_t)count * sizeof world->boxes[0]);
    if (!world) return NULL;
    world->hosts = calloc((size_t)count, sizeof *world->hosts);
    world->link_free_ns = calloc((size_t)count * (size_t)count, sizeof *world->link_free_ns);
    if (!world->hosts || !world->link_free_ns) {
        free(world->hosts);
        free(world->link_free_ns);
        free(world);
        return NULL;
    }
    char host[TRANSPORT_HOST_BYTES] = "localhost";
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < count; i++) {
        if (options->ranks_per_host > 0)
            snprintf(world->hosts[i], sizeof world->hosts[i], "host-%d",
                     i / options->ranks_per_host);
        else
            memcpy(world->hosts[i], host, sizeof host);
    }
    world->size = count;
    atomic_init(&world->references, count);
    for (int i = 0; i < count; i++) {
        struct mailbox *box = &world->boxes[i];
        pthread_mutex_init(&box->lock, NULL);
        box->arrived_end = &box->arrived;
        box->expected_end = &box->expected;
        doorbell_open(&box->bell);
    }
    return world;
}

int transport_open_threads(struct transport **ends, int count, const struct comm_options *options,
                           struct err *err) {
    struct local_world *world = world_new(count, options);
    if (!world) return err_set(err, ERR_MEMORY, "no memory for the mailboxes of %d ranks", count);
    for (int i = 0; i < count; i++) {
        struct local_end *end = calloc(1, sizeof *end);
        if (!end) {
            while (i-- > 0) {
                free(ends[i]);
                ends[i] = NULL;
            }
            world_free(world);
            return err_set(err, ERR_MEMORY, "no memory for the ends of %d ranks", count);
        }
        end->world = world;
        end->base = (struct transport){.calls = &local_calls,
                                       .rank = i,
                                       .size = count,
                                       .bell = &world->boxes[i].bell,
                                       .hosts = world->hosts,
                                       .link_free_ns = world->link_free_ns};
        ends[i] = &end->base;
    }
    return 0;
}
