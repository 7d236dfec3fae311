// Work that each rank does for itself and that succeeds or fails for all: files written, read,
// hashed. Inside the room only.
//
// Such work may take longer than a message is allowed to be in flight (a disk that stalls in fsync,
// one rank with more bytes than the others). So a thread of its own does it, while the caller
// exchanges a few bytes with the other ranks every now and then: no operation stays open, and the
// ranks learn of a failure within a second.
#pragma once
#include "base/error.h"
#include "comm/comm.h"
#include <stdatomic.h>

// Returns 0 or -1 with `err`. `stop` becomes true when another rank has failed: what follows is in
// vain.
typedef int together_work(void *context, const atomic_bool *stop, struct err *err);

// Collective over `world` (NULL: one process, the work simply runs). `work` NULL: nothing to do
// here. When it failed anywhere every rank returns -1 with the message of the lowest such rank,
// with "<who> N: " in front unless `who` is NULL or there is one rank.
//
// A disk may also stall for good. Work that has not ended within `limit_seconds` fails the world,
// with a message that names the rank; together_run allows TOGETHER_LIMIT_SECONDS.
enum { TOGETHER_LIMIT_SECONDS = 3600 };
int together_run(struct comm_stream *world, const char *who, together_work *work, void *context,
                 struct err *err);
int together_run_within(struct comm_stream *world, double limit_seconds, const char *who,
                        together_work *work, void *context, struct err *err);

int together_rank(struct comm_stream *world); // 0 for NULL
int together_size(struct comm_stream *world); // 1 for NULL
// Waits; -1 when the communication has failed.
int together_wait(struct comm_stream *world, struct comm_event event, struct err *err);
// The same number on all ranks? 1 or 0; -1 when the communication has failed.
int together_same(struct comm_stream *world, uint64_t value, struct err *err);
