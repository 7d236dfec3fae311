// Chapter 10's takeaways and review questions. Where a question has no printed answer, the
// chapter's value is what its own formula gives. See chapter.h.
#include "chapter/figures.h"
#include "simulate/runs.h"

static const double week_hours = 168, hour = 3600;
static const char plan_70b[] = "weft plan llama3-70b h100-sxm:512";

// ---- takeaways

// Parameters whose 16 bytes fit a card of 80 GB.
static double most_without_sharding(int tp, int pp) {
    return memory_gb("h100-sxm") / states_gb(GB, tp, pp, 1, 0) * GB;
}

// BF16 gradients of a GPU of the example.
static double gradient_bytes(void) {
    return 2 * 70e9 / (8 * 4);
}

static void concepts(struct chapter_page *page) {
    chapter_say(page, "takeaway 1", "profile all six layers first", "advice",
                "weft plan explain RUN", JUDGEMENT,
                "measured seconds of each kind of action beside the foretold ones");
    ROW("takeaway 2", "70B in one place over a card", 14,
        states_gb(70e9, 1, 1, 1, 0) / memory_gb("h100-sxm"), "", SAME, "");
    ROW("takeaway 2", "states at N_DP = 16", 70, states_gb(70e9, 8, 4, 16, 3), "GB", WRONG,
        "TP 8 and PP 4 divide them too");
    ROW("takeaway 2", "parameters above which ZeRO-3 is needed", 5e9, most_without_sharding(8, 4),
        "", WRONG, "with TP 8 x PP 4 and no sharding at all 160e9 fit; DeepSeek-V3 runs ZeRO-1");
    ROW("takeaway 3", "bubble with V stages a rank: V M below", 3 / (3 + 4 * 8.0),
        idle_formula(KIND(INTERLEAVED), 4, 4, 8), "%", SAME, "");
    ROW("takeaway 3", "micro-batches that its rule asks for, PP 4", 16,
        micro_batches_below(0.10, 4, 1), "", WRONG, "more than 9 (PP - 1)");
    ROW("takeaway 3", "the same with four stages a rank", 16, micro_batches_below(0.10, 4, 4), "",
        WRONG, "interleaving: more than 9 (PP - 1)/V");
    ROW("takeaway 4", "0.45 against 5.4 ms", 12, 5.4 / 0.45, "", SAME, "");
    ROW("takeaway 4", "InfiniBand over NVLink", 12, link_ratio(), "", WRONG,
        "9, one direction against one");
    ROW("takeaway 4", "tensor messages of a step on NVLink", 72, tensor_seconds() * 1e3, "ms",
        WRONG, "as in step 2A");
    ROW("takeaway 4", "the same on InfiniBand", 864, tensor_seconds() * link_ratio() * 1e3, "ms",
        WRONG, "3 s: at 58 % MFU twice the whole step");
    chapter_say(page, "takeaway 4", "MFU lost by TP across hosts", "50 %",
                "weft plan llama3-70b h100-sxm:512 --svg DIR", JUDGEMENT,
                "scaling.svg draws this mis-tuning of the layout itself");
}

static void productivity(struct chapter_page *page) {
    ROW("takeaway 5", "saved by a gain of 20 %", 90e3, size_saving(121856, 0.20), "$", WRONG,
        "16.7 % of its own $121,856");
    ROW("takeaway 5", "saved by the gain at 4K", 90e3,
        size_saving(121856, packing("gain_over_concatenate_and_chunk", 4096)), "$", WRONG,
        "3 % at 4,096 tokens and 600 a document");
    ROW("takeaway 6", "days of 30 that its two overheads differ by", 13, 30 * (0.54 - 0.062), "d",
        WRONG, "14.3 by its own figures");
    ROW("takeaway 6", "days of 30 at the best intervals", 13,
        30 * (least_waste(90, 512) - least_waste(5, 512)), "d", WRONG,
        "synchronous loses 3.9 %, asynchronous 0.92 %");
    ROW("takeaway 6", "13 days of 512 GPUs", 748800, dollars(512, 13 * 24), "$", WRONG,
        "13 x 24 x 512 x 2; its figure takes 1,200 GPUs");
    ROW("takeaway 6", "what it saves at the best intervals", 748800,
        dollars(512, 720 * (least_waste(90, 512) - least_waste(5, 512))), "$", WRONG,
        "$22K in 30 days");
    ROW("takeaway 7", "saved by tuning, a run", 91e3,
        dollars(512, hours(300e9, 400e3) - hours(300e9, 700e3)), "$", ROUNDED, "");
    ROW("takeaway 7", "a year of it", 364e3, 4 * 4 * 91e3, "$", WRONG,
        "four runs a quarter are 16 a year");
}

