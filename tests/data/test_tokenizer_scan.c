// The hand-written scanners against PCRE2 with the pattern that they stand for: random Unicode,
// every code point, and texts longer than a window; and the versions of the ASCII classifier
// against each other.
#include "base/random.h"
#include "base/text.h"
#include "data/pretokenize.h"
#include "data/pretokenize_ascii.h"
#include "data/unicode_class.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw_key, draw_count;
static uint32_t draw(uint32_t below) {
    uint32_t words[4];
    random_words(draw_key, draw_count++, words);
    return words[0] % below;
}

struct splitter {
    struct pretokenize_pattern *pattern;
    struct pretokenize_matcher *matcher;
    struct scan_window window;
    enum pretokenize_scanner scanner;
};

static struct splitter splitter_new(enum pretokenize_scanner scanner) {
    struct err err = {0};
    struct splitter s = {.scanner = scanner, .matcher = pretokenize_matcher_new(&err)};
    s.pattern = pretokenize_pattern_new(pretokenize_pattern_text(scanner), "test", &err);
    if (!s.pattern || !s.matcher) test_fail(__FILE__, __LINE__, "%s", err.text);
    return s;
}

static void splitter_free(struct splitter *s) {
    pretokenize_pattern_free(s->pattern);
    pretokenize_matcher_free(s->matcher);
    scan_window_free(&s->window);
}

// Both ways must cut the text in the same words, without gaps. The copy has no byte to spare behind
// it.
static void check_same(struct splitter *s, const char *bytes, size_t size) {
    struct err err = {0};
    unsigned char *text = malloc(size ? size : 1);
    memcpy(text, bytes, size);
    size_t begin = 0, end = 0;
    for (size_t at = 0; at < size; at += s->window.used) {
        CHECK_OK(pretokenize_scan(s->scanner, text + at, size - at, &s->window, &err), err);
        CHECK(s->window.used > 0 && s->window.invalid_bytes == 0);
        for (size_t k = 0; k < s->window.count; k++) {
            int found =
                pretokenize_match(s->pattern, s->matcher, text, size, end, &begin, &end, &err);
            if (found != 1 || begin != at + s->window.starts[k] ||
                end != at + s->window.starts[k + 1])
                test_fail(__FILE__, __LINE__,
                          "scanner %d: word %zu..%zu, PCRE2 %zu..%zu, in \"%.*s\"", (int)s->scanner,
                          at + s->window.starts[k], at + s->window.starts[k + 1], begin, end,
                          (int)(size < 300 ? size : 300), bytes);
        }
    }
    CHECK_EQ_INT(end, size);
    free(text);
}

// PCRE2 may know fewer characters than weft's tables: code points that it calls unassigned are left
// out.
static bool *assigned(void) {
    struct err err = {0};
    bool *known = calloc(0x110000, 1);
    struct pretokenize_matcher *matcher = pretokenize_matcher_new(&err);
    struct pretokenize_pattern *pattern = pretokenize_pattern_new("\\P{Cn}", "test", &err);
    CHECK(known && matcher && pattern);
    size_t count = 0;
    for (uint32_t c = 1; c < 0x110000; c++) {
        char utf8[4];
        size_t begin, end;
        if (c >= 0xD800 && c < 0xE000) continue;
        int length = text_utf8_encode(c, utf8);
        known[c] = pretokenize_match(pattern, matcher, (unsigned char *)utf8, (size_t)length, 0,
                                     &begin, &end, &err) == 1;
        count += known[c];
    }
    CHECK(count > 280000);
    pretokenize_pattern_free(pattern);
    pretokenize_matcher_free(matcher);
    return known;
}

