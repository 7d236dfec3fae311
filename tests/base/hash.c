// Hashes: published values, streaming in any pieces, text form.
#include "base/hash.h"
#include "test.h"
#include <stdlib.h>

TEST(hash_known_answer) {
    CHECK_EQ_INT(hash_bytes("", 0), 0x2d06800538d394c2); // XXH3 of nothing, seed 0
    CHECK_EQ_INT(hash_string("abc"), hash_bytes("abc", 3));
    CHECK(hash_string("abc") != hash_string("abd"));
}

TEST(hash_stream_equals_one_shot) {
    unsigned char data[3000];
    for (int i = 0; i < 3000; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t size = 0; size <= 3000; size += 61)
        for (size_t piece = 1; piece < 700; piece = piece * 5 + 2) {
            // at every alignment that malloc may give
            unsigned char *memory = malloc(sizeof(struct hash_stream) + 64);
            struct hash_stream *h = (struct hash_stream *)(void *)(memory + piece % 64);
            hash_begin(h);
            for (size_t at = 0; at < size; at += piece)
                hash_put(h, data + at, size - at < piece ? size - at : piece);
            CHECK_EQ_INT(hash_end(h), hash_bytes(data, size));
            free(memory);
        }
}

TEST(hash_text_form) {
    char text[17];
    uint64_t value;
    static const uint64_t some[] = {0, 1, UINT64_MAX, 0x0123456789abcdef};
    for (int i = 0; i < 4; i++) {
        hash_text(some[i], text);
        CHECK_EQ_INT(hash_parse(text, &value), 0);
        CHECK_EQ_INT(value, some[i]);
    }
    CHECK_STR(text, "0123456789abcdef");
    static const char *const bad[] = {"",
                                      "0",
                                      "0123456789abcde",
                                      "0123456789abcdef0",
                                      "0123456789abcdeg",
                                      "0123456789ABCDEF",
                                      "0x23456789abcdef",
                                      " 123456789abcdef"};
    for (int i = 0; i < 8; i++) CHECK_EQ_INT(hash_parse(bad[i], &value), -1);
    CHECK_EQ_INT(value, some[3]); // untouched by failures
}
