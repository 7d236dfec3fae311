// XXH3 behind a narrow door, see hash.h.
#include "base/hash.h"
#include <string.h>
#define XXH_STATIC_LINKING_ONLY // the size of the state
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

uint64_t hash_string(const char *text) {
    return XXH3_64bits(text, strlen(text));
}

// The library's state wants 64-byte alignment, which a struct inside of malloc'ed memory need not
// have.
_Static_assert(sizeof(XXH3_state_t) + 64 <= sizeof(struct hash_stream), "room for the state");
static XXH3_state_t *state_of(const struct hash_stream *h) {
    return (XXH3_state_t *)(((uintptr_t)h->room + 63) & ~(uintptr_t)63);
}

void hash_begin(struct hash_stream *h) {
    XXH3_64bits_reset(state_of(h));
}

void hash_put(struct hash_stream *h, const void *data, size_t bytes) {
    XXH3_64bits_update(state_of(h), data, bytes);
}

uint64_t hash_end(const struct hash_stream *h) {
    return XXH3_64bits_digest(state_of(h));
}

void hash_text(uint64_t hash, char text[17]) {
    for (int i = 0; i < 16; i++) text[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    text[16] = 0;
}

int hash_parse(const char *text, uint64_t *hash) {
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        unsigned digit;
        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (unsigned)(c - 'a') + 10;
        else
            return -1; // also at an early end
        value = value << 4 | digit;
    }
    if (text[16] != 0) return -1;
    *hash = value;
    return 0;
}
