// Checks of pipelines. See pipeline.h.
#include "schedule/pipeline_parts.h"
#include <stdio.h>
#include <stdlib.h>

// What has happened to one micro-batch of one stage.
enum {
    DONE_FORWARD = 1,
    DONE_INPUT = 2,
    DONE_WEIGHT = 4,
    SENT_FORWARD = 8,
    SENT_BACKWARD = 16,
    RECEIVED_FORWARD = 32,
    RECEIVED_BACKWARD = 64
};

static int fault(struct err *err, int rank, int index, struct action a, const char *what) {
    char name[32];
    schedule_action_text(a, name);
    return err_set(err, ERR_DATA, "schedule: rank %d, action %d, %s: %s", rank, index, name, what);
}

// Marks a compute action. Returns what is wrong with it, or NULL.
static const char *advance(unsigned char *flags, enum action_kind kind) {
    bool forward = *flags & DONE_FORWARD, input = *flags & DONE_INPUT,
         weight = *flags & DONE_WEIGHT;
    if (kind == ACTION_FORWARD) {
        *flags |= DONE_FORWARD;
        return forward ? "a second forward" : NULL;
    }
    if (!forward) return "its forward must come before";
    if (kind == ACTION_BACKWARD_WEIGHT) {
        *flags |= DONE_WEIGHT;
        if (weight) return "a second weight half";
        return input ? NULL : "its input half must come before";
    }
    *flags |= DONE_INPUT | (kind == ACTION_BACKWARD ? DONE_WEIGHT : 0);
    return input ? "a second backward" : NULL;
}

static const char *missing(unsigned char flags) {
    if (!(flags & DONE_FORWARD)) return "forward";
    if (!(flags & DONE_INPUT)) return "backward";
    return flags & DONE_WEIGHT ? NULL : "weight half";
}

static int check_action(const struct pipeline *p, int rank, int index, struct action a,
                        struct err *err) {
    if (a.stage < 0 || a.stage >= p->stages) return fault(err, rank, index, a, "no such stage");
    if (p->stage_rank[a.stage] != rank)
        return fault(err, rank, index, a, "this rank does not hold the stage");
    bool whole = a.kind == ACTION_STEP || a.kind == ACTION_GATHER || a.kind == ACTION_REDUCE;
    if (!whole && (a.micro_batch < 0 || a.micro_batch >= p->shape.micro_batches))
        return fault(err, rank, index, a, "no such micro-batch in the step");
    return 0;
}

// What a neighbour stage on the same rank hands over must be made before.
static const char *local_fault(const struct pipeline *p, int rank, struct action a,
                               const unsigned char *flags) {
    int m = p->shape.micro_batches;
    if (a.kind == ACTION_FORWARD && pipeline_local(p, a.stage - 1, rank) &&
        !(flags[(a.stage - 1) * m + a.micro_batch] & DONE_FORWARD))
        return "the forward of the stage before, on the same rank, must come before";
    if (action_is_first_of_backward(a.kind) && pipeline_local(p, a.stage + 1, rank) &&
        !(flags[(a.stage + 1) * m + a.micro_batch] & DONE_INPUT))
        return "the backward of the stage behind, on the same rank, must come before";
    return NULL;
}

static int check_compute(const struct pipeline *p, const struct schedule *lists,
                         unsigned char *flags, struct err *err) {
    int m = p->shape.micro_batches;
    for (int r = 0; r < p->shape.ranks; r++)
        for (int i = 0; i < lists[r].count; i++) {
            struct action a = lists[r].actions[i];
            if (check_action(p, r, i, a, err) != 0) return -1;
            if (!action_is_compute(a.kind)) continue;
            const char *what = advance(&flags[a.stage * m + a.micro_batch], a.kind);
            if (!what) what = local_fault(p, r, a, flags);
            if (what) return fault(err, r, i, a, what);
        }
    for (int k = 0; k < p->stages * m; k++) {
        const char *what = missing(flags[k]);
        if (what)
            return err_set(err, ERR_DATA,
                           "schedule: rank %d: the %s of micro-batch %d of stage %d is missing",
                           p->stage_rank[k / m], what, k % m, k / m);
    }
    return 0;
}

static unsigned char *open_flags(const struct pipeline *p, struct err *err) {
    size_t count = (size_t)p->stages * (size_t)p->shape.micro_batches;
    unsigned char *flags = calloc(count, 1);
    if (!flags) err_set(err, ERR_MEMORY, "no memory to check a schedule");
    return flags;
}

int pipeline_check_compute(const struct pipeline *p, struct err *err) {
    unsigned char *flags = open_flags(p, err);
    int result = flags ? check_compute(p, p->compute, flags, err) : -1;
    free(flags);
    return result;
}

// ---- places: who holds which, [stages x micro_batches] by place; 0: free, else micro-batch + 1

static const char *take(int *place, int index, int most, int micro_batch) {
    if (index < 0 || index >= most) return "its place is beyond the stage's bound";
    if (place[index]) return "its place is taken";
    place[index] = micro_batch + 1;
    return NULL;
}

