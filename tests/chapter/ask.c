// See ask.h.
#include "ask.h"
#include "layout/layout.h"
#include "plan/memory_kept.h"
#include "test.h"
#include <math.h>
#include <string.h>

static struct catalogue *catalogue(void) {
    static struct catalogue *open;
    struct err err = {0};
    if (!open) CHECK_OK(catalogue_open(&open, &err), err);
    return open;
}

const struct accelerator *chip(const char *name) {
    const struct accelerator *a = catalogue_accelerator(catalogue(), name, NULL);
    CHECK(a);
    return a;
}

const struct link *wire(const char *name) {
    const struct link *l = catalogue_link(catalogue(), name, NULL);
    CHECK(l);
    return l;
}

const struct stack *stack(const char *name) {
    const struct stack *s = catalogue_stack(catalogue(), name, NULL);
    CHECK(s);
    return s;
}

struct cluster cluster(const char *text) {
    struct cluster out;
    struct err err = {0};
    CHECK_OK(catalogue_cluster(catalogue(), text, &out, &err), err);
    return out;
}

struct model_config preset(const char *name) {
    struct model_config out;
    struct err err = {0};
    CHECK_OK(model_preset(name, &out, &err), err);
    return out;
}

double params(const char *model) {
    struct model_config config = preset(model);
    return (double)flops_all_params(&config);
}

double dense_tflops(const char *name, enum hardware_precision precision) {
    return chip(name)->dense[precision].value / 1e12;
}

double memory_gb(const char *name) {
    double bytes = chip(name)->memory_bytes.value, gib = bytes / (1 << 30);
    return gib == round(gib) ? gib : bytes / GB;
}

double one_way_gb(const char *link) {
    return wire(link)->bandwidth.value / GB;
}

double both_ways_gb(const char *link) {
    return 2 * one_way_gb(link);
}

// ---- states

