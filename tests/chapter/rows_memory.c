// Chapter 10.3 and 10.4: the memory of states and activations, rings, overlap.
#include "ask.h"

// ---- 10.3

static double all_layers_gb(int tp, int rows, enum engine_recompute mode) {
    return 80 * layer_bytes(tp, false, rows, mode) / GB;
}

static void rows_budget(struct chapter_page *page) {
    const char *at = "10.3.1";
    ROW(at, "BF16 weights of 70B", 140, states_gb(70e9, 1, 1, 1, 0) * 2 / 16, "GB", SAME, "");
    ROW(at, "BF16 gradients", 140, states_gb(70e9, 1, 1, 1, 0) * 2 / 16, "GB", SAME, "");
    ROW(at, "gradients as they add up here", 140,
        states_fp32_gb(70e9, 1, 1, 1, 0) - states_gb(70e9, 1, 1, 1, 0) * 14 / 16, "GB", CONVENTION,
        "FP32, unless told otherwise: 18 bytes a parameter in all");
    ROW(at, "masters", 280, states_gb(70e9, 1, 1, 1, 0) * 4 / 16, "GB", SAME, "");
    ROW(at, "each moment", 280, states_gb(70e9, 1, 1, 1, 0) * 4 / 16, "GB", SAME, "");
    ROW(at, "optimizer: masters and moments", 840,
        states_gb(70e9, 1, 1, 1, 0) - states_gb(70e9, 1, 1, 1, 0) * 4 / 16, "GB", SAME, "");
    ROW(at, "all states", 1120, states_gb(70e9, 1, 1, 1, 0), "GB", SAME, "");
    ROW(at, "bytes of a parameter", 16, states_gb(1e9, 1, 1, 1, 0), "B", SAME, "");
    ROW(at, "over an H100's memory", 14, states_gb(70e9, 1, 1, 1, 0) / memory_gb("h100-sxm"), "x",
        SAME, "13.0 of its 80 GiB");
    ROW(at, "activations, micro-batch 4, fully recomputed", 22, all_layers_gb(1, 4, RECOMPUTE_FULL),
        "GB", ROUNDED, "the inputs of 80 layers: what the chapter calls selective");
    ROW(at, "activations with selective recomputation", 22,
        all_layers_gb(1, 4, RECOMPUTE_SELECTIVE), "GB", WRONG,
        "with fused attention nothing of a layer is dropped; all its results stay");
}

static double all_reduce_share(int ranks) {
    return ring_seconds(NETWORK_ALL_REDUCE, ranks, 1, 1);
}
static double ring_steps(int ranks) { // seconds of an empty all-reduce with a latency of 1
    struct cluster c = {
        .nodes = 1,
        .per_node = ranks,
        .domain = ranks,
        .fast = {.bandwidth.value = 1e9, .share.value = 1, .latency_seconds.value = 1}};
    struct network_group group = {.size = ranks, .inside = ranks, .domains = 1};
    return network_algorithm_seconds(&c, &group, NETWORK_ALL_REDUCE, 1e-3, NETWORK_RING);
}

