// Snapshots: the newest states of a run in memory that outlives the process. A folder of a memory
// file system (/dev/shm/weft-<uid>/<run>/) holds two generations, each rank's parts of one:
//
//   gen-0/rank-00003.part     what rank 3 stores of the state: the bytes of a checkpoint's part
//                             file (a copy of it is a valid part), made and touched at the start
//   gen-0/rank-00003.json     written when the part is complete: step, sizes, hash, the lists of
//                             checkpoint/manifest.h, state and model; removed before the part is
//                             written anew. Who sees it sees a complete, hashed part.
//   gen-0/buddy-*.part, .json the same of ranks of another host, brought by its agent
//
// Data-parallel replicas share the work as in a checkpoint: every byte of the state stands in one
// rank's part, so one generation of all hosts together is one whole checkpoint. The file system's
// own copy, a buddy's and the disk's are the same bytes under the same names.
#pragma once
#include "base/slice.h"
#include "checkpoint/checkpoint.h"

enum { SNAPSHOT_GENERATIONS = 2 };

struct snapshot;
// Takes and touches the memory of two generations for this rank's share of `slices`. No room
// (ERR_MEMORY): nothing is taken; save to disk directly.
int snapshot_open(struct snapshot **out, const char *folder, int rank, int ranks,
                  const struct tensor_slice *slices, int count, struct err *err);
void snapshot_close(struct snapshot *s);           // the files stay
uint64_t snapshot_bytes(const struct snapshot *s); // of both generations, as planned and touched
// The same without taking anything, for the plan of memory.
uint64_t snapshot_plan_bytes(const struct tensor_slice *slices, int count);

// Copies the state on a thread of its own; the slices' memory must not change until snapshot_wait
// returns (the trainer waits before the next update, see engine_step.may_update). The generation is
// the older one; -1 while that one is still being written to disk (at most one in flight).
int snapshot_begin(struct snapshot *s, const struct checkpoint_state *state,
                   const struct model_config *model, struct err *err);
double snapshot_wait(struct snapshot *s); // seconds that the caller stood still

// ---- writing to disk behind the run
enum saving { SAVING_IDLE, SAVING_BUSY, SAVING_WRITTEN, SAVING_FAILED };
struct saving_status {
    enum saving state; // of this rank's part; WRITTEN: durable in staging
    int64_t step;
    double persist_seconds; // of the last one that was published
    struct err why;
};
struct saver; // this rank's background writer
// Writes to `folder`, and then to `second` (NULL: none). Low priority, bounded memory.
int saver_open(struct saver **out, struct snapshot *snapshot, const char *folder,
               const char *second, int rank, int ranks, struct err *err);
void saver_close(struct saver *s);
void saver_begin(struct saver *s); // of the snapshot that was completed last
struct saving_status saver_status(struct saver *s);
// Ranks agree on the status between steps; when all have written, rank 0 publishes (manifest last,
// rename), in the background too; when one has failed, all drop it.
void saver_publish(struct saver *s);
void saver_drop(struct saver *s);

// ---- loading
// The newest state that is complete among memory (own and buddy parts, wherever they lie: ranks
// send each other what they lack) and disk; collective over `world`. `states_back`: so many states
// older. Parts whose hash is wrong do not count, and that is said. What was saved under one layout
// is loaded under any other. *from: "memory", "buddy", "disk".
int snapshot_load_newest(const char *memory_folder, const char *disk_folder,
                         const char *second_folder, int states_back,
                         const struct tensor_slice *slices, int count, struct comm_stream *world,
                         struct checkpoint_state *state, const char **from, struct err *err);
