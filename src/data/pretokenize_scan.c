// Hand-written scanners of the known patterns. A window of text becomes one bit per byte for each
// character class; the first bytes of words then follow from shifts and additions of 64 bytes at a
// time, and the few cases that bits express badly (contractions, long numbers, wide white space,
// symbols of several bytes) are mended one by one.
//
// A window ends at a byte where every pattern has a border and looks back no further: behind a run
// of letters or numbers, or between a symbol and a blank or number. What lies before such a cut has
// the same words as if the text ended there.
#include "base/text.h"
#include "data/pretokenize.h"
#include "data/pretokenize_ascii.h"
#include "data/unicode_class.h"
#include <stdlib.h>
#include <string.h>

#define WINDOW_BLOCKS 128u // 8 KB: all masks stay in the first-level cache

enum {
    LETTER,
    NUMBER,
    SPACE,
    BLANK,
    NEWLINE,
    QUOTE,
    HIGH,
    OTHER,
    CONTINUED,
    INVALID,
    START,
    MASKS
};

struct window_masks {
    uint64_t *of[MASKS];
    const unsigned char *text;
    size_t size;   // bytes of the window
    size_t blocks; // words of 64 bits per mask
    bool wide_space, wide_other, wide_number, invalid;
};

static bool bit_at(const uint64_t *mask, size_t i) {
    return mask[i >> 6] >> (i & 63) & 1;
}
static void bit_set(uint64_t *mask, size_t i) {
    mask[i >> 6] |= (uint64_t)1 << (i & 63);
}
static void bit_clear(uint64_t *mask, size_t i) {
    mask[i >> 6] &= ~((uint64_t)1 << (i & 63));
}

// The mask moved by one byte towards higher addresses (the bit of the byte before), and the other
// way round.
static uint64_t before(const uint64_t *mask, size_t b) {
    return mask[b] << 1 | (b ? mask[b - 1] >> 63 : 0);
}
static uint64_t after(const uint64_t *mask, size_t b, size_t blocks) {
    return mask[b] >> 1 | (b + 1 < blocks ? mask[b + 1] << 63 : 0);
}

static int window_reserve(struct scan_window *window, size_t blocks, struct err *err) {
    if (blocks <= window->capacity_blocks) return 0;
    scan_window_free(window);
    window->masks = malloc(blocks * MASKS * sizeof *window->masks);
    window->starts = malloc((blocks * 64 + 80) * sizeof *window->starts);
    if (!window->masks || !window->starts)
        return err_set(err, ERR_MEMORY, "no memory to cut a word of %zu MB", blocks * 64 / 1000000);
    window->capacity_blocks = blocks;
    return 0;
}

void scan_window_free(struct scan_window *window) {
    free(window->masks);
    free(window->starts);
    window->masks = NULL, window->starts = NULL, window->capacity_blocks = 0;
}

// Classes of the characters beyond ASCII, from the first one of block `b` on.
static void classify_high(struct window_masks *w, const uint8_t *table) {
    size_t done = 0; // bytes before it are classified
    for (size_t b = 0; b < w->blocks; b++) {
        uint64_t high = w->of[HIGH][b];
        while (high) {
            size_t i = b * 64 + (size_t)__builtin_ctzll(high);
            high &= high - 1;
            if (i < done) continue;
            uint32_t code_point;
            int length = text_utf8_decode(w->text + i, w->size - i, &code_point);
            if (length == 0) {
                bit_set(w->of[INVALID], i);
                w->invalid = true;
                done = i + 1;
                continue;
            }
            static const uint8_t target_of[4] = {OTHER, LETTER, NUMBER, SPACE};
            enum unicode_class class = unicode_class_of(table, code_point);
            w->wide_other |= class == UNICODE_OTHER;
            w->wide_number |= class == UNICODE_NUMBER;
            w->wide_space |= class == UNICODE_SPACE;
            if (class != UNICODE_OTHER) bit_set(w->of[target_of[class]], i);
            for (int k = 1; k < length; k++) {
                bit_set(w->of[CONTINUED], i + (size_t)k);
                if (class != UNICODE_OTHER) bit_set(w->of[target_of[class]], i + (size_t)k);
            }
            done = i + (size_t)length;
        }
    }
}

