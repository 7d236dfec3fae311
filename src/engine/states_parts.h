// What the files of the states share: states.c and its neighbours only.
#pragma once
#include "engine/state.h"
#include "memory/rank_state.h"

// The elements of a parameter [first, first + count) that this rank updates, and where they lie in
// arrays of shards. All of them where nothing is sharded.
struct state_piece {
    int64_t first, count, shard;
};

enum { STATE_UNIT_PARTIALS = 4 };

struct state_unit {
    int first, count;                               // in states->unit_params
    int place;                                      // where its gradients are made (by unit)
    struct comm_event partial[STATE_UNIT_PARTIALS]; // sums over tp ranks on their way
    int partials;
};

struct state_bucket {
    int units, remaining; // whose gradients it holds; that are still to come in this step
    int64_t unit_at;      // first element in a unit's place
    int64_t late_at;      // in the array of late gradients (by unit)
    bool stored;          // accumulators hold something of this step
    struct comm_event gathered;
    bool gathering; // updated weights are on their way (zero 1, 2)
};

// How contributions of ranks become gradients: their sum in group order in FP32, stored or added.
struct state_fold {
    bool store;
    enum dtype wire, out;
};
void state_fold(void *context, const void *const *parts, int count, int64_t elements, void *out);

// One bucket's way from this rank's gradients to the sum over all ranks. Reductions are posted in
// the order of the queue, at points that all ranks of a group reach in the same order; in between
// they are posted early where that needs no waiting.
enum state_phase { PHASE_PARTIAL, PHASE_REDUCE, PHASE_REPLICA, PHASE_DONE };
struct state_reduction {
    int bucket, place; // place: -1 unless the gradients are in a unit's place
    enum state_phase phase;
    bool last; // of the step
    struct state_fold fold, replica_fold;
    struct comm_event event;
};

struct state_place { // ZeRO 3: of a gathered unit
    unsigned char *weights, *packed, *wire;
    int unit; // -1: none
    int users;
    bool arrived, packed_forward, packed_backward;
    uint64_t used; // acquired last, in acquisitions
    struct comm_event event[FLAT_GROUPS];
};

struct states {
    struct rank_state shape;
    struct state_piece *pieces; // [params]
    struct state_unit *units;
    int *unit_params; // sorted by unit
    struct state_bucket *buckets;
    bool *stale; // [params] packed copies are older than the weights
    int data_copies[FLAT_GROUPS], data_copy[FLAT_GROUPS]; // ranks that hold the same shards
    int all_copies[FLAT_GROUPS], all_copy[FLAT_GROUPS];   // ranks that hold the same parameters

    // messages
    struct comm_stream *replica[FLAT_GROUPS]; // NULL: none
    void *reduce_scratch[FLAT_GROUPS], *replica_scratch[FLAT_GROUPS];
    void *partial_scratch, *partial_scratch_kv;
    float *partial_vectors;
    struct state_reduction *queue; // ring
    int queue_room;
    int64_t queue_head, queue_tail;
    int next_place, next_wire;
    struct comm_event wire_used[STATE_WIRE_PLACES];
    int replicating;

    // ZeRO 3
    struct state_place *places;
    uint64_t *packed_forward_at, *packed_backward_at; // [params] in a place's packed part
    uint64_t acquisitions;
    int in_flight;              // gathers begun and not waited for
    int micro_batches, bottoms; // of the step; backward passes that reached the first layer

    // norm
    int64_t *block_of; // [params] first block among those of its group
};

static inline struct states *states_of(const struct engine *e) {
    return e->states;
}
static inline const struct flat_bucket *state_bucket_of(const struct engine *e, int param) {
    return &e->flat.buckets[e->flat.bucket_of[param]];
}
static inline bool state_sharded(const struct engine *e) { // masters and moments
    return states_of(e)->shape.zero > 0;
}
// First element of the rank's piece in an array that is sharded, or whole.
static inline int64_t state_at(const struct engine *e, int param, bool sharded) {
    const struct state_piece *p = &states_of(e)->pieces[param];
    return sharded ? p->shard : e->flat.offset[param] + p->first;
}

float *state_master(const struct engine *e, int param);  // of the rank's piece
void *state_gradient(const struct engine *e, int param); // accumulate type
bf16 *state_rounded(const struct engine *e, int param);  // where round(master) goes, or NULL
void state_wait(const struct engine *e, struct comm_event event);
// Waits at once where overlap is off.
struct comm_event state_posted(const struct engine *e, struct comm_event event);

// update.c: FP32 gradients of elements [at, at + count) of a rank's piece, count at most
// states_chunk (a multiple of the norm's block)
const float *states_wide_gradient(struct engine *e, int param, int64_t at, int64_t count);
int64_t states_chunk(const struct engine *e);
// states_gather.c
void states_freshen(struct engine *e, int param); // packs what is stale (whole weights)
void states_settle(struct engine *e);  // before a change: no gather reads the weights any more
void states_publish(struct engine *e); // pieces of weights were changed: gathers begin
int states_open_places(struct engine *e, const uint64_t *pack_forward,
                       const uint64_t *pack_backward, struct err *err);
// states_reduce.c
bool states_reduces(const struct engine *e, int bucket); // over more ranks than this one
void states_queue(struct engine *e, int bucket, int place, bool last);
void states_poll(struct engine *e);
// Entries before number `end` reach this phase.
void states_force(struct engine *e, int64_t end, enum state_phase phase);
// Gradients of a unit's place, or late ones, into the accumulators of this rank.
void states_fold_bucket(struct engine *e, int bucket, int place, bool store);
// states_partial.c
void states_begin_partials(struct engine *e, int unit);
bool states_partials_done(struct engine *e, int bucket, bool force);
void states_sum_partial_vectors(struct engine *e);
// states_tied.c
void states_join_tied(struct engine *e);