static const char *holds(const int *place, int index, int most, int micro_batch) {
    if (index >= 0 && index < most && place[index] == micro_batch + 1) return NULL;
    return "its place is not the one that was taken";
}

struct places {
    const struct pipeline *p;
    int *slot, *flow;
};

static const char *place_slot(struct places *q, int stage, int index, int micro_batch) {
    return take(q->slot + stage * q->p->shape.micro_batches, index, q->p->slots[stage],
                micro_batch);
}

static const char *place(struct places *q, int rank, struct action a) {
    const struct pipeline *p = q->p;
    int m = a.micro_batch, base = a.stage * p->shape.micro_batches;
    const char *what = NULL;
    if (a.kind == ACTION_RECEIVE_FORWARD || (a.kind == ACTION_FORWARD && a.stage == 0))
        what = place_slot(q, a.stage, a.slot, m);
    if (action_is_first_of_backward(a.kind))
        what = take(q->flow + base, a.flow, p->flows[a.stage], m);
    if (!what && a.kind == ACTION_FORWARD && pipeline_local(p, a.stage + 1, rank))
        what = place_slot(q, a.stage + 1, a.target, m);
    if (!what && action_is_first_of_backward(a.kind) && pipeline_local(p, a.stage - 1, rank))
        what = holds(q->slot + base - p->shape.micro_batches, a.target, p->slots[a.stage - 1], m);
    if (!what && a.kind == ACTION_RECEIVE_BACKWARD)
        what = holds(q->slot + base, a.slot, p->slots[a.stage], m);
    if (what || !action_is_compute(a.kind)) return what;
    what = holds(q->slot + base, a.slot, p->slots[a.stage], m);
    if (what || a.kind == ACTION_FORWARD) return what;
    what = holds(q->flow + base, a.flow, p->flows[a.stage], m);
    if (!what && action_is_last_of_backward(a.kind))
        q->slot[base + a.slot] = q->flow[base + a.flow] = 0;
    return what;
}

static int check_places(const struct pipeline *p, struct err *err) {
    size_t count = (size_t)p->stages * (size_t)p->shape.micro_batches;
    int *room = calloc(2 * count, sizeof(int));
    if (!room) return err_set(err, ERR_MEMORY, "no memory to check a schedule");
    struct places q = {p, room, room + count};
    int result = 0;
    for (int r = 0; r < p->shape.ranks && result == 0; r++)
        for (int i = 0; i < p->ranks[r].count && result == 0; i++) {
            const char *what = place(&q, r, p->ranks[r].actions[i]);
            if (what) result = fault(err, r, i, p->ranks[r].actions[i], what);
        }
    free(room);
    return result;
}

// ---- the step, gathers and reductions of each rank

static const char *ends_fault(const struct schedule *list, int i, int micro_batches) {
    struct action a = list->actions[i];
    int before = 0, behind = 0, same = 0;
    for (int k = 0; k < list->count; k++) {
        struct action b = list->actions[k];
        same += b.kind == a.kind && (a.kind == ACTION_STEP || b.stage == a.stage);
        if (!action_is_compute(b.kind) || b.stage != a.stage) continue;
        if (k < i) before += action_is_last_of_backward(b.kind) || a.kind == ACTION_GATHER;
        if (k > i) behind++;
    }
    if (same > 1) return "a second one";
    if (a.kind == ACTION_STEP) return i == list->count - 1 ? NULL : "is not the last action";
    if (a.kind == ACTION_GATHER) return before ? "stands behind the stage's first action" : NULL;
    return before == micro_batches && !behind ? NULL : "stands before the stage's last backward";
}

static int check_ends(const struct pipeline *p, struct err *err) {
    for (int r = 0; r < p->shape.ranks; r++) {
        const struct schedule *list = &p->ranks[r];
        int steps = 0, gathers = 0, reduces = 0;
        for (int i = 0; i < list->count; i++) {
            enum action_kind kind = list->actions[i].kind;
            steps += kind == ACTION_STEP;
            gathers += kind == ACTION_GATHER;
            reduces += kind == ACTION_REDUCE;
            if (kind != ACTION_STEP && kind != ACTION_GATHER && kind != ACTION_REDUCE) continue;
            const char *what = ends_fault(list, i, p->shape.micro_batches);
            if (what) return fault(err, r, i, list->actions[i], what);
        }
        int held = p->stages / p->shape.ranks;
        if (steps != 1) return err_set(err, ERR_DATA, "schedule: rank %d has no step", r);
        if (gathers != (p->shape.gather ? held : 0) || reduces != (p->shape.reduce ? held : 0))
            return err_set(err, ERR_DATA,
                           "schedule: rank %d has %d gathers and %d reductions for %d stages", r,
                           gathers, reduces, held);
    }
    return 0;
}

// ---- messages: the lists are walked as the ranks would, until all are through or none can go on

struct walk {
    const struct pipeline *p;
    unsigned char *flags;
    int *next; // [ranks]
};

static unsigned char *flags_of(struct walk *w, int stage, int micro_batch) {
    return &w->flags[stage * w->p->shape.micro_batches + micro_batch];
}

