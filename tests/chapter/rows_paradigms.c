// Chapter 6.2 to 6.4: paradigms, frameworks, operation, exercises.
#include "ask.h"
#include "engine/engine.h"
#include "plan/memory_kept.h"
#include "plan/search.h"
#include "test.h"

// ---- 6.2

static double largest_billions(const char *name) {
    return chip(name)->memory_bytes.value / 16 / 1e9;
}
// Bytes that a data rank sends in a step over those of an all-reduce of its gradients.
static double traffic_over_all_reduce(int gathers, int scatters) {
    double once = ring_seconds(NETWORK_ALL_REDUCE, 64, 1e9, 1e9);
    return (gathers * ring_seconds(NETWORK_ALL_GATHER, 64, 1e9, 1e9) +
            scatters * ring_seconds(NETWORK_REDUCE_SCATTER, 64, 1e9, 1e9)) /
           once;
}

static void rows_data_parallel(struct chapter_page *page) {
    const char *at = "6.2.1";
    ROW(at, "largest model whose states fit one H100 without sharding, from its 80 GB", 5,
        largest_billions("h100-sxm"), "e9", CONVENTION,
        "16 bytes a parameter, nothing left for activations");
    at = "6.2.2";
    ROW(at, "ZeRO-1 saves", 4, states_gb(70e9, 1, 1, 64, 0) / states_gb(70e9, 1, 1, 64, 1), "x",
        CONVENTION, "the limit for many ranks; at 64 a little less, at 16 3.4");
    ROW(at, "ZeRO-2 saves", 8, states_gb(70e9, 1, 1, 64, 0) / states_gb(70e9, 1, 1, 64, 2), "x",
        CONVENTION, "the limit for many ranks; at 16 5.6");
    ROW(at, "ZeRO-3 saves, 64 ranks", 64,
        states_gb(70e9, 1, 1, 64, 0) / states_gb(70e9, 1, 1, 64, 3), "x", ROUNDED,
        "norms are whole on every rank");
    ROW(at, "ZeRO-1's traffic over plain data parallelism's", 1, traffic_over_all_reduce(1, 1), "x",
        SAME, "scatter and gather are the two halves of an all-reduce");
    ROW(at, "ZeRO-3's, gathering in forward only as told", 1, traffic_over_all_reduce(2, 1), "x",
        WRONG, "weights that forward released are gathered again for backward");
    chapter_say(
        page, at, "FSDP example: gradients reduced in BF16", "torch.bfloat16", "job.reduce_type",
        JUDGEMENT,
        "sums over many ranks lose bits; here FP32 unless a run says otherwise, at twice the "
        "bytes");
    chapter_say(page, at, "FSDP example: transformer_auto_wrap_policy", "passed bare",
                "weft train, parallel.zero: 3", JUDGEMENT,
                "as printed it fails: the policy wants its set of layer classes "
                "(functools.partial); here units are layers by themselves");
}

static double tensor_messages(void) {
    return tensor_seconds() / (20 * 8) /
           ring_seconds(NETWORK_ALL_REDUCE, 8, 2.0 * 4096 * 8192 * 2, 450e9);
}
static int domain_of(const char *name) {
    return cluster(name).domain;
}
static int layers_of_stage(int layers, int stages) {
    struct job job = seventy(1, false);
    struct err err = {0};
    job.model.layers = layers;
    job.layout.mesh.size[MESH_PP] = stages;
    CHECK_OK(layout_split_layers(&job.layout, &job.model, NULL, 0, false, &err), err);
    return job.layout.layer_first[stages / 2 + 1] - job.layout.layer_first[stages / 2];
}
// What redoing costs and saves: of GPT-3 175B's layer at 2,048 tokens, as the papers have it.
static struct job gpt3(enum engine_recompute mode) {
    struct job job = job_of("gpt3-175b", "a100-80:64", "megatron-2022", 1, 8, 1, 1, 2048, 64);
    job.recompute = mode;
    job.dropout = 0.1;
    return job;
}
static double kept_share(enum engine_recompute mode) {
    struct job job = gpt3(mode), all = gpt3(RECOMPUTE_NONE);
    struct plan_layer some, every;
    plan_layer_kept(&job, 0, &some);
    plan_layer_kept(&all, 0, &every);
    return some.kept_bytes / every.kept_bytes;
}
static double redone_share(enum engine_recompute mode) {
    struct job job = gpt3(mode);
    struct estimate e = estimated(&job);
    double share = e.hardware_flops / e.model_flops_full - 1;
    estimate_free(&e);
    return share;
}
static double redone_by_w(void) {
    struct model_config model = preset("llama3-70b");
    return engine_recompute_flops(&model, RECOMPUTE_NONE, 2048) /
           (flops_per_token_full(&model, 4096) / 3);
}