static void insight(struct chapter_page *page) {
    ROW("takeaway 8", "989 over 33 TFLOP/s", 30, 989 / 33.0, "", ROUNDED, "");
    ROW("takeaway 8", "BF16 over FP32", 30, h100_rate(HARDWARE_BF16) / h100_rate(HARDWARE_FP32), "",
        WRONG, "67 TFLOP/s of FP32; 10.6.3 has 8 times");
    ROW("takeaway 9", "best interval", 77.5, runs_young(5, mtbf(512)), "s", WRONG, "as in 10.5");
    ROW("takeaway 9", "its interval: saving and lost work", 0.062, waste_at(78, 5, 512), "%",
        ROUNDED, "39 steps of 2 s; nearly all of it is saving");
    ROW("takeaway 9", "every 100 steps of 2 s", 0.062, waste_at(200, 5, 512), "%", WRONG,
        "said to be worse than 38: it loses less than half, and 543 steps lose 0.92 %");
    ROW("takeaway 10", "messages of gradients in buckets of 5 MB", 28000, gradient_bytes() / 5e6,
        "", WRONG,
        "28,000 are 140 GB in one place, its tens of thousands; a GPU under TP 8 x PP 4 has 4.4 "
        "GB");
    ROW("takeaway 10", "the same in buckets of 50 MB", 2800, gradient_bytes() / 50e6, "", WRONG,
        "its hundreds of large ones are 88");
    chapter_say(page, "takeaway 10", "NCCL_LAUNCH_MODE=GROUP serialises streams", "said so",
                "weft bench overlap", MEASURE,
                "NCCL reads it only where a process drives several GPUs; with one GPU a process it "
                "changes nothing");
    chapter_say(page, "takeaway 10", "is communication hidden", "bars at the same time",
                "weft bench overlap", MEASURE, "hidden and exposed share, by message");
}

// ---- foundational questions

static void foundational(struct chapter_page *page) {
    ROW("question F1", "TP across InfiniBand, 70B", 864, tensor_seconds() * link_ratio() * 1e3,
        "ms", WRONG, "334 ms on NVLink, nine times that beyond");
    ROW("question F2", "ZeRO-1 on 32 GPUs, by its formula", 306.25, states_gb(70e9, 1, 1, 32, 1),
        "GB", SAME, "4 + 12/32 bytes a parameter, without TP and PP");
    ROW("question F2", "the same GPUs as TP 8 x PP 4", 306.25, states_gb(70e9, 8, 4, 1, 1), "GB",
        WRONG, "not impossible: 35 GB with any stage of ZeRO");
    ROW("question F2", "ZeRO-3's traffic over ZeRO-1's", 3,
        shard_seconds(3, true) / shard_seconds(1, false), "", WRONG,
        "3 P to 2 P; and under a pipeline gathers and scatters repeat for every micro-batch");
    chapter_say(
        page, "question F3", "95 % SM beside 28 % MFU", "tensor units active 31 %",
        "weft bench step; weft bench gemm", MEASURE,
        "seconds by kernel group, and each product's share of the best rate; an SM counts as "
        "active while it waits for memory, too");
}

// ---- intermediate questions

