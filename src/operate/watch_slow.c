// What does not stop a run but spoils it: stragglers, memory that grows, links that flap.
#include "base/numbers.h"
#include "operate/watch_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECENT = 8,      // samples that a rank's own time is the median of
    FIRST = 4,       // samples left out at the beginning
    SETTLED = 16,    // samples after which the beginning is known
    FLOOR_US = 20000 // differences of own compute time below this are noise of the machine
};

static double recent(const double *ring, int64_t samples, int64_t behind) {
    double values[RECENT];
    size_t count = 0;
    for (int64_t i = samples - behind - 1; i >= 0 && i >= samples - behind - RECENT; i--)
        values[count++] = ring[i % WATCH_WINDOW];
    return numbers_median(values, count);
}

// ---- stragglers

// Median of the others of a rank's stage. 0: nobody to compare with.
static double of_peers(const struct watch *w, const double *own, int rank, double *scratch) {
    size_t count = 0, peers = 0;
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_rank *r = &w->ranks[i];
        if (r->stage != w->ranks[rank].stage || r->ended || i == rank) continue;
        peers++;
        if (r->samples >= FIRST + RECENT / 2) scratch[count++] = own[i];
    }
    return count > 0 && 2 * count >= peers ? numbers_median(scratch, count) : 0;
}

static double of_all(const struct watch *w, const double *own, double *scratch) {
    size_t count = 0;
    for (int i = 0; i < w->rank_count; i++)
        if (w->ranks[i].samples > 0 && !w->ranks[i].ended) scratch[count++] = own[i];
    return numbers_median(scratch, count);
}

// Seconds that a rank's step should take: what its peers need; alone in its stage, its usual share
// of what all need.
static double expected(struct watch *w, const double *own, int rank, double *scratch) {
    struct watch_rank *r = &w->ranks[rank];
    double peers = r->stage >= 0 || w->rank_count == 1 ? of_peers(w, own, rank, scratch) : 0;
    if (peers > 0) return peers;
    if (w->rank_count == 1) return 0;
    double all = of_all(w, own, scratch);
    if (!(all > 0) || r->samples < SETTLED) return 0;
    if (!(r->usual_share > 0)) r->usual_share = own[rank] / all;
    return r->usual_share * all;
}

static void judge(struct watch *w, int rank, double expected_seconds, struct watch_found *found) {
    struct watch_rank *r = &w->ranks[rank];
    double last = r->compute_seconds[(r->samples - 1) % WATCH_WINDOW];
    bool slow = last > w->limits.straggler_factor * expected_seconds &&
                last - expected_seconds > FLOOR_US * 1e-6;
    r->slow_in_row = slow ? r->slow_in_row + 1 : 0;
    r->fast_in_row = slow ? 0 : r->fast_in_row + 1;
    if (r->fast_in_row >= w->limits.straggler_steps) watch_over(&r->said, INCIDENT_STRAGGLER);
    if (r->slow_in_row < w->limits.straggler_steps || found->count == found->most ||
        !watch_say(&r->said, INCIDENT_STRAGGLER))
        return;
    struct incident *one = watch_add(w, found, INCIDENT_STRAGGLER, rank, -1);
    snprintf(one->evidence, sizeof one->evidence,
             "rank %d (%s) is slow: its own work takes %.3f s a step where %s take %.3f s (%.2f "
             "times; allowed: %.2f), in the last %lld steps that were seen",
             rank, watch_host_name(w, rank), recent(r->compute_seconds, r->samples, 0),
             r->usual_share > 0 ? "before it would" : "its peers", expected_seconds,
             recent(r->compute_seconds, r->samples, 0) / expected_seconds,
             w->limits.straggler_factor, (long long)r->slow_in_row);
}

void watch_look_slow(struct watch *w, struct watch_found *found) {
    bool fresh = false;
    for (int i = 0; i < w->rank_count; i++)
        fresh = fresh || w->ranks[i].samples > w->ranks[i].judged;
    if (!fresh) return;
    double *own = malloc(2 * (size_t)w->rank_count * sizeof *own);
    if (!own) return; // the next look tries again
    for (int i = 0; i < w->rank_count; i++)
        own[i] = recent(w->ranks[i].compute_seconds, w->ranks[i].samples, 0);
    for (int i = 0; i < w->rank_count; i++) {
        struct watch_rank *r = &w->ranks[i];
        if (r->samples <= r->judged || r->ended) continue;
        r->judged = r->samples;
        if (r->samples <= FIRST) continue; // the first steps are nobody's measure
        double seconds = expected(w, own, i, own + w->rank_count);
        if (seconds > 0) judge(w, i, seconds, found);
    }
    free(own);
}

