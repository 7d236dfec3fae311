// Saves behind the run, as a trainer makes them, on every rank of a small world.
#pragma once
#include "checkpoint/saver.h"
#include "spread.h"

struct behind { // of one rank
    struct snapshot *snapshot;
    struct saver *saver, *second;
    uint64_t number;
};

enum { BEHIND_GENERATION_BYTES = 400000 };
// `memory`: folder of this rank's host; `second` may be NULL.
void behind_open(struct behind *b, const char *memory, const char *disk, const char *second,
                 uint64_t session, const struct spread *s, int rank);
void behind_close(struct behind *b);
// Begins a snapshot of the state that the slices hold, as the next save; its generation.
struct checkpoint_state;
int behind_snapshot(struct behind *b, const struct checkpoint_state *state, struct err *err);
// Copies the state and begins to write it; 0, or -1 when the snapshot cannot be begun here, which
// all ranks hear in the end.
int behind_begin(struct behind *b, int64_t step);
// Agrees until the save has ended, as between steps; what became of it. `meanwhile`, if given, is
// called once on rank 0 when all ranks have written and nothing is published yet.
struct saver_result behind_end(struct saver *s, struct comm_stream *world,
                               void (*meanwhile)(void *context), void *context);
