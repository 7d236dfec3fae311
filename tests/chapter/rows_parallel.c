// Chapter 10.1 and 10.2: the stack, four dimensions of parallelism.
#include "figures.h"
#include "plan/memory_kept.h"
#include "test.h"
#include <string.h>

// ---- 10.1

static double sheet_value(const struct size_sheet *sheet, const char *section, const char *name) {
    const struct size_line *line = size_find(sheet, section, name);
    CHECK(line);
    return line->value;
}

// The chapter's data pipeline: 2,048 sequences of 4,096 tokens, a step in two seconds.
static double data_of(const char *name, double shard_tokens, int workers) {
    static struct size_sheet sheet;
    struct model_config model = preset("llama3-70b");
    struct size_data in = {.tokens_per_second = 2048 * 4096 * 0.5,
                           .vocab = model.vocab,
                           .shard_tokens = shard_tokens,
                           .workers = workers,
                           .operations = 1,
                           .products_per_token = 6.0 * (double)flops_matmul_params(&model),
                           .flops_per_token = flops_per_token_full(&model, 4096),
                           .rate = 512 * chip("h100-sxm")->dense[HARDWARE_BF16].value};
    struct err err = {0};
    sheet.count = 0;
    CHECK_OK(size_data(&in, &sheet, &err), err);
    return sheet_value(&sheet, "data", name);
}
static double gpu_days(double tokens, double mfu) {
    struct model_config model = preset("llama3-70b");
    return tokens * flops_per_token_full(&model, 4096) / mfu /
           chip("h100-sxm")->dense[HARDWARE_BF16].value / 86400;
}

static void rows_layers(struct chapter_page *page) {
    const char *at = "10, opening";
    ROW(at, "cost at 35 % over cost at 65 % MFU", 18.0 / 10, 0.65 / 0.35, "x", ROUNDED,
        "time goes with 1 / MFU");
    ROW(at, "GPU-days of 70B (\"tens of thousands\"), 20 tokens a parameter, 43.5 % MFU", 20000,
        gpu_days(1.4e12, 0.435), "", CONVENTION,
        "a number of tokens is not said: 17 thousand for "
        "these, ten times that for 15T");
    at = "10.1";
    ROW(at, "a device that waits 30 % of the time is busy at most", 0.95, 1 - 0.30, "%", WRONG,
        "95 % busy and 30 % idle exclude each other, unless the 95 % are of the time between "
        "waits");
    chapter_say(
        page, at, "which of six layers is the bottleneck", "signals and tools",
        "weft train (predicted beside measured), weft plan explain RUN", JUDGEMENT,
        "action by action, foretold beside measured, says what takes longer than it should");
    chapter_say(page, at, "share of MFU below which to look at the device", "40 %",
                "weft plan MODEL CLUSTER", JUDGEMENT,
                "what a layout can reach is foretold; a threshold for all is none");
    at = "10.1.3";
    ROW(at, "read bandwidth, 2 bytes a token", 8,
        data_of("tokens_per_second", 1e6, 10000) * 2 / 1e6, "MB/s", ROUNDED, "");
    ROW(at, "bytes of a token of Llama 3", 2, size_token_bytes(128256), "B", WRONG,
        "128,256 ids do not fit in 16 bits");
    ROW(at, "read bandwidth, then", 8, data_of("read_bandwidth", 1e6, 10000) / 1e6, "MB/s", WRONG,
        "4 bytes a token; still trivial");
    ROW(at, "MFU that this rate would be; at most 100 %", 1, mfu(2048 * 4096 * 0.5, 70e9, 512), "%",
        WRONG, "4.19 M tokens/s are more than twice what 512 H100 can compute at their peak");
    ROW(at, "files read a second, shards of 1M tokens", 4,
        data_of("metadata_operations", 1e6, 10000), "/s", ROUNDED, "");
    ROW(at, "metadata operations a second, 10,000 workers", 40000,
        data_of("metadata_operations", 1e6, 10000), "/s", WRONG,
        "each shard is opened by one worker; 42 thousand only if all opened all");
    ROW(at, "the same if every worker opens every shard", 40000,
        data_of("if_every_worker_opens_all", 1e6, 10000), "/s", ROUNDED, "");
    ROW(at, "files read a second, shards of 100M tokens", 0.04,
        data_of("metadata_operations", 1e8, 10000), "/s", ROUNDED, "the rule holds");
    chapter_say(page, at, "metadata limit of a file system", "50,000/s",
                "weft plan size data, cluster storage.metadata_per_second", JUDGEMENT,
                "a figure of the cluster, given there with its source");
    chapter_say(page, at, "random access through mmap, workers, prefetch", "O(1), 4 or more",
                "weft bench loader", MEASURE, "micro-batches a second in every mode and order");
    chapter_say(page, at, "shuffling shards, not tokens", "a rule", "weft data", JUDGEMENT,
                "both levels here: shards and samples, each a pure function of seed and step");
    ROW(at, "packing gains, 600-token documents at 4,096", 0.20,
        packing("gain_over_concatenate_and_chunk", 4096), "%", WRONG,
        "against cut streams it is the attention that masks skip; against a document a row it is "
        "what padding wasted");
    ROW(at, "the same at 128K", 0.20, packing("gain_over_concatenate_and_chunk", 131072), "%",
        WRONG, "at long contexts attention is most of the work");
}

