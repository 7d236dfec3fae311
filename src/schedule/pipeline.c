// Pipelines: opening, remaking, and what follows from their shape. See pipeline.h.
#include "schedule/pipeline.h"
#include "schedule/pipeline_parts.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGE_MICRO_BATCHES = 1 << 19 };

static const char *const kind_names[PIPELINE_KIND_COUNT] = {"gpipe", "1f1b", "interleaved",
                                                            "zb-h1", "zb-v", "file"};

const char *pipeline_kind_name(enum pipeline_kind kind) {
    return kind_names[kind];
}

int pipeline_parse_kind(const char *name, enum pipeline_kind *kind, struct err *err) {
    for (int k = 0; k < PIPELINE_FILE; k++)
        if (strcmp(name, kind_names[k]) == 0) {
            *kind = (enum pipeline_kind)k;
            return 0;
        }
    return err_set(err, ERR_USAGE,
                   "unknown schedule \"%.100s\", expected gpipe, 1f1b, interleaved, zb-h1 or zb-v",
                   name);
}

int pipeline_stage_rank(enum pipeline_kind kind, int ranks, int stage) {
    if (kind == PIPELINE_ZB_V && stage >= ranks) return 2 * ranks - 1 - stage;
    return stage % ranks;
}

static int own_chunks(enum pipeline_kind kind) {
    return kind == PIPELINE_INTERLEAVED || kind == PIPELINE_ZB_V ? 2 : 1;
}

static int check_shape(const struct pipeline_shape *s, struct err *err) {
    const char *name = kind_names[s->kind];
    if (s->ranks < 1 || s->micro_batches < 1 || s->chunks < 1)
        return err_set(err, ERR_USAGE,
                       "schedule %s: %d ranks, %d stages per rank, %d micro-batches: expected at "
                       "least 1 of each",
                       name, s->ranks, s->chunks, s->micro_batches);
    if (s->spare < 0)
        return err_set(err, ERR_USAGE, "schedule %s: %d spare slots, expected 0 or more", name,
                       s->spare);
    if (s->kind != PIPELINE_INTERLEAVED && s->kind != PIPELINE_FILE &&
        s->chunks != own_chunks(s->kind))
        return err_set(err, ERR_USAGE,
                       "schedule %s has %d stage%s per rank, not %d; interleaved takes any number",
                       name, own_chunks(s->kind), own_chunks(s->kind) > 1 ? "s" : "", s->chunks);
    if ((int64_t)s->ranks * s->chunks * s->micro_batches > MOST_STAGE_MICRO_BATCHES)
        return err_set(err, ERR_USAGE,
                       "schedule %s: %d ranks x %d stages x %d micro-batches are more than the %d "
                       "that one step can have",
                       name, s->ranks, s->chunks, s->micro_batches, MOST_STAGE_MICRO_BATCHES);
    return 0;
}

static int most(int a, int b) {
    return a > b ? a : b;
}

static bool open_lists(struct schedule **lists, int ranks, int capacity) {
    *lists = calloc((size_t)ranks, sizeof **lists);
    for (int r = 0; *lists && r < ranks; r++) {
        (*lists)[r].capacity = capacity;
        (*lists)[r].actions = calloc((size_t)capacity, sizeof(struct action));
        if (!(*lists)[r].actions) return false;
    }
    return *lists != NULL;
}

int pipeline_allocate(struct pipeline *p, const struct pipeline_shape *shape, struct err *err) {
    if (check_shape(shape, err) != 0) return -1;
    int stages = shape->ranks * shape->chunks, each = shape->chunks * shape->micro_batches;
    *p = (struct pipeline){
        .shape = *shape, .stages = stages, .most_micro_batches = shape->micro_batches};
    p->scratch_ints = most(pipeline_lower_scratch(stages, shape->micro_batches),
                           pipeline_zb_v_scratch(shape->ranks, shape->micro_batches));
    p->scratch_ints += 2 * stages; // needs of a remade list
    p->scratch = calloc((size_t)p->scratch_ints, sizeof(int));
    p->stage_rank = calloc(3 * (size_t)stages, sizeof(int));
    // Per stage and micro-batch three compute actions and two sends and receives.
    if (open_lists(&p->compute, shape->ranks, 3 * each) &&
        open_lists(&p->ranks, shape->ranks, 7 * each + 2 * shape->chunks + 1) && p->scratch &&
        p->stage_rank) {
        p->slots = p->stage_rank + stages;
        p->flows = p->slots + stages;
        return 0;
    }
    pipeline_close(p);
    return err_set(err, ERR_MEMORY, "no memory for a schedule of %d stages and %d micro-batches",
                   stages, shape->micro_batches);
}

static int *needs(const struct pipeline *p) {
    return p->scratch + p->scratch_ints - 2 * p->stages;
}

// Makes the lists; slots and flows grow to what they need.
static void place_all(struct pipeline *p) {
    int *slots = needs(p), *flows = slots + p->stages;
    pipeline_generate(p);
    pipeline_lower(p, slots, flows);
    for (int s = 0; s < p->stages; s++) {
        p->slots[s] = most(p->slots[s], slots[s]);
        p->flows[s] = most(p->flows[s], flows[s]);
    }
}

