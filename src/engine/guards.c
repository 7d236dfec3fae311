// What guards.h gives to others: findings, figures, places of elements, faults on purpose.
#include "engine/guards.h"
#include "engine/seals.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *engine_found_name(enum engine_found kind) {
    static const char *const names[FOUND_KINDS] = {"master weight",  "optimizer moment",
                                                   "working weight", "packed weight",
                                                   "gradient",       "matrix product"};
    return (unsigned)kind < FOUND_KINDS ? names[kind] : "unknown";
}

int engine_findings(const struct engine *engine, struct engine_finding *out, int most) {
    const struct seals *s = engine->seals;
    int count = 0;
    for (int kind = 0; kind < FOUND_KINDS; kind++)
        for (int i = 0; i < s->found_count; i++) {
            if ((int)s->found[i].kind != kind) continue;
            if (count < most) out[count] = s->found[i];
            count++;
        }
    return count;
}

double engine_guard_seconds(const struct engine *engine) {
    return engine->seals->seconds;
}

uint64_t engine_gradient_digest(const struct engine *engine) {
    return engine->seals->digest;
}

// ---- places -------------------------------------------------------------------------------------

static float *moment_of(const struct engine *e, int param, enum rank_single which) {
    return (float *)e->single[which] + state_at(e, param, state_sharded(e));
}

// Working weights: all that the rank holds at rest, with ZeRO 3 its shards.
static int64_t elements_of(const struct engine *e, enum engine_target target, int param) {
    if (target == TARGET_WEIGHT && states_of(e)->shape.zero < 3)
        return param_elements_padded(&e->model->params[param]);
    return states_of(e)->pieces[param].count;
}

static void *memory_of(const struct engine *e, enum engine_target target, int param) {
    const struct rank_state *r = &states_of(e)->shape;
    switch (target) {
    case TARGET_WEIGHT:
        if (r->zero == 3)
            return (char *)e->single[SINGLE_WEIGHTS] +
                   (size_t)state_at(e, param, true) * dtype_bytes(r->stored);
        return (char *)e->single[SINGLE_WEIGHTS] +
               (size_t)e->flat.offset[param] * dtype_bytes(r->stored);
    case TARGET_MASTER:
        return state_master(e, param);
    case TARGET_MOMENT1:
        return moment_of(e, param, SINGLE_MOMENT1);
    case TARGET_MOMENT2:
        return moment_of(e, param, SINGLE_MOMENT2);
    }
    return NULL;
}

void *engine_element(struct engine *engine, enum engine_target target, uint64_t element,
                     int *element_bytes, char parameter[128]) {
    struct engine *e = engine;
    int params = e->model->param_count;
    uint64_t total = 0;
    bool moments = target == TARGET_MOMENT1 || target == TARGET_MOMENT2;
    if (moments && !e->options.train) return NULL;
    for (int i = 0; i < params; i++) total += (uint64_t)elements_of(e, target, i);
    if (total == 0) return NULL;
    states_settle(e); // nothing is on its way into it
    element %= total;
    int i = 0;
    for (; element >= (uint64_t)elements_of(e, target, i); i++)
        element -= (uint64_t)elements_of(e, target, i);
    size_t bytes = target == TARGET_WEIGHT ? dtype_bytes(states_of(e)->shape.stored) : 4;
    *element_bytes = (int)bytes;
    snprintf(parameter, 128, "%s", e->whole->params[e->local.slices[i].whole].name);
    return (char *)memory_of(e, target, i) + element * bytes;
}

// ---- faults on purpose --------------------------------------------------------------------------

void engine_inject(struct engine *engine, const struct engine_fault *fault) {
    engine->seals->fault = *fault;
}

static bool takes(struct engine *e, int kind, struct engine_fault *out) {
    struct seals *s = e->seals;
    if ((int)s->fault.kind != kind) return false;
    *out = s->fault;
    s->fault.kind = ENGINE_FAULT_NONE;
    return true;
}

void seals_flip_word(void *word, int bytes, int bit) {
    if (bytes == 4) {
        uint32_t w;
        memcpy(&w, word, sizeof w);
        w ^= UINT32_C(1) << (bit & 31);
        memcpy(word, &w, sizeof w);
        return;
    }
    uint16_t h; // a bit of the FP32 value that BF16 has, too
    memcpy(&h, word, sizeof h);
    h ^= (uint16_t)(1u << (bit >= 16 ? bit - 16 : bit & 15));
    memcpy(word, &h, sizeof h);
}

// Of a gradient that has been accumulated and not been used.
static bool rests(const struct engine *e, int param, int64_t *count, size_t *bytes, char **data) {
    const struct engine_param *p = &e->param_at[param];
    bool made = p->sealed == SEAL_MADE;
    if (e->seals->gradients && p->sealed == SEAL_NONE) return false;
    *count =
        made ? param_elements_padded(&e->model->params[param]) : states_of(e)->pieces[param].count;
    *bytes = made ? sizeof(float) : dtype_bytes(states_of(e)->shape.accumulate);
    *data = made ? (char *)p->gradient : state_gradient(e, param);
    return *count > 0;
}

static bool flip_gradient(struct engine *e, const struct engine_fault *fault) {
    int64_t count, total = 0;
    size_t bytes;
    char *data;
    for (int i = 0; i < e->model->param_count; i++)
        if (rests(e, i, &count, &bytes, &data)) total += count;
    if (total == 0) return false;
    int64_t element = (int64_t)(fault->element % (uint64_t)total);
    for (int i = 0; i < e->model->param_count; i++) {
        if (!rests(e, i, &count, &bytes, &data)) continue;
        if (element < count) {
            seals_flip_word(data + (size_t)element * bytes, (int)bytes, fault->bit);
            return true;
        }
        element -= count;
    }
    return false;
}

// Odd elements: as soon as something rests behind a backward pass; others, and without seals all,
// before the norm.
void seals_fault_gradient(struct engine *e, bool at_end) {
    struct seals *s = e->seals;
    if (s->fault.kind != ENGINE_FAULT_GRADIENT) return;
    if (!at_end && (s->fault.element % 2 == 0 || s->backwards == 0 || !s->gradients)) return;
    if (flip_gradient(e, &s->fault)) s->fault.kind = ENGINE_FAULT_NONE;
}

void seals_fault_scale(struct engine *e) {
    struct engine_fault fault;
    if (takes(e, ENGINE_FAULT_SCALE, &fault)) e->loss_scale *= (float)fault.factor;
}

void seals_fault_nan(struct engine *e, void *activation, int64_t elements) {
    struct engine_fault fault;
    if (elements < 1 || !e->seals->in_step || !takes(e, ENGINE_FAULT_NAN, &fault)) return;
    int64_t at = (int64_t)(fault.element % (uint64_t)elements);
    if (e->type == DTYPE_BF16)
        ((bf16 *)activation)[at] = bf16_from_float(NAN);
    else
        ((float *)activation)[at] = NAN;
}
