// The layouts next to one that does not fit, for its message: all ways to cut the same number of
// ranks are tried.
#include "layout/layout_parts.h"
#include <math.h>
#include <stdio.h>

enum { SHOWN = 2 };

struct candidates {
    const struct layout *wanted;
    const struct model_config *model;
    const struct layout_run *run;
    struct layout best[SHOWN];
    double distance[SHOWN];
    int count;
};

// A kind of parallelism that was not asked for is farther away than another size of one that was.
static double ratio(int found, int wanted) {
    return fabs(log2((double)found / wanted)) + (wanted == 1 && found > 1 ? 2 : 0);
}

// How far apart, in doublings. dp follows from the others and counts least.
static double distance_of(const struct layout *wanted, const struct mesh *mesh) {
    const struct mesh *w = &wanted->mesh;
    return ratio(mesh->size[MESH_TP], w->size[MESH_TP]) +
           ratio(mesh->size[MESH_PP], w->size[MESH_PP]) +
           ratio(mesh->size[MESH_CP], w->size[MESH_CP]) + ratio(mesh->ep, w->ep) +
           0.25 * ratio(mesh->size[MESH_DP], w->size[MESH_DP]);
}

static void offer(struct candidates *c, const struct mesh *mesh) {
    const struct mesh *w = &c->wanted->mesh;
    double distance = distance_of(c->wanted, mesh);
    if (c->count == SHOWN && distance >= c->distance[SHOWN - 1]) return;
    struct layout layout = *c->wanted;
    layout.mesh = *mesh;
    int data = mesh->size[MESH_DP] * mesh->size[MESH_CP];
    bool all = w->shard == w->size[MESH_DP] * w->size[MESH_CP];
    if (all) layout.mesh.shard = data;
    int64_t micro_batches = (int64_t)c->run->micro_batches * w->size[MESH_DP]; // of all replicas
    if (micro_batches % mesh->size[MESH_DP] != 0) return;
    if (mesh_check(&layout.mesh, mesh_ranks(w), NULL) != 0) return;
    if (layout_fits_run(&layout, c->model, c->run, NULL) != 0) return;
    int at = c->count < SHOWN ? c->count++ : SHOWN - 1;
    for (; at > 0 && c->distance[at - 1] > distance; at--) {
        c->distance[at] = c->distance[at - 1];
        c->best[at] = c->best[at - 1];
    }
    c->distance[at] = distance;
    c->best[at] = layout;
}

static void offer_experts(struct candidates *c, struct mesh *mesh) {
    int data = mesh->size[MESH_DP] * mesh->size[MESH_CP];
    if (c->model->experts == 0) {
        mesh->ep = 1;
        offer(c, mesh);
        return;
    }
    for (mesh->ep = 1; mesh->ep <= data && mesh->ep <= c->model->experts; mesh->ep++)
        if (data % mesh->ep == 0 && c->model->experts % mesh->ep == 0) offer(c, mesh);
}

static void offer_all(struct candidates *c, int ranks) {
    struct mesh mesh = c->wanted->mesh;
    int *size = mesh.size;
    for (size[MESH_TP] = 1; size[MESH_TP] <= ranks; size[MESH_TP]++) {
        if (ranks % size[MESH_TP] != 0 || c->model->heads % size[MESH_TP] != 0) continue;
        int rest = ranks / size[MESH_TP];
        for (size[MESH_PP] = 1; size[MESH_PP] <= rest; size[MESH_PP]++) {
            if (rest % size[MESH_PP] != 0 || size[MESH_PP] > c->model->layers) continue;
            int data = rest / size[MESH_PP];
            for (size[MESH_CP] = 1; size[MESH_CP] <= data; size[MESH_CP]++) {
                if (data % size[MESH_CP] != 0) continue;
                size[MESH_DP] = data / size[MESH_CP];
                offer_experts(c, &mesh);
            }
        }
    }
}

// Sizes of 1 are left out, unless all are.
static int describe(const struct layout *layout, const struct layout *wanted, char *out,
                    size_t bytes) {
    size_t at = 0;
    for (int axis = 0; axis < MESH_AXES; axis++)
        if (layout->mesh.size[axis] > 1 || wanted->mesh.size[axis] > 1)
            at += (size_t)snprintf(out + at, bytes - at, "%s%s %d", at ? " x " : "",
                                   mesh_axis_name((enum mesh_axis)axis), layout->mesh.size[axis]);
    if (layout->mesh.ep > 1 || wanted->mesh.ep > 1)
        at += (size_t)snprintf(out + at, bytes - at, " with ep %d", layout->mesh.ep);
    return (int)at;
}

const char *layout_nearest(const struct layout *layout, const struct model_config *model,
                           const struct layout_run *run, char out[256]) {
    struct candidates c = {.wanted = layout, .model = model, .run = run};
    offer_all(&c, mesh_ranks(&layout->mesh));
    out[0] = 0;
    if (c.count == 0) return out;
    int at =
        snprintf(out, 256, "; nearest layouts that work on %d ranks: ", mesh_ranks(&layout->mesh));
    for (int i = 0; i < c.count; i++) {
        at += snprintf(out + at, 256 - (size_t)at, "%s", i ? ", or " : "");
        at += describe(&c.best[i], layout, out + at, 256 - (size_t)at);
    }
    return out;
}
