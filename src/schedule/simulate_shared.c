// Event simulation of a pipeline whose ranks share processors: at every moment those that compute
// get equal shares, none more than one processor. See pipeline_costs.
#include "schedule/pipeline_parts.h"
#include <math.h>
#include <stdlib.h>

struct shared_rank {
    int next;           // place in the list
    bool computes;      // the action at `next` is under way
    double left;        // of its work
    double begun, idle; // when it began; since when the rank has nothing to do
    double gathered;    // weights are there
    double late;        // seconds of reductions behind the last backward
    double busy;
};

struct shared {
    const struct pipeline *p;
    const struct pipeline_costs *costs;
    const struct pipeline_stage_costs *stages;
    struct pipeline_times *times;
    struct shared_rank *rank;
    double *there; // messages by receiving stage, direction and micro-batch: when they arrive
    double now;
};

static double *message(struct shared *s, int stage, int micro_batch, bool backward) {
    size_t m = (size_t)s->p->shape.micro_batches;
    return &s->there[((size_t)stage * 2 + backward) * m + (size_t)micro_batch];
}

static void put_span(struct shared *s, int r, bool wait, double begin, double end) {
    struct pipeline_times *t = s->times;
    if (!t->spans || (wait && end <= begin)) return;
    t->spans[t->span_count++] = (struct pipeline_span){r, s->rank[r].next, wait, begin, end};
}

static double work_of(const struct shared *s, int r, struct action a) {
    const struct pipeline_stage_costs *c = &s->stages[a.stage];
    switch (a.kind) {
    case ACTION_STEP:
        return s->costs->rank_step ? s->costs->rank_step[r] : s->costs->step;
    case ACTION_FORWARD:
        return c->forward;
    case ACTION_BACKWARD_INPUT:
        return c->input;
    case ACTION_BACKWARD_WEIGHT:
        return c->weight;
    default:
        return c->backward;
    }
}

// When a compute action can begin; infinite: not known yet.
static double ready(struct shared *s, int r, struct action a) {
    bool backward = a.kind != ACTION_FORWARD;
    if (a.kind == ACTION_STEP) return HUGE_VAL;
    if (a.kind == ACTION_BACKWARD_WEIGHT) return s->now;
    double when = backward ? s->now : s->rank[r].gathered;
    if (!pipeline_remote(s->p, a.stage + (backward ? 1 : -1), r)) return when;
    return fmax(when, *message(s, a.stage, a.micro_batch, backward));
}

static void send(struct shared *s, struct action a) {
    bool backward = a.kind == ACTION_SEND_BACKWARD;
    int to = a.stage + (backward ? -1 : 1);
    double seconds = backward ? s->stages[a.stage].send_backward : s->stages[a.stage].send_forward;
    *message(s, to, a.micro_batch, backward) = s->now + seconds;
}

static void begin(struct shared *s, int r, struct action a) {
    struct shared_rank *rank = &s->rank[r];
    put_span(s, r, true, rank->idle, s->now);
    rank->computes = true;
    rank->left = work_of(s, r, a);
    rank->busy += rank->left;
    rank->begun = s->now;
}

// As far as the rank's list goes at this moment. Returns when it might go on.
static double advance(struct shared *s, int r) {
    struct shared_rank *rank = &s->rank[r];
    while (!rank->computes && rank->next < s->p->ranks[r].count) {
        struct action a = s->p->ranks[r].actions[rank->next];
        switch (a.kind) {
        case ACTION_SEND_FORWARD:
        case ACTION_SEND_BACKWARD:
            send(s, a);
            break;
        case ACTION_RECEIVE_FORWARD:
        case ACTION_RECEIVE_BACKWARD:
            break;
        case ACTION_GATHER:
            rank->gathered = fmax(rank->gathered, s->now) + s->stages[a.stage].gather_first +
                             s->stages[a.stage].gather;
            break;
        case ACTION_REDUCE:
            rank->late += s->stages[a.stage].reduce + s->stages[a.stage].reduce_behind;
            break;
        default: {
            double when = ready(s, r, a);
            if (when > s->now) return when;
            begin(s, r, a);
            return HUGE_VAL;
        }
        }
        rank->next++;
    }
    return HUGE_VAL;
}