static int expert_messages(void) { // of a layer, both passes
    struct job job = job_of("mixtral-8x7b", "h100-sxm:8", "megatron-core", 1, 1, 1, 1, 4096, 8);
    struct cost_shape shape;
    struct stack room;
    struct cost_ops list = {0};
    int count = 0;
    job.layout.mesh.ep = 8;
    job_cost_shape(&job, &room, &shape);
    for (int pass = COST_FORWARD; pass <= COST_WEIGHT; pass++)
        CHECK(cost_list_layer(&shape, 0, (enum cost_pass)pass, &list, NULL) == 0);
    for (int i = 0; i < list.count; i++)
        count += list.ops[i].kind == COST_MESSAGE && list.ops[i].message == NETWORK_ALL_TO_ALL;
    cost_ops_free(&list);
    return count;
}

static void rows_model_parallel(struct chapter_page *page) {
    const char *at = "6.2.3";
    ROW(at, "all-reduces of a layer under tensor parallelism", 2, tensor_messages(), "", WRONG,
        "two forward and two backward, for every micro-batch");
    ROW(at, "most tensor ranks in a fast domain", 8, domain_of("gb200-nvl72:72"), "", CONVENTION,
        "eight is a DGX H100's node; the domain counts, and in an NVL72 72 GPUs share one");
    at = "6.2.4";
    ROW(at, "layers of a stage, 32 over 4", 8, layers_of_stage(32, 4), "", SAME, "");
    ROW(at, "GPipe's bubble (p-1)/m, p = 4, m = 4", 0.75, idle_over_ideal(KIND(GPIPE), 4, 4), "%",
        SAME, "over the ideal time");
    ROW(at, "the same as a share of the step", 0.75, idle_share(KIND(GPIPE), 4, 1, 4), "%",
        CONVENTION, "(p-1)/(p-1+m), the other chapter's formula");
    ROW(at, "micro-batches that 1F1B holds, p = 4, m = 16", 4, in_flight(KIND(1F1B), 4, 16), "",
        SAME, "of the first stage; the last holds one");
    ROW(at, "micro-batches that GPipe holds, m = 16", 16, in_flight(KIND(GPIPE), 4, 16), "", SAME,
        "");
    ROW(at, "forward passes that zero-bubble's W redoes", 1, redone_by_w(), "", WRONG,
        "nothing is recomputed: B is the gradient of inputs, W that of weights");
    ROW(at, "bubble that zero-bubble leaves, p = 4, m = 8", 0, idle_share(KIND(ZB_H1), 4, 1, 8),
        "%", WRONG, "ZB-H1, the memory of 1F1B (27.3 %): the filling of the first forwards stays");
    ROW(at, "the same with two chunks a rank", 0, idle_share(KIND(ZB_V), 4, 2, 8), "%", WRONG,
        "ZB-V; none at all needs more memory or updates without a barrier");
    chapter_say(page, "6.2.5", "sequence parallelism: what it saves and costs", "described",
                "weft plan MODEL CLUSTER --fix sequence=1", JUDGEMENT,
                "searched both ways; the same bytes travel as gather and scatter in place of "
                "all-reduce");
    chapter_say(page, "6.2.5", "context parallelism from 128K tokens", "described",
                "weft bench attention, weft plan --context 131072", JUDGEMENT,
                "searched at every length; it pays where sequences outgrow memory, whatever their "
                "number of tokens");
    ROW("6.2.6", "all-to-alls of a layer with experts", 2, expert_messages(), "", CONVENTION,
        "forward alone; gradients travel the same ways back");
}

