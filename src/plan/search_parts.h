// What the files of the search share.
#pragma once
#include "plan/search.h"

// ---- candidates in order

// A node is all candidates with the same products and messages inside a layer: SCHEDULE, CHUNKS,
// ENDS and ZERO are open.
struct search_walk {
    const struct search_request *request;
    struct search_result *result; // counts; may be NULL
    int (*node)(struct search_walk *walk, const struct search_choice *choice, struct err *err);
    void *context;
    void (*refused)(struct search_walk *walk, const struct search_choice *mesh,
                    enum search_reason reason); // or NULL
};
// Calls `node` for every one in a fixed order; a result other than 0 ends the walk and is returned.
int search_walk_nodes(struct search_walk *walk, struct err *err);
// The candidates of a node, at most SEARCH_MOST_VARIANTS; returns how many.
enum { SEARCH_MOST_VARIANTS = 2 * (LAYOUT_MAX_CHUNKS + 4) * 4 };
int search_variants(const struct search_request *request, const struct search_choice *node,
                    struct search_choice *out);
int search_world(const struct search_request *request);

// ---- jobs that change from candidate to candidate

// A job that is kept and altered: a new one would copy model and cluster each time.
// Layers of stages and lists of pipelines are kept: many candidates share them.
struct search_jobs {
    const struct search_request *request;
    struct job job;
    struct search_split *splits[1 << 10];
    struct search_list *lists[1 << 8];
    size_t list_bytes;
};
void search_jobs_open(struct search_jobs *jobs, const struct search_request *request);
void search_jobs_close(struct search_jobs *jobs);
// The pipeline of the job that is set as the engine opens it (all_sizes), or, for bounds, with as
// many micro-batches as fill it and places for these alone: never more places than the engine has.
// It stays until another is asked for. NULL: none is possible.
const struct pipeline *search_jobs_pipeline(struct search_jobs *jobs, bool all_sizes,
                                            struct err *err);
// The lists that estimate_seconds simulates; they stay likewise.
struct pipeline *search_jobs_lists(struct search_jobs *jobs, struct err *err);
int search_jobs_set(struct search_jobs *jobs, const struct search_choice *choice, struct err *err);
// Of a node, for what reads neither schedule nor stages.
void search_jobs_set_node(struct search_jobs *jobs, const struct search_choice *choice);

// ---- the least that a step can take, see search_bound.c

struct search_bounds;
struct search_bounds *search_bounds_open(const struct search_request *request, struct err *err);
void search_bounds_close(struct search_bounds *bounds);
int search_bound(struct search_bounds *bounds, const struct job *job, double *seconds,
                 struct err *err);
// Rougher, and quicker by far.
int search_bound_quick(struct search_bounds *bounds, const struct job *job, double *seconds,
                       struct err *err);
// Of all candidates of a node; reads neither schedule nor stages nor ZeRO stage.
int search_bound_node(struct search_bounds *bounds, const struct job *job, double *seconds,
                      struct err *err);

// ---- best first

struct search_item {
    double bound_seconds;
    int64_t place; // order of arrival
    struct search_choice choice;
    enum { ITEM_NODE, ITEM_QUICK, ITEM_BOUND } kind; // a node; a candidate, by which bound
    int variants;                                    // of a node
};
struct search_heap {
    struct search_item *items;
    int64_t count, capacity, placed;
};
int search_heap_put(struct search_heap *heap, const struct search_item *item, struct err *err);
bool search_heap_take(struct search_heap *heap, struct search_item *out); // false: empty
void search_heap_free(struct search_heap *heap);

// ---- when there is no candidate, see search_refuse.c

int search_check(const struct search_request *request, struct err *err);
// The message that says why, and what would do. Returns -1.
int search_refuse(const struct search_request *request, const struct search_result *result,
                  struct err *err);
int search_compare(const struct search_entry *a, const struct search_entry *b); // the better first
