// The fields of accelerators, links, clusters and stacks as tables.
#include "hardware/parts.h"

// clang-format off
#define FIGURE(type, member, name, unit_, usual_) \
    {.key = name, .kind = FIELD_FIGURE, .offset = offsetof(type, member), .unit = unit_, .usual = usual_}
#define NEEDED(type, member, name, unit_) \
    {.key = name, .kind = FIELD_FIGURE, .offset = offsetof(type, member), .unit = unit_, .needed = true}
#define INT(type, member, name, least_, most_) \
    {.key = name, .kind = FIELD_INT, .offset = offsetof(type, member), .least = least_, .most = most_}
#define BOOL(type, member, name) {.key = name, .kind = FIELD_BOOL, .offset = offsetof(type, member)}
#define TEXT(type, member, name) {.key = name, .kind = FIELD_TEXT, .offset = offsetof(type, member)}

#define ACC struct accelerator
#define KERNEL(k, name) \
    {.key = "kernels." name ".fp32", .kind = FIELD_KERNEL, .offset = offsetof(ACC, kernels[k][0])}, \
    {.key = "kernels." name ".bf16", .kind = FIELD_KERNEL, .offset = offsetof(ACC, kernels[k][1])}

static const struct field accelerator_fields[] = {
    TEXT(ACC, title, "title"),
    BOOL(ACC, cpu, "cpu"),
    NEEDED(ACC, memory_bytes, "memory_bytes", UNIT_BYTES),
    NEEDED(ACC, memory_bandwidth, "memory_bandwidth", UNIT_BANDWIDTH),
    FIGURE(ACC, dense[HARDWARE_FP32], "dense.fp32", UNIT_FLOPS, 0),
    NEEDED(ACC, dense[HARDWARE_BF16], "dense.bf16", UNIT_FLOPS),
    FIGURE(ACC, dense[HARDWARE_FP8], "dense.fp8", UNIT_FLOPS, 0),
    FIGURE(ACC, dense[HARDWARE_FP4], "dense.fp4", UNIT_FLOPS, 0),
    FIGURE(ACC, sparse[HARDWARE_FP32], "sparse.fp32", UNIT_FLOPS, 0),
    FIGURE(ACC, sparse[HARDWARE_BF16], "sparse.bf16", UNIT_FLOPS, 0),
    FIGURE(ACC, sparse[HARDWARE_FP8], "sparse.fp8", UNIT_FLOPS, 0),
    FIGURE(ACC, sparse[HARDWARE_FP4], "sparse.fp4", UNIT_FLOPS, 0),
    FIGURE(ACC, watts, "watts", UNIT_WATTS, 0),
    INT(ACC, units, "units", 1, 1e6),
    {.key = "tiles", .kind = FIELD_TILES, .offset = offsetof(ACC, tile_m)},
    FIGURE(ACC, sustained[HARDWARE_FP32], "sustained.fp32", UNIT_SHARE, 0.85),
    FIGURE(ACC, sustained[HARDWARE_BF16], "sustained.bf16", UNIT_SHARE, 0.75),
    FIGURE(ACC, sustained[HARDWARE_FP8], "sustained.fp8", UNIT_SHARE, 0.65),
    FIGURE(ACC, sustained[HARDWARE_FP4], "sustained.fp4", UNIT_SHARE, 0.55),
    FIGURE(ACC, fill_k, "fill_k", UNIT_NUMBER, 256),
    FIGURE(ACC, memory_share, "memory_share", UNIT_SHARE, 0.8),
    FIGURE(ACC, kernel_seconds, "kernel_seconds", UNIT_SECONDS, 3e-6),
    FIGURE(ACC, speed_spread, "speed_spread", UNIT_SHARE, 0),
    FIGURE(ACC, flash_forward, "flash_forward", UNIT_SHARE, 0.5),
    FIGURE(ACC, flash_backward, "flash_backward", UNIT_SHARE, 0.4),
    FIGURE(ACC, flash2_forward, "flash2_forward", UNIT_SHARE, 0.4),
    FIGURE(ACC, flash2_backward, "flash2_backward", UNIT_SHARE, 0.3),
    {.key = "products", .kind = FIELD_PRODUCTS},
    {.key = "attention", .kind = FIELD_ATTENTION},
    {.key = "kernel_points", .kind = FIELD_POINTS},
    KERNEL(KERNEL_NORM, "norm"),
    KERNEL(KERNEL_NORM_BACKWARD, "norm_backward"),
    KERNEL(KERNEL_ROPE, "rope"),
    KERNEL(KERNEL_ROPE_BACKWARD, "rope_backward"),
    KERNEL(KERNEL_GELU, "gelu"),
    KERNEL(KERNEL_GELU_BACKWARD, "gelu_backward"),
    KERNEL(KERNEL_SWIGLU, "swiglu"),
    KERNEL(KERNEL_SWIGLU_BACKWARD, "swiglu_backward"),
    KERNEL(KERNEL_BIAS, "bias"),
    KERNEL(KERNEL_BIAS_BACKWARD, "bias_backward"),
    KERNEL(KERNEL_ADD, "add"),
    KERNEL(KERNEL_SOFTMAX, "softmax"),
    KERNEL(KERNEL_DROPOUT, "dropout"),
    KERNEL(KERNEL_COPY, "copy"),
    KERNEL(KERNEL_EMBEDDING, "embedding"),
    KERNEL(KERNEL_EMBEDDING_BACKWARD, "embedding_backward"),
    KERNEL(KERNEL_LOSS, "loss"),
    KERNEL(KERNEL_ADAMW, "adamw"),
    KERNEL(KERNEL_GRAD_NORM, "grad_norm"),
    KERNEL(KERNEL_SUM, "sum"),
    KERNEL(KERNEL_PACK, "pack"),
    KERNEL(KERNEL_ROUTE, "route"),
    KERNEL(KERNEL_PERMUTE, "permute"),
};

