// From a cluster and a model to a run of weeks. See size.h.
#include "plan/size.h"

void size_run(const struct cluster *cluster, double params, double step_seconds, int64_t steps,
              struct runs *out) {
    runs_defaults(out);
    out->nodes = cluster->nodes;
    out->per_node = cluster->per_node;
    out->step_seconds = step_seconds;
    out->steps = steps;
    out->price_per_hour = cluster->price_per_hour.value;
    if (cluster->failures_per_node_day.origin != FIGURE_ABSENT)
        out->failures_per_node_day = cluster->failures_per_node_day.value;
    if (cluster->repair_seconds.origin != FIGURE_ABSENT)
        out->repair_seconds = cluster->repair_seconds.value;
    double blocking, persist;
    size_checkpoint_times(params, cluster, SIZE_HOST_BANDWIDTH, &blocking, &persist);
    out->blocking_seconds = blocking;
    if (persist > 0) out->persist_seconds = persist; // else no storage is described
    int spares = runs_spares_per_failure(out, 0.99);
    out->spares = spares < 0 ? out->nodes : spares;
}