static void thirty_billion(struct chapter_page *page) {
    static const char one[] = "its formula leaves out TP 8";
    ROW("question I1", "parameters of 48 layers 8,192 wide", 30e9, 12 * 48 * 8192.0 * 8192, "",
        WRONG, "12 L h^2");
    ROW("question I1a", "TP", 8, cluster("h100-sxm:256").domain, "", SAME, "what a node allows");
    ROW("question I1b", "ZeRO-3 at N_DP 4", 120, states_gb(30e9, 8, 1, 4, 3), "GB", WRONG, one);
    ROW("question I1b", "at 8", 60, states_gb(30e9, 8, 1, 8, 3), "GB", WRONG, one);
    ROW("question I1b", "at 16", 30, states_gb(30e9, 8, 1, 16, 3), "GB", WRONG, one);
    ROW("question I1b", "at 4 with 38.7B", 120, states_gb(38.65e9, 8, 1, 4, 3), "GB", WRONG, one);
    ROW("question I1b", "least N_DP that fits, under TP 8", 8, least_data_ranks(30e9, 8, 1, 75), "",
        WRONG, "60 GB with all states on every rank");
    ROW("question I1c", "layers of a stage at PP 4", 12, 48 / 4.0, "", SAME,
        "PP 2 fits, too, with a third of the pauses");
    ROW("question I1d", "accumulation for less than 10 %, by its rule", 16,
        micro_batches_below(0.10, 4, 1), "", WRONG, "4 PP leaves 15.8 %");
    ROW("question I1d", "at PP 2", 8, micro_batches_below(0.10, 2, 1), "", WRONG, "M > 9 (PP - 1)");
    ROW("question I1e", "8 x 4 x 8", 256, 8 * 4 * 8, "", SAME, "");
    chapter_say(page, "question I1", "the configuration", "by hand",
                "weft plan config.json h100-sxm:256", JUDGEMENT,
                "all layouts of that shape, best first, with the reason of each choice");
}

static void overlap(struct chapter_page *page) {
    ROW("question I2", "sum of its four parts", 1910, estimate_share_formula(450, 900, 480, 80, 0),
        "ms", SAME, "");
    ROW("question I2a", "MFU at 85,000 tok/s", 0.0705, mfu(85e3, 70e9, 512), "%", SAME,
        "its own formula, evaluated");
    ROW("question I2a", "tok/s of 1,048,576 tokens in 1.91 s", 85e3, 256 * 4096 / 1.91, "", WRONG,
        "the exercise's rate and step make 162,350 tokens; the example's batch would be 549,000 "
        "tok/s, 45.5 %");
    ROW("question I2b", "step with all hidden", 1430, estimate_overlap_formula(450, 900, 480, 80),
        "ms", SAME, "a last bucket stays outside, and a pipeline's bubble is not in it");
    chapter_say(page, "question I2c", "settings for overlap", "three of FSDP", "weft bench overlap",
                JUDGEMENT,
                "prefetching backward and a limit of gathers are FSDP's defaults, prefetching "
                "forward is not");
    ROW("question I2d", "step with 80 % hidden", 1526,
        estimate_share_formula(450, 900, 480, 80, 0.8), "ms", SAME, "");
    ROW("question I2d", "MFU then", 0.0882, mfu(85e3 * 1910 / 1526, 70e9, 512), "%", SAME, "");
}

static double lost_hours(double sync, double async) {
    return 4096 * week_hours * (sync - async);
}

static void checkpoints(struct chapter_page *page) {
    ROW("question I3a", "hours between failures, 4,096 GPUs", 4.1, mtbf(4096) / hour, "h", SAME,
        "");
    ROW("question I3b", "interval by its formula", 98, runs_chapter_interval(8, 600), "s", SAME,
        "");
    ROW("question I3b", "steps of 1.5 s", 65, runs_chapter_interval(8, 600) / 1.5, "", ROUNDED, "");
    ROW("question I3b", "steps of the best interval", 65, runs_young(8, mtbf(4096)) / 1.5, "",
        WRONG, "Young and Daly: 486 s");
    ROW("question I3c", "saving 120 s every 150 s", 0.444, 120 / (150 + 120.0), "%", ROUNDED, "");
    ROW("question I3c", "synchronous, at its best interval", 0.444, least_waste(120, 4096), "%",
        WRONG, "every 31 minutes, with work done again");
    ROW("question I3c", "saving 8 s every 98 s", 0.0755, 8 / (98 + 8.0), "%", SAME, "");
    ROW("question I3c", "asynchronous, at its best interval", 0.0755, least_waste(8, 4096), "%",
        WRONG, "half of it saving, half work done again");
    ROW("question I3d", "GPU-hours a week between the two", 254000,
        lost_hours(120 / 270.0, 8 / 106.0), "", ROUNDED, "its own figures");
    ROW("question I3d", "each at its best interval", 254000,
        lost_hours(least_waste(120, 4096), least_waste(8, 4096)), "", WRONG,
        "most of the difference is the wrong interval");
}

