// What a cluster is made of, as plain data: accelerators with their rates, links with their
// bandwidth, storage, prices and failures. Read from YAML (the catalogue is built into the program,
// a user's file may add to it or refer to it by name), or measured by `weft bench hardware`. Every
// figure carries where it comes from, so that a report can say which of its inputs were measured.
//
// Units: bytes, bytes/s in one direction, FLOP/s, seconds.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

enum figure_origin {
    FIGURE_ABSENT,   // not given: value is 0
    FIGURE_ASSUMED,  // a stand-in where nothing is known; reports mark what rests on it
    FIGURE_STATED,   // of a vendor or publication, named by `source`
    FIGURE_MEASURED, // on this machine or by the publication that `source` names
    FIGURE_FITTED    // so that predictions meet the published runs that `source` names
};
struct figure {
    double value;
    enum figure_origin origin;
    const char *source; // belongs to the catalogue; "" when absent
};

// Number formats of matrix products.
enum hardware_precision {
    HARDWARE_FP32,
    HARDWARE_BF16, // and FP16
    HARDWARE_FP8,
    HARDWARE_FP4,
    HARDWARE_PRECISIONS
};
const char *hardware_precision_name(enum hardware_precision precision); // "bf16"

// The three products of a linear map with m tokens, n outputs and k inputs.
enum hardware_form {
    HARDWARE_FORWARD, // y = x w^T
    HARDWARE_INPUT,   // dx = dy w
    HARDWARE_WEIGHT,  // dw (+)= dy^T x
    HARDWARE_FORMS
};
const char *hardware_form_name(enum hardware_form form); // "forward", "input", "weight"
// A product measured; seconds of one. `ranks` of `threads` threads were busy at once; 0: not said.
struct hardware_product {
    enum hardware_precision precision;
    enum hardware_form form;
    int64_t m, n, k;
    double seconds;
    int ranks, threads;
};
// Attention over one head, measured: FLOP/s over attended pairs, forward 2 and backward 4 products.
struct hardware_attention {
    enum hardware_precision precision;
    int64_t context, head_dim;
    double forward_rate, backward_rate;
    int ranks, threads;
};

// Work that is no matrix product. Costs are per element of the op's largest operand.
enum hardware_kernel {
    KERNEL_NORM,
    KERNEL_NORM_BACKWARD,
    KERNEL_ROPE,
    KERNEL_ROPE_BACKWARD,
    KERNEL_GELU, // per element of [tokens, ffn]
    KERNEL_GELU_BACKWARD,
    KERNEL_SWIGLU, // per element of [tokens, ffn]
    KERNEL_SWIGLU_BACKWARD,
    KERNEL_BIAS,
    KERNEL_BIAS_BACKWARD,
    KERNEL_ADD,     // residual
    KERNEL_SOFTMAX, // of attention scores that are materialised
    KERNEL_DROPOUT,
    KERNEL_COPY, // and casts
    KERNEL_EMBEDDING,
    KERNEL_EMBEDDING_BACKWARD,
    KERNEL_LOSS,      // softmax and its gradient, per logit
    KERNEL_ADAMW,     // per parameter
    KERNEL_GRAD_NORM, // per gradient
    KERNEL_SUM,       // adds a received contribution, per element
    KERNEL_PACK,      // weights into the layout of products, per element
    KERNEL_ROUTE,     // choosing experts, per [tokens, experts]
    KERNEL_PERMUTE,   // rows to their experts and back, per element
    HARDWARE_KERNELS
};
const char *hardware_kernel_name(enum hardware_kernel kernel); // "swiglu_backward"
struct hardware_kernel_rate {
    double seconds_per_element, fixed_seconds; // 0 and 0: not measured, the roofline holds
};

// The same by size: caches make the cost of an element depend on how many there are.
struct hardware_kernel_point {
    enum hardware_kernel kernel;
    enum hardware_precision precision;
    double elements, seconds;
    int ranks, threads;
};

enum { HARDWARE_MOST_TILES = 12 };

struct accelerator {
    const char *name, *title; // "h100-sxm"; "NVIDIA H100 SXM5 80 GB"
    bool cpu;                 // a node or part of one that computes on its processor
    struct figure memory_bytes, memory_bandwidth;
    struct figure dense[HARDWARE_PRECISIONS], sparse[HARDWARE_PRECISIONS]; // FLOP/s
    struct figure watts;

    // Efficiency of products by shape. Either measured products (count > 0), or a model of tiles:
    // a product is cut into tiles over `units` processors; waves of tiles run one after the other.
    struct hardware_product *products;
    int product_count;
    int units;
    int tile_m[HARDWARE_MOST_TILES], tile_n[HARDWARE_MOST_TILES], tile_count;
    struct figure sustained[HARDWARE_PRECISIONS]; // share of `dense` that the best product reaches
    struct figure fill_k;                         // start and end of a tile, in units of k
    struct figure memory_share;   // share of memory_bandwidth that streaming kernels reach
    struct figure kernel_seconds; // fixed cost of a kernel on the device
    struct figure speed_spread;   // standard deviation of the speed of single ones over their mean
    struct figure flash_forward, flash_backward; // share of `dense` that fused attention reaches at
                                                 // head_dim 128 and a long context
    struct figure flash2_forward, flash2_backward; // the same of FlashAttention-2, whose kernels
                                                   // were written for Ampere
    struct hardware_attention *attention;          // or measured
    int attention_count;
    struct hardware_kernel_rate kernels[HARDWARE_KERNELS][2]; // measured; [1] BF16, [0] FP32
    struct hardware_kernel_point *kernel_points;              // or so
    int kernel_point_count;
};

