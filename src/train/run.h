// A training run: opens everything, resumes from the newest valid checkpoint of its folder, walks
// the steps, evaluates, saves, and leaves the run folder:
//
//   RUN/config.yaml         the resolved configuration
//   RUN/metrics.jsonl       a line per step and per event
//   RUN/events.out.*        TensorBoard
//   RUN/tokenizer.json ...  the tokenizer's files, when data.tokenizer is given
//   RUN/checkpoints/        see checkpoint/checkpoint.h
//   RUN/journals/           what each rank posted last, when messages between ranks have failed
//   RUN/lock                held while a process trains here
//
// What is reported goes to base/log.h.
#pragma once
#include "base/error.h"
#include "base/launch.h"
#include "comm/comm.h"
#include "guard/heartbeat.h"
#include "train/config.h"
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct run_control {
    const volatile sig_atomic_t *stop; // not 0: finish the step, save, return ERR_INTERRUPT
    // What the launcher said; NULL, or one rank: this process is alone and MPI is never touched.
    const struct launch_environment *launch;
    struct comm *comm; // or: an opened end (ranks as threads); the caller closes it
    // Under a supervisor: its control plane; NULL: none. The caller opens and closes it.
    struct heartbeat *heartbeat;
    int attempt; // how often the run was started before (faults are injected by it)
    // A signal that asks to leave for another start: SIGTERM, SIGUSR1. Not 0: finish the step,
    // save, return ERR_RETRY.
    const volatile sig_atomic_t *preempted;
};

struct run_result {
    int64_t step;           // last one done
    int64_t resumed_from;   // 0: from the beginning
    double loss;            // of the last step
    double validation_loss; // NaN: not evaluated
    double start_seconds;   // from exec to the beginning of the first step
    uint64_t planned_bytes, allocated_bytes, peak_resident_bytes;
    uint64_t base_pss_bytes, peak_pss_bytes; // before the run took its memory; highest
    // Of the steps behind the first two (of all where there are no more): median time, data wait
    // included; tokens; mean seconds in which the compute thread stood still for messages.
    double step_seconds, step_tokens, step_exposed_seconds;
    bool silent; // failed, and another rank has the message
    // Failed with messages still on their way: end the process with comm_abort, after the message.
    struct comm *broken;
};

int train_run(struct train_config *config, const struct run_control *control,
              struct run_result *result, struct err *err);
