// Chapter 10's worked example and its reference tables. See chapter.h.
#include "chapter/figures.h"
#include "simulate/runs.h"

static const double ms = 1e-3, mb = 1e6, hour = 3600, day = 86400, batch = 256 * 4096;

// Activations of the example's first stage.
static double example(bool sequence) {
    return kept_gb((struct kept){"llama3-70b", 8, 4, 1, 2, 4096, 8, sequence, RECOMPUTE_SELECTIVE});
}

// Seconds of an all-reduce among eight tensor ranks.
static double all_reduce(int rows, double gb_per_second) {
    return ring_seconds(NETWORK_ALL_REDUCE, 8, stream_bytes("llama3-70b", rows, 4096),
                        gb_per_second * GB);
}

static double sequences_of_example(void) {
    struct job job = seventy(3, true);
    return (double)job_sequences(&job);
}

static void sizing(struct chapter_page *page) {
    ROW("step 1", "states of 70B in one place", 1120, states_gb(70e9, 1, 1, 1, 0), "GB", SAME, "");
    ROW("step 1", "parameters of Llama 3 70B", 70e9, params("llama3-70b"), "", ROUNDED, "");
    ROW("step 1", "least N_DP for 75 GB, by its formula", 14.9, 16 * 70 / 75.0, "", ROUNDED, "");
    ROW("step 1", "the same under its own TP 8 and PP 4", 16, least_data_ranks(70e9, 8, 4, 75), "",
        WRONG, "TP and PP divide parameters first: 35 GB fit without any sharding");
    ROW("step 1", "ZeRO-3 states, by its formula", 70, states_gb(70e9, 1, 1, 16, 3), "GB", SAME,
        "16 GPUs and nothing else");
    ROW("step 1", "ZeRO-3 states of its configuration", 70, states_gb(70e9, 8, 4, 16, 3), "GB",
        WRONG, "the same 16 P also over TP 8 x PP 4");
    ROW("step 1", "the same with FP32 gradients", 70, states_fp32_gb(70e9, 8, 4, 16, 3), "GB",
        WRONG, "as above");
    ROW("step 1", "activations, selective, micro-batch 2", 11, kept_70b(RECOMPUTE_SELECTIVE, 2),
        "GB", WRONG, "11 GB are inputs of layers alone: full recomputation");
    ROW("step 1", "activations, full, micro-batch 1", 5.5, kept_70b(RECOMPUTE_FULL, 1), "GB",
        ROUNDED, "the whole model on one GPU");
    ROW("step 1", "activations on its first stage, selective", 11, example(true), "GB", WRONG,
        "under TP 8 x PP 4 with sequence parallelism: 20 layers, four micro-batches in flight");
    ROW("step 1", "saved by sequence parallelism", 8, example(false) - example(true), "GB", WRONG,
        "norms and residual stream, whole on every tensor rank without it, of four micro-batches "
        "in flight");
    ROW("step 1", "states and activations of a GPU", 81,
        states_gb(70e9, 8, 4, 16, 3) + example(true), "GB", WRONG, "a quarter of the card");
    ROW("step 1", "the same with sequence parallelism", 73,
        states_gb(70e9, 8, 4, 16, 3) + example(true), "GB", WRONG, "as above");
}

static void tensor_messages(struct chapter_page *page) {
    ROW("step 2A", "message of a tensor all-reduce, micro-batch 2", 268,
        stream_bytes("llama3-70b", 2, 4096) / mb, "MB", WRONG,
        "twice too much: the same tensor is its 134 MB of step 2B; 268 is micro-batch 4");
    ROW("step 2A", "268 MB over 600 GB/s", 0.45, 268e6 / 600e9 / ms, "ms", ROUNDED, "");
    ROW("step 2A", "NVLink of an H100, one way", 600, one_way_gb("nvlink4"), "GB/s", WRONG,
        "600 is the A100's, both directions");
    ROW("step 2A", "an all-reduce", 0.45, all_reduce(2, one_way_gb("nvlink4")) / ms, "ms", WRONG,
        "a ring moves 2 (N - 1)/N x 134 MB at 450 GB/s; three errors nearly cancel");
    ROW("step 2A", "its 80 x 2 messages", 72, 80 * 2 * 0.45, "ms", SAME, "");
    ROW("step 2A", "tensor messages of a GPU and step", 72, tensor_seconds() / ms, "ms", WRONG,
        "20 layers x (2 forward + 2 backward) x 8 micro-batches");
    ROW("step 2B", "layers of a stage", 20, preset("llama3-70b").layers / 4.0, "", SAME, "");
    ROW("step 2B", "message between stages", 134, stream_bytes("llama3-70b", 2, 4096) / mb, "MB",
        ROUNDED, "");
    ROW("step 2B", "NDR 400G", 50, one_way_gb("ib-ndr"), "GB/s", SAME, "");
    ROW("step 2B", "a hop", 2.7, stream_bytes("llama3-70b", 2, 4096) / 50e9 / ms, "ms", ROUNDED,
        "the eight tensor ranks may send an eighth each");
    ROW("step 2B", "hops of a step", 3, 3 * 8 * 2, "", WRONG,
        "every boundary sees each of 8 micro-batches forward and backward");
}