// A way between accelerators. Bandwidth: per accelerator, one direction.
struct link {
    const char *name, *title; // "nvlink4"
    struct figure bandwidth;
    struct figure latency_seconds; // of one step of a collective
    struct figure start_seconds;   // of a collective before its first step
    struct figure share;           // of the bandwidth that large collectives reach
    struct figure send_share;    // that one send between two ranks reaches; absent: as collectives
    struct figure half_bytes;    // a message of this size reaches half of that, see network.c
    bool both_directions_stated; // the vendor's figure counts both; `bandwidth` is half of it
    bool reduces;                // switches add up (NVLink SHARP, InfiniBand SHARP)
    struct figure reduce_gain;   // all-reduce over ring all-reduce where they do; 1 else
};

enum fabric_kind { FABRIC_FAT_TREE, FABRIC_RAIL, FABRIC_DRAGONFLY };
struct fabric {
    enum fabric_kind kind;
    int nodes_per_leaf;             // below one leaf switch (rail: per rail group); 0: all
    struct figure oversubscription; // beyond a leaf, 1: none
    struct figure hop_seconds;      // further latency beyond a leaf
};

// Messages measured between `ranks` ranks. Bytes are those of cost/network.h: the whole vector, in
// an all-to-all and a send what a rank sends.
enum hardware_message_kind {
    MESSAGE_SEND,
    MESSAGE_ALL_REDUCE,
    MESSAGE_REDUCE_SCATTER,
    MESSAGE_ALL_GATHER,
    MESSAGE_ALL_TO_ALL,
    MESSAGE_BROADCAST,
    HARDWARE_MESSAGES
};
const char *hardware_message_name(enum hardware_message_kind kind); // "all_reduce"
struct hardware_message {
    enum hardware_message_kind kind;
    int ranks;
    double bytes, seconds;
};

enum storage_kind { STORAGE_NODE, STORAGE_PARALLEL, STORAGE_OBJECT, STORAGE_KINDS };
struct storage {
    bool given;
    struct figure read, write; // bytes/s; of a node (STORAGE_NODE), of the whole system otherwise
    struct figure capacity_bytes, metadata_per_second;
    struct figure price_per_tb_month;
};

struct cluster {
    const char *name, *title;
    struct accelerator accelerator;
    int nodes, per_node;
    int domain; // accelerators that share the fast link; per_node unless the link leaves the node
    struct link fast, slow; // inside a domain; between domains (per accelerator)
    struct fabric fabric;
    struct storage storage[STORAGE_KINDS];
    struct figure price_per_hour;        // of one accelerator with its share of the node
    struct figure failures_per_node_day; // unexpected interruptions
    struct figure repair_seconds;
    struct figure host_memory_bytes;   // of a node
    struct hardware_message *messages; // measured, in place of the links' figures
    int message_count;
    int cores;               // of a measured node; 0: not said
    const char *measured_on; // host and date of a measured file; "" otherwise
    const char *digest;      // of the machine that was measured; "" otherwise
};

// A set of named entries. Entries refer to others by name; later files replace earlier entries of
// the same name.
struct catalogue;
// The built-in catalogue and nothing else.
int catalogue_open(struct catalogue **out, struct err *err);
// Adds a file's accelerators, links and clusters. Messages name file, line and key, and what would
// do: unknown keys, wrong units, negative figures, references that lead nowhere (nearest name).
int catalogue_add(struct catalogue *catalogue, const char *path, struct err *err);
void catalogue_close(struct catalogue *catalogue);
// Both return NULL with a message that names the nearest one.
const struct accelerator *catalogue_accelerator(const struct catalogue *catalogue, const char *name,
                                                struct err *err);
const struct link *catalogue_link(const struct catalogue *catalogue, const char *name,
                                  struct err *err);
// `text`: the path of a YAML file that describes one cluster, the name of one in the catalogue, or
// ACCELERATOR[:N[xM]] ("h100-sxm:512": 64 nodes of 8; "h100-sxm:64x4"). What is not said is that of
// the accelerator's usual node. `out` lives as long as the catalogue.
int catalogue_cluster(struct catalogue *catalogue, const char *text, struct cluster *out,
                      struct err *err);
// Names in the order of the catalogue; ends with NULL. kind: "accelerators", "links", "clusters".
const char *const *catalogue_names(const struct catalogue *catalogue, const char *kind);

// Writes a cluster in the format that catalogue_add reads: what was measured can be read again.
int cluster_print_yaml(const struct cluster *cluster, struct text *out);
