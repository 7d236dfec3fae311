// What a run does about values that cannot be right (docs/guards.md): spikes, findings of
// checksums, replicas that differ, machines that count errors. Every decision follows from values
// that all ranks have, so that all take the same one.
//
//   run_guard.c      a step under guard: the hook before the update, and what follows from it
//   run_suspect.c    what was found, gathered from all ranks
//   run_replay.c     the step again, on the same and on other ranks
//   run_rollback.c   back to an older state without leaving the process; leaving for good
//   run_samples.c    steps that are passed over, and where samples come from
#pragma once
#include "base/json.h"
#include "engine/engine.h"
#include "engine/guards.h"
#include "guard/counters.h"
#include "guard/replay.h"
#include "guard/spike.h"
#include <stdbool.h>
#include <stdint.h>

struct run;

enum {
    RUN_SKIP_RANGES = 256,
    RUN_FAULTS = 256,       // remembered ones
    RUN_FAULT_STEPS = 1000, // within which faults of one rank add up
    RUN_MOST_ROLLBACKS = 3  // without getting past the place
};

enum run_suspicion {
    SUSPECT_NOTHING,
    SUSPECT_SPIKE,   // of loss or norm, or not finite
    SUSPECT_RESULT,  // a gradient or product of this step; the state is sound
    SUSPECT_COPY,    // a copy of weights, before the update: made anew from the masters
    SUSPECT_STATE,   // weights or optimizer state
    SUSPECT_REPLICAS // ranks that should hold the same do not
};
struct run_suspect { // the same on all ranks
    enum run_suspicion kind;
    int rank, other; // whose; -1: not known, or nobody's; both: one of the two
    char parameter[128];
    char text[400];    // one sentence
    int64_t good_step; // newest step whose state is above suspicion
};

struct run_guard {
    struct spike spike;
    struct {
        int64_t from, to;
    } skip[RUN_SKIP_RANGES]; // steps that are passed over
    int skip_count;

    // of the pass in progress
    int own_findings; // of this rank when they were gathered
    // gathered: of a rank's own checksums, of replicas, of loss and norm; 0: nothing
    int64_t found[3];
    struct engine_difference odd; // the difference behind found[1], on the ranks that see it
    char why[200];                // of a spike
    struct err failed;            // of the hook, which cannot fail itself

    // of this process: a rollback does not change them
    int64_t loaded_step; // state that was loaded last
    int64_t good_step;   // newest step whose optimizer state the last update verified
    bool updated;        // this step has, and its own findings are not known yet
    struct {
        int rank;
        int64_t step;
    } fault[RUN_FAULTS]; // ring
    int64_t fault_count;
    int64_t rollback_step; // where the last rollback was decided
    int rollbacks;         // there
    struct {               // who of two was right: the same step, computed again, tells
        bool waits;
        int64_t step;
        char parameter[128];
        uint64_t hash; // of this rank's master weights then
    } trial;
    struct counters_watch *counters;
    int hardware; // level of what they found last, see counters_compare
    char hardware_why[300];
};

int run_guard_open(struct run *run, struct err *err);
void run_guard_close(struct run *run);

// engine_run_step under guard. 0: done, perhaps skipped (step->skipped); 1: the run was rolled back
// to an older state; -1.
int run_guard_step(struct run *run, struct batch *const *batches, int count,
                   struct engine_step *step, struct err *err);
// The hook of engine_step.
bool run_may_update(void *run, const struct engine_step *step);
// Is the step among those that are passed over? Then: counts its samples as drawn.
bool run_passes_over(const struct run *run, int64_t step);
void run_pass_over(struct run *run, int batch);

// What this rank tells in the exchange behind each step (run_look_at_signals): of its own checksums
// since the hook, and of the machine's counters; 0: nothing.
int64_t run_guard_found(struct run *run);
int64_t run_guard_hardware(struct run *run);
// Acts on what the exchange gave. 0, 1 (rolled back) or -1.
int run_guard_settle(struct run *run, struct err *err);

// State that checkpoints carry; NULL: no memory. Loading NULL: as at the beginning of a run.
json_t *run_guard_state(const struct run *run);
int run_guard_load(struct run *run, json_t *state, const char *where, struct err *err);

// ---- between the files run_guard.c ...
void run_guard_exchange(struct run *run); // collective: fills guard.found
void run_guard_look_at_replicas(struct run *run);
// Collective. What guard.found says of a step that was held back; what SIGNAL_FOUND says of one
// that has changed the weights.
void run_guard_describe(struct run *run, struct run_suspect *out);
void run_guard_describe_updated(struct run *run, int64_t found, struct run_suspect *out);
// One pass over the step's micro-batches under guard (with the hook) or without update.
int run_guard_pass(struct run *run, struct batch *const *batches, int count,
                   struct engine_step *step, bool update, struct err *err);
// Collective. Computes the step that `first` is the outcome of again, on the same and on another
// rank; `fresh`: as it was before. *found_again: a checksum complained then too.
int run_replay(struct run *run, struct batch *const *batches, int count,
               const struct engine_step *fresh, const struct engine_step *first,
               struct replay_verdict *out, bool *found_again, struct err *err);
// Counts a passing fault of a rank; true: it had too many.
bool run_guard_count_fault(struct run *run, int rank);
// Back to the newest state of at most `good_step`. 1, or -1.
int run_roll_back(struct run *run, const struct run_suspect *s, struct err *err);
// The same because of spikes; passes over the steps from `from` to the present one afterwards.
int run_roll_back_spikes(struct run *run, int64_t from, const char *why, struct err *err);
// Ends the run: ERR_BAD_HOST on the ranks named, ERR_RETRY on all others. Tells no event.
int run_leave_host(struct run *run, int rank, int other, const char *why, struct err *err);
// Says an event in the log, in metrics.jsonl and to the supervisor; takes the reference of `more`
// (members of the event; NULL: none).
void run_guard_tell(struct run *run, const char *kind, const char *action, int64_t step, int rank,
                    const char *text, json_t *more);
// {"id":..., "set":..., "documents":["FILE:3", ...]} of each sample of the step that begins at
// sample `from`, and a line of text for the first ones.
json_t *run_samples(struct run *run, int64_t from, int batch, char text[600]);
bool run_skip_add(struct run *run, int64_t from, int64_t to);
