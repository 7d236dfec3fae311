// Counting words: each thread has a table of its own over its share of the texts, and the tables
// are added at the end.
#include "data/tokenizer_count.h"
#include "base/hash.h"
#include "data/tokenizer_parts.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define SHARE_BYTES ((size_t)1 << 20)

void word_counts_free(struct word_counts *words) {
    free(words->bytes);
    free(words->offsets);
    free(words->lengths);
    free(words->counts);
    free(words->table);
    memset(words, 0, sizeof *words);
}

static size_t find(const struct word_counts *w, const unsigned char *word, size_t length) {
    size_t i = hash_bytes(word, length) & w->table_mask;
    for (; w->table[i]; i = (i + 1) & w->table_mask) {
        uint32_t k = w->table[i] - 1;
        if (w->lengths[k] == length && memcmp(w->bytes + w->offsets[k], word, length) == 0) break;
    }
    return i;
}

static int grow(struct word_counts *w) {
    size_t capacity = w->capacity ? w->capacity * 2 : 4096;
    uint64_t *offsets = realloc(w->offsets, capacity * sizeof *offsets);
    if (offsets) w->offsets = offsets;
    uint32_t *lengths = realloc(w->lengths, capacity * sizeof *lengths);
    if (lengths) w->lengths = lengths;
    uint64_t *counts = realloc(w->counts, capacity * sizeof *counts);
    if (counts) w->counts = counts;
    uint32_t *table = calloc(capacity * 2, sizeof *table);
    if (!offsets || !lengths || !counts || !table) {
        free(table);
        return -1;
    }
    free(w->table);
    w->table = table;
    w->table_mask = capacity * 2 - 1;
    w->capacity = capacity;
    for (size_t k = 0; k < w->count; k++)
        table[find(w, w->bytes + w->offsets[k], w->lengths[k])] = (uint32_t)k + 1;
    return 0;
}

static int count_word(struct word_counts *w, const unsigned char *word, size_t length,
                      uint64_t times) {
    if (length > UINT32_MAX || w->count >= UINT32_MAX - 1) return -1;
    if (w->count == w->capacity && grow(w) != 0) return -1;
    size_t slot = find(w, word, length);
    if (w->table[slot]) {
        w->counts[w->table[slot] - 1] += times;
        return 0;
    }
    if (w->byte_count + length > w->byte_capacity) {
        size_t capacity = (w->byte_capacity + length) * 2;
        unsigned char *bytes = realloc(w->bytes, capacity);
        if (!bytes) return -1;
        w->bytes = bytes;
        w->byte_capacity = capacity;
    }
    memcpy(w->bytes + w->byte_count, word, length);
    w->offsets[w->count] = w->byte_count;
    w->lengths[w->count] = (uint32_t)length;
    w->counts[w->count] = times;
    w->byte_count += length;
    w->table[slot] = (uint32_t)++w->count;
    return 0;
}

struct stretch { // between special tokens, at most about SHARE_BYTES
    const char *bytes;
    size_t size;
};
struct stretches {
    struct stretch *at;
    size_t count, capacity;
};

static int put(struct stretches *list, const char *bytes, size_t size) {
    if (size == 0) return 0;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        struct stretch *grown = realloc(list->at, capacity * sizeof *grown);
        if (!grown) return -1;
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->count++] = (struct stretch){bytes, size};
    return 0;
}

static int put_cut(struct stretches *list, const char *bytes, size_t size) {
    while (size > SHARE_BYTES) {
        size_t cut = pretokenize_safe_cut((const unsigned char *)bytes, size, SHARE_BYTES);
        if (cut == 0) break;
        if (put(list, bytes, cut) != 0) return -1;
        bytes += cut, size -= cut;
    }
    return put(list, bytes, size);
}

static int cut_texts(struct stretches *list, const struct tokenizer *tok,
                     const struct tokenizer_train_text *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const unsigned char *text = (const unsigned char *)texts[i].bytes;
        size_t done = 0, position = 0;
        struct added_match match;
        while (added_next(tok, &tok->raw_matcher, text, texts[i].size, true, done, &position,
                          &match)) {
            if (put_cut(list, texts[i].bytes + done, match.begin - done) != 0) return -1;
            done = match.end;
        }
        if (put_cut(list, texts[i].bytes + done, texts[i].size - done) != 0) return -1;
    }
    return 0;
}

struct counter { // of one thread
    struct word_counts words;
    struct split_pieces pieces;
    struct text normal;
    struct err err;
    int failed;
};

static int count_stretch(struct counter *c, const struct tokenizer *tok, struct stretch stretch) {
    const unsigned char *text = (const unsigned char *)stretch.bytes;
    size_t size = stretch.size;
    if (tok->normal_count > 0) {
        if (tokenizer_normalize(tok, stretch.bytes, size, false, &c->normal, &c->err) != 0)
            return -1;
        text = (const unsigned char *)c->normal.data;
        size = c->normal.size;
    }
    if (tokenizer_split_text(tok, text, size, false, &c->pieces, &c->err) != 0) return -1;
    for (size_t i = 0; i < c->pieces.list.count; i++) {
        struct split_piece piece = c->pieces.list.at[i];
        if (count_word(&c->words, c->pieces.base + piece.begin, piece.end - piece.begin, 1) != 0)
            return err_set(&c->err, ERR_MEMORY, "no memory to count words");
    }
    return 0;
}

int word_counts_gather(struct word_counts *words, const struct tokenizer *tok,
                       const struct tokenizer_train_text *texts, size_t text_count, int threads,
                       struct err *err) {
    if (threads <= 0) threads = omp_get_max_threads();
    struct stretches list = {0};
    struct counter *counters = calloc((size_t)threads, sizeof *counters);
    int failed = !counters || cut_texts(&list, tok, texts, text_count) != 0
                     ? err_set(err, ERR_MEMORY, "no memory to count words")
                     : 0;
    if (!failed) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
        for (int t = 0; t < threads; t++)
            for (size_t i = (size_t)t; i < list.count && !counters[t].failed; i += (size_t)threads)
                counters[t].failed = count_stretch(&counters[t], tok, list.at[i]);
    }
    for (int t = 0; t < threads && counters; t++) {
        struct counter *c = &counters[t];
        if (!failed && c->failed) failed = err_set(err, c->err.kind, "%s", c->err.text);
        for (size_t k = 0; k < c->words.count && !failed; k++)
            if (count_word(words, c->words.bytes + c->words.offsets[k], c->words.lengths[k],
                           c->words.counts[k]) != 0)
                failed = err_set(err, ERR_MEMORY, "no memory to count words");
        word_counts_free(&c->words);
        split_pieces_free(&c->pieces);
        text_free(&c->normal);
    }
    free(counters);
    free(list.at);
    return failed;
}
