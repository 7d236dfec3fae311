// Pictures of plans as SVG: readable on light and on dark ground, without scripts, some ten KB
// each. The pipeline's timeline is pipeline_draw_svg (schedule/pipeline.h).
#pragma once
#include "plan/estimate.h"
#include "plan/scaling.h"
#include "simulate/runs.h"

// From the machine's peak down to what is achieved, with the overlap formula beside the simulation.
int draw_waterfall(const struct estimate *estimate, const char *title, struct text *out,
                   struct err *err);
// A bar for each pipeline rank: items on top of each other, the accelerator's memory as a line.
// `limit_bytes` 0: no line.
int draw_memory(const struct plan_memory *ranks, int count, double limit_bytes, const char *title,
                struct text *out, struct err *err);
// Tokens/s of an accelerator relative to the smallest world, over the world's size: the job's
// layout with its data ranks multiplied, and every named mis-tuning. Worlds that a layout cannot
// have are left out.
int draw_scaling(const struct job *job, enum scaling_kind kind, const char *title, struct text *out,
                 struct err *err);
enum { DRAW_SCALING_MOST = 16 };
// Worlds of draw_scaling: the replica that one data rank is, times powers of two, up to four times
// the job's own; returns how many.
int draw_scaling_worlds(const struct job *job, int worlds[DRAW_SCALING_MOST]);

// Layouts as points: cost of the run against MFU. The first point is the plan.
struct draw_layout {
    const char *name; // of the plan, shown
    double mfu, cost;
    bool fits;
};
int draw_cost(const struct draw_layout *layouts, int count, const char *unit, const char *title,
              struct text *out, struct err *err);

// Effective training time over the checkpoint interval: the exact formula as curves (at the run's
// failure rate and at the two usual ones), simulated runs with p5 to p95 as points.
int draw_interval(const struct runs *runs, int count, uint64_t seed, const char *title,
                  struct text *out, struct err *err);
