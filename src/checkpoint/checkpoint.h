// Training checkpoints: everything that a run needs to go on with the same bits, as a folder per
// step.
//
//   FOLDER/step_00000020/            complete: was renamed from step_00000020.tmp after everything
//   in it was durable
//     part-00001.safetensors ...     of one process: tensors, split by size; any safetensors reader
//                                    opens them
//     rank-00003-part-00001.safetensors ...   of several: the pieces that rank 3 wrote
//     manifest.json                  written last: state, model, every tensor with its logical
//                                    shape, and of every part size, XXH3, rank and pieces
//
// A folder counts as a checkpoint only when its manifest reads well, the pieces tile every tensor,
// and every part has the size and hash that it names. Whatever else lies in FOLDER (notes/, other
// programs' folders, staging of another process) is never touched.
//
// Names: weights are tensors named as their param ("layers.0.attention.qkv.weight"), the FP32
// masters (bf16 = round(master) on load); moments end in ".moment1" and ".moment2". Shapes are
// logical: [rows, columns], or [rows] for a vector; padding rows are not stored. Tensors of other
// names may stand beside them. A piece that is not a whole tensor is named by its place in it,
// "embedding.weight@12:24,0:64".
//
// Several ranks. Functions with a `world` (a stream over all ranks, or NULL for one process) are
// collective: every rank calls them, and they succeed or fail on all, with the same message that
// names the rank. What was saved under one layout is loaded under any other; nothing in the files
// depends on it but the cuts. The folder must be the same for all ranks (its path may differ). No
// message is open while files are written or read, so the watchdog of the messages does not limit
// the time that this takes.
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "base/slice.h"
#include "base/tensor.h"
#include "comm/comm.h"
#include "model/model.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKPOINT_PATH_BYTES = 4096 };

struct checkpoint_state {
    int64_t step;    // optimizer steps done
    int64_t samples; // sequences drawn so far: the one cursor of the data order
    int64_t tokens;  // processed so far
    uint64_t seed;
    const char *config;  // the resolved configuration as text
    const char *binary;  // version_digest() of the program that saved
    const char *gemm;    // library and version, "oneDNN 2.6.0"
    const char *isa;     // instruction set that the kernels used, "avx512_bf16"
    const json_t *extra; // object for whatever else the run wants back, or NULL
};

struct checkpoint_saved {
    char path[CHECKPOINT_PATH_BYTES];
    uint64_t bytes;     // of all files
    uint64_t own_bytes; // of the parts that this rank wrote
    double seconds;
};

// Writes the checkpoint of state->step below `folder` (made when absent). When this returns 0 it is
// complete and durable; when it fails, nothing of it counts as a checkpoint, earlier ones are as
// they were, and staging is removed. A leftover of an earlier attempt at the same step is replaced;
// a complete one of the same step too, only at the rename. `tensors` must not change meanwhile;
// nothing else is shared, so a second thread may call this on a snapshot. `part_bytes` 0: 512 MB.
// `saved` may be NULL.
int checkpoint_save(const char *folder, const struct model_config *model,
                    const struct tensor *tensors, int count, const struct checkpoint_state *state,
                    uint64_t part_bytes, struct checkpoint_saved *saved, struct err *err);
// The same of a state that is spread over ranks. Each rank gives the slices that it holds, of
// tensors of one or two dimensions; together they must hold every element of every tensor, and only
// ranks that count as copies of each other the same ones. Copies share the writing, to the byte
// where a piece is large. `state` and `model` (of the whole model) are rank 0's; the step must be
// the same on all.
int checkpoint_save_slices(const char *folder, const struct model_config *model,
                           const struct tensor_slice *slices, int count,
                           const struct checkpoint_state *state, uint64_t part_bytes,
                           struct comm_stream *world, struct checkpoint_saved *saved,
                           struct err *err);
// A whole tensor (one or two dimensions) as the slice that is all of it.
struct tensor_slice checkpoint_whole_slice(const struct tensor *t);

struct checkpoint; // an opened and verified one

// The newest complete checkpoint below `folder`. Folders that are not complete are passed over,
// each with a log line (LOG_WARN) that says why. None at all: *out is NULL and the result is 0;
// only when some have a manifest, and none is valid, it is an error.
int checkpoint_open_newest(const char *folder, struct checkpoint **out, struct err *err);
// One given step folder; any fault is an error that names the file.
int checkpoint_open(const char *path, struct checkpoint **out, struct err *err);
// The same for several ranks: rank 0 decides which step, all open that one, and each verifies its
// share of the parts.
int checkpoint_open_newest_world(const char *folder, struct comm_stream *world,
                                 struct checkpoint **out, struct err *err);
int checkpoint_open_world(const char *path, struct comm_stream *world, struct checkpoint **out,
                          struct err *err);
void checkpoint_close(struct checkpoint *c);

const char *checkpoint_path(const struct checkpoint *c);
const struct checkpoint_state *checkpoint_state(const struct checkpoint *c); // lives as long as `c`
const struct model_config *checkpoint_model(const struct checkpoint *c);
// Tensors as stored, by name, described only (`data` is NULL); find: NULL when there is none.
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);
const struct tensor *checkpoint_tensors(const struct checkpoint *c, int *count);
// Reads one whole tensor; values that are not finite are refused (name and index).
int checkpoint_read(const struct checkpoint *c, const char *name, void *out, struct err *err);
// `count` of its elements from `first` on.
int checkpoint_read_range(const struct checkpoint *c, const char *name, int64_t first,
                          int64_t count, void *out, struct err *err);

// Copies the stored values into tensors[i].data (same name, type and shape). Every tensor asked for
// must be there, and every stored one must be asked for: differences are listed by name. Values
// that are not finite are refused (name and index).
int checkpoint_load(const struct checkpoint *c, const struct tensor *tensors, int count,
                    struct err *err);

// Fills the slices' memory, reading only the bytes that they hold, whatever the layout that saved.
// Every stored tensor must be asked for by some rank. `copy` and `copies` mean nothing here.
int checkpoint_load_slices(const struct checkpoint *c, const struct tensor_slice *slices, int count,
                           struct comm_stream *world, struct err *err);
// Bytes that this process has read of the parts. All: with its share of the verification, which
// reads whole parts before anything is loaded (that of snapshots is done in memory and not
// counted). checkpoint_verified_bytes: that share alone.
uint64_t checkpoint_read_bytes(const struct checkpoint *c);
uint64_t checkpoint_verified_bytes(const struct checkpoint *c);

// Which checkpoints stay: the newest `keep_last` (at least 1), every step divisible by `keep_every`
// (0: none), the pinned ones. The newest valid one always stays. Order is numeric. Only folders of
// complete checkpoints written by this program are removed, and staging is left alone; a failure to
// remove is a log line. Returns the number removed.
struct checkpoint_retention {
    int keep_last;
    int64_t keep_every;
    const int64_t *pinned;
    int pinned_count;
    int64_t saved_step; // just saved by this process, so known to be valid; -1: the newest is read
                        // and verified
};
int checkpoint_retain(const char *folder, const struct checkpoint_retention *keep);

// Checkpoints of steps above `step` get another name, so that they are no checkpoints any more;
// when the run has come past them again, what was put aside goes.
int checkpoint_set_aside(const char *folder, int64_t step, struct err *err);
void checkpoint_drop_aside(const char *folder, int64_t step);

// Steps that look like checkpoints (named step_N with a manifest that reads well; parts present
// with the right size), ascending; free() the list.
int checkpoint_list(const char *folder, int64_t **steps, int *count, struct err *err);
int checkpoint_step_path(const char *folder, int64_t step, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err);
