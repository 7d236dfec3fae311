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

// Llama 3 70B on 512 H100: TP 8, PP 4, DP 16, a global batch of 256 sequences in micro-batches
// of 2.
static const struct test_layout test_seventy __attribute__((unused)) = {
    "llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 1, 1, 2, 4096, 256, PIPELINE_1F1B};

// Links as arithmetic by hand has them: a ring at the full rate of one direction.
static inline void test_plain_links(struct job *job) {
    struct link *links[2] = {&job->cluster.fast, &job->cluster.slow};
    for (int k = 0; k < 2; k++) {
        links[k]->share.value = 1;
        links[k]->latency_seconds.value = 0;
        links[k]->half_bytes.value = 0;
        links[k]->start_seconds.value = 0;
        links[k]->reduces = false;
        links[k]->reduce_gain.value = 1;
    }
    job->cluster.fabric.hop_seconds.value = 0;
    job->cluster.fast.bandwidth.value = 450e9;
    job->cluster.slow.bandwidth.value = 50e9;
}
