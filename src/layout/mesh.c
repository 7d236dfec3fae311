// Coordinates, groups and their checks; see mesh.h.
#include "layout/mesh.h"
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 1 << 22 }; // beyond this a size is a typing error, and products stay in range

static const char *const axis_names[MESH_AXES] = {"pp", "dp", "cp", "tp"};

const char *mesh_axis_name(enum mesh_axis axis) {
    return axis_names[axis];
}

const char *mesh_group_name(enum mesh_group_kind kind) {
    static const char *const names[GROUP_KIND_COUNT] = {
        [GROUP_WORLD] = "world",
        [GROUP_PP] = "pp",
        [GROUP_DP] = "dp",
        [GROUP_CP] = "cp",
        [GROUP_TP] = "tp",
        [GROUP_DATA] = "data",
        [GROUP_SHARD] = "shard",
        [GROUP_REPLICA] = "replica",
        [GROUP_EP] = "ep",
        [GROUP_EXPERT_DATA] = "expert_data",
        [GROUP_EXPERT_SHARD] = "expert_shard",
        [GROUP_EXPERT_REPLICA] = "expert_replica",
        [GROUP_KV] = "kv",
    };
    return names[kind];
}

int mesh_ranks(const struct mesh *mesh) {
    int ranks = 1;
    for (int axis = 0; axis < MESH_AXES; axis++) ranks *= mesh->size[axis];
    return ranks;
}

int mesh_rank(const struct mesh *mesh, const int at[MESH_AXES]) {
    int rank = 0;
    for (int i = 0; i < MESH_AXES; i++)
        rank = rank * mesh->size[mesh->order[i]] + at[mesh->order[i]];
    return rank;
}

void mesh_at(const struct mesh *mesh, int rank, int at[MESH_AXES]) {
    for (int i = MESH_AXES - 1; i >= 0; i--) {
        at[mesh->order[i]] = rank % mesh->size[mesh->order[i]];
        rank /= mesh->size[mesh->order[i]];
    }
}

int mesh_data_index(const struct mesh *mesh, int rank) {
    int at[MESH_AXES];
    mesh_at(mesh, rank, at);
    return at[MESH_DP] * mesh->size[MESH_CP] + at[MESH_CP];
}

// A group as a walk: `count` places from `first` on in steps of `stride`, along one axis or along
// the data index.
struct walk {
    enum { ALONG_PP, ALONG_DATA, ALONG_TP } along;
    int first, stride, count;
};

static struct walk group_walk(const struct mesh *mesh, const int at[MESH_AXES],
                              enum mesh_group_kind kind, int kv_heads) {
    int cp = mesh->size[MESH_CP], tp = mesh->size[MESH_TP], ep = mesh->ep;
    int data = mesh->size[MESH_DP] * cp, d = at[MESH_DP] * cp + at[MESH_CP];
    int shard = mesh->shard, same = data / ep; // ranks with the same experts
    int expert_shard = shard < same ? shard : same;
    int kv = kv_heads < tp ? tp / kv_heads : 1;
    switch (kind) {
    case GROUP_PP:
        return (struct walk){ALONG_PP, 0, 1, mesh->size[MESH_PP]};
    case GROUP_TP:
        return (struct walk){ALONG_TP, 0, 1, tp};
    case GROUP_KV:
        return (struct walk){ALONG_TP, at[MESH_TP] / kv * kv, 1, kv};
    case GROUP_DP:
        return (struct walk){ALONG_DATA, at[MESH_CP], cp, mesh->size[MESH_DP]};
    case GROUP_CP:
        return (struct walk){ALONG_DATA, at[MESH_DP] * cp, 1, cp};
    case GROUP_SHARD:
        return (struct walk){ALONG_DATA, d / shard * shard, 1, shard};
    case GROUP_REPLICA:
        return (struct walk){ALONG_DATA, d % shard, shard, data / shard};
    case GROUP_EP:
        return (struct walk){ALONG_DATA, d / ep * ep, 1, ep};
    case GROUP_EXPERT_DATA:
        return (struct walk){ALONG_DATA, d % ep, ep, same};
    case GROUP_EXPERT_SHARD:
        return (struct walk){ALONG_DATA, d % ep + d / ep / expert_shard * expert_shard * ep, ep,
                             expert_shard};
    case GROUP_EXPERT_REPLICA:
        return (struct walk){ALONG_DATA, d % ep + d / ep % expert_shard * ep, ep * expert_shard,
                             same / expert_shard};
    default:
        return (struct walk){ALONG_DATA, 0, 1, data};
    }
}

