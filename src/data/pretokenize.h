// Cutting text into words, inside which BPE merges. Four patterns have hand-written scanners
// (pretokenize_scan.c); any other goes through PCRE2 (pretokenize_pattern.c). Both give the same
// words; a test holds them together.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pretokenize_scanner {
    SCAN_NONE,
    SCAN_GPT2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    SCAN_LLAMA3,  // caseless contractions, one leading symbol with letters, numbers by three, lines
                  // together
    SCAN_QWEN2,   // as LLAMA3, numbers one by one
    SCAN_SMOLLM2, // numbers one by one first, then GPT2 on what lies between them
};

// The pattern text of a scanner (for SCAN_SMOLLM2 an equivalent single pattern), and the scanner of
// a pattern text or SCAN_NONE.
const char *pretokenize_pattern_text(enum pretokenize_scanner scanner);
enum pretokenize_scanner pretokenize_known_pattern(const char *pattern);

// Working memory of a scan; start with {0}.
struct scan_window {
    uint64_t *masks;  // one bit per byte of the window, several classes
    uint32_t *starts; // first bytes of words, relative to the window; one more element holds `used`
    size_t capacity_blocks;
    size_t count;           // words found
    size_t used;            // bytes they cover
    uint64_t invalid_bytes; // bytes among them outside valid UTF-8 (they count as OTHER)
};
void scan_window_free(struct scan_window *window);

// Cuts the beginning of `text` into words, about 8 KB or as far as a word reaches. `text` must
// begin at a border. -1 only when memory is short.
int pretokenize_scan(enum pretokenize_scanner scanner, const unsigned char *text, size_t size,
                     struct scan_window *window, struct err *err);

// Largest position <= `near` and > 0 at which every scanner has a border and starts afresh, looking
// only at the ASCII neighbours there; 0 when the 4 KB in front of `near` hold none.
size_t pretokenize_safe_cut(const unsigned char *text, size_t size, size_t near);

// --- any pattern ---

struct pretokenize_pattern; // compiled, shared by threads
struct pretokenize_pattern *pretokenize_pattern_new(const char *pattern, const char *where,
                                                    struct err *err);
void pretokenize_pattern_free(struct pretokenize_pattern *pattern);

// Next match at or after `from`: 1 and its range, 0 when there is none, -1 on an error. Empty
// matches are passed over. `matcher` is the calling thread's.
struct pretokenize_matcher; // match data and JIT stack of a thread
struct pretokenize_matcher *pretokenize_matcher_new(struct err *err);
void pretokenize_matcher_free(struct pretokenize_matcher *matcher);
int pretokenize_match(const struct pretokenize_pattern *pattern,
                      struct pretokenize_matcher *matcher, const unsigned char *text, size_t size,
                      size_t from, size_t *begin, size_t *end, struct err *err);
