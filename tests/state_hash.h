// The hash of what a run has learnt, for tests that compare how runs end.
#pragma once
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

// Of all tensors of one checkpoint, names and bytes: weights and moments. `folder` is a run's
// checkpoints/.
static inline uint64_t state_hash(const char *folder, int64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    struct checkpoint *c;
    struct hash_stream h;
    struct err err = {0};
    int count;
    CHECK_OK(checkpoint_step_path(folder, step, path, &err), err);
    CHECK_OK(checkpoint_open(path, &c, &err), err);
    const struct tensor *tensors = checkpoint_tensors(c, &count);
    CHECK(count > 10);
    hash_begin(&h);
    for (int i = 0; i < count; i++) {
        void *values = malloc(tensor_bytes(&tensors[i]));
        CHECK(values != NULL);
        CHECK_OK(checkpoint_read(c, tensors[i].name, values, &err), err);
        hash_put(&h, tensors[i].name, strlen(tensors[i].name));
        hash_put(&h, values, tensor_bytes(&tensors[i]));
        free(values);
    }
    checkpoint_close(c);
    return hash_end(&h);
}
