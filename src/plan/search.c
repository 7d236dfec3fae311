// Best first: nodes, then their candidates, in the order of their bounds; those that come up are
// held against the memory and simulated, until no bound is below the worst answer.
#include "plan/search.h"
#include "base/clock.h"
#include "plan/estimate_parts.h"
#include "plan/search_parts.h"
#include <stdlib.h>
#include <string.h>

struct search {
    const struct search_request *request;
    struct search_result *result;
    struct search_jobs jobs;
    struct search_bounds *bounds;
    struct plan_memory_cache *memory;
    struct search_heap heap;
    struct plan_memory ranks[LAYOUT_MAX_STAGES];
    double capacity;
    // Of the batch and mesh that the walk is at: nothing of it fits.
    struct search_choice hopeless;
};

static int reject(struct search *s, const struct search_choice *choice, enum search_reason reason,
                  int64_t count) {
    if (s->result->rejected[reason] == 0 && s->result->rejected_meshes[reason] == 0)
        s->result->example[reason] = *choice;
    s->result->rejected[reason] += count;
    return 0;
}

// ---- nodes

static int most_allowed(const struct search_request *r, enum search_key key, int most) {
    return r->pins.set[key] ? r->pins.value[key] : most;
}

// The same but for recomputation: what saves most decides for all.
static bool same_batch(const struct search_choice *a, const struct search_choice *b) {
    struct search_choice x = *a;
    x.value[SEARCH_RECOMPUTE] = b->value[SEARCH_RECOMPUTE];
    return memcmp(&x, b, sizeof x) == 0;
}

static bool is_hopeless(struct search *s, const struct search_choice *node) {
    if (same_batch(&s->hopeless, node)) return true;
    struct search_choice least = *node;
    bool sharded = node->value[SEARCH_DP] * node->value[SEARCH_CP] > 1;
    least.value[SEARCH_RECOMPUTE] = most_allowed(s->request, SEARCH_RECOMPUTE, RECOMPUTE_FULL);
    least.value[SEARCH_ZERO] = sharded ? most_allowed(s->request, SEARCH_ZERO, 3) : 0;
    least.value[SEARCH_SCHEDULE] = PIPELINE_1F1B;
    least.value[SEARCH_CHUNKS] = 1;
    if (search_jobs_set(&s->jobs, &least, NULL) != 0) return false;
    if (plan_memory_bound(&s->jobs.job) <= s->capacity) return false;
    s->hopeless = *node;
    return true;
}

static int take_node(struct search_walk *walk, const struct search_choice *choice,
                     struct err *err) {
    struct search *s = walk->context;
    struct search_choice variants[SEARCH_MOST_VARIANTS];
    struct search_item item = {.choice = *choice, .kind = ITEM_NODE};
    item.variants = search_variants(s->request, choice, variants);
    s->result->layouts += item.variants;
    if (item.variants == 0) return 0;
    if (is_hopeless(s, choice)) return reject(s, &variants[0], REASON_MEMORY, item.variants);
    search_jobs_set_node(&s->jobs, choice);
    if (search_bound_node(s->bounds, &s->jobs.job, &item.bound_seconds, err) != 0) return -1;
    return search_heap_put(&s->heap, &item, err);
}

// ---- answers

// Times that are one number in single precision are equal; then the fuller one comes later, then
// the one of larger numbers.
int search_compare(const struct search_entry *a, const struct search_entry *b) {
    float ta = (float)a->step_seconds, tb = (float)b->step_seconds;
    if (ta != tb) return ta < tb ? -1 : 1;
    if (a->memory_bytes != b->memory_bytes) return a->memory_bytes < b->memory_bytes ? -1 : 1;
    for (int key = 0; key < SEARCH_KEYS; key++)
        if (a->choice.value[key] != b->choice.value[key])
            return a->choice.value[key] < b->choice.value[key] ? -1 : 1;
    return 0;
}

static bool same_mesh(const struct search_choice *a, const struct search_choice *b) {
    for (int key = SEARCH_TP; key <= SEARCH_EP; key++)
        if (a->value[key] != b->value[key]) return false;
    return true;
}

// The answer that stands for the same mesh: a candidate must beat it. NULL: there is none.
static struct search_entry *rival(struct search *s, const struct search_choice *choice) {
    for (int i = 0; i < s->result->count && !s->request->every; i++)
        if (same_mesh(&s->result->best[i].choice, choice)) return &s->result->best[i];
    return NULL;
}

