// Ranks that share processors.
#include "schedule/pipeline.h"
#include "test.h"
#include <math.h>

static struct pipeline_times simulate(enum pipeline_kind kind, int ranks, int micro_batches,
                                      double processors, double send) {
    struct pipeline_shape shape = {.kind = kind, .ranks = ranks, .micro_batches = micro_batches};
    struct pipeline_costs costs = {.forward = 1,
                                   .input = 1,
                                   .weight = 1,
                                   .send = send,
                                   .step = 2,
                                   .processors = processors,
                                   .eager = true};
    struct pipeline pipeline;
    struct pipeline_times times;
    struct err err = {0};
    CHECK_OK(pipeline_open(&pipeline, &shape, &err), err);
    CHECK_OK(pipeline_simulate(&pipeline, &costs, &times, &err), err);
    pipeline_close(&pipeline);
    return times;
}

// One processor for all: somebody always works, so the step is as long as all work together.
TEST(shared_processor_is_never_idle) {
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_ZB_H1; kind++) {
        struct pipeline_times t = simulate((enum pipeline_kind)kind, 4, 4, 1, 0);
        CHECK_CLOSE(t.total, 4 * 4 * (kind == PIPELINE_INTERLEAVED ? 6 : 3) + 4 * 2, 1e-9);
        CHECK_CLOSE(t.bubble, 0, 1e-9);
        pipeline_times_free(&t);
    }
}

// As many processors as ranks: each has its own.
TEST(shared_processors_for_all) {
    struct pipeline_times own = simulate(PIPELINE_1F1B, 4, 8, 0, 0.25);
    struct pipeline_times shared = simulate(PIPELINE_1F1B, 4, 8, 4 - 1e-9, 0.25);
    CHECK_CLOSE(shared.total / own.total, 1, 1e-6);
    CHECK_EQ_INT(shared.span_count, own.span_count);
    pipeline_times_free(&own);
    pipeline_times_free(&shared);
}

// Two ranks, one micro-batch, one processor, a message of 5: nobody works beside anybody, the
// message waits alone. F0 1, send 5, F1 1, B1 2, send 5, B0 2, then both steps of 2 at half speed.
TEST(shared_processor_by_hand) {
    struct pipeline_times t = simulate(PIPELINE_1F1B, 2, 1, 1, 5);
    CHECK_CLOSE(t.total, 1 + 5 + 1 + 2 + 5 + 2 + 4, 1e-9);
    pipeline_times_free(&t);
    // one and a half processors: where both ranks work, each runs at three quarters
    t = simulate(PIPELINE_1F1B, 2, 1, 1.5, 0);
    CHECK_CLOSE(t.total, 1 + 1 + 2 + 2 + 2 / 0.75, 1e-9);
    pipeline_times_free(&t);
}
