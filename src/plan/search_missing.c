// When nothing fits: what lacks least, and how many nodes would do.
#include "plan/search_parts.h"
#include <stdlib.h>
#include <string.h>

enum { NEAREST = 16, MOST_TIMES = 1024 };

// The candidates of the least bounds on memory, least first.
struct nearest {
    struct search_jobs jobs;
    struct search_entry entry[NEAREST];
    int count;
};

// What holds most at once or recomputes less than it may is never the leanest.
static bool is_lean(const struct search_request *r, const struct search_choice *c) {
    const int *v = c->value;
    if (!r->pins.set[SEARCH_RECOMPUTE] && v[SEARCH_RECOMPUTE] != RECOMPUTE_FULL) return false;
    return r->pins.set[SEARCH_SCHEDULE] || r->pins.set[SEARCH_CHUNKS] ||
           v[SEARCH_SCHEDULE] == PIPELINE_1F1B;
}

static int note_node(struct search_walk *walk, const struct search_choice *node, struct err *err) {
    struct nearest *near = walk->context;
    struct search_choice variants[SEARCH_MOST_VARIANTS];
    int count = search_variants(walk->request, node, variants);
    for (int i = 0; i < count; i++) {
        if (!is_lean(walk->request, &variants[i])) continue;
        if (search_jobs_set(&near->jobs, &variants[i], err) != 0) return -1;
        struct search_entry entry = {.choice = variants[i]};
        entry.memory_bytes = plan_memory_bound(&near->jobs.job);
        int at = near->count;
        if (at == NEAREST && entry.memory_bytes >= near->entry[NEAREST - 1].memory_bytes) continue;
        if (at < NEAREST)
            near->count++;
        else
            at = NEAREST - 1;
        for (; at > 0 && near->entry[at - 1].memory_bytes > entry.memory_bytes; at--)
            near->entry[at] = near->entry[at - 1];
        near->entry[at] = entry;
    }
    return 0;
}

// Exact, of those whose bound is least. -1: none could be planned.
static int least_of(const struct search_request *request, struct plan_memory_cache *cache,
                    struct search_entry *out, struct err *err) {
    struct nearest *near = calloc(1, sizeof *near);
    struct plan_memory *ranks = calloc(LAYOUT_MAX_STAGES, sizeof *ranks);
    struct search_walk walk = {.request = request, .node = note_node, .context = near};
    struct err fault = {0}; // why the last of them could not
    int status = -1;
    if (!near || !ranks) {
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
    } else {
        search_jobs_open(&near->jobs, request);
        if (search_walk_nodes(&walk, err) != 0) near->count = 0;
    }
    for (int i = 0; near && ranks && i < near->count; i++) {
        struct search_entry *e = &near->entry[i];
        const struct job *job = &near->jobs.job;
        fault = (struct err){0};
        if (search_jobs_set(&near->jobs, &e->choice, &fault) != 0 || job_check(job, &fault) != 0 ||
            plan_memory_with(job, NULL, cache, ranks, &fault) != 0)
            continue;
        e->memory_bytes = ranks[plan_memory_fullest(ranks, e->choice.value[SEARCH_PP])].total;
        if (status != 0 || e->memory_bytes < out->memory_bytes) *out = *e;
        status = 0;
    }
    if (status != 0 && fault.kind != ERR_NONE) (void)err_set(err, fault.kind, "%s", fault.text);
    if (near) search_jobs_close(&near->jobs);
    free(near);
    free(ranks);
    return status;
}

// Powers of two and one and a half times those.
static int next_times(int times) {
    return (times & (times - 1)) == 0 && times > 1 ? times / 2 * 3 : times == 1 ? 2 : times / 3 * 4;
}

// One fixed value given up.
static void find_release(const struct search_request *request, struct plan_memory_cache *cache,
                         struct search_shortage *out) {
    out->release = SEARCH_KEYS;
    for (int key = SEARCH_KEYS - 1; key >= 0 && out->release == SEARCH_KEYS; key--) {
        struct search_request open = *request;
        struct search_entry least;
        if (!request->pins.set[key] || key == SEARCH_PRECISION) continue;
        open.pins.set[key] = false;
        if (least_of(&open, cache, &least, NULL) != 0 ||
            least.memory_bytes > search_capacity(request))
            continue;
        out->release = (enum search_key)key;
        out->release_value = least.choice.value[key];
    }
}

int search_missing(const struct search_request *request, struct search_shortage *out,
                   struct err *err) {
    struct search_shortage shortage = {0};
    struct cluster *cluster = malloc(sizeof *cluster);
    struct plan_memory_cache *cache = plan_memory_cache_open(err);
    struct search_request other = *request;
    double capacity = search_capacity(request);
    int status = cluster && cache ? least_of(request, cache, &shortage.least, err) : -1;
    if (!cluster) (void)err_set(err, ERR_MEMORY, "no memory for the search");
    if (status == 0) {
        shortage.short_bytes = shortage.least.memory_bytes - capacity;
        *cluster = *request->cluster;
        other.cluster = cluster;
        other.pins.set[SEARCH_DP] = false; // more accelerators are more of something
        for (int times = 2; times <= MOST_TIMES && shortage.nodes == 0; times = next_times(times)) {
            struct search_entry least;
            if ((int64_t)request->cluster->nodes * times > 1 << 20) break;
            cluster->nodes = request->cluster->nodes * times;
            if (least_of(&other, cache, &least, NULL) == 0 && least.memory_bytes <= capacity)
                shortage.nodes = cluster->nodes;
        }
        find_release(request, cache, &shortage);
        *out = shortage;
    } else if (err && err->kind == ERR_NONE)
        (void)err_set(err, ERR_USAGE, "plan: no candidate whose memory could be planned");
    plan_memory_cache_close(cache);
    free(cluster);
    return status;
}