static const char *const direction_names[] = {"one", "both", NULL};

static const struct field link_fields[] = {
    TEXT(struct link, title, "title"),
    NEEDED(struct link, bandwidth, "bandwidth", UNIT_BANDWIDTH),
    {.key = "directions", .kind = FIELD_BOOL, .names = direction_names,
     .offset = offsetof(struct link, both_directions_stated)},
    NEEDED(struct link, latency_seconds, "latency_seconds", UNIT_SECONDS),
    FIGURE(struct link, start_seconds, "start_seconds", UNIT_SECONDS, 1e-5),
    FIGURE(struct link, share, "share", UNIT_SHARE, 0.8),
    FIGURE(struct link, send_share, "send_share", UNIT_SHARE, 0),
    FIGURE(struct link, half_bytes, "half_bytes", UNIT_BYTES, 1e6),
    BOOL(struct link, reduces, "reduces"),
    FIGURE(struct link, reduce_gain, "reduce_gain", UNIT_NUMBER, 1),
};

static const char *const fabric_names[] = {"fat-tree", "rail", "dragonfly", NULL};

#define STORAGE(kind, name) \
    FIGURE(struct cluster_entry, cluster.storage[kind].read, "storage." name ".read", UNIT_BANDWIDTH, 0), \
    FIGURE(struct cluster_entry, cluster.storage[kind].write, "storage." name ".write", UNIT_BANDWIDTH, 0), \
    FIGURE(struct cluster_entry, cluster.storage[kind].capacity_bytes, "storage." name ".capacity_bytes", UNIT_BYTES, 0), \
    FIGURE(struct cluster_entry, cluster.storage[kind].metadata_per_second, "storage." name ".metadata_per_second", UNIT_PER_SECOND, 0), \
    FIGURE(struct cluster_entry, cluster.storage[kind].price_per_tb_month, "storage." name ".price_per_tb_month", UNIT_MONEY, 0)

