// Messages between two ranks. Each is on its way at once, but for a second one with the same
// partner, tag and direction: it waits for the first, so that they arrive in the order of posting.
#include "base/clock.h"
#include "comm/internal.h"
#include <string.h>

static const char *const span_name[2] = {"receive", "send"};

static struct comm_event post(struct comm *comm, bool sends, int peer, int tag, void *data,
                              uint64_t bytes) {
    enum comm_kind kind = sends ? COMM_SEND : COMM_RECEIVE;
    struct comm_event event = {0};
    struct err wrong = {0};
    pthread_mutex_lock(&comm->lock);
    if (peer < 0 || peer >= comm->transport->size || tag < 0 || tag > COMM_TAG_MOST) {
        err_set(
            &wrong, ERR_INTERNAL,
            "%s of %llu bytes: rank %d with tag %d, expected a rank of 0..%d and a tag of 0..%d",
            comm_kind_name(kind), (unsigned long long)bytes, peer, tag, comm->transport->size - 1,
            COMM_TAG_MOST);
        comm_fail_locked(comm, &wrong, false);
    }
    double begin = clock_seconds();
    bool waited = !comm->free_points;
    history_wait(comm, waited);
    while (!comm->free_points && !atomic_load(&comm->settled))
        pthread_cond_wait(&comm->changed, &comm->lock);
    history_wait(comm, -waited);
    if (waited) comm->point_counts[kind].exposed_seconds += clock_seconds() - begin;
    if (!atomic_load(&comm->failed)) {
        struct point *p = comm->free_points;
        comm->free_points = p->next;
        p->op.kind = kind;
        p->op.number = ++comm->point_number;
        p->op.name = span_name[sends];
        p->op.counts = &comm->point_counts[kind];
        p->op.posted_seconds = clock_seconds();
        p->op.site = comm_call_site;
        p->op.begun_seconds = 0;
        p->op.sent_bytes = sends ? bytes : 0;
        p->op.agreed_bytes = bytes;
        p->op.root = peer;
        p->transfer.sends = sends;
        p->transfer.peer = peer;
        p->transfer.tag = tag;
        p->transfer.data = data;
        p->transfer.bytes = bytes;
        p->next = NULL;
        history_post(comm, NULL, &p->op);
        *comm->new_points_end = p;
        comm->new_points_end = &p->next;
        comm->points_open++;
        event = (struct comm_event){comm, &p->op, p->op.number};
    }
    pthread_mutex_unlock(&comm->lock);
    doorbell_ring(comm->bell);
    return event;
}

struct comm_event comm_send(struct comm *comm, int to, int tag, const void *data, uint64_t bytes) {
    return post(comm, true, to, tag, (void *)(uintptr_t)data, bytes);
}

struct comm_event comm_receive(struct comm *comm, int from, int tag, void *data, uint64_t bytes) {
    return post(comm, false, from, tag, data, bytes);
}