static int ranks_of(int tp, int cp, int pp, int dp) {
    return mesh_ranks(&(struct mesh){.size = {pp, dp, cp, tp}});
}
static int replicas_of_experts(int dp, int ep) {
    struct mesh mesh = {.size = {16, dp, 1, 1}, .order = {0, 1, 2, 3}, .ep = ep, .shard = dp};
    return mesh_group_size(&mesh, GROUP_EXPERT_DATA, 1);
}

static void rows_layouts(struct chapter_page *page) {
    const char *at = "6.2.7";
    ROW(at, "GPUs of DeepSeek-V3's layout", 2048, ranks_of(1, 1, 16, 128), "", SAME, "");
    ROW(at, "its EP 64 inside DP 128: copies of each expert", 2, replicas_of_experts(128, 64), "",
        SAME, "experts divide the data ranks and are no factor of the product");
    ROW(at, "layers of its stages, of 61 over 16", 4, layers_of_stage(61, 16), "", SAME,
        "not said; most hold 4, and the last one also the prediction module");
    chapter_say(page, at, "why DeepSeek-V3 has no tensor parallelism", "its attention and experts",
                "weft plan deepseek-v3 h800-ib:2048", JUDGEMENT,
                "the paper's reasons are memory saved elsewhere and DualPipe, which hides the "
                "all-to-alls; the schedule is what the chapter's list lacks");
    ROW(at, "GPUs of Llama 3 405B's layout", 16384, ranks_of(8, 1, 16, 128), "", SAME, "");
    ROW(at, "its data ranks in the phase of 128K tokens", 128, 16384.0 / ranks_of(8, 16, 16, 1), "",
        WRONG, "CP 16 comes out of DP: 8 x 16 x 16 x 8");
    chapter_say(page, at, "its network between nodes", "InfiniBand",
                "weft plan llama3.1-405b h100-roce:16384", JUDGEMENT,
                "the 405B run used the RoCE cluster; rails of 400 Gb/s both");
    chapter_say(
        page, at, "its sharding, \"FSDP / ZeRO-3\"", "ZeRO-3",
        "weft plan llama3.1-405b h100-roce:16384 --fix zero=2", JUDGEMENT,
        "the paper keeps parameters after forward, so that backward gathers nothing: nearer "
        "to ZeRO-2");
}

static void rows_techniques(struct chapter_page *page) {
    const char *at = "6.3.1";
    chapter_say(page, at, "sizes that each framework is for", "ranges",
                "weft hardware list, docs/validation.md", JUDGEMENT,
                "a range belongs to memory and links, not to a framework: Llama 3's 405B shards "
                "with FSDP");
    at = "6.3.2";
    ROW(at, "selective recomputation saves activations", 0.70, 1 - kept_share(RECOMPUTE_SELECTIVE),
        "%", ROUNDED, "of GPT-3's layer at 2,048 tokens 34 s b h of 34 + 80 stay");
    ROW(at, "and costs", 0.30, redone_share(RECOMPUTE_SELECTIVE), "%", WRONG,
        "30 % is full recomputation (Chen 2016); the selective one (2022) redoes scores, softmax "
        "and their product with values, not projections");
    ROW(at, "full recomputation costs, a third of a step's operations", 1.0 / 3,
        redone_share(RECOMPUTE_FULL), "%", ROUNDED, "the head is not redone");
    chapter_say(page, at, "fused attention is quicker by", "2x to 4x", "weft bench attention",
                MEASURE, "tiled against storing the scores, by length");
    chapter_say(page, at, "memory of attention", "O(N) for O(N^2)", "weft bench attention", MEASURE,
                "prints bytes of both; one FP32 statistic a head and token is what stays");
    chapter_say(page, at, "fusing memory-bound kernels", "helps", "weft bench gemm", MEASURE,
                "share of the memory bandwidth of each fused kernel");
    chapter_say(page, at, "messages behind backward", "helps", "weft bench overlap", MEASURE,
                "how much of the traffic hides on a slow link, by bucket");
}

