// Loading a tiktoken rank file: lines "base64 rank", where the rank is both the id and the priority
// of merging. The file names neither its pattern nor its special tokens; both follow from the
// number of ranks for the published vocabularies, and a tokenizer_config.json beside it may name
// further special tokens.
#include "base/log.h"
#include "data/tokenizer_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Bytes decoded into `out`, or -1.
static int decode_base64(const char *text, size_t length, struct text *out) {
    out->size = 0;
    if (length == 0 || length % 4 != 0) return -1;
    for (size_t i = 0; i < length; i += 4) {
        int pad =
            i + 4 == length ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = k + (size_t)pad >= 4 ? 0 : base64_value(text[i + k]);
            if (value < 0) return -1;
            bits = bits << 6 | (uint32_t)value;
        }
        const char bytes[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        if (text_put(out, bytes, (size_t)(3 - pad)) != 0) return -1;
    }
    return 0;
}

static int read_line(struct tokenizer *tok, const char *line, size_t length, size_t number,
                     const char *path, struct text *bytes, struct err *err) {
    const char *space = memchr(line, ' ', length);
    char *end = NULL;
    char digits[16] = {0};
    size_t digit_count = space ? length - (size_t)(space - line) - 1 : 0;
    if (digit_count > 0 && digit_count < sizeof digits) memcpy(digits, space + 1, digit_count);
    unsigned long rank = strtoul(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end != 0 ||
        decode_base64(line, (size_t)(space - line), bytes) != 0)
        return err_set(err, ERR_DATA, "%s:%zu: expected \"base64 rank\"", path, number);
    if (rank >= TOKENIZER_MAX_IDS)
        return err_set(err, ERR_DATA, "%s:%zu: the rank %lu is out of range", path, number, rank);
    return tokenizer_set_token(tok, (uint32_t)rank, bytes->data, bytes->size, TOKENIZER_NORMAL,
                               true, path, err);
}

static int add_special(struct tokenizer *tok, uint32_t id, const char *content, const char *path,
                       struct err *err) {
    struct added_token token = {.content = (char *)(uintptr_t)content, .id = id, .special = true};
    return tokenizer_add_added(tok, &token, path, err);
}

static int add_llama3_specials(struct tokenizer *tok, uint32_t base, const char *path,
                               struct err *err) {
    static const struct {
        uint32_t offset;
        const char *name;
    } named[] = {{0, "<|begin_of_text|>"},
                 {1, "<|end_of_text|>"},
                 {6, "<|start_header_id|>"},
                 {7, "<|end_header_id|>"},
                 {9, "<|eot_id|>"}};
    int reserved = 0;
    for (uint32_t i = 0; i < 256; i++) {
        char name[40];
        snprintf(name, sizeof name, "<|reserved_special_token_%d|>", reserved);
        const char *content = name;
        for (size_t k = 0; k < sizeof named / sizeof *named; k++)
            if (named[k].offset == i) content = named[k].name;
        reserved += content == name;
        if (add_special(tok, base + i, content, path, err) != 0) return -1;
    }
    tok->bos = (int32_t)base;
    tok->eos = (int32_t)base + 1;
    tok->add_bos = true;
    return 0;
}

static const char o200k_pattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'"
    "s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:"
    "'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static int add_pattern(struct tokenizer *tok, const char *pattern, const char *path,
                       struct err *err) {
    struct split_step *step = tokenizer_add_split(tok, err);
    if (!step) return -1;
    step->kind = SPLIT_PATTERN;
    step->behavior = SPLIT_ISOLATED;
    step->text = strdup(pattern);
    step->pattern = pretokenize_pattern_new(pattern, path, err);
    return step->text && step->pattern ? 0 : -1;
}

static int add_rules(struct tokenizer *tok, const char *path, struct err *err) {
    static const struct {
        uint32_t size;
        enum pretokenize_scanner scanner;
        struct {
            uint32_t id;
            const char *name;
        } special[5];
    } known[] = {
        {50256, SCAN_GPT2, {{50256, "<|endoftext|>"}}},
        {100256,
         SCAN_LLAMA3,
         {{100257, "<|endoftext|>"},
          {100258, "<|fim_prefix|>"},
          {100259, "<|fim_middle|>"},
          {100260, "<|fim_suffix|>"},
          {100276, "<|endofprompt|>"}}},
        {151643,
         SCAN_QWEN2,
         {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}},
        {199998, SCAN_NONE, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
    };
    uint32_t ranks = tok->vocab_size;
    if (ranks == 128000) {
        if (add_llama3_specials(tok, ranks, path, err) != 0) return -1;
        return tokenizer_add_scanner(tok, SCAN_LLAMA3, err);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].size != ranks) continue;
        for (size_t k = 0; k < 5 && known[i].special[k].name; k++)
            if (add_special(tok, known[i].special[k].id, known[i].special[k].name, path, err) != 0)
                return -1;
        tok->eos = (int32_t)known[i].special[0].id;
        return known[i].scanner == SCAN_NONE ? add_pattern(tok, o200k_pattern, path, err)
                                             : tokenizer_add_scanner(tok, known[i].scanner, err);
    }
    log_line(
        LOG_WARN,
        "%s: %u ranks are none of the published tiktoken vocabularies; splitting as Llama 3 does",
        path, ranks);
    return tokenizer_add_scanner(tok, SCAN_LLAMA3, err);
}

struct tokenizer *tokenizer_load_tiktoken(const char *path, const char *text, size_t size,
                                          struct err *err) {
    struct tokenizer *tok = tokenizer_new(TOKENIZER_BYTE_LEVEL, err);
    struct text bytes = {0};
    int failed = !tok;
    size_t number = 1;
    for (size_t at = 0; at < size && !failed; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        size_t line = length > 0 && text[at + length - 1] == '\r' ? length - 1 : length;
        if (line > 0) failed = read_line(tok, text + at, line, number, path, &bytes, err);
        at += length + 1;
    }
    text_free(&bytes);
    if (!failed) {
        tok->ignore_merges = true; // a word that has a rank is looked up before any merging
        failed = tokenizer_merges_from_ranks(tok, err) != 0 || add_rules(tok, path, err) != 0;
    }
    if (!failed) return tok;
    tokenizer_free(tok);
    return NULL;
}
