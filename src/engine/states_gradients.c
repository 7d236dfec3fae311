// Where gradients are made, and when they are final: unit_gradients_begin .. end, and the step's
// end.
#include "engine/seals.h"
#include <string.h>

static bool makes_by_unit(const struct engine *e, int param) {
    return states_of(e)->shape.by_unit && !rank_state_late(state_bucket_of(e, param));
}

void unit_gradients_begin(struct engine *e, int unit) {
    struct states *s = states_of(e);
    if (!s->shape.by_unit) return;
    struct state_unit *u = &s->units[unit];
    u->place = s->next_place;
    s->next_place = (u->place + 1) % s->shape.gradient_places;
    int64_t last = -1; // what is still on its way out of this place
    for (int64_t i = s->queue_head; i < s->queue_tail; i++)
        if (s->queue[i % s->queue_room].place == u->place) last = i;
    states_force(e, last + 1, PHASE_REPLICA);
    float *place = (float *)e->single[SINGLE_UNIT_GRADIENTS] + u->place * s->shape.unit_elements;
    for (int k = 0; k < u->count; k++) {
        int i = s->unit_params[u->first + k], bucket = e->flat.bucket_of[i];
        if (!makes_by_unit(e, i)) continue;
        e->param_at[i].gradient = place + s->buckets[bucket].unit_at +
                                  (e->flat.offset[i] - e->flat.buckets[bucket].begin);
        e->param_at[i].written = false;
    }
}

// A matrix that nothing wrote to (an expert without tokens) has a gradient of zero.
static void complete(struct engine *e, int param) {
    struct engine_param *p = &e->param_at[param];
    if (p->written || rank_state_late(state_bucket_of(e, param))) return;
    p->written = true;
    memset(p->gradient, 0,
           (size_t)param_elements_padded(&e->model->params[param]) * sizeof *p->gradient);
}

// Calls for each bucket of the unit's matrices once.
static int next_bucket(const struct engine *e, int unit, int after) {
    const struct states *s = states_of(e);
    const struct state_unit *u = &s->units[unit];
    int next = -1;
    for (int k = 0; k < u->count; k++) {
        int bucket = e->flat.bucket_of[s->unit_params[u->first + k]];
        if (rank_state_late(&e->flat.buckets[bucket]) || bucket <= after) continue;
        if (next < 0 || bucket < next) next = bucket;
    }
    return next;
}

static void hand_over(struct engine *e, int unit, int bucket, bool last) {
    struct states *s = states_of(e);
    if (s->shape.every_batch) {
        states_queue(e, bucket, s->units[unit].place, last);
        return;
    }
    if (s->shape.by_unit) {
        states_partials_done(e, bucket, true);
        seals_check_bucket(e, bucket);
        states_fold_bucket(e, bucket, s->units[unit].place, !s->buckets[bucket].stored);
        seals_seal_bucket(e, bucket);
        s->buckets[bucket].stored = true;
    }
    if (last && --s->buckets[bucket].remaining == 0 && states_reduces(e, bucket))
        states_queue(e, bucket, -1, true);
}

void unit_gradients_end(struct engine *e, int unit, bool last) {
    struct states *s = states_of(e);
    const struct state_unit *u = &s->units[unit];
    bool moves = last || s->shape.by_unit;
    for (int k = 0; k < u->count && moves; k++) complete(e, s->unit_params[u->first + k]);
    seals_unit(e, unit, last);
    if (!moves) return;
    states_force(e, s->queue_tail, PHASE_REDUCE);
    states_begin_partials(e, unit);
    for (int b = next_bucket(e, unit, -1); b >= 0; b = next_bucket(e, unit, b))
        hand_over(e, unit, b, last);
    states_poll(e);
}

void states_finish_gradients(struct engine *e) {
    struct states *s = states_of(e);
    states_poll(e);
    for (int b = 0; b < e->flat.bucket_count; b++) states_partials_done(e, b, true);
    seals_finish(e);
    states_join_tied(e);
    states_sum_partial_vectors(e);
    for (int b = 0; b < e->flat.bucket_count; b++)
        if (rank_state_late(&e->flat.buckets[b])) states_queue(e, b, -1, true);
    states_force(e, s->queue_tail, PHASE_DONE);
}