static void rows_zero(struct chapter_page *page) {
    const char *at = "10.3.2";
    ROW(at, "no sharding", 1120, states_gb(70e9, 1, 1, 16, 0), "GB", SAME, "");
    ROW(at, "ZeRO-1, N 16", 334, states_gb(70e9, 1, 1, 16, 1), "GB", ROUNDED, "its formula: 332.5");
    ROW(at, "ZeRO-2, N 16", 201, states_gb(70e9, 1, 1, 16, 2), "GB", ROUNDED, "");
    ROW(at, "ZeRO-3, N 16", 70, states_gb(70e9, 1, 1, 16, 3), "GB", SAME, "");
    ROW(at, "optimizer states of a GPU under ZeRO-1", 52.5,
        states_gb(70e9, 1, 1, 1, 0) * 12 / 16 / 16, "GB", SAME, "");
    ROW(at, "ZeRO-1 saves", 3.4, states_gb(70e9, 1, 1, 16, 0) / states_gb(70e9, 1, 1, 16, 1), "x",
        ROUNDED, "");
    ROW(at, "ZeRO-2 over ZeRO-1", 1.7, states_gb(70e9, 1, 1, 16, 1) / states_gb(70e9, 1, 1, 16, 2),
        "x", ROUNDED, "1.65");
    ROW(at, "ZeRO-3 over ZeRO-2", 2.9, states_gb(70e9, 1, 1, 16, 2) / states_gb(70e9, 1, 1, 16, 3),
        "x", ROUNDED, "");
    ROW(at, "ZeRO-3 beside TP 8, PP 4", 70, states_gb(70e9, 8, 4, 16, 3), "GB", WRONG,
        "TP and PP divide the parameters first");
    ROW(at, "the same with FP32 gradients", 70, states_fp32_gb(70e9, 8, 4, 16, 3), "GB", WRONG,
        "likewise, at 18 bytes a parameter");
    ROW(at, "ZeRO-1 beside TP 8, PP 4, \"impossible\"", 334, states_gb(70e9, 8, 4, 16, 1), "GB",
        WRONG, "fits easily");
    ROW(at, "no sharding beside TP 8, PP 4, \"impossible\"", 1120, states_gb(70e9, 8, 4, 16, 0),
        "GB", WRONG, "fits in 80: ZeRO-3 is a choice");
    ROW(at, "bytes of a gather pass a GPU", 140,
        140 / 32.0 * ring_seconds(NETWORK_ALL_GATHER, 16, 1, 1), "GB", WRONG,
        "a rank of TP 8 x PP 4 gathers its 32nd, and 15/16 of that come from others");
    ROW(at, "time of a gather pass (of 1.05 s for three)", 350,
        1e3 * ring_seconds(NETWORK_ALL_GATHER, 16, 140e9 / 32, 50e9), "ms", WRONG,
        "400 GB/s are the eight rails of a node; a GPU has 50");
    ROW(at, "a step's traffic of a GPU, each micro-batch by itself", 420, shard_gb(3, true), "GB",
        WRONG, "8 x (gather, gather, scatter)");
    ROW(at, "its time", 1.05, shard_seconds(3, true), "s", WRONG, "98 GB at 50 GB/s");
    ROW(at, "gradients added up before they travel", 1.05, shard_seconds(3, false), "s", WRONG,
        "70 GB: scatters once a step");
    ROW(at, "ZeRO-1 in its place", 1.05, shard_seconds(1, false), "s", WRONG,
        "8.2 GB: the cheaper choice where states fit");
    at = "10.3.3";
    ROW(at, "time of an all-reduce of 4, over bytes / bandwidth", 2 * 3 / 4.0, all_reduce_share(4),
        "x", SAME, "its formula");
    ROW(at, "traffic of a GPU, N 4", 2, all_reduce_share(4), "x", WRONG,
        "2 (N-1)/N; 2 is the limit");
    ROW(at, "steps of a ring of 4, 3 and 3", 6, ring_steps(4), "", SAME, "each costs a latency");
}

// ---- 10.4

static double busiest(double forward, double backward, double message, double update) {
    struct job job = seventy(3, false);
    struct estimate e = estimated(&job);
    double out = forward * e.forward_seconds + backward * e.backward_seconds +
                 message * e.message_seconds + update * e.update_seconds;
    estimate_free(&e);
    return 1e3 * out;
}
static double backward_over_forward(void) {
    return busiest(0, 1, 0, 0) / busiest(1, 0, 0, 0);
}
static double simulated_over_formula(void) {
    struct job job = seventy(3, false);
    struct estimate e = estimated(&job);
    double ratio = e.step_seconds / e.overlap_formula_seconds;
    estimate_free(&e);
    return ratio;
}
static double calls(double bucket_bytes, int ranks) {
    return 140e9 / ranks / bucket_bytes;
}

