// Scalars in the event format that TensorBoard reads: records framed as TFRecord (length, masked
// CRC-32C of the length, payload, masked CRC-32C of the payload), the payload an `Event` protocol
// buffer.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stddef.h>
#include <stdint.h>

struct tensorboard {
    int fd; // -1: closed
    char path[4096];
    // kept, so that a step in the middle of a run allocates nothing
    struct text value, summary, event, record;
};

// Appends to a new file "events.out.tfevents.<time>.<host>" in `folder`, beginning with the version
// record.
int tensorboard_open(struct tensorboard *board, const char *folder, double wall_seconds,
                     struct err *err);

// Says that the run goes on at `step` after an interruption: TensorBoard drops points at or behind
// it from earlier files of the folder.
int tensorboard_resume(struct tensorboard *board, double wall_seconds, int64_t step,
                       struct err *err);

struct tensorboard_scalar {
    const char *tag; // "train/loss"
    double value;    // stored as float
};
// One event with all scalars of a step, written at once.
int tensorboard_put(struct tensorboard *board, double wall_seconds, int64_t step,
                    const struct tensorboard_scalar *scalars, size_t count, struct err *err);
void tensorboard_close(struct tensorboard *board);

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) and TFRecord's mask of it:
// rotate right by 15 bits, add 0xa282ead8.
uint32_t tensorboard_crc32c(const void *data, size_t bytes);
uint32_t tensorboard_masked_crc32c(const void *data, size_t bytes);
