// Event simulation of a pipeline's lists. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <stdlib.h>

struct simulation {
    const struct pipeline *p;
    const struct pipeline_costs *costs;
    struct pipeline_times *times;
    // Messages by receiving stage, direction (0 forward) and micro-batch, -1 until known.
    double *sent, *posted;
    double *gathered;            // [stages] weights are there
    double *now, *link, *busy;   // [ranks] clock; collectives are done; compute so far
    int *next, *spans;           // [ranks] place in the list; spans written
    struct pipeline_span *trace; // [ranks x room]
    int room;
};

static size_t message(const struct simulation *s, int stage, int micro_batch, bool backward) {
    size_t m = (size_t)s->p->shape.micro_batches;
    return ((size_t)stage * 2 + backward) * m + (size_t)micro_batch;
}

static double later(double a, double b) {
    return a > b ? a : b;
}

static void add_span(struct simulation *s, int rank, bool wait, double begin, double end) {
    if (wait && end <= begin) return;
    s->trace[rank * s->room + s->spans[rank]++] =
        (struct pipeline_span){rank, s->next[rank], wait, begin, end};
}

// From `ready` on, for `seconds`.
static void compute(struct simulation *s, int rank, double ready, double seconds) {
    double begin = later(s->now[rank], ready);
    add_span(s, rank, true, s->now[rank], begin);
    add_span(s, rank, false, begin, begin + seconds);
    s->now[rank] = begin + seconds;
    s->busy[rank] += seconds;
}

static double seconds_of(const struct simulation *s, struct action a) {
    const struct pipeline_costs *c = s->costs;
    double seconds = a.kind == ACTION_FORWARD           ? c->forward
                     : a.kind == ACTION_BACKWARD_INPUT  ? c->input
                     : a.kind == ACTION_BACKWARD_WEIGHT ? c->weight
                                                        : c->input + c->weight;
    return c->stage_factor ? seconds * c->stage_factor[a.stage] : seconds;
}

// When the message that a compute action needs is there; 0: it needs none. False: not known yet.
static bool arrival(const struct simulation *s, int rank, struct action a, double *when) {
    bool backward = a.kind != ACTION_FORWARD;
    *when = 0;
    if (a.kind == ACTION_BACKWARD_WEIGHT) return true;
    if (!pipeline_remote(s->p, a.stage + (backward ? 1 : -1), rank)) return true;
    size_t k = message(s, a.stage, a.micro_batch, backward);
    if (s->sent[k] < 0 || s->posted[k] < 0) return false;
    *when = s->costs->eager ? later(s->sent[k] + s->costs->send, s->posted[k])
                            : later(s->sent[k], s->posted[k]) + s->costs->send;
    return true;
}

static bool perform(struct simulation *s, int rank, struct action a) {
    double when;
    switch (a.kind) {
    case ACTION_SEND_FORWARD:
    case ACTION_SEND_BACKWARD: {
        bool backward = a.kind == ACTION_SEND_BACKWARD;
        s->sent[message(s, a.stage + (backward ? -1 : 1), a.micro_batch, backward)] = s->now[rank];
        return true;
    }
    case ACTION_RECEIVE_FORWARD:
    case ACTION_RECEIVE_BACKWARD:
        s->posted[message(s, a.stage, a.micro_batch, a.kind == ACTION_RECEIVE_BACKWARD)] =
            s->now[rank];
        return true;
    case ACTION_GATHER:
        s->link[rank] = later(s->link[rank], s->now[rank]) + s->costs->gather;
        s->gathered[a.stage] = s->link[rank];
        return true;
    case ACTION_REDUCE:
        s->link[rank] = later(s->link[rank], s->now[rank]) + s->costs->reduce;
        return true;
    case ACTION_STEP: // when all ranks are there
        return false;
    default:
        if (!arrival(s, rank, a, &when)) return false;
        compute(s, rank, later(when, s->gathered[a.stage]), seconds_of(s, a));
        return true;
    }
}

static bool at_step(const struct simulation *s, int rank) {
    return s->next[rank] < s->p->ranks[rank].count &&
           s->p->ranks[rank].actions[s->next[rank]].kind == ACTION_STEP;
}

static int run(struct simulation *s, struct err *err) {
    int ranks = s->p->shape.ranks, there = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < ranks; r++)
            while (s->next[r] < s->p->ranks[r].count &&
                   perform(s, r, s->p->ranks[r].actions[s->next[r]])) {
                s->next[r]++;
                moved = true;
            }
    }
    double ready = 0;
    for (int r = 0; r < ranks; r++) {
        there += at_step(s, r);
        ready = later(ready, later(s->now[r], s->link[r]));
    }
    if (there < ranks) {
        if (pipeline_validate(s->p, err) != 0) return -1;
        return err_set(err, ERR_INTERNAL, "schedule: the simulation stands still");
    }
    for (int r = 0; r < ranks; r++) compute(s, r, ready, s->costs->step);
    return 0;
}

// Spans of all ranks one behind the other, and the sums.
static void finish(struct simulation *s) {
    struct pipeline_times *t = s->times;
    int ranks = s->p->shape.ranks;
    double compute_seconds = 0;
    for (int r = 0; r < ranks; r++) {
        t->total = later(t->total, s->now[r]);
        t->ideal = later(t->ideal, s->busy[r]);
        compute_seconds += s->busy[r];
        for (int k = 0; k < s->spans[r]; k++) s->trace[t->span_count++] = s->trace[r * s->room + k];
    }
    t->spans = s->trace;
    if (t->total > 0) t->bubble = 1 - compute_seconds / (ranks * t->total);
    if (t->ideal > 0) t->bubble_over_ideal = (t->total - t->ideal) / t->ideal;
}

static bool open_simulation(struct simulation *s, double **reals, int **integers) {
    size_t ranks = (size_t)s->p->shape.ranks, stages = (size_t)s->p->stages;
    size_t messages = stages * 2 * (size_t)s->p->shape.micro_batches;
    for (size_t r = 0; r < ranks; r++)
        if (s->room < 2 * s->p->ranks[r].count) s->room = 2 * s->p->ranks[r].count;
    *reals = calloc(2 * messages + stages + 3 * ranks, sizeof(double));
    *integers = calloc(2 * ranks, sizeof(int));
    s->trace = calloc(ranks * (size_t)s->room, sizeof *s->trace);
    if (!*reals || !*integers || !s->trace) return false;
    s->sent = *reals;
    s->posted = s->sent + messages;
    s->gathered = s->posted + messages;
    s->now = s->gathered + stages;
    s->link = s->now + ranks;
    s->busy = s->link + ranks;
    s->next = *integers;
    s->spans = s->next + ranks;
    for (size_t k = 0; k < 2 * messages; k++) s->sent[k] = -1; // and posted
    return true;
}

int pipeline_simulate(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                      struct pipeline_times *times, struct err *err) {
    *times = (struct pipeline_times){0};
    struct simulation s = {.p = pipeline, .costs = costs, .times = times, .room = 2};
    double *reals;
    int *integers, result = -1;
    if (!open_simulation(&s, &reals, &integers))
        err_set(err, ERR_MEMORY, "no memory to simulate a schedule");
    else
        result = run(&s, err);
    if (result == 0) finish(&s);
    if (result != 0) free(s.trace);
    free(reals);
    free(integers);
    return result;
}

void pipeline_times_free(struct pipeline_times *times) {
    free(times->spans);
    *times = (struct pipeline_times){0};
}
