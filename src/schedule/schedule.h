// What a pipeline rank does in one step, as plain data: a list of actions in the order of
// execution. The engine walks it; whoever plans or simulates reads the same list. Written as text
// an action is STAGE KIND MICRO-BATCH, "0F3"; see the letters below. Lists of whole pipelines:
// pipeline.h.
#pragma once
#include "base/text.h"
#include <stdbool.h>

enum action_kind {
    ACTION_FORWARD,         // F
    ACTION_BACKWARD,        // B: both halves, layer by layer
    ACTION_BACKWARD_INPUT,  // I: gradients of activations
    ACTION_BACKWARD_WEIGHT, // W: gradients of parameters, from what the input half left behind
    ACTION_STEP,            // S: norm, clipping, optimizer; one per rank, the last action
    // lowered lists of a pipeline. The tensor is the output of `stage` (forward) or the gradient of
    // its input (backward) when sent; the input of `stage`, or the gradient of its output, when
    // received. Sends and receives are only begun by these; the action that uses the tensor waits
    // for it.
    ACTION_SEND_FORWARD,     // > to stage + 1
    ACTION_RECEIVE_FORWARD,  // < from stage - 1
    ACTION_SEND_BACKWARD,    // } to stage - 1
    ACTION_RECEIVE_BACKWARD, // { from stage + 1
    ACTION_GATHER, // G: weights of the stage are complete (sharded states); micro_batch -1
    ACTION_REDUCE, // R: the stage's gradients are final on this rank; micro_batch -1
    ACTION_KIND_COUNT
};

static inline bool action_is_compute(enum action_kind kind) {
    return kind <= ACTION_BACKWARD_WEIGHT;
}
// The first and the last action of a backward pass; a whole one is both.
static inline bool action_is_first_of_backward(enum action_kind kind) {
    return kind == ACTION_BACKWARD || kind == ACTION_BACKWARD_INPUT;
}
static inline bool action_is_last_of_backward(enum action_kind kind) {
    return kind == ACTION_BACKWARD || kind == ACTION_BACKWARD_WEIGHT;
}

struct action {
    enum action_kind kind;
    int stage;       // of the pipeline; of a step the rank's first
    int micro_batch; // of the step, from 0; -1 for steps, gathers and reductions
    // Places, -1 for none.
    // Of this micro-batch's activations, the stage's input among them, and of the gradient of the
    // stage's output: taken from receive (or forward) to the end of backward (of the weight half
    // when split).
    int slot;
    // Of what the input half leaves behind for the weight half (a whole backward's scratch): taken
    // from the one to the end of the other.
    int flow;
    // The slot into which the result goes when the neighbour stage is on this rank too: of a
    // forward the slot of stage + 1, taken from then on, of a backward or input half that of
    // stage - 1. Else -1: the result is sent, or there is no neighbour.
    int target;
};

struct schedule {
    struct action *actions;
    int count, capacity;
};

void schedule_action_text(struct action action, char out[32]);
int schedule_print(const struct schedule *schedule,
                   struct text *out); // "0F0 0B0 0S\n"; 0, or -1 when memory is short
