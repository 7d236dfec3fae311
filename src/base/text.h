// Small text helpers: growing buffers, nearest names for messages, human-readable quantities, UTF-8
// checks.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text { // growing byte buffer, NUL behind the content
    char *data;
    size_t size, capacity;
};
// All return 0, or -1 when memory is short (the buffer then stays as it was).
int text_put(struct text *t, const void *bytes, size_t count);
int text_puts(struct text *t, const char *s);
int text_printf(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
int text_reserve(struct text *t, size_t more_bytes); // room for that many further bytes and the NUL
int text_put_word(struct text *t, const char *word); // for a POSIX shell, quoted where it must be
void text_free(struct text *t);

// Levenshtein distance with adjacent swaps, case ignored; and the nearest of `names` within a third
// of the length, or NULL.
size_t text_distance(const char *a, const char *b);
const char *text_nearest(const char *name, const char *const *names, size_t count);

bool text_ends_with(const char *text, const char *end);

// "1.74 GB" (powers of ten), "12 min 5 s", "5,034"; the result is `out`.
const char *text_bytes(uint64_t bytes, char out[32]);
const char *text_duration(double seconds, char out[32]);
const char *text_count(int64_t value, char out[32]);

// Length in bytes of the longest prefix of whole, valid UTF-8 (no surrogates, no overlong forms).
size_t text_utf8_valid_prefix(const char *bytes, size_t size);
// Decodes one code point; returns its length, or 0 when the bytes at hand are not valid UTF-8.
int text_utf8_decode(const unsigned char *bytes, size_t size, uint32_t *code_point);
int text_utf8_encode(uint32_t code_point, char out[4]); // returns the length
