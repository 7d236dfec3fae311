// A saver, as its two sources share it. Inside the room only.
#pragma once
#include "checkpoint/saver.h"
#include <pthread.h>

enum saver_phase { SAVER_IDLE, SAVER_WRITING, SAVER_PUBLISHING, SAVER_DROPPING };
enum saver_job { SAVER_NO_JOB, SAVER_WRITE, SAVER_PUBLISH, SAVER_DROP };

struct saver {
    struct saver_options options;
    char folder[CHECKPOINT_PATH_BYTES], from[CHECKPOINT_PATH_BYTES];
    char final[CHECKPOINT_PATH_BYTES], staging[CHECKPOINT_PATH_BYTES + 8];
    // of the save under way; the trainer writes them while no job runs
    int64_t step;
    int generation; // held; -1: none
    uint64_t session, number;
    double begin;
    enum saver_phase phase; // agreed by all ranks
    json_t *tree;           // rank 0: of the manifest
    uint64_t bytes;
    atomic_int_least64_t pinned;
    int64_t *kept; // options.keep_steps, and room for the pinned one

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool leave;
    atomic_bool stop;
    enum saver_job job;
    bool failed, cancelled;
    struct err why;
};

// The jobs, see saver_work.c.
int saver_write(struct saver *s, struct err *err);
int saver_publish(struct saver *s, struct err *err);
int saver_drop(struct saver *s, struct err *err);
