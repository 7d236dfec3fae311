// What is said about a run: everything that was computed, as text and as JSON.
#pragma once
#include "base/text.h"
#include "simulate/runs.h"
#include <jansson.h>

struct runs_report {
    struct runs runs;
    const char *failures_from; // where the rate comes from: "default", "pessimistic", "given" ...
    uint64_t seed;
    double percentile;          // of spares
    double uptime;              // for which the longest recovery is asked
    double synchronous_seconds; // of a checkpoint that blocks, to be set beside; 0: none
    // computed:
    struct runs_closed closed;
    struct runs_result result;
    int spares_per_failure, spares_per_run;
};
// Fills the lower half by simulating `count` runs.
int runs_report_make(struct runs_report *report, int count, struct err *err);
int runs_report_print(const struct runs_report *report, struct text *out);
json_t *runs_report_json(const struct runs_report *report);

// The same run at another failure rate, and with a checkpoint that blocks throughout, each at its
// own best interval.
struct runs runs_at_rate(const struct runs *runs, double failures_per_node_day);
struct runs runs_synchronous(const struct runs *runs, double blocking_seconds);
double runs_pessimistic_rate(const struct runs *runs);
// Accelerator-hours and dollars of `seconds` of the whole run, spares included.
double runs_accelerator_hours(const struct runs *runs, double seconds);
double runs_dollars(const struct runs *runs, double seconds);
