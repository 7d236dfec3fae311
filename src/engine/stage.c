// One stage of the pipeline, forward and backward, and the tensors that cross its borders.
//
// What crosses is the residual stream as stored, and its gradient. Between stages on one rank
// nothing is sent: both are written where the neighbour reads them.
#include "engine/seals.h"
#include <string.h>

int stage_of(const struct engine *e, int stage) {
    int i = 0;
    while (e->stages[i].part.stage != stage) i++;
    return i;
}

int engine_rank_of_stage(const struct engine *e, int stage) {
    int at[MESH_AXES];
    memcpy(at, e->local.at, sizeof at);
    at[MESH_PP] = layout_stage_rank(&e->layout, stage);
    return mesh_rank(&e->layout.mesh, at);
}

static int last_layer(const struct engine_stage *s) {
    return s->part.layer_first + s->part.layer_count - 1;
}

static size_t border_bytes(const struct engine *e, const struct batch *batch) {
    return (size_t)engine_residual(e, batch) * (size_t)e->model->config.hidden *
           dtype_bytes(e->type);
}

void engine_enter(struct engine *e, int stage, int slot, int flow) {
    const struct engine_stage *s = &e->stages[stage];
    for (int l = s->part.layer_first; l <= last_layer(s); l++) {
        struct engine_layer *layer = &e->layers[l];
        engine_moe_enter(e, l, slot, flow);
        for (int a = 0; a < ACT_COUNT; a++)
            layer->act[a] = engine_buffer(
                e, rank_activation_buffer(&e->buffers, slot, l, (enum rank_activation)a));
        for (int f = 0; e->options.train && f < FLOW_COUNT; f++)
            layer->flow[f] =
                engine_buffer(e, rank_flow_buffer(&e->buffers, flow, l, (enum rank_flow)f));
    }
    if (s->part.last) {
        e->final_input = engine_buffer(e, e->buffers.final[slot][0]);
        e->final_rstd = engine_buffer(e, e->buffers.final[slot][1]);
        e->final_mean = engine_buffer(e, e->buffers.final[slot][2]);
    }
}

// ---- forward ------------------------------------------------------------------------------------

static void take_input(struct engine *e, struct engine_stage *s, int slot,
                       const struct batch *batch) {
    if (s->part.first) {
        int unit = engine_unit_of_embedding(e);
        unit_acquire(e, unit, false);
        embedding_forward(e, s->part.layer_first, batch);
        unit_release(e, unit);
    } else if (s->previous_rank != e->rank) {
        comm_wait(s->received[slot], e->device->lane);
    }
    seals_fault_nan(e, e->layers[s->part.layer_first].act[ACT_INPUT],
                    engine_residual(e, batch) * e->model->config.hidden);
}

static void *input_of(const struct engine *e, const struct engine_stage *s, int slot) {
    return engine_buffer(e,
                         rank_activation_buffer(&e->buffers, slot, s->part.layer_first, ACT_INPUT));
}

// Where the stage's output goes; `target`: the slot of a next stage on this rank.
static void *place_output(struct engine *e, struct engine_stage *s, int target) {
    if (s->part.last) return e->final_input;
    if (s->next_rank == e->rank)
        return input_of(e, &e->stages[stage_of(e, s->part.stage + 1)], target);
    int ring = s->sends++ % RANK_SEND_RING;
    comm_wait(s->sent[ring], e->device->lane);
    s->sent[ring] = (struct comm_event){0};
    return s->output[ring];
}

void stage_layers_forward(struct engine *e, int index, int slot, int target,
                          const struct batch *batch) {
    struct engine_stage *s = &e->stages[index];
    int last = last_layer(s);
    bool before = e->model->config.norm_place == NORM_BEFORE;
    take_input(e, s, slot, batch);
    void *output = place_output(e, s, target);
    for (int l = s->part.layer_first; l <= last; l++) {
        unit_acquire(e, l, false);
        layer_forward(e, l, batch, l > s->part.layer_first,
                      l == last ? output : e->layers[l + 1].act[ACT_INPUT]);
        unit_release(e, l);
    }
    const void *middle = before ? e->layers[last].act[ACT_MIDDLE] : NULL;
    int64_t tokens = engine_residual(e, batch);
    if (s->part.last)
        final_norm_forward(e, middle, tokens);
    else if (before)
        e->device->add(e->device, e->type, tokens * e->model->config.hidden, middle,
                       e->single[SINGLE_DELTA], output);
}

static bool is_forward(enum action_kind kind) {
    return kind == ACTION_FORWARD;
}

// Whether no later action of the stage is of the kinds that write the same gradients: the head's in
// forward, the embedding's in the first half of backward, those of layers in the last. A user's
// list may mix whole backward passes with halves.
static bool ends_gradients(const struct engine *e, const struct action *a,
                           bool writes(enum action_kind)) {
    for (const struct action *b = a + 1; b < e->schedule->actions + e->schedule->count; b++)
        if (b->stage == a->stage && writes(b->kind)) return false;
    return true;
}

void stage_forward(struct engine *e, const struct action *a, const struct batch *batch) {
    int index = stage_of(e, a->stage);
    struct engine_stage *s = &e->stages[index];
    s->slot_of[a->micro_batch] = a->slot;
    engine_enter(e, index, a->slot, 0);
    stage_layers_forward(e, index, a->slot, a->target, batch);
    if (!s->part.last) return;
    int unit = engine_unit_of_head(e);
    unit_acquire(e, unit, false);
    unit_gradients_begin(e, unit);
    e->batch_loss[a->micro_batch] = head_loss(e, batch, s->gradient[a->slot]);
    unit_gradients_end(e, unit, ends_gradients(e, a, is_forward));
    unit_release(e, unit);
}

