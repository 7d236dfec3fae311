// From compute actions to complete lists: messages, gathers, reductions, the step, and the places
// of activations and gradients. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <string.h>

struct lowering {
    struct pipeline *p;
    int rank, micro_batches;
    bool emit;                  // else only the places are counted
    int *slot_of, *flow_of;     // [stages x micro_batches] place, -1
    int *slot_busy, *flow_busy; // [stages x micro_batches] by place
    int *slot_peak, *flow_peak; // [stages]
    int *slot_most;             // [stages] up to which a receive may stand early
    int *received;              // [stages] gradients whose receive stands
    int *done, *gathered;       // [stages]
};

int pipeline_lower_scratch(int stages, int micro_batches) {
    return stages * (5 * micro_batches + 3);
}

static int at(const struct lowering *l, int stage, int micro_batch) {
    return stage * l->micro_batches + micro_batch;
}

// The lowest free place of a stage below `most`, or -1.
static int free_place(const struct lowering *l, const int *busy, int stage, int most) {
    for (int k = 0; k < most && k < l->micro_batches; k++)
        if (!busy[at(l, stage, k)]) return k;
    return -1;
}

static void take_slot(struct lowering *l, int stage, int micro_batch) {
    int k = free_place(l, l->slot_busy, stage, l->micro_batches);
    l->slot_of[at(l, stage, micro_batch)] = k;
    l->slot_busy[at(l, stage, k)] = 1;
    if (l->slot_peak[stage] <= k) l->slot_peak[stage] = k + 1;
}

static void take_flow(struct lowering *l, int stage, int micro_batch) {
    int k = free_place(l, l->flow_busy, stage, l->micro_batches);
    l->flow_of[at(l, stage, micro_batch)] = k;
    l->flow_busy[at(l, stage, k)] = 1;
    if (l->flow_peak[stage] <= k) l->flow_peak[stage] = k + 1;
}

static void put(struct lowering *l, enum action_kind kind, int stage, int micro_batch, int target) {
    if (!l->emit) return;
    struct schedule *list = &l->p->ranks[l->rank];
    struct action a = {kind, stage, micro_batch, -1, -1, target};
    if (micro_batch >= 0) {
        a.slot = l->slot_of[at(l, stage, micro_batch)];
        a.flow = l->flow_of[at(l, stage, micro_batch)];
    }
    list->actions[list->count++] = a;
}

static void gather_once(struct lowering *l, int stage) {
    if (!l->p->shape.gather || l->gathered[stage]) return;
    l->gathered[stage] = 1;
    put(l, ACTION_GATHER, stage, -1, -1);
}

// Whether the action waits for a message whose receive does not stand yet.
static bool lacks_input(const struct lowering *l, struct action a) {
    return a.kind == ACTION_FORWARD && pipeline_remote(l->p, a.stage - 1, l->rank) &&
           l->slot_of[at(l, a.stage, a.micro_batch)] < 0;
}

static bool lacks_gradient(const struct lowering *l, struct action a) {
    return action_is_first_of_backward(a.kind) && pipeline_remote(l->p, a.stage + 1, l->rank) &&
           !l->received[at(l, a.stage, a.micro_batch)];
}

static void receive_input(struct lowering *l, struct action a) {
    take_slot(l, a.stage, a.micro_batch);
    put(l, ACTION_RECEIVE_FORWARD, a.stage, a.micro_batch, -1);
}

static void receive_gradient(struct lowering *l, struct action a) {
    l->received[at(l, a.stage, a.micro_batch)] = 1;
    put(l, ACTION_RECEIVE_BACKWARD, a.stage, a.micro_batch, -1);
}

// What must stand before the action. Returns its target.
static int prepare(struct lowering *l, struct action a) {
    gather_once(l, a.stage);
    if (lacks_input(l, a)) receive_input(l, a);
    if (lacks_gradient(l, a)) receive_gradient(l, a);
    if (a.kind == ACTION_FORWARD) {
        if (l->slot_of[at(l, a.stage, a.micro_batch)] < 0) take_slot(l, a.stage, a.micro_batch);
        if (!pipeline_local(l->p, a.stage + 1, l->rank)) return -1;
        take_slot(l, a.stage + 1, a.micro_batch);
        return l->slot_of[at(l, a.stage + 1, a.micro_batch)];
    }
    if (!action_is_first_of_backward(a.kind)) return -1;
    take_flow(l, a.stage, a.micro_batch);
    if (!pipeline_local(l->p, a.stage - 1, l->rank)) return -1;
    return l->slot_of[at(l, a.stage - 1, a.micro_batch)];
}

