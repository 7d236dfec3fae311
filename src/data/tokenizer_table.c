// Hash tables of a tokenizer (text -> id, pair -> merge) and the printable alphabet of byte-level
// vocabularies.
#include "base/hash.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

static void vocab_insert(struct vocab_table *table, uint32_t hash, uint32_t id) {
    size_t i = hash & table->mask;
    while (table->slots[i].id != TOKENIZER_NONE) i = (i + 1) & table->mask;
    table->slots[i] = (struct vocab_slot){hash, id};
}

static int vocab_grow(struct vocab_table *table, struct err *err) {
    size_t size = table->slots ? (table->mask + 1) * 2 : 1024;
    struct vocab_table grown = {malloc(size * sizeof *grown.slots), size - 1, table->count};
    if (!grown.slots)
        return err_set(err, ERR_MEMORY, "no memory for a vocabulary of %zu tokens", table->count);
    memset(grown.slots, 0xFF, size * sizeof *grown.slots);
    if (table->slots)
        for (size_t i = 0; i <= table->mask; i++)
            if (table->slots[i].id != TOKENIZER_NONE)
                vocab_insert(&grown, table->slots[i].hash, table->slots[i].id);
    free(table->slots);
    *table = grown;
    return 0;
}

int vocab_table_put(struct vocab_table *table, const struct tokenizer *tok, uint32_t id,
                    struct err *err) {
    if ((!table->slots || table->count * 2 >= table->mask) && vocab_grow(table, err) != 0)
        return -1;
    const struct token_info *t = &tok->tokens[id];
    vocab_insert(table, (uint32_t)hash_bytes(tok->pool.data + t->text_offset, t->text_length), id);
    table->count++;
    return 0;
}

uint32_t vocab_table_get(const struct tokenizer *tok, const char *text, size_t length) {
    const struct vocab_table *table = &tok->vocab;
    if (!table->slots) return TOKENIZER_NONE;
    uint32_t hash = (uint32_t)hash_bytes(text, length);
    for (size_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        const struct vocab_slot *slot = &table->slots[i];
        if (slot->id == TOKENIZER_NONE) return TOKENIZER_NONE;
        const struct token_info *t = &tok->tokens[slot->id];
        if (slot->hash == hash && t->text_length == length &&
            memcmp(tok->pool.data + t->text_offset, text, length) == 0)
            return slot->id;
    }
}

int pair_table_build(struct pair_table *table, const struct tokenizer *tok, struct err *err) {
    size_t size = 16;
    while (size < tok->merge_count * 2 + 2) size *= 2;
    table->slots = malloc(size * sizeof *table->slots);
    if (!table->slots)
        return err_set(err, ERR_MEMORY, "no memory for %zu merges", tok->merge_count);
    memset(table->slots, 0xFF, size * sizeof *table->slots);
    table->mask = size - 1;
    for (size_t m = 0; m < tok->merge_count; m++) {
        const struct token_merge *merge = &tok->merges[m];
        uint64_t key = (uint64_t)merge->left << 32 | merge->right;
        size_t i = (key * 0x9E3779B97F4A7C15u) >> 20 & table->mask;
        while (table->slots[i].key != UINT64_MAX && table->slots[i].key != key)
            i = (i + 1) & table->mask;
        // A pair that is listed twice counts by its later line, as in the files' own readers.
        if (table->slots[i].key == UINT64_MAX) table->count++;
        table->slots[i] = (struct pair_slot){key, merge->rank, merge->result};
    }
    return 0;
}

// Printable bytes stand for themselves, the others for the code points from U+0100 on, in ascending
// order.
static bool is_printable(unsigned char byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t byte_alphabet(unsigned char byte) {
    if (is_printable(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 323u : 256u + 33u + (byte - 127u);
}

int byte_alphabet_inverse(uint32_t code_point) {
    if (code_point < 256) return is_printable((unsigned char)code_point) ? (int)code_point : -1;
    if (code_point <= 288) return (int)code_point - 256;
    if (code_point <= 322) return (int)code_point - 289 + 127;
    return code_point == 323 ? 173 : -1;
}

unsigned char byte_alphabet_order(int index) {
    int seen = 0;
    for (uint32_t c = 0; c < 324; c++) {
        int byte = byte_alphabet_inverse(c);
        if (byte >= 0 && seen++ == index) return (unsigned char)byte;
    }
    return 0;
}
