// Byte-pair merging of one word: of all neighbouring pairs the one of lowest rank is merged, the
// leftmost among equals, until none is left. Short words search a small array; long ones keep a
// heap over a linked list, so that a word of n symbols costs O(n log n).
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

#define SHORT_SYMBOLS 48u

void bpe_space_free(struct bpe_space *space) {
    free(space->symbols);
    free(space->next);
    free(space->previous);
    free(space->rank);
    free(space->heap);
    memset(space, 0, sizeof *space);
}

int bpe_space_reserve(struct bpe_space *space, size_t symbols, struct err *err) {
    if (symbols <= space->capacity) return 0;
    if (symbols >= UINT32_MAX)
        return err_set(err, ERR_DATA, "a word of %zu symbols is too long", symbols);
    size_t capacity = symbols < 256 ? 256 : symbols + symbols / 2;
    bpe_space_free(space);
    space->symbols = malloc(capacity * sizeof(uint32_t));
    space->next = malloc(capacity * sizeof(uint32_t));
    space->previous = malloc(capacity * sizeof(uint32_t));
    space->rank = malloc(capacity * sizeof(uint32_t));
    space->heap =
        malloc(capacity * 3 * sizeof(uint64_t)); // n - 1 pairs at first, two more after each merge
    if (!space->symbols || !space->next || !space->previous || !space->rank || !space->heap)
        return err_set(err, ERR_MEMORY, "no memory to merge a word of %zu symbols", symbols);
    space->capacity = capacity;
    return 0;
}

static uint32_t rank_of(const struct tokenizer *tok, uint32_t left, uint32_t right) {
    const struct pair_slot *slot = pair_table_get(&tok->pairs, left, right);
    return slot ? slot->rank : UINT32_MAX;
}

static size_t merge_short(const struct tokenizer *tok, uint32_t *symbols, size_t count) {
    uint32_t rank[SHORT_SYMBOLS];
    for (size_t i = 0; i + 1 < count; i++) rank[i] = rank_of(tok, symbols[i], symbols[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        symbols[best] = pair_table_get(&tok->pairs, symbols[best], symbols[best + 1])->result;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 2) * sizeof *symbols);
        memmove(rank + best, rank + best + 1, (count - best - 2) * sizeof *rank);
        count--;
        if (best + 1 < count) rank[best] = rank_of(tok, symbols[best], symbols[best + 1]);
        if (best > 0) rank[best - 1] = rank_of(tok, symbols[best - 1], symbols[best]);
    }
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t i) {
    uint64_t value = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t value) {
    size_t i = (*count)++;
    while (i > 0 && heap[(i - 1) / 2] > value) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = value;
}

// The rank of the pair that begins at symbol `i`; a pair that can be merged goes into the heap.
static void renew(const struct tokenizer *tok, struct bpe_space *s, size_t *heap_count,
                  uint32_t i) {
    uint32_t next = s->next[i];
    s->rank[i] = next == UINT32_MAX ? UINT32_MAX : rank_of(tok, s->symbols[i], s->symbols[next]);
    if (s->rank[i] != UINT32_MAX) heap_push(s->heap, heap_count, (uint64_t)s->rank[i] << 32 | i);
}

static size_t merge_long(const struct tokenizer *tok, struct bpe_space *s, size_t count) {
    size_t heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->next[i] = i + 1 < count ? i + 1 : UINT32_MAX;
        s->previous[i] = i ? i - 1 : UINT32_MAX;
        s->rank[i] = i + 1 < count ? rank_of(tok, s->symbols[i], s->symbols[i + 1]) : UINT32_MAX;
        if (s->rank[i] != UINT32_MAX) s->heap[heap_count++] = (uint64_t)s->rank[i] << 32 | i;
    }
    for (size_t i = heap_count / 2; i-- > 0;) sift_down(s->heap, heap_count, i);
    while (heap_count) {
        uint64_t top = s->heap[0];
        s->heap[0] = s->heap[--heap_count];
        if (heap_count) sift_down(s->heap, heap_count, 0);
        uint32_t i = (uint32_t)top;
        if (s->rank[i] != (uint32_t)(top >> 32)) continue; // the pair is no longer there
        uint32_t gone = s->next[i], after = s->next[gone];
        s->symbols[i] = pair_table_get(&tok->pairs, s->symbols[i], s->symbols[gone])->result;
        s->rank[gone] = UINT32_MAX;
        s->next[i] = after;
        if (after != UINT32_MAX) s->previous[after] = i;
        renew(tok, s, &heap_count, i);
        if (s->previous[i] != UINT32_MAX) renew(tok, s, &heap_count, s->previous[i]);
    }
    size_t left = 0;
    for (uint32_t i = 0; i != UINT32_MAX; i = s->next[i]) s->symbols[left++] = s->symbols[i];
    return left;
}

