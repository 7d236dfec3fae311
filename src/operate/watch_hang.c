// Who holds the others up. Ranks that wait point at the members of their operation that have not
// come; following that from every waiting rank ends at ranks that wait for nobody (the hung ones,
// or those that work), or runs in circles, when ranks wait for each other in different operations.
#include "base/text.h"
#include "operate/watch_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED_RANKS = 6 };

struct search {
    const struct watch *w;
    double now;
    int *votes;         // [ranks] how many waiting ranks end at this one
    int *stack, *seen;  // [ranks]
    int waiting;        // ranks that wait
    double longest;     // seconds that one of them has waited
    int longest_waiter; // -1: none
};

static bool waits(const struct watch *w, int rank, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    return !r->ended && r->waiting && r->waits.kind[0] && !watch_silent(w, rank, now);
}

// How many operations of a place's stream a rank has posted. A stream of several groups of one name
// is written as "name@lowest member".
static uint64_t posted_in(const struct watch_rank *r, const struct watch_place *place) {
    size_t length = strlen(place->stream);
    int lowest = place->member_count > 0 ? place->members[0] : 0;
    for (int i = 1; i < place->member_count; i++)
        if (place->members[i] < lowest) lowest = place->members[i];
    for (int i = 0; i < r->posted_count; i++) {
        const char *name = r->posted[i].stream;
        if (strncmp(name, place->stream, length) != 0) continue;
        if (name[length] == 0 || (name[length] == '@' && atoi(name + length + 1) == lowest))
            return r->posted[i].posted;
    }
    return 0;
}

// Whether `rank` waits for `other`: a member that has not posted the operation, or the other end of
// a message.
static bool waits_for(const struct watch *w, int rank, int other) {
    const struct watch_place *place = &w->ranks[rank].waits;
    if (other == rank) return false;
    if (!place->stream[0]) return true;
    return posted_in(&w->ranks[other], place) < place->number;
}

static double waited(const struct watch *w, int rank, double now) {
    return w->ranks[rank].waits.seconds + (now - w->ranks[rank].heard);
}

// Adds a vote to every rank at which the chains from `first` end.
static void follow(struct search *s, int first, int mark) {
    int depth = 0;
    s->stack[depth++] = first;
    s->seen[first] = mark;
    while (depth > 0) {
        int rank = s->stack[--depth];
        if (!waits(s->w, rank, s->now)) {
            s->votes[rank]++;
            continue;
        }
        const struct watch_place *place = &s->w->ranks[rank].waits;
        for (int i = 0; i < place->member_count; i++) {
            int other = place->members[i];
            if (other >= s->w->rank_count || s->seen[other] == mark ||
                !waits_for(s->w, rank, other))
                continue;
            s->seen[other] = mark;
            s->stack[depth++] = other;
        }
    }
}

static void search(struct search *s) {
    for (int i = 0; i < s->w->rank_count; i++) {
        if (!waits(s->w, i, s->now)) continue;
        s->waiting++;
        double seconds = waited(s->w, i, s->now);
        if (s->longest_waiter < 0 || seconds > s->longest) {
            s->longest = seconds;
            s->longest_waiter = i;
        }
        follow(s, i, i + 1);
    }
}

// ---- judging

// When ranks moved last: the newest, of which rank, and the newest of all others.
struct last_moves {
    double newest, next;
    int rank;
};
static struct last_moves last_moves(const struct watch *w) {
    struct last_moves m = {.rank = -1};
    for (int i = 0; i < w->rank_count; i++) {
        double moved = w->ranks[i].moved;
        if (w->ranks[i].ended) continue;
        if (moved > m.newest) {
            m.next = m.newest;
            m.newest = moved;
            m.rank = i;
        } else {
            m.next = fmax(m.next, moved);
        }
    }
    return m;
}

// The rank that stands still for longest, wherever in its step that met it; -1: none. It is silent
// while its host speaks. Others may still be ending the step that they were in; one whose beats
// alone are lost does not hold anybody up.
static int find_stopped(const struct watch *w, double now) {
    struct last_moves m = last_moves(w);
    int best = -1;
    for (int i = 0; i < w->rank_count; i++) {
        double others = i == m.rank ? m.next : m.newest;
        if (!watch_silent(w, i, now) || now - others <= 2 * WATCH_BEAT_SECONDS) continue;
        if (best < 0 || w->ranks[i].heard < w->ranks[best].heard) best = i;
    }
    return best;
}

// A host that is about to be lost, or is: that says more than the silence of its rank.
static bool host_goes(const struct watch *w, int rank, double now) {
    int host = w->ranks[rank].host;
    if (host < 0 || host >= w->host_count || w->hosts[host].heard <= 0) return false;
    return now - w->hosts[host].heard > 2.5 * WATCH_BEAT_SECONDS;
}

