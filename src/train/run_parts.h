// A run in progress, for the files of this room: run.c (order of things), run_world.c (the ranks of
// a run), run_open.c, run_save.h (saves and how they are found again), run_step.c (a step and what
// is reported), run_evaluate.c.
#pragma once
#include "base/record.h"
#include "base/text.h"
#include "data/loader.h"
#include "device/device.h"
#include "engine/engine.h"
#include "model/model.h"
#include "observe/metrics.h"
#include "observe/tensorboard.h"
#include "train/run.h"
#include "train/run_guard.h"
#include "train/run_save.h"
#include "train/schedule.h"
#include <stdbool.h>

// What one rank knows and all have to act on: the largest value counts. See run_look_at_signals.
enum run_signal {
    SIGNAL_STOP,
    SIGNAL_LEAVE,    // enum beat_leave
    SIGNAL_FOUND,    // checksums of the last step, see run_guard.h
    SIGNAL_HARDWARE, // the machine's own counters
    SIGNAL_SAVE,     // what saver_report tells, SAVER_SLOTS integers
    SIGNAL_COPY = SIGNAL_SAVE + SAVER_SLOTS,
    SIGNAL_SNAPSHOT_BUSY = SIGNAL_COPY + SAVER_SLOTS,
    SIGNAL_SNAPSHOT_FAILED, // the newest one is not complete and never will be
    SIGNAL_SAVE_DUE,        // of rank 0
    RUN_SIGNALS
};

enum { RUN_TRACE_SPANS = 1 << 22, RUN_PLAN_TEXT = 1024, RUN_STEP_TIMES = 1024, RUN_WARM_UP = 2 };

struct run {
    struct train_config *config;
    const struct run_control *control;
    int rank, ranks;
    struct comm *comm;         // NULL: one process
    struct comm_stream *world; // NULL: one rank
    bool owns_comm;
    struct layout layout;
    struct engine_parallel parallel;
    char *schedule_csv;
    int64_t signals[RUN_SIGNALS];
    bool stopped; // agreed by all ranks
    bool left;    // and the state is saved: the end of the run is no failure
    bool agreed;  // on a failure: all ranks know of it

    struct text config_text;

    struct model model;
    struct record_lane lane; // of the compute thread
    struct device device;
    struct engine *engine;
    struct train_schedule schedule;

    struct config_paths paths, validation_paths;
    struct loader *loader, *validation; // validation may be NULL
    int loader_batch;                   // that the loader was opened with
    unsigned char *loader_memory, *validation_memory;

    struct metrics metrics;
    struct tensorboard tensorboard;
    bool has_tensorboard;
    int lock; // descriptor

    // the state that checkpoints hold beside weights and moments
    int64_t step, samples, tokens, updates;
    int bad_steps;      // skipped ones in a row
    int64_t saved_step; // -1: none yet

    double gemm_rate;
    double step_seconds; // running average, for the time left
    // of this process: the latest steps, see run_result
    double step_times[RUN_STEP_TIMES];
    int64_t steps_here;
    double tokens_here, exposed_here;
    uint64_t own_peak_bytes, gemm_peak_bytes; // before the GEMM rate was measured, and behind it
    double recomputed_flops;
    double cpu_seconds; // of the process when the step began
    double phase[RECORD_KIND_COUNT];
    struct loader_counts counts;
    uint64_t *sample_ids;
    struct run_faults *faults; // see run_fault.h
    struct run_guard guard;
    struct run_saves saves;
    struct run_result *result;
};

int run_open(struct run *run, struct err *err);
// The kinds of a plan's buffers with their bytes: "weights 1.2 GB, moments 9.6 GB".
const char *run_plan_text(const struct memory_plan *plan, char line[RUN_PLAN_TEXT]);
void run_close(struct run *run);
// Opens the loader for another batch size (the batch ramp).
int run_open_loader(struct run *run, int batch, struct err *err);

// Loads the newest valid checkpoint, if any; else the initial weights.
int run_restore(struct run *run, struct err *err);
// Collective: the newest state of at most step `most_step` (-1: any), `back` states before it; the
// initial weights where there is none.
int run_restore_older(struct run *run, int back, int64_t most_step, struct err *err);
// A failure leaves earlier checkpoints as they were.
int run_save(struct run *run, struct err *err);

int run_one_step(struct run *run, struct err *err); // 1: the run went back to an older state
int run_evaluate(struct run *run, struct err *err);
void run_settle_step_times(struct run *run); // into the result

// Opens the communication when a launcher started several ranks.
int run_join(struct run *run, struct err *err);
void run_leave(struct run *run);
// Messages have failed; some may still be on their way into this rank's memory.
bool run_is_broken(const struct run *run);
// Collective: 0 when all ranks pass 0, else -1 on all of them with the message of the lowest that
// failed, which tells it; the others are silent (result->silent). Ranks post nothing else to the
// world between what one of them may fail in and this.
int run_agree(struct run *run, int status, struct err *err);
void run_forget_failure(struct run *run); // one that the run goes on from
// Tells the others of a failure between two agreements.
void run_fail(struct run *run, struct err *err);
// Collective, behind every step: `signals` become the largest of all ranks, and `stopped` follows.
void run_look_at_signals(struct run *run);
// What this rank is about now, for heartbeats and the journal of messages.
void run_phase(struct run *run, enum beat_phase phase, int64_t step);
double run_sum(struct run *run, double value);
int64_t run_most(struct run *run, int64_t value);
static inline bool run_leads(const struct run *run) { // speaks, and keeps the run folder
    return run->rank == 0;
}
static inline const char *run_host(const struct run *run, int rank) {
    return run->comm ? comm_host(run->comm, rank) : "this host";
}
// What this rank does by itself for longer than peers would wait; NULL: it is back.
static inline void run_busy(struct run *run, const char *what) {
    if (run->world) comm_busy(run->comm, what);
}
void run_say_world(const struct run *run);
void run_say_streams(const struct run *run);
void run_say_messages(struct run *run);
void run_write_trace(struct run *run);
