// The state of ranks and hosts, and the order in which the rules are asked.
#include "operate/watch.h"
#include "operate/watch_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double stood_still_seconds = 3; // between two looks: the supervisor did not run

void watch_limits_default(struct watch_limits *limits) {
    *limits = (struct watch_limits){.silence_seconds = 5,
                                    .hang_least_seconds = 5,
                                    .hang_factor = 3,
                                    .start_seconds = 600,
                                    .idle_seconds = 30,
                                    .busy_seconds = 600,
                                    .straggler_factor = 1.3,
                                    .straggler_steps = 8,
                                    .growth_share = 0.05,
                                    .disk_least_share = 0.05,
                                    .clock_most_seconds = 2,
                                    .flap_stalls = 5,
                                    .flap_seconds = 60};
}

int watch_open(struct watch *w, int ranks, int hosts, struct err *err) {
    *w = (struct watch){.step = -1};
    watch_limits_default(&w->limits);
    if (watch_set_hosts(w, hosts, err) != 0) return -1;
    if (watch_restart(w, ranks, 0, err) != 0) {
        watch_close(w);
        return -1;
    }
    return 0;
}

void watch_close(struct watch *w) {
    free(w->ranks);
    free(w->hosts);
    *w = (struct watch){.step = -1};
}

int watch_restart(struct watch *w, int ranks, double now, struct err *err) {
    struct watch_rank *list = calloc((size_t)ranks + 1, sizeof *list);
    if (!list) return err_set(err, ERR_MEMORY, "no memory to watch %d ranks", ranks);
    for (int i = 0; i < ranks; i++) {
        list[i].step = list[i].stage = -1;
        list[i].cpu_seconds = list[i].moved_cpu_seconds = list[i].io_bytes = -1;
    }
    free(w->ranks);
    w->ranks = list;
    w->rank_count = ranks;
    w->begun = w->window_begun = now;
    w->step = -1;
    w->slowest = 0;
    w->hang_said = false;
    return 0;
}

int watch_set_hosts(struct watch *w, int hosts, struct err *err) {
    struct watch_host *list = calloc((size_t)hosts + 1, sizeof *list);
    if (!list) return err_set(err, ERR_MEMORY, "no memory to watch %d hosts", hosts);
    free(w->hosts);
    w->hosts = list;
    w->host_count = hosts;
    return 0;
}

// ---- for all rules

struct incident *watch_add(const struct watch *w, struct watch_found *found,
                           enum incident_kind kind, int rank, int host) {
    if (found->count == found->most) return NULL;
    struct incident *one = &found->list[found->count++];
    *one = (struct incident){.kind = kind, .rank = rank, .step = w->step};
    if (rank >= 0 && w->ranks[rank].step >= 0) one->step = w->ranks[rank].step;
    if (rank >= 0 && host < 0) host = w->ranks[rank].host;
    if (host >= 0 && host < w->host_count)
        snprintf(one->host, sizeof one->host, "%s", w->hosts[host].name);
    return one;
}

bool watch_say(uint32_t *said, enum incident_kind kind) {
    if (*said & 1u << kind) return false;
    *said |= 1u << kind;
    return true;
}

void watch_over(uint32_t *said, enum incident_kind kind) {
    *said &= ~(1u << kind);
}

const char *watch_host_name(const struct watch *w, int rank) {
    int host = w->ranks[rank].host;
    return host >= 0 && host < w->host_count && w->hosts[host].name[0] ? w->hosts[host].name
                                                                       : "host not known";
}

bool watch_silent(const struct watch *w, int rank, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    return !r->ended && r->heard > 0 && now - r->heard > w->limits.silence_seconds;
}

bool watch_busy(const struct watch *w, int rank, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    return r->busy[0] && now - r->busy_since <= w->limits.busy_seconds;
}

// ---- hosts

// The newest message from a host, of its agent or of a rank.
static double host_heard(const struct watch *w, int host) {
    double heard = w->hosts[host].heard;
    for (int i = 0; i < w->rank_count; i++)
        if (w->ranks[i].host == host && !w->ranks[i].ended) heard = fmax(heard, w->ranks[i].heard);
    return heard;
}

static void look_lost(struct watch *w, double now, struct watch_found *found) {
    for (int i = 0; i < w->host_count; i++) {
        struct watch_host *host = &w->hosts[i];
        double silence = now - host_heard(w, i);
        if (host->heard <= 0 || silence <= w->limits.silence_seconds) {
            watch_over(&host->said, INCIDENT_HOST_LOST);
            continue;
        }
        if (found->count == found->most || !watch_say(&host->said, INCIDENT_HOST_LOST)) continue;
        struct incident *one = watch_add(w, found, INCIDENT_HOST_LOST, -1, i);
        snprintf(one->evidence, sizeof one->evidence,
                 "nothing was heard from %s for %.1f s%s (allowed: %.1f s)", host->name, silence,
                 host->in_use ? ", neither from its agent nor from its ranks" : ", a spare",
                 w->limits.silence_seconds);
    }
}

