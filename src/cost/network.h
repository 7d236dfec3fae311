// Seconds of messages on a cluster: which links a group of ranks crosses, and collectives by ring,
// tree or in two levels (inside domains, then between them), the quickest of which holds.
#pragma once
#include "hardware/hardware.h"
#include "layout/mesh.h"
#include <stdbool.h>

// A group of ranks as the network sees it. Ranks stand on nodes in order (rank r on node r /
// per_node), and every accelerator has its own part of the node's rails (link.bandwidth), so groups
// of one kind that run at the same time do not take bandwidth from each other below a leaf switch.
struct network_group {
    int size;
    int inside;       // members that share a domain (the same in each domain it touches)
    int domains;      // size / inside
    double crossing;  // share of neighbouring domains that stand below different leaf switches
    bool beyond_leaf; // some do
};
struct network_group network_group_of(const struct cluster *cluster, const struct mesh *mesh,
                                      enum mesh_group_kind kind, int kv_heads);

enum network_kind {
    NETWORK_ALL_REDUCE,
    NETWORK_REDUCE_SCATTER,
    NETWORK_ALL_GATHER,
    NETWORK_ALL_TO_ALL,
    NETWORK_BROADCAST,
    NETWORK_KINDS
};
enum network_algorithm {
    NETWORK_RING,
    NETWORK_TREE,
    NETWORK_TWO_LEVELS, // inside domains, then between them, then inside
    NETWORK_IN_SWITCH,
    NETWORK_DIRECT,  // all-to-all: every pair by itself
    NETWORK_MEASURED // interpolated between messages measured on this cluster
};

// `bytes`: of the whole vector: what each rank holds before an all-reduce or reduce-scatter and
// after an all-gather; what each rank sends in an all-to-all, its own part included. A ring
// all-reduce of N ranks moves 2 (N - 1) / N bytes, a gather or scatter (N - 1) / N. `chosen` may be
// NULL.
double network_seconds(const struct cluster *cluster, const struct network_group *group,
                       enum network_kind kind, double bytes, enum network_algorithm *chosen);
// One algorithm alone; INFINITY where it cannot do this.
double network_algorithm_seconds(const struct cluster *cluster, const struct network_group *group,
                                 enum network_kind kind, double bytes,
                                 enum network_algorithm algorithm);
// Between neighbours along an axis. Between domains where any pair of neighbours is in different
// ones: a pipeline runs at the pace of its slowest boundary.
double network_send_seconds(const struct cluster *cluster, const struct mesh *mesh,
                            enum mesh_axis axis, double bytes);
