// Fault injection: what goes wrong on purpose, where and when. Faults are part of a configuration
// (fault.kind=... fault.rank=... fault.step=..., lists of equal length) or come from the supervisor
// during the run (`weft launch --inject`).
//
// Kinds. Those of a process happen where the step begins (or, fault.when = save, in the next save):
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
    FAULT_LEAK,           // memory grows by `bytes` a step
    FAULT_KIND_COUNT
};
const char *fault_kind_name(enum fault_kind kind);                          // "flip_weight"
int fault_kind_of(const char *name, enum fault_kind *out, struct err *err); // nearest name in err

struct fault {
    enum fault_kind kind;
    int rank;      // world rank; -1: all
    int64_t step;  // the first step in which it happens; steps count from 1
    int attempt;   // launch in which it happens: 0 the first; -1: in every one
    bool in_save;  // at a save behind that step in place of its beginning
    double factor; // slow, spike; 0: a default of the kind
    int peer;      // of a link; -1: all
    int bit;       // of the flipped element, 0 lowest; -1: drawn from sign, exponent and the upper
                   // 7 mantissa bits
    uint64_t seed; // element and bit follow from it
    bool done;     // has happened
};
enum { FAULT_MOST = 64 };

// From {"kind":"nan","rank":1,"step":12,...}: unknown members are errors.
int fault_read(struct fault *out, const json_t *object, struct err *err);
json_t *fault_write(const struct fault *fault);

// The fault of one of these kinds that is due on `rank` in this step of this attempt, marked done
// unless its kind lasts (slow, leak, link, disk); NULL: none.
struct fault *fault_due(struct fault *list, int count, enum fault_kind kind, int rank, int64_t step,
                        int attempt);
// Carries out exit, abort, kill, stop, hang (does not return from most).
void fault_strike(const struct fault *fault);
// Flips the fault's bit of element `seed mod count` of FP32 or BF16 memory. Returns the element;
// *bit is the bit that was flipped.
int64_t fault_flip(const struct fault *fault, void *data, int element_bytes, int64_t count,
                   int *bit);
