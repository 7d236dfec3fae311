// The communication thread. It looks at everything that is under way, again and again; when nothing
// moves it sleeps: until somebody rings where messages ring, for ever longer naps (20 to 200
// microseconds) where the transport has to be asked, and until a post where nothing is under way.
#include "base/clock.h"
#include "comm/internal.h"
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static const double NAP_LEAST_SECONDS = 20e-6, NAP_MOST_SECONDS = 200e-6;
static const double ABORT_SECONDS = 0.3;
static const double IDLE_SECONDS = 0.05; // news of a failure may come meanwhile
enum { LOOKS_BEFORE_NAP = 8, NAPS_OF_ONE_LENGTH = 8 };

// ---- failure ------------------------------------------------------------------------------------

void comm_fail_locked(struct comm *comm, const struct err *why, bool peers_know) {
    if (atomic_load(&comm->failed)) return;
    comm->failure = *why;
    comm->peers_know = peers_know;
    atomic_store(&comm->failed, true);
    doorbell_ring(comm->bell);
}

static void fail(struct comm *comm, const struct err *why) {
    pthread_mutex_lock(&comm->lock);
    comm_fail_locked(comm, why, false);
    pthread_mutex_unlock(&comm->lock);
}

// Of the messages themselves, not of what a rank did beside them: the journals say more.
static void fail_messages(struct comm *comm, const struct err *why) {
    pthread_mutex_lock(&comm->lock);
    comm->messages_failed |= !atomic_load(&comm->failed);
    comm_fail_locked(comm, why, false);
    pthread_mutex_unlock(&comm->lock);
}

static void tell_peers(struct comm *comm) {
    struct transport *t = comm->transport;
    struct transport_note note = {.kind = NOTE_FAILED, .from = t->rank};
    note.error = (int32_t)comm->failure.kind;
    note.posted = comm->messages_failed;
    memcpy(note.text, comm->failure.text, sizeof note.text);
    for (int i = 0; i < t->size; i++)
        if (i != t->rank) note_send(comm, i, &note);
}

// From here on nothing moves, and waits return.
static void settle(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    bool tell = !comm->peers_know, keep = comm->messages_failed;
    pthread_mutex_unlock(&comm->lock);
    if (tell) tell_peers(comm); // the failure does not change any more
    struct text journal = {0};  // before waits return and threads go on
    if (keep) history_text(comm, &journal);
    comm->transport->calls->withdraw(comm->transport);
    comm->moving = NULL;
    comm->moving_end = &comm->moving;
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->settled, true);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    history_write(comm, &journal);
    text_free(&journal);
}

// ---- operations ---------------------------------------------------------------------------------