// Seconds a byte of a bucket's reduction over 16 nodes, over those of a gigabyte.
static double bucket_stretch(double bytes) {
    struct cluster c = cluster("h100-sxm:512");
    struct network_group group = {.size = 16, .inside = 1, .domains = 16};
    return network_seconds(&c, &group, NETWORK_ALL_REDUCE, bytes, NULL) / bytes /
           (network_seconds(&c, &group, NETWORK_ALL_REDUCE, 1e9, NULL) / 1e9);
}

static void rows_overlap(struct chapter_page *page) {
    const char *at = "10.4";
    ROW(at, "step without overlap", 2680, estimate_share_formula(450, 1100, 1050, 80, 0), "ms",
        SAME, "");
    ROW(at, "all hidden", 1630, estimate_overlap_formula(450, 1100, 1050, 80), "ms", SAME, "");
    ROW(at, "70 % hidden", 1945, estimate_share_formula(450, 1100, 1050, 80, 0.7), "ms", SAME, "");
    ROW(at, "all hidden gains", 1.64, 2680 / estimate_overlap_formula(450, 1100, 1050, 80), "x",
        ROUNDED, "");
    ROW(at, "70 % hidden gains", 1.38, 2680 / estimate_share_formula(450, 1100, 1050, 80, 0.7), "x",
        ROUNDED, "");
    ROW(at, "T_fwd, called measured", 450, busiest(1, 0, 0, 0), "ms", CONVENTION,
        "foretold for the example on Megatron-Core, the busiest pipeline rank's work without "
        "waits");
    ROW(at, "T_bwd", 1100, busiest(0, 1, 0, 0), "ms", CONVENTION, "likewise");
    ROW(at, "T_bwd over T_fwd", 1100 / 450.0, backward_over_forward(), "x", CONVENTION,
        "twice the products; 3 with full recomputation");
    ROW(at, "T_comm, called measured", 1050, 1e3 * shard_seconds(3, true), "ms", WRONG,
        "it is 420 GB over 400 GB/s of 10.3.2, computed, not measured");
    ROW(at, "T_opt", 80, busiest(0, 0, 0, 1), "ms", WRONG,
        "2.2 GB of states a GPU are read and written in milliseconds");
    ROW(at, "the simulated step over the formula's", 1, simulated_over_formula(), "x", WRONG,
        "the formula knows no bubble, and messages that wait inside micro-batches do not hide");
    chapter_say(page, at, "messages run on units of their own", "DMA engines", "weft bench overlap",
                MEASURE,
                "NCCL's collectives are kernels on the same processors and memory: overlap slows "
                "products down; only copies and in-switch sums do not");
    ROW(at, "a byte in buckets of 25 MB over one in large messages, 16 nodes", 1,
        bucket_stretch(25e6), "x", CONVENTION,
        "what latency adds to its lower bound; larger buckets start later");
    ROW(at, "the same in buckets of 50 MB", 1, bucket_stretch(50e6), "x", CONVENTION,
        "its upper bound");
    ROW(at, "the same in buckets of 5 MB, \"too small\"", 1, bucket_stretch(5e6), "x", CONVENTION,
        "agreed: latency and short chunks cost more than half again");
    ROW(at, "calls in buckets that are \"too small\", 5 MB", 70000, calls(5e6, 1), "", WRONG,
        "70 thousand are buckets of 2 MB");
    ROW(at, "calls at 5 MB, a GPU under TP 8, PP 4", 70000, calls(5e6, 32), "", WRONG,
        "TP and PP divide the gradients first");
    ROW(at, "calls at 50 MB, likewise", 2800, calls(50e6, 32), "", WRONG,
        "2,800 without TP and PP; the trap \"buckets\" says when they are too small");
    chapter_say(page, at, "is the overlap working", "nsys",
                "weft train --trace, weft plan explain RUN", MEASURE,
                "spans of messages beside compute, and exposed seconds in the report");
    chapter_say(page, at, "messages below 10 % of a step", "a target", "weft plan MODEL CLUSTER",
                JUDGEMENT, "exposed seconds by kind; what a layout can reach is foretold");
}

void rows_memory(struct chapter_page *page) {
    rows_budget(page);
    rows_zero(page);
    rows_overlap(page);
}
