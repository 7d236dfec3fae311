// The configuration of a run. One table (config_table.c) names every key with its type, default,
// bounds, unit and help; reading, checking, printing and documenting are loops over that table.
//
// Sources, later ones win: default, preset or model folder (model.*), file, command line. Each
// value remembers where it came from. What was read is printed as YAML by config_print, and reading
// that back gives the same values and the same digest.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include "data/loader.h"
#include "device/device.h"
#include "engine/engine.h"
#include "guard/fault.h"
#include "layout/layout.h"
#include "model/model.h"
#include "train/schedule.h"
#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_TEXT_BYTES = 1024, CONFIG_LIST_BYTES = 8192, CONFIG_MAX_OPTIONS = 200 };

enum config_source { SOURCE_DEFAULT, SOURCE_DERIVED, SOURCE_FILE, SOURCE_COMMAND_LINE };
struct config_origin {
    enum config_source source;
    int line;           // SOURCE_FILE
    const char *reason; // SOURCE_DERIVED: what it follows from, static text
};

enum config_precision { PRECISION_BF16, PRECISION_FP32 };
enum config_switch { SWITCH_AUTO, SWITCH_ON, SWITCH_OFF };
enum config_gather { GATHER_AUTO, GATHER_BF16, GATHER_FP32 };
enum config_reduce { REDUCE_PER_STEP, REDUCE_PER_MICRO_BATCH };
enum config_placement { PLACEMENT_AUTO, PLACEMENT_LOOP, PLACEMENT_V };
enum config_cp_kind { CP_RING, CP_GATHER };
enum config_cp_balance { CP_SEQUENCE, CP_DOCUMENT };
enum config_aux_scope { AUX_SEQUENCE, AUX_GLOBAL };

struct train_config {
    char path[CONFIG_TEXT_BYTES];                    // of the file, or ""
    struct config_origin origin[CONFIG_MAX_OPTIONS]; // by place in the table

    char preset[64], from[CONFIG_TEXT_BYTES];
    char windows[CONFIG_LIST_BYTES], stops[256], dense_layers[CONFIG_LIST_BYTES];
    struct model_config model;
    int base_experts; // of the preset, folder or family, before the model's own keys

    char train_sets[CONFIG_LIST_BYTES], weights[CONFIG_LIST_BYTES];
    char validation_sets[CONFIG_LIST_BYTES];
    char tokenizer[CONFIG_TEXT_BYTES];
    uint32_t tokenizer_vocab; // of the tokenizer; 0: not loaded yet
    int tokenizer_bos, tokenizer_eos;
    uint64_t tokenizer_fingerprint; // 0: not loaded, shards of any tokenizer are taken
    int context;
    enum loader_mode mode;
    enum config_switch document_mask, reset_positions;
    enum loader_shuffle shuffle;
    int64_t shuffle_window;
    int readers, steps_ahead;
    char cache_folder[CONFIG_TEXT_BYTES];
    uint64_t cache_bytes;

    char folder[CONFIG_TEXT_BYTES]; // of the run
    int64_t steps, stop_at;
    int batch, micro_batch; // sequences of a step; sequences of a micro-batch
    int replicas;           // dp of the layout (config_layout); 1 before
    char batch_ramp[CONFIG_LIST_BYTES];
    int64_t seed;
    enum config_precision precision;
    enum engine_recompute recompute;
    double dropout;
    bool resume, tensorboard, eval_at_end, checkpoint_at_end;
    int log_every, max_bad_steps;
    char trace[CONFIG_TEXT_BYTES];
    double gemm_seconds;

    int threads;
    enum device_isa isa;

    int tp, pp, cp, dp, ep; // dp 0: what the world leaves over
    char order[64];
    enum config_switch sequence_parallel;
    int zero;

    enum pipeline_kind pipeline;
    int chunks; // 0: the schedule's own
    enum config_placement placement;
    char pipeline_file[CONFIG_TEXT_BYTES], pipeline_layers[CONFIG_TEXT_BYTES];

    uint64_t bucket_bytes;
    enum config_reduce reduce;
    int shard; // 0: all of dp x cp
    enum config_gather gather_precision;
    enum config_precision reduce_precision, accumulate_precision;
    int prefetch, gathers_in_flight;

    enum config_cp_kind cp_kind;
    enum config_cp_balance cp_balance;

    enum config_aux_scope aux_scope;
    double z_coefficient;       // moe.z; moe.aux is model.aux_coefficient
    double capacity, bias_rate; // 0: dropless; no bias
    int64_t wave;               // tokens; 0: planned from the model

    double watchdog_seconds, link_latency_seconds, link_bytes_per_second;
    int ranks_per_host;
    bool check_order, count_ends;

    double learning_rate, beta1, beta2, eps, weight_decay, clip;

    enum schedule_kind schedule;
    enum schedule_unit unit;
    int64_t warmup, decay;
    double min_ratio;
    enum schedule_decay decay_shape;

