// Jobs for tests of the planner.
#pragma once
#include "hardware/hardware.h"
#include "hardware/stack.h"
#include "layout/layout.h"
#include "model/families.h"
#include "plan/job.h"
#include "test.h"
#include <string.h>

struct test_layout {
    const char *model, *cluster, *stack;
    int tp, pp, cp, chunks, zero, rows, context, sequences;
    enum pipeline_kind schedule;
};

// Fills the cluster with data ranks. The catalogue stays open: clusters point into it.
static inline void test_job(const struct test_layout *l, struct job *job) {
    static struct catalogue *catalogue;
    struct err err = {0};
    if (!catalogue) CHECK_OK(catalogue_open(&catalogue, &err), err);
    job_defaults(job);
    CHECK_OK(model_preset(l->model, &job->model, &err), err);
    CHECK_OK(catalogue_cluster(catalogue, l->cluster, &job->cluster, &err), err);
    job->stack = catalogue_stack(catalogue, l->stack, &err);
    CHECK(job->stack);
    int cp = l->cp ? l->cp : 1, world = job->cluster.nodes * job->cluster.per_node;
    int dp = world / (l->tp * l->pp * cp);
    const int size[MESH_AXES] = {
        [MESH_PP] = l->pp, [MESH_DP] = dp, [MESH_CP] = cp, [MESH_TP] = l->tp};
    memcpy(job->layout.mesh.size, size, sizeof size);
    job->layout.mesh.shard = dp * cp;
    job->layout.zero = l->zero;
    job->layout.chunks = l->schedule == PIPELINE_ZB_V ? 2 : l->chunks ? l->chunks : 1;
    job->layout.placement = l->schedule == PIPELINE_ZB_V ? PLACE_V : PLACE_LOOP;
    job->schedule = l->schedule;
    job->rows = l->rows;
    job->context = l->context;
    job->micro_batches = l->sequences / (l->rows * dp);
    CHECK_OK(layout_split_layers(&job->layout, &job->model, NULL, 0, false, &err), err);
}
