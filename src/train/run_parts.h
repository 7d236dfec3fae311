// A run in progress, for the files of this room: run.c (order of things), run_open.c, run_save.c
// (checkpoints, both ways), run_step.c (a step and what is reported), run_evaluate.c.
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
#include "train/schedule.h"
#include <stdbool.h>

struct run {
    const struct train_config *config;
    const struct run_control *control;
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
    int bad_steps;      // in a row
    int64_t saved_step; // -1: none yet

    double gemm_rate;
    double step_seconds; // running average, for the time left
    double recomputed_flops;
    double cpu_seconds; // of the process when the step began
    double phase[RECORD_KIND_COUNT];
    struct loader_counts counts;
    uint64_t *sample_ids;
    struct run_result *result;
};

int run_open(struct run *run, struct err *err);
void run_close(struct run *run);
// Opens the loader for another batch size (the batch ramp).
int run_open_loader(struct run *run, int batch, struct err *err);

// Loads the newest valid checkpoint, if any; else the initial weights.
int run_restore(struct run *run, struct err *err);
// A failure leaves earlier checkpoints as they were.
int run_save(struct run *run, struct err *err);

int run_one_step(struct run *run, struct err *err);
int run_evaluate(struct run *run, struct err *err);

static inline bool run_is_stopped(const struct run *run) {
    return run->control && run->control->stop && *run->control->stop;
}