static void classify(struct window_masks *w) {
    struct ascii_masks m = {w->of[LETTER],  w->of[NUMBER], w->of[SPACE], w->of[BLANK],
                            w->of[NEWLINE], w->of[QUOTE],  w->of[HIGH]};
    size_t whole = w->size / 64;
    pretokenize_ascii(w->text, whole, &m);
    if (w->size & 63) { // the rest in a copy that may be read to its end
        unsigned char tail[64] = {0};
        memcpy(tail, w->text + whole * 64, w->size & 63);
        struct ascii_masks last = {m.letter + whole, m.number + whole,  m.space + whole,
                                   m.blank + whole,  m.newline + whole, m.quote + whole,
                                   m.high + whole};
        pretokenize_ascii(tail, 1, &last);
    }
    memset(w->of[CONTINUED], 0, w->blocks * sizeof(uint64_t));
    uint64_t any_high = 0;
    for (size_t b = 0; b < w->blocks; b++) any_high |= w->of[HIGH][b];
    w->wide_space = w->wide_other = w->wide_number = w->invalid = false;
    if (any_high) {
        memset(w->of[INVALID], 0, w->blocks * sizeof(uint64_t));
        classify_high(w, unicode_class_table());
    }
    for (size_t b = 0; b < w->blocks; b++)
        w->of[OTHER][b] = ~(w->of[LETTER][b] | w->of[NUMBER][b] | w->of[SPACE][b]);
    if (w->size & 63) w->of[OTHER][w->blocks - 1] &= ((uint64_t)1 << (w->size & 63)) - 1;
}

// One past the last byte at which the window may be cut, or 0.
static size_t last_cut(const struct window_masks *w) {
    for (size_t b = w->blocks; b-- > 0;) {
        uint64_t letter = w->of[LETTER][b], number = w->of[NUMBER][b];
        uint64_t cut = (letter & ~after(w->of[LETTER], b, w->blocks)) |
                       (number & ~after(w->of[NUMBER], b, w->blocks)) |
                       (w->of[OTHER][b] &
                        (after(w->of[BLANK], b, w->blocks) | after(w->of[NUMBER], b, w->blocks)));
        if (b == w->blocks - 1) { // the last byte has no neighbour yet
            size_t last = (w->size - 1) & 63;
            cut &= ((uint64_t)1 << last) - 1;
        }
        if (cut) return b * 64 + 64 - (size_t)__builtin_clzll(cut);
    }
    return 0;
}

// Takes the bytes from `size` on out of all masks.
static void window_shorten(struct window_masks *w, size_t size) {
    w->size = size;
    w->blocks = (size + 63) / 64;
    if (size & 63)
        for (int m = 0; m < START; m++)
            if (m != INVALID || w->invalid)
                w->of[m][w->blocks - 1] &= ((uint64_t)1 << (size & 63)) - 1;
}

// Length of the contraction at the apostrophe `i` (GPT-2's set), or 0. LLAMA3's takes capitals and
// the long s too.
static size_t contraction(const struct window_masks *w, size_t i, bool caseless) {
    const unsigned char *t = w->text + i + 1;
    size_t left = w->size - i - 1;
    if (left == 0) return 0;
    unsigned char fold = caseless ? 0x20 : 0;
    unsigned char a = t[0] | fold, b = left > 1 ? (unsigned char)(t[1] | fold) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    if (caseless && left > 1 && t[0] == 0xC5 && t[1] == 0xBF) return 3; // U+017F folds to s
    return 0;
}

// Letters behind a contraction begin a word of their own. `quotes` are apostrophes that begin a
// word.
static void mend_contractions(struct window_masks *w, size_t b, uint64_t quotes, bool caseless) {
    while (quotes) {
        size_t i = b * 64 + (size_t)__builtin_ctzll(quotes);
        quotes &= quotes - 1;
        size_t length = contraction(w, i, caseless);
        if (length == 0) continue;
        bit_clear(w->of[START], i + 1);
        if (i + length < w->size && bit_at(w->of[LETTER], i + length))
            bit_set(w->of[START], i + length);
    }
}

static size_t lead_of(const struct window_masks *w, size_t i) {
    while (i > 0 && bit_at(w->of[CONTINUED], i)) i--;
    return i;
}

// A run of white space before a word gives its last character away; here where that has several
// bytes. For SMOLLM2 a number takes none.
static void mend_wide_space(struct window_masks *w, bool not_before_number) {
    for (size_t b = 0; b < w->blocks; b++) {
        uint64_t last = w->of[SPACE][b] & ~after(w->of[SPACE], b, w->blocks) & w->of[CONTINUED][b];
        if (not_before_number) last &= ~after(w->of[NUMBER], b, w->blocks);
        while (last) {
            size_t i = b * 64 + (size_t)__builtin_ctzll(last);
            last &= last - 1;
            if (i + 1 < w->size) bit_set(w->of[START], lead_of(w, i));
        }
    }
}

