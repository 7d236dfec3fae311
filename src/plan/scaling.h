// Figures over the size of the world: a job's layout kept, its data ranks multiplied; and the same
// for a named mis-tuning.
#pragma once
#include "plan/estimate.h"

enum scaling_kind {
    SCALING_WEAK,  // the batch of a data rank stays
    SCALING_STRONG // the batch of the step stays
};
enum scaling_tuning {
    SCALING_CHOSEN,            // as the job has it
    SCALING_TENSOR_ACROSS,     // tensor ranks on different hosts: tp is the outermost axis
    SCALING_NO_OVERLAP,        // every message is waited for where it is posted
    SCALING_FEW_MICRO_BATCHES, // the same batch in at most as many micro-batches as stages in a row
    SCALING_TUNINGS
};
const char *scaling_tuning_name(enum scaling_tuning tuning); // "no overlap"

struct scaling_point {
    int world, micro_batches, rows;
    bool possible;
    char why[160]; // not
    double step_seconds, tokens_per_second, tokens_per_second_per_accelerator, mfu_full;
};
// One point for each of `worlds` (numbers of accelerators; the cluster gets as many nodes as that
// takes). A world that the layout cannot have is a point that is not possible; -1 only when memory
// is short.
int estimate_scaling(const struct job *job, enum scaling_kind kind, enum scaling_tuning tuning,
                     const int *worlds, int count, struct scaling_point *out, struct err *err);
