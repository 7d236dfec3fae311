// `weft plan ... --svg DIR`: pictures of the first plan.
#pragma once
#include "plan/report.h"

// Writes waterfall.svg, memory.svg, timeline.svg, scaling-weak.svg, scaling-strong.svg, cost.svg
// and interval.svg into the folder, which is made. Each name that was written is put into `names`,
// with a line end.
int plan_pictures(const struct report *report, const char *folder, struct text *names,
                  struct err *err);
