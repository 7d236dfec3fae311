// See figures.h.
#include "chapter/figures.h"
#include "simulate/runs.h"
#include "test.h"
#include <string.h>

double h100_rate(enum hardware_precision precision) {
    return chip("h100-sxm")->dense[precision].value;
}

double bubble(int pp, int micro_batches) {
    return idle_formula(PIPELINE_1F1B, pp, 1, micro_batches);
}

double link_ratio(void) {
    return one_way_gb("nvlink4") / one_way_gb("ib-ndr");
}

// ---- rates and money

double mfu(double tokens_per_second, double parameters, int accelerators) {
    return tokens_per_second * 6 * parameters / (accelerators * h100_rate(HARDWARE_BF16));
}

double mfu_full(double tokens_per_second, int accelerators) {
    struct model_config model = preset("llama3-70b");
    return tokens_per_second * flops_per_token_full(&model, 4096) /
           (accelerators * h100_rate(HARDWARE_BF16));
}

double tokens_at(double share, double parameters, int accelerators) {
    return share / mfu(1, parameters, accelerators);
}

double hours(double tokens, double tokens_per_second) {
    return tokens / tokens_per_second / 3600;
}

double dollars(int accelerators, double time) {
    return accelerators * time * cluster("h100-sxm:8").price_per_hour.value;
}

// ---- states

int least_data_ranks(double parameters, int tp, int pp, double limit_gb) {
    int dp = 1;
    while (states_gb(parameters, tp, pp, dp, 3) > limit_gb) dp++;
    return dp;
}

// ---- failures

static struct runs runs_of(int accelerators, double per_node_day) {
    struct runs runs;
    runs_defaults(&runs);
    runs.per_node = 8;
    runs.nodes = accelerators / 8;
    runs.failures_per_node_day = per_node_day;
    return runs;
}

static struct runs pessimistic(int accelerators) {
    return runs_of(accelerators, 8 * RUNS_FAILURES_PER_ACCELERATOR_WEEK / 7);
}

double mtbf(int accelerators) {
    struct runs runs = pessimistic(accelerators);
    return runs_mtbf_seconds(&runs);
}

double mtbf_measured(int accelerators) {
    struct runs runs = runs_of(accelerators, RUNS_FAILURES_PER_NODE_DAY);
    return runs_mtbf_seconds(&runs);
}

int spares_per_failure(int accelerators, double percentile) {
    struct runs runs = pessimistic(accelerators);
    return runs_spares_per_failure(&runs, percentile);
}

static struct runs_closed closed(double interval, double blocking, int accelerators) {
    struct runs runs = pessimistic(accelerators);
    struct runs_closed out;
    runs.blocking_seconds = blocking;
    runs.persist_seconds = 0;
    runs.interval_seconds = interval;
    runs.step_seconds = 0.5;
    runs.steps = 30 * 86400;
    runs_closed(&runs, &out);
    return out;
}

double least_waste(double blocking, int accelerators) {
    return closed(0, blocking, accelerators).least_waste;
}

double waste_at(double interval, double blocking, int accelerators) {
    struct runs_closed c = closed(interval, blocking, accelerators);
    return c.checkpoint + c.lost;
}

// ---- activations

double stream_bytes(const char *model, int rows, int tokens) {
    return 2.0 * rows * tokens * preset(model).hidden;
}

double kept_gb(struct kept k) {
    struct plan_memory ranks[64];
    struct err err = {0};
    double most = 0;
    struct job job = job_of(k.model, "h100-sxm:8", "weft", 1, k.pp, 1, k.rows, k.context, 8);
    job.model.context = k.context;
    job.layout.mesh.size[MESH_TP] = k.tp;
    job.layout.mesh.size[MESH_CP] = job.layout.mesh.shard = k.cp;
    job.layout.mesh.size[MESH_DP] = 1;
    job.layout.zero = 0;
    job.layout.sequence_parallel = k.sequence;
    job.recompute = k.mode;
    job.micro_batches = k.micro_batches;
    CHECK_OK(plan_memory(&job, ranks, &err), err);
    for (int r = 0; r < k.pp; r++)
        if (ranks[r].bytes[PLAN_ACTIVATIONS] > most) most = ranks[r].bytes[PLAN_ACTIVATIONS];
    return most / GB;
}

double kept_70b(enum engine_recompute mode, int rows) {
    return kept_gb((struct kept){"llama3-70b", 1, 1, 1, rows, 4096, 1, false, mode});
}

double redone(const char *with, enum engine_recompute mode) {
    struct job job = job_of("llama3-70b", "h100-sxm:8", with, 8, 1, 1, 1, 4096, 1);
    job.recompute = mode;
    struct estimate e = estimated(&job);
    double share = e.hardware_flops / e.model_flops_full - 1;
    estimate_free(&e);
    return share;
}

// ---- sizes

static double line_of(const struct size_sheet *sheet, const char *section, const char *name) {
    const struct size_line *line = size_find(sheet, section, name);
    if (!line) test_fail(__FILE__, __LINE__, "no line %s, %s", section, name);
    return line->value;
}

double packing(const char *name, int tokens) {
    struct model_config model = preset("llama3-70b");
    struct size_packing in = {
        .model = &model, .context = tokens, .document_tokens = 600, .accelerators = 512};
    struct size_sheet sheet = {0};
    struct err err = {0};
    CHECK_OK(size_packing(&in, &sheet, &err), err);
    return line_of(&sheet, "packing", name);
}

double pool(const char *name) {
    struct model_config policy = preset("llama3-70b"), reward = preset("llama2-13b");
    struct size_rlhf in;
    struct size_sheet sheet = {0};
    struct err err = {0};
    size_rlhf_defaults(&in);
    in.policy = &policy;
    in.reward = in.value = &reward;
    in.accelerator = chip("h100-sxm");
    in.accelerators = 512;
    CHECK_OK(size_rlhf(&in, &sheet, &err), err);
    return line_of(&sheet, "split as wanted", name);
}