// ---- 10.2

static double all_reduce_ms(int rows, double bandwidth) {
    return 1e3 * ring_seconds(NETWORK_ALL_REDUCE, 8, rows * 4096.0 * 8192 * 2, bandwidth);
}
static int group_of(enum mesh_group_kind kind) {
    struct job job = seventy(3, false);
    return mesh_group_size(&job.layout.mesh, kind, job.model.kv_heads);
}
static int slice_width(void) {
    struct job job = seventy(3, false);
    return job.model.hidden / job.layout.mesh.size[MESH_TP];
}
static int layers_of_stage(void) {
    struct job job = seventy(3, false);
    return job.layout.layer_first[2] - job.layout.layer_first[1];
}
static int step_all_reduces(void) { // of a GPU
    double one = ring_seconds(NETWORK_ALL_REDUCE, 8, 2.0 * 4096 * 8192 * 2, 450e9);
    return (int)(tensor_seconds() / one + 0.5);
}
static double tensor_seconds_at(double bandwidth) {
    return tensor_seconds() * 450e9 / bandwidth;
}

static void rows_figure(struct chapter_page *page) {
    const char *at = "10.2, figure 1";
    ROW(at, "GPUs of the layout", 512, (double)group_of(GROUP_WORLD), "", SAME, "");
    ROW(at, "GPUs among which FSDP shards", 32, (double)group_of(GROUP_DATA), "", WRONG,
        "32 is one replica, TP x PP; its own caption has the 16 data ranks");
    ROW(at, "layers of a stage", 20, (double)layers_of_stage(), "", SAME, "");
    ROW(at, "columns of a weight's slice", 1024, (double)slice_width(), "", SAME, "");
    ROW(at, "NVLink of the H100", 600, both_ways_gb("nvlink4"), "GB/s", WRONG,
        "600 is the A100's; of 900, 450 go one way");
    ROW(at, "an all-reduce costs over InfiniBand", 12, one_way_gb("nvlink4") / one_way_gb("ib-ndr"),
        "x", WRONG, "one direction against one");
    ROW(at, "FSDP's traffic of a GPU and step", 420, shard_gb(3, true), "GB", WRONG,
        "TP and PP divide the parameters by 32 first; gathers repeat for 8 micro-batches");
    ROW(at, "all-reduces of tensor parallelism, a GPU and step", 160, (double)step_all_reduces(),
        "", WRONG, "20 layers x 4 x 8 micro-batches");
    ROW(at, "bytes of each", 268, 2 * 4096.0 * 8192 * 2 / 1e6, "MB", WRONG,
        "268 is micro-batch 4; the example has 2");
    chapter_say(page, at, "small and frequent on NVLink, large and rare on InfiniBand", "a rule",
                "weft plan MODEL CLUSTER", JUDGEMENT,
                "the order of mesh axes; exposed seconds of each kind of message say whether it "
                "holds");
    at = "10.2.1";
    ROW(at, "terms of the sum over TP = 8 ranks, Z_0 to Z_TP", 9, (double)group_of(GROUP_TP), "",
        WRONG, "Z_0 to Z_(TP-1)");
    ROW(at, "all-reduces of a layer and forward", 1, step_all_reduces() / 2.0 / 20 / 8, "", WRONG,
        "two: behind attention and behind the MLP, as its own next formula has it");
    ROW(at, "bytes at micro-batch 4", 268, 4 * 4096.0 * 8192 * 2 / 1e6, "MB", ROUNDED, "");
    ROW(at, "all-reduce over NVLink, micro-batch 4", 0.45, all_reduce_ms(4, 450e9), "ms", WRONG,
        "a ring of 8 moves 1.75 times the bytes, at 450 GB/s one way");
    ROW(at, "over InfiniBand", 5.4, all_reduce_ms(4, 50e9), "ms", WRONG, "1.75 times the bytes");
    ROW(at, "the step's on NVLink", 72, 1e3 * tensor_seconds_at(450e9), "ms", WRONG,
        "a GPU holds 20 of the 80 layers, with 4 all-reduces each, for 8 micro-batches of 2");
    ROW(at, "the step's on InfiniBand", 864, 1e3 * tensor_seconds_at(50e9), "ms", WRONG,
        "the same; nine times NVLink's");
}

