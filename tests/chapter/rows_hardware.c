// Chapter 6.1: accelerators, fabric, storage.
#include "ask.h"

static void rows_chips(struct chapter_page *page) {
    const char *at = "6.1.1";
    ROW(at, "A100 memory, GB", 80, memory_gb("a100-80"), "GB", SAME, "");
    ROW(at, "H100 memory, GB", 80, memory_gb("h100-sxm"), "GB", SAME, "80 GiB, that is 85.9e9 B");
    ROW(at, "H200 memory, GB", 141, memory_gb("h200"), "GB", SAME, "");
    ROW(at, "B200 memory, GB", 192, memory_gb("b200"), "GB", WRONG,
        "192 GB are the eight stacks as announced; boards are sold with 180 (1,440 GB of eight)");
    ROW(at, "MI300X memory, GB", 192, memory_gb("mi300x"), "GB", SAME, "");
    ROW(at, "A100 BF16 rate", 312, dense_tflops("a100-80", HARDWARE_BF16), "TFLOP/s", SAME, "");
    ROW(at, "H100 BF16 rate", 989, dense_tflops("h100-sxm", HARDWARE_BF16), "TFLOP/s", SAME,
        "dense; twice that with sparsity");
    ROW(at, "H200 BF16 rate", 989, dense_tflops("h200", HARDWARE_BF16), "TFLOP/s", SAME, "");
    ROW(at, "B200 BF16 rate", 2250, dense_tflops("b200", HARDWARE_BF16), "TFLOP/s", SAME, "");
    ROW(at, "MI300X BF16 rate", 1307, dense_tflops("mi300x", HARDWARE_BF16), "TFLOP/s", SAME, "");
    chapter_say(page, at, "A100 FP8 rate", "none", "chip(\"a100-80\")->dense[HARDWARE_FP8]",
                UNATTAINABLE, "agreed: its tensor units have no FP8");
    ROW(at, "H100 FP8 rate", 1979, dense_tflops("h100-sxm", HARDWARE_FP8), "TFLOP/s", SAME, "");
    ROW(at, "H200 FP8 rate", 1979, dense_tflops("h200", HARDWARE_FP8), "TFLOP/s", SAME, "");
    ROW(at, "B200 FP8 rate", 4500, dense_tflops("b200", HARDWARE_FP8), "TFLOP/s", SAME, "");
    ROW(at, "MI300X FP8 rate", 2614, dense_tflops("mi300x", HARDWARE_FP8), "TFLOP/s", SAME, "");
    ROW(at, "A100 NVLink", 600, both_ways_gb("nvlink3"), "GB/s", SAME,
        "both directions together; messages see 300");
    ROW(at, "H100 NVLink", 900, both_ways_gb("nvlink4"), "GB/s", SAME,
        "both directions together; messages see 450");
    ROW(at, "H200 NVLink", 900, 2 * cluster("h200:8").fast.bandwidth.value / GB, "GB/s", SAME, "");
    ROW(at, "B200 NVLink", 1800, both_ways_gb("nvlink5"), "GB/s", SAME, "");
    ROW(at, "MI300X Infinity Fabric", 896, both_ways_gb("infinity-fabric-mi300"), "GB/s", SAME,
        "seven links of 128, to seven neighbours: one pair has 128, an all-reduce uses all");
}

// Operations per byte of memory traffic at which computing takes as long as reading.
static double ridge(const char *name) {
    return chip(name)->dense[HARDWARE_BF16].value / chip(name)->memory_bandwidth.value;
}

// Share of a decoding step of one sequence of 70B on eight H100 that computing would take.
static double decode_compute_share(void) {
    double read =
        size_decode_seconds(2 * 70e9, 0, 1, 1, 8 * chip("h100-sxm")->memory_bandwidth.value);
    return 2 * 70e9 / (8 * chip("h100-sxm")->dense[HARDWARE_BF16].value) / read;
}

