// What was foretold of a run beside what it measured: printed at its end, and left in its folder as
// prediction.json, which weft plan explain reads.
#pragma once
#include "cli/predict.h"
#include "train/run.h"

struct predict_run {
    const char *hardware; // --hardware, or NULL
    char *const *words;   // key=value of the command line
    int word_count;
    int ranks, threads;
};
// Called by rank 0 behind the run. Without a measured machine, and where no step was done, nothing
// is printed. A failure is a warning: the run is over and good.
// `json`: members for the result's object, with a comma in front, instead of a table.
void predict_run_report(const struct predict_run *how, struct train_config *config,
                        const struct run_result *result, bool json);

// "trace.predicted.json" of "trace.json"
int predict_trace_path(const char *trace, char *out, size_t out_bytes, struct err *err);
