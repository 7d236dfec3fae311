// 64-bit XXH3 of bytes, one-shot and streamed, and its text form of 16 hex digits.
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t bytes);
uint64_t hash_string(const char *text);

// The state lies inside, at an aligned place that depends on the address: begun streams must not be
// moved.
struct hash_stream {
    unsigned char room[640];
};
void hash_begin(struct hash_stream *h);
void hash_put(struct hash_stream *h, const void *data, size_t bytes);
uint64_t hash_end(const struct hash_stream *h); // of all bytes put so far

void hash_text(uint64_t hash, char text[17]);
int hash_parse(const char *text, uint64_t *hash); // 0 or -1
