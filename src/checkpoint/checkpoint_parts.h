// An opened checkpoint, as the sources of the room share it, and the last step of a save.
#pragma once
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include <pthread.h>
#include <stdatomic.h>

struct checkpoint {
    char path[CHECKPOINT_PATH_BYTES];
    struct manifest manifest;
    pthread_mutex_t lock;
    int *files;     // [parts] descriptors, -1: not open
    int files_open; // at most CHECKPOINT_MOST_FILES stay open
    atomic_uint_least64_t read_bytes;
};

enum { CHECKPOINT_MOST_FILES = 256 };

int checkpoint_part_path(const struct checkpoint *c, int part, char out[CHECKPOINT_PATH_BYTES],
                         struct err *err);
// Copies `box` of a stored tensor to `out`, whose rows are `stride` elements apart. Any number of
// threads may read.
int checkpoint_read_box(const struct checkpoint *c, int tensor, struct box box, void *out,
                        int64_t stride, struct err *err);

// Puts the finished staging folder in its place. What stands there (an earlier save of the step, or
// something without a manifest) changes places with it in one atomic call and is removed
// afterwards.
int checkpoint_publish(const char *staging, const char *final, struct err *err);
