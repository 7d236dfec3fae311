// Chapter 10.5 to 10.9: faults, techniques, RLHF, MFU and the cookbook. See chapter.h.
#include "chapter/figures.h"
#include "cost/price.h"
#include "simulate/runs.h"
#include "test.h"
#include <math.h>

static const double week = 7 * 86400, day = 86400, hour = 3600;

// ---- helpers of this part

static double ppo_over_dpo(void) {
    struct size_rlhf_params params = {.policy = 70e9, .value = 13e9, .reward = 13e9};
    return size_rlhf_states(&params, SIZE_ALL) / size_dpo_states(70e9, false);
}

static double snapshot_seconds(void) {
    double blocking, persist;
    struct cluster where = cluster("h100-sxm:512");
    size_checkpoint_times(70e9, &where, SIZE_HOST_BANDWIDTH, &blocking, &persist);
    return blocking;
}

// A product whose rows do not begin at multiples of 16 bytes, over the aligned one.
static double misaligned(void) {
    const struct accelerator *a = chip("h100-sxm");
    return price_product(a, HARDWARE_BF16, 8192, 8191, 8191, 1) /
           price_product(a, HARDWARE_BF16, 8192, 8192, 8192, 1);
}

static double default_recovery(void) {
    struct runs runs;
    runs_defaults(&runs);
    return runs.detection_seconds + runs.restart_seconds + runs.load_seconds;
}

// ---- 10.5

static void failures(struct chapter_page *page) {
    ROW("10.5", "failures a week, 512 GPUs", 5.1, week / mtbf(512), "", ROUNDED, "");
    ROW("10.5", "failures a week, 1,024 GPUs", 10.2, week / mtbf(1024), "", ROUNDED, "");
    ROW("10.5", "failures a week, 4,096 GPUs", 40.9, week / mtbf(4096), "", ROUNDED, "");
    ROW("10.5", "failures a week, 16,384 GPUs", 163.8, week / mtbf(16384), "", SAME, "");
    ROW("10.5", "time between failures, 512 GPUs", 33, mtbf(512) / hour, "h", ROUNDED, "");
    ROW("10.5", "time between failures, 1,024 GPUs", 16, mtbf(1024) / hour, "h", ROUNDED, "");
    ROW("10.5", "time between failures, 4,096 GPUs", 4, mtbf(4096) / hour, "h", ROUNDED, "");
    ROW("10.5", "time between failures, 16,384 GPUs", 1, mtbf(16384) / hour, "h", ROUNDED, "");
    ROW("10.5", "failure rate of a GPU and week", 0.01, RUNS_FAILURES_PER_NODE_DAY * 7 / 8, "%",
        CONVENTION,
        "a pessimistic figure, three times the 419 interruptions in 54 days on 2,048 nodes that "
        "Llama 3's paper counts; `weft simulate run` offers both");
    ROW("10.5", "failures of 50 days on 16,384 GPUs", 1148, 50 * day / mtbf(16384), "", WRONG,
        "it is 164 a week for seven weeks, and 50 days are 7.14");
    ROW("10.5", "failures a day on 16,384 GPUs", 23, day / mtbf(16384), "", ROUNDED, "");
    ROW("10.5", "the same 50 days at the rate that was measured", 1148,
        50 * day / mtbf_measured(16384), "", WRONG,
        "the run that it names had a third of that: 419 in 54 days");
    ROW("10.5", "hours that this run lasts without fault tolerance", 1, mtbf_measured(16384) / hour,
        "h", WRONG, "about three, at the rate that was measured");
    ROW("10.5", "its interval formula, evaluated", 77.5, runs_chapter_interval(5, 600), "s", SAME,
        "");
    ROW("10.5", "best interval between checkpoints", 77.5, runs_young(5, mtbf(512)), "s", WRONG,
        "Young and Daly: the time between failures stands where the chapter has the time of a "
        "recovery, which does not change how much work a failure finds unsaved");
    ROW("10.5", "the same without first-order error", 77.5, runs_best(5, mtbf(512)), "s", WRONG,
        "exact for exponential failures; Young's formula is 0.3 % off");
    ROW("10.5", "steps of 2 s in its interval", 38, runs_chapter_interval(5, 600) / 2, "", ROUNDED,
        "38.7, cut off");
    ROW("10.5", "steps of 2 s in the best interval", 38, runs_young(5, mtbf(512)) / 2, "", WRONG,
        "follows from the wrong interval");
    ROW("10.5", "share lost to 90 s every 38 steps", 0.54, 90 / (38 * 2 + 90.0), "%", ROUNDED, "");
    ROW("10.5", "least loss with 90 s of standing still", 0.54, least_waste(90, 512), "%", WRONG,
        "it compares at an interval that is best for neither; at its own best one saving and lost "
        "work together take 3.9 %");
    ROW("10.5", "share lost to 5 s every 38 steps", 0.062, 5 / (38 * 2 + 5.0), "%", ROUNDED, "");
    ROW("10.5", "least loss with 5 s of standing still", 0.062, least_waste(5, 512), "%", WRONG,
        "as above; and half of this is work done again, which its 6.2 % leaves out");
    ROW("10.5", "standing still for a snapshot, 70B on 512 GPUs", 5, snapshot_seconds(), "s",
        CONVENTION,
        "its figure is an allowance; 980 GB over 512 GPUs of 25 GB/s to their hosts is 0.08 s");
    ROW("10.5", "spares of 5 % of 64 nodes", 4, ceil(0.05 * cluster("h100-sxm:512").nodes), "",
        SAME, "");
    ROW("10.5", "spares so that 99 % of failures find one", 4, spares_per_failure(512, 0.99), "",
        SAME, "1 % a GPU and week, a day of repair: agrees by chance, 5 % of 2,048 nodes is not");
    ROW("10.5", "the same on 16,384 GPUs, 5 % of 2,048 nodes", 103, spares_per_failure(16384, 0.99),
        "", WRONG,
        "a share is no rule: nodes under repair grow with their number, their spread "
        "with its root");
    ROW("10.5", "from failure to training again", 600, default_recovery(), "s", SAME,
        "detection 60, restart 420, load 120: our default");
}