// ---- principal questions

// GPT-3's shape, TP 8, PP 8, DP 32.
static double kept_175b(int cp, int rows, int tokens, enum engine_recompute mode) {
    return kept_gb((struct kept){"gpt3-175b", 8, 8, cp, rows, tokens, 88, true, mode});
}

static void hundred_seventy_five(struct chapter_page *page) {
    chapter_say(
        page, "question P1a", "TP, PP, DP, CP", "by hand",
        "weft plan config.json h100-sxm:2048 --context 4096", JUDGEMENT,
        "TP 8, PP 8, DP 32 below is what the chapter's rules give; the search finds what is "
        "quickest");
    ROW("question P1a", "ZeRO-3 at N_DP 32, by its formula", 87.5, states_gb(175e9, 1, 1, 32, 3),
        "GB", SAME, "would not fit");
    ROW("question P1a", "under TP 8 x PP 8", 87.5, states_gb(175e9, 8, 8, 32, 3), "GB", WRONG,
        "1.4 GB; ZeRO-1 has 12 GB");
    ROW("question P1a", "activations, micro-batch 4, selective", 80,
        kept_175b(1, 4, 4096, RECOMPUTE_SELECTIVE), "GB", JUDGEMENT,
        "the first stage holds eight micro-batches of 12 layers: fits beside 1.4 or 12 GB of "
        "states");
    ROW("question P1a", "the same, full recomputation", 80, kept_175b(1, 4, 4096, RECOMPUTE_FULL),
        "GB", JUDGEMENT, "fits at the price of a third more operations");
    ROW("question P1a", "micro-batch 1, selective", 80, kept_175b(1, 1, 4096, RECOMPUTE_SELECTIVE),
        "GB", JUDGEMENT, "fits, without that price");
    ROW("question P1b", "a tensor all-reduce, bytes / 600 GB/s", 0.671,
        ring_seconds(NETWORK_ALL_REDUCE, 8, stream_bytes("gpt3-175b", 4, 4096), 450 * GB) * 1e3,
        "ms", WRONG, "403 MB: ring factor, and one direction of an H100");
    ROW("question P1c", "bubble at M = 4 PP = 32", 0.08, bubble(8, 32), "%", WRONG,
        "its rule leaves 18 %");
    ROW("question P1c", "accumulation for less than 8 %", 32, micro_batches_below(0.08, 8, 1), "",
        WRONG, "M > 11.5 (PP - 1)");
    ROW("question P1c", "with four stages a rank", 32, micro_batches_below(0.08, 8, 4), "", WRONG,
        "interleaving asks for a quarter of that");
    ROW("question P1d", "activations at 131,072 tokens, CP 1", 80,
        kept_175b(1, 1, 131072, RECOMPUTE_SELECTIVE), "GB", JUDGEMENT, "does not fit");
    ROW("question P1d", "with CP 16", 80, kept_175b(16, 1, 131072, RECOMPUTE_SELECTIVE), "GB",
        JUDGEMENT, "fits: 8,192 tokens of a sequence on a rank, DP 2");
    chapter_say(page, "question P1d", "what changes at 128K", "CP",
                "weft plan config.json h100-sxm:2048 --context 131072", JUDGEMENT,
                "CP takes data ranks' place, states stay sharded over both; GPT-3's learned "
                "positions would have to be replaced");
}