// ---- backward -----------------------------------------------------------------------------------

// The gradient of the stage's output comes from a border, that of its input goes to one.
static void place_gradients(struct engine *e, int index, const struct action *a) {
    struct engine_stage *s = &e->stages[index];
    struct engine_layer *top = &e->layers[last_layer(s)], *bottom = &e->layers[s->part.layer_first];
    void *gradient = s->gradient[a->slot];
    bool same = e->model->config.norm_place == NORM_BEFORE && !e->shape.dropout;
    top->flow[FLOW_OUT] = gradient;
    if (same) top->flow[FLOW_DOWN] = gradient;
    if (same && !e->sequence) top->flow[FLOW_DOWN_ALL] = gradient;
    if (s->part.first) return;
    if (s->previous_rank == e->rank) {
        const struct engine_stage *below = &e->stages[stage_of(e, a->stage - 1)];
        bottom->flow[FLOW_IN] = below->gradient[below->slot_of[a->micro_batch]];
    } else {
        bottom->flow[FLOW_IN] = s->back[s->sends_back % RANK_SEND_RING];
    }
}

static void backward_begin(struct engine *e, struct engine_stage *s, const struct action *a,
                           const struct batch *batch) {
    if (s->part.last) {
        final_norm_backward(e, s->gradient[a->slot], engine_residual(e, batch));
    } else if (s->next_rank != e->rank) {
        comm_wait(s->received_gradient[a->slot], e->device->lane);
    }
    if (!s->part.first && s->previous_rank != e->rank)
        comm_wait(s->sent_back[s->sends_back % RANK_SEND_RING], e->device->lane);
}

static void backward_end(struct engine *e, struct engine_stage *s, const struct action *a,
                         const struct batch *batch) {
    if (s->part.first) {
        int unit = engine_unit_of_embedding(e);
        unit_gradients_begin(e, unit);
        embedding_backward(e, s->part.layer_first, batch);
        unit_gradients_end(e, unit, ends_gradients(e, a, action_is_first_of_backward));
    } else if (s->previous_rank != e->rank) {
        s->sent_back[s->sends_back++ % RANK_SEND_RING] = (struct comm_event){0};
    }
}

void stage_backward(struct engine *e, const struct action *a, const struct batch *batch, bool input,
                    bool weight) {
    int index = stage_of(e, a->stage);
    struct engine_stage *s = &e->stages[index];
    bool last = ends_gradients(e, a, action_is_last_of_backward);
    engine_enter(e, index, a->slot, a->flow);
    place_gradients(e, index, a);
    if (input) backward_begin(e, s, a, batch);
    for (int l = last_layer(s); l >= s->part.layer_first; l--) {
        // a weight half reads no weights, unless waves of experts are redone
        bool reads = input || e->layers[l].param[PARAM_ROUTER] >= 0;
        if (reads) unit_acquire(e, l, true);
        if (input) layer_backward_input(e, l, batch);
        if (weight) {
            unit_gradients_begin(e, l);
            layer_backward_weight(e, l, batch);
            unit_gradients_end(e, l, last);
        }
        if (reads) unit_release(e, l);
    }
    if (input) backward_end(e, s, a, batch);
}

// ---- messages -----------------------------------------------------------------------------------

_Static_assert(2 * LAYOUT_MAX_STAGES * RANK_MOST_SLOTS <= TAG_CONTEXT - TAG_STAGES,
               "every stage, micro-batch and direction has a tag of its own");

// At most RANK_MOST_SLOTS micro-batches are on their way.
static int message_tag(int from_stage, int micro_batch, bool backward) {
    return TAG_STAGES + 2 * (from_stage * RANK_MOST_SLOTS + micro_batch % RANK_MOST_SLOTS) +
           backward;
}

void stage_message(struct engine *e, const struct action *a) {
    struct engine_stage *s = &e->stages[stage_of(e, a->stage)];
    uint64_t bytes = border_bytes(e, e->batches[a->micro_batch]);
    int m = a->micro_batch, ring;
    switch (a->kind) {
    case ACTION_SEND_FORWARD:
        ring = (s->sends - 1) % RANK_SEND_RING;
        s->sent[ring] = comm_send(e->comm, s->next_rank, message_tag(a->stage, m, false),
                                  s->output[ring], bytes);
        break;
    case ACTION_RECEIVE_FORWARD:
        s->received[a->slot] =
            comm_receive(e->comm, s->previous_rank, message_tag(a->stage - 1, m, false),
                         input_of(e, s, a->slot), bytes);
        break;
    case ACTION_SEND_BACKWARD:
        ring = (s->sends_back - 1) % RANK_SEND_RING;
        s->sent_back[ring] = comm_send(e->comm, s->previous_rank, message_tag(a->stage, m, true),
                                       s->back[ring], bytes);
        break;
    default: // ACTION_RECEIVE_BACKWARD
        s->received_gradient[s->slot_of[m]] =
            comm_receive(e->comm, s->next_rank, message_tag(a->stage + 1, m, true),
                         s->gradient[s->slot_of[m]], bytes);
        break;
    }
    // Not for gradients: two ranks that both waited for their sends would never come to receive.
    if (e->parallel.no_overlap && a->kind == ACTION_SEND_FORWARD)
        comm_wait(s->sent[(s->sends - 1) % RANK_SEND_RING], e->device->lane);
}
