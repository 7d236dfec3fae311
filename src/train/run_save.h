// Saves of a run (docs/checkpoints.md): what a state holds, when it is saved, and how it is found
// again.
//
//   run_save.c      a save that the run waits for; the last one; what is reported of saves
//   run_behind.c    snapshots in memory, and writing behind the run
//   run_interrupted.c   saves that ended with their process
//   run_restore.c   the newest state, an older one, a model's folder, or initial weights
//   run_room.c      whether there is memory for snapshots
#pragma once
#include "checkpoint/saver.h"
#include "checkpoint/snapshot.h"
#include "engine/engine.h"
#include <stdbool.h>

struct run;

struct run_saves {
    char id[SNAPSHOT_RUN_BYTES]; // of the run
    // Of snapshots on this host; "": there is no folder that is to be trusted.
    char memory[CHECKPOINT_PATH_BYTES];
    uint64_t session, number;  // of this process; of saves begun
    struct snapshot *snapshot; // NULL: saves are written straight to disk
    struct saver *saver;       // from snapshots
    struct saver *second;      // to checkpoint.second_folder
    bool due;                  // one could not begin yet
    bool told_late, told_wait; // and that was said; that the run stands still for the disk
    struct {
        bool waits;
        int generation;
        uint64_t number;
        int64_t step;
        struct err why;                // the snapshot could not be begun here
    } next;                            // the newest snapshot, while an older one is being written
    int64_t durable_step, copied_step; // on disk; in the second folder; -1: none of this process
    int64_t wanted_copy;
    const char *work; // of this rank's own that is waited for, as told last; NULL: none
    // measured here, and for checkpoint.interval=auto
    double begun, stall; // clock of the last begin; seconds that the last save has held the run up
    bool copies;         // and its copy goes on
    double blocking_seconds, persist_seconds; // moving averages; 0: not known yet
    int64_t last_step;                        // of the last begin
    int64_t *keep_steps;                      // checkpoint.keep_steps, and room for one more
    int keep_step_count;
};

// Before the engine takes its memory: that of snapshots, or options->snapshots becomes 0.
int run_saves_open(struct run *run, struct engine_options *options, struct err *err);
// Fills own->room with the needs of all ranks on this host. Collective.
int run_snapshot_room(struct run *run, struct snapshot_options *own, struct err *err);
int run_saves_attach(struct run *run, struct err *err); // when the engine is open
void run_saves_close(struct run *run);
// At an orderly end, when all saves are done: what lies in memory goes, unless it soon goes on.
void run_saves_forget(struct run *run);

// Between steps: what this rank tells (into run->signals), and what follows for all.
void run_saves_report(struct run *run);
int run_saves_settle(struct run *run, struct err *err);
bool run_save_is_due(struct run *run);
int run_save_behind(struct run *run, struct err *err);
// Before weights change. Cheap when no copy is under way.
void run_wait_for_snapshot(struct run *run);
// Until nothing is under way any more. `drop`: what is not durable yet never will be.
int run_saves_finish(struct run *run, bool drop, struct err *err);
// Collective: the state as a snapshot, complete in the memory of all ranks, without waiting for
// what is on its way to disk. 1: it is; 0: it cannot be, and must go to disk.
int run_save_to_memory(struct run *run, struct err *err);
void run_saves_skip_copies(struct run *run); // to the second folder; that under way is ended

// This rank's pieces of weights, moments and the experts' biases, under the names that the engine
// gives them.
int run_state_slices(struct run *run, struct tensor_slice **out, int *count, struct err *err);
// The state beside them; json_decref(state.extra).
struct checkpoint_state run_state(struct run *run);
// A save has held the run up for so long, and was durable so long after its begin.
void run_saves_measure(struct run *run, double blocking, double persist);
void run_tell_persisted(struct run *run, int64_t step, const char *path, uint64_t bytes,
                        double seconds);
void run_tell_failed(struct run *run, int64_t step, const struct err *why, double seconds);
// The same without the line that says that training goes on.
void run_report_failed(struct run *run, int64_t step, const struct err *why, double seconds);

// Opens metrics.jsonl (rank 0). Of saves that an earlier process began and whose end nobody has
// told, it tells it.
int run_open_journal(struct run *run, const char *path, struct err *err);
