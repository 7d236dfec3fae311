// Checksums of what lies in memory between its making and its use, see guards.h. The states call in
// here at the places where values are made, and where they are used next.
//
// Gradients. A seal is taken by parameter and block, of the place where the gradient adds up over
// the micro-batches (SEAL_MADE: param_at[].gradient), or of this rank's piece in the accumulators
// (SEAL_KEPT: where micro-batches are reduced one by one, and of every gradient behind its sum over
// ranks). A gradient that is being written, or is on its way to other ranks, has none.
#pragma once
#include "engine/states_parts.h"

enum { SEALS_FINDINGS = 64, SEALS_ROWS = RANK_SEAL_ROWS };

struct seals_sample { // the product that is looked at in this step
    int param;        // -1: none, or it has been
    char kind;        // 'f' forward, 'i' input gradient, 'w' weight gradient
    int later;        // so many of them come before it
    uint64_t draw;    // rows
    bool checks;      // false: only a fault strikes it
    // [SEALS_ROWS][widest] rows of a gradient before; [2][widest] of a row as it must be and is
    int64_t widest;
    void *results; // NULL: nothing is sampled
    float *before;
    double *exact;
    bool *wrong;
};

struct seals {
    struct rank_seals at;
    uint64_t *words;      // SINGLE_SEALS; NULL: nothing is kept
    int64_t *block;       // [params] first block
    int64_t *state_block; // [params] of the rank's own piece, in the tables of states
    // masters and moments
    struct device_seal *expected, *before, *after; // [state_blocks]; NULL: not kept
    bool states_known;
    // gradients
    uint64_t *gradients, *lookup; // NULL: not kept
    bool lookup_sealed;
    int *posted;     // [buckets] reductions on their way
    uint64_t digest; // of this rank's own contributions
    // copies of weights
    uint64_t *weights, *packed;
    bool *weights_known, *packed_known; // [buckets], [params][2]
    int64_t turn;                       // updates so far: which part is looked at
    uint64_t *scratch;

    // replicas: digests of this rank's parameters, of one by rank, and the ranks of a group
    uint64_t *of_params, *of_ranks;
    int *members;

    struct seals_sample sample;

    struct engine_finding found[SEALS_FINDINGS];
    int found_count;
    int64_t update;
    double seconds;
    struct engine_fault fault;
    bool in_step;  // the passes of a step, which write gradients
    int backwards; // of the step so far
};

int seals_open(struct engine *e, struct err *err);
void seals_close(struct engine *e);
void seals_begin(struct engine *e, const struct engine_step *step); // of a step
void seals_found(struct engine *e, enum engine_found kind, int param, const char *suffix,
                 int64_t block, uint64_t expected, uint64_t found);
// Sums of words by block of RANK_NORM_BLOCK elements, into out.
void seals_sums(struct engine *e, const void *data, enum dtype type, int64_t count, uint64_t *out);

// gradients
void seals_written(struct engine *e, int param); // a dense product has just written it
void seals_unit(struct engine *e, int unit, bool last);
void seals_action(struct engine *e, bool backward); // at the end of each: what is left
void seals_check_bucket(struct engine *e, int bucket);
void seals_seal_bucket(struct engine *e, int bucket); // the rank's pieces in the accumulators
void seals_posted(struct engine *e, int bucket);
void seals_arrived(struct engine *e, int bucket);
void seals_finish(struct engine *e); // before late gradients and the look-up's are added up
void seals_lookup(struct engine *e, bool check);
uint64_t *seals_norm_words(struct engine *e, int param); // NULL: no seal
void seals_check_norm(struct engine *e, int param, const uint64_t *words, int64_t end);

// masters, moments, weights
void seals_of_update(struct engine *e, int param, int64_t at, struct device_adamw *args);
void seals_updated(struct engine *e, int param);
void seals_check_states(struct engine *e); // where a step ends without an update
void seals_changed(struct engine *e);      // from outside
void seals_packed(struct engine *e, int param, bool backward);
void seals_gathered(struct engine *e, int bucket);
void seals_check_weights(struct engine *e);

// guards_products.c: behind (products_before: ahead of) each product with a matrix of a dense layer
void products_begin(struct engine *e, const struct engine_step *step);
void products_forward(struct engine *e, int param, int64_t tokens, const void *x, const float *bias,
                      void *y, enum dtype y_type);
void products_input(struct engine *e, int param, int64_t tokens, const void *dy, void *dx);
void products_before(struct engine *e, int param, bool store);
void products_weight(struct engine *e, int param, int64_t tokens, const void *dy, const void *x);

// guards.c: faults on purpose, where they happen
void seals_fault_scale(struct engine *e);
void seals_fault_nan(struct engine *e, void *activation, int64_t elements);
void seals_fault_gradient(struct engine *e, bool at_end);
void seals_flip_word(void *word, int bytes, int bit); // bit: of the FP32 value
