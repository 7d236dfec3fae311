// 64-bit XXH3 of bytes, one-shot and streamed, and its text form of 16 hex digits.
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t bytes);
uint64_t hash_string(const char *text);

struct hash_stream { void *state; };
void hash_begin(struct hash_stream *h);
void hash_put(struct hash_stream *h, const void *data, size_t bytes);
uint64_t hash_end(struct hash_stream *h); // releases the state

void hash_text(uint64_t hash, char text[17]);
int hash_parse(const char *text, uint64_t *hash); // 0 or -1