static bool is_beaten(struct search *s, const struct search_choice *choice, double bound) {
    const struct search_entry *r = rival(s, choice);
    const struct search_result *result = s->result;
    if (r && (float)bound > (float)r->step_seconds) return true;
    if (result->count < s->request->best) return false;
    return (float)bound > (float)result->best[result->count - 1].step_seconds;
}

static int offer(struct search *s, const struct search_entry *entry) {
    struct search_result *result = s->result;
    struct search_entry *r = rival(s, &entry->choice), *best = result->best;
    if (r && search_compare(entry, r) >= 0) return reject(s, &entry->choice, REASON_SLOW, 1);
    int at;
    if (r) {
        reject(s, &r->choice, REASON_SLOW, 1);
        at = (int)(r - best);
    } else if (result->count < s->request->best) {
        at = result->count++;
    } else {
        at = result->count - 1;
        if (search_compare(entry, &best[at]) >= 0) return reject(s, &entry->choice, REASON_SLOW, 1);
        reject(s, &best[at].choice, REASON_SLOW, 1);
    }
    for (; at > 0 && search_compare(entry, &best[at - 1]) < 0; at--) best[at] = best[at - 1];
    best[at] = *entry;
    return 0;
}

// Kept in the order of what they lack; those that the first answer beats go at the end.
static void note_tight(struct search *s, const struct search_entry *entry) {
    struct search_result *r = s->result;
    if (r->tight_count == SEARCH_MOST_TIGHT &&
        entry->memory_bytes >= r->tight[r->tight_count - 1].memory_bytes)
        return;
    int at = r->tight_count < SEARCH_MOST_TIGHT ? r->tight_count++ : SEARCH_MOST_TIGHT - 1;
    for (; at > 0 && r->tight[at - 1].memory_bytes > entry->memory_bytes; at--)
        r->tight[at] = r->tight[at - 1];
    r->tight[at] = *entry;
}

// ---- candidates

static int plan_exactly(struct search *s, double *bytes, struct err *err) {
    const struct job *job = &s->jobs.job;
    const struct pipeline *lists = search_jobs_pipeline(&s->jobs, true, err);
    if (!lists || plan_memory_with(job, lists, s->memory, s->ranks, err) != 0) return -1;
    *bytes = s->ranks[plan_memory_fullest(s->ranks, job->layout.mesh.size[MESH_PP])].total;
    s->result->planned++;
    return 0;
}

// What only the whole job shows (too many micro-batches at once, no rate for the precision) turns a
// candidate away; only missing memory ends the search.
static int turned_away(struct search *s, const struct search_choice *choice, struct err *fault,
                       struct err *err) {
    if (fault->kind == ERR_MEMORY || fault->kind == ERR_INTERNAL)
        return err_set(err, fault->kind, "%s", fault->text);
    if (s->result->rejected[REASON_ENGINE] == 0) s->result->refusal = *fault;
    return reject(s, choice, REASON_ENGINE, 1);
}

static int reject_full(struct search *s, const struct search_entry *entry) {
    note_tight(s, entry);
    return reject(s, &entry->choice, REASON_MEMORY, 1);
}

static int simulate(struct search *s, double *seconds, struct err *err) {
    struct pipeline *lists = search_jobs_lists(&s->jobs, err);
    if (!lists || estimate_seconds(&s->jobs.job, lists, seconds, err) != 0) return -1;
    s->result->estimated++;
    return 0;
}

// Most are slower than they could be, so the exact memory comes last.
static int try_candidate(struct search *s, struct search_entry *entry, struct err *err) {
    struct err fault = {0};
    if (search_jobs_set(&s->jobs, &entry->choice, err) != 0) return -1;
    const struct pipeline *lists = search_jobs_pipeline(&s->jobs, false, &fault);
    if (!lists) return turned_away(s, &entry->choice, &fault, err);
    entry->memory_bytes = plan_memory_bound_with(&s->jobs.job, lists);
    if (entry->memory_bytes > s->capacity) return reject(s, &entry->choice, REASON_MEMORY, 1);
    if (simulate(s, &entry->step_seconds, &fault) != 0)
        return turned_away(s, &entry->choice, &fault, err);
    if (is_beaten(s, &entry->choice, entry->step_seconds) && !s->request->exhaustive)
        return reject(s, &entry->choice, REASON_SLOW, 1);
    if (plan_exactly(s, &entry->memory_bytes, &fault) != 0)
        return turned_away(s, &entry->choice, &fault, err);
    return entry->memory_bytes > s->capacity ? reject_full(s, entry) : offer(s, entry);
}