// ---- 10.6

static void recomputation(struct chapter_page *page) {
    ROW("10.6.2", "activations of 70B without recomputation", 144, kept_70b(RECOMPUTE_NONE, 2),
        "GB", WRONG,
        "no micro-batch of 4,096 tokens gives it: a sequence keeps about 90 GB, layer by layer");
    ROW("10.6.2", "activations kept, full recomputation", 11, kept_70b(RECOMPUTE_FULL, 2), "GB",
        ROUNDED, "micro-batch 2 on one GPU; it does not say which");
    ROW("10.6.2", "its 22 GB as full recomputation", 22, kept_70b(RECOMPUTE_FULL, 4), "GB", ROUNDED,
        "only inputs of layers, at micro-batch 4: not selective recomputation");
    ROW("10.6.2", "activations kept, selective recomputation", 22, kept_70b(RECOMPUTE_SELECTIVE, 2),
        "GB", WRONG, "beside inputs it keeps Q, K, V, attention's output, gate and up");
    ROW("10.6.2", "kept where the MLP's products are redone", 22,
        kept_70b(RECOMPUTE_SELECTIVE_MLP, 2), "GB", WRONG,
        "what it describes; Q, K, V, attention's output and the stream between are more than it "
        "counts");
    ROW("10.6.2", "saved by its selective mode", 0.85, 1 - 22 / 144.0, "%", ROUNDED, "");
    ROW("10.6.2", "saved by its full mode", 0.92, 1 - 11 / 144.0, "%", ROUNDED, "");
    ROW("10.6.2", "saved by selective recomputation", 0.85,
        1 - kept_70b(RECOMPUTE_SELECTIVE, 2) / kept_70b(RECOMPUTE_NONE, 2), "%", WRONG,
        "as its 22 GB belong to another mode");
    ROW("10.6.2", "operations redone, selective", 0.30, redone("weft", RECOMPUTE_SELECTIVE), "%",
        WRONG,
        "selective recomputation redoes the attention's core, a few percent, which fused attention "
        "does anyway; norms and activations are no products");
    ROW("10.6.2", "operations redone, the MLP's two products", 0.30,
        redone("weft", RECOMPUTE_SELECTIVE_MLP), "%", WRONG,
        "two of the MLP's three products, forward only");
    ROW("10.6.2", "operations redone, full", 0.33, redone("megatron-core", RECOMPUTE_FULL), "%",
        ROUNDED, "");
    chapter_say(page, "10.6.2", "which mode to take", "selective; full from 100B up",
                "weft plan llama3-70b h100-sxm:512", JUDGEMENT,
                "it follows from memory: the search tries all four modes and says what each would "
                "take");
}

