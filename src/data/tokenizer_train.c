// Learning the merges of a byte-level BPE. The distinct words with their counts (tokenizer_count.c)
// lie in one array of symbols; each pair of neighbours keeps its count and the places where it
// occurs, so that a merge touches those places only. A heap holds the pairs by count; an entry that
// is no longer true is put back with its present count. Counts are integers and ties are broken by
// bytes, so the result does not depend on the order of words or on the threads.
#include "data/tokenizer_count.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

#define GONE UINT32_MAX

struct pair {
    uint64_t key; // left << 32 | right
    int64_t count;
    uint32_t *places; // first symbols; some may be outdated
    uint32_t place_count, place_capacity;
};

struct heap_entry {
    int64_t count;
    uint32_t pair;
};

struct training {
    struct tokenizer *tok;
    const struct word_counts *words;
    uint32_t *symbols, *next, *previous; // GONE: merged away; no neighbour in the word
    uint32_t *word_of;
    struct pair *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *table; // open addressing: index of a pair + 1
    size_t table_mask;
    struct heap_entry *heap;
    size_t heap_count, heap_capacity;
    uint32_t *touched; // pairs that gained places in the present merge
    size_t touched_count, touched_capacity;
};

static int grow(void *array, size_t *capacity, size_t count, size_t element_bytes) {
    if (count < *capacity) return 0;
    size_t wanted = *capacity ? *capacity * 2 : 1024;
    void *grown = realloc(*(void **)array, wanted * element_bytes);
    if (!grown) return -1;
    *(void **)array = grown;
    *capacity = wanted;
    return 0;
}

static size_t slot_of(const struct training *t, uint64_t key) {
    size_t i = (key * 0x9E3779B97F4A7C15u) >> 20 & t->table_mask;
    while (t->table[i] && t->pairs[t->table[i] - 1].key != key) i = (i + 1) & t->table_mask;
    return i;
}

static int grow_table(struct training *t) {
    size_t size = t->table ? (t->table_mask + 1) * 2 : 1 << 16;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return -1;
    free(t->table);
    t->table = table;
    t->table_mask = size - 1;
    for (size_t p = 0; p < t->pair_count; p++) table[slot_of(t, t->pairs[p].key)] = (uint32_t)p + 1;
    return 0;
}

// The pair of two symbols, made when it is new; NULL when memory is short.
static struct pair *pair_at(struct training *t, uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    if ((!t->table || t->pair_count * 2 > t->table_mask) && grow_table(t) != 0) return NULL;
    size_t slot = slot_of(t, key);
    if (!t->table[slot]) {
        if (grow(&t->pairs, &t->pair_capacity, t->pair_count, sizeof *t->pairs) != 0) return NULL;
        t->pairs[t->pair_count] = (struct pair){key, 0, NULL, 0, 0};
        t->table[slot] = (uint32_t)++t->pair_count;
    }
    return &t->pairs[t->table[slot] - 1];
}

static int add_place(struct training *t, uint32_t left, uint32_t right, uint32_t place,
                     bool touch) {
    struct pair *pair = pair_at(t, left, right);
    if (!pair) return -1;
    size_t capacity = pair->place_capacity;
    if (pair->place_count == capacity) {
        capacity = capacity ? capacity * 2 : 4;
        uint32_t *places = realloc(pair->places, capacity * sizeof *places);
        if (!places) return -1;
        pair->places = places;
        pair->place_capacity = (uint32_t)capacity;
    }
    if (touch) {
        if (grow(&t->touched, &t->touched_capacity, t->touched_count, sizeof *t->touched) != 0)
            return -1;
        t->touched[t->touched_count++] = (uint32_t)(pair - t->pairs);
    }
    pair->places[pair->place_count++] = place;
    pair->count += (int64_t)t->words->counts[t->word_of[place]];
    return 0;
}

static void drop_place(struct training *t, uint32_t left, uint32_t right, uint32_t place) {
    pair_at(t, left, right)->count -= (int64_t)t->words->counts[t->word_of[place]];
}

static int compare_tokens(const struct tokenizer *tok, uint32_t a, uint32_t b) {
    const struct token_info *x = &tok->tokens[a], *y = &tok->tokens[b];
    uint32_t shorter = x->text_length < y->text_length ? x->text_length : y->text_length;
    int order = memcmp(tok->pool.data + x->text_offset, tok->pool.data + y->text_offset, shorter);
    return order ? order : (x->text_length > y->text_length) - (x->text_length < y->text_length);
}

// Is entry `a` to be merged before `b`: the larger count, then the greater bytes.
static bool precedes(const struct training *t, struct heap_entry a, struct heap_entry b) {
    if (a.count != b.count) return a.count > b.count;
    uint64_t x = t->pairs[a.pair].key, y = t->pairs[b.pair].key;
    int order = compare_tokens(t->tok, (uint32_t)(x >> 32), (uint32_t)(y >> 32));
    if (order == 0) order = compare_tokens(t->tok, (uint32_t)x, (uint32_t)y);
    return order > 0;
}

