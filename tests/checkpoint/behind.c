#include "behind.h"
#include "model/families.h"
#include "test.h"
#include <string.h>
#include <time.h>

void behind_open(struct behind *b, const char *memory, const char *disk, const char *second,
                 uint64_t session, const struct spread *s, int rank) {
    struct err err = {0};
    struct snapshot_options options = {.folder = memory,
                                       .run = "run",
                                       .rank = rank,
                                       .ranks = s->ranks,
                                       .session = session,
                                       .generation_bytes = BEHIND_GENERATION_BYTES,
                                       .part_bytes = 3000};
    *b = (struct behind){0};
    CHECK_OK(snapshot_open(&b->snapshot, &options, &err), err);
    CHECK_OK(snapshot_slices(b->snapshot, s->slices[rank], s->counts[rank], &err), err);
    struct saver_options saver = {
        .folder = disk, .snapshot = b->snapshot, .rank = rank, .ranks = s->ranks, .keep_last = 2};
    CHECK_OK(saver_open(&b->saver, &saver, &err), err);
    saver.snapshot = NULL;
    saver.folder = second;
    saver.from = disk;
    if (second) CHECK_OK(saver_open(&b->second, &saver, &err), err);
}

void behind_close(struct behind *b) {
    saver_close(b->second);
    saver_close(b->saver);
    snapshot_close(b->snapshot);
}

int behind_snapshot(struct behind *b, const struct checkpoint_state *state, struct err *err) {
    struct model_config model;
    CHECK_OK(model_preset("llama-15m", &model, NULL), (struct err){0});
    return snapshot_begin(b->snapshot, state, &model, ++b->number, err);
}

int behind_begin(struct behind *b, int64_t step) {
    struct err err = {0};
    struct checkpoint_state state = {.step = step, .samples = 3 * step, .config = "a: 1\n"};
    int generation = behind_snapshot(b, &state, &err);
    if (generation >= 0)
        saver_begin(b->saver, step, generation, 7, b->number);
    else
        saver_begin_failed(b->saver, step, &err);
    snapshot_wait(b->snapshot);
    return generation >= 0 ? 0 : -1;
}

struct saver_result behind_end(struct saver *s, struct comm_stream *world,
                               void (*meanwhile)(void *context), void *context) {
    struct saver_result out = {0}, now;
    struct err err = {0};
    while (!saver_idle(s)) {
        struct timespec moment = {0, 300000};
        int64_t slots[SAVER_SLOTS];
        saver_report(s, slots);
        if (world && comm_stream_size(world) > 1) comm_max_integers(world, slots, SAVER_SLOTS);
        if (slots[0] == 0 && meanwhile) {
            if (comm_stream_index(world) == 0) meanwhile(context);
            comm_wait(comm_barrier(world), NULL);
            meanwhile = NULL;
        }
        CHECK_OK(saver_agree(s, slots, world, &now, &err), err);
        if (now.news != SAVER_NOTHING) out = now;
        nanosleep(&moment, NULL);
    }
    return out;
}
