// Gradients that are partial sums over tensor-parallel ranks (param_slice.partial) are added up
// before anything else: whole matrices and the rows of shared keys and values where they lie, while
// the next unit runs; vectors packed together, once per step.
#include "engine/states_parts.h"
#include <string.h>

// What of a parameter is to be added: all, or the parts k and v of a fused qkv.
static int64_t partial_range(const struct engine *e, int param, int64_t *first) {
    const struct param *p = &e->model->params[param];
    enum mesh_group_kind group = e->local.slices[param].partial;
    *first = 0;
    if (group == GROUP_KIND_COUNT || !e->stream[group]) return 0;
    if (group == GROUP_KV) *first = p->part_rows[0] * p->columns;
    return param_elements_padded(p) - *first;
}

static struct comm_event add_up(struct engine *e, enum mesh_group_kind group, float *data,
                                int64_t elements) {
    struct states *s = states_of(e);
    struct comm_reduction sum = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    void *scratch = group == GROUP_KV ? s->partial_scratch_kv : s->partial_scratch;
    return state_posted(e, comm_all_reduce(e->stream[group], data, scratch, elements, &sum));
}

void states_begin_partials(struct engine *e, int unit) {
    struct states *s = states_of(e);
    struct state_unit *u = &s->units[unit];
    u->partials = 0;
    for (int k = 0; k < u->count; k++) {
        int i = s->unit_params[u->first + k];
        int64_t first, elements = partial_range(e, i, &first);
        if (!param_is_matrix(&e->model->params[i]) || elements == 0) continue;
        if (u->partials == STATE_UNIT_PARTIALS) state_wait(e, u->partial[--u->partials]);
        u->partial[u->partials++] =
            add_up(e, e->local.slices[i].partial, e->param_at[i].gradient + first, elements);
    }
}

bool states_partials_done(struct engine *e, int bucket, bool force) {
    struct states *s = states_of(e);
    if (e->tp == 1) return true;
    for (int i = 0; i < e->model->param_count; i++) {
        if (e->flat.bucket_of[i] != bucket) continue;
        struct state_unit *u = &s->units[e->flat.unit_of[i]];
        for (; u->partials > 0; u->partials--) {
            struct comm_event event = u->partial[u->partials - 1];
            if (!force && event.comm && !comm_done(event)) return false;
            state_wait(e, event);
        }
    }
    return true;
}

static int64_t copy_vectors(struct engine *e, enum mesh_group_kind group, float *packed, bool in) {
    int64_t at = 0;
    for (int i = 0; i < e->model->param_count; i++) {
        int64_t first, elements = partial_range(e, i, &first);
        if (param_is_matrix(&e->model->params[i]) || elements == 0 ||
            e->local.slices[i].partial != group)
            continue;
        float *gradient = e->param_at[i].gradient + first;
        if (in)
            memcpy(packed + at, gradient, (size_t)elements * sizeof *packed);
        else
            memcpy(gradient, packed + at, (size_t)elements * sizeof *packed);
        at += elements;
    }
    return at;
}

void states_sum_partial_vectors(struct engine *e) {
    static const enum mesh_group_kind groups[] = {GROUP_TP, GROUP_KV};
    float *packed = states_of(e)->partial_vectors;
    for (size_t g = 0; g < sizeof groups / sizeof groups[0] && e->tp > 1; g++) {
        int64_t elements = copy_vectors(e, groups[g], packed, true);
        if (elements == 0) continue;
        state_wait(e, add_up(e, groups[g], packed, elements));
        copy_vectors(e, groups[g], packed, false);
    }
}