// Start bits of GPT-2's pattern, and of SMOLLM2's, where numbers stand alone.
static void starts_gpt2(struct window_masks *w, bool single_numbers) {
    const uint64_t *letter = w->of[LETTER], *number = w->of[NUMBER], *space = w->of[SPACE],
                   *blank = w->of[BLANK], *other = w->of[OTHER], *continued = w->of[CONTINUED];
    uint64_t *start = w->of[START];
    size_t blocks = w->blocks, end = w->size;
    for (size_t b = 0; b < blocks; b++) {
        uint64_t no_blank = ~before(blank, b);
        uint64_t symbols = other[b] & ~before(other, b) & no_blank;
        uint64_t last = space[b] & ~after(space, b, blocks) & ~continued[b];
        uint64_t numbers = number[b] & ~before(number, b) & no_blank;
        if (single_numbers) {
            last &= ~after(number, b, blocks);
            numbers = number[b] & ~continued[b];
        }
        if (b == blocks - 1)
            last &= ~((uint64_t)1 << ((end - 1) & 63)); // at the end the run stays whole
        start[b] = (letter[b] & ~before(letter, b) & no_blank) | numbers | symbols |
                   (space[b] & ~before(space, b)) | last;
    }
    if (w->wide_space) mend_wide_space(w, single_numbers);
    for (size_t b = 0; b < blocks; b++) {
        uint64_t quotes = w->of[QUOTE][b] & ~before(other, b) & ~before(blank, b);
        if (quotes) mend_contractions(w, b, quotes, false);
    }
}

// In a run of white space with line ends, what follows the last line end is cut off; `candidates`
// follow a line end.
static void mend_behind_lines(struct window_masks *w, size_t b, uint64_t candidates) {
    while (candidates) {
        size_t first = b * 64 + (size_t)__builtin_ctzll(candidates), i = first + 1;
        candidates &= candidates - 1;
        while (i < w->size && bit_at(w->of[SPACE], i) && !bit_at(w->of[NEWLINE], i)) i++;
        if (i == w->size || !bit_at(w->of[NEWLINE], i)) bit_set(w->of[START], first);
    }
}

// Numbers longer than three characters are cut every three.
static void mend_long_numbers(struct window_masks *w, size_t b, uint64_t firsts) {
    while (firsts) {
        size_t i = b * 64 + (size_t)__builtin_ctzll(firsts);
        firsts &= firsts - 1;
        for (size_t characters = 0; i < w->size && bit_at(w->of[NUMBER], i); i++) {
            if (bit_at(w->of[CONTINUED], i)) continue;
            if (characters > 0 && characters % 3 == 0) bit_set(w->of[START], i);
            characters++;
        }
    }
}

// A single symbol of several bytes, too, takes the letters behind it.
static void mend_wide_symbols(struct window_masks *w) {
    for (size_t b = 0; b < w->blocks; b++) {
        uint64_t wide = w->of[OTHER][b] & w->of[CONTINUED][b] & after(w->of[LETTER], b, w->blocks);
        while (wide) {
            size_t i = b * 64 + (size_t)__builtin_ctzll(wide), lead = lead_of(w, i);
            wide &= wide - 1;
            if (lead > 0 && (bit_at(w->of[OTHER], lead - 1) || bit_at(w->of[BLANK], lead - 1)))
                continue;
            bit_clear(w->of[START], i + 1);
        }
    }
}

// Start bits of the Llama 3 pattern (numbers by three) and of Qwen 2's (one by one).
static void starts_llama3(struct window_masks *w, bool single_numbers) {
    const uint64_t *letter = w->of[LETTER], *number = w->of[NUMBER], *space = w->of[SPACE],
                   *blank = w->of[BLANK], *newline = w->of[NEWLINE], *other = w->of[OTHER],
                   *continued = w->of[CONTINUED];
    uint64_t *start = w->of[START];
    size_t blocks = w->blocks, end = w->size;
    uint64_t carry = 0,
             rest_before = 0; // addition over blocks; the last bit of `rest` in the block before
    uint64_t joined_before = 0;
    for (size_t b = 0; b < blocks; b++) {
        // Line ends right behind symbols belong to them: an addition that ripples through each such
        // run finds them.
        uint64_t first = newline[b] & (before(other, b) | carry), sum;
        carry = (uint64_t)__builtin_add_overflow(newline[b], first, &sum);
        uint64_t rest = space[b] & ~(newline[b] & ~sum);
        uint64_t inner = space[b] & ~newline[b];
        uint64_t last = inner & ~after(space, b, blocks) & ~continued[b];
        if (b == blocks - 1) last &= ~((uint64_t)1 << ((end - 1) & 63));
        uint64_t no_blank = ~before(blank, b);
        uint64_t lone_symbol = other[b] & ~before(other, b) & no_blank & ~continued[b];
        uint64_t joiner = inner | lone_symbol;
        uint64_t letters = letter[b] & ~before(letter, b) & ~(joiner << 1 | joined_before);
        joined_before = joiner >> 63;
        uint64_t numbers =
            single_numbers ? number[b] & ~continued[b] : number[b] & ~before(number, b);
        start[b] = letters | numbers | (other[b] & ~before(other, b) & no_blank) |
                   (rest & ~(rest << 1 | rest_before)) | last;
        rest_before = rest >> 63;
    }
    if (w->wide_space) mend_wide_space(w, false);
    if (w->wide_other) mend_wide_symbols(w);
    for (size_t b = 0; b < blocks; b++) {
        uint64_t behind = space[b] & ~newline[b] & before(newline, b);
        if (behind) mend_behind_lines(w, b, behind);
        uint64_t firsts = number[b] & ~before(number, b) & after(number, b, blocks);
        if (firsts && !single_numbers) mend_long_numbers(w, b, firsts);
        uint64_t quotes = w->of[QUOTE][b] & ~before(other, b) & ~before(blank, b);
        if (quotes) mend_contractions(w, b, quotes, true);
    }
}