// Out of patience. `waited`: of the rank that has waited longest for somebody. That a rank has not
// moved is seen up to a beat late; that others wait for it is told to the moment.
static bool is_stuck(const struct watch *w, int rank, double waited_seconds, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    if (r->ended || r->heard <= 0 || watch_busy(w, rank, now)) return false;
    double still = now - r->moved, patience = watch_patience(w, rank, now);
    if (still > patience) return true;
    return waited_seconds > patience && still > patience - WATCH_BEAT_SECONDS;
}

// Announced work that does not end. Others may wait for it in a message, or ask again and again how
// far it is; its own messages then say nothing.
static int find_overdue(const struct watch *w, double now) {
    int best = -1;
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_rank *r = &w->ranks[i];
        if (r->ended || !r->busy[0] || watch_busy(w, i, now)) continue;
        if (waits(w, i, now) && waited(w, i, now) > w->limits.hang_least_seconds) continue;
        if (best < 0 || r->busy_since < w->ranks[best].busy_since) best = i;
    }
    return best;
}

// The rank with most votes among those that do not wait.
static int find_end(const struct search *s) {
    int best = -1;
    for (int i = 0; i < s->w->rank_count; i++) {
        if (s->votes[i] == 0 || waits(s->w, i, s->now)) continue;
        if (is_stuck(s->w, i, s->longest, s->now) && (best < 0 || s->votes[i] > s->votes[best]))
            best = i;
    }
    return best;
}

// A chain that ends at a rank with reasons of its own (long work, a patient phase, its end seen by
// the launcher) is no hang of those behind it.
static bool has_end(const struct search *s) {
    for (int i = 0; i < s->w->rank_count; i++)
        if (s->votes[i] > 0 && !waits(s->w, i, s->now)) return true;
    return false;
}

// All wait, for each other: the one that most others miss; among equals the one that the rank which
// has waited longest misses.
static int find_circle(const struct search *s) {
    const struct watch *w = s->w;
    int best = -1, *missed = s->seen;
    memset(missed, 0, (size_t)w->rank_count * sizeof *missed);
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_place *place = &w->ranks[i].waits;
        if (!waits(w, i, s->now)) continue;
        for (int j = 0; j < place->member_count; j++)
            if (place->members[j] < w->rank_count && waits_for(w, i, place->members[j]))
                missed[place->members[j]] += 2;
    }
    const struct watch_place *place = &w->ranks[s->longest_waiter].waits;
    for (int j = 0; j < place->member_count; j++)
        if (place->members[j] < w->rank_count && waits_for(w, s->longest_waiter, place->members[j]))
            missed[place->members[j]]++;
    for (int i = 0; i < w->rank_count; i++)
        if (missed[i] > 0 && (best < 0 || missed[i] > missed[best])) best = i;
    return best;
}

// Everybody has posted the operation, and still it does not end: its messages do not arrive. The
// rank that most stalls point at, else the one that waits longest.
static int find_transfer(const struct search *s) {
    const struct watch *w = s->w;
    int best = s->longest_waiter, *stalls = s->seen;
    memset(stalls, 0, (size_t)w->rank_count * sizeof *stalls);
    for (int i = 0; i < w->rank_count; i++)
        for (int k = 0; k < w->ranks[i].link_count; k++) {
            int peer = w->ranks[i].links[k].peer;
            if (peer >= 0 && peer < w->rank_count) stalls[peer] += (int)w->ranks[i].links[k].stalls;
        }
    for (int i = 0, most = 0; i < w->rank_count; i++)
        if (stalls[i] > most) {
            most = stalls[i];
            best = i;
        }
    return best;
}

// ---- words

static void say_place(struct text *t, const struct watch_place *place) {
    if (!place->kind[0]) {
        text_puts(t, "none");
        return;
    }
    text_printf(t, "%s %llu", place->kind, (unsigned long long)place->number);
    if (place->stream[0]) text_printf(t, " of %s", place->stream);
}

static void say_state(struct text *t, const struct watch *w, int rank, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    text_printf(t, "; when last heard it was in phase %s of step %lld", beat_phase_name(r->phase),
                (long long)r->step);
    if (now - r->moved > WATCH_BEAT_SECONDS)
        text_printf(t, ", and has not moved for %.1f s", now - r->moved);
    if (r->last.kind[0]) {
        text_puts(t, "; it posted last ");
        say_place(t, &r->last);
    }
}

static void say_waiters(struct text *t, const struct search *s, int culprit) {
    const struct watch *w = s->w;
    int named = 0;
    if (s->waiting > 0)
        text_printf(t, "; %d of %d ranks wait", s->waiting - (waits(w, culprit, s->now) ? 1 : 0),
                    w->rank_count);
    for (int i = 0; i < w->rank_count && named < NAMED_RANKS; i++) {
        const struct watch_place *place = &w->ranks[i].waits;
        if (i == culprit || !waits(w, i, s->now)) continue;
        text_printf(t, "%s rank %d in ", named++ ? "," : ":", i);
        say_place(t, place);
        text_printf(t, " since %.1f s", waited(w, i, s->now));
        for (int j = 0, first = 1; j < place->member_count; j++) {
            int other = place->members[j];
            if (other >= w->rank_count || !waits_for(w, i, other)) continue;
            text_printf(t, "%s %d", first ? " for" : " and", other);
            if (place->stream[0])
                text_printf(t, " (at %llu)",
                            (unsigned long long)posted_in(&w->ranks[other], place));
            first = 0;
        }
    }
}

