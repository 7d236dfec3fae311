// Seconds of messages; see network.h.
//
// A collective takes   start + steps x latency + traffic / bandwidth x (1 + (half / message)^0.7)
// with the traffic of its algorithm per rank. The last factor is the way in which measured
// bandwidth grows with the size of messages: over NVLink 3, 4, 5 and EFA it fits all-reduces of 1
// MiB to 16 GiB within 2 to 8 % on average (tests/cost/network.c has the tables), where a latency
// alone would be off by 2 times in the middle.
#include "cost/network.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- where a group stands -----------------------------------------------------------------------

static int domain_of(const struct cluster *c) {
    return c->domain > 0 ? c->domain : (c->per_node > 0 ? c->per_node : 1);
}

// Leaves hold `nodes_per_leaf` nodes; a domain of several nodes (a rack) counts as those.
static int leaf_of(const struct cluster *c, int rank) {
    int nodes = c->fabric.nodes_per_leaf;
    return nodes > 0 ? rank / (c->per_node > 0 ? c->per_node : 1) / nodes : 0;
}

// Borders between domains that a walk around the group passes, and those of them that are borders
// between leaves.
struct borders {
    int64_t domains, leaves;
};

// Members at 0, stride, 2 stride, ...
static struct borders borders_of_stride(const struct cluster *c, int64_t stride, int64_t count) {
    int64_t domain = domain_of(c), leaf = (int64_t)c->fabric.nodes_per_leaf * c->per_node;
    int64_t last = (count - 1) * stride;
    struct borders b = {.domains = stride < domain ? last / domain : count - 1};
    if (leaf > 0) b.leaves = stride < leaf ? last / leaf : count - 1;
    b.leaves += b.leaves > 0; // from the last one back to the first
    return b;
}

static struct borders borders_of_members(const struct cluster *c, const int *members, int count) {
    struct borders b = {0, 0};
    int domain = domain_of(c);
    for (int i = 1; i < count; i++) {
        if (members[i] / domain == members[i - 1] / domain) continue;
        b.domains++;
        b.leaves += leaf_of(c, members[i]) != leaf_of(c, members[i - 1]);
    }
    if (b.domains > 0) b.leaves += leaf_of(c, members[count - 1]) != leaf_of(c, members[0]);
    return b;
}

static struct borders walk_members(const struct cluster *c, const struct mesh *mesh,
                                   enum mesh_group_kind kind, int kv_heads, int size) {
    int few[64], index, *members = size > 64 ? malloc((size_t)size * sizeof *members) : few;
    if (!members) return (struct borders){size - 1, 0}; // without memory: as if all stood apart
    mesh_group(mesh, 0, kind, kv_heads, members, &index);
    struct borders b = borders_of_members(c, members, size);
    if (members != few) free(members);
    return b;
}

struct network_group network_group_of(const struct cluster *cluster, const struct mesh *mesh,
                                      enum mesh_group_kind kind, int kv_heads) {
    int size = mesh_group_size(mesh, kind, kv_heads), domain = domain_of(cluster);
    int64_t stride, leaf = (int64_t)cluster->fabric.nodes_per_leaf * cluster->per_node;
    bool simple = mesh_group_stride(mesh, kind, kv_heads, &stride) && leaf % domain == 0;
    struct borders b = simple ? borders_of_stride(cluster, stride, size)
                              : walk_members(cluster, mesh, kind, kv_heads, size);
    struct network_group group = {.size = size, .domains = (int)b.domains + 1};
    group.inside = (size + group.domains - 1) / group.domains;
    group.crossing = group.domains > 1 ? (double)b.leaves / group.domains : 0;
    group.beyond_leaf = b.leaves > 0;
    return group;
}

// ---- links as a group meets them ----------------------------------------------------------------

struct way {
    double bandwidth; // that a large message reaches
    double latency, start, half;
};

static struct way fast_way(const struct cluster *c) {
    const struct link *l = &c->fast;
    return (struct way){l->bandwidth.value * l->share.value, l->latency_seconds.value,
                        l->start_seconds.value, l->half_bytes.value};
}

