// Messages: worked values of ring algorithms, which links groups cross, measured collectives of
// others.
#include "cost/network.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct catalogue *catalogue;
static struct cluster cluster_of(const char *text) {
    struct cluster cluster;
    struct err err = {0};
    if (!catalogue) CHECK_OK(catalogue_open(&catalogue, &err), err);
    CHECK_OK(catalogue_cluster(catalogue, text, &cluster, &err), err);
    return cluster;
}

static struct mesh mesh_of(int pp, int dp, int cp, int tp) {
    struct mesh mesh = {.size = {[MESH_PP] = pp, [MESH_DP] = dp, [MESH_CP] = cp, [MESH_TP] = tp},
                        .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                        .ep = 1,
                        .shard = 1};
    return mesh;
}

// A link without latency, start or loss: what is left is traffic over bandwidth.
static struct cluster bare(int nodes, int per_node, double fast, double slow) {
    return (struct cluster){.name = "bare",
                            .nodes = nodes,
                            .per_node = per_node,
                            .domain = per_node,
                            .fast = {.bandwidth.value = fast, .share.value = 1},
                            .slow = {.bandwidth.value = slow, .share.value = 1},
                            .fabric.oversubscription.value = 1};
}

static double seconds(const struct cluster *c, int inside, int domains, enum network_kind kind,
                      double bytes) {
    struct network_group group = {.size = inside * domains, .inside = inside, .domains = domains};
    return network_seconds(c, &group, kind, bytes, NULL);
}

// 4 ranks: 1.5 times the message; N ranks 2 (N - 1) / N.
TEST(network_ring_traffic) {
    struct cluster c = bare(1, 64, 1e9, 0);
    CHECK_CLOSE(seconds(&c, 4, 1, NETWORK_ALL_REDUCE, 1e9), 1.5, 1e-12);
    for (int n = 2; n <= 64; n *= 2) {
        double part = (n - 1.0) / n;
        CHECK_CLOSE(seconds(&c, n, 1, NETWORK_ALL_REDUCE, 1e9), 2 * part, 1e-12);
        CHECK_CLOSE(seconds(&c, n, 1, NETWORK_ALL_GATHER, 1e9), part, 1e-12);
        CHECK_CLOSE(seconds(&c, n, 1, NETWORK_REDUCE_SCATTER, 1e9), part, 1e-12);
        CHECK_CLOSE(seconds(&c, n, 1, NETWORK_ALL_TO_ALL, 1e9), part / 0.88, 1e-12);
    }
    CHECK_CLOSE(seconds(&c, 1, 1, NETWORK_ALL_REDUCE, 1e9), 0, 0);
}

// Micro-batch 2 of 4,096 tokens of a model 8,192 wide, 16 bit: 134 MB, an all-reduce over 8 moves
// 235 MB, 0.52 ms at NVLink 4's 450 GB/s; 20 layers x 4 x 8 micro-batches take 334 ms.
TEST(network_tensor_parallel_worked) {
    struct cluster c = bare(1, 8, 450e9, 0);
    double once = seconds(&c, 8, 1, NETWORK_ALL_REDUCE, 2.0 * 4096 * 8192 * 2);
    CHECK_CLOSE(once * 1e3, 0.522, 1e-3);
    CHECK_CLOSE(once * 20 * 4 * 8, 0.334, 1e-3);
}

// ZeRO-3's gather of 140 GB over 32 model ranks and 16 data ranks at 50 GB/s: 82 ms.
TEST(network_gather_worked) {
    struct cluster c = bare(64, 8, 450e9, 50e9);
    CHECK_CLOSE(seconds(&c, 1, 16, NETWORK_ALL_GATHER, 140e9 / 32), 0.082, 1e-2);
    // flat in the number of ranks but for latency
    double few = seconds(&c, 1, 16, NETWORK_ALL_GATHER, 1e9),
           many = seconds(&c, 1, 1024, NETWORK_ALL_GATHER, 1e9);
    CHECK_CLOSE(many / few, (1023.0 / 1024) / (15.0 / 16), 1e-9);
    struct cluster real = cluster_of("dgx-h100:8192");
    CHECK(seconds(&real, 1, 1024, NETWORK_ALL_GATHER, 1e9) >
          seconds(&real, 1, 16, NETWORK_ALL_GATHER, 1e9));
}