static void configuration(struct chapter_page *page) {
    chapter_say(
        page, "step 2A", "TP 8", "mandatory", "weft plan llama3-70b h100-sxm:512", JUDGEMENT,
        "the search weighs every TP inside a node: where memory lets it, a smaller one sends less");
    chapter_say(page, "step 2C", "CP 1 below 32K tokens", "1", "weft plan llama3-70b h100-sxm:512",
                JUDGEMENT, "the trail says what CP costs and what it saves");
    ROW("step 2D", "data ranks", 16, 512.0 / (8 * 4 * 1), "", SAME, "");
    ROW("step 2D", "all ranks", 512, 8 * 4 * 1 * 16, "", SAME, "");
    ROW("step 2E", "target of micro-batches", 16, micro_batches_below(0.10, 4, 1), "", WRONG,
        "its rule 4 PP leaves 15.8 %");
    ROW("step 2E", "micro-batches of a pipeline", 32, seventy(3, true).micro_batches, "", WRONG,
        "global batch / (DP x micro-batch): accumulation is what a pipeline sees");
    ROW("step 2E", "bubble", 0.086, bubble(4, 8), "%", WRONG, "3/11, not 3/35");
    ROW("step 2E", "bubble with four stages a rank", 0.086, idle_share(KIND(INTERLEAVED), 4, 4, 8),
        "%", ROUNDED, "its figure is had by interleaving: 3/(3 + 4 x 8)");
    ROW("step 2F", "sequences of a step", 256, sequences_of_example(), "", SAME, "");
    ROW("step 2F", "tokens of a step", 1048576, batch, "", SAME, "");
    ROW("step 2F", "bubble with accumulation 16", 0.10, bubble(4, 16), "%", WRONG,
        "doubling is good advice, but not yet 10 %");
    chapter_say(
        page, "step 2F", "batch of 2 to 4 M tokens", "Chinchilla-optimal",
        "weft plan --global-batch N", JUDGEMENT,
        "Chinchilla is about parameters and tokens; a batch is chosen, the plan takes about "
        "4 M unless told");
}

static void rate(struct chapter_page *page) {
    ROW("step 3", "tokens/s at the peak", 1205714, tokens_at(1, 70e9, 512), "", SAME, "");
    ROW("step 3", "1 - bubble", 0.914, 1 - bubble(4, 32), "", SAME, "of 32 micro-batches");
    ROW("step 3", "1 - bubble of that configuration", 0.914, 1 - bubble(4, 8), "", WRONG, "8/11");
    ROW("step 3", "product of the four factors", 0.721, 0.914 * 0.90 * 0.92 * 0.95, "", ROUNDED,
        "0.719: multiplied wrongly");
    ROW("step 3", "expected tokens/s", 869320, 1205714 * 0.914 * 0.90 * 0.92 * 0.95, "", ROUNDED,
        "follows");
    ROW("step 3", "expected MFU", 0.721, (1 - bubble(4, 8)) * 0.90 * 0.92 * 0.95, "%", WRONG,
        "with the bubble that there is");
    ROW("step 3", "MFU of 700K tok/s", 0.581, mfu(700e3, 70e9, 512), "%", ROUNDED, "");
    ROW("step 3", "the same with attention", 0.581, mfu_full(700e3, 512), "%", CONVENTION,
        "6 N + 12 L H T");
    ROW("step 3", "MFU of 300K tok/s", 0.249, mfu(300e3, 70e9, 512), "%", ROUNDED, "");
    ROW("step 3", "MFU of 2 s for that batch", 0.58, mfu(batch / 2, 70e9, 512), "%", WRONG,
        "10.5 counts 2 s a step; 58 % are 1.5 s");
    ROW("step 3", "seconds of a step at 58 %", 2, batch / tokens_at(0.581, 70e9, 512), "s", WRONG,
        "as above");
}

