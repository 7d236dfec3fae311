// Event simulation of a pipeline's lists. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <stdlib.h>

struct simulation {
    const struct pipeline *p;
    const struct pipeline_costs *costs;
    struct pipeline_times *times;
    // Messages by receiving stage, direction (0 forward) and micro-batch, -1 until known.
    double *sent, *posted;
    struct pipeline_stage_costs *stages; // [stages]
    double *gathered;                    // [stages] when all weights are there
    double *begun, *ended;               // [stages] its last compute action so far
    double *now, *link, *busy;           // [ranks] clock; collectives are done; compute so far
    double *sender, *late;               // [ranks] its last send is through; reductions put off
    double *first;                       // [ranks] begin of its first compute action, -1 before
    int *next, *spans;                   // [ranks] place in the list; spans written
    struct pipeline_span *trace;         // [ranks x room]
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
    if (!s->trace || (wait && end <= begin)) return;
    s->trace[rank * s->room + s->spans[rank]++] =
        (struct pipeline_span){rank, s->next[rank], wait, begin, end};
}

// From `ready` on until `end`, of which `seconds` are work.
static void compute(struct simulation *s, int rank, double ready, double end, double seconds) {
    double begin = later(s->now[rank], ready);
    add_span(s, rank, true, s->now[rank], begin);
    add_span(s, rank, false, begin, end);
    if (s->first[rank] < 0) s->first[rank] = begin;
    s->now[rank] = end;
    s->busy[rank] += seconds;
}

static int pieces(int count) {
    return count > 1 ? count : 1;
}

static double seconds_of(const struct simulation *s, struct action a) {
    const struct pipeline_stage_costs *c = &s->stages[a.stage];
    return a.kind == ACTION_FORWARD           ? c->forward
           : a.kind == ACTION_BACKWARD_INPUT  ? c->input
           : a.kind == ACTION_BACKWARD_WEIGHT ? c->weight
                                              : c->backward;
}

// Of the message that `stage` waits for.
static double send_seconds(const struct simulation *s, int stage, bool backward) {
    return backward ? s->stages[stage + 1].send_backward : s->stages[stage - 1].send_forward;
}

// When the message that a compute action needs is there; 0: it needs none. False: not known yet.
static bool arrival(const struct simulation *s, int rank, struct action a, double *when) {
    bool backward = a.kind != ACTION_FORWARD;
    *when = 0;
    if (a.kind == ACTION_BACKWARD_WEIGHT) return true;
    if (!pipeline_remote(s->p, a.stage + (backward ? 1 : -1), rank)) return true;
    size_t k = message(s, a.stage, a.micro_batch, backward);
    if (s->sent[k] < 0 || s->posted[k] < 0) return false;
    double seconds = send_seconds(s, a.stage, backward);
    if (s->costs->serial) {
        *when = later(s->sent[k], s->now[rank]) + seconds;
        return true;
    }
    *when = s->costs->eager ? later(s->sent[k] + seconds, s->posted[k])
                            : later(s->sent[k], s->posted[k]) + seconds;
    return true;
}

static bool work(struct simulation *s, int rank, struct action a) {
    const struct pipeline_stage_costs *c = &s->stages[a.stage];
    double ready, seconds = seconds_of(s, a);
    if (!arrival(s, rank, a, &ready)) return false;
    int n = pieces(c->gather_pieces);
    ready = later(later(s->now[rank], ready), s->gathered[a.stage] - c->gather * (n - 1) / n);
    double end = later(ready + seconds, s->gathered[a.stage] + seconds / n);
    compute(s, rank, ready, end, seconds);
    s->begun[a.stage] = ready;
    s->ended[a.stage] = end;
    return true;
}

static void send(struct simulation *s, int rank, struct action a) {
    bool backward = a.kind == ACTION_SEND_BACKWARD;
    int to = a.stage + (backward ? -1 : 1);
    double begin = s->now[rank], seconds = send_seconds(s, to, backward);
    if (s->costs->occupied) begin = later(begin, s->sender[rank]);
    s->sender[rank] = begin + seconds;
    s->sent[message(s, to, a.micro_batch, backward)] = begin;
    if (!s->costs->blocking && !s->costs->serial) return;
    add_span(s, rank, true, s->now[rank], s->sender[rank]);
    s->now[rank] = s->sender[rank];
}

static void reduce(struct simulation *s, int rank, int stage) {
    const struct pipeline_stage_costs *c = &s->stages[stage];
    if (s->costs->reduce_last) {
        s->late[rank] += c->reduce + c->reduce_behind;
        return;
    }
    // One piece behind the other, each from when it is ready: the link's work before them, the
    // first piece, or the last one decides.
    int n = pieces(c->reduce_pieces);
    double length = s->ended[stage] - s->begun[stage],
           first = s->ended[stage] - length * (n - 1) / n;
    double end = later(later(s->link[rank], first) + c->reduce, s->ended[stage] + c->reduce / n);
    s->link[rank] = later(end, s->ended[stage]) + c->reduce_behind;
}