static void techniques(struct chapter_page *page) {
    ROW("10.6.3", "BF16 products of an H100", 989e12, h100_rate(HARDWARE_BF16), "FLOP/s", SAME, "");
    ROW("10.6.3", "BF16 over FP32", 8, h100_rate(HARDWARE_BF16) / h100_rate(HARDWARE_FP32), "",
        WRONG, "plain FP32 is 67 TFLOP/s; 33.5 is FP64, and TF32 is half of BF16");
    ROW("10.6.3", "FP8 products of an H100", 1979e12, h100_rate(HARDWARE_FP8), "FLOP/s", SAME, "");
    ROW("10.6.3", "FP8 over BF16", 2, h100_rate(HARDWARE_FP8) / h100_rate(HARDWARE_BF16), "", SAME,
        "the rates; at the power limit a step gains less");
    ROW("10.6.3", "FP32 master and moments of a parameter", 12,
        size_checkpoint_bytes(70e9, false) / 70e9, "B", SAME, "");
    ROW("10.6.3", "the same of 70B", 840, size_checkpoint_bytes(70e9, false) / GB, "GB", SAME,
        "ZeRO-1 shards them already, it does not take ZeRO-3");
    chapter_say(page, "10.6.3", "FP8 formats: E4M3 forward, E5M2 gradients", "recommended",
                "weft plan llama3-70b h100-sxm:512 --precision fp8", JUDGEMENT,
                "a choice that alters what is computed: planned when asked, never unasked");
    chapter_say(page, "10.6.3", "loss of quality by FP8", "< 0.3 % MMLU", "weft eval", MEASURE,
                "two models trained alike but for the precision, bits per byte of both");
    ROW("10.6.4", "tokens wasted by padding 600 to 4,096", 0.85, packing("padding_waste", 4096),
        "%", ROUNDED, "");
    ROW("10.6.4", "a row of 2,048 + 1,024 + 1,024 tokens is full", 1, (2048 + 1024 + 1024) / 4096.0,
        "%", SAME, "");
    ROW("10.6.4", "gain of packing", 0.20, packing("gain_over_padding_tokens", 4096), "%", WRONG,
        "with 85 % of waste, against padding, it is 1 / 0.15: 5.8 times more; the figure fits "
        "neither baseline");
    ROW("10.6.4", "gain over documents chained and cut", 0.20,
        packing("gain_over_concatenate_and_chunk", 4096), "%", WRONG,
        "against the usual baseline only the attention that masked blocks skip is saved: 3 % at "
        "4K");
    ROW("10.6.4", "the same at 128K", 0.20, packing("gain_over_concatenate_and_chunk", 131072), "%",
        WRONG, "at long contexts attention is most of the work: 2.2 times as fast");
    ROW("10.6.4", "its 20 % as GPUs of 512", 102, 0.20 * 512, "", ROUNDED, "");
    ROW("10.6.4", "the gain at 4K as GPUs of 512", 102,
        512 * packing("gain_over_concatenate_and_chunk", 4096), "", WRONG, "follows from the gain");
}

void rows_reliability(struct chapter_page *page) {
    failures(page);
    recomputation(page);
    techniques(page);
}

// ---- 10.7

