// A model named on the command line, wherever it lies: a Hugging Face folder, a run folder (its
// newest checkpoint), a folder of checkpoints, or one checkpoint.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "model/model.h"

struct model_source {
    const struct model *model;
    char path[4096];      // of what was found
    char tokenizer[4096]; // folder with tokenizer files that belong to it, or ""
    struct hf_folder *hf;
    struct checkpoint *checkpoint;
    struct model described; // of a checkpoint
};
int model_source_open(struct model_source *source, const char *path, struct err *err);
void model_source_close(struct model_source *source);
// FP32 [rows, columns] of a param.
// Bias of the choice of experts that a run learnt in this layer, [experts]: 1 when there is one
// (not all zero), 0 when not.
int model_source_expert_bias(struct model_source *source, int layer, float *out, struct err *err);
int model_source_read(struct model_source *source, int param, float *out, struct err *err);
// [rows, columns] of it from `first_row` on.
int model_source_read_rows(struct model_source *source, int param, int64_t first_row, int64_t rows,
                           float *out, struct err *err);

// The tokenizer at `given`, or, where that is NULL, in the folder `found`. Refused when it has ids
// that the model's vocabulary has not.
struct tokenizer *cli_tokenizer(const char *found, const char *given, int vocab, struct err *err);

// What generating from it needs.
struct loaded_model {
    struct model_source source;
    struct device device;
    struct generator *generator;
};
// `precision` "bf16" or "f32". `context` 0: the model's.
int loaded_model_open(struct loaded_model *loaded, const char *precision, int context, int threads,
                      struct err *err);
void loaded_model_close(struct loaded_model *loaded);
