// Where a rank stands: the world of a run cut along four axes, a value that is passed along and
// never a global, so that several models may live in one process.
//
//   pp  pipeline stages        dp  replicas with other samples
//   cp  parts of a sequence    tp  parts of each matrix
//
// Experts have a grid of their own on the same ranks: with d = dp_index * cp + cp_index, the "data
// index" of a rank, expert parallelism cuts d into ep consecutive ranks (they hold different
// experts) and d / ep replicas of them. pp and tp are shared by both grids.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

enum mesh_axis { MESH_PP, MESH_DP, MESH_CP, MESH_TP, MESH_AXES };
const char *mesh_axis_name(enum mesh_axis axis); // "pp"

struct mesh {
    int size[MESH_AXES];
    enum mesh_axis
        order[MESH_AXES]; // outermost first; the last one's neighbours are ranks r, r + 1
    int ep;               // divides dp x cp
    int shard; // ranks that share one copy of the sharded states (ZeRO); divides dp x cp.
               // Less than dp x cp: hybrid, shards inside a group, copies across
};

// Sets of ranks that talk to each other. All ranks of a group have the same coordinates along the
// axes that the group does not name. Members stand in ascending index along the axes (dp before
// cp), which is the order of every sum; those of GROUP_WORLD in ascending rank.
enum mesh_group_kind {
    GROUP_WORLD,
    GROUP_PP,
    GROUP_DP,
    GROUP_CP,
    GROUP_TP,
    GROUP_DATA,        // dp x cp: ranks with other tokens; gradients are summed over it
    GROUP_SHARD,       // `shard` consecutive ones of GROUP_DATA: one copy of sharded states
    GROUP_REPLICA,     // ranks of GROUP_DATA with the same place in their GROUP_SHARD
    GROUP_EP,          // ranks of GROUP_DATA that hold the different experts
    GROUP_EXPERT_DATA, // ranks of GROUP_DATA with the same experts; their gradients are summed over
                       // it
    GROUP_EXPERT_SHARD, // as GROUP_SHARD, inside GROUP_EXPERT_DATA: min(shard, size) ranks
    GROUP_EXPERT_REPLICA,
    GROUP_KV, // ranks of GROUP_TP that hold the same key/value head (mesh_kv_group)
    GROUP_KIND_COUNT
};
const char *mesh_group_name(enum mesh_group_kind kind); // "data", "expert_data"

int mesh_ranks(const struct mesh *mesh); // product of the sizes
int mesh_rank(const struct mesh *mesh, const int at[MESH_AXES]);
void mesh_at(const struct mesh *mesh, int rank, int at[MESH_AXES]);
int mesh_data_index(const struct mesh *mesh, int rank); // dp_index * cp + cp_index
// Fills `members` (room for mesh_ranks) with the world ranks of the group of this kind that holds
// `rank`; returns how many, and in *index the place of `rank` among them. `kv_heads` is read for
// GROUP_KV only (of the whole model; kv_heads >= tp gives groups of one).
int mesh_group(const struct mesh *mesh, int rank, enum mesh_group_kind kind, int kv_heads,
               int *members, int *index);

int64_t mesh_axis_stride(const struct mesh *mesh, enum mesh_axis axis); // between neighbours
// Of the group that holds rank 0: true where its members are 0, s, 2 s, ... for a stride s, which
// is how groups stand but for some that run across dp and cp.
bool mesh_group_stride(const struct mesh *mesh, enum mesh_group_kind kind, int kv_heads,
                       int64_t *stride);
// Its size alone, and whether `rank` is its first member.
int mesh_group_size(const struct mesh *mesh, enum mesh_group_kind kind, int kv_heads);
bool mesh_group_leads(const struct mesh *mesh, int rank, enum mesh_group_kind kind, int kv_heads);

// Sizes >= 1, each axis once in `order`, ep and shard divide dp x cp, min(shard, n) divides the n =
// dp x cp / ep ranks that share an expert, and the product is `ranks`. Messages say which number
// does not divide which, and name nearest values that do.
int mesh_check(const struct mesh *mesh, int ranks, struct err *err);
// Fills in what the world leaves over, dp where it is 0 and shard where it is 0 (dp x cp), and
// checks.
int mesh_complete(struct mesh *mesh, int ranks, struct err *err);
// Reads an order such as "pp,dp,cp,tp".
int mesh_parse_order(const char *text, enum mesh_axis order[MESH_AXES], struct err *err);

// The divisors of `number` next to `value`, for messages: "2 or 4", "8".
const char *mesh_nearest_divisors(int64_t number, int64_t value, char out[64]);