static void rlhf(struct chapter_page *page) {
    static const char missing[] = "whole replicas only; what is left over stands idle";
    ROW("10.7", "rollout GPUs, 40 % of 512", 205, pool("rollout"), "", WRONG, missing);
    ROW("10.7", "rollout replicas of TP 8", 25, pool("rollout") / 8, "", SAME, "");
    ROW("10.7", "reward GPUs, 15 %", 77, pool("reward"), "", WRONG, missing);
    ROW("10.7", "reward replicas of TP 4", 19, pool("reward") / 4, "", SAME, "");
    ROW("10.7", "reference GPUs, 25 %", 128, pool("reference"), "", SAME, "");
    ROW("10.7", "update GPUs, 20 %", 102, pool("update"), "", WRONG,
        "replicas of TP 8 x PP 2 = 16");
    ROW("10.7", "GPUs idle", 0, pool("idle"), "", WRONG, "5, 1, 0 and 6 GPUs make no replica");
    ROW("10.7", "models of PPO", 4, SIZE_POOLS, "", WRONG,
        "the value model is missing: it is trained too, 18 bytes a parameter");
    chapter_say(
        page, "10.7", "shares of the allocation", "40/15/25/20 %",
        "weft plan size rlhf --policy llama3-70b --cluster h100-sxm:512", JUDGEMENT,
        "they follow from the work: decoding by memory bandwidth, the rest by products; the "
        "sheet balances five pools");
    chapter_say(page, "10.7", "the reference's memory", "shared weights with LoRA, or offload",
                "weft plan size rlhf --policy llama3-70b --cluster h100-sxm:512", JUDGEMENT,
                "the sheet prints states of all four ways");
    ROW("10.7", "PPO beside DPO", 4, ppo_over_dpo(), "", CONVENTION,
        "it counts programs, four against one; states of 70B with models of 13B are 1.2 times "
        "DPO's");
    chapter_say(page, "10.7", "DPO or PPO", "DPO first", "size_dpo_states, size_rlhf_states",
                JUDGEMENT, "both needs stand side by side in the sheet");
}

// ---- 10.8

static double waterfall_product(void) {
    return 0.90 * 0.90 * 0.91 * 0.94 * 0.95;
}

static double full_share(void) {
    return 1 - 1 / (1 + redone("megatron-core", RECOMPUTE_FULL));
}

static double flops_of_products(void) {
    struct model_config llama = preset("llama3-70b");
    return flops_per_token_full(&llama, 4096) - 12.0 * 80 * 8192 * 4096;
}