static bool perform(struct simulation *s, int rank, struct action a) {
    switch (a.kind) {
    case ACTION_SEND_FORWARD:
    case ACTION_SEND_BACKWARD:
        send(s, rank, a);
        return true;
    case ACTION_RECEIVE_FORWARD:
    case ACTION_RECEIVE_BACKWARD:
        s->posted[message(s, a.stage, a.micro_batch, a.kind == ACTION_RECEIVE_BACKWARD)] =
            s->now[rank];
        return true;
    case ACTION_GATHER:
        s->link[rank] = later(s->link[rank], s->now[rank]) + s->stages[a.stage].gather_first +
                        s->stages[a.stage].gather;
        s->gathered[a.stage] = s->link[rank];
        return true;
    case ACTION_REDUCE:
        reduce(s, rank, a.stage);
        return true;
    case ACTION_STEP: // when all ranks are there
        return false;
    default:
        return work(s, rank, a);
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
    double all = 0;
    for (int r = 0; r < ranks; r++) {
        there += at_step(s, r);
        s->link[r] = later(s->now[r], s->link[r]) + s->late[r];
        all = later(all, s->link[r]);
    }
    if (there < ranks) {
        if (pipeline_validate(s->p, err) != 0) return -1;
        return err_set(err, ERR_INTERNAL, "schedule: the simulation stands still");
    }
    for (int r = 0; r < ranks; r++) {
        double seconds = s->costs->rank_step ? s->costs->rank_step[r] : s->costs->step;
        double ready = s->costs->no_barrier ? s->link[r] : all;
        compute(s, r, ready, ready + seconds, seconds);
    }
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
        t->longest = later(t->longest, s->now[r] - s->first[r]);
        compute_seconds += s->busy[r];
        for (int k = 0; s->trace && k < s->spans[r]; k++)
            s->trace[t->span_count++] = s->trace[r * s->room + k];
    }
    t->spans = s->trace;
    if (t->total > 0) t->bubble = 1 - compute_seconds / (ranks * t->total);
    if (t->ideal > 0) t->bubble_over_ideal = (t->total - t->ideal) / t->ideal;
}

// Every stage's costs, whichever way they were given.
static void fill_costs(struct simulation *s) {
    const struct pipeline_costs *c = s->costs;
    for (int k = 0; k < s->p->stages; k++) {
        struct pipeline_stage_costs *out = &s->stages[k];
        double factor = c->stage_factor ? c->stage_factor[k] : 1;
        *out = c->stages ? c->stages[k]
                         : (struct pipeline_stage_costs){.forward = c->forward * factor,
                                                         .input = c->input * factor,
                                                         .weight = c->weight * factor,
                                                         .send_forward = c->send,
                                                         .send_backward = c->send,
                                                         .gather = c->gather,
                                                         .reduce = c->reduce};
        if (out->backward == 0) out->backward = out->input + out->weight;
    }
}

static bool open_simulation(struct simulation *s, double **reals, int **integers) {
    size_t ranks = (size_t)s->p->shape.ranks, stages = (size_t)s->p->stages;
    size_t messages = stages * 2 * (size_t)s->p->shape.micro_batches;
    for (size_t r = 0; r < ranks; r++)
        if (s->room < 2 * s->p->ranks[r].count) s->room = 2 * s->p->ranks[r].count;
    *reals = calloc(2 * messages + 3 * stages + 6 * ranks, sizeof(double));
    *integers = calloc(2 * ranks, sizeof(int));
    s->stages = calloc(stages, sizeof *s->stages);
    if (!s->costs->no_spans) {
        s->trace = calloc(ranks * (size_t)s->room, sizeof *s->trace);
        if (!s->trace) return false;
    }
    if (!*reals || !*integers || !s->stages) return false;
    s->sent = *reals;
    s->posted = s->sent + messages;
    s->gathered = s->posted + messages;
    s->begun = s->gathered + stages;
    s->ended = s->begun + stages;
    s->now = s->ended + stages;
    s->link = s->now + ranks;
    s->busy = s->link + ranks;
    s->sender = s->busy + ranks;
    s->late = s->sender + ranks;
    s->first = s->late + ranks;
    for (size_t r = 0; r < ranks; r++) s->first[r] = -1;
    s->next = *integers;
    s->spans = s->next + ranks;
    for (size_t k = 0; k < 2 * messages; k++) s->sent[k] = -1; // and posted
    fill_costs(s);
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
    else if (costs->processors > 0 && costs->processors < pipeline->shape.ranks)
        result = pipeline_simulate_shared(pipeline, costs, s.stages, times, err);
    else if ((result = run(&s, err)) == 0)
        finish(&s);
    if (times->spans != s.trace) free(s.trace);
    free(s.stages);
    free(reals);
    free(integers);
    return result;
}

void pipeline_times_free(struct pipeline_times *times) {
    free(times->spans);
    *times = (struct pipeline_times){0};
}
