// The distinct words of texts and how often each occurs: what a tokenizer is trained on.
#pragma once
#include "data/tokenizer.h"

struct word_counts {
    unsigned char *bytes; // all words, one behind the other
    size_t byte_count, byte_capacity;
    uint64_t *offsets; // [count] into `bytes`
    uint32_t *lengths; // [count]
    uint64_t *counts;  // [count]
    size_t count, capacity;
    uint32_t *table; // open addressing: index + 1
    size_t table_mask;
};
void word_counts_free(struct word_counts *words);
// Cuts the texts at the special tokens of `tok` and into words by its rules, on several threads;
// special tokens are not counted. The counts do not depend on the threads, the order of words may.
int word_counts_gather(struct word_counts *words, const struct tokenizer *tok,
                       const struct tokenizer_train_text *texts, size_t text_count, int threads,
                       struct err *err);