// All ranks have come to the step: it begins when the last reduction is over.
static bool begin_steps(struct shared *s) {
    int ranks = s->p->shape.ranks;
    double late = 0;
    for (int r = 0; r < ranks; r++) {
        const struct shared_rank *rank = &s->rank[r];
        if (rank->computes || rank->next >= s->p->ranks[r].count ||
            s->p->ranks[r].actions[rank->next].kind != ACTION_STEP)
            return false;
        late = fmax(late, rank->late);
    }
    s->now += late;
    for (int r = 0; r < ranks; r++) begin(s, r, s->p->ranks[r].actions[s->rank[r].next]);
    return true;
}

// Until the next action ends or can begin.
static void pass_time(struct shared *s, int active, double next_begin) {
    int ranks = s->p->shape.ranks;
    double rate = fmin(1, s->costs->processors / active), least = HUGE_VAL;
    for (int r = 0; r < ranks; r++)
        if (s->rank[r].computes) least = fmin(least, s->rank[r].left);
    double length = fmin(least / rate, next_begin - s->now);
    s->now += length;
    for (int r = 0; r < ranks; r++) {
        struct shared_rank *rank = &s->rank[r];
        if (!rank->computes) continue;
        rank->left -= length * rate;
        if (rank->left > 1e-12 && rank->left > least * 1e-9) continue;
        put_span(s, r, false, rank->begun, s->now);
        rank->computes = false;
        rank->idle = s->now;
        rank->next++;
    }
}

static int run(struct shared *s, struct err *err) {
    int ranks = s->p->shape.ranks;
    for (;;) {
        double next_begin = HUGE_VAL;
        int active = 0;
        bool done = true;
        for (int r = 0; r < ranks; r++) advance(s, r); // what they send now lets others begin
        for (int r = 0; r < ranks; r++) {
            next_begin = fmin(next_begin, advance(s, r));
            active += s->rank[r].computes;
            done = done && s->rank[r].next >= s->p->ranks[r].count;
        }
        if (done) return 0;
        if (active == 0 && isinf(next_begin)) {
            if (begin_steps(s)) continue;
            if (pipeline_validate(s->p, err) != 0) return -1;
            return err_set(err, ERR_INTERNAL, "schedule: the simulation stands still");
        }
        if (active == 0)
            s->now = next_begin;
        else
            pass_time(s, active, next_begin);
    }
}

// Spans by rank and time, as pipeline_times has them.
static int by_rank(const void *a, const void *b) {
    const struct pipeline_span *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static void finish(struct shared *s) {
    struct pipeline_times *t = s->times;
    double sum = 0;
    for (int r = 0; r < s->p->shape.ranks; r++) {
        t->ideal = fmax(t->ideal, s->rank[r].busy);
        sum += s->rank[r].busy;
    }
    t->total = t->longest = s->now;
    if (t->total > 0) t->bubble = 1 - sum / (s->costs->processors * t->total);
    if (t->ideal > 0) t->bubble_over_ideal = (t->total - t->ideal) / t->ideal;
    if (t->span_count > 0) qsort(t->spans, (size_t)t->span_count, sizeof *t->spans, by_rank);
}

int pipeline_simulate_shared(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                             const struct pipeline_stage_costs *stages,
                             struct pipeline_times *times, struct err *err) {
    size_t ranks = (size_t)pipeline->shape.ranks, actions = 0;
    size_t messages = (size_t)pipeline->stages * 2 * (size_t)pipeline->shape.micro_batches;
    struct shared s = {.p = pipeline, .costs = costs, .stages = stages, .times = times};
    int status = -1;
    for (size_t r = 0; r < ranks; r++) actions += (size_t)pipeline->ranks[r].count;
    s.rank = calloc(ranks, sizeof *s.rank);
    s.there = calloc(messages, sizeof *s.there);
    if (!costs->no_spans) times->spans = calloc(2 * actions + 1, sizeof *times->spans);
    if (!s.rank || !s.there || (!costs->no_spans && !times->spans)) {
        err_set(err, ERR_MEMORY, "no memory to simulate a schedule");
    } else {
        for (size_t k = 0; k < messages; k++) s.there[k] = HUGE_VAL;
        status = run(&s, err);
    }
    if (status == 0) finish(&s);
    if (status != 0) pipeline_times_free(times);
    free(s.rank);
    free(s.there);
    return status;
}
