// Finding added tokens in a text: the longest at the leftmost place, then the rules of their flags.
// A special token that may not be parsed still takes its place in the search, as in the reference:
// a shorter token inside it is not found.
#include "data/tokenizer_parts.h"
#include "data/unicode_class.h"
#include <stdlib.h>
#include <string.h>

static const char *needle(const struct added_token *token, bool normalized, size_t *length) {
    *length = normalized ? token->normal_length : token->content_length;
    return normalized ? token->normal : token->content;
}

static int compare(const void *a, const void *b, void *context) {
    const struct tokenizer *tok = context;
    const struct added_token *x = &tok->added[*(const uint32_t *)a],
                             *y = &tok->added[*(const uint32_t *)b];
    size_t x_length, y_length;
    const char *x_text = needle(x, x->normalized, &x_length),
               *y_text = needle(y, y->normalized, &y_length);
    unsigned char x_first = (unsigned char)*x_text, y_first = (unsigned char)*y_text;
    if (x_first != y_first) return x_first < y_first ? -1 : 1;
    if (x_length != y_length) return x_length > y_length ? -1 : 1;
    return memcmp(x_text, y_text, x_length);
}

int added_matcher_build(struct added_matcher *matcher, const struct tokenizer *tok, bool normalized,
                        struct err *err) {
    matcher->order = malloc((tok->added_count + 1) * sizeof *matcher->order);
    if (!matcher->order)
        return err_set(err, ERR_MEMORY, "no memory for %zu added tokens", tok->added_count);
    matcher->count = matcher->plain_count = 0;
    matcher->blind_cuts = true;
    for (size_t i = 0; i < tok->added_count; i++) {
        const struct added_token *token = &tok->added[i];
        size_t length;
        const char *text = needle(token, normalized, &length);
        if (token->normalized != normalized || length == 0) continue;
        matcher->order[matcher->count++] = (uint32_t)i;
        matcher->plain_count += !token->special;
        if (token->rstrip || token->single_word || memchr(text, ' ', length) ||
            strstr(text, "\xE2\x96\x81"))
            matcher->blind_cuts = false;
    }
    qsort_r(matcher->order, matcher->count, sizeof *matcher->order, compare,
            (void *)(uintptr_t)tok);
    size_t at = 0;
    for (int byte = 0; byte <= 256; byte++) {
        size_t length;
        while (at < matcher->count &&
               (unsigned char)*needle(&tok->added[matcher->order[at]], normalized, &length) < byte)
            at++;
        matcher->first[byte] = (uint32_t)at;
    }
    return 0;
}

void added_matcher_free(struct added_matcher *matcher) {
    free(matcher->order);
}

static bool word_before(const unsigned char *text, size_t end) {
    size_t begin = end;
    uint32_t code_point;
    while (begin > 0 && end - begin < 4) {
        begin--;
        if (text_utf8_decode(text + begin, end - begin, &code_point) == (int)(end - begin))
            return unicode_is_word(code_point);
    }
    return false;
}

static bool word_at(const unsigned char *text, size_t size, size_t begin) {
    uint32_t code_point;
    return begin < size && text_utf8_decode(text + begin, size - begin, &code_point) &&
           unicode_is_word(code_point);
}

static size_t skip_space(const unsigned char *text, size_t size, size_t at) {
    uint32_t code_point;
    int length;
    while (at < size && (length = text_utf8_decode(text + at, size - at, &code_point)) &&
           unicode_class_of(unicode_class_table(), code_point) == UNICODE_SPACE)
        at += (size_t)length;
    return at;
}

static size_t skip_space_back(const unsigned char *text, size_t from, size_t at) {
    for (;;) {
        size_t begin = at;
        uint32_t code_point;
        int length = 0;
        while (begin > from && at - begin < 4 && length == 0) {
            begin--;
            length = text_utf8_decode(text + begin, at - begin, &code_point);
            if (length != (int)(at - begin)) length = 0;
        }
        if (length == 0 || unicode_class_of(unicode_class_table(), code_point) != UNICODE_SPACE)
            return at;
        at = begin;
    }
}

// The longest token whose text stands at `at`.
static const struct added_token *longest_at(const struct tokenizer *tok,
                                            const struct added_matcher *matcher,
                                            const unsigned char *text, size_t size, size_t at,
                                            size_t *length) {
    unsigned char first = text[at];
    for (uint32_t i = matcher->first[first]; i < matcher->first[first + 1]; i++) {
        const struct added_token *token = &tok->added[matcher->order[i]];
        const char *found = needle(token, token->normalized, length);
        if (*length <= size - at && memcmp(found, text + at, *length) == 0) return token;
    }
    return NULL;
}

bool added_next(const struct tokenizer *tok, const struct added_matcher *matcher,
                const unsigned char *text, size_t size, bool parse_special, size_t from,
                size_t *position, struct added_match *match) {
    if (matcher->count == 0 || (!parse_special && matcher->plain_count == 0)) return false;
    // With a single first byte in use the search is memchr's.
    size_t ignored;
    const struct added_token *any = &tok->added[matcher->order[0]];
    unsigned char only = (unsigned char)*needle(any, any->normalized, &ignored);
    bool single = matcher->first[only + 1] - matcher->first[only] == matcher->count;
    for (size_t at = *position; at < size; at++) {
        if (single) {
            const unsigned char *found = memchr(text + at, only, size - at);
            if (!found) break;
            at = (size_t)(found - text);
        } else if (matcher->first[text[at]] == matcher->first[text[at] + 1]) {
            continue;
        }
        size_t length;
        const struct added_token *token = longest_at(tok, matcher, text, size, at, &length);
        if (!token) continue;
        size_t begin = at, end = at + length;
        at = end - 1;
        if (token->special && !parse_special) continue;
        if (token->single_word && (word_before(text, begin) || word_at(text, size, end))) continue;
        if (token->lstrip) begin = skip_space_back(text, from, begin);
        if (token->rstrip) end = skip_space(text, size, end);
        *match = (struct added_match){begin, end, token};
        *position = end;
        return true;
    }
    *position = size;
    return false;
}