static const char *const bits[] = {"'",
                                   "s",
                                   "t",
                                   "re",
                                   "LL",
                                   "ve",
                                   "d",
                                   "'S",
                                   " ",
                                   "  ",
                                   "        ",
                                   "\n",
                                   "\r\n",
                                   "\t",
                                   "a",
                                   "\xC3\xA9",
                                   "\xE6\xBC\xA2",
                                   "1",
                                   "9",
                                   "12345",
                                   "\xD9\xA3",
                                   "\xC2\xB2",
                                   ".",
                                   "\xE3\x80\x82",
                                   "\xE2\x80\x9C",
                                   "!",
                                   "?",
                                   "-",
                                   "_",
                                   "\xC2\xA0",
                                   "\xE2\x80\xA8",
                                   "\xE3\x80\x80",
                                   "\xE1\xA0\x8E",
                                   "\xC5\xBF",
                                   "word",
                                   "HeLLo",
                                   "\xE2\x80\x8D",
                                   "\xF0\x9F\x98\x80",
                                   "\xCC\x81",
                                   "\xE2\x84\xAA",
                                   "\xC3\x9F",
                                   "\xC2\x85"};

static size_t random_text(char *out, size_t room, size_t parts, const bool *known) {
    size_t size = 0;
    for (size_t i = 0; i < parts && size + 16 < room; i++) {
        if (draw(10) == 0) {
            uint32_t c = draw(8) == 0 ? draw(0x110000) : draw(0x3000);
            size += (size_t)text_utf8_encode(known[c] ? c : 'x', out + size);
        } else {
            const char *bit = bits[draw(sizeof bits / sizeof *bits)];
            memcpy(out + size, bit, strlen(bit));
            size += strlen(bit);
        }
    }
    return size;
}

static void check_random(enum pretokenize_scanner scanner) {
    static char text[80000];
    bool *known = assigned();
    struct splitter s = splitter_new(scanner);
    draw_key = random_key((uint64_t)scanner, "scan");
    for (int i = 0; i < 100000; i++)
        check_same(&s, text, random_text(text, 400, 1 + draw(24), known));
    for (int i = 0; i < 60; i++)
        check_same(&s, text, random_text(text, sizeof text, 12000, known)); // several windows
    splitter_free(&s);
    free(known);
}

TEST(scan_random_gpt2) {
    check_random(SCAN_GPT2);
}
TEST(scan_random_llama3) {
    check_random(SCAN_LLAMA3);
}
TEST(scan_random_qwen2) {
    check_random(SCAN_QWEN2);
}
TEST(scan_random_smollm2) {
    check_random(SCAN_SMOLLM2);
}

// Each code point between letters, numbers, symbols, spaces and doubled.
TEST(scan_all_code_points) {
    bool *known = assigned();
    for (int scanner = SCAN_GPT2; scanner <= SCAN_SMOLLM2; scanner++) {
        struct splitter s = splitter_new((enum pretokenize_scanner)scanner);
        for (uint32_t c = 1; c < 0x110000; c++) {
            if (!known[c]) continue;
            char text[80], one[5] = {0};
            text_utf8_encode(c, one);
            size_t size = (size_t)snprintf(text, sizeof text, "a%sb 1%s2 .%s! %s%s  %s\n%s", one,
                                           one, one, one, one, one, one);
            check_same(&s, text, size);
        }
        splitter_free(&s);
    }
    free(known);
}

TEST(scan_long_runs) {
    static const char *const runs[] = {
        "a",   "1",   " ",  "\n",           ".",        " \n",
        "1\n", ".\n", "'s", "\xE6\xBC\xA2", "\xC2\xA0", "\xE3\x80\x82",
        "x.",  ". "};
    size_t size = 300000;
    char *text = malloc(size + 8);
    for (int scanner = SCAN_GPT2; scanner <= SCAN_SMOLLM2; scanner++) {
        struct splitter s = splitter_new((enum pretokenize_scanner)scanner);
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            size_t at = 0;
            while (at < size) at += (size_t)sprintf(text + at, "%s", runs[r]);
            check_same(&s, text, at);
        }
        splitter_free(&s);
    }
    free(text);
}

