// What a rank is about, for whoever asks from outside: the operation that is in flight, the journal
// of the latest posts, and stalls of messages.
//
// Stalls. Only a peer's answer tells a slow link from a peer that has not sent yet. While a message
// of a peer is under way for longer than half of the limit, the communication thread asks it a
// question, again and again (one may be lost), until it answers or the message is there. A peer's
// communication thread answers at once, whatever its compute thread does; so when that takes the
// other half, it was the link (or the whole process that stood still).
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local const char *comm_call_site;
static const double LONGEST_PAUSE_SECONDS = 0.2; // between two looks while something is under way

struct journal_post {
    struct comm_place place;
    double posted_seconds;
    const struct operation *operation; // of a message between two ranks
    int tag;                           // of the stream
    const char *site;
    char mark[COMM_MARK_BYTES];
};

struct probe {                           // of a peer, by the communication thread
    double asked_seconds, again_seconds; // of the open question; 0: none is
    uint64_t number;                     // of the latest question
    bool wanted;                         // a message of that peer is late
};

struct history {
    // under comm->lock
    struct journal_post posts[COMM_JOURNAL_ENTRIES];
    uint64_t posted; // post k lies at k % COMM_JOURNAL_ENTRIES
    char mark[COMM_MARK_BYTES];
    char folder[1024]; // of journals
    int waiting;
    int64_t *stalls;
    // of the communication thread
    struct probe *probes;
    int probes_open;
    double looked_seconds;
    // of both
    _Atomic double half_seconds; // half of the limit for stalls; 0: nobody asks
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

const char *history_mark(const struct comm *comm) {
    return comm->history->mark;
}

const char *history_notes(const struct comm *comm) {
    return comm->history->folder;
}

// "all_gather number 977 of stream tp at stage.c:41 in step 7"
static void describe(const struct comm_place *place, const char *site, const char *mark, char *text,
                     size_t bytes) {
    bool stream = place->stream[0];
    snprintf(text, bytes, "%s number %llu%s%s%s%s%s%s", comm_kind_name(place->kind),
             (unsigned long long)place->number, stream ? " of stream " : "",
             stream ? place->stream : "", site ? " at " : "", site ? site : "",
             mark[0] ? " in " : "", mark);
}

void history_describe_last(struct comm *comm, char *text, size_t bytes) {
    text[0] = 0;
    pthread_mutex_lock(&comm->lock);
    const struct history *h = comm->history;
    const struct journal_post *p = &h->posts[(h->posted - 1) % COMM_JOURNAL_ENTRIES];
    if (h->posted > 0) describe(&p->place, p->site, p->mark, text, bytes);
    pthread_mutex_unlock(&comm->lock);
}

static void put_members(const struct comm *comm, const struct comm_place *place, struct text *out) {
    for (int i = 0; i < comm->stream_count; i++) {
        const struct comm_stream *s = comm->streams[i];
        if (strcmp(s->name, place->stream) != 0) continue;
        text_puts(out, ", ranks");
        for (int j = 0; j < s->count && j < COMM_STATUS_MEMBERS; j++)
            text_printf(out, " %d", s->members[j]);
        if (s->count > COMM_STATUS_MEMBERS) text_puts(out, " ...");
        return;
    }
}

// What stands in it may be cut short where memory is: it is for reading only.
int comm_journal_text(struct comm *comm, struct text *out) {
    struct comm_journal_entry *entries = calloc(COMM_JOURNAL_ENTRIES, sizeof *entries);
    if (!entries) return -1;
    int count = comm_journal(comm, entries, COMM_JOURNAL_ENTRIES);
    struct comm_status now;
    comm_status(comm, &now);
    pthread_mutex_lock(&comm->lock);
    const char *mark = history_mark(comm);
    int status = text_printf(out, "rank %d (%s)%s%s: %s%s%s\n", comm->transport->rank,
                             comm_host(comm, comm->transport->rank), mark[0] ? " in " : "", mark,
                             now.waiting ? "waits for messages" : "stands outside of messages",
                             now.busy[0] ? ", busy: " : "", now.busy);
    for (int i = 0; i < count && status == 0; i++) {
        const struct comm_journal_entry *e = &entries[i];
        char what[LAST_BYTES + 80];
        describe(&e->place, e->site, e->mark, what, sizeof what);
        status = text_printf(out, "  %s, %llu bytes, posted %.3f s ago, %s", what,
                             (unsigned long long)e->place.bytes, e->place.seconds,
                             e->done ? "done" : "NOT DONE");
        if (e->place.stream[0]) put_members(comm, &e->place, out);
        text_puts(out, "\n");
    }
    pthread_mutex_unlock(&comm->lock);
    free(entries);
    return status;
}

int comm_keep_journal(struct comm *comm, const char *folder, struct err *err) {
    if (folder && strlen(folder) >= sizeof comm->history->folder)
        return err_set(err, ERR_USAGE, "%.200s...: the path of the journals is too long", folder);
    pthread_mutex_lock(&comm->lock);
    snprintf(comm->history->folder, sizeof comm->history->folder, "%s", folder ? folder : "");
    pthread_mutex_unlock(&comm->lock);
    return 0;
}

void history_text(struct comm *comm, struct text *out) {
    pthread_mutex_lock(&comm->lock);
    bool wanted = comm->history->folder[0];
    pthread_mutex_unlock(&comm->lock);
    if (wanted) comm_journal_text(comm, out);
}

void history_write(struct comm *comm, const struct text *journal) {
    struct err err = {0};
    char folder[sizeof comm->history->folder], path[sizeof folder + 64];
    int rank = comm->transport->rank;
    if (journal->size == 0) return;
    pthread_mutex_lock(&comm->lock);
    memcpy(folder, comm->history->folder, sizeof folder);
    pthread_mutex_unlock(&comm->lock);
    snprintf(path, sizeof path, "%s/rank-%05d.txt", folder, rank);
    if (file_make_folders(folder, &err) != 0 ||
        file_replace(path, journal->data, journal->size, &err) != 0)
        log_line(LOG_WARN, "the journal of rank %d is not written: %s", rank, err.text);
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
    if (!comm->busy_rests) memcpy(out->busy, comm->busy, sizeof out->busy);
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
    atomic_store(&h->half_seconds, fmax(seconds, 1e-3) / 2);
    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < comm->transport->size; i++) {
        stalls[i] += h->stalls[i];
        h->stalls[i] = 0;
    }
    pthread_mutex_unlock(&comm->lock);
}