static const struct field cluster_fields[] = {
    TEXT(struct cluster_entry, cluster.title, "title"),
    {.key = "accelerator", .kind = FIELD_REFERENCE, .needed = true,
     .offset = offsetof(struct cluster_entry, accelerator), .refers = SECTION_ACCELERATORS},
    INT(struct cluster_entry, cluster.nodes, "nodes", 1, 1e6),
    INT(struct cluster_entry, cluster.per_node, "per_node", 1, 1024),
    INT(struct cluster_entry, cluster.domain, "domain", 1, 1e5),
    {.key = "fast", .kind = FIELD_REFERENCE,
     .offset = offsetof(struct cluster_entry, fast), .refers = SECTION_LINKS},
    {.key = "slow", .kind = FIELD_REFERENCE,
     .offset = offsetof(struct cluster_entry, slow), .refers = SECTION_LINKS},
    {.key = "fabric.kind", .kind = FIELD_CHOICE, .names = fabric_names,
     .offset = offsetof(struct cluster_entry, cluster.fabric.kind)},
    INT(struct cluster_entry, cluster.fabric.nodes_per_leaf, "fabric.nodes_per_leaf", 0, 1e6),
    FIGURE(struct cluster_entry, cluster.fabric.oversubscription, "fabric.oversubscription", UNIT_NUMBER, 1),
    FIGURE(struct cluster_entry, cluster.fabric.hop_seconds, "fabric.hop_seconds", UNIT_SECONDS, 1e-6),
    STORAGE(STORAGE_NODE, "node"),
    STORAGE(STORAGE_PARALLEL, "parallel"),
    STORAGE(STORAGE_OBJECT, "object"),
    FIGURE(struct cluster_entry, cluster.price_per_hour, "price_per_hour", UNIT_MONEY, 0),
    FIGURE(struct cluster_entry, cluster.failures_per_node_day, "failures_per_node_day", UNIT_PER_DAY, 3.8e-3),
    FIGURE(struct cluster_entry, cluster.repair_seconds, "repair_seconds", UNIT_SECONDS, 86400),
    FIGURE(struct cluster_entry, cluster.host_memory_bytes, "host_memory_bytes", UNIT_BYTES, 0),
    {.key = "messages", .kind = FIELD_MESSAGES},
    INT(struct cluster_entry, cluster.cores, "cores", 0, 1e5),
    TEXT(struct cluster_entry, cluster.measured_on, "measured_on"),
    TEXT(struct cluster_entry, cluster.digest, "digest"),
};

