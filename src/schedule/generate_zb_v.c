// Compute actions of zb-v: zero bubble with two stages per rank in the shape of a V (Qi et al.
// 2023), by simulation. In steps of one action each rank takes what is ready: an input half before
// a forward, the later stage's forward before the earlier one's, and a weight half where nothing
// else can begin. Two tie rules are tried; the quicker one stays.
//
// Memory. Stage r holds at most 2p - 1 - r micro-batches, stage 2p - 1 - r at most r + 1: together
// 2p half-depth stages on every rank, which is what rank 0 holds under 1F1B. As stages take
// micro-batches in order and each may hold at least one, the oldest one can always go on.
#include "schedule/pipeline_parts.h"
#include <string.h>

struct state {
    struct pipeline *p;
    int micro_batches, stages;
    int *forward_end, *input_end;                   // [stages x micro_batches]
    int *forwards, *inputs, *weights, *held, *most; // [stages]
    int *free_from, *queued, *served;               // [ranks]; of the weight halves that wait
    int *queue;                                     // [ranks x 2 micro_batches] stages
};

int pipeline_zb_v_scratch(int ranks, int micro_batches) {
    return ranks * (2 * 2 * micro_batches + 2 * 5 + 3 + 2 * micro_batches);
}

static struct state open_state(struct pipeline *p) {
    int ranks = p->shape.ranks, m = p->shape.micro_batches;
    memset(p->scratch, 0, (size_t)pipeline_zb_v_scratch(ranks, m) * sizeof(int));
    struct state s = {.p = p, .micro_batches = m, .stages = 2 * ranks, .forward_end = p->scratch};
    s.input_end = s.forward_end + s.stages * m;
    s.forwards = s.input_end + s.stages * m;
    s.inputs = s.forwards + s.stages;
    s.weights = s.inputs + s.stages;
    s.held = s.weights + s.stages;
    s.most = s.held + s.stages;
    s.free_from = s.most + s.stages;
    s.queued = s.free_from + ranks;
    s.served = s.queued + ranks;
    s.queue = s.served + ranks;
    for (int r = 0; r < ranks; r++) {
        s.most[r] = 2 * ranks - 1 - r;
        s.most[2 * ranks - 1 - r] = r + 1;
        p->compute[r].count = 0;
    }
    return s;
}

// Ends are 0 until known and at least 1 then.
static bool is_over(int end, int now) {
    return end > 0 && end <= now;
}

static bool input_ready(const struct state *s, int stage, int now) {
    int m = s->inputs[stage];
    if (m >= s->forwards[stage] || !is_over(s->forward_end[stage * s->micro_batches + m], now))
        return false;
    return stage == s->stages - 1 || is_over(s->input_end[(stage + 1) * s->micro_batches + m], now);
}

static bool forward_ready(const struct state *s, int stage, int now) {
    int m = s->forwards[stage], turn = s->p->shape.ranks - 1;
    if (m >= s->micro_batches) return false;
    if (stage > 0 && !is_over(s->forward_end[(stage - 1) * s->micro_batches + m], now))
        return false;
    // Behind the turning point the place was taken by the stage before, on the same rank.
    if (stage == turn + 1) return true;
    return s->held[stage] < s->most[stage] &&
           (stage != turn || s->held[turn + 1] < s->most[turn + 1]);
}

static void do_forward(struct state *s, int rank, int stage, int now) {
    int m = s->forwards[stage]++, turn = s->p->shape.ranks - 1;
    pipeline_put(&s->p->compute[rank], ACTION_FORWARD, stage, m);
    s->forward_end[stage * s->micro_batches + m] = now + 1;
    if (stage != turn + 1) s->held[stage]++;
    if (stage == turn) s->held[turn + 1]++;
}

static void do_input(struct state *s, int rank, int stage, int now) {
    int m = s->inputs[stage]++;
    pipeline_put(&s->p->compute[rank], ACTION_BACKWARD_INPUT, stage, m);
    s->input_end[stage * s->micro_batches + m] = now + 1;
    s->queue[rank * 2 * s->micro_batches + s->queued[rank]++] = stage;
}

static void do_weight(struct state *s, int rank) {
    int stage = s->queue[rank * 2 * s->micro_batches + s->served[rank]++];
    pipeline_put(&s->p->compute[rank], ACTION_BACKWARD_WEIGHT, stage, s->weights[stage]++);
    s->held[stage]--;
}

// Whether the rank found something to do.
static bool take(struct state *s, int rank, int now, bool early_first) {
    int early = rank, late = s->stages - 1 - rank;
    int first = early_first ? early : late, second = early_first ? late : early;
    if (input_ready(s, first, now))
        do_input(s, rank, first, now);
    else if (input_ready(s, second, now))
        do_input(s, rank, second, now);
    else if (forward_ready(s, late, now))
        do_forward(s, rank, late, now);
    else if (forward_ready(s, early, now))
        do_forward(s, rank, early, now);
    else if (s->served[rank] < s->queued[rank])
        do_weight(s, rank);
    else
        return false;
    return true;
}

// Steps until all is done.
static int run(struct pipeline *p, bool early_first) {
    struct state s = open_state(p);
    int left = 3 * s.stages * s.micro_batches, now = 0;
    for (; left > 0; now++)
        for (int r = 0; r < p->shape.ranks; r++) left -= take(&s, r, now, early_first);
    return now;
}

void pipeline_generate_zb_v(struct pipeline *p) {
    int late = run(p, false), early = run(p, true);
    if (late <= early) run(p, false);
}
