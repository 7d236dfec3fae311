// See scaling.h.
#include "plan/scaling.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *scaling_tuning_name(enum scaling_tuning tuning) {
    static const char *const names[SCALING_TUNINGS] = {"as chosen", "TP across hosts", "no overlap",
                                                       "few micro-batches"};
    return names[tuning];
}

__attribute__((format(printf, 2, 3))) static int impossible(struct scaling_point *out,
                                                            const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->why, sizeof out->why, format, arguments);
    va_end(arguments);
    return -1;
}

// Data ranks, micro-batches and nodes for so many accelerators.
static int resize(struct job *job, enum scaling_kind kind, int world, struct scaling_point *out) {
    struct mesh *mesh = &job->layout.mesh;
    int64_t sequences = job_sequences(job);
    int data = mesh->size[MESH_DP] * mesh->size[MESH_CP];
    int replica = mesh->size[MESH_PP] * mesh->size[MESH_CP] * mesh->size[MESH_TP];
    if (world < 1 || world % replica != 0)
        return impossible(out, "%d ranks are no multiple of the %d of a replica", world, replica);
    int dp = world / replica;
    bool all = mesh->shard == data;
    mesh->size[MESH_DP] = dp;
    if (all) mesh->shard = dp * mesh->size[MESH_CP];
    job->cluster.nodes = (world + job->cluster.per_node - 1) / job->cluster.per_node;
    if (kind == SCALING_WEAK) return 0;
    if (sequences % ((int64_t)job->rows * dp) != 0)
        return impossible(out, "%lld sequences do not go into %d data ranks' micro-batches",
                          (long long)sequences, dp);
    job->micro_batches = (int)(sequences / ((int64_t)job->rows * dp));
    return 0;
}

static int fewer_micro_batches(struct job *job, struct scaling_point *out) {
    int64_t sequences = (int64_t)job->rows * job->micro_batches;
    int pp = job->layout.mesh.size[MESH_PP], m = job->micro_batches;
    if (pp == 1) return impossible(out, "no pipeline (pp %d)", pp);
    if (m > pp) m = pp;
    while (sequences % m != 0) m--;
    job->rows = (int)(sequences / m);
    job->micro_batches = m;
    return 0;
}

static int mistune(struct job *job, enum scaling_tuning tuning, struct scaling_point *out) {
    static const enum mesh_axis across[MESH_AXES] = {MESH_TP, MESH_PP, MESH_DP, MESH_CP};
    int tp = job->layout.mesh.size[MESH_TP];
    switch (tuning) {
    case SCALING_TENSOR_ACROSS:
        if (tp == 1) return impossible(out, "no tensor parallelism (tp %d)", tp);
        for (int k = 0; k < MESH_AXES; k++) job->layout.mesh.order[k] = across[k];
        return 0;
    case SCALING_NO_OVERLAP:
        job->no_overlap = true;
        return 0;
    case SCALING_FEW_MICRO_BATCHES:
        return fewer_micro_batches(job, out);
    default:
        return 0;
    }
}

int estimate_scaling(const struct job *job, enum scaling_kind kind, enum scaling_tuning tuning,
                     const int *worlds, int count, struct scaling_point *out, struct err *err) {
    struct job *other = malloc(sizeof *other);
    if (!other) return err_set(err, ERR_MEMORY, "plan: no memory for a scaling curve");
    for (int k = 0; k < count; k++) {
        struct scaling_point *p = &out[k];
        struct estimate e;
        struct err why = {0};
        *other = *job;
        *p = (struct scaling_point){.world = worlds[k]};
        if (resize(other, kind, worlds[k], p) != 0 || mistune(other, tuning, p) != 0) continue;
        p->rows = other->rows;
        p->micro_batches = other->micro_batches;
        if (estimate_step(other, true, &e, &why) != 0) {
            snprintf(p->why, sizeof p->why, "%.150s", why.text);
            continue;
        }
        p->possible = true;
        p->step_seconds = e.step_seconds;
        p->tokens_per_second = e.tokens_per_second;
        p->tokens_per_second_per_accelerator = e.tokens_per_second_per_accelerator;
        p->mfu_full = e.mfu_full;
        estimate_free(&e);
    }
    free(other);
    return 0;
}
