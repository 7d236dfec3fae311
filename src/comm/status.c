// What a rank is about, for whoever asks from outside: the operation that is in flight, the journal
// of the latest posts, and stalls of messages.
//
// Stalls. Only a peer's answer tells a slow link from a peer that has not sent yet. While a message
// of a peer is under way for longer than the limit, the communication thread sends it a question,
// again and again until one is answered (a question may be lost). A peer's communication thread
// answers at once, whatever its compute thread does; so the time from the first question to an
// answer is that of the link. When it exceeds the limit, that counts as one stall.
#include "base/clock.h"
#include "comm/internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double FORGOTTEN_SECONDS = 0.5;

_Thread_local const char *comm_call_site;

struct journal_post {
    struct comm_place place;
    double posted_seconds;
    const struct operation *operation; // of a message between two ranks
    int tag;                           // of the stream
    const char *site;
    char mark[COMM_MARK_BYTES];
};

struct probe {                           // of a peer, by the communication thread
    double asked_seconds, again_seconds; // 0: no question is open
};

struct history {
    // under comm->lock
    struct journal_post posts[COMM_JOURNAL_ENTRIES];
    uint64_t posted; // post k lies at k % COMM_JOURNAL_ENTRIES
    char mark[COMM_MARK_BYTES];
    int waiting;
    int64_t *stalls;
    // of the communication thread
    struct probe *probes;
    // of both
    _Atomic double stall_seconds; // 0: nobody asks
};

int history_open(struct comm *comm, struct err *err) {
    size_t size = (size_t)comm->transport->size;
    struct history *h = calloc(1, sizeof *h);
    if (h) {
        h->stalls = calloc(size, sizeof *h->stalls);
        h->probes = calloc(size, sizeof *h->probes);
    }
    comm->history = h;
    if (h && h->stalls && h->probes) return 0;
    return err_set(err, ERR_MEMORY, "no memory for the journal of messages of %zu ranks", size);
}

void history_close(struct comm *comm) {
    if (!comm->history) return;
    free(comm->history->stalls);
    free(comm->history->probes);
    free(comm->history);
    comm->history = NULL;
}

// ---- the journal --------------------------------------------------------------------------------

void history_post(struct comm *comm, const struct comm_stream *s, const struct operation *op) {
    struct history *h = comm->history;
    struct journal_post *p = &h->posts[h->posted++ % COMM_JOURNAL_ENTRIES];
    p->place.kind = op->kind;
    p->place.number = op->number;
    p->place.bytes = op->agreed_bytes;
    memset(p->place.stream, 0, sizeof p->place.stream);
    if (s) memcpy(p->place.stream, s->name, sizeof p->place.stream);
    p->posted_seconds = op->posted_seconds;
    p->operation = s ? NULL : op;
    p->tag = s ? s->tag : 0;
    p->site = comm_call_site;
    comm_call_site = NULL;
    memcpy(p->mark, h->mark, sizeof p->mark);
}

void history_wait(struct comm *comm, int more) {
    comm->history->waiting += more;
}

void comm_mark(struct comm *comm, const char *mark) {
    pthread_mutex_lock(&comm->lock);
    snprintf(comm->history->mark, sizeof comm->history->mark, "%s", mark);
    pthread_mutex_unlock(&comm->lock);
}

// Streams that are closed have completed everything.
static bool is_done(const struct comm *comm, const struct journal_post *p) {
    if (p->operation)
        return atomic_load_explicit(&p->operation->finished, memory_order_acquire) >=
               p->place.number;
    for (int i = 0; i < comm->stream_count; i++)
        if (comm->streams[i]->tag == p->tag)
            return atomic_load(&comm->streams[i]->completed) >= p->place.number;
    return true;
}

int comm_journal(struct comm *comm, struct comm_journal_entry *out, int most) {
    pthread_mutex_lock(&comm->lock);
    const struct history *h = comm->history;
    double now = clock_seconds();
    uint64_t kept = h->posted < COMM_JOURNAL_ENTRIES ? h->posted : COMM_JOURNAL_ENTRIES;
    int count = most < (int)kept ? most : (int)kept;
    for (int i = 0; i < count; i++) {
        const struct journal_post *p =
            &h->posts[(h->posted - (uint64_t)(count - i)) % COMM_JOURNAL_ENTRIES];
        out[i].place = p->place;
        out[i].place.seconds = now - p->posted_seconds;
        out[i].site = p->site;
        memcpy(out[i].mark, p->mark, sizeof out[i].mark);
        out[i].done = is_done(comm, p);
    }
    pthread_mutex_unlock(&comm->lock);
    return count;
}

// ---- the status ---------------------------------------------------------------------------------

// Takes the operation over if it has been in flight for longer than what stands there.
static bool is_older(const struct operation *op, double now, struct comm_place *oldest) {
    double begun = atomic_load(&op->begun_seconds), seconds;
    seconds = now - (begun > 0 ? begun : op->posted_seconds);
    if (oldest->number > 0 && seconds <= oldest->seconds) return false;
    oldest->kind = op->kind;
    oldest->number = op->number;
    oldest->bytes = op->agreed_bytes;
    oldest->seconds = fmax(seconds, 0);
    return true;
}