static void mfu_rows(struct chapter_page *page) {
    struct model_config llama = preset("llama3-70b");
    ROW("10.8", "FLOPs per token and parameter, 2 + 4", 6,
        flops_of_products() / (double)flops_matmul_params(&llama), "", SAME,
        "parameters of products; attention is left out");
    ROW("10.8", "FLOPs of a token of 70B at 4,096", 6 * 70e9, flops_per_token_full(&llama, 4096),
        "", CONVENTION, "6 P; with attention 6 N + 12 L H T, the other chapter's");
    ROW("10.8", "peak of 512 GPUs", 506.4e15, 512 * h100_rate(HARDWARE_BF16), "FLOP/s", SAME, "");
    ROW("10.8", "FLOP/s of 500K tok/s", 210e15, 500e3 * 6 * 70e9, "FLOP/s", SAME, "");
    ROW("10.8", "MFU of 500K tok/s, 70B, 512 GPUs", 0.415, mfu(500e3, 70e9, 512), "%", ROUNDED, "");
    ROW("10.8", "the same with attention", 0.415, mfu_full(500e3, 512), "%", CONVENTION,
        "6 N + 12 L H T at 4,096 tokens");
    ROW("10.8", "waterfall, after launch overhead", 90, 100 - 10, "", SAME, "");
    ROW("10.8", "after recomputation", 80, 90 - 10, "", SAME, "");
    ROW("10.8", "after the bubble", 71, 80 - 9, "", SAME, "");
    ROW("10.8", "after communication", 65, 71 - 6, "", SAME, "");
    ROW("10.8", "after the rest", 60, 65 - 5, "", SAME, "");
    ROW("10.8", "achieved", 58, 100 - 10 - 10 - 9 - 6 - 5, "", WRONG,
        "its own losses leave 60; and shares of what is left multiply");
    ROW("10.8", "losses multiplied", 0.60, waterfall_product(), "%", WRONG,
        "each loss takes from what the ones before have left");
    ROW("10.8", "its bubble at 32 micro-batches", 0.09, bubble(4, 32), "%", ROUNDED, "");
    ROW("10.8", "bubble of that configuration", 0.09, bubble(4, 8), "%", WRONG,
        "a pipeline sees global batch / (DP x micro-batch) = 8, not 32");
    ROW("10.8", "loss by full recomputation", 0.10, full_share(), "%", WRONG,
        "a third more operations take a quarter of the time; its own list says about 30 %");
    chapter_say(page, "10.8", "launch overhead, communication, the rest", "10, 6, 5 %",
                "weft plan llama3-70b h100-sxm:512 --fix tp=8,pp=4", JUDGEMENT,
                "prints this waterfall from simulating the step, each line with its seconds");
    ROW("10.8", "MFU of Llama 3", 0.65, 400e12 / h100_rate(HARDWARE_BF16), "%", WRONG,
        "its paper reports 38 to 43 % (400 TFLOP/s a GPU on 16,384), as the other chapter says");
    chapter_say(page, "10.8", "MFU of well-tuned runs, and the ranges below", "55 to 65 %",
                "weft plan validate", JUDGEMENT,
                "docs/validation.md sets published runs beside predictions; which MFU a layout can "
                "have is the plan's answer, not a range");
    chapter_say(page, "10.8", "scaling 64 to 1,024 GPUs", "92, 88, 83, 77 %",
                "weft plan llama3-70b h100-sxm:512 --svg DIR", JUDGEMENT,
                "scaling.svg draws the curve of the layout; the figure has four labels for five "
                "world sizes");
    chapter_say(page, "10.8", "the poorly tuned curve", "12 % at 1,024",
                "weft plan llama3-70b h100-sxm:512 --svg DIR", JUDGEMENT,
                "drawn for three named mis-tunings: tensor ranks across hosts, no overlap, few "
                "micro-batches");
    ROW("10.8", "12 % of 1,024 GPUs as whole ones", 123, 0.12 * 1024, "", SAME, "");
    ROW("10.8", "gathered volume of 1,024 GPUs over 64", 16, (1023 / 1024.0) / (63 / 64.0), "",
        WRONG, "said to grow with the world: (N - 1)/N of the parameters is flat, latency grows");
}

static void eight_numbers(struct chapter_page *page) {
    ROW("10.8, 1", "state bytes of a parameter", 16, states_gb(GB, 1, 1, 1, 0), "B", SAME,
        "with BF16 gradients");
    ROW("10.8, 1", "the same with FP32 gradients", 16, states_fp32_gb(GB, 1, 1, 1, 0), "B",
        CONVENTION, "sums over micro-batches are kept in FP32, 4 bytes in place of 2");
    ROW("10.8, 2", "NVLink over InfiniBand", 12, link_ratio(), "", WRONG,
        "one direction against one: 450 to 50 GB/s; 12 takes 600, the A100's both directions");
    ROW("10.8, 2", "largest TP", 8, cluster("h100-sxm:512").domain, "", SAME,
        "the accelerators that share a fast link: 72 on GB200 NVL72");
    ROW("10.8, 3", "bubble formula at PP 4, M 16", 3 / 19.0, bubble(4, 16), "%", SAME, "");
    ROW("10.8, 3", "the same, simulated", 3 / 19.0, idle_share(KIND(1F1B), 4, 1, 16), "%", SAME,
        "");
    ROW("10.8, 3", "bubble at M = 4 PP", 0.10, bubble(4, 16), "%", WRONG,
        "under 10 % needs M > 9 (PP - 1)");
    ROW("10.8, 3", "micro-batches for less than 10 %, PP 4", 16, micro_batches_below(0.10, 4, 1),
        "", WRONG, "M > 9 (PP - 1) = 27");
    ROW("10.8, 4", "best checkpoint interval", 77.5, runs_young(5, mtbf(512)), "s", WRONG,
        "as in 10.5");
    ROW("10.8, 5", "traffic of ZeRO-3 over an all-reduce", 3, 3.0 / 2, "", WRONG,
        "two gathers and a scatter move 3 P; an all-reduce moves 2 P");
    ROW("10.8, 6", "hours between failures, 512 GPUs", 33, mtbf(512) / hour, "h", ROUNDED, "");
    ROW("10.8, 7", "full recomputation", 0.30, redone("megatron-core", RECOMPUTE_FULL), "%", WRONG,
        "a third: the whole forward pass again; 10.6 says 33 %");
    ROW("10.8, 8", "gain of packing", 0.20, packing("gain_over_concatenate_and_chunk", 4096), "%",
        WRONG, "as in 10.6.4");
}

