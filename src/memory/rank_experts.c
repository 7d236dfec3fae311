// The buffers of layers with experts: the floor above knows which there are and how large.
#include "memory/rank_parts.h"
#include <stdlib.h>
#include <string.h>

static bool any_experts(const struct model_config *c) {
    for (int l = 0; l < c->layers; l++)
        if (model_layer_has_experts(c, l)) return true;
    return false;
}

bool rank_has_dense_mlp(const struct model_config *c) {
    for (int l = 0; l < c->layers; l++)
        if (!model_layer_has_experts(c, l)) return true;
    return false;
}

static int *place_of(const struct rank_buffers *b, int which, int number, int layer) {
    return &b->expert[((size_t)which * (size_t)b->expert_numbers + (size_t)number) *
                          (size_t)b->layers +
                      (size_t)layer];
}

int rank_expert_buffer(const struct rank_buffers *b, int which, int slot, int flow, int layer) {
    enum rank_expert_place place = b->expert_place[which];
    return *place_of(b, which,
                     place == RANK_EXPERT_KEPT   ? slot
                     : place == RANK_EXPERT_FLOW ? flow
                                                 : 0,
                     layer);
}

static void place_stage(struct enumeration *e, const struct rank_stage *stage,
                        const struct rank_expert_buffer *buffer, int which, int shared) {
    int end = stage->part.layer_first + stage->part.layer_count;
    enum rank_expert_place place = e->buffers->expert_place[which];
    int numbers = place == RANK_EXPERT_KEPT   ? stage->slots
                  : place == RANK_EXPERT_FLOW ? stage->flows
                                              : 1;
    enum buffer_kind kind = place == RANK_EXPERT_KEPT ? BUFFER_ACTIVATION : BUFFER_SCRATCH;
    for (int number = 0; number < numbers; number++)
        for (int l = stage->part.layer_first; l < end; l++)
            if (model_layer_has_experts(e->config, l))
                *place_of(e->buffers, which, number, l) =
                    place == RANK_EXPERT_ONCE
                        ? shared
                        : rank_add(e, kind, l, number, buffer->bytes, buffer->name);
}

void rank_add_experts(struct enumeration *e, const struct rank_workspace *workspace) {
    const struct rank_shape *s = e->shape;
    struct rank_buffers *b = e->buffers;
    if (workspace->expert_count == 0 || !any_experts(e->config)) return;
    size_t count = (size_t)workspace->expert_count, layers = (size_t)b->layers;
    int numbers = 1;
    for (int i = 0; i < s->stage_count; i++) {
        if (s->stages[i].slots > numbers) numbers = s->stages[i].slots;
        if (s->stages[i].flows > numbers) numbers = s->stages[i].flows;
    }
    b->expert_numbers = numbers;
    b->expert = malloc(count * (size_t)numbers * layers * sizeof *b->expert);
    b->expert_place = malloc(count * sizeof *b->expert_place);
    if (!b->expert || !b->expert_place) {
        e->failed = true;
        return;
    }
    memset(b->expert, -1, count * (size_t)numbers * layers * sizeof *b->expert);
    for (int which = 0; which < workspace->expert_count; which++) {
        const struct rank_expert_buffer *buffer = &workspace->experts[which];
        enum rank_expert_place place = buffer->place;
        if (place == RANK_EXPERT_FLOW && !s->split_backward) place = RANK_EXPERT_ONCE;
        b->expert_place[which] = place;
        int shared = place == RANK_EXPERT_ONCE
                         ? rank_add(e, BUFFER_SCRATCH, -1, -1, buffer->bytes, buffer->name)
                         : -1;
        for (int i = 0; i < s->stage_count; i++)
            place_stage(e, &s->stages[i], buffer, which, shared);
    }
}