// ---- memory

// Rises all through the window: each quarter's median above the one before.
static bool rises(const struct watch_rank *r) {
    double before = 0;
    for (int64_t behind = WATCH_WINDOW - RECENT; behind >= 0; behind -= RECENT) {
        double now = recent(r->resident_bytes, r->samples, behind);
        if (now <= before) return false;
        before = now;
    }
    return true;
}

void watch_look_memory(struct watch *w, struct watch_found *found) {
    for (int i = 0; i < w->rank_count; i++) {
        struct watch_rank *r = &w->ranks[i];
        if (r->ended || r->samples < SETTLED || r->host < 0 || r->host >= w->host_count) continue;
        const struct watch_host *host = &w->hosts[r->host];
        double now = recent(r->resident_bytes, r->samples, 0);
        if (!(r->usual_bytes > 0)) r->usual_bytes = now;
        double grown = now - r->usual_bytes;
        double allowed = w->limits.growth_share * (double)host->memory_total_bytes;
        if (host->memory_total_bytes == 0 || grown < allowed || r->samples < WATCH_WINDOW ||
            !rises(r) || found->count == found->most ||
            !watch_say(&r->said, INCIDENT_MEMORY_GROWTH))
            continue;
        struct incident *one = watch_add(w, found, INCIDENT_MEMORY_GROWTH, i, -1);
        snprintf(one->evidence, sizeof one->evidence,
                 "memory of rank %d (%s) grows: from %.2f GB to %.2f GB, %.1f %% of the host's "
                 "%.1f GB (allowed: %.1f %%), %.2f GB are free there",
                 i, watch_host_name(w, i), r->usual_bytes / 1e9, now / 1e9,
                 100 * grown / (double)host->memory_total_bytes,
                 (double)host->memory_total_bytes / 1e9, 100 * w->limits.growth_share,
                 (double)host->memory_free_bytes / 1e9);
    }
}

// ---- links

static int64_t stalls_at(const struct watch *w, int rank, int peer) {
    const struct watch_rank *r = &w->ranks[rank];
    for (int i = 0; i < r->link_count; i++)
        if (r->links[i].peer == peer) return r->links[i].stalls + r->links[i].stalls_before;
    return 0;
}

int64_t watch_stalls(const struct watch *w, int a, int b) {
    return stalls_at(w, a, b) + stalls_at(w, b, a);
}

// Stalls everywhere are a machine or a network that is overloaded, not a link: of all pairs with
// ranks that stalled, how many reach half of this count.
static bool stands_out(const struct watch *w, int64_t stalls) {
    int64_t ranks = 0, as_bad = 0;
    for (int i = 0; i < w->rank_count; i++) {
        bool bad = false;
        for (int j = 0; j < w->ranks[i].link_count; j++)
            bad = bad || 2 * watch_stalls(w, i, w->ranks[i].links[j].peer) >= stalls;
        ranks++;
        as_bad += bad;
    }
    return ranks < 4 || 2 * as_bad <= ranks + 1;
}

void watch_look_links(struct watch *w, struct watch_found *found) {
    int a = -1, b = -1;
    int64_t most = 0;
    for (int i = 0; i < w->rank_count; i++) {
        struct watch_rank *r = &w->ranks[i];
        int64_t own = 0;
        for (int j = 0; j < r->link_count; j++) {
            int peer = r->links[j].peer;
            int64_t stalls = watch_stalls(w, i, peer);
            own += stalls;
            bool said = (r->said | w->ranks[peer].said) & 1u << INCIDENT_LINK;
            if (said || stalls <= most || peer == i) continue;
            most = stalls;
            a = i < peer ? i : peer;
            b = i < peer ? peer : i;
        }
        if (own == 0) watch_over(&r->said, INCIDENT_LINK);
    }
    if (most < w->limits.flap_stalls || !stands_out(w, most) || found->count == found->most) return;
    watch_say(&w->ranks[a].said, INCIDENT_LINK);
    watch_say(&w->ranks[b].said, INCIDENT_LINK);
    struct incident *one = watch_add(w, found, INCIDENT_LINK, a, -1);
    snprintf(
        one->evidence, sizeof one->evidence,
        "the link between rank %d (%s) and rank %d (%s) flaps: %lld messages stood still for a "
        "short while in the last %.0f s (allowed: %d)",
        a, watch_host_name(w, a), b, watch_host_name(w, b), (long long)most,
        2 * w->limits.flap_seconds, w->limits.flap_stalls - 1);
}
