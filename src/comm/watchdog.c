// Operations that take too long. The members of the group are asked, every quarter of the allowed
// time and at least every 10 s, how many operations of the stream they have posted; communication
// threads answer also while their rank computes or hangs. When the time is up the message names the
// rank that is behind and what it did last, or the one that does not even answer, not merely the
// neighbour whose message is missing.
#include "base/clock.h"
#include "base/log.h"
#include "comm/internal.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMED_RANKS = 8 };
static const double ASK_SECONDS = 10, SAY_SECONDS = 10; // at least so often

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

static void ask(struct comm *comm, int rank, uint32_t stream, uint64_t number) {
    struct transport_note note = {
        .kind = NOTE_ASKS, .from = comm->transport->rank, .stream = stream, .number = number};
    note_send(comm, rank, &note);
}

static void ask_members(struct comm_stream *s) {
    struct operation *op = s->current;
    if (op->asked_seconds == 0) memset(s->answers, 0, (size_t)s->count * sizeof *s->answers);
    op->asked_seconds = clock_seconds();
    for (int i = 0; i < s->count; i++)
        if (i != s->index) ask(s->comm, s->members[i], (uint32_t)s->tag, op->number);
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
    pthread_mutex_lock(&comm->lock);
    memcpy(note.text, comm->busy, sizeof comm->busy);
    double since = comm->busy_seconds;
    pthread_mutex_unlock(&comm->lock);
    history_describe_last(comm, note.text + BUSY_BYTES, LAST_BYTES);
    note_send(comm, question->from, &note);
    double now = clock_seconds();
    if (!note.text[0] || now - comm->busy_said_seconds < SAY_SECONDS) return;
    comm->busy_said_seconds = now;
    log_line(LOG_INFO, "rank %d (%s) is busy since %.0f s: %s; rank %d and perhaps others wait",
             note.from, comm_host(comm, note.from), now - since, note.text, question->from);
}

static void keep_answer(struct answer *a, const struct transport_note *note) {
    a->heard_seconds = clock_seconds();
    a->posted = note->posted;
    snprintf(a->busy, sizeof a->busy, "%.*s", (int)sizeof a->busy - 1, note->text);
    snprintf(a->last, sizeof a->last, "%.*s", (int)sizeof a->last - 1, note->text + BUSY_BYTES);
}

// Answered lately: an older answer may be of a rank that is gone by now.
static bool is_heard(const struct comm *comm, const struct answer *a) {
    return a->heard_seconds > 0 &&
           clock_seconds() - a->heard_seconds <= comm->options.watchdog_seconds / 2;
}

static bool is_busy(const struct comm *comm, const struct answer *a) {
    return is_heard(comm, a) && a->busy[0];
}

static void say_patience(struct comm *comm, struct operation *op, const char *what, int rank,
                         const struct answer *a) {
    double now = clock_seconds();
    if (op->said_seconds > 0 && now - op->said_seconds < SAY_SECONDS) return;
    op->said_seconds = now;
    log_line(LOG_INFO, "rank %d waits since %.0f s in %s for rank %d (%s), which is busy: %s",
             comm->transport->rank, now - op->begun_seconds, what, rank, comm_host(comm, rank),
             a->busy);
}

static void take_answer(struct comm *comm, const struct transport_note *note) {
    struct comm_stream *s = find_stream(comm, note->stream);
    char what[WHAT_BYTES];
    for (int i = 0; s && s->current && s->current->number == note->number && i < s->count; i++) {
        if (s->members[i] != note->from) continue;
        keep_answer(&s->answers[i], note);
        if (!note->text[0] || note->posted >= note->number) continue;
        describe_stream(s, what, sizeof what);
        say_patience(comm, s->current, what, note->from, &s->answers[i]);
    }
    for (struct point *p = comm->moving; p && note->stream == 0; p = p->next) {
        if (p->op.number != note->number) continue;
        keep_answer(&p->answer, note);
        describe_point(p, what, sizeof what);
        if (note->text[0]) say_patience(comm, &p->op, what, note->from, &p->answer);
    }
}

void watchdog_note(struct comm *comm, const struct transport_note *note) {
    if (note->kind == NOTE_ASKS) answer(comm, note);
    if (note->kind == NOTE_ANSWERS) take_answer(comm, note);
    if (note->kind == NOTE_PROBES || note->kind == NOTE_PROBED) stalls_note(comm, note);
    if (note->kind != NOTE_FAILED) return;
    struct err why = {0};
    err_set(&why, (enum err_kind)note->error, "rank %d (%s) reports: %s", note->from,
            comm_host(comm, note->from), note->text);
    pthread_mutex_lock(&comm->lock);
    comm->messages_failed |= !atomic_load(&comm->failed) && note->posted != 0;
    comm_fail_locked(comm, &why, true);
    pthread_mutex_unlock(&comm->lock);
}

// ---- messages -----------------------------------------------------------------------------------

static bool is_late(const struct comm_stream *s, int member) {
    const struct answer *a = &s->answers[member];
    return member != s->index && !(is_heard(s->comm, a) && a->posted >= s->current->number);
}