static void architecture(struct chapter_page *page) {
    ROW("question P2a", "failures a week, 8,192 GPUs", 81.9, 168 * hour / mtbf(8192), "", SAME, "");
    ROW("question P2a", "hours between failures", 2.05, mtbf(8192) / hour, "h", SAME, "");
    ROW("question P2b", "interval by its formula", 75.9, runs_chapter_interval(6, 480), "s", SAME,
        "");
    ROW("question P2b", "steps of 1.5 s", 50.6, runs_chapter_interval(6, 480) / 1.5, "", SAME, "");
    ROW("question P2b", "steps of the best interval", 50.6, runs_young(6, mtbf(8192)) / 1.5, "",
        WRONG, "Young and Daly: 298 s");
    ROW("question P2c", "overhead at its interval", 0.073, 6 / (75.9 + 6), "%", ROUNDED,
        "misses the 5 % that the exercise demands");
    ROW("question P2c", "saving at the best interval", 0.073, 6 / runs_young(6, mtbf(8192)), "%",
        WRONG, "meets it");
    ROW("question P2c", "saving and lost work there", 0.073, least_waste(6, 8192), "%", WRONG,
        "meets it, too");
    chapter_say(page, "question P2d", "four layers against silent corruption", "a design",
                "weft train", JUDGEMENT,
                "here: steps that are not finite change nothing and too many of them stop the run, "
                "logged norms, hashes of checkpoints, bit-identical repetition of a step");
    ROW("question P2e", "uptime with a recovery of 10 minutes", 0.995, runs_uptime(600, mtbf(8192)),
        "%", UNATTAINABLE, "a failure every 7,383 s: at best this, whatever the spares");
    ROW("question P2e", "recovery that 99.5 % needs", 600, runs_recovery_for(0.995, mtbf(8192)),
        "s", WRONG, "37 s: restarting in place from memory, not on another node");
    ROW("question P2e", "uptime at the measured rate", 0.995, runs_uptime(600, mtbf_measured(8192)),
        "%", UNATTAINABLE, "nor at a third of the failures");
    ROW("question P2e", "spares, 5 % of 1,024 nodes", 52, spares_per_failure(8192, 0.995), "",
        WRONG, "so that 99.5 % of failures find one, a day of repair");
}

static void investigation(struct chapter_page *page) {
    static const struct {
        const char *place, *layer, *call;
    } layers[] = {{"question P3a-c", "hardware", "weft bench hardware"},
                  {"question P3a-c", "messages", "weft bench link; weft bench overlap"},
                  {"question P3a-c", "kernels", "weft bench gemm; weft bench attention"},
                  {"question P3a-c", "framework and schedule", "weft bench schedule"},
                  {"question P3a-c", "data", "weft bench loader"},
                  {"question P3a-c", "storage", "weft bench hardware; weft plan size checkpoint"}};
    for (int i = 0; i < 6; i++)
        chapter_say(page, layers[i].place, layers[i].layer, "tool, finding, remedy", layers[i].call,
                    MEASURE,
                    i ? "as above, of this layer"
                      : "measured here, beside what `weft plan explain RUN` had foretold");
    ROW("question P3", "tok/s of 28 %, 30B, 256 GPUs", 42500, tokens_at(0.28, 30e9, 256), "", WRONG,
        "the cookbook's rate is 3.0 %");
    chapter_say(page, "question P3d", "95 % SM beside 28 % MFU", "tensor units' counter",
                "weft bench step", MEASURE, "as in F3");
    ROW("question P3e", "gain of hiding 80 %, by question I2's step", 0.252, 1910 / 1526.0 - 1, "%",
        ROUNDED, "the exercise gives no times of its own: T_comm must be known first");
    chapter_say(page, "question P3e", "MFU after it", "28 % x 1.25 = 35 %", "weft plan explain RUN",
                JUDGEMENT, "exposed seconds are measured, not assumed");
    chapter_say(
        page, "question P3f", "six anti-patterns, by frequency", "six", plan_70b, UNATTAINABLE,
        "the chapter never lists six, nor their frequencies; the plan's trail names its own "
        "traps");
}

void rows_questions(struct chapter_page *page) {
    concepts(page);
    productivity(page);
    insight(page);
    foundational(page);
    thirty_billion(page);
    overlap(page);
    checkpoints(page);
    hundred_seventy_five(page);
    architecture(page);
    investigation(page);
}
