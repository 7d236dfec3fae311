// The ranks of a launch, for runs and benchmarks: how they come together, and what the engine is
// told of them.
#pragma once
#include "base/launch.h"
#include "base/record.h"
#include "comm/comm.h"
#include "engine/engine.h"
#include "train/config.h"

// Opens the communication with the other processes of the launch; *out stays NULL where there are
// none (`launch` NULL, or one rank), and MPI is not touched then.
int parallel_join(const struct train_config *config, const struct launch_environment *launch,
                  uint64_t trace_spans, struct comm **out, struct err *err);

// A stream over all ranks.
struct comm_stream *parallel_world(struct comm *comm, const char *name, struct err *err);

// `comm` NULL: one process. `layout` is kept; *schedule_csv, which the caller frees, too.
int parallel_describe(const struct train_config *config, struct comm *comm,
                      const struct layout *layout, char **schedule_csv, struct engine_parallel *out,
                      struct err *err);

// Writes this rank's timeline; `path` gets the name of its file. `comm` NULL: one process.
int parallel_write_trace(const char *wanted, struct comm *comm,
                         const struct record_lane *const *lanes, int count, char *path,
                         size_t path_bytes, struct err *err);