static void rows_fabric(struct chapter_page *page) {
    const char *at = "6.1.1";
    ROW(at, "decoding is bound by memory: its computing over its reading, one sequence", 0,
        decode_compute_share(), "%", CONVENTION,
        "true for few sequences; computing takes over at some 300 of them a replica, less the "
        "cache's reads");
    ROW(at, "training is bound by computing: operations a byte that an H100 needs", 295,
        ridge("h100-sxm"), "FLOP/B", ROUNDED,
        "(its row's own figures) products of training exceed it, norms and activations never do: "
        "they are a line of the waterfall");
    at = "6.1.2";
    ROW(at, "one pair of eight GPUs, were they meshed as drawn", one_way_gb("nvlink4") / 7,
        one_way_gb("nvlink4"), "GB/s", WRONG,
        "no mesh: NVSwitch gives any pair the whole of a GPU's links, one way");
    ROW(at, "400 Gb/s InfiniBand", 50, one_way_gb("ib-ndr"), "GB/s", SAME, "one direction");
    ROW(at, "800 Gb/s InfiniBand", 100, one_way_gb("ib-xdr"), "GB/s", SAME,
        "one direction, eight bits a byte");
    ROW(at, "NVLink over InfiniBand", 18, one_way_gb("nvlink4") / one_way_gb("ib-ndr"), "", WRONG,
        "900 counts both directions, 50 one: like for like 450 over 50");
    chapter_say(
        page, at, "tensor parallelism inside nodes only", "a rule",
        "weft plan MODEL CLUSTER --fix tp=16", JUDGEMENT,
        "searched, not ruled: the plan prices every group on the links that it crosses, and "
        "the trap tp_across_hosts says what crossing costs");
    chapter_say(page, at, "fabric of 16,000 GPUs and more", "fat tree or dragonfly",
                "weft hardware show h100-roce", JUDGEMENT,
                "a cluster's fabric: kind, nodes below a leaf, oversubscription; Llama 3's is "
                "oversubscribed 1:7 at its top, so not non-blocking");
    chapter_say(page, at, "ring or tree", "chosen by the library", "network_seconds()", JUDGEMENT,
                "the quickest of ring, tree, two levels and in-switch for each size and group");
    chapter_say(page, at, "ranks aligned to rails", "rank i to rank i", "weft layout CONFIG",
                JUDGEMENT,
                "with tp innermost every data group has one place in each node, so one rail; the "
                "layout prints the groups");
    chapter_say(
        page, at, "quick detection of failures", "a demand", "weft launch", JUDGEMENT,
        "heartbeats and a watchdog on every wait; detection time is a term of weft simulate "
        "run");
}

static double best_interval_steps(void) {
    struct runs runs = run_of_512();
    return (double)runs_interval(&runs).steps;
}
static double blocking_seconds(void) {
    return run_of_512().blocking_seconds;
}

static void rows_storage(struct chapter_page *page) {
    const char *at = "6.1.3";
    ROW(at, "checkpoint of 70B", 500, size_checkpoint_bytes(70e9, true) / GB, "GB", WRONG,
        "2 + 4 + 4 + 4 bytes a parameter; without the BF16 weights, which the masters round to, "
        "840");
    ROW(at, "bandwidth for it, from \"multi-terabyte\"", 2000,
        size_checkpoint_bytes(70e9, true) / 60 / GB, "GB/s", WRONG,
        "a minute for 980 GB needs 16 GB/s; terabytes a second would write it in half a second");
    ROW(at, "steps between checkpoints of 70B on 512", 1000, best_interval_steps(), "", CONVENTION,
        "a count of steps says little: the best interval follows from how long a snapshot blocks "
        "and how often nodes fail, see reliability.md");
    ROW(at, "an asynchronous snapshot blocks 70B on 512 for", 0, blocking_seconds(), "s",
        CONVENTION, "not blocking at all is the limit: the copy into host memory blocks");
    chapter_say(
        page, at, "data: parallel file system, or object store and NVMe", "a choice",
        "weft plan size data, weft plan size storage", JUDGEMENT,
        "bandwidth and metadata operations of the run beside what the cluster's tiers give");
}

void rows_accelerators(struct chapter_page *page) {
    rows_chips(page);
    rows_fabric(page);
    rows_storage(page);
}
