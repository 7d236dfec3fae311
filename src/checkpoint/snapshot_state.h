// A snapshot, as its two sources share it. Inside the room only.
#pragma once
#include "base/text.h"
#include "checkpoint/parts.h"
#include "checkpoint/snapshot_parts.h"
#include <pthread.h>

struct block { // to be copied
    const char *from;
    uint64_t to; // in the image
    struct part_rows rows;
};

struct image_part {
    struct text header;
    uint64_t at, bytes; // in the image
};

enum generation_state { GENERATION_EMPTY, GENERATION_COPY, GENERATION_SEAL, GENERATION_WHOLE };

struct generation {
    char part[CHECKPOINT_PATH_BYTES], json[CHECKPOINT_PATH_BYTES];
    struct file_shared memory;
    bool made; // its file was not there before
    enum generation_state state;
    uint64_t number;
    uint64_t order; // of this process: the lowest is written over first
    int64_t step;
    int held;
    json_t *tree;
    struct err why; // it is EMPTY again
};

struct snapshot {
    struct snapshot_options options;
    char folder[CHECKPOINT_PATH_BYTES], run[SNAPSHOT_RUN_BYTES];
    struct tensor_slice *slices;
    int count;
    struct part_list parts;
    struct image_part *images; // [parts]
    struct block *blocks;
    int block_count, block_capacity;
    uint64_t image_bytes, orders;
    struct generation generations[SNAPSHOT_GENERATIONS];

    pthread_t thread;
    bool threaded, leave;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int current;                  // generation that is copied or sealed; -1: none
    int newest;                   // generation that was begun last; -1: none yet
    atomic_int next, done;        // blocks
    double begin, copied, sealed; // clock; seconds
};

void *snapshot_serve(void *snapshot); // the thread that copies and hashes
