// What the ranks of a run must agree on before any of them takes memory, and what should be told
// about where they stand.
#pragma once
#include "base/launch.h"
#include "comm/comm.h"
#include "layout/mesh.h"
#include "train/config.h"

// Every rank must run the same program with the same resolved configuration. Otherwise all ranks
// get the same message (ERR_USAGE): which ranks differ from most others, on which hosts, in what.
// All ranks of `world` call it.
int world_check(struct comm *comm, struct comm_stream *world, const struct train_config *config,
                struct err *err);

// Warns, on rank 0 and once, of ranks whose threads do not fit the cores that they may use
// (base/affinity.h), and of tensor parallelism across hosts. All ranks call it.
void world_warn(struct comm *comm, struct comm_stream *world, const struct mesh *mesh,
                const struct launch_environment *launch, int threads);

// "2, 5-7" of the ranks with `marked`; what does not fit becomes "and N more". Returns `out`.
const char *world_ranks_text(const bool *marked, int ranks, char *out, size_t bytes);
// "" or the warning about groups of tensor parallelism that stand on several hosts. `host` names
// the host of each rank.
void world_crossing_text(const struct mesh *mesh, const char *const *host, char *out, size_t bytes);