int mesh_group(const struct mesh *mesh, int rank, enum mesh_group_kind kind, int kv_heads,
               int *members, int *index) {
    if (kind == GROUP_WORLD) {
        int ranks = mesh_ranks(mesh);
        for (int i = 0; i < ranks; i++) members[i] = i;
        *index = rank;
        return ranks;
    }
    int at[MESH_AXES];
    mesh_at(mesh, rank, at);
    struct walk walk = group_walk(mesh, at, kind, kv_heads);
    for (int i = 0; i < walk.count; i++) {
        int place = walk.first + i * walk.stride;
        if (walk.along == ALONG_PP) at[MESH_PP] = place;
        if (walk.along == ALONG_TP) at[MESH_TP] = place;
        if (walk.along == ALONG_DATA) {
            at[MESH_DP] = place / mesh->size[MESH_CP];
            at[MESH_CP] = place % mesh->size[MESH_CP];
        }
        members[i] = mesh_rank(mesh, at);
        if (members[i] == rank) *index = i;
    }
    return walk.count;
}

int64_t mesh_axis_stride(const struct mesh *mesh, enum mesh_axis axis) {
    int64_t stride = 1;
    for (int i = MESH_AXES - 1; i >= 0 && mesh->order[i] != axis; i--)
        stride *= mesh->size[mesh->order[i]];
    return stride;
}

bool mesh_group_stride(const struct mesh *mesh, enum mesh_group_kind kind, int kv_heads,
                       int64_t *stride) {
    static const int origin[MESH_AXES] = {0};
    *stride = 1;
    if (kind == GROUP_WORLD) return true;
    struct walk walk = group_walk(mesh, origin, kind, kv_heads);
    int cp = mesh->size[MESH_CP];
    int64_t of_dp = mesh_axis_stride(mesh, MESH_DP), of_cp = mesh_axis_stride(mesh, MESH_CP);
    if (walk.along == ALONG_PP)
        *stride = walk.stride * mesh_axis_stride(mesh, MESH_PP);
    else if (walk.along == ALONG_TP)
        *stride = walk.stride * mesh_axis_stride(mesh, MESH_TP);
    else if (walk.stride % cp == 0)
        *stride = walk.stride / cp * of_dp;
    else
        *stride = walk.stride * of_cp;
    bool inside = (int64_t)walk.stride * (walk.count - 1) < cp; // moves along cp alone
    return walk.along != ALONG_DATA || walk.stride % cp == 0 || inside || of_dp == cp * of_cp;
}

int mesh_group_size(const struct mesh *mesh, enum mesh_group_kind kind, int kv_heads) {
    static const int origin[MESH_AXES] = {0};
    return kind == GROUP_WORLD ? mesh_ranks(mesh) : group_walk(mesh, origin, kind, kv_heads).count;
}

bool mesh_group_leads(const struct mesh *mesh, int rank, enum mesh_group_kind kind, int kv_heads) {
    if (kind == GROUP_WORLD) return rank == 0;
    int at[MESH_AXES];
    mesh_at(mesh, rank, at);
    struct walk walk = group_walk(mesh, at, kind, kv_heads);
    int place = walk.along == ALONG_PP   ? at[MESH_PP]
                : walk.along == ALONG_TP ? at[MESH_TP]
                                         : at[MESH_DP] * mesh->size[MESH_CP] + at[MESH_CP];
    return place == walk.first;
}

const char *mesh_nearest_divisors(int64_t number, int64_t value, char out[64]) {
    int64_t below = 0, above = 0;
    for (int64_t small = 1; small * small <= number; small++) {
        if (number % small != 0) continue;
        for (int side = 0; side < 2; side++) {
            int64_t divisor = side ? number / small : small;
            if (divisor <= value && divisor > below) below = divisor;
            if (divisor >= value && (above == 0 || divisor < above)) above = divisor;
        }
    }
    if (below && above && below != above)
        snprintf(out, 64, "%lld or %lld", (long long)below, (long long)above);
    else
        snprintf(out, 64, "%lld", (long long)(below ? below : above));
    return out;
}