size_t bpe_merge(const struct tokenizer *tok, struct bpe_space *space, size_t count) {
    if (count < 2) return count;
    return count <= SHORT_SYMBOLS ? merge_short(tok, space->symbols, count)
                                  : merge_long(tok, space, count);
}

// Symbols of a word over characters: a character that is no token becomes its bytes, or the unknown
// token, or nothing.
static size_t character_symbols(const struct tokenizer *tok, struct bpe_space *s,
                                const unsigned char *word, size_t length) {
    size_t count = 0;
    bool unknown = false; // one is waiting, so that neighbours can be fused with it
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        int valid = text_utf8_decode(word + i, length - i, &code_point);
        size_t bytes = valid ? (size_t)valid : 1;
        uint32_t id = vocab_table_get(tok, (const char *)word + i, bytes);
        if (id != TOKENIZER_NONE) {
            if (unknown) s->symbols[count++] = (uint32_t)tok->unk;
            unknown = false;
            s->symbols[count++] = id;
        } else {
            bool all = tok->byte_fallback;
            for (size_t k = 0; k < bytes && all; k++)
                all = tok->byte_ids[word[i + k]] != TOKENIZER_NONE;
            if (all) {
                for (size_t k = 0; k < bytes; k++) s->symbols[count++] = tok->byte_ids[word[i + k]];
            } else if (tok->unk >= 0) {
                if (unknown && !tok->fuse_unk) s->symbols[count++] = (uint32_t)tok->unk;
                unknown = true;
            }
        }
        i += bytes;
    }
    if (unknown) s->symbols[count++] = (uint32_t)tok->unk;
    return count;
}

static size_t byte_symbols(const struct tokenizer *tok, struct bpe_space *s,
                           const unsigned char *word, size_t length) {
    size_t count = 0;
    bool unknown = false;
    for (size_t i = 0; i < length; i++) {
        uint32_t id = tok->byte_ids[word[i]];
        if (id != TOKENIZER_NONE) {
            if (unknown) s->symbols[count++] = (uint32_t)tok->unk;
            unknown = false;
            s->symbols[count++] = id;
        } else if (tok->unk >= 0) {
            if (unknown && !tok->fuse_unk) s->symbols[count++] = (uint32_t)tok->unk;
            unknown = true;
        }
    }
    if (unknown) s->symbols[count++] = (uint32_t)tok->unk;
    return count;
}

int bpe_word(const struct tokenizer *tok, struct bpe_space *space, const unsigned char *word,
             size_t length, struct token_list *out, struct err *err) {
    if (tok->ignore_merges) {
        uint32_t whole = vocab_table_get(tok, (const char *)word, length);
        if (whole != TOKENIZER_NONE)
            return token_list_put(out, whole) == 0
                       ? 0
                       : err_set(err, ERR_MEMORY, "no memory for token ids");
    }
    if (bpe_space_reserve(space, length, err) != 0) return -1;
    size_t count = tok->kind == TOKENIZER_BYTE_LEVEL ? byte_symbols(tok, space, word, length)
                                                     : character_symbols(tok, space, word, length);
    count = bpe_merge(tok, space, count);
    if (token_list_reserve(out, count) != 0)
        return err_set(err, ERR_MEMORY, "no memory for token ids");
    memcpy(out->ids + out->count, space->symbols, count * sizeof(uint32_t));
    out->count += count;
    return 0;
}
