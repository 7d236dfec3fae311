// Snapshots: the newest states of a run in memory that outlives the process. A folder of a memory
// file system, /dev/shm/weft-<uid>/<run>/, holds two generations, each rank's image of one:
//
//   gen-0/rank-00003.part     what rank 3 stores of the state: its part files of a checkpoint, one
//                             behind the other. As long as was planned, made and touched at the
//                             start; only the first `image` bytes count
//   gen-0/rank-00003.json     written when the image is complete: run, step, the lists of
//                             checkpoint/manifest.h with hash and place of every part, state and
//                             model, and a hash of itself; removed before the image is written
//                             anew. Who sees it sees a complete image
//   gen-0/buddy-00003.part, .json  the same of ranks of another host, brought by its agent
//
// Data-parallel replicas share the work as in a checkpoint: every byte of the state stands in one
// rank's image, so the images of all ranks of one save together are one whole checkpoint. Session
// and number, which all ranks agree on, say which save: what a rank's host has seen before does not
// matter, and two saves of the same step (behind a restart, or when a run went back) never mix.
//
// A save goes on behind the run: a thread copies the state while the next step computes (the
// trainer waits for it before weights change, snapshot_wait) and hashes the image, which completes
// the snapshot; a saver (saver.h) writes the same bytes to disk. One save at most is on its way to
// disk; a newer snapshot meanwhile takes the other generation, so at least one is always complete.
#pragma once
#include "base/slice.h"
#include "checkpoint/checkpoint.h"
#include <stdatomic.h>

enum { SNAPSHOT_GENERATIONS = 2, SNAPSHOT_RUN_BYTES = 17 };

// ---- where they lie
// The run of a folder: 16 hex digits from its real path and RUN/run-id, which is made when absent.
int snapshot_run_id(const char *run_folder, char out[SNAPSHOT_RUN_BYTES], struct err *err);
// FOLDER/weft-<uid>, made where it is absent: whoever can write in FOLDER could have made it first,
// so it must be a folder of this user in which nobody else can write, or nothing in it is to be
// trusted (ERR_USAGE). Before anything below it is read or written.
int snapshot_home(const char *folder, struct err *err);
// FOLDER/weft-<uid>/<run>
int snapshot_run_folder(const char *folder, const char *run, char out[CHECKPOINT_PATH_BYTES],
                        struct err *err);
// Removes all snapshots of the run on this host, its own and those of others.
int snapshot_forget(const char *folder, const char *run, struct err *err);

// Removes the snapshots on this host of runs whose folder is gone though the folder above it is
// there: nobody can go on from them. Runs are known by snapshot_mark.
void snapshot_sweep(const char *folder);
// Notes which run folder the snapshots below `memory` (snapshot_run_folder) belong to, where this
// host sees it.
void snapshot_mark(const char *memory, const char *run_folder);
struct snapshot_image;
// On this host: images of newer states than `step` that were saved up to `session` and `number` no
// longer count, nor do those that an agent is just bringing (snapshot_is_discarded). -1: the latter
// may.
int snapshot_discard_newer(const char *run_folder, int64_t step, uint64_t session, uint64_t number,
                           struct err *err);
bool snapshot_is_discarded(const char *run_folder, const struct snapshot_image *image);
// Files of ranks that there are no longer go.
void snapshot_tidy(const char *run_folder, int ranks);

// ---- memory
struct snapshot_room {        // what is to be taken, and what there is to take it from
    uint64_t missing_bytes;   // of both generations: what is not there yet
    uint64_t besides_bytes;   // that will be taken for other things
    uint64_t available_bytes; // that the machine can still give, by its own estimate; 0: not known
    int64_t ranks;            // whose need this is; 0: nobody has looked yet
};
struct snapshot_options {
    const char *folder; // snapshot_run_folder
    const char *run;
    int rank, ranks;
    uint64_t session; // one of all ranks, another one in every process: snapshot_new_session
    uint64_t generation_bytes; // planned for an image (memory/rank.h, rank_snapshot_bytes)
    uint64_t part_bytes;       // checkpoint.part_size
    int threads;               // that copy while the trainer stands still
    uint64_t other_bytes; // that this process will take besides, to judge whether there is room
    // Of all ranks that take memory of this machine at the same time, as it was before the first of
    // them did; ranks 0: this one is alone.
    struct snapshot_room room;
};
uint64_t snapshot_available_bytes(void); // see struct snapshot_room
// Test hook: what that says from now on; 0 turns it off.
void snapshot_pretend_available(uint64_t bytes);
// Of this rank alone.
void snapshot_room(const struct snapshot_options *options, struct snapshot_room *out);
void snapshot_room_add(struct snapshot_room *sum, const struct snapshot_room *more);
// Grows with time, so that the newer of two sessions is known.
uint64_t snapshot_new_session(void);