// Ranks stand in order, so that of the neighbours of a ring only `crossing` meet above the leaf
// switches; an oversubscribed fabric slows these down where they are more than it can carry.
static struct way slow_way(const struct cluster *c, double crossing, bool beyond_leaf) {
    const struct link *l = &c->slow;
    struct way way = {l->bandwidth.value * l->share.value, l->latency_seconds.value,
                      l->start_seconds.value, l->half_bytes.value};
    double narrow = crossing * c->fabric.oversubscription.value;
    if (narrow > 1) way.bandwidth /= narrow;
    if (beyond_leaf) way.latency += c->fabric.hop_seconds.value;
    return way;
}

static double transfer(const struct way *way, double traffic, double message) {
    if (!(way->bandwidth > 0)) return INFINITY; // no such link
    double grows = way->half > 0 && message > 0 ? pow(way->half / message, 0.7) : 0;
    return traffic / way->bandwidth * (1 + grows);
}

// How often the ring is gone round, in parts of the vector: twice for an all-reduce.
static double rounds(enum network_kind kind) {
    return kind == NETWORK_ALL_REDUCE ? 2 : 1;
}

// The slower of the links that a ring through all members passes. All members of a domain have a
// rail of their own, so rings in parallel use `inside` of them.
static struct way ring_way(const struct cluster *c, const struct network_group *g) {
    struct way fast = fast_way(c);
    if (g->domains <= 1) return fast;
    struct way slow = slow_way(c, g->crossing, g->beyond_leaf);
    slow.bandwidth *= g->inside;
    slow.half *= g->inside;
    if (g->inside > 1 && fast.bandwidth < slow.bandwidth) slow.bandwidth = fast.bandwidth;
    return slow;
}

static double ring(const struct cluster *c, const struct network_group *g, enum network_kind kind,
                   double bytes) {
    struct way way = ring_way(c, g);
    double n = g->size;
    // what goes round passes each border between domains once, the other steps stay inside
    double slow = g->domains > 1 ? g->domains - (g->inside == 1) : 0;
    double latency = slow * way.latency + (n - 1 - slow) * fast_way(c).latency;
    if (kind == NETWORK_BROADCAST) return way.start + latency + transfer(&way, bytes, bytes);
    return way.start + rounds(kind) * latency +
           transfer(&way, rounds(kind) * (n - 1) / n * bytes, bytes);
}

// Up and down a binary tree of domains, whose members form chains. Between single ranks gathers and
// scatters have such an algorithm too.
static double tree(const struct cluster *c, const struct network_group *g, enum network_kind kind,
                   double bytes) {
    bool possible = kind == NETWORK_ALL_REDUCE || kind == NETWORK_BROADCAST ||
                    (g->inside == 1 && kind != NETWORK_ALL_TO_ALL);
    if (!possible || g->domains <= 1) return INFINITY;
    struct way way = ring_way(c, g), fast = fast_way(c);
    double depth = ceil(log2(g->domains));
    double steps = depth * way.latency + (g->inside - 1) * fast.latency;
    double n = g->domains, traffic = kind == NETWORK_ALL_REDUCE  ? 2 * bytes
                                     : kind == NETWORK_BROADCAST ? bytes
                                                                 : (n - 1) / n * bytes;
    return way.start + rounds(kind) * steps + transfer(&way, traffic, bytes);
}

static double in_switch(const struct cluster *c, const struct network_group *g,
                        enum network_kind kind, double bytes);

// Scatter inside, reduce between, gather inside: only all-reduces are done so by the libraries.
static double two_levels(const struct cluster *c, const struct network_group *g,
                         enum network_kind kind, double bytes) {
    if (kind != NETWORK_ALL_REDUCE || g->domains <= 1 || g->inside <= 1) return INFINITY;
    struct network_group inside = {.size = g->inside, .inside = g->inside, .domains = 1};
    struct network_group between = {.size = g->domains,
                                    .inside = 1,
                                    .domains = g->domains,
                                    .crossing = g->crossing,
                                    .beyond_leaf = g->beyond_leaf};
    double part = bytes / g->inside, across = ring(c, &between, kind, part);
    double other = tree(c, &between, kind, part), switched = in_switch(c, &between, kind, part);
    if (other < across) across = other;
    if (switched < across) across = switched;
    return ring(c, &inside, NETWORK_REDUCE_SCATTER, bytes) + across +
           ring(c, &inside, NETWORK_ALL_GATHER, bytes);
}

