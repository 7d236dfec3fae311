// Files that are not what they should be: one line with file, line, key, what was expected, and the
// nearest name.
#include "base/file.h"
#include "hardware/hardware.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static struct catalogue *open_catalogue(void) {
    struct catalogue *catalogue = NULL;
    struct err err = {0};
    CHECK_OK(catalogue_open(&catalogue, &err), err);
    return catalogue;
}

// Adds a file of this text; it must be refused with a message of one line that holds all `parts`.
static void refused(const char *text, const char *const *parts) {
    struct catalogue *c = open_catalogue();
    struct err err = {0};
    const char *path = test_path("bad.yaml");
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    if (catalogue_add(c, path, &err) == 0) test_fail(__FILE__, __LINE__, "accepted: %s", text);
    CHECK(err.kind == ERR_USAGE);
    CHECK_CONTAINS(err.text, "bad.yaml");
    CHECK(strchr(err.text, '\n') == NULL);
    for (; *parts; parts++) CHECK_CONTAINS(err.text, *parts);
    catalogue_close(c);
}
#define REFUSED(text, ...) refused(text, (const char *const[]){__VA_ARGS__, NULL})

TEST(refuse_unknown_keys) {
    REFUSED("acelerators:\n  a:\n    units: 1\n", "line 3", "acelerators",
            "did you mean \"accelerators\"?");
    REFUSED("model:\n  layers: 3\n", "line 2", "unknown section \"model\"",
            "accelerators, links, clusters");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwith: 3 GB/s\n", "line 4", "links.a.bandwith",
            "did you mean \"bandwidth\"?");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    fabric: {knd: rail}\n", "line 4",
            "clusters.a.fabric.knd", "fabric.kind");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    dense: {fp16: 3 TFLOP/s}\n", "line 4",
            "accelerators.a.dense.fp16", "dense.");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: {value: 3 GB/s, sauce: x}\n", "line 4",
            "bandwidth.sauce");
    REFUSED("links:\n  a: 3\n", "line 2", "links.a", "expected the keys of an entry");
}

TEST(refuse_wrong_units_and_values) {
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: 400 GB\n", "line 4",
            "links.a.bandwidth", "bytes per second", "400 GB");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: fast\n", "line 4", "\"fast\"");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: -3 GB/s\n", "line 4", "not negative",
            "-3 GB/s");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: 0\n", "a",
            "\"bandwidth\" must be more than 0");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    share: 0\n", "a", "\"share\" must be more than 0");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: nan\n", "line 4", "\"nan\"");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: 1e400\n", "line 4", "1e400");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: 1e30\n", "line 4", "at most 1e+15");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth:\n", "line 4", "expected a value");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    bandwidth: [1, 2]\n", "line 4", "\"1,2\"");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    share: 1.2\n", "line 4", "links.a.share",
            "at most 1");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    share: 120 %\n", "line 4", "at most 1");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    latency_seconds: 5 GB\n", "line 4",
            "a time such as 5 us");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    directions: two\n", "line 4", "one or both",
            "\"two\"");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    reduces: maybe\n", "line 4", "false or true",
            "\"maybe\"");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    share: {value: 0.5, origin: guessed}\n", "line 4",
            "assumed, stated, measured or fitted");
    REFUSED("links:\n  a:\n    base: ib-ndr\n    share: {source: mine}\n", "line 4",
            "the figure's value is missing");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    nodes: 0\n", "line 4", "clusters.a.nodes",
            "from 1 to", "\"0\"");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    nodes: 2.5\n", "line 4", "whole number");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    nodes: 1e9\n", "line 4",
            "whole number from 1 to 1000000");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    nodes: 1000000\n    per_node: 1024\n",
            "1000000 nodes of 1024");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    fabric: {kind: fat_tree}\n", "line 4",
            "fat-tree, rail or dragonfly");
    REFUSED("stacks:\n  a:\n    base: weft\n    gradient: f16\n", "line 4", "f32 or bf16");
}

TEST(refuse_lists) {
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    tiles: [128x256, 128]\n", "line 4",
            "tiles such as 128x256", "\"128\"");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    tiles: []\n", "line 4",
            "a tile at least");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    tiles: [0x1]\n", "line 4", "\"0x1\"");
    REFUSED(
        "accelerators:\n  a:\n    base: h100-sxm\n    products: [\"bf16 forward 1x1 3 4 5 -1\"]\n",
        "line 4", "products such as", "-1");
    REFUSED(
        "accelerators:\n  a:\n    base: h100-sxm\n    products: [\"bf17 forward 1x1 3 4 5 1\"]\n",
        "line 4", "bf17");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    attention: [\"bf16 1x1 3 4 5\"]\n",
            "line 4", "attention such as");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    kernel_points: [\"nrm bf16 1x1 3 4\"]\n",
            "line 4", "kernels such as");
    REFUSED("accelerators:\n  a:\n    base: h100-sxm\n    kernels: {norm: {bf16: [1]}}\n", "line 4",
            "two numbers");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    messages: [\"all_reduce 1 3 4\"]\n", "line 4",
            "messages such as");
}