static void money(struct chapter_page *page) {
    ROW("step 4", "price of a GPU-hour", 2, dollars(1, 1), "$", SAME,
        "an assumption on both sides");
    ROW("step 4", "tokens for 70B", 300e9, 20 * 70e9, "", WRONG,
        "Chinchilla: about 20 tokens a parameter");
    ROW("step 4", "hours at 700K tok/s", 119, hours(300e9, 700e3), "h", SAME, "");
    ROW("step 4", "days", 5.0, hours(300e9, 700e3) / 24, "d", ROUNDED, "");
    ROW("step 4", "cost", 121856, dollars(512, hours(300e9, 700e3)), "$", SAME, "");
    ROW("step 4", "MFU of 400K tok/s", 0.33, mfu(400e3, 70e9, 512), "%", ROUNDED, "");
    ROW("step 4", "seconds at 400K tok/s", 750000, hours(300e9, 400e3) * hour, "s", SAME, "");
    ROW("step 4", "hours", 208, hours(300e9, 400e3), "h", ROUNDED, "");
    ROW("step 4", "days", 8.7, hours(300e9, 400e3) / 24, "d", ROUNDED, "");
    ROW("step 4", "cost", 212992, dollars(512, hours(300e9, 400e3)), "$", ROUNDED, "");
    ROW("step 4", "difference", 91136, dollars(512, hours(300e9, 400e3) - hours(300e9, 700e3)), "$",
        ROUNDED, "");
    ROW("step 4", "of four runs a quarter, a year", 364e3, 4 * 4 * 91136, "$", WRONG,
        "that is a quarter's; a year has four");
    ROW("step 4", "cost of 1.4T tokens", 121856, dollars(512, hours(1.4e12, 700e3)), "$", WRONG,
        "what 70B asks for");
}

static void formulas(struct chapter_page *page) {
    const double ring = 2 * 7 / 8.0;
    chapter_say(page, "table 1", "target MFU", "55 to 65 %", "weft plan llama3-70b h100-sxm:512",
                JUDGEMENT, "the plan's own figure for a layout");
    ROW("table 1", "bubble at PP 4, M 32", 0.086, bubble(4, 32), "%", ROUNDED,
        "M is 8 in its example");
    ROW("table 1", "bubble at M = 4 PP, 8 stages", 0.10, bubble(8, 32), "%", WRONG,
        "18 %: 4 PP never is under 10 % from PP 2 up");
    ROW("table 1", "least N_DP of ZeRO-3", 15, 16, "", CONVENTION,
        "14.9 rounded up; a replica count that divides 512 is 16, and its example needs none");
    ROW("table 1", "its ring formula, its own figures", 0.45, ring * 268e6 / 600e9 / ms, "ms",
        WRONG, "it does not use the formula that it states: 2 (N - 1)/N is left out");
    ROW("table 1", "gradients and weights of ZeRO-3, 3 x 140 GB", 420, 3 * 2 * 70.0, "GB", SAME,
        "");
    ROW("table 1", "420 GB at 400 GB/s", 1.05, 420 / 400.0, "s", SAME, "");
    ROW("table 1", "ZeRO-3 traffic, one GPU's link", 1.05, shard_seconds(3, true), "s", WRONG,
        "a GPU has 50 GB/s and a 32nd of the weights, but gathers repeat for each of 8 "
        "micro-batches");
    ROW("table 1", "the same, gradients added up unsharded", 1.05, shard_seconds(3, false), "s",
        WRONG, "one scatter at the end");
    ROW("table 1", "ZeRO-1 in its place", 1.05, shard_seconds(1, false), "s", WRONG,
        "one scatter and one gather a step: what fits should not take ZeRO-3");
    ROW("table 1", "checkpoint interval", 77.5, runs_young(5, mtbf(512)), "s", WRONG, "as in 10.5");
}

static void parameters(struct chapter_page *page) {
    ROW("table 2", "headroom beside ZeRO-3 states", 10,
        memory_gb("h100-sxm") - states_gb(70e9, 8, 4, 16, 3), "GB", WRONG, "2.2 GB of states");
    ROW("table 2", "micro-batches", 32, seventy(3, true).micro_batches, "", WRONG, "as in step 2E");
    ROW("table 2", "268 MB over InfiniBand", 5.4, 268e6 / 50e9 / ms, "ms", ROUNDED, "");
    ROW("table 2", "a tensor all-reduce over InfiniBand", 5.4, all_reduce(2, 50) / ms, "ms", WRONG,
        "134 MB, ring");
    ROW("table 2", "bandwidth of one GPU for ZeRO-3", 400, one_way_gb("ib-ndr"), "GB/s", WRONG,
        "400 Gb/s; 400 GB/s are the eight rails of a node");
    ROW("table 2", "days between failures, 512 GPUs", 33 / 24.0, mtbf(512) / day, "d", ROUNDED, "");
    ROW("table 2", "MFU of Llama 3", 0.65, 400e12 / h100_rate(HARDWARE_BF16), "%", WRONG,
        "as in 10.8");
    ROW("table 2", "gain of packing", 0.20, packing("gain_over_concatenate_and_chunk", 4096), "%",
        WRONG, "as in 10.6.4");
    ROW("table 2", "overhead of asynchronous checkpoints", 0.06, least_waste(5, 512), "%", WRONG,
        "as in 10.5, at the best interval");
}

void rows_example(struct chapter_page *page) {
    sizing(page);
    tensor_messages(page);
    configuration(page);
    rate(page);
    money(page);
    formulas(page);
    parameters(page);
}
