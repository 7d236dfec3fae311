// Splitting by the steps of a tokenizer.json: each step cuts every piece that the one before left.
// Only a few steps change the text (a space in front, space marks); then the pieces point into a
// copy.
#include "data/tokenizer_parts.h"
#include "data/unicode_class.h"
#include <stdlib.h>
#include <string.h>

void split_pieces_free(struct split_pieces *pieces) {
    free(pieces->list.at);
    free(pieces->made.at);
    free(pieces->raw.at);
    text_free(&pieces->text);
    text_free(&pieces->made_text);
    scan_window_free(&pieces->window);
    pretokenize_matcher_free(pieces->matcher);
    memset(pieces, 0, sizeof *pieces);
}

static int put(struct split_list *list, size_t begin, size_t end, bool match) {
    if (begin == end) return 0;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        struct split_piece *grown = realloc(list->at, capacity * sizeof *grown);
        if (!grown) return -1;
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->count++] = (struct split_piece){begin, end, match};
    return 0;
}

static int find_scanned(const struct split_step *step, struct split_pieces *p,
                        struct split_piece piece, struct err *err) {
    for (size_t at = piece.begin; at < piece.end; at += p->window.used) {
        if (pretokenize_scan(step->scanner, p->base + at, piece.end - at, &p->window, err) != 0)
            return -1;
        p->invalid_bytes += p->window.invalid_bytes;
        for (size_t k = 0; k < p->window.count; k++)
            if (put(&p->raw, at + p->window.starts[k], at + p->window.starts[k + 1], true) != 0)
                return -1;
    }
    return 0;
}

static int find_pattern(const struct split_step *step, struct split_pieces *p,
                        struct split_piece piece, struct err *err) {
    if (!p->matcher && !(p->matcher = pretokenize_matcher_new(err))) return -1;
    const unsigned char *text = p->base + piece.begin;
    size_t size = piece.end - piece.begin, done = 0, begin, end;
    for (;;) {
        int found =
            pretokenize_match(step->pattern, p->matcher, text, size, done, &begin, &end, err);
        if (found < 0) return -1;
        if (!found) break;
        if (put(&p->raw, piece.begin + done, piece.begin + begin, false) != 0 ||
            put(&p->raw, piece.begin + begin, piece.begin + end, true) != 0)
            return -1;
        done = end;
    }
    return put(&p->raw, piece.begin + done, piece.end, false);
}

static int find_string(const char *string, struct split_pieces *p, struct split_piece piece) {
    size_t length = strlen(string), done = piece.begin;
    const unsigned char *found;
    while ((found = memmem(p->base + done, piece.end - done, string, length))) {
        size_t begin = (size_t)(found - p->base);
        if (put(&p->raw, done, begin, false) != 0 || put(&p->raw, begin, begin + length, true) != 0)
            return -1;
        done = begin + length;
    }
    return put(&p->raw, done, piece.end, false);
}

static int find_digits(struct split_pieces *p, struct split_piece piece) {
    const uint8_t *table = unicode_class_table();
    size_t done = piece.begin;
    for (size_t i = piece.begin; i < piece.end;) {
        uint32_t code_point;
        int length = text_utf8_decode(p->base + i, piece.end - i, &code_point);
        size_t next = i + (length ? (size_t)length : 1);
        if (length && unicode_class_of(table, code_point) == UNICODE_NUMBER) {
            if (put(&p->raw, done, i, false) != 0 || put(&p->raw, i, next, true) != 0) return -1;
            done = next;
        }
        i = next;
    }
    return put(&p->raw, done, piece.end, false);
}