// One direction against one: NVLink 4 over NDR is nine.
TEST(network_links_ratio) {
    struct cluster c = bare(2, 8, 450e9, 50e9);
    CHECK_CLOSE(seconds(&c, 1, 2, NETWORK_ALL_REDUCE, 1e9) /
                    seconds(&c, 2, 1, NETWORK_ALL_REDUCE, 1e9),
                9, 1e-9);
}

// Half the bandwidth in the file: twice the bandwidth term, latency and compute unchanged.
TEST(network_half_the_bandwidth) {
    struct cluster c = cluster_of("dgx-h100:64"), slower = c;
    slower.slow.bandwidth.value /= 2;
    for (int kind = 0; kind < NETWORK_KINDS; kind++) {
        double latency = seconds(&c, 1, 8, (enum network_kind)kind, 1e-3);
        double a = seconds(&c, 1, 8, (enum network_kind)kind, 4e9) - latency,
               b = seconds(&slower, 1, 8, (enum network_kind)kind, 4e9) - latency;
        CHECK_CLOSE(b / a, 2, 0.05);
    }
    CHECK_CLOSE(seconds(&slower, 8, 1, NETWORK_ALL_REDUCE, 1e8) /
                    seconds(&c, 8, 1, NETWORK_ALL_REDUCE, 1e8),
                1, 1e-12);
}

// tp inside nodes, dp one rank a node, pp outermost.
TEST(network_groups_of_a_mesh) {
    struct cluster c = cluster_of("dgx-h100:512"); // 64 nodes, 32 below a leaf
    struct mesh mesh = mesh_of(4, 16, 1, 8);
    struct network_group tp = network_group_of(&c, &mesh, GROUP_TP, 8);
    CHECK_EQ_INT(tp.size, 8);
    CHECK_EQ_INT(tp.inside, 8);
    CHECK_EQ_INT(tp.domains, 1);
    struct network_group data = network_group_of(&c, &mesh, GROUP_DATA, 8);
    CHECK_EQ_INT(data.size, 16);
    CHECK_EQ_INT(data.inside, 1);
    CHECK_EQ_INT(data.domains, 16);
    CHECK(!data.beyond_leaf); // nodes 0 to 15
    struct mesh wide = mesh_of(1, 512, 1, 1);
    struct network_group all = network_group_of(&c, &wide, GROUP_DATA, 8);
    CHECK_EQ_INT(all.inside, 8);
    CHECK_EQ_INT(all.domains, 64);
    CHECK(all.beyond_leaf);
    CHECK_CLOSE(all.crossing, 2.0 / 64, 1e-12); // a ring passes the border twice
    struct mesh across = mesh_of(1, 32, 1, 16); // tp over two nodes
    struct network_group two = network_group_of(&c, &across, GROUP_TP, 8);
    CHECK_EQ_INT(two.inside, 8);
    CHECK_EQ_INT(two.domains, 2);
    struct network_group pipeline = network_group_of(&c, &mesh, GROUP_PP, 8);
    CHECK_EQ_INT(pipeline.size, 4);
    CHECK_EQ_INT(pipeline.domains, 4);
    CHECK_CLOSE(pipeline.crossing, 0.5, 1e-12); // 16 nodes a stage: 2 of 4 borders
}

// The short way to a group's borders against a walk over its members, for groups of all kinds.
TEST(network_groups_by_stride) {
    static const enum mesh_axis orders[][MESH_AXES] = {{MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                                       {MESH_DP, MESH_PP, MESH_CP, MESH_TP},
                                                       {MESH_CP, MESH_DP, MESH_TP, MESH_PP},
                                                       {MESH_TP, MESH_CP, MESH_PP, MESH_DP}};
    struct cluster c = cluster_of("dgx-h100:4096");
    c.fabric.nodes_per_leaf = 4;
    static int members[4096];
    for (int n = 0; n < 4 * 64; n++) {
        struct mesh mesh = mesh_of(1 << (n & 3), 8, 1 << (n >> 2 & 3), 1 << (n >> 4 & 3));
        memcpy(mesh.order, orders[n >> 6], sizeof mesh.order);
        mesh.ep = 4;
        mesh.shard = 2;
        for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
            struct network_group group = network_group_of(&c, &mesh, (enum mesh_group_kind)kind, 4);
            int index, count = mesh_group(&mesh, 0, (enum mesh_group_kind)kind, 4, members, &index);
            int domains = 1, leaves = 0;
            for (int i = 0; i < count; i++) {
                int next = members[(i + 1) % count];
                domains += i + 1 < count && next / 8 != members[i] / 8;
                leaves += next / 32 != members[i] / 32;
            }
            CHECK_EQ_INT(group.size, count);
            CHECK_EQ_INT(group.domains, domains);
            CHECK_CLOSE(group.crossing * domains, leaves, 1e-9);
        }
    }
}

