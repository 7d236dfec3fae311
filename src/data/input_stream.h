// The bytes of one file, decompressed. The kind is found by the first bytes: gzip (several
// members), zstd (several frames), anything else as it is.
#pragma once
#include "base/error.h"
#include <stddef.h>
#include <stdint.h>

struct input_stream;
struct input_stream *input_stream_open(const char *path, struct err *err);
void input_stream_close(struct input_stream *stream);
// Up to `room` further bytes: their number, 0 at the end, -1. A file that is cut inside a
// compressed part is an error.
int64_t input_stream_read(struct input_stream *stream, void *out, size_t room, struct err *err);
uint64_t input_stream_raw_bytes(const struct input_stream *stream); // taken from the file so far