static void add_late_members(const struct comm_stream *s, char *text, size_t bytes) {
    int named = 0, late = 0;
    for (int i = 0; i < s->count; i++) {
        if (!is_late(s, i) || late++ >= NAMED_RANKS) continue;
        add(text, bytes, "%s rank %d (%s) ", named++ ? "," : "", s->members[i],
            comm_host(s->comm, s->members[i]));
        if (is_heard(s->comm, &s->answers[i]))
            add(text, bytes, "has not posted it (it has posted %llu%s%s)",
                (unsigned long long)s->answers[i].posted,
                s->answers[i].last[0] ? "; the last of all: " : "", s->answers[i].last);
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
    pthread_mutex_lock(&comm->lock);
    const char *mark = history_mark(comm), *notes = history_notes(comm);
    err_set(&why, ERR_IO,
            "rank %d (%s)%s%s: %s has been under way for %.1f s, at most %.1f s are allowed:%s%s%s",
            comm->transport->rank, comm_host(comm, comm->transport->rank), mark[0] ? ", " : "",
            mark, what, age, comm->options.watchdog_seconds, who,
            notes[0] ? ". What every rank posted last: " : "", notes);
    comm->messages_failed |= !atomic_load(&comm->failed);
    comm_fail_locked(comm, &why, false);
    pthread_mutex_unlock(&comm->lock);
}

void describe_stream(const struct comm_stream *s, char *text, size_t bytes) {
    const struct operation *op = s->current;
    snprintf(text, bytes, "%s number %llu of stream %s (%d ranks, %llu bytes)%s%s",
             comm_kind_name(op->kind), (unsigned long long)op->number, s->name, s->count,
             (unsigned long long)op->agreed_bytes, op->site ? " at " : "",
             op->site ? op->site : "");
}

void describe_point(const struct point *p, char *text, size_t bytes) {
    snprintf(text, bytes, "%s number %llu (tag %d, %llu bytes)%s%s", comm_kind_name(p->op.kind),
             (unsigned long long)p->op.number, p->transfer.tag,
             (unsigned long long)p->transfer.bytes, p->op.site ? " at " : "",
             p->op.site ? p->op.site : "");
}

// ---- patience -----------------------------------------------------------------------------------

// A rank that says what it is busy with is waited for, for half of the allowed time, again and
// again: when it dies meanwhile, that shows within the allowed time.
static void be_patient(struct comm *comm, struct operation *op, const char *what, int rank,
                       const struct answer *a, double now) {
    op->watched_seconds = now;
    op->patience_seconds = comm->options.watchdog_seconds / 2;
    say_patience(comm, op, what, rank, a);
}

static void stream_late(struct comm_stream *s, double now) {
    char what[WHAT_BYTES], who[700] = "";
    int busy = -1;
    bool all_busy = true;
    describe_stream(s, what, sizeof what);
    for (int i = 0; i < s->count; i++) {
        if (!is_late(s, i)) continue;
        if (is_busy(s->comm, &s->answers[i]))
            busy = i;
        else
            all_busy = false;
    }
    if (all_busy && busy >= 0) {
        be_patient(s->comm, s->current, what, s->members[busy], &s->answers[busy], now);
        return;
    }
    add_late_members(s, who, sizeof who);
    fail_late(s->comm, what, now - s->current->begun_seconds, who);
}

static void point_late(struct comm *comm, struct point *p, double now) {
    char what[WHAT_BYTES], who[400];
    const struct transfer *x = &p->transfer;
    describe_point(p, what, sizeof what);
    if (is_busy(comm, &p->answer)) {
        be_patient(comm, &p->op, what, x->peer, &p->answer, now);
        return;
    }
    const char *verb = x->sends ? "has not received it" : "has not sent it";
    bool answers = is_heard(comm, &p->answer), last = answers && p->answer.last[0];
    snprintf(who, sizeof who, " rank %d (%s) %s%s%s", x->peer, comm_host(comm, x->peer),
             answers || x->peer == comm->transport->rank ? verb : "does not answer",
             last ? "; it has posted last: " : "", last ? p->answer.last : "");
    fail_late(comm, what, now - p->op.begun_seconds, who);
}

// ---- looking ------------------------------------------------------------------------------------

enum due { DUE_NOTHING, DUE_QUESTION, DUE_END };

static enum due look_at(const struct comm *comm, const struct operation *op, double now,
                        double *next) {
    double asks = fmax(op->begun_seconds, op->asked_seconds) +
                  fmin(comm->options.watchdog_seconds / 4, ASK_SECONDS);
    double ends = op->watched_seconds + op->patience_seconds;
    *next = fmin(*next, fmin(asks, ends));
    if (now > ends) return DUE_END;
    return now > asks ? DUE_QUESTION : DUE_NOTHING;
}

void watchdog_begin(const struct comm *comm, struct operation *op) {
    op->watched_seconds = op->begun_seconds;
    op->patience_seconds = comm->options.watchdog_seconds;
    op->asked_seconds = op->said_seconds = 0;
}

void watchdog_look(struct comm *comm, double now) {
    double next = now + comm->options.watchdog_seconds;
    for (int i = 0; i < comm->active_count; i++) {
        struct comm_stream *s = comm->active[i];
        enum due due = s->current ? look_at(comm, s->current, now, &next) : DUE_NOTHING;
        if (due == DUE_QUESTION) ask_members(s);
        if (due == DUE_END) stream_late(s, now);
    }
    for (struct point *p = comm->moving; p; p = p->next) {
        if (p->op.begun_seconds == 0) continue;
        enum due due = look_at(comm, &p->op, now, &next);
        if (due == DUE_END) point_late(comm, p, now);
        if (due != DUE_QUESTION) continue;
        if (p->op.asked_seconds == 0) p->answer = (struct answer){0};
        p->op.asked_seconds = now;
        ask(comm, p->transfer.peer, 0, p->op.number);
    }
    comm->next_watch_seconds = next;
}
