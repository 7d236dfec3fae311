// A planned job as a training configuration: keys and values that `weft train` reads, and a head of
// comments that says what was planned, so that a later look at the run knows whether the
// configuration is still that of the plan.
#pragma once
#include "base/text.h"
#include "plan/job.h"

// Lines "KEY=VALUE", keys with dots as in docs/config.md: layout, pipeline, batch, context,
// precision, recomputation; with `model` also the model's shape. Refuses what the engine cannot
// train: precisions below BF16, latent attention.
int emit_keys(const struct job *job, bool model, struct text *out, struct err *err);
// Such lines as YAML: neighbouring keys of a group below one heading.
int emit_yaml(const char *lines, struct text *out, struct err *err);

struct emit_plan {
    uint64_t digest; // of the configuration (config_digest)
    int ranks;
    double step_seconds, tokens_per_second, memory_bytes, mfu_full;
};
// Comments before the YAML. `about`: "llama3-70b on 512 h100-sxm"; `start`: the command that starts
// the run.
int emit_head(const struct emit_plan *plan, const char *about, const char *start, struct text *out);
// Reads the head of a file's text. 1: it has none.
int emit_read_head(const char *text, const char *name, struct emit_plan *out, struct err *err);