static void ask(struct comm *comm, int peer, double now, double half) {
    struct probe *p = &comm->history->probes[peer];
    if (peer == comm->transport->rank) return;
    p->wanted = true;
    if (p->asked_seconds > 0 && now < p->again_seconds) return;
    if (p->asked_seconds == 0) {
        p->asked_seconds = now;
        p->number++;
        comm->history->probes_open++;
    }
    p->again_seconds = now + half;
    struct transport_note note = {
        .kind = NOTE_PROBES, .from = comm->transport->rank, .number = p->number};
    note_send(comm, peer, &note);
}

// The question is answered, or needs no answer any more.
static void settle(struct comm *comm, int peer, bool stalled) {
    struct history *h = comm->history;
    h->probes[peer].asked_seconds = 0;
    h->probes_open--;
    if (!stalled) return;
    pthread_mutex_lock(&comm->lock);
    h->stalls[peer]++;
    pthread_mutex_unlock(&comm->lock);
}

static void ask_for_late(struct comm *comm, double now, double half) {
    for (int i = 0; i < comm->active_count; i++) {
        struct comm_stream *s = comm->active[i];
        if (!s->current || now - s->current->begun_seconds < half) continue;
        for (int j = 0; j < s->transfer_count; j++)
            if (s->transfers[j].state != TRANSFER_DONE) ask(comm, s->transfers[j].peer, now, half);
    }
    for (struct point *p = comm->moving; p; p = p->next)
        if (p->op.begun_seconds > 0 && now - p->op.begun_seconds >= half)
            ask(comm, p->transfer.peer, now, half);
}

void stalls_look(struct comm *comm, bool busy) {
    struct history *h = comm->history;
    double half = atomic_load_explicit(&h->half_seconds, memory_order_relaxed);
    if (half <= 0 || (!busy && h->probes_open == 0)) return;
    double now = clock_seconds();
    // It was this process that stood still.
    bool forget = now - h->looked_seconds > fmax(half, LONGEST_PAUSE_SECONDS);
    h->looked_seconds = now;
    if (busy) ask_for_late(comm, now, half);
    for (int i = 0; i < comm->transport->size && h->probes_open > 0; i++) {
        struct probe *p = &h->probes[i];
        if (p->asked_seconds > 0 && (forget || !p->wanted))
            settle(comm, i, !forget && now - p->asked_seconds > half);
        p->wanted = false;
    }
}

void stalls_note(struct comm *comm, const struct transport_note *note) {
    struct history *h = comm->history;
    const struct probe *p = &h->probes[note->from];
    if (note->kind == NOTE_PROBES) {
        struct transport_note answer = {
            .kind = NOTE_PROBED, .from = comm->transport->rank, .number = note->number};
        note_send(comm, note->from, &answer);
    } else if (p->asked_seconds > 0 && note->number == p->number) {
        settle(comm, note->from,
               clock_seconds() - p->asked_seconds > atomic_load(&h->half_seconds));
    }
}
