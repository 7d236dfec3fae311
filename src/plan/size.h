// Sizes of what stands around a training run: the data path, checkpoints and their storage, what
// packing brings, and the pools of accelerators of reinforcement learning. Each is a function from
// plain data to a sheet of named figures, which prints as text or JSON. Where textbooks give
// another figure that users may know, it stands beside ours with the reason.
#pragma once
#include "base/text.h"
#include "hardware/hardware.h"
#include "model/model.h"
#include "simulate/runs.h"
#include <jansson.h>

enum { SIZE_MOST_LINES = 96 };
struct size_line {
    const char *section, *name; // "rollout", "tokens_per_second"
    const char *unit;           // "B", "B/s", "s", "$", "share", "/s", "" ...
    double value;
    double chapter; // NAN: none
    char note[200];
};
struct size_sheet {
    struct size_line lines[SIZE_MOST_LINES];
    int count;
};
// Adds a line and returns it (the last one again when the sheet is full).
struct size_line *size_put(struct size_sheet *sheet, const char *section, const char *name,
                           double value, const char *unit);
void size_note(struct size_line *line, double chapter, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// NULL: no such line.
const struct size_line *size_find(const struct size_sheet *sheet, const char *section,
                                  const char *name);
int size_print(const struct size_sheet *sheet, struct text *out);
json_t *size_json(const struct size_sheet *sheet);
// One message for a figure that must lie in [least, most].
int size_check(const char *name, double value, double least, double most, struct err *err);

// ---- data ----
int size_token_bytes(int64_t vocab); // 2 up to 65,536 ids, else 4
struct size_data {
    double tokens_per_second;
    int64_t vocab;
    double shard_tokens;
    int workers;                                // that read, all nodes together
    double operations;                          // metadata operations to open a shard
    double metadata_limit;                      // of the file system, 0: not known
    double read_limit;                          // bytes/s of the file system, 0: not known
    double products_per_token, flops_per_token; // 6 N, and with attention (full); 0: not known
    double rate; // FLOP/s of all accelerators: with them the MFU that so many tokens would mean
};
int size_data(const struct size_data *in, struct size_sheet *out, struct err *err);

// ---- packing ----
struct size_packing {
    const struct model_config *model;
    int64_t context;
    double document_tokens; // all documents are so long
    int accelerators;
    double run_dollars; // of the run without packing; 0: not said
};
int size_packing(const struct size_packing *in, struct size_sheet *out, struct err *err);
// Dollars that a throughput `gain` (0.2: 20 % more) saves of a run.
double size_saving(double dollars, double gain);

// ---- checkpoints and storage ----
struct size_checkpoint {
    double params;
    double seconds;                // in which it is to be written
    double host_bandwidth;         // of an accelerator to its host, bytes/s
    const struct cluster *cluster; // nodes, storage; NULL: not said
};
int size_checkpoint(const struct size_checkpoint *in, struct size_sheet *out, struct err *err);
// BF16 weights, FP32 masters and both moments; and without the weights, which masters round to.
double size_checkpoint_bytes(double params, bool weights);

// How long ranks stand still for a snapshot into host memory, and how long writing it takes: to the
// parallel file system, else to the nodes, else to the object store (0: no storage is described).
#define SIZE_HOST_BANDWIDTH 25e9 // bytes/s of an accelerator on PCIe 4 or 5, assumed
void size_checkpoint_times(double params, const struct cluster *cluster, double host_bandwidth,
                           double *blocking, double *persist);

// A run of so many steps on a cluster as simulate/runs.h takes it: failures, repair and price as
// far as the cluster says them, a snapshot's times from its storage, spares so that 99 % of
// failures find one; the rest is that of runs_defaults.
void size_run(const struct cluster *cluster, double params, double step_seconds, int64_t steps,
              struct runs *out);

struct size_storage {
    double params;
    double run_seconds, interval_seconds; // between checkpoints
    int keep;                             // newest on the parallel file system
    int archive_every;                    // every so many-th stays for ever in the object store
    double dataset_tokens;
    int64_t vocab;
    const struct cluster *cluster;
};
int size_storage(const struct size_storage *in, struct size_sheet *out, struct err *err);

// ---- reinforcement learning ----
enum size_pool { POOL_ROLLOUT, POOL_REWARD, POOL_REFERENCE, POOL_VALUE, POOL_UPDATE, SIZE_POOLS };
const char *size_pool_name(enum size_pool pool);
struct size_rlhf {
    const struct model_config *policy, *reward, *value;
    const struct accelerator *accelerator;
    int accelerators;
    double share[SIZE_POOLS]; // of the allocation, as wanted
    int replica[SIZE_POOLS];  // accelerators of a whole replica of the pool's model
    int samples;              // of an iteration
    int prompt_tokens, response_tokens;
    int epochs; // of updates over an iteration's samples
    int lora_rank;
    double forward_mfu, train_mfu; // of the accelerator's dense BF16 rate
    double host_bandwidth;         // bytes/s of an accelerator
};
void size_rlhf_defaults(struct size_rlhf *in);
int size_rlhf(const struct size_rlhf *in, struct size_sheet *out, struct err *err);

// State bytes of the four models: trained ones 18 bytes per parameter (BF16 weights, FP32
// gradients, masters, moments), frozen ones 2.
enum size_sharing {
    SIZE_ALL,         // four models
    SIZE_PRECOMPUTED, // the reference's log-probabilities are computed beforehand
    SIZE_LORA,        // policy and value train adapters only; models of one shape share a base
    SIZE_OFFLOADED,   // frozen models lie in host memory while others work
    SIZE_SHARINGS
};
struct size_rlhf_params {
    double policy, value, reward;               // parameters
    double policy_adapters, value_adapters;     // of the LoRA modules
    bool value_shares_base, reward_shares_base; // the policy's shape
};
// On the device, all models together, before any sharding.
double size_rlhf_states(const struct size_rlhf_params *params, enum size_sharing sharing);
double size_dpo_states(double params, bool precomputed);
double size_lora_params(const struct model_config *model, int rank);

// Bytes of keys and values of a token over all layers, BF16.
double size_kv_bytes(const struct model_config *model);
// Seconds of a decoding step of `sequences` at `context` tokens over a replica: reading the weights
// once and every sequence's cache, at the replica's memory bandwidth.
double size_decode_seconds(double weight_bytes, double kv_bytes_per_token, double sequences,
                           double context, double bandwidth);
