// The step's lists, simulated. See estimate_parts.h.
//
// Once the pipeline is full, its lists repeat every so many micro-batches as there are ranks, and
// so do their times: each further group of `ranks` micro-batches makes the step longer by the same
// seconds. Of a long step a shorter one is simulated, and one with a group less; their difference
// is the length of a group. zb-v's order is found by simulation and repeats every three groups, or
// nearly: what is foretold of it is right to a few tenths of a percent, of the others exactly.
#include "plan/estimate_parts.h"

static int group_of(const struct job *job) {
    return (job->schedule == PIPELINE_ZB_V ? 3 : 1) * job->layout.mesh.size[MESH_PP];
}

// Micro-batches that are simulated: all, or as many as fill the pipeline, with the same remainder.
static int simulated(const struct job *job) {
    int group = group_of(job), ranks = job->layout.mesh.size[MESH_PP];
    int fill = job->schedule == PIPELINE_ZB_V ? 8 : job->layout.chunks > 1 ? 3 : 5;
    int most = fill * ranks + 8;
    if (job->schedule == PIPELINE_FILE || job->micro_batches <= most + group)
        return job->micro_batches;
    return most + (job->micro_batches - most) % group;
}

struct pipeline_shape estimate_lists_shape(const struct job *job, bool all_in_flight, int *fewest) {
    bool whole = all_in_flight && job->schedule == PIPELINE_GPIPE;
    int count = whole ? job->micro_batches : simulated(job);
    *fewest = count < job->micro_batches ? count - group_of(job) : count;
    return job_pipeline_shape(job, count);
}

int estimate_open_lists(const struct job *job, bool all_sizes, bool all_in_flight,
                        struct pipeline *pipeline, struct err *err) {
    int fewest;
    struct pipeline_shape shape = estimate_lists_shape(job, all_in_flight, &fewest);
    return job->schedule == PIPELINE_FILE
               ? pipeline_open_csv(pipeline, job->schedule_csv, "schedule", &shape, err)
               : pipeline_open_for(pipeline, &shape, all_sizes ? 1 : fewest, err);
}

static double length(const struct pipeline_costs *costs, const struct pipeline_times *times) {
    return costs->no_barrier ? times->longest : times->total;
}

int estimate_simulate(const struct job *job, struct pipeline *pipeline,
                      const struct pipeline_costs *costs, double *seconds,
                      struct pipeline_times *times, struct err *err) {
    int whole = pipeline->shape.micro_batches, group = group_of(job);
    double shorter = 0;
    struct pipeline_costs sums = *costs;
    sums.no_spans = true;
    if (whole < job->micro_batches) {
        struct pipeline_times less;
        if (pipeline_remake(pipeline, whole - group, err) != 0 ||
            pipeline_simulate(pipeline, &sums, &less, err) != 0)
            return -1;
        shorter = length(costs, &less);
        pipeline_times_free(&less);
        if (pipeline_remake(pipeline, whole, err) != 0) return -1;
    }
    struct pipeline_times own;
    if (pipeline_simulate(pipeline, times ? costs : &sums, &own, err) != 0) return -1;
    double groups = (double)(job->micro_batches - whole) / group;
    *seconds = length(costs, &own) + groups * (length(costs, &own) - shorter);
    if (times)
        *times = own;
    else
        pipeline_times_free(&own);
    return 0;
}

void estimate_fill_costs(const struct estimate_stage *stages, int count,
                         struct pipeline_stage_costs *out) {
    for (int s = 0; s < count; s++)
        out[s] = (struct pipeline_stage_costs){.forward = stages[s].forward,
                                               .input = stages[s].input,
                                               .weight = stages[s].weight,
                                               .backward = stages[s].backward,
                                               .send_forward = stages[s].send_forward,
                                               .send_backward = stages[s].send_backward,
                                               .gather = stages[s].gather,
                                               .gather_pieces = stages[s].gather_pieces,
                                               .gather_first = stages[s].gather_first,
                                               .reduce_behind = stages[s].reduce_behind,
                                               .reduce = stages[s].reduce,
                                               .reduce_pieces = stages[s].reduce_pieces};
}
