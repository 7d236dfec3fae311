// Where the machine's rate goes. See estimate.h.
//
// Seconds of a pipeline rank, averaged over the pipeline, add up to the step: compute by cause,
// messages inside actions, update, and the time in which the rank stands still. That last part is
// taken apart by simulating again, one cause after the other left out: reductions, gathers, sends,
// then the differences between stages; what remains is the bubble of the order itself.
#include "model/flops.h"
#include "plan/estimate_parts.h"
#include <math.h>

struct fall {
    const struct job *job;
    struct estimate *e;
    struct estimate_costs costs;
    bool halves;
};

static double sum_without(const struct cost_sum *sum, enum cost_cause cause) {
    double device = sum->device - sum->cause[cause];
    return sum->blocking ? device + sum->host : fmax(device, sum->host);
}

static struct cost_sum input_sum(const struct estimate_stage *s) {
    return cost_sum_add(&s->pass[COST_RECOMPUTE], &s->pass[COST_INPUT]);
}

// A stage whose messages of this cause take no time.
static struct estimate_stage without_cause(const struct estimate_stage *s, enum cost_cause cause) {
    struct estimate_stage out = *s;
    struct cost_sum input = input_sum(s);
    out.forward = sum_without(&s->pass[COST_FORWARD], cause) + s->shard_forward;
    out.input = sum_without(&input, cause) + s->shard_backward;
    out.weight = sum_without(&s->pass[COST_WEIGHT], cause);
    out.backward = sum_without(&s->whole, cause) + s->shard_backward;
    return out;
}

static int seconds_now(struct fall *f, double *seconds, struct err *err) {
    struct pipeline_costs costs = estimate_costs(f->job, &f->costs);
    return estimate_simulate(f->job, &f->e->pipeline, &costs, seconds, NULL, err);
}

static void reset(struct fall *f) {
    estimate_fill_costs(f->e->stages, f->e->stage_count, f->costs.stages);
    for (int r = 0; r < f->e->rank_count; r++)
        f->costs.rank_step[r] = estimate_update_sum(&f->e->updates[r]);
}

// ---- left out

static void no_reduce(struct fall *f) {
    for (int s = 0; s < f->e->stage_count; s++)
        f->costs.stages[s].reduce = f->costs.stages[s].reduce_behind = 0;
}

static void no_gather(struct fall *f) {
    for (int s = 0; s < f->e->stage_count; s++)
        f->costs.stages[s].gather = f->costs.stages[s].gather_first = 0;
}

static void no_sends(struct fall *f) {
    for (int s = 0; s < f->e->stage_count; s++)
        f->costs.stages[s].send_forward = f->costs.stages[s].send_backward = 0;
}

static void no_update_gather(struct fall *f) {
    for (int r = 0; r < f->e->rank_count; r++) f->costs.rank_step[r] -= f->e->updates[r].gather;
}

static void no_shards(struct fall *f) {
    for (int s = 0; s < f->e->stage_count; s++) {
        const struct estimate_stage *stage = &f->e->stages[s];
        f->costs.stages[s].forward -= stage->shard_forward;
        f->costs.stages[s].input -= stage->shard_backward;
        f->costs.stages[s].backward -= stage->shard_backward;
    }
}

static void equal_stages(struct fall *f) {
    struct pipeline_stage_costs mean = {0};
    int count = f->e->stage_count, ranks = f->e->rank_count;
    double step = 0;
    for (int s = 0; s < count; s++) {
        mean.forward += f->costs.stages[s].forward / count;
        mean.input += f->costs.stages[s].input / count;
        mean.weight += f->costs.stages[s].weight / count;
        mean.backward += f->costs.stages[s].backward / count;
    }
    for (int s = 0; s < count; s++) f->costs.stages[s] = mean;
    for (int r = 0; r < ranks; r++) step += f->costs.rank_step[r] / ranks;
    for (int r = 0; r < ranks; r++) f->costs.rank_step[r] = step;
}

// ---- exposed

static int exposed(struct fall *f, void (*leave_out)(struct fall *f), double before, double *out,
                   struct err *err) {
    double seconds;
    leave_out(f);
    if (seconds_now(f, &seconds, err) != 0) return -1;
    *out = before - seconds;
    reset(f);
    return 0;
}

static void no_gathers_at_all(struct fall *f) {
    no_gather(f);
    no_update_gather(f);
    no_shards(f);
}

static int exposed_cause(struct fall *f, enum cost_cause cause, double before, double *out,
                         struct err *err) {
    double seconds, there = 0;
    struct estimate *e = f->e;
    for (int s = 0; s < e->stage_count; s++)
        there += e->stages[s].pass[COST_FORWARD].cause[cause] + e->stages[s].whole.cause[cause];
    if (there <= 0) return 0;
    for (int s = 0; s < e->stage_count; s++) {
        struct estimate_stage stage = without_cause(&e->stages[s], cause);
        estimate_fill_costs(&stage, 1, &f->costs.stages[s]);
    }
    if (seconds_now(f, &seconds, err) != 0) return -1;
    *out = before - seconds;
    reset(f);
    return 0;
}