static int check_order(const struct mesh *mesh, struct err *err) {
    int seen[MESH_AXES] = {0};
    for (int i = 0; i < MESH_AXES; i++) {
        if ((int)mesh->order[i] < 0 || mesh->order[i] >= MESH_AXES)
            return err_set(err, ERR_INTERNAL, "mesh: place %d of the order is no axis", i);
        seen[mesh->order[i]]++;
    }
    for (int twice = 0; twice < MESH_AXES; twice++)
        for (int never = 0; never < MESH_AXES; never++)
            if (seen[twice] > 1 && seen[never] == 0)
                return err_set(err, ERR_USAGE,
                               "mesh: the order names %s twice and leaves out %s; it names each of "
                               "pp, dp, cp and tp once",
                               axis_names[twice], axis_names[never]);
    return 0;
}

// "pp 3 x cp 1 x tp 2", without the axes whose size is not known yet (0).
static void product_text(const struct mesh *mesh, char out[128]) {
    size_t at = 0;
    out[0] = 0;
    for (int axis = 0; axis < MESH_AXES; axis++)
        if (mesh->size[axis] > 0)
            at += (size_t)snprintf(out + at, 128 - at, "%s%s %d", at ? " x " : "", axis_names[axis],
                                   mesh->size[axis]);
}

// What one axis could be with the other sizes kept, as ", or pp 4"; nothing where none would do.
// Where dp follows, any divisor of what is left.
static void put_remedy(const struct mesh *mesh, int axis, int64_t product, int ranks,
                       char out[256]) {
    char nearest[64];
    bool derived = mesh->size[MESH_DP] == 0;
    if (mesh->size[axis] == 0 || ranks % (product / mesh->size[axis]) != 0) return;
    int64_t left = ranks / (product / mesh->size[axis]);
    if (derived && left >= mesh->size[axis] && mesh->size[axis] == 1) return;
    if (derived)
        mesh_nearest_divisors(left, mesh->size[axis], nearest);
    else
        snprintf(nearest, sizeof nearest, "%lld", (long long)left);
    size_t at = strlen(out);
    snprintf(out + at, 256 - at, "%s%s %s", at ? ", or " : "", axis_names[axis], nearest);
}

// The sizes do not make up the world: which one is at fault, and what would do.
static int refuse_product(const struct mesh *mesh, int64_t product, int ranks, struct err *err) {
    char text[128], remedy[256] = "", cause[128] = "", nearest[64];
    product_text(mesh, text);
    for (int axis = 0; axis < MESH_AXES; axis++) {
        put_remedy(mesh, axis, product, ranks, remedy);
        if (cause[0] || mesh->size[axis] == 0 || ranks % mesh->size[axis] == 0) continue;
        snprintf(cause, sizeof cause, ": %s (%d) does not divide %d", axis_names[axis],
                 mesh->size[axis], ranks);
        mesh_nearest_divisors(ranks, mesh->size[axis], nearest);
    }
    const char *verb = mesh->size[MESH_DP] == 0 ? "divide" : "make up";
    if (remedy[0])
        return err_set(err, ERR_USAGE,
                       "mesh: %s is %lld, which does not %s the %d ranks of this world%s; with the "
                       "other sizes kept this would do: %s",
                       text, (long long)product, verb, ranks, cause, remedy);
    return err_set(err, ERR_USAGE,
                   "mesh: %s is %lld, which does not %s the %d ranks of this world%s; %s%s", text,
                   (long long)product, verb, ranks, cause,
                   cause[0] ? "nearest values that do: " : "start that many ranks, or lower sizes",
                   cause[0] ? nearest : "");
}