// A ring over whole nodes uses all their rails; one rank a node has one.
TEST(network_rails) {
    struct cluster c = bare(4, 8, 450e9, 50e9);
    double whole = seconds(&c, 8, 4, NETWORK_ALL_GATHER, 1e9);
    CHECK_CLOSE(whole, 31.0 / 32 / 400, 1e-9);
    CHECK_CLOSE(seconds(&c, 1, 4, NETWORK_ALL_GATHER, 1e9), 0.75 / 50, 1e-9);
    // never more than the fast link gives
    struct cluster d = bare(4, 8, 100e9, 50e9);
    CHECK_CLOSE(seconds(&d, 8, 4, NETWORK_ALL_GATHER, 1e9), 31.0 / 32 / 100, 1e-9);
}

// Beyond leaf switches a fabric that is 4:1 oversubscribed carries a quarter, if all neighbours
// meet there; all-to-all meets there wherever the ring does not.
TEST(network_oversubscription) {
    struct cluster c = bare(64, 8, 450e9, 50e9);
    c.fabric.oversubscription.value = 4;
    struct network_group ring = {
        .size = 32, .inside = 1, .domains = 32, .crossing = 1, .beyond_leaf = true};
    struct network_group near = {
        .size = 32, .inside = 1, .domains = 32, .crossing = 2.0 / 32, .beyond_leaf = true};
    double wide = 31.0 / 32 / 50;
    CHECK_CLOSE(network_seconds(&c, &ring, NETWORK_ALL_GATHER, 1e9, NULL), 4 * wide, 1e-9);
    CHECK_CLOSE(network_seconds(&c, &near, NETWORK_ALL_GATHER, 1e9, NULL), wide, 1e-9);
    CHECK_CLOSE(network_seconds(&c, &near, NETWORK_ALL_TO_ALL, 1e9, NULL), 2 * wide / 0.88, 1e-9);
}

TEST(network_algorithm_by_size) {
    struct cluster c = cluster_of("dgx-h100:512");
    enum network_algorithm chosen;
    struct network_group node = {.size = 8, .inside = 8, .domains = 1};
    struct network_group two = {.size = 2, .inside = 2, .domains = 1};
    struct network_group all = {.size = 512, .inside = 8, .domains = 64};
    network_seconds(&c, &node, NETWORK_ALL_REDUCE, 1e8, &chosen);
    CHECK_EQ_INT(chosen, NETWORK_IN_SWITCH);
    network_seconds(&c, &two, NETWORK_ALL_REDUCE, 1e8, &chosen);
    CHECK_EQ_INT(chosen, NETWORK_RING);
    network_seconds(&c, &all, NETWORK_ALL_REDUCE, 1e5, &chosen);
    CHECK_EQ_INT(chosen, NETWORK_TREE); // latency counts
    network_seconds(&c, &all, NETWORK_ALL_TO_ALL, 1e8, &chosen);
    CHECK_EQ_INT(chosen, NETWORK_DIRECT);
    // a longer message never takes less time
    for (int kind = 0; kind < NETWORK_KINDS; kind++) {
        double before = 0, bytes = 1;
        for (int i = 0; i < 24; i++, bytes *= 3) {
            double now = network_seconds(&c, &all, (enum network_kind)kind, bytes, NULL);
            CHECK(isfinite(now) && now > before);
            before = now;
        }
    }
}

TEST(network_send) {
    struct cluster c = bare(8, 8, 450e9, 50e9);
    struct mesh outside = mesh_of(8, 1, 1, 8), inside = mesh_of(8, 1, 1, 1);
    CHECK_CLOSE(network_send_seconds(&c, &outside, MESH_PP, 1e9), 1.0 / 50, 1e-9);
    CHECK_CLOSE(network_send_seconds(&c, &inside, MESH_PP, 1e9), 1.0 / 450, 1e-9);
    CHECK_CLOSE(network_send_seconds(&c, &inside, MESH_DP, 1e9), 0, 0); // nobody to send to
}

