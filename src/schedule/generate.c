// Compute actions of the pipeline kinds whose order is known beforehand. Backward of each stage
// ascends in micro-batches everywhere (gpipe too), so that sums of gradients run in one order.
#include "schedule/pipeline_parts.h"

void pipeline_put(struct schedule *list, enum action_kind kind, int stage, int micro_batch) {
    list->actions[list->count++] = (struct action){kind, stage, micro_batch, -1, -1, -1};
}

static int least(int a, int b) {
    return a < b ? a : b;
}

// One rank: a micro-batch goes through all stages and back before the next one starts.
static void accumulate(struct schedule *list, int stages, int micro_batches, bool halves) {
    for (int m = 0; m < micro_batches; m++) {
        for (int s = 0; s < stages; s++) pipeline_put(list, ACTION_FORWARD, s, m);
        for (int s = stages - 1; s >= 0; s--)
            pipeline_put(list, halves ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD, s, m);
        for (int s = stages - 1; halves && s >= 0; s--)
            pipeline_put(list, ACTION_BACKWARD_WEIGHT, s, m);
    }
}

static void gpipe(struct schedule *list, int rank, int micro_batches) {
    for (int m = 0; m < micro_batches; m++) pipeline_put(list, ACTION_FORWARD, rank, m);
    for (int m = 0; m < micro_batches; m++) pipeline_put(list, ACTION_BACKWARD, rank, m);
}

// ranks - 1 - rank forwards ahead, so that the first gradient meets a rank that waits for it.
static void one_forward_one_backward(struct schedule *list, int ranks, int rank,
                                     int micro_batches) {
    int forward = 0;
    while (forward < least(ranks - 1 - rank, micro_batches))
        pipeline_put(list, ACTION_FORWARD, rank, forward++);
    for (int m = 0; m < micro_batches; m++) {
        if (forward < micro_batches) pipeline_put(list, ACTION_FORWARD, rank, forward++);
        pipeline_put(list, ACTION_BACKWARD, rank, m);
    }
}

// Zero bubble, first kind (Qi et al. 2023, ZB-H1): as 1F1B, with the weight half of a micro-batch
// `rank` micro-batches behind its input half. Rank r then holds ranks - r micro-batches before the
// input half and r behind it; the pauses shrink to (p-1)(F+I-W).
static void zb_h1(struct schedule *list, int ranks, int rank, int micro_batches) {
    int forward = 0, weight = 0;
    while (forward < least(ranks - 1 - rank, micro_batches))
        pipeline_put(list, ACTION_FORWARD, rank, forward++);
    for (int m = 0; m < micro_batches; m++) {
        if (forward < micro_batches) pipeline_put(list, ACTION_FORWARD, rank, forward++);
        pipeline_put(list, ACTION_BACKWARD_INPUT, rank, m);
        if (m >= rank) pipeline_put(list, ACTION_BACKWARD_WEIGHT, rank, weight++);
    }
    while (weight < micro_batches) pipeline_put(list, ACTION_BACKWARD_WEIGHT, rank, weight++);
}

// Interleaving runs micro-batches in groups of `ranks`: a group goes through a rank's first stage,
// then through its second, and so on. Where the last group is not full, its absent micro-batches
// are left out of the order that full groups would have, which never makes anyone wait for ever
// (a smaller group in its own right would).
static void interleaved_put(struct pipeline *p, int rank, int k, bool backward) {
    int ranks = p->shape.ranks, chunks = p->shape.chunks, group = ranks * chunks;
    int chunk = k % group / ranks, micro_batch = k / group * ranks + k % ranks;
    if (backward) chunk = chunks - 1 - chunk;
    if (micro_batch < p->shape.micro_batches)
        pipeline_put(&p->compute[rank], backward ? ACTION_BACKWARD : ACTION_FORWARD,
                     chunk * ranks + rank, micro_batch);
}

// Interleaved 1F1B (Narayanan et al. 2021).
static void interleaved(struct pipeline *p, int rank) {
    int ranks = p->shape.ranks, chunks = p->shape.chunks;
    int total = (p->shape.micro_batches + ranks - 1) / ranks * ranks * chunks;
    int ahead = least((chunks - 1) * ranks + 2 * (ranks - 1 - rank), total);
    int forward = 0;
    while (forward < ahead) interleaved_put(p, rank, forward++, false);
    for (int k = 0; k < total; k++) {
        if (forward < total) interleaved_put(p, rank, forward++, false);
        interleaved_put(p, rank, k, true);
    }
}

static void generate_rank(struct pipeline *p, int rank) {
    const struct pipeline_shape *shape = &p->shape;
    struct schedule *list = &p->compute[rank];
    int m = shape->micro_batches;
    switch (shape->kind) {
    case PIPELINE_GPIPE:
        gpipe(list, rank, m);
        break;
    case PIPELINE_ZB_H1:
        zb_h1(list, shape->ranks, rank, m);
        break;
    case PIPELINE_INTERLEAVED:
        if (shape->chunks > 1) {
            interleaved(p, rank);
            break;
        } // else as 1F1B
        // fall through
    default:
        one_forward_one_backward(list, shape->ranks, rank, m);
    }
}

void pipeline_generate(struct pipeline *p) {
    const struct pipeline_shape *shape = &p->shape;
    bool halves = shape->kind == PIPELINE_ZB_H1 || shape->kind == PIPELINE_ZB_V;
    for (int r = 0; r < shape->ranks; r++) p->compute[r].count = 0;
    if (shape->ranks == 1)
        accumulate(&p->compute[0], p->stages, shape->micro_batches, halves);
    else if (shape->kind == PIPELINE_ZB_V)
        pipeline_generate_zb_v(p);
    else
        for (int r = 0; r < shape->ranks; r++) generate_rank(p, r);
}