static int add_exposed(struct fall *f, double before, struct err *err) {
    struct estimate *e = f->e;
    if (exposed(f, no_reduce, before, &e->exposed_reduce, err) != 0 ||
        exposed(f, no_gathers_at_all, before, &e->exposed_gather, err) != 0 ||
        exposed(f, no_sends, before, &e->exposed_pipeline, err) != 0)
        return -1;
    return exposed_cause(f, CAUSE_TENSOR, before, &e->exposed_tensor, err) |
           exposed_cause(f, CAUSE_CONTEXT, before, &e->exposed_context, err) |
           exposed_cause(f, CAUSE_EXPERT, before, &e->exposed_expert, err);
}

// ---- lines

static void line(struct estimate *e, const char *name, double seconds) {
    e->waterfall[e->waterfall_lines++] = (struct waterfall_line){name, seconds / e->step_seconds};
}

struct compute {
    double cause[CAUSE_COUNT]; // without recomputation
    double again, shards;
};

// Of the mean pipeline rank, all micro-batches.
static struct compute compute_of(const struct fall *f) {
    struct compute sum = {0};
    double times = (double)f->job->micro_batches / f->e->rank_count;
    for (int s = 0; s < f->e->stage_count; s++) {
        const struct estimate_stage *stage = &f->e->stages[s];
        const struct cost_sum *p = stage->pass;
        struct cost_sum input = input_sum(stage);
        for (int c = 0; c < CAUSE_COUNT; c++)
            sum.cause[c] += times * (p[COST_FORWARD].cause[c] + p[COST_INPUT].cause[c] +
                                     p[COST_WEIGHT].cause[c]);
        // The host's waits are judged for what one walk of it launches.
        double waits = f->halves ? input.cause[CAUSE_HOST] : stage->whole.cause[CAUSE_HOST];
        sum.cause[CAUSE_HOST] += times * (waits - p[COST_INPUT].cause[CAUSE_HOST] -
                                          (f->halves ? 0 : p[COST_WEIGHT].cause[CAUSE_HOST]));
        sum.again += times * p[COST_RECOMPUTE].device;
        sum.shards += times * (stage->shard_forward + stage->shard_backward);
    }
    return sum;
}

static double compute_lines(const struct fall *f) {
    struct estimate *e = f->e;
    struct compute c = compute_of(f);
    // Useful work at the peak: of attention the pairs that are seen, of products the rest.
    double tokens = (double)job_sequences(f->job) * f->job->context;
    double products = 6.0 * (double)flops_matmul_params(&f->job->model) * tokens;
    double useful = e->mfu_causal * e->step_seconds;
    double attention = useful * (1 - products / e->model_flops_causal);
    double all = c.again + c.shards;
    for (int k = 0; k < CAUSE_COUNT; k++) all += c.cause[k];
    line(e, "products below the peak", c.cause[CAUSE_PRODUCT] - (useful - attention));
    line(e, "attention below the peak", c.cause[CAUSE_ATTENTION] - attention);
    line(e, "kernels bound by memory", c.cause[CAUSE_KERNEL]);
    line(e, "waits for launches", c.cause[CAUSE_HOST]);
    line(e, "recomputation", c.again);
    line(e, "tensor-parallel messages", c.cause[CAUSE_TENSOR]);
    line(e, "context-parallel messages", c.cause[CAUSE_CONTEXT]);
    line(e, "experts' messages", c.cause[CAUSE_EXPERT]);
    line(e, "sharded weights and gradients", c.shards);
    return all;
}

static double update_lines(const struct fall *f) {
    struct estimate *e = f->e;
    double update = 0, gather = 0, host = 0;
    for (int r = 0; r < e->rank_count; r++) {
        const struct estimate_update *u = &e->updates[r];
        update += (u->update + u->tied + u->partial + u->norm) / e->rank_count;
        gather += u->gather / e->rank_count;
        host += u->host / e->rank_count;
    }
    line(e, "optimizer", update);
    line(e, "gathers of updated weights", gather);
    line(e, "host between steps", host);
    return update + gather + host;
}

static int idle_lines(struct fall *f, double before, double busy, struct err *err) {
    static const struct {
        const char *name;
        void (*leave_out)(struct fall *f);
    } steps[] = {{"reductions of gradients", no_reduce},
                 {"gathers before the first forward", no_gather},
                 {"pipeline messages", no_sends},
                 {"unequal stages", equal_stages}};
    for (int k = 0; k < 4; k++) {
        double seconds;
        steps[k].leave_out(f);
        if (seconds_now(f, &seconds, err) != 0) return -1;
        // Stages that differ may also be quicker than equal ones: no loss.
        double loss = fmax(before - seconds, 0);
        line(f->e, steps[k].name, loss);
        before -= loss;
        if (steps[k].leave_out == no_sends)
            f->e->bubble_without_messages = fmax(0, 1 - busy / before);
    }
    line(f->e, "bubble", before - busy);
    reset(f);
    return 0;
}

int estimate_waterfall(const struct job *job, struct estimate *e, struct err *err) {
    struct fall f = {.job = job, .e = e, .halves = estimate_in_halves(&e->pipeline)};
    if (estimate_costs_open(e, &f.costs, err) != 0) return -1;
    double stalls = job->data_seconds + job->checkpoint_seconds;
    double whole = e->step_seconds - stalls, busy = compute_lines(&f);
    busy += update_lines(&f);
    int result = idle_lines(&f, whole, busy, err);
    line(e, "data and checkpoints", stalls);
    if (result == 0) result = add_exposed(&f, whole, err);
    estimate_costs_close(&f.costs);
    return result;
}