// What every tensor rank keeps alike: 7/8 of it goes with sequence parallelism.
static double replicated_gb(int rows) {
    return (layer_bytes(8, false, rows, RECOMPUTE_NONE) -
            layer_bytes(8, true, rows, RECOMPUTE_NONE)) *
           8 / 7 / GB;
}
static double scatter_and_gather(void) {
    return (ring_seconds(NETWORK_ALL_GATHER, 8, 1, 1) +
            ring_seconds(NETWORK_REDUCE_SCATTER, 8, 1, 1)) /
           ring_seconds(NETWORK_ALL_REDUCE, 8, 1, 1);
}

static void rows_sequence(struct chapter_page *page) {
    const char *at = "10.2.2";
    ROW(at, "replicated activations, 80 layers at micro-batch 4", 10.7, 80 * replicated_gb(4), "GB",
        WRONG, "8 s b h bytes a layer (10 with dropout masks): the chapter's is about one layer's");
    ROW(at, "held by a stage of 20 layers, 4 micro-batches of 4 in flight", 10.7,
        20 * 4 * replicated_gb(4), "GB", WRONG,
        "PP does not lower it: the first of 4 stages holds 4");
    ROW(at, "with sequence parallelism, of its 10.7 GB", 1.34, 10.7 / group_of(GROUP_TP), "GB",
        ROUNDED, "the division holds");
    ROW(at, "freed, of its 10.7 GB", 8, 10.7 - 10.7 / group_of(GROUP_TP), "GB", WRONG,
        "10.7 less 1.34");
    ROW(at, "traffic of gather and scatter over the all-reduce in their place", 1,
        scatter_and_gather(), "x", SAME, "called extra messages; the bytes are the same");
    chapter_say(page, at, "always on where TP > 1", "a rule", "weft plan --fix sequence=1",
                JUDGEMENT, "searched both ways");
}

static double micro_batches_of_example(void) {
    return seventy(3, false).micro_batches;
}