TEST(refuse_references) {
    REFUSED("clusters:\n  a:\n    base: dgx-h10\n", "line 3", "unknown cluster \"dgx-h10\"",
            "did you mean \"dgx-h100\"?");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    accelerator: h100-sxn\n", "line 4",
            "clusters.a.accelerator", "did you mean \"h100-sxm\"?");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    slow: ib-nrd\n", "line 4",
            "unknown link \"ib-nrd\"", "did you mean \"ib-ndr\"?");
    REFUSED("clusters:\n  a:\n    nodes: 4\n", "\"accelerator\" is missing");
    REFUSED("clusters:\n  a:\n    accelerator: h100-sxm\n    nodes: 4\n    per_node: 8\n",
            "cluster a", "need a link \"slow\"");
    REFUSED("clusters:\n  a:\n    accelerator: h100-sxm\n    per_node: 8\n", "cluster a",
            "need a link \"fast\"");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    domain: 12\n",
            "domain 12 is no multiple of the 8");
    REFUSED("clusters:\n  a:\n    base: dgx-h100\n    domain: 3\n", "line 3",
            "domain 3 does not divide the 8");
    REFUSED("accelerators:\n  a:\n    memory_bytes: 80 GB\n    memory_bandwidth: 3 TB/s\n",
            "accelerator a", "\"dense.bf16\" is missing");
    REFUSED("links:\n  a:\n    bandwidth: 3 GB/s\n", "link a", "\"latency_seconds\" is missing");
    REFUSED("links:\n  a:\n    base: a\n", "unknown link \"a\"");
}

static void refused_name(const char *name, const char *const *parts) {
    struct catalogue *c = open_catalogue();
    struct cluster cluster;
    struct err err = {0};
    if (catalogue_cluster(c, name, &cluster, &err) == 0)
        test_fail(__FILE__, __LINE__, "accepted: %s", name);
    CHECK(strchr(err.text, '\n') == NULL);
    for (; *parts; parts++) CHECK_CONTAINS(err.text, *parts);
    catalogue_close(c);
}
#define REFUSED_NAME(name, ...) refused_name(name, (const char *const[]){__VA_ARGS__, NULL})

TEST(refuse_cluster_names) {
    REFUSED_NAME("h100-sxn", "did you mean \"h100-sxm\"?");
    REFUSED_NAME("dgx-h101:64", "did you mean \"dgx-h100\"?");
    REFUSED_NAME("h101:8", "did you mean \"h100-sxm\"?");
    REFUSED_NAME("zzzzzzzz", "weft hardware lists");
    REFUSED_NAME("h100-sxm:", "NAME:COUNT");
    REFUSED_NAME("h100-sxm:x", "NAME:COUNT");
    REFUSED_NAME("h100-sxm:64x", "NAME:COUNT");
    REFUSED_NAME("h100-sxm:-8", "NAME:COUNT");
    REFUSED_NAME("h100-sxm:0", "1 to 10000000");
    REFUSED_NAME("h100-sxm:99999999999999999999", "1 to 10000000");
    REFUSED_NAME("h100-sxm:1000000x1024", "1 to 10000000");
    REFUSED_NAME("h100-sxm:12", "multiple of the 8", "8 or 16");
    REFUSED_NAME("epyc-9654-2s:1x2", "nothing links its accelerators of a node", "\"fast\"");
    REFUSED_NAME("no/such/file.yaml", "no/such/file.yaml");
    REFUSED_NAME("", "unknown cluster");
}

TEST(refuse_cluster_files) {
    struct catalogue *c = open_catalogue();
    struct cluster cluster;
    struct err err = {0};
    const char *none = test_path("none.yaml"), *two = test_path("two.yaml");
    const char *text = "links:\n  a:\n    base: ib-ndr\n";
    CHECK_OK(file_replace(none, text, strlen(text), &err), err);
    CHECK(catalogue_cluster(c, none, &cluster, &err) == -1);
    CHECK_CONTAINS(err.text, "expected a cluster");
    err = (struct err){0};
    text = "clusters:\n  a:\n    base: dgx-h100\n  b:\n    base: dgx-h100\n";
    CHECK_OK(file_replace(two, text, strlen(text), &err), err);
    CHECK(catalogue_cluster(c, two, &cluster, &err) == -1);
    CHECK_CONTAINS(err.text, "\"a\", \"b\"");
    catalogue_close(c);
}
