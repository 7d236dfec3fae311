// State bytes out of the enumeration that the engine allocates, see state_bytes.h.
#include "memory/state_bytes.h"
#include "memory/rank_parts.h"
#include "memory/rank_state.h"
#include <stdlib.h>

// Bytes of one of the arrays, without its vectors; they join those of the other arrays.
static uint64_t take(struct state_bytes *b, const struct enumeration *e, enum rank_single which,
                     bool sharded) {
    int index = e->buffers->single[which];
    const struct flat *flat = e->shape->flat;
    int64_t elements = sharded ? flat->shard_elements : flat->elements;
    if (index < 0 || elements == 0) return 0;
    uint64_t bytes = e->plan->buffers[index].bytes;
    uint64_t vectors = bytes / (uint64_t)elements * (uint64_t)b->vectors;
    b->vector_bytes += vectors;
    b->transient -= bytes;
    return bytes - vectors;
}

static void sort_out(struct state_bytes *b, const struct enumeration *e) {
    const struct flat *flat = e->shape->flat;
    struct rank_state state;
    rank_state_describe(&state, e->local, e->shape, NULL, NULL);
    for (int g = 0; g < FLAT_GROUPS; g++)
        b->vectors += flat->vectors_end[g] - flat->vectors_begin[g];
    b->matrices = flat->elements - b->vectors;
    b->shard = flat->shard_elements - b->vectors;
    for (int i = 0; i < e->plan->count; i++)
        if (e->plan->buffers[i].kind != BUFFER_SCRATCH && e->plan->buffers[i].kind != BUFFER_TABLE)
            b->transient += e->plan->buffers[i].bytes;
    bool sharded = state.zero > 0;
    b->weights = take(b, e, SINGLE_WEIGHTS, state.zero == 3);
    b->gradients = state.by_unit ? take(b, e, SINGLE_GRADIENT_SHARDS, state.accumulators_sharded)
                                 : take(b, e, SINGLE_GRADIENTS, false);
    b->masters = take(b, e, SINGLE_MASTERS, sharded);
    b->moments = take(b, e, SINGLE_MOMENT1, sharded) + take(b, e, SINGLE_MOMENT2, sharded);
}

int state_bytes(struct state_bytes *out, const struct local_model *local,
                const struct rank_shape *shape, struct err *err) {
    struct memory_plan plan = {0};
    struct rank_buffers *buffers = calloc(1, sizeof *buffers);
    size_t params = (size_t)local->model.param_count + 1;
    int *packed = calloc(2 * params, sizeof *packed);
    const struct rank_workspace workspace = {0};
    struct enumeration e = {.plan = &plan,
                            .buffers = buffers,
                            .local = local,
                            .model = &local->model,
                            .config = &local->model.config,
                            .shape = shape};
    bool failed = !buffers || !packed;
    if (!failed) {
        for (int i = 0; i < SINGLE_COUNT; i++) buffers->single[i] = -1;
        buffers->packed_forward = packed;
        buffers->packed_backward = packed + params;
        rank_add_state(&e, &workspace);
        failed = e.failed;
    }
    if (!failed) {
        *out = (struct state_bytes){0};
        sort_out(out, &e);
    }
    memory_plan_free(&plan);
    free(packed);
    free(buffers);
    return failed ? err_set(err, ERR_MEMORY, "no memory for the list of a rank's states") : 0;
}
