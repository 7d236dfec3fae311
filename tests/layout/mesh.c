// Coordinates and groups of a mesh: known places, properties on many meshes, refusals.
#include "layout/mesh.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

static struct mesh make(int pp, int dp, int cp, int tp, int ep, int shard) {
    return (struct mesh){.size = {pp, dp, cp, tp},
                         .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                         .ep = ep,
                         .shard = shard};
}

static void check_members(const struct mesh *mesh, int rank, enum mesh_group_kind kind, int kv,
                          int count, const int *expected) {
    int *members = malloc(sizeof *members * (size_t)mesh_ranks(mesh)), index = -1;
    CHECK_EQ_INT(mesh_group(mesh, rank, kind, kv, members, &index), count);
    for (int i = 0; i < count; i++) CHECK_EQ_INT(members[i], expected[i]);
    CHECK_EQ_INT(members[index], rank);
    free(members);
}
#define MEMBERS(mesh, rank, kind, kv, ...)                                                         \
    check_members(mesh, rank, kind, kv, (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)),           \
                  (int[]){__VA_ARGS__})

TEST(mesh_groups_of_known_ranks) {
    struct mesh mesh = make(2, 2, 2, 2, 2, 2); // rank = pp 8 + dp 4 + cp 2 + tp
    int at[MESH_AXES];
    mesh_at(&mesh, 13, at);
    CHECK_EQ_INT(at[MESH_PP], 1);
    CHECK_EQ_INT(at[MESH_DP], 1);
    CHECK_EQ_INT(at[MESH_CP], 0);
    CHECK_EQ_INT(at[MESH_TP], 1);
    CHECK_EQ_INT(mesh_data_index(&mesh, 13), 2);
    MEMBERS(&mesh, 13, GROUP_PP, 1, 5, 13);
    MEMBERS(&mesh, 13, GROUP_DP, 1, 9, 13);
    MEMBERS(&mesh, 13, GROUP_CP, 1, 13, 15);
    MEMBERS(&mesh, 13, GROUP_TP, 1, 12, 13);
    MEMBERS(&mesh, 13, GROUP_DATA, 1, 9, 11, 13, 15);
    MEMBERS(&mesh, 13, GROUP_SHARD, 1, 13, 15);
    MEMBERS(&mesh, 13, GROUP_REPLICA, 1, 9, 13);
    MEMBERS(&mesh, 13, GROUP_EP, 1, 13, 15);
    MEMBERS(&mesh, 13, GROUP_EXPERT_DATA, 1, 9, 13);
    MEMBERS(&mesh, 13, GROUP_EXPERT_SHARD, 1, 9, 13);
    MEMBERS(&mesh, 13, GROUP_EXPERT_REPLICA, 1, 13);
    MEMBERS(&mesh, 13, GROUP_KV, 1, 12, 13);
    MEMBERS(&mesh, 13, GROUP_KV, 2, 13);
    MEMBERS(&mesh, 3, GROUP_WORLD, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

TEST(mesh_data_group_holds_context_ranks_without_replicas) {
    // one replica whose sequence is cut in two: both ranks add their gradients up
    struct mesh mesh = make(1, 1, 2, 1, 1, 2);
    MEMBERS(&mesh, 0, GROUP_DATA, 1, 0, 1);
    MEMBERS(&mesh, 1, GROUP_DATA, 1, 0, 1);
}

TEST(mesh_order_puts_an_axis_innermost) {
    struct mesh mesh = make(2, 3, 1, 2, 1, 3);
    struct err err = {0};
    CHECK_OK(mesh_parse_order("tp, cp,dp ,pp", mesh.order, &err), err);
    MEMBERS(&mesh, 4, GROUP_PP, 1, 4, 5);
    MEMBERS(&mesh, 4, GROUP_DATA, 1, 0, 2, 4);
    MEMBERS(&mesh, 4, GROUP_TP, 1, 4, 10);
}

// Every kind cuts the world into groups of one size; members agree on them and on the order.
static void check_partition(const struct mesh *mesh, enum mesh_group_kind kind, int kv) {
    int ranks = mesh_ranks(mesh), first[64], other[64], index, other_index;
    int seen[64] = {0}, size = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int count = mesh_group(mesh, rank, kind, kv, first, &index);
        if (rank == 0) size = count;
        CHECK_EQ_INT(count, size);
        CHECK_EQ_INT(first[index], rank);
        CHECK_EQ_INT(mesh_group_size(mesh, kind, kv), count);
        CHECK_EQ_INT(mesh_group_leads(mesh, rank, kind, kv), index == 0);
        seen[rank]++;
        for (int i = 0; i < count; i++) {
            CHECK_EQ_INT(mesh_group(mesh, first[i], kind, kv, other, &other_index), count);
            CHECK_EQ_INT(other_index, i);
            CHECK_BYTES(other, first, sizeof(int) * (size_t)count);
        }
    }
    for (int rank = 0; rank < ranks; rank++) CHECK_EQ_INT(seen[rank], 1);
}

TEST(mesh_groups_partition_the_world) {
    static const char *const orders[] = {"pp,dp,cp,tp", "tp,pp,cp,dp", "dp,tp,pp,cp"};
    struct err err = {0};
    for (int pp = 1; pp <= 3; pp++)
        for (int dp = 1; dp <= 4; dp++)
            for (int cp = 1; cp <= 2; cp++)
                for (int ep = 1; ep <= dp * cp; ep++)
                    for (int shard = 1; shard <= dp * cp; shard++) {
                        struct mesh mesh = make(pp, dp, cp, 2, ep, shard);
                        CHECK_OK(mesh_parse_order(orders[(pp + dp + cp) % 3], mesh.order, &err),
                                 err);
                        if (mesh_check(&mesh, pp * dp * cp * 2, NULL) != 0) continue;
                        for (int rank = 0; rank < mesh_ranks(&mesh); rank++) {
                            int at[MESH_AXES];
                            mesh_at(&mesh, rank, at);
                            CHECK_EQ_INT(mesh_rank(&mesh, at), rank);
                        }
                        for (int kind = 0; kind < GROUP_KIND_COUNT; kind++)
                            check_partition(&mesh, (enum mesh_group_kind)kind, 1);
                    }
}

// Sharding groups and their replicas make up the group over which gradients are summed, for dense
// parameters and for experts.
TEST(mesh_shards_times_replicas) {
    int members[64], index;
    for (int ep = 1; ep <= 8; ep *= 2)
        for (int shard = 1; shard <= 8; shard *= 2) {
            struct mesh mesh = make(1, 4, 2, 1, ep, shard);
            struct err err = {0};
            CHECK_OK(mesh_check(&mesh, 8, &err), err);
            CHECK_EQ_INT(mesh_group(&mesh, 5, GROUP_SHARD, 1, members, &index) *
                             mesh_group(&mesh, 5, GROUP_REPLICA, 1, members, &index),
                         8);
            CHECK_EQ_INT(mesh_group(&mesh, 5, GROUP_EXPERT_SHARD, 1, members, &index) *
                             mesh_group(&mesh, 5, GROUP_EXPERT_REPLICA, 1, members, &index),
                         mesh_group(&mesh, 5, GROUP_EXPERT_DATA, 1, members, &index));
            CHECK_EQ_INT(mesh_group(&mesh, 5, GROUP_EP, 1, members, &index), ep);
        }
}

static void refused(struct mesh mesh, int ranks, const char *part, const char *other) {
    struct err err = {0};
    CHECK_EQ_INT(mesh_complete(&mesh, ranks, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, other);
}

TEST(mesh_refuses_what_does_not_make_up_the_world) {
    refused(make(3, 0, 1, 2, 1, 0), 16, "pp (3) does not divide 16", "would do: pp 2 or 4");
    refused(make(1, 0, 1, 32, 1, 0), 16, "tp (32) does not divide 16", "would do: tp 16");
    refused(make(16, 0, 1, 8, 1, 0), 24, "pp (16) does not divide 24", "would do: pp 3");
    refused(make(5, 0, 1, 7, 1, 0), 16, "pp (5) does not divide 16",
            "nearest values that do: 4 or 8");
    refused(make(4, 0, 4, 2, 1, 0), 16, "is 32, which does not divide the 16 ranks",
            "pp 2, or cp 2");
    refused(make(2, 2, 1, 2, 1, 0), 16, "pp 2 x dp 2 x cp 1 x tp 2 is 8",
            "pp 4, or dp 4, or cp 2, or tp 4");
    refused(make(2, 4, 2, 2, 1, 0), 16, "is 32, which does not make up the 16 ranks", "dp 2");
    refused(make(4, 4, 4, 4, 1, 0), 2, "is 256, which does not make up the 2 ranks",
            "pp (4) does not divide 2; nearest values that do: 2");
    refused(make(0, 2, 1, 2, 1, 0), 4, "pp is 0", "between 1");
    refused(make(1, -1, 1, 2, 1, 0), 4, "dp is -1", "between 1");
    refused(make(1 << 22, 1 << 22, 1 << 22, 1 << 22, 1, 0), 4, "far more than 4", "");
    refused(make(1, 0, 1, 1, 1, 0), 0, "not 0", "1 to");
    refused(make(1, 0, 1, 1, 3, 0), 8, "ep (3) does not divide dp x cp (8 x 1 = 8)", "2 or 4");
    refused(make(1, 0, 2, 1, 1, 3), 8, "the shard group (3) does not divide dp x cp (4 x 2 = 8)",
            "2 or 4");
    refused(make(1, 0, 1, 1, 2, 4), 12,
            "the shard group (4) does not divide the 6 ranks that share", "3 or 6");
    struct mesh mesh = make(1, 1, 1, 1, 1, 1);
    mesh.order[0] = MESH_TP;
    refused(mesh, 1, "names tp twice and leaves out pp", "once");
    struct err err = {0};
    struct mesh none = make(1, 0, 1, 1, 1, 1);
    CHECK_EQ_INT(mesh_check(&none, 4, &err), -1);
    CHECK_CONTAINS(err.text, "dp is 0");
}

TEST(mesh_complete_takes_what_is_left) {
    struct mesh mesh = make(2, 0, 2, 2, 1, 0);
    struct err err = {0};
    CHECK_OK(mesh_complete(&mesh, 24, &err), err);
    CHECK_EQ_INT(mesh.size[MESH_DP], 3);
    CHECK_EQ_INT(mesh.shard, 6);
}

TEST(mesh_order_is_read) {
    enum mesh_axis order[MESH_AXES] = {MESH_TP, MESH_TP, MESH_TP, MESH_TP};
    static const char *const bad[] = {"",           "pp,dp,cp",       "pp,dp,cp,cp",
                                      "pp,dp,cp,t", "pp,dp,cp,tp,tp", "pp,dp,ep,tp",
                                      "pp,,cp,tp",  "pp,dp,cp,tp,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        CHECK_EQ_INT(mesh_parse_order(bad[i], order, &err), -1);
        CHECK_CONTAINS(err.text, "order");
        CHECK_EQ_INT(order[0], MESH_TP); // untouched
    }
    struct err err = {0};
    CHECK_OK(mesh_parse_order("dp,pp,tp,cp", order, &err), err);
    CHECK_EQ_INT(order[0], MESH_DP);
    CHECK_EQ_INT(order[3], MESH_CP);
}

TEST(mesh_nearest_divisors_of_numbers) {
    char out[64];
    CHECK_STR(mesh_nearest_divisors(16, 3, out), "2 or 4");
    CHECK_STR(mesh_nearest_divisors(16, 100, out), "16");
    CHECK_STR(mesh_nearest_divisors(16, 0, out), "1");
    CHECK_STR(mesh_nearest_divisors(16, 4, out), "4");
    CHECK_STR(mesh_nearest_divisors(7, 3, out), "1 or 7");
    CHECK_STR(mesh_nearest_divisors(100, 21, out), "20 or 25");
}
