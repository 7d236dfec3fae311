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
    struct file_map map;
    json_t *metadata;       // object of strings, or NULL
    struct tensor *tensors; // ascending by offset; `data` lies in the map and may be unaligned
    int count;
};

// Types that this program has no name for (BOOL, FP8, ...) are listed with type DTYPE_COUNT and no
// data.
int safetensors_open(const char *path, struct safetensors *out, struct err *err);
void safetensors_close(struct safetensors *st);
const struct tensor *safetensors_find(const struct safetensors *st, const char *name);

// Converts `count` elements from `first` on to FP32, whatever the alignment. The type must be a
// floating one.
void safetensors_to_float(const struct tensor *t, int64_t first, int64_t count, float *out);
// Index of the first element that is Inf or NaN, or -1.
int64_t safetensors_not_finite(const struct tensor *t);

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
