// The checks of health.h by file.
#pragma once
#include "operate/health.h"

// Bytes that both ends of a check can make; a piece of at most HEALTH_BLOCK_BYTES begins anywhere
// in the first half.
enum { HEALTH_BLOCK_BYTES = 1 << 20 };
unsigned char *health_block(struct err *err); // 2 * HEALTH_BLOCK_BYTES; free() it
const unsigned char *health_piece(const unsigned char *block, uint64_t number);
uint64_t health_differing(const unsigned char *found, const unsigned char *expected, size_t bytes);

bool health_breaks(const struct health_options *options, const char *check);
// NULL with err: too many.
struct health_check *health_add(struct health *health, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int health_gemm(const struct health_options *options, struct health *out, struct err *err);
int health_memory(const struct health_options *options, struct health *out, struct err *err);
int health_disk(const struct health_options *options, struct health *out, struct err *err);
int health_links(const struct health_options *options, struct health *out, struct err *err);