static double persist_seconds(void) {
    return run_of_512().persist_seconds;
}

// ---- 6.4 and exercises

static double run_mfu(const char *model, const char *where, int tp, int pp, int rows,
                      int sequences) {
    struct job job = job_of(model, where, "megatron-core", tp, pp, 1, rows, 8192, sequences);
    if (pp > 1) job.schedule = PIPELINE_INTERLEAVED, job.layout.chunks = 5;
    struct err err = {0};
    CHECK_OK(layout_split_layers(&job.layout, &job.model, NULL, 0, true, &err), err);
    return mfu_of(&job);
}
static double llama3_mfu(void) {
    struct job job = job_of("llama3.1-405b", "h100-roce:16384", "llama3", 8, 16, 1, 1, 8192, 2048);
    job.schedule = PIPELINE_INTERLEAVED;
    job.layout.chunks = 7;
    struct err err = {0};
    CHECK_OK(layout_split_layers(&job.layout, &job.model, NULL, 0, true, &err), err);
    return mfu_of(&job);
}
static double mtbf_hours(int nodes) {
    struct runs runs;
    runs_defaults(&runs);
    runs.nodes = nodes;
    runs.failures_per_node_day = RUNS_FAILURES_PER_NODE_DAY;
    return runs_mtbf_seconds(&runs) / 3600;
}
static double flops_full(const char *model, int context) {
    struct model_config config = preset(model);
    return flops_per_token_full(&config, context);
}
static double flops_causal(const char *model, int context) {
    struct model_config config = preset(model);
    return flops_per_token_causal(&config, context);
}

static void rows_fleet(struct chapter_page *page) {
    const char *at = "6.4.1";
    ROW(at, "ranks stand still in the snapshot as printed", 0, persist_seconds(), "s", WRONG,
        "torch's save returns when all is written; what the text promises is async_save");
    at = "6.4.2";
    ROW(at, "hours between failures of 16,384 GPUs, from 54 days and 419", 54 * 24 / 419.0,
        mtbf_hours(2048), "h", ROUNDED, "the chapter says hours, without a figure");
    chapter_say(page, at, "silent hangs found within seconds", "seconds", "weft launch", JUDGEMENT,
                "heartbeats find the dead in seconds; a hang only shows as a step that is late, so "
                "it takes a few steps' time");
    chapter_say(
        page, at, "resuming from a failed node's NVMe", "minutes", "weft simulate run", JUDGEMENT,
        "a node that is taken out takes its NVMe along: its shards come from a buddy's copy "
        "or from the file system");
    at = "6.4.3";
    ROW(at, "operations a token, 6 N + 12 L H T, 70B at 4,096",
        6 * params("llama3-70b") + 12.0 * 80 * 8192 * 4096, flops_full("llama3-70b", 4096), "",
        ROUNDED, "N here leaves out the embedding, which multiplies nothing");
    ROW(at, "the same with attention counted as it is, causal",
        6 * params("llama3-70b") + 12.0 * 80 * 8192 * 4096, flops_causal("llama3-70b", 4096), "",
        CONVENTION, "half of the pairs are masked; reports show both");
    ROW(at, "MFU of one node, 55 to 65 %", 0.60, run_mfu("llama3-8b", "h100-sxm:8", 1, 1, 1, 128),
        "%", CONVENTION, "inside: the 8B model at 8,192 tokens in BF16, foretold");
    ROW(at, "MFU of 64 to 256 GPUs, 45 to 55 %", 0.50,
        run_mfu("llama3-70b", "h100-sxm:128", 4, 4, 1, 512), "%", CONVENTION,
        "inside: the 70B model on 128, TP 4, PP 4 in 5 chunks, foretold");
    ROW(at, "MFU of 16,384 GPUs, 38 to 43 %: the paper's 400 TFLOP/s a GPU", 0.41,
        400 / dense_tflops("h100-sxm", HARDWARE_BF16), "%", ROUNDED,
        "Llama 3 405B; 43 % is that of 8,192, 38 % that of 128K tokens");
    ROW(at, "the same run foretold", 0.41, llama3_mfu(), "%", CONVENTION,
        "its layout on our figures of RoCE, 7 chunks a rank: a prediction beside a measurement, "
        "see validation.md for how far such are off");
}