// A safe cut is a border of words of the whole text.
TEST(scan_safe_cuts) {
    static char text[30000];
    bool *known = assigned();
    struct err err = {0};
    draw_key = random_key(7, "cuts");
    size_t cuts = 0;
    for (int i = 0; i < 400; i++) {
        size_t size = random_text(text, 9000, 2000, known);
        for (int scanner = SCAN_GPT2; scanner <= SCAN_SMOLLM2; scanner++) {
            struct scan_window whole = {0};
            bool *border = calloc(size + 1, 1);
            for (size_t at = 0; at < size; at += whole.used) {
                CHECK_OK(pretokenize_scan((enum pretokenize_scanner)scanner,
                                          (unsigned char *)text + at, size - at, &whole, &err),
                         err);
                for (size_t k = 0; k < whole.count; k++) border[at + whole.starts[k]] = true;
            }
            for (int t = 0; t < 20; t++) {
                size_t cut =
                    pretokenize_safe_cut((unsigned char *)text, size, draw((uint32_t)size));
                CHECK(cut < size && (cut == 0 || border[cut]));
                cuts += cut > 0;
            }
            free(border);
            scan_window_free(&whole);
        }
    }
    CHECK(cuts > 1000);
    free(known);
}

TEST(scan_ascii_versions) {
    unsigned char text[64 * 16];
    uint64_t expected[7][16], found[7][16];
    draw_key = random_key(3, "ascii");
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = round < 100 ? (unsigned char)draw(256)
                                  : (unsigned char)" \n\r\tazAZ09'.@[`{/:"[draw(18)];
        struct ascii_masks a = {expected[0], expected[1], expected[2], expected[3],
                                expected[4], expected[5], expected[6]};
        struct ascii_masks b = {found[0], found[1], found[2], found[3],
                                found[4], found[5], found[6]};
        CHECK_EQ_INT(pretokenize_ascii_version(0, text, 16, &a), 0);
        for (int version = 1; version <= 2; version++)
            if (pretokenize_ascii_version(version, text, 16, &b) == 0)
                CHECK_BYTES(found, expected, sizeof expected);
    }
}

TEST(scan_counts_invalid_bytes) {
    struct err err = {0};
    struct scan_window window = {0};
    static const char text[] = "ok \x80\xFF caf\xC3\xA9 \xE6\xBC cut \xED\xA0\x80 end\xC3";
    CHECK_OK(
        pretokenize_scan(SCAN_LLAMA3, (const unsigned char *)text, sizeof text - 1, &window, &err),
        err);
    CHECK_EQ_INT(window.used, sizeof text - 1);
    CHECK_EQ_INT(window.invalid_bytes, 8);
    scan_window_free(&window);
}

TEST(pattern_rewrites_and_refusals) {
    struct err err = {0};
    struct pretokenize_matcher *matcher = pretokenize_matcher_new(&err);
    struct pretokenize_pattern *pattern = pretokenize_pattern_new("\\s", "where", &err);
    size_t begin, end;
    CHECK(pattern && matcher);
    CHECK_EQ_INT(pretokenize_match(pattern, matcher, (const unsigned char *)"\xE1\xA0\x8E", 3, 0,
                                   &begin, &end, &err),
                 0);
    CHECK_EQ_INT(pretokenize_match(pattern, matcher, (const unsigned char *)"a\xC2\x85", 3, 0,
                                   &begin, &end, &err),
                 1);
    CHECK_EQ_INT(begin, 1);
    pretokenize_pattern_free(pattern);
    pretokenize_matcher_free(matcher);
    CHECK(!pretokenize_pattern_new("(unclosed", "where", &err));
    CHECK_CONTAINS(err.text, "where: the pattern does not compile");
    err = (struct err){0};
    CHECK(!pretokenize_pattern_new("a\\b", "where", &err));
    CHECK_CONTAINS(err.text, "\\b is not supported");
}