static const char *const dtype_names[] = {"f32", "bf16", NULL};
static const char *const selective_names[] = {"own", "core", "half", NULL};
static const struct field stack_fields[] = {
    TEXT(struct stack, title, "title"),
    TEXT(struct stack, source, "source"),
    BOOL(struct stack, own, "own"),
    BOOL(struct stack, flash_attention, "flash_attention"),
    BOOL(struct stack, older_attention, "older_attention"),
    FIGURE(struct stack, attention_share, "attention_share", UNIT_SHARE, 1),
    FIGURE(struct stack, attention_copies, "attention_copies", UNIT_NUMBER, 0),
    BOOL(struct stack, fused_softmax, "fused_softmax"),
    BOOL(struct stack, fused_activation, "fused_activation"),
    BOOL(struct stack, fused_residual, "fused_residual"),
    BOOL(struct stack, fused_accumulate, "fused_accumulate"),
    BOOL(struct stack, fused_norm, "fused_norm"),
    BOOL(struct stack, fused_rope, "fused_rope"),
    BOOL(struct stack, fused_loss, "fused_loss"),
    BOOL(struct stack, dropout, "dropout"),
    BOOL(struct stack, sequence_parallel, "sequence_parallel"),
    BOOL(struct stack, overlap_reduce, "overlap_reduce"),
    BOOL(struct stack, overlap_gather, "overlap_gather"),
    BOOL(struct stack, overlap_tensor, "overlap_tensor"),
    BOOL(struct stack, overlap_weight, "overlap_weight"),
    BOOL(struct stack, overlap_pipeline, "overlap_pipeline"),
    BOOL(struct stack, serial_pipeline, "serial_pipeline"),
    BOOL(struct stack, split_sends, "split_sends"),
    BOOL(struct stack, overlap_experts, "overlap_experts"),
    BOOL(struct stack, experts_whole, "experts_whole"),
    BOOL(struct stack, copy_per_node, "copy_per_node"),
    BOOL(struct stack, graphs, "graphs"),
    BOOL(struct stack, blocking_launch, "blocking_launch"),
    BOOL(struct stack, post_validation, "post_validation"),
    {.key = "selective", .kind = FIELD_CHOICE, .names = selective_names, .offset = offsetof(struct stack, selective)},
    FIGURE(struct stack, launch_seconds, "launch_seconds", UNIT_SECONDS, 5e-6),
    FIGURE(struct stack, step_seconds, "step_seconds", UNIT_SECONDS, 0),
    FIGURE(struct stack, shard_copies, "shard_copies", UNIT_NUMBER, 0),
    {.key = "gradient", .kind = FIELD_CHOICE, .names = dtype_names, .offset = offsetof(struct stack, gradient)},
    {.key = "reduce", .kind = FIELD_CHOICE, .names = dtype_names, .offset = offsetof(struct stack, reduce)},
    BOOL(struct stack, masters, "masters"),
    BOOL(struct stack, both_gradients, "both_gradients"),
    BOOL(struct stack, step_gradients, "step_gradients"),
    BOOL(struct stack, dummy_gradients, "dummy_gradients"),
    FIGURE(struct stack, loss_bytes, "loss_bytes", UNIT_NUMBER, 0),
    FIGURE(struct stack, spread_loss_bytes, "spread_loss_bytes", UNIT_NUMBER, 0),
    FIGURE(struct stack, bucket_bytes, "bucket_bytes", UNIT_BYTES, 1e8),
    FIGURE(struct stack, allocator_share, "allocator_share", UNIT_SHARE, 0.03),
    FIGURE(struct stack, context_bytes, "context_bytes", UNIT_BYTES, 1.5e9),
};
// clang-format on

_Static_assert(DTYPE_F32 == 0 && DTYPE_BF16 == 1, "dtype_names follows enum dtype");

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))
static const struct section sections[SECTIONS] = {
    {"accelerators", "accelerator", sizeof(struct accelerator), accelerator_fields,
     COUNT(accelerator_fields)},
    {"links", "link", sizeof(struct link), link_fields, COUNT(link_fields)},
    {"clusters", "cluster", sizeof(struct cluster_entry), cluster_fields, COUNT(cluster_fields)},
    {"stacks", "stack", sizeof(struct stack), stack_fields, COUNT(stack_fields)},
};
const struct section *section_of(enum section_kind kind) {
    return &sections[kind];
}

static const char *const precision_names[HARDWARE_PRECISIONS] = {"fp32", "bf16", "fp8", "fp4"};
const char *hardware_precision_name(enum hardware_precision precision) {
    return precision_names[precision];
}
static const char *const form_names[HARDWARE_FORMS] = {"forward", "input", "weight"};
const char *hardware_form_name(enum hardware_form form) {
    return form_names[form];
}
static const char *const message_names[HARDWARE_MESSAGES] = {
    "send", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"};
const char *hardware_message_name(enum hardware_message_kind kind) {
    return message_names[kind];
}
static const char *const kernel_names[HARDWARE_KERNELS] = {
    "norm",    "norm_backward", "rope",      "rope_backward",
    "gelu",    "gelu_backward", "swiglu",    "swiglu_backward",
    "bias",    "bias_backward", "add",       "softmax",
    "dropout", "copy",          "embedding", "embedding_backward",
    "loss",    "adamw",         "grad_norm", "sum",
    "pack",    "route",         "permute"};
const char *hardware_kernel_name(enum hardware_kernel kernel) {
    return kernel_names[kernel];
}
