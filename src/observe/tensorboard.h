// Scalars for TensorBoard: an event file in TFRecord framing (length, masked CRC, protobuf message,
// masked CRC), written without a protobuf library.
//
// A resumed run opens a new file in the same folder; its first message says at which step it goes
// on, and TensorBoard drops later points of earlier files.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include <stdint.h>

struct tensorboard {
    struct file_writer file;
};

// `step`: the first one that will be written. The folder must exist.
int tensorboard_open(struct tensorboard *t, const char *folder, int64_t step, struct err *err);
// Points of one step: `count` tags ("loss", "rate/tokens_per_second") with values.
int tensorboard_scalars(struct tensorboard *t, int64_t step, const char *const *tags,
                        const double *values, int count, struct err *err);
int tensorboard_close(struct tensorboard *t, struct err *err);