// Positions of the set bits, eight stores at a time so that the number of bits in a block costs no
// branch.
static size_t flatten(const uint64_t *mask, size_t blocks, uint32_t *out) {
    size_t count = 0;
    for (size_t b = 0; b < blocks; b++) {
        uint64_t bits = mask[b];
        size_t in_block = (size_t)__builtin_popcountll(bits);
        uint32_t base = (uint32_t)(b * 64);
        for (size_t k = 0; k < in_block; k += 8)
            for (size_t j = 0; j < 8; j++) {
                out[count + k + j] = base + (uint32_t)(bits ? __builtin_ctzll(bits) : 0);
                bits &= bits - 1;
            }
        count += in_block;
    }
    return count;
}

static uint64_t count_bits(const uint64_t *mask, size_t blocks) {
    uint64_t count = 0;
    for (size_t b = 0; b < blocks; b++) count += (uint64_t)__builtin_popcountll(mask[b]);
    return count;
}

// Bytes of a window of at most `wanted` that ends between characters.
static size_t window_size(const unsigned char *text, size_t size, size_t wanted) {
    if (size <= wanted) return size;
    size_t end = wanted;
    for (int back = 0; back < 3 && (text[end] & 0xC0) == 0x80; back++) end--;
    return (text[end] & 0xC0) == 0x80 ? wanted : end;
}

int pretokenize_scan(enum pretokenize_scanner scanner, const unsigned char *text, size_t size,
                     struct scan_window *window, struct err *err) {
    window->count = window->used = 0;
    window->invalid_bytes = 0;
    if (size == 0) return 0;
    struct window_masks w;
    for (size_t blocks = WINDOW_BLOCKS;; blocks *= 2) {
        w.text = text;
        w.size = window_size(text, size, blocks * 64);
        w.blocks = (w.size + 63) / 64;
        if (w.size > UINT32_MAX - 64)
            return err_set(err, ERR_DATA,
                           "a stretch of text without a place to cut is longer than 4 GB");
        if (window_reserve(window, w.blocks > WINDOW_BLOCKS ? w.blocks : WINDOW_BLOCKS, err) != 0)
            return -1;
        for (int m = 0; m < MASKS; m++)
            w.of[m] = window->masks + (size_t)m * window->capacity_blocks;
        classify(&w);
        if (w.size == size) break;
        size_t cut = last_cut(&w);
        if (cut == 0) continue;
        window_shorten(&w, cut);
        break;
    }
    if (scanner == SCAN_GPT2 || scanner == SCAN_SMOLLM2)
        starts_gpt2(&w, scanner == SCAN_SMOLLM2);
    else
        starts_llama3(&w, scanner == SCAN_QWEN2);
    window->count = flatten(w.of[START], w.blocks, window->starts);
    window->starts[window->count] = (uint32_t)w.size;
    window->used = w.size;
    if (w.invalid) window->invalid_bytes = count_bits(w.of[INVALID], w.blocks);
    return 0;
}

size_t pretokenize_safe_cut(const unsigned char *text, size_t size, size_t near) {
    size_t least = near > 4096 ? near - 4096 : 0;
    for (size_t i = near < size ? near : size - 1; i > least; i--)
        if (text[i] == ' ' && text[i - 1] > ' ' && text[i - 1] < 0x7F) return i;
    return 0;
}

const char *pretokenize_pattern_text(enum pretokenize_scanner scanner) {
    switch (scanner) {
    case SCAN_GPT2:
        return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    case SCAN_LLAMA3:
        return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    case SCAN_QWEN2:
        return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    case SCAN_SMOLLM2:
        return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+|\\p{N}| "
               "?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+";
    case SCAN_NONE:
        break;
    }
    return NULL;
}

enum pretokenize_scanner pretokenize_known_pattern(const char *pattern) {
    static const enum pretokenize_scanner known[] = {SCAN_GPT2, SCAN_LLAMA3, SCAN_QWEN2};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(pattern, pretokenize_pattern_text(known[i])) == 0) return known[i];
    return SCAN_NONE;
}
