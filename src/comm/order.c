// The check of orders (for debugging): ranks that share a group must post the operations of all
// their common groups in the same order, or they may wait for each other for ever. Every post goes
// into a journal; for each other rank, the k-th entry that concerns it is sent to it and compared
// with its k-th entry that concerns this rank. So an exchange of two streams is noticed as soon as
// both ranks have posted, also when both already stand still.
#include "comm/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SITE_BYTES = 48 };
struct entry { // as sent
    uint64_t number, bytes;
    int32_t kind, tag;
    char stream[COMM_GROUP_NAME_BYTES], site[SITE_BYTES];
};

struct partner {
    struct transfer out, in;
    struct entry sent, found;
    uint64_t send_next, compare_next; // journal positions
    bool sending, receiving, received;
};

struct order_check {
    uint64_t posted; // entries so far; entry k lies at k % JOURNAL_ENTRIES
    struct entry entries[JOURNAL_ENTRIES];
    unsigned char *concerns; // whether entry e concerns rank r: [e x size + r]
    struct partner *partners;
};

int order_open(struct comm *comm, struct err *err) {
    size_t size = (size_t)comm->transport->size;
    struct order_check *o = calloc(1, sizeof *o);
    if (o) {
        o->concerns = calloc(JOURNAL_ENTRIES, size);
        o->partners = calloc(size, sizeof *o->partners);
    }
    comm->order = o;
    if (o && o->concerns && o->partners) return 0;
    order_close(comm);
    return err_set(err, ERR_MEMORY, "no memory to check the order of operations of %zu ranks",
                   size);
}

void order_close(struct comm *comm) {
    if (!comm->order) return;
    free(comm->order->concerns);
    free(comm->order->partners);
    free(comm->order);
    comm->order = NULL;
}

// The slowest partner still needs the oldest entry.
bool order_full(const struct comm *comm) {
    const struct order_check *o = comm->order;
    for (int r = 0; r < comm->transport->size; r++) {
        const struct partner *p = &o->partners[r];
        uint64_t first = p->send_next < p->compare_next ? p->send_next : p->compare_next;
        if (r != comm->transport->rank && o->posted - first >= JOURNAL_ENTRIES) return true;
    }
    return false;
}

// Under the lock.
void order_post(struct comm *comm, const struct comm_stream *s, const struct operation *op) {
    struct order_check *o = comm->order;
    size_t at = o->posted % JOURNAL_ENTRIES;
    struct entry *e = &o->entries[at];
    *e = (struct entry){
        .number = op->number, .bytes = op->agreed_bytes, .kind = (int32_t)op->kind, .tag = s->tag};
    memcpy(e->stream, s->name, sizeof e->stream);
    snprintf(e->site, sizeof e->site, "%s", op->site ? op->site : "a place not noted");
    unsigned char *concerns = o->concerns + at * (size_t)comm->transport->size;
    memset(concerns, 0, (size_t)comm->transport->size);
    for (int i = 0; i < s->count; i++) concerns[s->members[i]] = i != s->index;
    o->posted++;
}

// Moves *position to the next entry that concerns `rank`; false when there is none yet. To be
// called also for ranks that share no group: a position that stays behind keeps posts waiting.
static bool find_next(struct comm *comm, int rank, uint64_t *position, struct entry *copy) {
    struct order_check *o = comm->order;
    bool found = false;
    pthread_mutex_lock(&comm->lock);
    uint64_t before = *position;
    while (*position < o->posted && !found) {
        size_t at = *position % JOURNAL_ENTRIES;
        found = o->concerns[at * (size_t)comm->transport->size + (size_t)rank];
        if (found)
            *copy = o->entries[at];
        else
            ++*position;
    }
    if (*position != before) pthread_cond_broadcast(&comm->changed); // a post may wait for room
    pthread_mutex_unlock(&comm->lock);
    return found;
}

static void step(struct comm *comm, uint64_t *position) {
    pthread_mutex_lock(&comm->lock);
    ++*position;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static int send_entries(struct comm *comm, int rank, bool *moved, struct err *err) {
    struct partner *p = &comm->order->partners[rank];
    for (;;) {
        if (p->sending) {
            int done = transfer_poll(comm, &p->out, moved, err);
            if (done != 1) return done;
            p->sending = false;
        }
        if (!find_next(comm, rank, &p->send_next, &p->sent)) return 0;
        transfer_begin(comm, &p->out, true, rank, TRANSPORT_ORDER_TAG, &p->sent, sizeof p->sent);
        p->sending = true;
        step(comm, &p->send_next);
    }
}

static void describe(const struct entry *e, char *text, size_t bytes) {
    snprintf(text, bytes, "%s number %llu of stream %.*s, %llu bytes, at %.*s",
             comm_kind_name((enum comm_kind)e->kind), (unsigned long long)e->number,
             (int)sizeof e->stream - 1, e->stream, (unsigned long long)e->bytes,
             (int)sizeof e->site - 1, e->site);
}

static int compare(struct comm *comm, int rank, const struct entry *mine,
                   const struct entry *theirs, struct err *err) {
    if (mine->number == theirs->number && mine->bytes == theirs->bytes &&
        mine->kind == theirs->kind && mine->tag == theirs->tag)
        return 0;
    char a[220], b[220];
    describe(theirs, a, sizeof a);
    describe(mine, b, sizeof b);
    return err_set(err, ERR_INTERNAL,
                   "orders differ: rank %d (%s) posted %s; rank %d expects %s. All members of a "
                   "group must post the same operations in the same order",
                   rank, comm_host(comm, rank), a, comm->transport->rank, b);
}

static int compare_entries(struct comm *comm, int rank, bool *moved, struct err *err) {
    struct partner *p = &comm->order->partners[rank];
    struct entry mine;
    for (;;) {
        bool posted = find_next(comm, rank, &p->compare_next, &mine);
        if (!p->receiving && !p->received) {
            transfer_begin(comm, &p->in, false, rank, TRANSPORT_ORDER_TAG, &p->found,
                           sizeof p->found);
            p->receiving = true;
        }
        if (p->receiving) {
            int done = transfer_poll(comm, &p->in, moved, err);
            if (done != 1) return done;
            p->receiving = false;
            p->received = true;
        }
        if (!posted) return 0;
        if (compare(comm, rank, &mine, &p->found, err) != 0) return -1;
        p->received = false;
        step(comm, &p->compare_next);
    }
}

int order_poll(struct comm *comm, bool *moved, struct err *err) {
    for (int r = 0; r < comm->transport->size; r++) {
        if (r == comm->transport->rank) continue;
        if (send_entries(comm, r, moved, err) != 0 || compare_entries(comm, r, moved, err) != 0)
            return -1;
    }
    return 0;
}