static void look_disk(struct watch *w, struct watch_found *found) {
    for (int i = 0; i < w->host_count; i++) {
        struct watch_host *host = &w->hosts[i];
        if (host->disk_total_bytes == 0) continue;
        double share = (double)host->disk_free_bytes / (double)host->disk_total_bytes;
        if (share > 1.2 * w->limits.disk_least_share) watch_over(&host->said, INCIDENT_DISK);
        if (share >= w->limits.disk_least_share || found->count == found->most ||
            !watch_say(&host->said, INCIDENT_DISK))
            continue;
        struct incident *one = watch_add(w, found, INCIDENT_DISK, -1, i);
        snprintf(one->evidence, sizeof one->evidence,
                 "the disk of the run folder fills up: %.2f GB of %.2f GB are free on %s (%.1f %%, "
                 "wanted: %.1f %%)",
                 (double)host->disk_free_bytes / 1e9, (double)host->disk_total_bytes / 1e9,
                 host->name, 100 * share, 100 * w->limits.disk_least_share);
    }
}

static void look_clock(struct watch *w, struct watch_found *found) {
    for (int i = 0; i < w->host_count; i++) {
        struct watch_host *host = &w->hosts[i];
        double apart = fabs(host->clock_offset_seconds);
        if (apart < w->limits.clock_most_seconds / 2) watch_over(&host->said, INCIDENT_CLOCK);
        if (!(apart > w->limits.clock_most_seconds) || found->count == found->most ||
            !watch_say(&host->said, INCIDENT_CLOCK))
            continue;
        struct incident *one = watch_add(w, found, INCIDENT_CLOCK, -1, i);
        snprintf(one->evidence, sizeof one->evidence,
                 "the clock of %s is %.1f s %s that of the supervisor (allowed: %.1f s): its times "
                 "in logs are off; weft decides nothing by them",
                 host->name, apart, host->clock_offset_seconds > 0 ? "ahead of" : "behind",
                 w->limits.clock_most_seconds);
    }
}

// ---- patience

static double slowest(const struct watch *w, enum beat_phase phase) {
    double most = 0;
    for (int i = 0; i < w->rank_count; i++) {
        const struct watch_rank *r = &w->ranks[i];
        int64_t count = r->visit_count[phase];
        for (int j = 0; j < count && j < WATCH_VISITS; j++) most = fmax(most, r->visits[phase][j]);
    }
    return most;
}

static bool is_idle(const struct watch_rank *r, double now) {
    return r->cpu_seconds >= 0 && r->moved_cpu_seconds >= 0 &&
           r->cpu_seconds - r->moved_cpu_seconds < 0.05 * (now - r->moved);
}

double watch_patience(const struct watch *w, int rank, double now) {
    const struct watch_rank *r = &w->ranks[rank];
    const struct watch_limits *l = &w->limits;
    double recent = slowest(w, r->phase);
    if (recent > 0) return fmax(l->hang_least_seconds, l->hang_factor * recent);
    // The first step touches memory and reads data; how long that may take nobody knows yet.
    if (r->phase == BEAT_STEP && is_idle(r, now)) return fmin(l->idle_seconds, l->start_seconds);
    return l->start_seconds;
}

// ---- all rules

// The time in which the supervisor did not run counts for nobody.
static void leave_out(struct watch *w, double gap) {
    for (int i = 0; i < w->rank_count; i++) {
        struct watch_rank *r = &w->ranks[i];
        if (r->heard > 0) r->heard += gap;
        r->progressed += gap;
        r->moved += gap;
        r->busy_since += gap;
    }
    for (int i = 0; i < w->host_count; i++)
        if (w->hosts[i].heard > 0) w->hosts[i].heard += gap;
}

static void turn_window(struct watch *w, double now) {
    if (now - w->window_begun < w->limits.flap_seconds) return;
    w->window_begun = now;
    for (int i = 0; i < w->rank_count; i++)
        for (int j = 0; j < w->ranks[i].link_count; j++) {
            w->ranks[i].links[j].stalls_before = w->ranks[i].links[j].stalls;
            w->ranks[i].links[j].stalls = 0;
        }
}

int watch_look(struct watch *w, double now, struct incident *found, int most) {
    struct watch_found list = {found, 0, most};
    double gap = w->looked > 0 ? now - w->looked : 0;
    w->looked = now;
    if (gap > stood_still_seconds) {
        leave_out(w, gap);
        return 0;
    }
    look_lost(w, now, &list);
    watch_look_hang(w, now, &list);
    watch_look_slow(w, &list);
    watch_look_memory(w, &list);
    watch_look_links(w, &list);
    look_disk(w, &list);
    look_clock(w, &list);
    turn_window(w, now);
    return list.count;
}
