// What the files of the Hugging Face folder object share; inside the room only.
#pragma once
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "model/hf_names.h"

struct hf_source { // where the data of an expected tensor lies
    int file, index;
};

struct hf_folder {
    char path[CHECKPOINT_PATH_BYTES];
    struct model model;
    struct hf_tensor *tensors; // what the model needs
    int count;
    struct hf_source *sources; // of each
    struct safetensors *files;
    char **file_names;
    int file_count;
};

// Writes tensors in a given order into one file, or into shards with an index; a tensor is never
// split.
struct hf_sink {
    char folder[CHECKPOINT_PATH_BYTES];
    const struct tensor *tensors;
    int count, shard_count, shard; // shard: the one being written, from 0
    int *shard_of;                 // of each tensor
    uint64_t *shard_bytes;         // data bytes
    uint64_t put_bytes;            // of the open shard
    struct safetensors_writer writer;
    bool open;
};
// Old weights in the folder are removed at the close, when the new ones take their place. The list
// must outlive the sink.
int hf_sink_open(struct hf_sink *sink, const char *folder, const struct tensor *tensors, int count,
                 uint64_t max_shard_bytes, struct err *err);
int hf_sink_put(struct hf_sink *sink, const void *data, uint64_t bytes, struct err *err);
int hf_sink_close(struct hf_sink *sink, struct err *err);
void hf_sink_abandon(struct hf_sink *sink);

// Casts and counts; `count` FP32 values of a finite tensor.
void hf_cast(const float *from, int64_t count, enum dtype type, void *to,
             struct hf_cast_counts *counts);
const char *hf_dtype_text(enum dtype type); // "float32", "bfloat16", "float16"