// Messages that were measured on the machine go before formulas.
TEST(network_measured) {
    struct hardware_message messages[] = {{MESSAGE_ALL_REDUCE, 2, 1000, 1e-5},
                                          {MESSAGE_ALL_REDUCE, 2, 1000000, 1e-3},
                                          {MESSAGE_SEND, 2, 1000000, 5e-4}};
    struct cluster c = bare(1, 4, 450e9, 0);
    c.messages = messages;
    c.message_count = 3;
    enum network_algorithm chosen;
    struct network_group two = {.size = 2, .inside = 2, .domains = 1},
                         four = {.size = 4, .inside = 4, .domains = 1};
    CHECK_CLOSE(network_seconds(&c, &two, NETWORK_ALL_REDUCE, 1e6, &chosen) * 1e3, 1, 1e-9);
    CHECK_EQ_INT(chosen, NETWORK_MEASURED);
    CHECK_CLOSE(network_seconds(&c, &two, NETWORK_ALL_REDUCE, sqrt(1e9), NULL) * 1e4, 1, 1e-9);
    CHECK_CLOSE(network_seconds(&c, &two, NETWORK_ALL_REDUCE, 1e7, NULL) * 1e2, 1, 1e-9);
    CHECK_CLOSE(network_seconds(&c, &two, NETWORK_ALL_REDUCE, 10, NULL) * 1e5, 1, 1e-9);
    CHECK_CLOSE(network_seconds(&c, &four, NETWORK_ALL_REDUCE, 1e6, NULL) * 1e3, 1.5, 1e-9);
    network_seconds(&c, &two, NETWORK_ALL_GATHER, 1e6, &chosen);
    CHECK_EQ_INT(chosen, NETWORK_RING);
    struct mesh mesh = mesh_of(2, 1, 1, 1);
    CHECK_CLOSE(network_send_seconds(&c, &mesh, MESH_PP, 2e6) * 1e3, 1, 1e-9);
}

// Bus bandwidth (traffic 2 (N - 1) / N over time, GB/s) of all-reduces from 1 MiB to 1 GiB:
// Bekman, "Machine Learning Engineering", network chapter (torch 2.9.1, NCCL 2.27.7); vTrain (arXiv
// 2312.12391), all-reduce tables of its A100 traces. The catalogue's links are fitted on these.
static const struct table {
    const char *cluster;
    int inside, domains;
    double bandwidth[10]; // 1, 4, 8, 16, 32, 64, 128, 256, 512 MiB and 1 GiB
    double most;          // mean error that is allowed
} tables[] = {
    {"dgx-h200",
     8,
     1,
     {39.93, 107.16, 155.53, 219.89, 275.84, 346.51, 401.93, 436.15, 450.29, 463.58},
     0.03},
    {"dgx-b200",
     8,
     1,
     {36.06, 76.48, 126.49, 254.96, 325.97, 400.60, 568.38, 646.11, 688.99, 723.34},
     0.10},
    {"dgx-a100",
     8,
     1,
     {19.78, 76.62, 109.30, 126.33, 163.97, 202.52, 202.13, 217.25, 224.15, 229.35},
     0.10},
    {"dgx-a100",
     4,
     1,
     {30.60, 81.37, 107.74, 140.11, 177.09, 185.11, 201.61, 208.73, 216.48, 221.86},
     0.08},
    {"aws-p6",
     8,
     4,
     {5.37, 18.90, 35.12, 64.43, 91.19, 156.74, 197.94, 229.09, 326.90, 361.99},
     0.12},
    {"dgx-a100",
     2,
     1,
     {23.72, 68.55, 96.53, 127.16, 145.88, 165.81, 175.77, 184.39, 189.15, 197.28},
     0.16},
};

TEST(network_all_reduce_against_measured) {
    static const double mib[] = {1, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        struct cluster c = cluster_of(tables[t].cluster);
        int n = tables[t].inside * tables[t].domains;
        double sum = 0;
        for (int i = 0; i < 10; i++) {
            double bytes = mib[i] * 1048576;
            double time =
                seconds(&c, tables[t].inside, tables[t].domains, NETWORK_ALL_REDUCE, bytes);
            double ours = 2 * (n - 1.0) / n * bytes / time / 1e9;
            sum += fabs(ours / tables[t].bandwidth[i] - 1);
        }
        printf("%s, %d ranks: mean error %.1f %%\n", tables[t].cluster, n, 10 * sum);
        if (!(sum / 10 <= tables[t].most))
            test_fail(__FILE__, __LINE__, "%s, %d ranks: mean error %.1f %%", tables[t].cluster, n,
                      10 * sum);
    }
}