static void rows_bubble(struct chapter_page *page) {
    const char *at = "10.2.3";
    ROW(at, "GPipe's bubble, PP 4, M 4", 0.75, idle_share(KIND(GPIPE), 4, 1, 4), "%", CONVENTION,
        "75 % is over the ideal time; its own formula gives the share of the step");
    ROW(at, "a stage's idle share there, \"3/4 of the time\"", 0.75,
        idle_formula(KIND(GPIPE), 4, 1, 4), "%", WRONG, "it works 4 of 7 slots");
    ROW(at, "1F1B's bubble, PP 4, M 8", 0.27, idle_share(KIND(1F1B), 4, 1, 8), "%", ROUNDED,
        "3/11");
    ROW(at, "GPipe's bubble at the same M 8", 0.75, idle_share(KIND(GPIPE), 4, 1, 8), "%", WRONG,
        "as 1F1B's: the figure compares different M; 1F1B lowers memory, not the bubble");
    ROW(at, "interleaved, V 2, M 8", 0.158, idle_share(KIND(INTERLEAVED), 4, 2, 8), "%", SAME,
        "3/19");
    ROW(at, "1F1B, PP 4, M 32", 0.086, idle_formula(KIND(1F1B), 4, 1, 32), "%", ROUNDED, "");
    ROW(at, "1F1B, PP 4, M 128", 0.023, idle_formula(KIND(1F1B), 4, 1, 128), "%", ROUNDED, "");
    ROW(at, "1F1B, PP 8, M 32", 0.179, idle_formula(KIND(1F1B), 8, 1, 32), "%", ROUNDED, "");
    ROW(at, "bubble at M = 4 PP, \"below 10 %\"", 0.10, idle_formula(KIND(1F1B), 4, 1, 16), "%",
        WRONG, "towards 1/5 as PP grows");
    ROW(at, "least M below 10 %, PP 4", 16, (double)micro_batches_below(0.10, 4, 1), "", WRONG,
        "more than 9 (PP - 1)");
    ROW(at, "the same with V 2", 16, (double)micro_batches_below(0.10, 4, 2), "", CONVENTION,
        "more than 9 (PP - 1) / V: here the rule is enough");
    chapter_say(page, at, "stages unequal, messages not free", "left out",
                "weft schedule, weft plan", JUDGEMENT,
                "the lists are simulated; the formula is printed beside");
}

static double sequences_of_example(void) {
    struct job job = seventy(3, false);
    return (double)job_sequences(&job);
}

static void rows_data(struct chapter_page *page) {
    const char *at = "10.2.4";
    ROW(at, "sequences of a step", 256, sequences_of_example(), "", SAME, "");
    ROW(at, "tokens of a step", 1e6, sequences_of_example() * 4096, "", ROUNDED, "");
    ROW(at, "micro-batches of a pipeline", 32, micro_batches_of_example(), "", WRONG,
        "those of one replica, so neither times DP nor over PP: gradient accumulation itself");
    ROW(at, "its bubble", 0.086, idle_formula(KIND(1F1B), 4, 1, 8), "%", WRONG, "3/11");
    chapter_say(page, at, "FSDP's prefetch options", "needed for overlap", "weft bench overlap",
                MEASURE, "hidden and exposed parts of both directions");
}

// ---- 10.2.5 to 10.2.7

static double score_gb(int heads, double tokens) {
    return heads * tokens * tokens * 2 / GB;
}
static double ring_gb(void) { // keys and values of a layer
    struct model_config model = preset("llama3-70b");
    return size_kv_bytes(&model) / model.layers * 128 * 1024 / GB;
}
static double layer_share_of_cp(int cp) {
    struct job one = job_of("llama3-70b", "h100-sxm:512", "megatron-core", 8, 1, 1, 1, 131072, 64);
    struct job cut = job_of("llama3-70b", "h100-sxm:512", "megatron-core", 8, 1, cp, 1, 131072, 64);
    struct plan_layer a, b;
    plan_layer_kept(&one, 1, &a);
    plan_layer_kept(&cut, 1, &b);
    return a.kept_bytes / b.kept_bytes;
}
static double scores_kept(void) { // by fused attention
    struct job job = job_of("llama3-70b", "h100-sxm:512", "megatron-core", 8, 1, 1, 1, 131072, 64);
    struct plan_layer layer;
    double bytes = 0;
    plan_layer_kept(&job, 1, &layer);
    for (int i = 0; i < layer.count; i++)
        if (strcmp(layer.kept[i].name, "scores") == 0) bytes += layer.kept[i].bytes;
    return bytes / GB;
}
static double dispatch_mb(int tokens) {
    struct model_config m = preset("mixtral-8x7b");
    return (double)tokens * m.top_k * m.hidden * 2 * ring_seconds(NETWORK_ALL_GATHER, 8, 1, 1) /
           1e6;
}
static double dispatch_seconds(const char *where, int tokens) {
    struct cluster c = cluster(where);
    struct network_group group = {.size = 8, .inside = 8 / c.nodes, .domains = c.nodes};
    struct model_config m = preset("mixtral-8x7b");
    return network_seconds(&c, &group, NETWORK_ALL_TO_ALL, (double)tokens * m.top_k * m.hidden * 2,
                           NULL);
}
static int tree_pp(void) { // least number of stages with which step 2 is satisfied
    int pp = 1;
    while (states_gb(70e9, 1, 1, 512 / 8 / pp, 3) > 75) pp++;
    return pp;
}

