// Character classes as one byte per code point, so that a scanner needs a single load for a
// character.
#include "data/unicode_class.h"
#include <pthread.h>
#include <stddef.h>
#include <utf8proc.h>

static uint8_t classes[UNICODE_TABLE_SIZE];
static pthread_once_t built = PTHREAD_ONCE_INIT;

// White_Space of the Unicode character database: a closed list, stable since Unicode 6.3.
static bool is_white_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

// Letters and numbers of Unicode 15.1 and 16, which the system's utf8proc may not know yet.
static const struct {
    uint32_t first, last;
    enum unicode_class class;
} added[] = {
    {0x1C89, 0x1C8A, UNICODE_LETTER},   {0xA7CB, 0xA7CD, UNICODE_LETTER},
    {0xA7DA, 0xA7DC, UNICODE_LETTER},   {0x105C0, 0x105F3, UNICODE_LETTER},
    {0x10D40, 0x10D49, UNICODE_NUMBER}, {0x10D4A, 0x10D65, UNICODE_LETTER},
    {0x10D6F, 0x10D85, UNICODE_LETTER}, {0x10EC2, 0x10EC4, UNICODE_LETTER},
    {0x11380, 0x11389, UNICODE_LETTER}, {0x1138B, 0x1138B, UNICODE_LETTER},
    {0x1138E, 0x1138E, UNICODE_LETTER}, {0x11390, 0x113B5, UNICODE_LETTER},
    {0x113B7, 0x113B7, UNICODE_LETTER}, {0x113D1, 0x113D1, UNICODE_LETTER},
    {0x113D3, 0x113D3, UNICODE_LETTER}, {0x116D0, 0x116E3, UNICODE_NUMBER},
    {0x11BC0, 0x11BE0, UNICODE_LETTER}, {0x11BF0, 0x11BF9, UNICODE_NUMBER},
    {0x13460, 0x143FA, UNICODE_LETTER}, {0x16100, 0x1611D, UNICODE_LETTER},
    {0x16130, 0x16139, UNICODE_NUMBER}, {0x16D40, 0x16D6C, UNICODE_LETTER},
    {0x16D70, 0x16D79, UNICODE_NUMBER}, {0x18CFF, 0x18CFF, UNICODE_LETTER},
    {0x1CCF0, 0x1CCF9, UNICODE_NUMBER}, {0x1E5D0, 0x1E5ED, UNICODE_LETTER},
    {0x1E5F0, 0x1E5F0, UNICODE_LETTER}, {0x1E5F1, 0x1E5FA, UNICODE_NUMBER},
    {0x2EBF0, 0x2EE5D, UNICODE_LETTER},
};

static void build(void) {
    for (uint32_t c = 0; c < UNICODE_TABLE_SIZE; c++) {
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        if (is_white_space(c))
            classes[c] = UNICODE_SPACE;
        else if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
            classes[c] = UNICODE_LETTER;
        else if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO)
            classes[c] = UNICODE_NUMBER;
    }
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        for (uint32_t c = added[i].first; c <= added[i].last; c++) classes[c] = added[i].class;
}

const uint8_t *unicode_class_table(void) {
    pthread_once(&built, build);
    return classes;
}

bool unicode_is_word(uint32_t code_point) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code_point);
    bool circled = (code_point >= 0x24B6 && code_point <= 0x24E9) ||
                   (code_point >= 0x1F130 && code_point <= 0x1F149) ||
                   (code_point >= 0x1F150 && code_point <= 0x1F169) ||
                   (code_point >= 0x1F170 && code_point <= 0x1F189);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) ||
           category == UTF8PROC_CATEGORY_PC || circled ||
           unicode_class_of(unicode_class_table(), code_point) == UNICODE_LETTER;
}