static void spread(struct job *job, int tp, int pp, int dp, int zero) {
    struct err err = {0};
    job->layout.mesh = (struct mesh){.size = {pp, dp, 1, tp},
                                     .order = {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
                                     .ep = 1,
                                     .shard = dp};
    job->layout.zero = zero;
    CHECK_OK(layout_split_layers(&job->layout, &job->model, NULL, 0, false, &err), err);
}

static double states(double params, int tp, int pp, int dp, int zero, enum dtype gradients) {
    struct job job;
    struct plan_memory ranks[16];
    struct err err = {0};
    double sum = 0;
    job_defaults(&job);
    job.model = preset("llama3-70b");
    job.cluster = cluster("h100-sxm:8");
    job.stack = stack("weft");
    job.context = 4096;
    job.accumulate_type = gradients;
    spread(&job, tp, pp, dp, zero);
    CHECK_OK(plan_memory(&job, ranks, &err), err);
    for (int i = 0; i < pp; i++)
        for (int item = PLAN_WEIGHTS; item <= PLAN_MOMENTS; item++) sum += ranks[i].bytes[item];
    return sum / pp * params / (double)flops_all_params(&job.model) / GB;
}

double states_gb(double params, int tp, int pp, int dp, int zero) {
    return states(params, tp, pp, dp, zero, DTYPE_BF16);
}

double states_fp32_gb(double params, int tp, int pp, int dp, int zero) {
    return states(params, tp, pp, dp, zero, DTYPE_F32);
}

// ---- pipelines

static struct pipeline pipeline_of(enum pipeline_kind kind, int ranks, int chunks, int m) {
    struct pipeline_shape shape = {
        .kind = kind, .ranks = ranks, .chunks = chunks, .micro_batches = m};
    struct pipeline out;
    struct err err = {0};
    CHECK_OK(pipeline_open(&out, &shape, &err), err);
    return out;
}

static struct pipeline_times simulated(enum pipeline_kind kind, int ranks, int chunks, int m) {
    struct pipeline pipeline = pipeline_of(kind, ranks, chunks, m);
    struct pipeline_costs costs = {.forward = 1, .input = 1, .weight = 1, .no_spans = true};
    struct pipeline_times times, out;
    struct err err = {0};
    CHECK_OK(pipeline_simulate(&pipeline, &costs, &times, &err), err);
    out = times;
    pipeline_times_free(&times);
    pipeline_close(&pipeline);
    return out; // its sums; there are no spans
}

double idle_share(enum pipeline_kind kind, int ranks, int chunks, int m) {
    return simulated(kind, ranks, chunks, m).bubble;
}

double idle_over_ideal(enum pipeline_kind kind, int ranks, int m) {
    return simulated(kind, ranks, 0, m).bubble_over_ideal;
}

double idle_formula(enum pipeline_kind kind, int ranks, int chunks, int m) {
    return pipeline_bubble_formula(&(struct pipeline_shape){
        .kind = kind, .ranks = ranks, .chunks = chunks, .micro_batches = m});
}

int in_flight(enum pipeline_kind kind, int ranks, int m) {
    struct pipeline pipeline = pipeline_of(kind, ranks, 0, m);
    int held = pipeline_in_flight(&pipeline, 0);
    pipeline_close(&pipeline);
    return held;
}

int micro_batches_below(double share, int ranks, int chunks) {
    int m = 1;
    enum pipeline_kind kind = chunks > 1 ? PIPELINE_INTERLEAVED : PIPELINE_1F1B;
    while (!(idle_formula(kind, ranks, chunks, m) < share)) m++;
    return m;
}

// ---- messages and steps

double ring_seconds(enum network_kind kind, int ranks, double bytes, double bandwidth) {
    struct cluster bare = {.name = "bare",
                           .nodes = 1,
                           .per_node = ranks,
                           .domain = ranks,
                           .fast = {.bandwidth.value = bandwidth, .share.value = 1}};
    struct network_group group = {.size = ranks, .inside = ranks, .domains = 1};
    return network_algorithm_seconds(&bare, &group, kind, bytes, NETWORK_RING);
}

struct job job_of(const char *model, const char *where, const char *with, int tp, int pp, int cp,
                  int rows, int context, int sequences) {
    struct job job;
    job_defaults(&job);
    job.model = preset(model);
    job.cluster = cluster(where);
    job.stack = stack(with);
    int dp = job.cluster.nodes * job.cluster.per_node / (tp * pp * cp);
    spread(&job, tp, pp, dp, 1);
    job.layout.mesh.size[MESH_CP] = cp;
    job.layout.mesh.shard = dp * cp;
    job.rows = rows;
    job.context = context;
    job.micro_batches = sequences / (rows * dp);
    return job;
}

static void make_plain(struct link *link, double bandwidth) {
    link->share.value = link->reduce_gain.value = 1;
    link->latency_seconds.value = link->half_bytes.value = link->start_seconds.value = 0;
    link->reduces = false;
    link->bandwidth.value = bandwidth;
}

struct job seventy(int zero, bool plain_links) {
    struct job job = job_of("llama3-70b", "h100-sxm:512", "megatron-core", 8, 4, 1, 2, 4096, 256);
    job.layout.zero = zero;
    if (plain_links) {
        make_plain(&job.cluster.fast, 450e9);
        make_plain(&job.cluster.slow, 50e9);
        job.cluster.fabric.hop_seconds.value = 0;
    }
    return job;
}

struct estimate estimated(const struct job *job) {
    struct estimate out;
    struct err err = {0};
    CHECK_OK(estimate_step(job, true, &out, &err), err);
    return out;
}

double tensor_seconds(void) {
    struct job job = seventy(1, true);
    job.no_overlap = true;
    struct estimate e = estimated(&job);
    const struct estimate_stage *s = &e.stages[1]; // no end of the model
    double out = job.micro_batches *
                 (s->pass[COST_FORWARD].cause[CAUSE_TENSOR] + s->whole.cause[CAUSE_TENSOR]);
    estimate_free(&e);
    return out;
}

double shard_seconds(int zero, bool each_micro_batch) {
    struct job job = seventy(zero, true);
    struct stack own = *job.stack;
    own.own = true; // adds up unsharded where a job says so
    job.stack = &own;
    job.reduce_type = DTYPE_BF16;
    job.reduce_per_micro_batch = each_micro_batch;
    struct estimate e = estimated(&job);
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        const struct estimate_stage *s = &e.stages[i];
        sum += job.micro_batches * s->shard_flight + s->reduce + s->reduce_behind + s->gather +
               s->gather_first + e.updates[i].gather;
    }
    estimate_free(&e);
    return sum / 4 * 70e9 / (double)flops_all_params(&job.model);
}

double mfu_of(const struct job *job) {
    struct estimate e = estimated(job);
    double mfu = e.mfu_full;
    estimate_free(&e);
    return mfu;
}

double layer_bytes(int tp, bool sequence, int rows, enum engine_recompute mode) {
    struct job job =
        job_of("llama3-70b", "h100-sxm:512", "megatron-core", tp, 4, 1, rows, 4096, 256);
    struct plan_layer layer;
    job.layout.sequence_parallel = sequence;
    job.recompute = mode;
    plan_layer_kept(&job, 1, &layer);
    return layer.kept_bytes;
}

double shard_gb(int zero, bool each) {
    return shard_seconds(zero, each) * 50;
}

struct runs run_of_512(void) {
    static struct cluster c; // the run points into it
    struct runs runs;
    struct job job = seventy(1, false);
    struct estimate e = estimated(&job);
    c = cluster("h100-sxm:512");
    size_run(&c, 70e9, e.step_seconds, 1000000, &runs);
    estimate_free(&e);
    return runs;
}