static int expand(struct search *s, const struct search_item *node, struct err *err) {
    struct search_choice variants[SEARCH_MOST_VARIANTS];
    int count = search_variants(s->request, &node->choice, variants);
    for (int i = 0; i < count; i++) {
        struct search_item item = {.choice = variants[i], .kind = ITEM_QUICK};
        if (search_jobs_set(&s->jobs, &variants[i], err) != 0 ||
            search_bound_quick(s->bounds, &s->jobs.job, &item.bound_seconds, err) != 0 ||
            search_heap_put(&s->heap, &item, err) != 0)
            return -1;
    }
    return 0;
}

// Comes again with its better bound.
static int put_back(struct search *s, const struct search_item *item, struct err *err) {
    struct search_item again = *item;
    double seconds;
    again.kind = ITEM_BOUND;
    if (search_jobs_set(&s->jobs, &item->choice, err) != 0) return -1;
    if (plan_memory_bound(&s->jobs.job) > s->capacity)
        return reject(s, &item->choice, REASON_MEMORY, 1);
    if (search_bound(s->bounds, &s->jobs.job, &seconds, err) != 0) return -1;
    if (seconds > again.bound_seconds) again.bound_seconds = seconds;
    return search_heap_put(&s->heap, &again, err);
}

static int look_at(struct search *s, const struct search_item *item, struct err *err) {
    struct search_entry entry = {.choice = item->choice, .bound_seconds = item->bound_seconds};
    if (item->kind == ITEM_NODE) return expand(s, item, err);
    if (item->kind == ITEM_QUICK) return put_back(s, item, err);
    return try_candidate(s, &entry, err);
}

static int best_first(struct search *s, struct err *err) {
    struct search_item item;
    while (search_heap_take(&s->heap, &item)) {
        bool beaten = is_beaten(s, &item.choice, item.bound_seconds);
        if (beaten && !s->request->exhaustive)
            reject(s, &item.choice, REASON_SLOW_BOUND, item.kind == ITEM_NODE ? item.variants : 1);
        else if (look_at(s, &item, err) != 0)
            return -1;
    }
    return 0;
}

static void drop_slow_tight(struct search_result *r) {
    int kept = 0;
    for (int i = 0; i < r->tight_count; i++)
        if (r->count == 0 || r->tight[i].step_seconds < r->best[0].step_seconds)
            r->tight[kept++] = r->tight[i];
    r->tight_count = kept;
}

static int search_all(struct search *s, struct err *err) {
    struct search_walk walk = {
        .request = s->request, .result = s->result, .node = take_node, .context = s};
    s->memory = plan_memory_cache_open(err);
    s->bounds = search_bounds_open(s->request, err);
    if (!s->memory || !s->bounds || search_walk_nodes(&walk, err) != 0) return -1;
    if (s->result->layouts == 0) return search_refuse(s->request, s->result, err);
    if (best_first(s, err) != 0) return -1;
    drop_slow_tight(s->result);
    return 0;
}

int search_run(const struct search_request *request, struct search_result *out, struct err *err) {
    double begin = clock_seconds();
    struct search *s = calloc(1, sizeof *s);
    struct search_result *result = calloc(1, sizeof *result);
    int status = -1;
    if (!s || !result)
        (void)err_set(err, ERR_MEMORY, "no memory for the search");
    else if (search_check(request, err) == 0) {
        s->request = request;
        s->result = result;
        s->capacity = search_capacity(request);
        search_jobs_open(&s->jobs, request);
        status = search_all(s, err);
    }
    if (s) {
        search_jobs_close(&s->jobs);
        search_heap_free(&s->heap);
        search_bounds_close(s->bounds);
        plan_memory_cache_close(s->memory);
    }
    if (status == 0) {
        *out = *result;
        out->seconds = clock_seconds() - begin;
    }
    free(result);
    free(s);
    return status;
}

int search_try(const struct search_request *request, const struct search_choice *choice,
               struct search_entry *out, struct err *err) {
    struct job *job = malloc(sizeof *job);
    struct plan_memory *ranks = calloc((size_t)choice->value[SEARCH_PP], sizeof *ranks);
    struct search_entry entry = {.choice = *choice};
    struct estimate estimate;
    int status = -1;
    if (!job || !ranks)
        (void)err_set(err, ERR_MEMORY, "no memory for a candidate");
    else if (search_job(request, choice, job, err) == 0 && plan_memory(job, ranks, err) == 0 &&
             estimate_step(job, true, &estimate, err) == 0) {
        entry.memory_bytes = ranks[plan_memory_fullest(ranks, choice->value[SEARCH_PP])].total;
        entry.step_seconds = estimate.step_seconds;
        estimate_free(&estimate);
        *out = entry;
        status = 0;
    }
    free(job);
    free(ranks);
    return status;
}
