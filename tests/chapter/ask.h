// What rows ask the program, with names short enough to stand in a cell of the page.
#pragma once
#include "chapter/chapter.h"
#include "cost/network.h"
#include "hardware/hardware.h"
#include "hardware/stack.h"
#include "model/families.h"
#include "model/flops.h"
#include "plan/estimate.h"
#include "plan/size.h"
#include "schedule/pipeline.h"

#define GB 1e9
#define KIND(name) PIPELINE_##name

// Entries of the built-in catalogue, which stays open.
const struct accelerator *chip(const char *name);
const struct link *wire(const char *name);
const struct stack *stack(const char *name);
struct cluster cluster(const char *text);
struct model_config preset(const char *name);
double params(const char *model); // all of them

double dense_tflops(const char *chip, enum hardware_precision precision);
double memory_gb(const char *chip);    // as it is sold: GiB where that is what "GB" means
double both_ways_gb(const char *link); // GB/s, both directions together
double one_way_gb(const char *link);

// States in GB of `params` parameters (2 + 2 + 12 bytes) on a rank, by the plan's enumeration.
double states_gb(double params, int tp, int pp, int dp, int zero);
double states_fp32_gb(double params, int tp, int pp, int dp, int zero); // FP32 gradients

// Simulated with forward = input = weight half: idle share of the step; idle over the ideal time.
double idle_share(enum pipeline_kind kind, int ranks, int chunks, int micro_batches);
double idle_over_ideal(enum pipeline_kind kind, int ranks, int micro_batches);
double idle_formula(enum pipeline_kind kind, int ranks, int chunks, int micro_batches);
int in_flight(enum pipeline_kind kind, int ranks, int micro_batches); // of the first rank
int micro_batches_below(double share, int ranks, int chunks);         // 1f1b, or interleaved

// A ring without latency: seconds of `bytes` among `ranks` at `bandwidth` bytes/s one way.
double ring_seconds(enum network_kind kind, int ranks, double bytes, double bandwidth);

// The chapters' example: Llama 3 70B on 512 H100, TP 8, PP 4, DP 16, 256 sequences of 4,096 tokens
// in micro-batches of 2; plain links: no latency, all of the bandwidth.
struct job seventy(int zero, bool plain_links);
double tensor_seconds(void);                           // of its all-reduces, a GPU and step
double shard_seconds(int zero, bool each_micro_batch); // of its sharded states in flight
struct estimate estimated(const struct job *job);      // time only; to be freed
// Bytes that a tensor rank keeps of a layer of the example; GB that a GPU sends in shard_seconds.
double layer_bytes(int tp, bool sequence, int rows, enum engine_recompute mode);
double shard_gb(int zero, bool each_micro_batch);
struct runs run_of_512(void); // of the example, for a million steps
// A job of its own on so many accelerators.
struct job job_of(const char *model, const char *cluster, const char *stack, int tp, int pp, int cp,
                  int rows, int context, int sequences);
double mfu_of(const struct job *job); // full attention