// Figures first, then the number that waiters look at: what they read afterwards is complete.
static void operation_end(struct comm *comm, struct operation *op, uint64_t number) {
    double now = clock_seconds();
    record_end(&comm->lane, RECORD_COMM, op->name, (int64_t)number, op->begun_seconds);
    pthread_mutex_lock(&comm->lock);
    op->counts->operations++;
    op->counts->bytes += op->sent_bytes;
    op->counts->queued_seconds += op->begun_seconds - op->posted_seconds;
    op->counts->in_flight_seconds += now - op->begun_seconds;
    atomic_store_explicit(&op->finished, number, memory_order_release);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void stream_begin(struct comm_stream *s, uint64_t number) {
    struct operation *op = &s->slots[number % COMM_STREAM_DEPTH];
    inject_take_over(s->comm); // one that was wanted before the operation was posted
    op->begun_seconds = clock_seconds();
    op->round = 0;
    watchdog_begin(s->comm, op);
    s->current = op;
    collective_round(s, op); // every operation begins with messages
}

// 1: all messages of the round are done.
static int poll_round(struct comm_stream *s, bool *moved, struct err *err) {
    int done = 1;
    for (int i = 0; i < s->transfer_count; i++) {
        struct transfer *x = &s->transfers[i];
        if (x->state == TRANSFER_DONE) continue;
        int result = transfer_poll(s->comm, x, moved, err);
        if (result < 0) {
            char what[WHAT_BYTES];
            describe_stream(s, what, sizeof what);
            return err_context(err, "%s", what);
        }
        if (result == 0) done = 0;
    }
    return done;
}

// Carries the stream on as far as it goes without waiting, at most to the end of one operation.
static int stream_go(struct comm_stream *s, bool *moved, struct err *err) {
    uint64_t next = atomic_load(&s->completed) + 1;
    if (!s->current) {
        if (atomic_load(&s->posted) < next) return 0;
        stream_begin(s, next);
        *moved = true;
    }
    struct operation *op = s->current;
    for (;;) {
        if (s->summing) {
            *moved = true;
            s->summing = !sum_piece(s, op);
            if (s->summing) return 0;
        }
        int done = poll_round(s, moved, err);
        if (done != 1) return done;
        op->round++;
        enum round round = collective_round(s, op);
        s->summing = round == ROUND_SUM;
        if (round == ROUND_END) break;
    }
    *moved = true;
    s->current = NULL;
    atomic_store(&s->completed, next);
    operation_end(s->comm, op, next);
    return 0;
}

// ---- messages between two ranks -----------------------------------------------------------------

// Whether an older one with the same partner, tag and direction is on the list before `p`.
static bool has_elder(const struct comm *comm, const struct point *p) {
    for (const struct point *q = comm->moving; q != p; q = q->next)
        if (q->transfer.peer == p->transfer.peer && q->transfer.tag == p->transfer.tag &&
            q->transfer.sends == p->transfer.sends)
            return true;
    return false;
}

static void point_end(struct comm *comm, struct point *p) {
    operation_end(comm, &p->op, p->op.number);
    pthread_mutex_lock(&comm->lock);
    p->next = comm->free_points;
    comm->free_points = p;
    comm->points_open--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static int points_go(struct comm *comm, bool *moved, struct err *err) {
    for (struct point **at = &comm->moving; *at;) {
        struct point *p = *at;
        struct transfer *x = &p->transfer;
        if (p->op.begun_seconds == 0) {
            if (has_elder(comm, p)) {
                at = &p->next;
                continue;
            }
            p->op.begun_seconds = clock_seconds();
            watchdog_begin(comm, &p->op);
            transfer_begin(comm, x, x->sends, x->peer, x->tag, x->data, x->bytes);
            *moved = true;
        }
        int done = x->state == TRANSFER_DONE ? 1 : transfer_poll(comm, x, moved, err);
        if (done < 0) {
            char what[WHAT_BYTES];
            describe_point(p, what, sizeof what);
            return err_context(err, "%s", what);
        }
        if (done == 0) {
            at = &p->next;
            continue;
        }
        *moved = true;
        *at = p->next;
        if (!*at) comm->moving_end = at;
        point_end(comm, p);
    }
    return 0;
}

// ---- the loop -----------------------------------------------------------------------------------

// Takes over what compute threads have left: new messages, another list of streams.
static void take_over(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    if (comm->new_points) {
        *comm->moving_end = comm->new_points;
        comm->moving_end = comm->new_points_end;
        comm->new_points = NULL;
        comm->new_points_end = &comm->new_points;
    }
    if (comm->streams_taken != comm->streams_version) {
        comm->active_count = comm->stream_count;
        memcpy(comm->active, comm->streams, (size_t)comm->stream_count * sizeof comm->streams[0]);
        comm->streams_taken = comm->streams_version;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    inject_take_over(comm); // after the messages: a fault that was wanted before them is seen
}

static void read_notes(struct comm *comm) {
    struct transport_note note;
    while (note_receive(comm, &note)) watchdog_note(comm, &note);
}

// Everything once. Returns whether anything moved; *busy: something is under way.
static bool go_round(struct comm *comm, bool *busy) {
    bool moved = false;
    struct err err = {0};
    int result = 0;
    comm->next_ns = INT64_MAX;
    comm->long_messages = false;
    take_over(comm);
    read_notes(comm);
    *busy = false;
    if (!atomic_load(&comm->failed)) {
        if (comm->order) result = order_poll(comm, &moved, &err);
        for (int i = 0; i < comm->active_count && result == 0; i++) {
            result = stream_go(comm->active[i], &moved, &err);
            *busy |= comm->active[i]->current != NULL;
        }
        if (result == 0) result = points_go(comm, &moved, &err);
        *busy |= comm->moving != NULL;
        if (result < 0) fail_messages(comm, &err);
        if (*busy) watchdog_look(comm, clock_seconds());
        stalls_look(comm, *busy);
    }
    if (atomic_load(&comm->failed) && !atomic_load(&comm->settled)) settle(comm);
    return moved;
}

static bool may_leave(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    bool leave = comm->stopping && (atomic_load(&comm->settled) || comm->points_open == 0);
    for (int i = 0; i < comm->stream_count && leave && !atomic_load(&comm->settled); i++)
        leave = atomic_load(&comm->streams[i]->completed) == atomic_load(&comm->streams[i]->posted);
    pthread_mutex_unlock(&comm->lock);
    return leave;
}

// A nap of a thread that has to ask. While long messages are under way, whose parts move with each
// question, it stays short for longer.
static double nap_seconds(const struct comm *comm, int naps) {
    int doublings = comm->long_messages ? naps / NAPS_OF_ONE_LENGTH : naps;
    return fmin(NAP_LEAST_SECONDS * (1 << (doublings < 4 ? doublings : 4)), NAP_MOST_SECONDS);
}

// How long to sleep after `quiet` looks at which nothing moved; 0: look again.
static double pause_seconds(const struct comm *comm, bool busy, int quiet) {
    if (!busy) return comm->transport->polled ? IDLE_SECONDS : 1e6;
    if (quiet < LOOKS_BEFORE_NAP) return 0;
    double nap =
        comm->transport->polled ? nap_seconds(comm, quiet - LOOKS_BEFORE_NAP) : IDLE_SECONDS;
    if (comm->next_ns != INT64_MAX) nap = fmin(nap, (double)comm->next_ns * 1e-9 - clock_seconds());
    return fmin(nap, fmax(comm->next_watch_seconds - clock_seconds(), 0));
}

// Where all ranks leave together (MPI): waits for the others, as long as the watchdog allows.
static void leave_together(struct comm *comm) {
    double begin = clock_seconds();
    struct transport *t = comm->transport;
    while (!atomic_load(&comm->failed) && !t->calls->leave(t)) {
        read_notes(comm);
        struct err why = {0};
        if (clock_seconds() - begin > comm->options.watchdog_seconds) {
            err_set(
                &why, ERR_INTERNAL,
                "rank %d waits since %.0f s for the others to end; one of them hangs or is gone",
                t->rank, comm->options.watchdog_seconds);
            fail(comm, &why);
        }
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    if (atomic_load(&comm->failed) && !atomic_load(&comm->settled)) settle(comm);
}

// Ends the world when the compute thread wants that. Other ranks that have just heard of a failure
// get a moment to say what they know.
static void abort_if_wanted(struct comm *comm) {
    pthread_mutex_lock(&comm->lock);
    bool wanted = comm->aborting;
    int status = comm->abort_status;
    pthread_mutex_unlock(&comm->lock);
    if (!wanted) return;
    for (double end = clock_seconds() + ABORT_SECONDS; clock_seconds() < end;) {
        bool busy;
        go_round(comm, &busy);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    transport_mpi_abort(status);
}

static void run(struct comm *comm) {
    uint64_t rings = 0;
    int quiet = 0;
    for (;;) {
        bool busy, moved = go_round(comm, &busy);
        abort_if_wanted(comm);
        if (may_leave(comm)) break;
        quiet = moved ? 0 : quiet + 1;
        double pause = moved ? 0 : pause_seconds(comm, busy, quiet);
        uint64_t now = atomic_load(&comm->bell->rings);
        if (now != rings)
            rings = now; // what rang is looked at first
        else if (pause > 0)
            doorbell_wait(comm->bell, rings, pause);
        else if (!moved)
            sched_yield();
    }
    leave_together(comm);
}

void *comm_thread(void *argument) {
    struct comm *comm = argument;
    struct err err = {0};
    prctl(PR_SET_TIMERSLACK, 1000); // or naps of 20 microseconds last 70
    int result = comm->open ? comm->open(&comm->transport, &comm->options, &err) : 0;
    pthread_mutex_lock(&comm->lock);
    comm->opened = true;
    if (result != 0) {
        comm->failure = err;
        atomic_store(&comm->failed, true);
    } else {
        comm->bell = comm->transport->bell;
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (result != 0) return NULL;
    pthread_mutex_lock(&comm->lock); // until the opener has completed the rest
    while (!comm->ready) pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    run(comm);
    comm->transport->calls->close(comm->transport, atomic_load(&comm->failed));
    return NULL;
}