// Joins the matched and unmatched ranges of one piece as the behaviour says, from `raw` into
// `made`.
static int behave(enum split_behavior behavior, struct split_pieces *p) {
    struct split_piece *raw = p->raw.at;
    size_t count = p->raw.count, first = p->made.count;
    for (size_t i = 0; i < count; i++) {
        bool join = false;
        if (behavior == SPLIT_REMOVED && raw[i].match) continue;
        if (behavior == SPLIT_CONTIGUOUS) join = i > 0 && raw[i].match == raw[i - 1].match;
        if (behavior == SPLIT_WITH_PREVIOUS)
            join = p->made.count > first && raw[i].match && !(i > 0 && raw[i - 1].match);
        if (join)
            p->made.at[p->made.count - 1].end = raw[i].end;
        else if (behavior == SPLIT_WITH_NEXT && raw[i].match && i + 1 < count &&
                 !raw[i + 1].match) {
            if (put(&p->made, raw[i].begin, raw[i + 1].end, false) != 0) return -1;
            i++;
        } else if (put(&p->made, raw[i].begin, raw[i].end, false) != 0)
            return -1;
    }
    return 0;
}

static int cut_piece(const struct split_step *step, struct split_pieces *p,
                     struct split_piece piece, struct err *err) {
    int failed = 0;
    p->raw.count = 0;
    switch (step->kind) {
    case SPLIT_SCANNER:
        failed = find_scanned(step, p, piece, err);
        break;
    case SPLIT_PATTERN:
        failed = find_pattern(step, p, piece, err);
        break;
    case SPLIT_STRING:
    case SPLIT_METASPACE:
        failed = find_string(step->text, p, piece);
        break;
    case SPLIT_DIGITS:
        failed = find_digits(p, piece);
        break;
    case SPLIT_PREFIX_SPACE:
        failed = put(&p->raw, piece.begin, piece.end, false);
        break;
    }
    if (failed) return -1;
    if (step->invert)
        for (size_t i = 0; i < p->raw.count; i++) p->raw.at[i].match = !p->raw.at[i].match;
    return behave(step->behavior, p);
}

// Steps that put something in front of pieces or replace spaces: the pieces are written anew.
static int rewrite(const struct split_step *step, struct split_pieces *p, bool first) {
    p->made_text.size = 0;
    const char *mark = step->kind == SPLIT_METASPACE ? step->text : " ";
    size_t mark_length = strlen(mark);
    for (size_t i = 0; i < p->list.count; i++) {
        struct split_piece *piece = &p->list.at[i];
        size_t begin = p->made_text.size, size = piece->end - piece->begin;
        const unsigned char *from = p->base + piece->begin;
        bool has = (size >= mark_length && memcmp(from, mark, mark_length) == 0) || from[0] == ' ';
        bool wanted =
            step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first && i == 0);
        if (wanted && !has && text_put(&p->made_text, mark, mark_length) != 0) return -1;
        for (size_t k = 0; k < size;) {
            if (from[k] == ' ') {
                if (text_put(&p->made_text, mark, mark_length) != 0) return -1;
                k++;
                continue;
            }
            const unsigned char *space = memchr(from + k, ' ', size - k);
            size_t run = space ? (size_t)(space - from) - k : size - k;
            if (text_put(&p->made_text, from + k, run) != 0) return -1;
            k += run;
        }
        *piece = (struct split_piece){begin, p->made_text.size, false};
    }
    struct text swap = p->text;
    p->text = p->made_text;
    p->made_text = swap;
    p->base = (const unsigned char *)p->text.data;
    return 0;
}

int tokenizer_split_text(const struct tokenizer *tok, const unsigned char *text, size_t size,
                         bool first, struct split_pieces *p, struct err *err) {
    p->base = text;
    p->list.count = 0;
    p->invalid_bytes = 0;
    int failed = put(&p->list, 0, size, false);
    for (size_t s = 0; s < tok->split_count && !failed && p->list.count > 0; s++) {
        const struct split_step *step = &tok->splits[s];
        if (step->kind == SPLIT_METASPACE || step->kind == SPLIT_PREFIX_SPACE)
            failed = rewrite(step, p, first);
        if (step->kind == SPLIT_PREFIX_SPACE || (step->kind == SPLIT_METASPACE && !step->split))
            continue;
        p->made.count = 0;
        for (size_t i = 0; i < p->list.count && !failed; i++)
            failed = cut_piece(step, p, p->list.at[i], err);
        struct split_list swap = p->list;
        p->list = p->made;
        p->made = swap;
    }
    return failed ? err_set(err, ERR_MEMORY, "no memory to split %zu bytes", size) : 0;
}
