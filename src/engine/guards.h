// Checksums of the engine's own state at rest (silent data corruption, layer 2 of docs/guards.md),
// and digests of what must be the same on several ranks. The engine computes and keeps them;
// guard/ decides, train/ acts.
//
//   optimizer  of master and moments, by parameter and block: taken by the update itself while the
//              values are in registers, verified by the next one in the same way (a sum of 32-bit
//              words modulo 2^64: any single flip changes it)
//   weights    working BF16 weights against round(master), by the update too, in every step; those
//   of
//              other ranks' shards (ZeRO 1, 2) against the checksum of when they came, in every
//              step; packed copies against that of when they were packed, a part of the parameters
//              each step, all of them within `weights_every` steps
//   gradients  accumulators between the micro-batches, and until the norm has read them
//   products   a sampled product in every products_every-th step: rows of its result against the
//   same
//              rows in double precision, within the bound of FP32 accumulation
//              (guards_products.c)
//
// When. Gradients, packed and gathered weights are compared before engine_step.may_update is asked;
// masters, moments and this rank's own weights while the update reads them, so that costs no pass
// over memory, or, where a step ends without an update, behind it. Their memory is part of the
// plan.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct engine_guards { // in engine_options
    bool optimizer, gradients;
    int weights_every, products_every; // steps; 0: off
};
struct engine;

enum engine_found {
    FOUND_MASTER,
    FOUND_MOMENT,
    FOUND_WEIGHT,
    FOUND_PACKED,
    FOUND_GRADIENT,
    FOUND_PRODUCT,
    FOUND_KINDS
};
const char *engine_found_name(enum engine_found kind); // "optimizer moment"
struct engine_finding {
    enum engine_found kind;
    char parameter[128];
    int64_t block;            // number of the block of 4,096 elements; the row of a product; of a
                              // packed copy 0
    int64_t update;           // in which it was found
    uint64_t expected, found; // of a product: bits of the doubles
};
// What the last step found on this rank, most serious first; returns how many there are.
int engine_findings(const struct engine *engine, struct engine_finding *out, int most);
double engine_guard_seconds(const struct engine *engine);
// Guards that the engine was opened with, off and on again between steps (measurements). All ranks
// alike.
void engine_set_guards(struct engine *engine, const struct engine_guards *guards);

// Digests of working weights that several ranks hold alike. Parameters are dealt out over `parts`
// and those of number `part` are hashed. An entry's group is the stream of ranks that must agree.
struct engine_digest {
    int param; // of the local model
    uint64_t hash;
};
// Collective over the groups: after it every rank knows whom it differs from. Fills out[0..most)
// with parameters on which ranks of a group differ; returns their number, the same on all ranks of
// that group.
struct engine_difference {
    char parameter[128];
    int ranks[16],
        rank_count; // world ranks that do not hold the value of the most; all, if undecided
    int of;         // ranks in the group
    bool undecided; // no value has more than half of them: a replay decides
};
int engine_compare_replicas(struct engine *engine, int part, int parts,
                            struct engine_difference *out, int most, struct err *err);

// Digest of this rank's own contributions to the gradients of the last step, before any sum over
// data ranks: the same micro-batches on the same state give the same one on every data rank (see
// engine_step.data_shift). Needs the guard of gradients.
uint64_t engine_gradient_digest(const struct engine *engine);

// Fault injection: memory to flip a bit in (guard/fault.h). `element`: an index that is taken
// modulo the number of elements. Sets size and name of the element's parameter.
enum engine_target { TARGET_WEIGHT, TARGET_MASTER, TARGET_MOMENT1, TARGET_MOMENT2 };
void *engine_element(struct engine *engine, enum engine_target target, uint64_t element,
                     int *element_bytes, char parameter[128]);
// In the next step: a bit of an accumulated gradient between accumulation and use, of a product's
// result, or a NaN in the embedding's output of the first micro-batch; or the gradient of the loss
// is multiplied.
struct engine_fault {
    enum {
        ENGINE_FAULT_NONE,
        ENGINE_FAULT_GRADIENT,
        ENGINE_FAULT_PRODUCT,
        ENGINE_FAULT_NAN,
        ENGINE_FAULT_SCALE
    } kind;
    uint64_t element;
    int bit; // 0..31 of the FP32 value
    double factor;
};
void engine_inject(struct engine *engine, const struct engine_fault *fault);
