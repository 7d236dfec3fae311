// Writing checkpoints to a folder behind the run. Every rank has a saver: a thread of low priority
// that writes this rank's parts; ranks agree between steps, by integers that the run exchanges
// anyway, and the first one publishes (manifest last, rename) in the background too. When one rank
// has failed, all drop the save, and what was complete before stays.
//
//   FOLDER/step_00000020.tmp/save-<session>-<number>   made by rank 0: the folder is fresh
//                            rank-00003.list           what rank 3 has written, durable
//
// both gone before the folder gets its name.
#pragma once
#include "checkpoint/snapshot.h"

struct saver_options {
    const char *folder;
    // Where the bytes come from: a snapshot (checkpoints), or the checkpoints of another folder
    // (copies of complete ones); one of the two.
    struct snapshot *snapshot;
    const char *from;
    int rank, ranks;
    int keep_last; // which checkpoints stay in `folder`, see checkpoint_retain
    int64_t keep_every;
    const int64_t *keep_steps; // copied
    int keep_step_count;
};

struct saver; // this rank's
int saver_open(struct saver **out, const struct saver_options *options, struct err *err);
void saver_close(struct saver *s); // ends what is under way without waiting for other ranks

bool saver_idle(const struct saver *s); // the same on all ranks
// A save of `generation` (of the snapshot) or of `step` (of the other folder), whose state is idle.
// Same order on all ranks; `session` and `number` tell saves apart.
void saver_begin(struct saver *s, int64_t step, int generation, uint64_t session, uint64_t number);
// The same where this rank cannot: all ranks drop the save.
void saver_begin_failed(struct saver *s, int64_t step, const struct err *why);
// Drops a save that is not written yet; on all ranks at the same place.
void saver_cancel(struct saver *s);
int64_t saver_step(const struct saver *s); // of the save under way or the last one
// rank 0: the step that must not be removed from the folder (a copy of it is under way); -1: none
void saver_pin(struct saver *s, int64_t step);

// Steps whose staging an earlier process left in `folder` in the middle of a save; at most `most`.
// Saves that a run waits for leave none that can be told from other programs'.
int saver_left_behind(const char *folder, int64_t *steps, int most);
void saver_remove_left_behind(const char *folder, int64_t most_step); // a failure is a log line

// Between steps: every rank fills `slots`, the run takes the largest of each over all ranks, and
// every rank hears the same.
enum { SAVER_SLOTS = 2 };
void saver_report(struct saver *s, int64_t slots[SAVER_SLOTS]);
enum saver_news { SAVER_NOTHING, SAVER_PERSISTED, SAVER_FAILED };
struct saver_result {
    enum saver_news news;
    int64_t step;
    uint64_t bytes; // of the whole checkpoint; rank 0 alone knows
    double seconds; // since saver_begin
    struct err why; // of a failure, told by the lowest rank that failed
    char path[CHECKPOINT_PATH_BYTES];
};
// -1: the communication has failed.
int saver_agree(struct saver *s, const int64_t agreed[SAVER_SLOTS], struct comm_stream *world,
                struct saver_result *result, struct err *err);
