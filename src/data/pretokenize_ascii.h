// Inner part of the scanners: one bit per byte for the classes of ASCII characters, 64 bytes at a
// time.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ascii_masks { // arrays of `blocks` words each; bytes >= 0x80 are only in `high`
    uint64_t *letter, *number, *space; // space: 0x09-0x0D and 0x20
    uint64_t *blank;                   // 0x20
    uint64_t *newline;                 // CR and LF
    uint64_t *quote;                   // the apostrophe
    uint64_t *high;
};
// `text` has 64 * blocks readable bytes. The fastest version that the processor runs.
void pretokenize_ascii(const unsigned char *text, size_t blocks, const struct ascii_masks *masks);
// Every version by its own name, for tests: 0 portable, 1 AVX2, 2 AVX-512. Returns -1 where the
// processor lacks it.
int pretokenize_ascii_version(int version, const unsigned char *text, size_t blocks,
                              const struct ascii_masks *masks);