// ---- 10.9

static void cookbook(struct chapter_page *page) {
    ROW("10.9, 1", "MFU of 42,500 tok/s, 30B, 256 GPUs", 0.287, mfu(42500, 30e9, 256), "%", WRONG,
        "a factor of 9.5; the script prints 3.0 %");
    ROW("10.9, 1", "tok/s that 28.7 % takes", 42500, tokens_at(0.287, 30e9, 256), "", WRONG,
        "about 404,000");
    ROW("10.9, 2", "FP32 outside tensor units", 33e12, h100_rate(HARDWARE_FP32), "FLOP/s", WRONG,
        "67; 33.5 is FP64");
    ROW("10.9, 2", "cost of dimensions that are no multiple of 16", 30, misaligned(), "", WRONG,
        "products do not fall back to plain FP32: rows off 16 bytes take a slower kernel of the "
        "same units");
    chapter_say(page, "10.9, 2", "tensor units active 31 % at 95 % SM", "31 %",
                "weft bench gemm; weft bench step", MEASURE,
                "rate of each product over the best one, and seconds by kernel group");
    chapter_say(page, "10.9, 2", "multiples of 64", "hidden and FFN", "weft plan MODEL CLUSTER",
                JUDGEMENT, "a trap that the trail names, after the cut by TP");
    chapter_say(page, "10.9, 3", "are gradients reduced beside compute", "by eye in a trace",
                "weft bench overlap; weft plan explain RUN", MEASURE,
                "exposed and hidden seconds of each kind of message, as figures");
    chapter_say(page, "10.9, 4", "settings for overlap", "prefetch backward and forward",
                "weft bench overlap", JUDGEMENT,
                "two of its three are FSDP's defaults, only prefetching forward is not; here "
                "overlap is always on");
    ROW("10.9, 5", "bubble of PP 4, M 8", 0.273, bubble(4, 8), "%", SAME, "");
    ROW("10.9, 5", "micro-batches for less than 10 %", 16, micro_batches_below(0.10, 4, 1), "",
        WRONG, "16 leave 15.8 %");
    ROW("10.9, 5", "the target that the script computes and does not use",
        (4 - 1) * 10 - (4 - 1) + 1, micro_batches_below(0.10, 4, 1), "", SAME, "");
    ROW("10.9, 5", "M as grad_accum x DP / PP, 70B example", 32, 256.0 / (16 * 2), "", WRONG,
        "grad_accum: every data rank has a pipeline of its own");
    ROW("10.9, 5", "accumulation steps that it advises", 4, micro_batches_below(0.10, 4, 1), "",
        WRONG, "4 are fewer than its 8");
    ROW("10.9, 5", "bubble that the advice leads to", 0.10, bubble(4, 4), "%", WRONG,
        "worse than the 27.3 % that it set out from");
    chapter_say(page, "10.9, 6", "does data keep up", "GPU use drops to 0", "weft bench loader",
                MEASURE, "tokens per second of the loader; a step prints its wait for data");
    chapter_say(page, "10.9, 7", "a gradient norm that jumps", "above 5, 3 in 100 steps",
                "weft config train", JUDGEMENT,
                "usual norms depend on the model, a fixed 5 says little; every step's norm is in "
                "metrics.jsonl, and a step that is not finite changes nothing");
    ROW("10.9, 7", "XID of an uncorrectable memory error", 79, 48, "", WRONG,
        "NVIDIA's list: 79 is fallen off the bus, 48 a double-bit ECC error");
}

void rows_operation(struct chapter_page *page) {
    rlhf(page);
    mfu_rows(page);
    eight_numbers(page);
    cookbook(page);
}
