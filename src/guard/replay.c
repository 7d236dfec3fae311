// Decisions over digests of a replay, see replay.h.
#include "guard/replay.h"
#include <stdio.h>

const char *replay_cause_name(enum replay_cause cause) {
    static const char *const names[] = {"software or data", "passing fault", "persistent fault",
                                        "undecided"};
    return names[cause];
}

// How many pairs of passes, of its own work and of another's, speak against a rank that repeats
// itself.
static int accusations(const struct replay_part *parts, int count, int rank) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        const struct replay_part *p = &parts[i];
        bool differs = p->other >= 0 && p->first == p->again && p->elsewhere != p->again;
        n += differs && (p->rank == rank || p->other == rank);
    }
    return n;
}

static bool has_found(const struct replay_part *parts, int count, int rank) {
    for (int i = 0; i < count; i++)
        if (parts[i].rank == rank && parts[i].found) return true;
    return false;
}

static int gravity(enum replay_cause cause) {
    static const int order[] = {0, 1, 3, 2};
    return order[cause];
}

// A rank and the one that did its work again contradict each other, each sure of itself.
static void judge_pair(const struct replay_part *parts, int count, const struct replay_part *p,
                       struct replay_verdict *v) {
    int own = accusations(parts, count, p->rank), others = accusations(parts, count, p->other);
    bool own_found = has_found(parts, count, p->rank);
    bool other_found = has_found(parts, count, p->other);
    v->cause = REPLAY_PERSISTENT;
    v->other = -1;
    if (own != others) {
        v->rank = own > others ? p->rank : p->other;
        snprintf(v->why, sizeof v->why,
                 "rank %d repeats a result that no other rank gets, in its own work or another's",
                 v->rank);
    } else if (own_found != other_found) {
        v->rank = own_found ? p->rank : p->other;
        snprintf(v->why, sizeof v->why,
                 "ranks %d and %d differ on the same work, and a checksum of rank %d complains",
                 p->rank, p->other, v->rank);
    } else {
        v->cause = REPLAY_UNDECIDED;
        v->rank = p->rank;
        v->other = p->other;
        snprintf(v->why, sizeof v->why,
                 "ranks %d and %d differ on the same work, each repeats its own result", p->rank,
                 p->other);
    }
}

// A checksum complains of this part again: does it wherever the work is done? Where each rank has
// work of its own kind, several of them speak for one another.
static bool complains_everywhere(const struct replay_part *parts, int count,
                                 const struct replay_part *p) {
    if (p->other >= 0) return p->found_elsewhere;
    for (int i = 0; i < count; i++)
        if (!parts[i].found) return false;
    return count > 1;
}

static void judge_part(const struct replay_part *parts, int count, const struct replay_part *p,
                       struct replay_verdict *v) {
    bool elsewhere = p->other >= 0;
    *v = (struct replay_verdict){.cause = REPLAY_SOFTWARE, .rank = -1, .other = -1};
    if (p->first == p->again) {
        if (elsewhere && p->elsewhere != p->again) {
            judge_pair(parts, count, p, v);
        } else if (p->found && !complains_everywhere(parts, count, p)) {
            v->cause = REPLAY_PERSISTENT;
            v->rank = p->rank;
            snprintf(v->why, sizeof v->why, "a checksum of rank %d complains again%s", p->rank,
                     elsewhere ? ", and nowhere else of the same work" : "");
        }
        return;
    }
    v->rank = p->rank;
    if (!elsewhere || p->again == p->elsewhere || p->first == p->elsewhere) {
        v->cause = REPLAY_PASSING;
        snprintf(v->why, sizeof v->why, "rank %d got another result from the same work%s", p->rank,
                 elsewhere ? ", and one of the two is what another rank gets" : "");
    } else {
        v->cause = REPLAY_PERSISTENT;
        snprintf(v->why, sizeof v->why,
                 "rank %d got two results from the same work, and rank %d a third", p->rank,
                 p->other);
    }
}

void replay_decide(const struct replay_part *parts, int count, struct replay_verdict *out) {
    *out = (struct replay_verdict){.cause = REPLAY_SOFTWARE, .rank = -1, .other = -1};
    snprintf(out->why, sizeof out->why, "every pass of every rank gave the same");
    for (int i = 0; i < count; i++) {
        struct replay_verdict v;
        judge_part(parts, count, &parts[i], &v);
        int more = gravity(v.cause) - gravity(out->cause);
        if (more > 0 || (more == 0 && v.rank >= 0 && v.rank < out->rank)) *out = v;
    }
}

static int votes(const uint64_t *digests, int count, uint64_t value) {
    int n = 0;
    for (int i = 0; i < count; i++) n += digests[i] == value;
    return n;
}

int replay_majority(const uint64_t *digests, int count, const uint64_t *truth, bool *wrong) {
    uint64_t right = 0;
    int most = 0, seconds = 0, bad = 0;
    for (int i = 0; i < count; i++) {
        int n = votes(digests, count, digests[i]);
        if (n > most) {
            most = n;
            right = digests[i];
        }
    }
    for (int i = 0; i < count; i++)
        seconds += digests[i] != right && votes(digests, count, digests[i]) == most;
    if (seconds > 0) {
        if (!truth) return -1;
        right = *truth;
    }
    for (int i = 0; i < count; i++) bad += wrong[i] = digests[i] != right;
    return bad;
}