    int64_t eval_every, eval_batches;

    char checkpoint_folder[CONFIG_TEXT_BYTES];
    int64_t checkpoint_every, keep_every;
    int keep_last;
    enum { INTERVAL_STEPS, INTERVAL_AUTO } checkpoint_interval;
    double mtbf_seconds;
    enum config_switch snapshot;
    char snapshot_folder[CONFIG_TEXT_BYTES], second_folder[CONFIG_TEXT_BYTES];
    int states_back;
    char skip_steps[CONFIG_LIST_BYTES], keep_steps[CONFIG_LIST_BYTES];

    double loss_factor, loss_deviations, norm_deviations;
    int spike_warm_up, most_spikes;
    bool guard_optimizer, guard_gradients, guard_replay, guard_counters, checksums;
    int weights_every, products_every, replicas_every, most_faults;
    char counters_folder[CONFIG_TEXT_BYTES];
    double counters_seconds;
    enum { CORRUPTION_ROLL_BACK, CORRUPTION_LEAVE } on_corruption;

    char fault_kind[CONFIG_TEXT_BYTES], fault_when[CONFIG_TEXT_BYTES];
    char fault_rank[CONFIG_TEXT_BYTES], fault_step[CONFIG_TEXT_BYTES],
        fault_steps[CONFIG_TEXT_BYTES];
    char fault_attempt[CONFIG_TEXT_BYTES], fault_factor[CONFIG_TEXT_BYTES];
    char fault_peer[CONFIG_TEXT_BYTES], fault_bit[CONFIG_TEXT_BYTES];
    int64_t fault_seed;
    uint64_t part_bytes;
};

// Reads a file (NULL: none) and `key=value` words, fills in the rest, and checks all that can be
// checked without opening data. Errors are ERR_USAGE and name file and line or the command line.
int config_load(struct train_config *config, const char *path, char *const *words, int word_count,
                struct err *err);
// The same from text (a resolved configuration out of a checkpoint); `name` stands for the file.
int config_load_text(struct train_config *config, const char *text, size_t bytes, const char *name,
                     struct err *err);
// What only a training run needs: data sets, and a tokenizer that fits the model.
int config_check_run(struct train_config *config, struct err *err);

// All values as YAML; with `origins` a comment behind each. -1 when memory is short.
int config_print(const struct train_config *config, bool origins, struct text *out);
uint64_t config_digest(const struct train_config *config); // of keys and values

// Differences of two configurations, key by key, as lines "KEY: OLD, now NEW". `model_only`
// restricts to the shape of the model. Returns how many, or -1 when memory is short.
int config_differences(const struct train_config *then, const struct train_config *now,
                       bool model_only, struct text *out);

// Documentation of the whole table: plain text or Markdown. `key` NULL: all. -1 when memory is
// short, 1 when the key is unknown (`nearest` then gets a name or NULL).
int config_document(const char *key, bool markdown, struct text *out, const char **nearest);

// The layout of this configuration on a world of `ranks`: fills in dp, splits the layers, and
// checks all that must divide, the batch included, before any memory is taken. A micro-batch that
// the user did not give is made to fit (config->micro_batch), so this comes before config_engine
// and config_loader.
int config_layout(struct train_config *config, int ranks, struct layout *layout, struct err *err);
// The most micro-batches of a step on each replica.
int config_micro_batches(const struct train_config *config);
// Whether the run keeps snapshots of its state in memory and saves behind the run.
bool config_takes_snapshots(const struct train_config *config);
// How the engine talks: all but comm, rank, layout and the text of a schedule file.
void config_parallel(const struct train_config *config, struct engine_parallel *out);
void config_comm(const struct train_config *config, struct comm_options *out);

// The faults of fault.*; their steps and ranks are not checked against the run.
int config_faults(const struct train_config *config, struct fault list[FAULT_MOST], int *count,
                  struct err *err);

// checkpoint.keep_steps as numbers, with room for one more; free() the list.
int config_keep_steps(const struct train_config *config, int64_t **steps, int *count,
                      struct err *err);

// What the rooms below want to know.
void config_engine(const struct train_config *config, struct engine_options *out);
void config_device(const struct train_config *config, struct device_cpu_options *out);
// `batch` sequences a step over all replicas; `rank`, the replica's number, is left to the caller.
// The paths point into `storage`, which must outlive the loader.
struct config_paths {
    char text[CONFIG_LIST_BYTES];
};
int config_loader(const struct train_config *config, bool validation, int batch,
                  struct config_paths *storage, struct loader_options *out, struct err *err);
// Batches of both loaders, one behind the other in the engine's other_bytes: of the training one,
// and of both.
int config_loader_bytes(const struct train_config *config, uint64_t *training, uint64_t *both,
                        struct err *err);
void config_schedule(const struct train_config *config, struct train_schedule *out);
