// A model folder as Hugging Face lays it out: config.json, model.safetensors or shards with
// model.safetensors.index.json, tokenizer files. Reading and writing go tensor by tensor: memory is
// one param, whatever the model's size.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "model/model.h"
#include <stdbool.h>
#include <stdint.h>

struct hf_folder;

// Opens a folder and checks all of it that does not need the values: the configuration, index <->
// headers both ways, every tensor's name, shape and type against the model.
int hf_folder_open(const char *path, struct hf_folder **out, struct err *err);
void hf_folder_close(struct hf_folder *folder);

const struct model *
hf_folder_model(const struct hf_folder *folder); // described; lives as long as the folder
enum dtype hf_folder_dtype(const struct hf_folder *folder); // of the first stored matrix

// Fills `out` [rows, columns] (logical, FP32) with a param of the folder's model, parts fused and
// GPT-2's matrices turned. Values that are not finite are refused with the tensor's name and index.
// Any number of threads may read.
int hf_folder_read(const struct hf_folder *folder, int param, float *out, struct err *err);
// Only `rows` of its rows from `first_row` on; `out` is [rows, columns].
int hf_folder_read_rows(const struct hf_folder *folder, int param, int64_t first_row, int64_t rows,
                        float *out, struct err *err);

// Gives rows of a param as FP32 [rows, columns]; called in the order of the params and of their
// rows (for the embedding of a tied model perhaps twice).
typedef int hf_fill(void *context, int param, int64_t first_row, int64_t rows, float *out,
                    struct err *err);

struct hf_write_options {
    enum dtype type;          // DTYPE_F32, DTYPE_BF16 or DTYPE_F16
    uint64_t max_shard_bytes; // 0: 5 GB
    bool store_tied_head;     // write a tied head as a tensor of its own
};
// What the cast to the stored type did to the values.
struct hf_cast_counts {
    uint64_t values, changed, became_inf, became_denormal, became_zero;
};

// Writes config.json, generation_config.json and the weights into `path` (made when absent).
// `counts` may be NULL.
int hf_folder_write(const char *path, const struct model *model,
                    const struct hf_write_options *options, hf_fill *fill, void *context,
                    struct hf_cast_counts *counts, struct err *err);

// Copies the tokenizer's files (tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, ...)
// that stand in `from`, byte by byte. Returns how many, or -1.
int hf_folder_copy_tokenizer(const char *from, const char *to, struct err *err);

// Folder to folder, tensor by tensor in small pieces. `type` DTYPE_COUNT keeps what each tensor is
// stored as, bit by bit. config.json and generation_config.json are carried over, tokenizer files
// too.
int hf_folder_convert(const char *from, const char *to, const struct hf_write_options *options,
                      struct hf_cast_counts *counts, struct err *err);
// What a cast of all tensors to `type` would do; writes nothing.
int hf_folder_count_cast(const struct hf_folder *folder, enum dtype type,
                         struct hf_cast_counts *counts, struct err *err);

// The same for values at hand.
void hf_count_cast(const float *values, int64_t count, enum dtype type,
                   struct hf_cast_counts *counts);

// Everything that hf_folder_open checks, and all data read once (finite values, files that end
// where they say).
int hf_folder_validate(const char *path, struct err *err);
