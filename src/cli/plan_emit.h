// A planned layout as a file that `weft train` reads.
#pragma once
#include "plan/report.h"

struct plan_emit {
    const char *path;
    const char *base; // training configuration that the model came from, or NULL
    const char *data; // data.train, or NULL
};
// Writes the plan's configuration: that of `base` with the planned layout, or the model, batch and
// layout alone. The file is read back and its layout held against the plan before it is written.
// `start` gets the command that starts the run.
int plan_emit_write(const struct plan_emit *emit, const struct report *report,
                    const struct report_plan *plan, char start[600], struct err *err);