// Switches add up and spread the sum: two steps, whatever the number of ranks. NVLink SHARP needs
// more than four ranks to gain.
static double in_switch(const struct cluster *c, const struct network_group *g,
                        enum network_kind kind, double bytes) {
    bool inside = g->domains <= 1;
    const struct link *link = inside ? &c->fast : &c->slow;
    if (kind != NETWORK_ALL_REDUCE || !link->reduces) return INFINITY;
    if (inside ? g->size <= 4 : g->inside > 1) return INFINITY;
    struct way way = inside ? fast_way(c) : slow_way(c, g->crossing, g->beyond_leaf);
    way.bandwidth *= link->reduce_gain.value;
    double n = g->size;
    return way.start + 2 * way.latency + transfer(&way, 2 * (n - 1) / n * bytes, bytes);
}

// Each rank sends `bytes` / size to each: what stays inside and what leaves run side by side. Pairs
// reach less than rings: 0.60 of NVLink 5 against 0.67 (SimuMax's table of B200).
static double direct(const struct cluster *c, const struct network_group *g, enum network_kind kind,
                     double bytes) {
    if (kind != NETWORK_ALL_TO_ALL) return INFINITY;
    const double pairs = 0.88;
    double n = g->size, part = bytes / n / pairs;
    struct way fast = fast_way(c);
    double inside = g->inside > 1 ? fast.start + (g->inside - 1) * fast.latency +
                                        transfer(&fast, (g->inside - 1) * part, bytes)
                                  : 0;
    if (g->domains <= 1) return inside;
    // pairs are spread over all leaves, not only over neighbours
    double leaves = g->crossing * g->domains;
    double apart = leaves > 1 ? 1 - 1 / leaves : 0;
    struct way slow = slow_way(c, apart, g->beyond_leaf);
    double outside = slow.start + (n - g->inside) * slow.latency / g->inside +
                     transfer(&slow, (n - g->inside) * part, bytes);
    return inside > outside ? inside : outside;
}

double network_algorithm_seconds(const struct cluster *cluster, const struct network_group *group,
                                 enum network_kind kind, double bytes,
                                 enum network_algorithm algorithm) {
    if (group->size <= 1 || !(bytes > 0)) return 0;
    switch (algorithm) {
    case NETWORK_RING:
        return kind == NETWORK_ALL_TO_ALL ? INFINITY : ring(cluster, group, kind, bytes);
    case NETWORK_TREE:
        return tree(cluster, group, kind, bytes);
    case NETWORK_TWO_LEVELS:
        return two_levels(cluster, group, kind, bytes);
    case NETWORK_IN_SWITCH:
        return in_switch(cluster, group, kind, bytes);
    case NETWORK_DIRECT:
        return direct(cluster, group, kind, bytes);
    default:
        return INFINITY;
    }
}

// ---- messages that were measured ----------------------------------------------------------------

// Traffic per rank over the vector, by which measurements of other numbers of ranks are scaled.
static double traffic_share(enum hardware_message_kind kind, int ranks) {
    double part = (double)(ranks - 1) / ranks;
    if (kind == MESSAGE_SEND || kind == MESSAGE_BROADCAST) return 1;
    return kind == MESSAGE_ALL_REDUCE ? 2 * part : part;
}

// The measured number of ranks next to `ranks`; 0: none of this kind.
static int nearest_ranks(const struct cluster *c, enum hardware_message_kind kind, int ranks) {
    int best = 0;
    for (int i = 0; i < c->message_count; i++) {
        if (c->messages[i].kind != kind) continue;
        int found = c->messages[i].ranks;
        if (best == 0 || abs(found - ranks) < abs(best - ranks)) best = found;
    }
    return best;
}