static int heap_push(struct training *t, struct heap_entry entry) {
    if (grow(&t->heap, &t->heap_capacity, t->heap_count, sizeof *t->heap) != 0) return -1;
    size_t i = t->heap_count++;
    for (; i > 0 && precedes(t, entry, t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = entry;
    return 0;
}

static struct heap_entry heap_pop(struct training *t) {
    struct heap_entry top = t->heap[0], last = t->heap[--t->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= t->heap_count) break;
        if (child + 1 < t->heap_count && precedes(t, t->heap[child + 1], t->heap[child])) child++;
        if (!precedes(t, t->heap[child], last)) break;
        t->heap[i] = t->heap[child];
        i = child;
    }
    t->heap[i] = last;
    return top;
}

static int place_words(struct training *t) {
    size_t total = 0;
    for (size_t w = 0; w < t->words->count; w++) total += t->words->lengths[w];
    if (total >= GONE) return -1;
    t->symbols = malloc((total + 1) * sizeof(uint32_t));
    t->next = malloc((total + 1) * sizeof(uint32_t));
    t->previous = malloc((total + 1) * sizeof(uint32_t));
    t->word_of = malloc((total + 1) * sizeof(uint32_t));
    if (!t->symbols || !t->next || !t->previous || !t->word_of) return -1;
    uint32_t at = 0;
    for (size_t w = 0; w < t->words->count; w++) {
        const unsigned char *bytes = t->words->bytes + t->words->offsets[w];
        uint32_t length = t->words->lengths[w];
        for (uint32_t i = 0; i < length; i++, at++) {
            t->symbols[at] = t->tok->byte_ids[bytes[i]];
            t->previous[at] = i ? at - 1 : GONE;
            t->next[at] = i + 1 < length ? at + 1 : GONE;
            t->word_of[at] = (uint32_t)w;
        }
    }
    for (uint32_t i = 0; i < total; i++)
        if (t->next[i] != GONE && add_place(t, t->symbols[i], t->symbols[i + 1], i, false) != 0)
            return -1;
    for (size_t p = 0; p < t->pair_count; p++)
        if (heap_push(t, (struct heap_entry){t->pairs[p].count, (uint32_t)p}) != 0) return -1;
    return 0;
}

static int merge_place(struct training *t, uint32_t i, uint32_t left, uint32_t right,
                       uint32_t made) {
    uint32_t j = t->next[i], before = t->previous[i], after = t->next[j];
    if (before != GONE) drop_place(t, t->symbols[before], left, before);
    if (after != GONE) drop_place(t, right, t->symbols[after], j);
    drop_place(t, left, right, i);
    t->symbols[i] = made;
    t->symbols[j] = GONE;
    t->next[i] = after;
    if (after != GONE) t->previous[after] = i;
    if (before != GONE && add_place(t, t->symbols[before], made, before, true) != 0) return -1;
    return after != GONE ? add_place(t, made, t->symbols[after], i, true) : 0;
}

static int compare_places(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Merges every occurrence of a pair into the token `made`, and queues the pairs that this brought
// about.
static int merge_pair(struct training *t, uint32_t index, uint32_t made) {
    uint32_t left = (uint32_t)(t->pairs[index].key >> 32), right = (uint32_t)t->pairs[index].key;
    uint32_t *places = t->pairs[index].places;
    size_t count = t->pairs[index].place_count;
    t->pairs[index].places = NULL;
    t->pairs[index].place_count = t->pairs[index].place_capacity = 0;
    t->touched_count = 0;
    if (left == right && count > 1)
        qsort(places, count, sizeof *places, compare_places); // overlaps: the leftmost first
    int failed = 0;
    for (size_t k = 0; k < count && !failed; k++) {
        uint32_t i = places[k];
        if (t->symbols[i] == left && t->next[i] != GONE && t->symbols[t->next[i]] == right)
            failed = merge_place(t, i, left, right, made);
    }
    free(places);
    for (size_t k = 0; k < t->touched_count && !failed; k++)
        if (k == 0 || t->touched[k] != t->touched[k - 1])
            failed =
                heap_push(t, (struct heap_entry){t->pairs[t->touched[k]].count, t->touched[k]});
    return failed;
}

static int add_token(struct training *t, uint32_t id, uint32_t left, uint32_t right,
                     struct err *err) {
    const struct token_info *x = &t->tok->tokens[left], *y = &t->tok->tokens[right];
    struct text joined = {0};
    int failed = text_put(&joined, t->tok->pool.data + x->text_offset, x->text_length) != 0 ||
                 text_put(&joined, t->tok->pool.data + y->text_offset, y->text_length) != 0;
    if (!failed)
        failed = tokenizer_set_token(t->tok, id, joined.data, joined.size, TOKENIZER_NORMAL, true,
                                     "training", err);
    text_free(&joined);
    return failed
               ? -1
               : tokenizer_add_merge(t->tok, left, right, id, (uint32_t)t->tok->merge_count, err);
}

static int learn(struct training *t, const struct tokenizer_train_options *options,
                 struct err *err) {
    int64_t least = options->least_count ? (int64_t)options->least_count : 1;
    uint32_t first = t->tok->vocab_size;
    if (place_words(t) != 0)
        return err_set(err, ERR_MEMORY, "no memory to train a tokenizer on this text");
    while (t->tok->vocab_size < options->vocab_size && t->heap_count > 0) {
        struct heap_entry top = heap_pop(t);
        int64_t count = t->pairs[top.pair].count;
        if (count != top.count) {
            if (count >= least && heap_push(t, (struct heap_entry){count, top.pair}) != 0)
                return err_set(err, ERR_MEMORY, "no memory to train a tokenizer");
            continue;
        }
        if (count < least) break;
        uint32_t left = (uint32_t)(t->pairs[top.pair].key >> 32),
                 right = (uint32_t)t->pairs[top.pair].key;
        struct token_info *x = &t->tok->tokens[left], *y = &t->tok->tokens[right];
        struct text joined = {0};
        if (text_put(&joined, t->tok->pool.data + x->text_offset, x->text_length) != 0 ||
            text_put(&joined, t->tok->pool.data + y->text_offset, y->text_length) != 0) {
            text_free(&joined);
            return err_set(err, ERR_MEMORY, "no memory to train a tokenizer");
        }
        // Two pairs may spell the same token; it keeps its first id, and the merge is learned all
        // the same.
        uint32_t made = vocab_table_get(t->tok, joined.data, joined.size);
        text_free(&joined);
        int failed;
        if (made == TOKENIZER_NONE) {
            made = t->tok->vocab_size;
            failed = add_token(t, made, left, right, err);
        } else {
            failed =
                tokenizer_add_merge(t->tok, left, right, made, (uint32_t)t->tok->merge_count, err);
        }
        if (failed) return -1;
        if (merge_pair(t, top.pair, made) != 0)
            return err_set(err, ERR_MEMORY, "no memory to train a tokenizer");
        if (options->progress && t->tok->vocab_size % 256 == 0)
            options->progress(t->tok->vocab_size - first, options->vocab_size - first,
                              options->context);
    }
    return 0;
}

static void training_free(struct training *t) {
    for (size_t p = 0; p < t->pair_count; p++) free(t->pairs[p].places);
    free(t->pairs);
    free(t->table);
    free(t->heap);
    free(t->touched);
    free(t->symbols);
    free(t->next);
    free(t->previous);
    free(t->word_of);
}

static const enum pretokenize_scanner scanners[] = {SCAN_GPT2, SCAN_LLAMA3, SCAN_QWEN2,
                                                    SCAN_SMOLLM2};

// Special tokens first, then the bytes in the order of the printable alphabet.
static struct tokenizer *begin(const struct tokenizer_train_options *options, struct err *err) {
    struct tokenizer *tok = tokenizer_new(TOKENIZER_BYTE_LEVEL, err);
    int failed = !tok;
    for (size_t i = 0; i < options->special_count && !failed; i++) {
        struct added_token token = {
            .content = (char *)(uintptr_t)options->specials[i], .id = (uint32_t)i, .special = true};
        failed = *options->specials[i] == 0 ? err_set(err, ERR_USAGE, "a special token is empty")
                                            : tokenizer_add_added(tok, &token, "training", err);
    }
    for (int i = 0; i < 256 && !failed; i++) {
        char byte = (char)byte_alphabet_order(i);
        uint32_t id = (uint32_t)options->special_count + (uint32_t)i;
        failed = tokenizer_set_token(tok, id, &byte, 1, TOKENIZER_NORMAL, true, "training", err);
        if (!failed) tok->byte_ids[(unsigned char)byte] = id;
    }
    if (!failed && options->split == TOKENIZER_SPLIT_QWEN2)
        failed = tokenizer_add_normal(tok, NORMAL_NFC, NULL, NULL, err);
    if (!failed) failed = tokenizer_add_scanner(tok, scanners[options->split], err);
    if (!failed && options->special_count > 0) tok->bos = tok->eos = 0;
    if (!failed) return tok;
    tokenizer_free(tok);
    return NULL;
}

struct tokenizer *tokenizer_train(const struct tokenizer_train_text *texts, size_t count,
                                  const struct tokenizer_train_options *options, struct err *err) {
    if (options->vocab_size < 256 + options->special_count ||
        options->vocab_size > TOKENIZER_MAX_IDS) {
        err_set(
            err, ERR_USAGE,
            "a vocabulary of %u tokens: expected from %zu (256 bytes and the special tokens) to %u",
            options->vocab_size, 256 + options->special_count, TOKENIZER_MAX_IDS);
        return NULL;
    }
    struct tokenizer *tok = begin(options, err);
    if (!tok) return NULL;
    struct word_counts words = {0};
    struct training t = {.tok = tok, .words = &words};
    int failed = added_matcher_build(&tok->raw_matcher, tok, false, err) != 0 ||
                 word_counts_gather(&words, tok, texts, count, options->threads, err) != 0 ||
                 learn(&t, options, err) != 0;
    training_free(&t);
    word_counts_free(&words);
    if (!failed) {
        added_matcher_free(&tok->raw_matcher);
        tok->raw_matcher = (struct added_matcher){0};
        if (tokenizer_finish(tok, "training", err) == 0) return tok;
    }
    tokenizer_free(tok);
    return NULL;
}
