// Operations that take too long. At half of the allowed time the members of the group are asked how
// many operations of the stream they have posted; communication threads answer also while their
// rank computes or hangs. When the time is up the message names the rank that is behind, or the one
// that does not even answer, not merely the neighbour whose message is missing.
#include "base/clock.h"
#include "comm/internal.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_RANKS = 8 };

static void add(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t bytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, bytes - used, format, arguments);
    va_end(arguments);
}

// ---- questions and answers ----------------------------------------------------------------------

static void ask(struct comm_stream *s, uint64_t number) {
    struct transport *t = s->comm->transport;
    s->asked = number;
    memset(s->answers, 0, (size_t)s->count * sizeof *s->answers);
    struct transport_note note = {
        .kind = NOTE_ASKS, .from = t->rank, .stream = (uint32_t)s->tag, .number = number};
    for (int i = 0; i < s->count; i++)
        if (i != s->index) t->calls->note_send(t, s->members[i], &note);
}

static struct comm_stream *find_stream(const struct comm *comm, uint32_t tag) {
    for (int i = 0; i < comm->active_count; i++)
        if ((uint32_t)comm->active[i]->tag == tag) return comm->active[i];
    return NULL;
}

static void answer(struct comm *comm, const struct transport_note *question) {
    struct comm_stream *s = find_stream(comm, question->stream);
    struct transport_note note = {.kind = NOTE_ANSWERS,
                                  .from = comm->transport->rank,
                                  .stream = question->stream,
                                  .number = question->number,
                                  .posted = s ? atomic_load(&s->posted) : 0};
    comm->transport->calls->note_send(comm->transport, question->from, &note);
}

static void take_answer(struct comm *comm, const struct transport_note *note) {
    struct comm_stream *s = find_stream(comm, note->stream);
    if (!s || s->asked != note->number) return;
    for (int i = 0; i < s->count; i++)
        if (s->members[i] == note->from)
            s->answers[i] = (struct answer){.heard = true, .posted = note->posted};
}

void watchdog_note(struct comm *comm, const struct transport_note *note) {
    if (note->kind == NOTE_ASKS) answer(comm, note);
    if (note->kind == NOTE_ANSWERS) take_answer(comm, note);
    if (note->kind != NOTE_FAILED) return;
    struct err why = {0};
    err_set(&why, (enum err_kind)note->error, "rank %d (%s) reports: %s", note->from,
            comm_host(comm, note->from), note->text);
    pthread_mutex_lock(&comm->lock);
    comm_fail_locked(comm, &why, true);
    pthread_mutex_unlock(&comm->lock);
}

// ---- messages -----------------------------------------------------------------------------------

static void add_late_members(const struct comm_stream *s, uint64_t number, char *text,
                             size_t bytes) {
    int named = 0, late = 0;
    for (int i = 0; i < s->count; i++) {
        const struct answer *a = &s->answers[i];
        if (i == s->index || (a->heard && a->posted >= number)) continue;
        if (late++ >= NAMED_RANKS) continue;
        add(text, bytes, "%s rank %d (%s) ", named++ ? "," : "", s->members[i],
            comm_host(s->comm, s->members[i]));
        if (a->heard)
            add(text, bytes, "has not posted it (it has posted %llu)",
                (unsigned long long)a->posted);
        else
            add(text, bytes, "does not answer");
    }
    if (late > named) add(text, bytes, " and %d more", late - named);
    if (late) return;
    add(text, bytes, " all ranks have posted it; messages are missing between this rank and");
    for (int i = 0; i < s->transfer_count && named < NAMED_RANKS; i++) {
        const struct transfer *x = &s->transfers[i];
        if (x->state == TRANSFER_DONE) continue;
        add(text, bytes, "%s rank %d (%s)", named++ ? "," : "", x->peer,
            comm_host(s->comm, x->peer));
    }
}

static void fail_late(struct comm *comm, const char *what, double age, const char *who) {
    struct err why = {0};
    err_set(&why, ERR_IO,
            "rank %d (%s): %s has been under way for %.1f s, at most %.1f s are allowed:%s",
            comm->transport->rank, comm_host(comm, comm->transport->rank), what, age,
            comm->options.watchdog_seconds, who);
    pthread_mutex_lock(&comm->lock);
    comm_fail_locked(comm, &why, false);
    pthread_mutex_unlock(&comm->lock);
}

static void stream_late(struct comm_stream *s, double age) {
    char what[160], who[700] = "";
    const struct operation *op = s->current;
    snprintf(what, sizeof what, "%s number %llu of stream %s (%d ranks, %llu bytes)",
             comm_kind_name(op->kind), (unsigned long long)op->number, s->name, s->count,
             (unsigned long long)op->agreed_bytes);
    add_late_members(s, op->number, who, sizeof who);
    fail_late(s->comm, what, age, who);
}

static void point_late(struct comm *comm, const struct point *p, double age) {
    char what[160], who[200];
    const struct transfer *x = &p->transfer;
    snprintf(what, sizeof what, "%s number %llu (tag %d, %llu bytes)", comm_kind_name(p->op.kind),
             (unsigned long long)p->op.number, x->tag, (unsigned long long)x->bytes);
    snprintf(who, sizeof who, " rank %d (%s) has not %s it", x->peer, comm_host(comm, x->peer),
             x->sends ? "received" : "sent");
    fail_late(comm, what, age, who);
}

// ---- looking ------------------------------------------------------------------------------------

void watchdog_look(struct comm *comm, double now) {
    double limit = comm->options.watchdog_seconds, next = now + limit;
    for (int i = 0; i < comm->active_count; i++) {
        struct comm_stream *s = comm->active[i];
        if (!s->current) continue;
        double begun = s->current->begun_seconds;
        bool asked = s->asked == s->current->number;
        if (now - begun > limit)
            stream_late(s, now - begun);
        else if (now - begun > limit / 2 && !asked)
            ask(s, s->current->number);
        else
            next = fmin(next, begun + (asked ? limit : limit / 2));
    }
    for (const struct point *p = comm->moving; p; p = p->next) {
        if (p->op.begun_seconds == 0) continue;
        if (now - p->op.begun_seconds > limit) point_late(comm, p, now - p->op.begun_seconds);
        next = fmin(next, p->op.begun_seconds + limit);
    }
    comm->next_watch_seconds = next;
}
