// An opened checkpoint, as the sources of the room share it, and the last step of a save.
#pragma once
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include <pthread.h>
#include <stdatomic.h>

// Where a part of a snapshot lies: in an image that this rank's host has, or with another rank.
struct checkpoint_source {
    char *path; // NULL: not here
    uint64_t offset;
    int provider; // world rank that reads it for those that have none; -1: none is needed
};

struct checkpoint {
    char path[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    pthread_mutex_t lock;
    int *files;                        // [parts] descriptors, -1: not open
    int files_open;                    // at most CHECKPOINT_MOST_FILES stay open
    struct checkpoint_source *sources; // [parts] of a snapshot; NULL: files of `path`
    atomic_uint_least64_t read_bytes, verified_bytes; // of tensors; of whole parts and headers
};

enum { CHECKPOINT_MOST_FILES = 256 };

int checkpoint_part_path(const struct checkpoint *c, int part, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err);
// Opens a part for reading; close(out->fd) when `temporary`, and free(out->path). *offset is where
// its bytes begin in that file.
struct safetensors;
int checkpoint_open_part(struct checkpoint *c, int part, struct safetensors *out, uint64_t *offset,
                         bool *temporary, struct err *err);
// Fills those boxes of the slices whose parts only other ranks see: ranks send each other what they
// lack, a little at a time. Collective.
int checkpoint_exchange(struct checkpoint *c, const struct tensor_slice *slices, int count,
                        struct comm_stream *world, struct err *err);
// Copies `box` of a stored tensor to `out`, whose rows are `stride` elements apart. Any number of
// threads may read.
int checkpoint_read_box(const struct checkpoint *c, int tensor, struct box box, void *out,
                        int64_t stride, struct err *err);

// Puts the finished staging folder in its place. What stands there (an earlier save of the step, or
// something without a manifest) changes places with it in one atomic call and is removed
// afterwards.
int checkpoint_publish(const char *staging, const char *final, struct err *err);

#define CHECKPOINT_REMOVING ".removing" // behind the name of one that is on its way out

// Folders named as step folders, ascending; free() the list. A folder that does not exist has none.
struct checkpoint_place {
    int64_t step;
    char name[64];
};
int checkpoint_places(const char *folder, struct checkpoint_place **out, int *count,
                      struct err *err);
// The manifest is whole, names this step, and all parts are there with their sizes.
bool checkpoint_looks_complete(const char *path, int64_t step);
// Says why one cannot be had. True: it was one (it has a manifest).
bool checkpoint_pass_over(const char *folder, const char *name, const struct err *why);