static void look_at_streams(const struct comm *comm, double now, struct comm_status *out) {
    for (int i = 0; i < comm->stream_count; i++) {
        const struct comm_stream *s = comm->streams[i];
        uint64_t posted = atomic_load(&s->posted), next = atomic_load(&s->completed) + 1;
        if (out->stream_count < COMM_STATUS_STREAMS) {
            int at = out->stream_count++;
            memcpy(out->streams[at].stream, s->name, sizeof out->streams[at].stream);
            out->streams[at].first_member = s->members[0];
            out->streams[at].posted = posted;
        }
        if (next > posted || !is_older(&s->slots[next % COMM_STREAM_DEPTH], now, &out->oldest))
            continue;
        memcpy(out->oldest.stream, s->name, sizeof out->oldest.stream);
        out->member_count = s->count < COMM_STATUS_MEMBERS ? s->count : COMM_STATUS_MEMBERS;
        memcpy(out->members, s->members, (size_t)out->member_count * sizeof *out->members);
    }
}

static void look_at_points(const struct comm *comm, double now, struct comm_status *out) {
    for (int i = 0, seen = 0; i < COMM_POINT_DEPTH && seen < comm->points_open; i++) {
        const struct point *p = &comm->points[i];
        if (atomic_load(&p->op.finished) >= p->op.number) continue;
        seen++;
        if (!is_older(&p->op, now, &out->oldest)) continue;
        memset(out->oldest.stream, 0, sizeof out->oldest.stream);
        out->member_count = 2;
        out->members[0] = comm->transport->rank;
        out->members[1] = p->op.root;
    }
}

void comm_status(struct comm *comm, struct comm_status *out) {
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&comm->lock);
    const struct history *h = comm->history;
    double now = clock_seconds();
    out->waiting = h->waiting > 0;
    memcpy(out->busy, comm->busy, sizeof out->busy);
    look_at_streams(comm, now, out);
    look_at_points(comm, now, out);
    if (h->posted > 0) {
        const struct journal_post *p = &h->posts[(h->posted - 1) % COMM_JOURNAL_ENTRIES];
        out->last = p->place;
        out->last.seconds = now - p->posted_seconds;
    }
    pthread_mutex_unlock(&comm->lock);
}

// ---- stalls -------------------------------------------------------------------------------------

void comm_stalls(struct comm *comm, double seconds, int64_t *stalls) {
    struct history *h = comm->history;
    atomic_store(&h->stall_seconds, fmax(seconds, 1e-3));
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < comm->transport->size; i++) {
        stalls[i] += h->stalls[i];
        h->stalls[i] = 0;
    }
    pthread_mutex_unlock(&comm->lock);
}

static void ask(struct comm *comm, int peer, double now, double limit) {
    struct probe *p = &comm->history->probes[peer];
    if (peer == comm->transport->rank || (p->asked_seconds > 0 && now < p->again_seconds)) return;
    // A question whose answer never came says nothing about what is under way now.
    if (p->asked_seconds == 0 || now > p->again_seconds + FORGOTTEN_SECONDS) p->asked_seconds = now;
    p->again_seconds = now + limit;
    struct transport_note note = {.kind = NOTE_PROBES, .from = comm->transport->rank};
    note_send(comm, peer, &note);
}

void stalls_look(struct comm *comm, double now) {
    double limit = atomic_load_explicit(&comm->history->stall_seconds, memory_order_relaxed);
    if (limit <= 0) return;
    for (int i = 0; i < comm->active_count; i++) {
        struct comm_stream *s = comm->active[i];
        if (!s->current || now - s->current->begun_seconds < limit) continue;
        for (int j = 0; j < s->transfer_count; j++)
            if (s->transfers[j].state != TRANSFER_DONE) ask(comm, s->transfers[j].peer, now, limit);
    }
    for (struct point *p = comm->moving; p; p = p->next)
        if (p->op.begun_seconds > 0 && now - p->op.begun_seconds >= limit)
            ask(comm, p->transfer.peer, now, limit);
}

void stalls_note(struct comm *comm, const struct transport_note *note) {
    struct history *h = comm->history;
    if (note->kind == NOTE_PROBES) {
        struct transport_note answer = {.kind = NOTE_PROBED, .from = comm->transport->rank};
        note_send(comm, note->from, &answer);
        return;
    }
    struct probe *p = &h->probes[note->from];
    if (p->asked_seconds == 0) return; // answered already
    bool stalled = clock_seconds() - p->asked_seconds > atomic_load(&h->stall_seconds);
    p->asked_seconds = 0;
    if (!stalled) return;
    pthread_mutex_lock(&comm->lock);
    h->stalls[note->from]++;
    pthread_mutex_unlock(&comm->lock);
}