static int check_product(const struct mesh *mesh, int ranks, struct err *err) {
    int64_t product = 1;
    if (ranks < 1 || ranks > MOST_RANKS)
        return err_set(err, ERR_USAGE, "mesh: a world has 1 to %d ranks, not %d", MOST_RANKS,
                       ranks);
    for (int axis = 0; axis < MESH_AXES; axis++) {
        bool derived = axis == MESH_DP && mesh->size[axis] == 0;
        if (!derived && (mesh->size[axis] < 1 || mesh->size[axis] > MOST_RANKS))
            return err_set(err, ERR_USAGE, "mesh: %s is %d; it must lie between 1 and %d",
                           axis_names[axis], mesh->size[axis], MOST_RANKS);
        if (!derived && product * mesh->size[axis] > INT64_MAX / MOST_RANKS)
            return err_set(err, ERR_USAGE, "mesh: the sizes multiply to far more than %d ranks",
                           ranks);
        if (!derived) product *= mesh->size[axis];
    }
    bool fits = mesh->size[MESH_DP] == 0 ? ranks % product == 0 : product == ranks;
    return fits ? 0 : refuse_product(mesh, product, ranks, err);
}

static int check_inside_data(const struct mesh *mesh, struct err *err) {
    int data = mesh->size[MESH_DP] * mesh->size[MESH_CP];
    char nearest[64];
    if (mesh->ep < 1 || data % mesh->ep != 0)
        return err_set(err, ERR_USAGE,
                       "mesh: ep (%d) does not divide dp x cp (%d x %d = %d), in which experts are "
                       "spread; nearest values that do: %s",
                       mesh->ep, mesh->size[MESH_DP], mesh->size[MESH_CP], data,
                       mesh_nearest_divisors(data, mesh->ep, nearest));
    if (mesh->shard < 1 || data % mesh->shard != 0)
        return err_set(err, ERR_USAGE,
                       "mesh: the shard group (%d) does not divide dp x cp (%d x %d = %d); nearest "
                       "values that do: %s",
                       mesh->shard, mesh->size[MESH_DP], mesh->size[MESH_CP], data,
                       mesh_nearest_divisors(data, mesh->shard, nearest));
    int same = data / mesh->ep, shard = mesh->shard < same ? mesh->shard : same;
    if (same % shard != 0)
        return err_set(err, ERR_USAGE,
                       "mesh: the shard group (%d) does not divide the %d ranks that share an "
                       "expert (dp x cp / ep = %d / %d); nearest values that do: %s",
                       shard, same, data, mesh->ep, mesh_nearest_divisors(same, shard, nearest));
    return 0;
}

int mesh_check(const struct mesh *mesh, int ranks, struct err *err) {
    if (mesh->size[MESH_DP] == 0)
        return err_set(err, ERR_USAGE, "mesh: dp is 0; it must be at least 1");
    if (check_order(mesh, err) != 0 || check_product(mesh, ranks, err) != 0) return -1;
    return check_inside_data(mesh, err);
}

int mesh_complete(struct mesh *mesh, int ranks, struct err *err) {
    struct mesh made = *mesh;
    if (check_order(&made, err) != 0 || check_product(&made, ranks, err) != 0) return -1;
    if (made.size[MESH_DP] == 0) {
        made.size[MESH_DP] = 1;
        made.size[MESH_DP] = ranks / mesh_ranks(&made);
    }
    if (made.shard == 0) made.shard = made.size[MESH_DP] * made.size[MESH_CP];
    if (check_inside_data(&made, err) != 0) return -1;
    *mesh = made;
    return 0;
}

int mesh_parse_order(const char *text, enum mesh_axis order[MESH_AXES], struct err *err) {
    struct mesh made = {.size = {1, 1, 1, 1}};
    const char *at = text;
    int count = 0;
    for (;;) {
        while (*at == ' ') at++;
        size_t length = strcspn(at, ", ");
        int axis = 0;
        while (axis < MESH_AXES &&
               (strlen(axis_names[axis]) != length || strncmp(axis_names[axis], at, length) != 0))
            axis++;
        if (axis == MESH_AXES || count == MESH_AXES)
            return err_set(err, ERR_USAGE,
                           "mesh: the order \"%.100s\" is not pp, dp, cp and tp once each, "
                           "outermost first (as in \"pp,dp,cp,tp\")",
                           text);
        made.order[count++] = (enum mesh_axis)axis;
        at += length;
        while (*at == ' ') at++;
        if (*at == 0) break;
        at += *at == ',';
    }
    if (count < MESH_AXES)
        return err_set(err, ERR_USAGE,
                       "mesh: the order \"%.100s\" names %d of the four axes pp, dp, cp and tp",
                       text, count);
    if (check_order(&made, err) != 0) return -1;
    memcpy(order, made.order, sizeof made.order);
    return 0;
}
