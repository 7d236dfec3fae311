// A training configuration foretold on the measured machine: what weft plan --this-machine prints
// and weft train sets beside what it measured. cli/ glues train/ and plan/, which do not see each
// other.
#pragma once
#include "cli/machine_file.h"
#include "plan/estimate.h"
#include "train/config.h"

struct prediction {
    struct machine_file file;
    struct machine machine;
    struct job job;
    struct estimate estimate;
    char *schedule_csv;
    int ranks, threads;
};
// `hardware` NULL: the file at its usual place. 1: there is none, nothing was foretold. Settles
// what depends on the ranks in `config` (config_layout), as the run does.
int predict(struct train_config *config, int ranks, int threads, const char *hardware,
            struct prediction *out, struct err *err);
// Of that the job alone, from `file`, `machine`, `ranks` and `threads`.
int predict_job(struct train_config *config, struct prediction *prediction, struct err *err);
void predict_close(struct prediction *prediction);

// Seconds that ranks wait for messages in the step foretold: of data, tensor, pipeline, context and
// expert parallelism.
double predict_exposed(const struct estimate *estimate);
