// The safetensors format: 8 bytes with the length of a JSON header, the header (name -> dtype,
// shape, offsets), the data. https://github.com/huggingface/safetensors describes it. Reading maps
// the file and trusts nothing in it; writing streams, so that no more than the caller's piece is in
// memory.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/tensor.h"
#include <stdbool.h>
#include <stdint.h>

enum { SAFETENSORS_LARGEST_HEADER = 100 * 1000 * 1000 };

struct safetensors {
    int fd;
    char *path;
    uint64_t file_bytes;
    json_t *metadata;       // object of strings, or NULL
    struct tensor *tensors; // ascending by offset, described only (`data` is NULL)
    uint64_t *offsets;      // where the data of each begins in the file
    int count;
};

// Types that this program has no name for (BOOL, FP8, ...) are listed with type DTYPE_COUNT.
int safetensors_open(const char *path, struct safetensors *out, struct err *err);
void safetensors_close(struct safetensors *st);
int safetensors_find(const struct safetensors *st, const char *name); // index or -1
uint64_t safetensors_bytes(const struct safetensors *st,
                           int tensor); // of its data, whatever the type

// Bytes of the file as it is.
int safetensors_read_file(const struct safetensors *st, uint64_t first, uint64_t bytes, void *out,
                          struct err *err);
// `bytes` of a tensor's data from byte `first` on, as stored. Any number of threads may read.
int safetensors_read(const struct safetensors *st, int tensor, uint64_t first, uint64_t bytes,
                     void *out, struct err *err);
// `count` elements from `first` on, converted to FP32. The tensor's type must be a floating one.
int safetensors_read_floats(const struct safetensors *st, int tensor, int64_t first, int64_t count,
                            float *out, struct err *err);

bool safetensors_is_floating(enum dtype type); // F64, F32, BF16, F16
// Index of the first of `count` elements of a floating type that is Inf or NaN, or -1.
int64_t safetensors_not_finite(const void *data, enum dtype type, int64_t count);

// The bytes in front of the data, length field included; data follow dense in the given order.
struct text;
int safetensors_header(const struct tensor *tensors, int count, json_t *metadata, const char *path,
                       struct text *out, uint64_t *data_bytes, struct err *err);

struct safetensors_writer {
    struct file_writer file;
    struct hash_stream hash; // of all bytes so far
    uint64_t end_bytes;      // where the file must end
};

// Writes the header for tensors in the given order; their data must follow in that order through
// _put, in pieces of any size. Wider types first, so that each tensor is aligned. `metadata` may be
// NULL. On failure nothing stays open.
int safetensors_write_begin(struct safetensors_writer *w, const char *path,
                            const struct tensor *tensors, int count, json_t *metadata,
                            struct err *err);
int safetensors_write_put(struct safetensors_writer *w, const void *data, uint64_t bytes,
                          struct err *err);
// Checks that exactly the announced bytes came; `hash` (of the whole file) may be NULL.
int safetensors_write_end(struct safetensors_writer *w, bool durable, uint64_t *hash,
                          struct err *err);
void safetensors_write_abandon(struct safetensors_writer *w);
