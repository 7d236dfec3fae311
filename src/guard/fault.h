// Fault injection: what goes wrong on purpose, where and when. Faults are part of a configuration
// (fault.kind=... fault.rank=... fault.step=..., lists of equal length) or come from the supervisor
// during the run (`weft launch --inject`). docs/faults.md tells users what each kind does.
//
// Most kinds happen once, when their step begins or (in_save) in the next save behind it; slow,
// leak, link_* and disk_* last from their step on, for `steps` steps or to the end. nan, spike,
// flip_gradient and flip_product happen once, or, with `steps`, in every pass of so many steps:
// when a step is computed again, again.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_EXIT,           // leaves with status 1
    FAULT_ABORT,          // SIGABRT
    FAULT_KILL,           // SIGKILL
    FAULT_STOP,           // SIGSTOP: the whole process stands still, heartbeats too
    FAULT_HANG,           // the compute thread stands still before its next collective
    FAULT_SLOW,           // every step takes `factor` times as long, from this step on
    FAULT_NAN,            // a NaN in an activation (an embedding row of the micro-batch)
    FAULT_SPIKE,          // the loss's gradient is multiplied by `factor`
    FAULT_FLIP_WEIGHT,    // a bit of a working weight at rest
    FAULT_FLIP_GRADIENT,  // of an accumulated gradient, between accumulation and use
    FAULT_FLIP_OPTIMIZER, // of a master weight or moment at rest
    FAULT_FLIP_MESSAGE,   // of a message on its way
    FAULT_FLIP_PRODUCT,   // of a matrix product's result
    FAULT_DISK_FAIL,      // writes of this rank's saves fail with EIO
    FAULT_DISK_FULL,      // with ENOSPC
    FAULT_LINK_DROP,      // messages to `peer` stop
    FAULT_LINK_FLAP,      // messages to `peer` stand still for a short while, again and again
    FAULT_LEAK,           // memory grows by `factor` MB a step
    FAULT_KIND_COUNT
};
const char *fault_kind_name(enum fault_kind kind);                          // "flip_weight"
int fault_kind_of(const char *name, enum fault_kind *out, struct err *err); // nearest name in err

struct fault {
    enum fault_kind kind;
    int rank;      // world rank; -1: all
    int64_t step;  // the first step in which it happens; steps count from 1
    int64_t steps; // how many steps it lasts; 0: to the end, or, of kinds that need not last, once
    int attempt;   // launch in which it happens: 0 the first; -1: in every one
    bool in_save;  // at a save behind that step in place of its beginning
    double factor; // slow, spike, leak, link_flap (seconds); 0: the kind's own, fault_factor
    int peer;      // of a link; -1: all
    int bit;       // that flips, numbered as in FP32, 0 the lowest (in BF16 16 less); -1: drawn
                   // from sign, exponent and the upper 7 mantissa bits
    uint64_t seed; // element and bit follow from it
    bool done;     // has happened
};
enum { FAULT_MOST = 64 };

// From
// {"kind":"nan","rank":1,"step":12,"steps":5,"attempt":-1,"when":"save","factor":2,"peer":0,"bit":30,
// "seed":7}: all but the kind may be missing. rank: all; step 0: the next one; steps 0: to the end;
// attempt: every one;
// peer: all; bit: drawn; seed 1. Other members are errors.
int fault_read(struct fault *out, const json_t *object, struct err *err);
json_t *fault_write(const struct fault *fault);
double fault_factor(const struct fault *fault);
// "kill on rank 2 at step 12", for log lines and messages.
const char *fault_text(const struct fault *fault, char out[160]);
bool fault_lasts(const struct fault *fault);

// The fault of this kind that is due on `rank` in this step of this attempt, marked done unless
// it lasts; `in_save`: of those that happen in saves, where `step` is the one that is saved.
// NULL: none.
struct fault *fault_due(struct fault *list, int count, enum fault_kind kind, bool in_save, int rank,
                        int64_t step, int attempt);
// Carries out exit, abort, kill, stop, hang. Returns from stop only, when it is continued.
void fault_strike(const struct fault *fault);
// A number that follows from the seed: which element, which message.
uint64_t fault_draw(const struct fault *fault);
// The bit of a float that the fault flips: 0..31.
int fault_bit(const struct fault *fault);
// Flips it in one of `count` elements of FP32 or BF16 memory (element_bytes 4 or 2), number
// fault_draw mod count. Returns the element's number.
int64_t fault_flip(const struct fault *fault, void *data, int element_bytes, int64_t count);
