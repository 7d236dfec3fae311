// Predictions held against published measurements: each row of a table (columns as in
// docs/validation.md) becomes a job from its configuration alone, and the job's estimate stands
// beside what was measured.
//
// How a publisher runs its jobs (stack, network, recipe where the table is silent) is said once for
// all of its rows, in validate_publisher.c, from its documentation; how it cuts layers and batches
// where that is not usual, in validate_job.c. A publisher that is not known there gets what its
// columns say and the defaults of a current Megatron-Core. No row and no source has a constant of
// its own.
#pragma once
#include "base/text.h"
#include "plan/estimate.h"

// A row as it is written. Texts are "" and numbers NAN or -1 where the cell is empty.
struct published {
    const char *source, *place, *model, *gpu, *schedule, *recompute, *precision, *definition,
        *notes;
    double params_billions, gpu_memory_gb, link_gbits;
    int layers, hidden, ffn, heads, kv_heads, vocab, context, experts, top_k;
    int gpus, per_node, tp, sequence_parallel, pp, vpp, cp, ep, dp, zero, rows, flash;
    int64_t sequences;                                   // of a step
    double seconds, tokens_per_second, tflops, mfu, hfu; // per GPU; percentages
    double memory_gb;
    int line;
    char wrong[128]; // a cell that is no number where one belongs: the row cannot be used
};

struct published_table {
    struct published *row;
    int rows;
    struct csv *csv; // the texts belong to it
};
// A table without the columns "source_id", "gpu", "n_gpus", or whose rows do not have its columns,
// is refused.
int published_read(const char *text, size_t bytes, const char *name, struct published_table *out,
                   struct err *err);
void published_close(struct published_table *table);

// What a publisher's documentation says of all its rows. Empty fields: nothing.
struct publisher {
    const char *prefix; // of source_id
    const char *stack, *cluster;
    const char *recompute; // where the row is silent; "fit": the lightest mode that fits in memory
    int context, vocab;
    int zero;           // where dp > 1
    bool changed;       // its own system changes the model: rows of it are left out
    bool whole_vpp;     // interleaved without a number: one layer per stage
    const char *source; // where this is said
};
const struct publisher *publisher_of(const struct published *row);

// The model of a row: its columns, and where they are empty what is public about a model of this
// name. -1: `err` says what is missing.
int published_model(const struct published *row, const struct publisher *publisher,
                    struct model_config *out, struct err *err);

struct validate_tools; // see validate_parts.h
// The job that a row describes. `schedule_csv` of the job is to be freed.
int published_job(const struct published *row, struct validate_tools *tools, struct job *out,
                  struct err *err);

// FLOPs of one step as a row's source counts them, see the row's flops_definition; and the three
// ways in which this program counts them.
double published_flops(const struct published *row, const struct job *job);
enum validate_flops { VALIDATE_FLOPS_FULL, VALIDATE_FLOPS_CAUSAL, VALIDATE_FLOPS_HARDWARE };
double validate_flops(const struct job *job, enum validate_flops which);
// Seconds of a step of the row's `sequences`: as printed, from tokens/s, or from FLOP/s or their
// share of the peak by the source's own definition. 0: the row measures no time.
double published_seconds(const struct published *row, const struct job *job);

// Bytes that the row's memory column stands for (0: empty), and the planned figure that counts the
// same: live or reserved, on the ranks that the publisher looked at.
double published_memory(const struct published *row);
double published_memory_planned(const struct published *row, const struct plan_memory *ranks,
                                int count);

enum validate_verdict {
    VALIDATE_USED,
    VALIDATE_RANKED, // too noisy for errors; counts where layouts are ranked
    VALIDATE_LEFT_OUT
};
struct validate_parts { // of the predicted step, seconds; mean over the ranks of a pipeline
    double product, attention, kernel, host, tensor, context, expert, update;
    double rest;           // bubble, messages that nothing hides
    double reduce, gather; // in flight, hidden or not
};
struct validated {
    const struct published *row;
    enum validate_verdict verdict;
    char reason[160];                  // left out: why
    double measured, predicted, error; // seconds; (predicted - measured) / measured
    double flops[3];                   // of a step
    struct validate_parts parts;
    double memory, memory_predicted; // bytes, as the source counts; 0: not measured
    double memory_total;             // predicted need of the fullest rank
    int gpus, group;                 // rows that differ in layout only; -1: alone
    enum engine_recompute recompute;
    bool ran_out; // the run ended for want of memory
    bool fits;    // predicted to fit
};

struct validate_source { // one source_id
    const char *name;
    int rows, used, ranked, left_out;
    double mean, median, bias, worst; // of |error|; bias: mean of error
    double constant;                  // mean |error| of one constant TFLOP/s
    bool beats_constant;
    int memory_rows;
    double memory_mean, memory_bias, memory_worst;
};
struct validate_ranking {
    const char *name; // source
    int groups, rows;
    double regret_mean, regret_median, regret_worst; // measured time of the pick over the best
    double spearman;                                 // mean over groups
};
struct validation {
    struct validated *row;
    int rows;
    struct validate_source *source;
    int sources;
    struct validate_ranking *ranking;
    int rankings;
    int used;
    double mean, worst; // of |error| over all used rows; the worst with its sign
    // Over sources with `counted_from` used rows or more: 10; 1 where none has so many.
    double median_source, mean_source, worst_source;
    int counted_sources, counted_from;
    int large_sources, beaten_sources;    // of more than 10 used rows; better than their constant
    double schedule_mean, schedule_worst; // ratio of two schedules' throughput, error
    int schedule_pairs;
    int failed, failed_found; // rows of runs that ended for want of memory; predicted not to fit
    int succeeded, succeeded_found; // rows that ran; predicted to fit
};
// `only`: rows whose source begins so; NULL: all.
int validate_table(const struct published_table *table, struct catalogue *catalogue,
                   const char *only, struct validation *out, struct err *err);
void validation_free(struct validation *validation);

// Reports: text, JSON, rows as CSV.
int validation_print(const struct validation *validation, bool rows, struct text *out);
int validation_json(const struct validation *validation, bool rows, struct text *out);
int validation_csv(const struct validation *validation, struct text *out);
// Predicted over measured step time of the rows of one source (or of all, NULL), both logarithmic.
int validation_svg(const struct validation *validation, const char *source, struct text *out,
                   struct err *err);
