// The three properties of a character that pre-tokenizer patterns ask for: letter (\p{L}), number
// (\p{N}), white space. Every other code point, marks and punctuation alike, is OTHER. Unicode 16,
// as in the tokenizers that weft is compared with.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum unicode_class { UNICODE_OTHER = 0, UNICODE_LETTER = 1, UNICODE_NUMBER = 2, UNICODE_SPACE = 3 };

// Table of UNICODE_TABLE_SIZE classes, built at the first call; code points beyond it are OTHER.
#define UNICODE_TABLE_SIZE 0x40000u
const uint8_t *unicode_class_table(void);

static inline enum unicode_class unicode_class_of(const uint8_t *table, uint32_t code_point) {
    return code_point < UNICODE_TABLE_SIZE ? (enum unicode_class)table[code_point] : UNICODE_OTHER;
}

// \w of regular expressions: letters, marks, numbers, connector punctuation, circled letters.
bool unicode_is_word(uint32_t code_point);
