// The model of a plan from a word of the command line: a preset, a Hugging Face config.json or its
// folder, or a training configuration, which may also say batch, context and steps.
#pragma once
#include "base/error.h"
#include "model/model.h"

struct plan_model {
    struct model_config config;
    bool from_config; // a training configuration
    int batch;        // sequences of a step; 0: not said
    int context;      // 0: not said
    int64_t steps;    // of the run; 0: not said
    bool fp32;        // train.precision
};
int plan_model_read(const char *text, struct plan_model *out, struct err *err);