enum hang_kind { HANG_END, HANG_CIRCLE, HANG_TRANSFER };

// The step that hangs: of those who were heard last, not of a rank that fell silent earlier.
static int64_t newest_step(const struct watch *w) {
    int64_t step = -1;
    for (int i = 0; i < w->rank_count; i++)
        if (!w->ranks[i].ended && w->ranks[i].step > step) step = w->ranks[i].step;
    return step;
}

static void say_hang(const struct search *s, int rank, enum hang_kind kind,
                     struct watch_found *found) {
    const struct watch *w = s->w;
    const struct watch_rank *r = &w->ranks[rank];
    struct text t = {0};
    struct incident *one = watch_add(w, found, INCIDENT_HANG, rank, -1);
    one->step = newest_step(w);
    text_printf(&t, "rank %d (%s) ", rank, watch_host_name(w, rank));
    if (kind == HANG_CIRCLE) {
        text_puts(&t, "is behind: it waits in ");
        say_place(&t, &r->waits);
    } else if (kind == HANG_TRANSFER) {
        text_puts(&t, "does not get on: all ranks of its operation have come, but messages of ");
        say_place(&t, &r->waits);
        text_puts(&t, " do not arrive");
    } else if (watch_silent(w, rank, s->now)) {
        text_printf(&t, "is silent for %.1f s, its process stands still", s->now - r->heard);
    } else if (r->busy[0]) {
        text_printf(&t,
                    "does not get on: \"%s\" since %.0f s, in which it has read and written next "
                    "to nothing",
                    r->busy, s->now - r->busy_since);
    } else if (r->waits.kind[0]) {
        text_puts(&t, "has not arrived: it does not wait for others");
    } else {
        text_puts(&t, "has not arrived: it is outside of all operations");
    }
    say_state(&t, w, rank, s->now);
    say_waiters(&t, s, rank);
    snprintf(one->evidence, sizeof one->evidence, "%s", t.data ? t.data : "");
    text_free(&t);
}

// Nobody waits for anybody: a rank by itself, or all of them, out of patience.
static int find_still(const struct search *s) {
    const struct watch *w = s->w;
    int best = -1;
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_rank *r = &w->ranks[i];
        if (r->ended || r->heard <= 0) continue;
        if (!is_stuck(w, i, 0, s->now)) return -1;
        if (best < 0 || r->moved < w->ranks[best].moved) best = i;
    }
    return best;
}

static bool any_ended(const struct watch *w) {
    for (int i = 0; i < w->rank_count; i++)
        if (w->ranks[i].ended) return true;
    return false;
}

static int find_culprit(struct search *s, enum hang_kind *kind) {
    *kind = HANG_END;
    int rank = find_stopped(s->w, s->now);
    if (rank < 0) rank = find_overdue(s->w, s->now);
    if (rank >= 0) return rank;
    if (s->waiting == 0) return find_still(s);
    rank = find_end(s);
    if (rank >= 0 || has_end(s)) return rank;
    if (!is_stuck(s->w, s->longest_waiter, s->longest, s->now)) return -1;
    // A rank that still moves is on its way to the others.
    for (int i = 0; i < s->w->rank_count; i++)
        if (!is_stuck(s->w, i, s->longest, s->now)) return -1;
    *kind = HANG_CIRCLE;
    rank = find_circle(s);
    if (rank >= 0) return rank;
    *kind = HANG_TRANSFER;
    return find_transfer(s);
}

// Cheap: nobody has been still for long.
static bool may_hang(const struct watch *w, double now) {
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_rank *r = &w->ranks[i];
        if (!r->ended && r->heard > 0 &&
            (now - r->moved > w->limits.hang_least_seconds - WATCH_BEAT_SECONDS ||
             watch_silent(w, i, now) || (r->busy[0] && !watch_busy(w, i, now))))
            return true;
    }
    return false;
}

void watch_look_hang(struct watch *w, double now, struct watch_found *found) {
    struct search s = {.w = w, .now = now, .longest_waiter = -1};
    enum hang_kind kind;
    // Where a rank has ended, the rest waits for it: that is no hang.
    if (!may_hang(w, now) || any_ended(w)) {
        w->hang_said = false;
        return;
    }
    if (w->hang_said || found->count == found->most) return;
    size_t count = (size_t)w->rank_count;
    s.votes = calloc(3 * count, sizeof *s.votes);
    if (!s.votes) return; // the next look tries again
    s.stack = s.votes + count;
    s.seen = s.stack + count;
    search(&s);
    int rank = find_culprit(&s, &kind);
    if (rank >= 0 && !(watch_silent(w, rank, now) && host_goes(w, rank, now))) {
        say_hang(&s, rank, kind, found);
        w->hang_said = true;
    }
    free(s.votes);
}