// Of zb-v alone fewer micro-batches may need more flows, by one or two. Beyond a few times the
// ranks the middle of the list repeats and nothing changes any more.
static void allow_fewer(struct pipeline *p) {
    int micro_batches = p->shape.micro_batches;
    for (int m = p->fewest_micro_batches; m < micro_batches && m <= 5 * p->shape.ranks; m++) {
        p->shape.micro_batches = m;
        place_all(p);
    }
    p->shape.micro_batches = micro_batches;
}

int pipeline_open(struct pipeline *pipeline, const struct pipeline_shape *shape, struct err *err) {
    return pipeline_open_for(pipeline, shape, 1, err);
}

int pipeline_open_for(struct pipeline *pipeline, const struct pipeline_shape *shape, int fewest,
                      struct err *err) {
    struct pipeline_shape s = *shape;
    if (s.chunks == 0) s.chunks = own_chunks(s.kind);
    struct pipeline p;
    if (pipeline_allocate(&p, &s, err) != 0) return -1;
    p.fewest_micro_batches = most(1, fewest);
    for (int k = 0; k < p.stages; k++) p.stage_rank[k] = pipeline_stage_rank(s.kind, s.ranks, k);
    if (s.kind == PIPELINE_ZB_V) allow_fewer(&p);
    place_all(&p);
    *pipeline = p;
    return 0;
}

int pipeline_remake(struct pipeline *p, int micro_batches, struct err *err) {
    if (p->shape.kind == PIPELINE_FILE) {
        if (micro_batches == p->shape.micro_batches) return 0;
        return err_set(err, ERR_USAGE,
                       "the schedule that was read is for %d micro-batches, a step has %d",
                       p->shape.micro_batches, micro_batches);
    }
    if (micro_batches < p->fewest_micro_batches || micro_batches > p->most_micro_batches)
        return err_set(err, ERR_INTERNAL, "schedule opened for %d to %d micro-batches, %d wanted",
                       p->fewest_micro_batches, p->most_micro_batches, micro_batches);
    p->shape.micro_batches = micro_batches;
    int *needed = needs(p);
    pipeline_generate(p);
    pipeline_lower(p, needed, needed + p->stages);
    for (int s = 0; s < p->stages; s++)
        if (needed[s] > p->slots[s] || needed[p->stages + s] > p->flows[s])
            return err_set(err, ERR_INTERNAL,
                           "schedule: stage %d needs %d slots and %d flows for %d micro-batches, "
                           "%d and %d for %d",
                           s, needed[s], needed[p->stages + s], micro_batches, p->slots[s],
                           p->flows[s], p->most_micro_batches);
    return 0;
}

static void close_lists(struct schedule *lists, int ranks) {
    for (int r = 0; lists && r < ranks; r++) free(lists[r].actions);
    free(lists);
}

void pipeline_close(struct pipeline *p) {
    close_lists(p->ranks, p->shape.ranks);
    close_lists(p->compute, p->shape.ranks);
    free(p->stage_rank);
    free(p->scratch);
    *p = (struct pipeline){0};
}

bool pipeline_ascending(const struct pipeline *p) {
    // A parameter's gradients come from whole backwards or from weight halves; those of norms and
    // the like from input halves.
    for (int r = 0; r < p->shape.ranks; r++)
        for (int s = 0; s < p->stages; s++) {
            int input = -1, weight = -1;
            for (int i = 0; i < p->compute[r].count; i++) {
                struct action a = p->compute[r].actions[i];
                if (a.stage != s || a.kind == ACTION_FORWARD) continue;
                if (action_is_first_of_backward(a.kind)) {
                    if (a.micro_batch < input) return false;
                    input = a.micro_batch;
                }
                if (action_is_last_of_backward(a.kind)) {
                    if (a.micro_batch < weight) return false;
                    weight = a.micro_batch;
                }
            }
        }
    return true;
}

int pipeline_in_flight(const struct pipeline *p, int rank) {
    int now = 0, peak = 0;
    const struct schedule *list = &p->ranks[rank];
    for (int i = 0; i < list->count; i++) {
        struct action a = list->actions[i];
        if (a.kind == ACTION_RECEIVE_FORWARD) now++;
        if (a.kind == ACTION_FORWARD) now += (a.stage == 0) + (a.target >= 0);
        if (now > peak) peak = now;
        if (action_is_last_of_backward(a.kind)) now--;
    }
    return peak;
}

double pipeline_bubble_formula(const struct pipeline_shape *s) {
    int chunks = s->chunks ? s->chunks : own_chunks(s->kind);
    const double per_micro_batch[PIPELINE_FILE] = {1, 1, chunks, 3, 6};
    if (s->kind == PIPELINE_FILE) return -1;
    return (s->ranks - 1) / (s->ranks - 1 + per_micro_batch[s->kind] * s->micro_batches);
}