struct snapshot;
// Takes and touches the memory of two generations. What lies there from an earlier process stays
// until it is written over. No room: ERR_MEMORY, and nothing is kept; save to disk directly.
int snapshot_open(struct snapshot **out, const struct snapshot_options *options, struct err *err);
// Of whom the state is; once, before the first save. The slices' memory must stay where it is.
int snapshot_slices(struct snapshot *s, const struct tensor_slice *slices, int count,
                    struct err *err);
// Another one, between saves: clocks of hosts may differ, and what is saved from now on shall count
// as newer than what was found (snapshot_places.newest_session).
void snapshot_set_session(struct snapshot *s, uint64_t session);
void snapshot_close(struct snapshot *s); // waits for the copy; the files stay
// Instead, where others got no room: files that were not there before go.
void snapshot_give_back(struct snapshot *s);
void snapshot_remove(struct snapshot *s); // this rank's files; then only _close
// The state that the run goes on from, or goes back to: its image of this rank, on whatever host,
// is written over last, so that it stays whole until a newer one is. Between saves.
void snapshot_keep(struct snapshot *s, const struct checkpoint *c);
// The newest one is not complete on all ranks: it is written over next, and the older one stays.
void snapshot_keep_older(struct snapshot *s);
bool snapshot_failed(struct snapshot *s); // the newest one is not complete here, and never will be
uint64_t snapshot_bytes(const struct snapshot *s);       // of both generations, as taken
uint64_t snapshot_image_bytes(const struct snapshot *s); // what of a generation a state needs

// Begins to copy the state into a generation that no save needs any longer; the slices' memory must
// not change until snapshot_wait has returned. `number` tells the saves of a session apart: the
// same on all ranks, growing. The generation, or -1 with an error.
int snapshot_begin(struct snapshot *s, const struct checkpoint_state *state,
                   const struct model_config *model, uint64_t number, struct err *err);
// Copies what is left, with all threads. Seconds that the caller stood still; 0 when nothing was
// under way.
double snapshot_wait(struct snapshot *s);
double snapshot_copy_seconds(struct snapshot *s); // of the last copy, begin to end
double snapshot_seal_seconds(struct snapshot *s); // from its begin until it was complete

bool snapshot_busy(struct snapshot *s); // the last one is not complete yet

// What the saver does with a generation. snapshot_hold: until snapshot_release nobody writes over
// it. snapshot_settle: waits until it is complete; `stop` ends that early.
void snapshot_hold(struct snapshot *s, int generation);
void snapshot_release(struct snapshot *s, int generation);
int snapshot_settle(struct snapshot *s, int generation, const atomic_bool *stop, struct err *err);
// Part `index` of a sealed generation; false: there are no more.
struct snapshot_part {
    const char *name;
    const void *data; // at a page border where it is large
    uint64_t bytes;
};
bool snapshot_part(const struct snapshot *s, int generation, int index, struct snapshot_part *out);
const json_t *snapshot_tree(const struct snapshot *s, int generation); // the json, without its hash

// ---- images as files, for agents
struct snapshot_image {
    uint64_t session, number, bytes; // bytes: that count of the .part
    int64_t step;
    int rank, ranks;
};
// From the text of a .json; `where` stands in messages.
int snapshot_read_image(const char *text, size_t bytes, const char *where,
                        struct snapshot_image *out, struct err *err);
// Reads the .part at `part` too and compares hashes, whatever was read or written meanwhile. `stop`
// may be NULL.
int snapshot_check_image(const char *text, size_t bytes, const char *part, const atomic_bool *stop,
                         struct err *err);

// ---- loading
struct snapshot_places {
    const char *memory;        // snapshot_run_folder of this rank's host; NULL: none
    const char *run;           // whose snapshots count
    const char *disk, *second; // checkpoint folders; second NULL: none
    // Whether a snapshot's state fits (it may be of another shape); the same on all ranks. NULL:
    // all.
    bool (*fits)(void *context, const struct checkpoint *snapshot);
    void *context;
    // Set to the newest session of all images that were found (0: none); NULL: not wanted.
    uint64_t *newest_session;
};
struct snapshot_choice {
    int back;          // so many states before the newest
    int64_t most_step; // and none newer than this; -1: any
};
// Opens the newest state that is complete among memory (own and buddies' images, on whatever host
// they lie) and disk, at equal steps in this order; collective over `world`. What is damaged or
// incomplete is passed over, and said. *from: "memory", "buddy" (some image came from another host
// than its rank's), "disk", "second folder". None at all: *out is NULL and the result 0. An opened
// snapshot is loaded by checkpoint_load_slices alone (ranks send each other what they lack), and is
// a checkpoint in all else; its path says where it was found.
int snapshot_open_newest(const struct snapshot_places *places, const struct snapshot_choice *choice,
                         struct comm_stream *world, struct checkpoint **out, const char **from,
                         struct err *err);
