// The answer of `weft plan`: the best layouts with all figures, why the first is as it is and what
// the others lose, what the figures rest on; as text and as JSON. docs/planning.md defines each.
#pragma once
#include "base/text.h"
#include "plan/search.h"
#include "plan/trail.h"
#include <jansson.h>

struct report_request {
    struct search_request search;
    const char *model_name, *cluster_name; // as the user wrote them
    int64_t tokens;                        // of the whole run
    bool batch_given, context_given, tokens_given;
    double checkpoint_seconds; // between two checkpoints; 0: not said
};
struct report_plan {
    struct search_entry entry;
    struct job job;
    struct estimate estimate;
};
struct report {
    const struct report_request *request;
    struct search_result result;
    struct report_plan *plans;
    int count; // 0: nothing fits, see `shortage`
    struct search_shortage shortage;
    struct trail trail; // of the first
    int64_t parameters, active_parameters;
};
// ERR_USAGE where no layout is possible at all. With nothing that fits it is a report too, with
// count 0: plan_report_nothing_fits then makes the message.
int plan_report_make(const struct report_request *request, struct report *out, struct err *err);
void plan_report_close(struct report *report);
int plan_report_nothing_fits(const struct report *report, struct err *err); // returns -1

int plan_report_text(const struct report *report, struct text *out, struct err *err);
json_t *plan_report_json(const struct report *report); // NULL when memory is short

// ---- figures of a plan

struct report_run {
    int64_t steps;
    double seconds, accelerator_hours, cost; // without failures; cost 0: no price
    // With the cluster's failures, in closed form (simulate/runs.h).
    int spares;                     // nodes, so that 99 % of failures find one
    double effective, wall_seconds; // share of useful time; expected
    double mtbf_seconds, failures;  // between two; expected over the run
    double checkpoint_seconds;      // best interval
    int64_t checkpoint_steps;
};
struct report_run plan_report_run(const struct report *report, const struct report_plan *plan);

// What the figures rest on.
struct report_input {
    const char *name, *unit;
    struct figure figure;
};
enum { REPORT_MOST_INPUTS = 40 };
int plan_report_inputs(const struct report *report, struct report_input out[REPORT_MOST_INPUTS]);