// Between two sizes on a line in logarithms; below the smallest its time, beyond the largest its
// bandwidth.
static double measured(const struct cluster *c, enum hardware_message_kind kind, int ranks,
                       double bytes) {
    int nearest = nearest_ranks(c, kind, ranks);
    if (nearest == 0) return INFINITY;
    const struct hardware_message *below = NULL, *above = NULL;
    for (int i = 0; i < c->message_count; i++) {
        const struct hardware_message *m = &c->messages[i];
        if (m->kind != kind || m->ranks != nearest) continue;
        if (m->bytes <= bytes && (!below || m->bytes > below->bytes)) below = m;
        if (m->bytes >= bytes && (!above || m->bytes < above->bytes)) above = m;
    }
    double seconds;
    if (!below && !above) return INFINITY;
    if (!below)
        seconds = above->seconds;
    else if (!above)
        seconds = below->seconds * bytes / below->bytes;
    else if (above->bytes == below->bytes)
        seconds = below->seconds;
    else {
        double at = log(bytes / below->bytes) / log(above->bytes / below->bytes);
        seconds = below->seconds * pow(above->seconds / below->seconds, at);
    }
    return seconds * traffic_share(kind, ranks) / traffic_share(kind, nearest);
}

static enum hardware_message_kind message_of(enum network_kind kind) {
    switch (kind) {
    case NETWORK_ALL_REDUCE:
        return MESSAGE_ALL_REDUCE;
    case NETWORK_REDUCE_SCATTER:
        return MESSAGE_REDUCE_SCATTER;
    case NETWORK_ALL_GATHER:
        return MESSAGE_ALL_GATHER;
    case NETWORK_ALL_TO_ALL:
        return MESSAGE_ALL_TO_ALL;
    default:
        return MESSAGE_BROADCAST;
    }
}

// ---- what the rest of the program asks ----------------------------------------------------------

double network_seconds(const struct cluster *cluster, const struct network_group *group,
                       enum network_kind kind, double bytes, enum network_algorithm *chosen) {
    enum network_algorithm best = NETWORK_MEASURED;
    double seconds = 0;
    if (group->size > 1 && bytes > 0)
        seconds = measured(cluster, message_of(kind), group->size, bytes);
    if (!isfinite(seconds))
        for (int a = NETWORK_RING; a <= NETWORK_DIRECT; a++) {
            double found =
                network_algorithm_seconds(cluster, group, kind, bytes, (enum network_algorithm)a);
            if (a > NETWORK_RING && !(found < seconds)) continue;
            seconds = found;
            best = (enum network_algorithm)a;
        }
    if (chosen) *chosen = best;
    return seconds;
}

double network_send_seconds(const struct cluster *cluster, const struct mesh *mesh,
                            enum mesh_axis axis, double bytes) {
    if (mesh->size[axis] <= 1 || !(bytes > 0)) return 0;
    double seconds = measured(cluster, MESSAGE_SEND, 2, bytes);
    if (isfinite(seconds)) return seconds;
    int stride = (int)mesh_axis_stride(mesh, axis), domain = domain_of(cluster);
    bool leaves = (int64_t)stride * mesh->size[axis] > domain;
    bool beyond =
        leaves && leaf_of(cluster, 0) != leaf_of(cluster, stride * (mesh->size[axis] - 1));
    // neighbours `stride` ranks apart: so many of a leaf's nodes send across its border
    double leaf = (double)cluster->fabric.nodes_per_leaf * cluster->per_node;
    double crossing = beyond ? (stride < leaf ? stride / leaf : 1) : 0;
    struct way way = leaves ? slow_way(cluster, crossing, beyond) : fast_way(cluster);
    const struct link *link = leaves ? &cluster->slow : &cluster->fast;
    // one send has a channel or two to its peer, a collective all of them
    if (link->send_share.value > 0) way.bandwidth *= link->send_share.value / link->share.value;
    return way.latency + transfer(&way, bytes, bytes);
}