static struct search_choice best_on_64(void) {
    struct model_config model = preset("llama3-70b");
    struct cluster c = cluster("h100-sxm:64");
    struct search_request request = {.model = &model,
                                     .cluster = &c,
                                     .stack = stack("weft"),
                                     .batch = 256,
                                     .context = 4096,
                                     .best = 1};
    static struct search_result result;
    struct err err = {0};
    CHECK_OK(search_run(&request, &result, &err), err);
    CHECK(result.count > 0);
    return result.best[0].choice;
}

static void rows_exercises(struct chapter_page *page) {
    const char *at = "6, exercise 1", *none = "not given; the formula's figure stands in its place";
    ROW(at, "weights of 70B", 140, states_gb(70e9, 1, 1, 1, 0) * 2 / 16, "GB", SAME, none);
    ROW(at, "masters", 280, states_gb(70e9, 1, 1, 1, 0) * 4 / 16, "GB", SAME, none);
    ROW(at, "gradients", 140, states_gb(70e9, 1, 1, 1, 0) * 2 / 16, "GB", SAME, none);
    ROW(at, "optimizer states", 560, states_gb(70e9, 1, 1, 1, 0) * 8 / 16, "GB", SAME, none);
    ROW(at, "ZeRO-1, 64 GPUs: (4 + 12/64) P", 293.1, states_gb(70e9, 1, 1, 64, 1), "GB", SAME,
        none);
    ROW(at, "ZeRO-2: (2 + 14/64) P", 155.3, states_gb(70e9, 1, 1, 64, 2), "GB", SAME, none);
    ROW(at, "ZeRO-3: 16/64 P", 17.5, states_gb(70e9, 1, 1, 64, 3), "GB", ROUNDED, none);
    ROW(at, "ZeRO-3 with FP32 gradients", 17.5, states_fp32_gb(70e9, 1, 1, 64, 3), "GB", CONVENTION,
        "18 bytes a parameter, what this program's engine keeps unless told otherwise");
    chapter_say(page, "6, exercise 2", "a block with and without fused attention", "",
                "weft bench attention, weft train --trace, weft trace merge", MEASURE,
                "time and memory of both; the trace shows the kernels");
    at = "6, exercise 3";
    struct search_choice best = best_on_64();
    ROW(at, "tensor ranks, 70B on 64 H100; a node at most", 8, best.value[SEARCH_TP], "",
        CONVENTION,
        "not given: weft plan llama3-70b configs/clusters/64xh100.yaml searches; with states "
        "sharded over 64 ranks the model fits without");
    ROW(at, "pipeline ranks, none where the model fits", 1, best.value[SEARCH_PP], "", SAME,
        "the plan prints what every other choice would cost");
    ROW(at, "data and context ranks together", 64, best.value[SEARCH_DP] * best.value[SEARCH_CP],
        "", SAME, "");
}

void rows_paradigms(struct chapter_page *page) {
    rows_data_parallel(page);
    rows_model_parallel(page);
    rows_layouts(page);
    rows_techniques(page);
    rows_fleet(page);
    rows_exercises(page);
}