static void rows_long(struct chapter_page *page) {
    const char *at = "10.2.5";
    ROW(at, "scores of a layer at 128K", 32, score_gb(64, 131072), "GB", WRONG,
        "34.4 GB (32 GiB) is one head's; the layer has 64");
    ROW(at, "of 80 layers", 2560, 80 * score_gb(64, 131072), "GB", WRONG, "likewise");
    ROW(at, "of them kept by fused attention", 32, scores_kept(), "GB", WRONG,
        "it stores none, so that sequences outgrow memory by their activations, not their scores");
    ROW(at, "memory falls with CP 8 by", 64, layer_share_of_cp(8), "x", WRONG,
        "64 holds for one block of scores, which is not kept; activations fall by 8");
    ROW(at, "ring traffic of a layer", 4.3, ring_gb(), "GB", WRONG,
        "8 heads of keys and values, not 64; 7/8 of it are sent");
    chapter_say(page, at, "CP by length: 2 from 32K, 4 from 64K, 8 from 128K", "a table",
                "weft plan llama3-70b CLUSTER --context 65536", JUDGEMENT,
                "searched; depends on memory and batch, not on the length alone");
    at = "10.2.6";
    ROW(at, "a dispatch of Mixtral, EP 8, 4,096 tokens", 56, dispatch_mb(4096), "MB", ROUNDED,
        "56 MiB");
    ROW(at, "all-to-all over InfiniBand over that in a node (\"acceptable\")", 1,
        dispatch_seconds("h100-sxm:8x1", 4096) / dispatch_seconds("h100-sxm:8", 4096), "x", WRONG,
        "bound by bandwidth means that the slower link costs its ratio, four times a layer");
    chapter_say(page, at, "balance of experts", "monitored", "weft plan --imbalance 1.2", JUDGEMENT,
                "the busiest rank's tokens over the mean lengthen every layer with experts");
    at = "10.2.7";
    chapter_say(page, at, "step 1: TP is the fast domain", "8", "weft plan MODEL CLUSTER",
                JUDGEMENT, "the largest is seldom best: the trail prices its neighbours");
    ROW(at, "step 2: states that must fit, TP 8, 70B on 512", 17.5, states_gb(70e9, 8, 1, 64, 3),
        "GB", WRONG, "16 P / N_DP forgets TP");
    ROW(at, "PP that step 2 gives for the example", 4, (double)tree_pp(), "", WRONG,
        "by its own formula 17.5 GB fit, so the tree never comes to the PP 4 that the chapter "
        "runs");
    ROW(at, "layers of a stage, \"at least 10\": Llama 3 405B", 10, 126.0 / 16, "", WRONG,
        "the largest known dense run has 8 and fewer");
    chapter_say(page, at, "step 3: ZeRO-3 always", "always", "weft plan --fix zero=1", JUDGEMENT,
                "searched: beside TP and PP it moves 12 times the bytes of ZeRO-1, and DeepSeek-V3 "
                "runs ZeRO-1");
    ROW(at, "step 5: M for 10 %, PP 8", 32, (double)micro_batches_below(0.10, 8, 1), "", WRONG,
        "M >= 4 PP and a bubble below 10 % are two demands, of which the second is harder");
}

void rows_stack(struct chapter_page *page) {
    rows_layers(page);
    rows_figure(page);
    rows_sequence(page);
    rows_bubble(page);
    rows_data(page);
    rows_long(page);
}