// What the action behind this one waits for may begin now: an input where a slot is free, a
// gradient where the slot has its activations.
static void prepare_early(struct lowering *l, struct action now, struct action next) {
    if (!l->emit) return;
    gather_once(l, next.stage);
    if (lacks_input(l, next) &&
        free_place(l, l->slot_busy, next.stage, l->slot_most[next.stage]) >= 0)
        receive_input(l, next);
    bool own_forward = now.stage == next.stage && now.micro_batch == next.micro_batch;
    if (lacks_gradient(l, next) && !own_forward) receive_gradient(l, next);
}

static void finish(struct lowering *l, struct action a) {
    if (a.kind == ACTION_FORWARD && pipeline_remote(l->p, a.stage + 1, l->rank))
        put(l, ACTION_SEND_FORWARD, a.stage, a.micro_batch, -1);
    if (action_is_first_of_backward(a.kind) && pipeline_remote(l->p, a.stage - 1, l->rank))
        put(l, ACTION_SEND_BACKWARD, a.stage, a.micro_batch, -1);
    if (!action_is_last_of_backward(a.kind)) return;
    l->slot_busy[at(l, a.stage, l->slot_of[at(l, a.stage, a.micro_batch)])] = 0;
    l->flow_busy[at(l, a.stage, l->flow_of[at(l, a.stage, a.micro_batch)])] = 0;
    if (++l->done[a.stage] == l->micro_batches && l->p->shape.reduce)
        put(l, ACTION_REDUCE, a.stage, -1, -1);
}

static void lower_rank(struct lowering *l, int rank) {
    const struct schedule *compute = &l->p->compute[rank];
    l->rank = rank;
    l->p->ranks[rank].count = 0;
    for (int i = 0; i < compute->count; i++) {
        struct action a = compute->actions[i];
        int target = prepare(l, a);
        if (i + 1 < compute->count) prepare_early(l, a, compute->actions[i + 1]);
        put(l, a.kind, a.stage, a.micro_batch, target);
        finish(l, a);
    }
    int first = 0;
    while (first < l->p->stages - 1 && l->p->stage_rank[first] != rank) first++;
    put(l, ACTION_STEP, first, -1, -1);
}

static void lower_all(struct lowering *l, bool emit) {
    int stages = l->p->stages, n = stages * l->micro_batches;
    l->emit = emit;
    memset(l->slot_of, -1, 2 * (size_t)n * sizeof(int));                         // and flow_of
    memset(l->slot_busy, 0, (3 * (size_t)n + 2 * (size_t)stages) * sizeof(int)); // to gathered
    memset(l->slot_peak, 0, (size_t)stages * sizeof(int));
    memset(l->flow_peak, 0, (size_t)stages * sizeof(int));
    for (int r = 0; r < l->p->shape.ranks; r++) lower_rank(l, r);
}

void pipeline_lower(struct pipeline *p, int *needed, int *needed_flows) {
    int stages = p->stages, n = stages * p->shape.micro_batches;
    struct lowering l = {.p = p, .micro_batches = p->shape.micro_batches};
    l.slot_of = p->scratch;
    l.flow_of = l.slot_of + n;
    l.slot_busy = l.flow_of + n;
    l.flow_busy = l.slot_busy + n;
    l.received = l.flow_busy + n;
    l.done = l.received + n;
    l.gathered = l.done + stages;
    l.slot_most = l.gathered + stages;
    l.slot_peak = needed;
    l.flow_peak = needed_flows;
    lower_all(&l, false);
    for (int s = 0; s < stages; s++) l.slot_most[s] = needed[s] + p->shape.spare;
    lower_all(&l, true);
}