// The stage and flag that the action waits for: of another rank's send, or of this rank's work for
// its neighbour stage. False: none.
static bool waits_for(const struct walk *w, int rank, struct action a, int *stage, int *flag) {
    bool forward = a.kind == ACTION_FORWARD;
    if (!forward && !action_is_first_of_backward(a.kind)) return false;
    *stage = a.stage + (forward ? -1 : 1);
    if (*stage < 0 || *stage >= w->p->stages) return false;
    if (pipeline_local(w->p, *stage, rank))
        *flag = forward ? DONE_FORWARD : DONE_INPUT;
    else
        *flag = forward ? SENT_FORWARD : SENT_BACKWARD;
    return true;
}

// Sends and receives: what must be true of this rank, and that each occurs once.
static const char *exchange(struct walk *w, struct action a) {
    unsigned char *own = flags_of(w, a.stage, a.micro_batch);
    static const struct {
        enum action_kind kind;
        int before, sets;
    } rules[] = {{ACTION_SEND_FORWARD, DONE_FORWARD, SENT_FORWARD},
                 {ACTION_SEND_BACKWARD, DONE_INPUT, SENT_BACKWARD},
                 {ACTION_RECEIVE_FORWARD, 0, RECEIVED_FORWARD},
                 {ACTION_RECEIVE_BACKWARD, DONE_FORWARD, RECEIVED_BACKWARD}};
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++) {
        if (a.kind != rules[k].kind) continue;
        if ((*own & rules[k].before) != rules[k].before)
            return "its own forward or backward must come before";
        if (*own & rules[k].sets) return "a second one";
        bool backward = a.kind == ACTION_SEND_BACKWARD || a.kind == ACTION_RECEIVE_BACKWARD;
        bool receives = a.kind == ACTION_RECEIVE_FORWARD || a.kind == ACTION_RECEIVE_BACKWARD;
        int other = a.stage + (backward == receives ? 1 : -1);
        if (!pipeline_remote(w->p, other, w->p->stage_rank[a.stage]))
            return "there is no other rank for this message";
        *own |= (unsigned char)rules[k].sets;
    }
    return NULL;
}

// 1: done, 0: must wait, -1: wrong.
static int try_action(struct walk *w, int rank, struct action a, const char **what) {
    int stage, flag;
    if (waits_for(w, rank, a, &stage, &flag)) {
        if (pipeline_remote(w->p, stage, rank)) {
            int received = a.kind == ACTION_FORWARD ? RECEIVED_FORWARD : RECEIVED_BACKWARD;
            *what = "its receive must come before";
            if (!(*flags_of(w, a.stage, a.micro_batch) & received)) return -1;
        }
        if (!(*flags_of(w, stage, a.micro_batch) & flag)) return 0;
    }
    if (action_is_compute(a.kind))
        *what = advance(flags_of(w, a.stage, a.micro_batch), a.kind);
    else
        *what = a.micro_batch >= 0 ? exchange(w, a) : NULL;
    return *what ? -1 : 1;
}

static int deadlock(struct walk *w, int rank, struct err *err) {
    struct action a = w->p->ranks[rank].actions[w->next[rank]];
    int stage = 0, flag = 0;
    waits_for(w, rank, a, &stage, &flag);
    enum action_kind kind = a.kind == ACTION_FORWARD ? ACTION_FORWARD : ACTION_BACKWARD;
    char what[160], name[32];
    schedule_action_text((struct action){kind, stage, a.micro_batch, 0, 0, 0}, name);
    snprintf(what, sizeof what, "deadlock: waits for %s of rank %d, which never comes", name,
             w->p->stage_rank[stage]);
    return fault(err, rank, w->next[rank], a, what);
}

static int walk_all(struct walk *w, struct err *err) {
    const struct pipeline *p = w->p;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < p->shape.ranks; r++)
            for (; w->next[r] < p->ranks[r].count; w->next[r]++, moved = true) {
                struct action a = p->ranks[r].actions[w->next[r]];
                const char *what = NULL;
                int done = try_action(w, r, a, &what);
                if (done < 0) return fault(err, r, w->next[r], a, what);
                if (done == 0) break;
            }
    }
    for (int r = 0; r < p->shape.ranks; r++)
        if (w->next[r] < p->ranks[r].count) return deadlock(w, r, err);
    return 0;
}

static int check_messages(const struct pipeline *p, struct err *err) {
    struct walk w = {p, open_flags(p, err), calloc((size_t)p->shape.ranks, sizeof(int))};
    int result = -1;
    if (w.flags && w.next)
        result = walk_all(&w, err);
    else
        err_set(err, ERR_MEMORY, "no memory to check a schedule");
    free(w.flags);
    free(w.next);
    return result;
}

int pipeline_validate(const struct pipeline *p, struct err *err) {
    unsigned char *flags = open_flags(p, err);
    if (!flags) return -1;
    int result = check_compute(p, p->ranks, flags, err);
    free(flags);
    if (result == 0) result = check_ends(p, err);
    if (result == 0) result = check_messages(p, err);
    return result == 0 ? check_places(p, err) : -1;
}
