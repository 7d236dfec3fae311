// Ids of every kind of tokenizer against vectors of the reference libraries
// (tests/golden/tokenizer.py makes them).
#include "base/json.h"
#include "data/tokenizer.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tokenizer *load_path(const char *path) {
    struct err err = {0};
    struct tokenizer *tok = tokenizer_load(path, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    return tok;
}

static void check_row(const struct tokenizer *tok, struct tokenizer_scratch *scratch, json_t *row,
                      const char *what) {
    struct err err = {0};
    json_t *text = json_array_get(row, 0), *expected = json_array_get(row, 2);
    const char *bytes = json_string_value(text);
    size_t size = json_string_length(text);
    unsigned flags =
        json_integer_value(json_array_get(row, 1)) ? TOKENIZER_PARSE_SPECIAL : TOKENIZER_PLAIN;
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(tok, scratch, bytes, size, flags, &ids, &err), err);
    for (size_t i = 0; i < ids.count || i < json_array_size(expected); i++) {
        long want = i < json_array_size(expected)
                        ? (long)json_integer_value(json_array_get(expected, i))
                        : -1;
        long found = i < ids.count ? (long)ids.ids[i] : -1;
        if (want != found)
            test_fail(__FILE__, __LINE__, "%s: \"%s\": id %zu is %ld, expected %ld", what, bytes, i,
                      found, want);
    }
    if (tokenizer_lossless(tok)) {
        struct text back = {0};
        CHECK_OK(tokenizer_decode(tok, ids.ids, ids.count, false, &back, &err), err);
        CHECK_EQ_INT(back.size, size);
        if (size) CHECK_BYTES(back.data, bytes, size);
        text_free(&back);
    }
    token_list_free(&ids);
}

static void check_rows(const struct tokenizer *tok, json_t *rows, const char *what) {
    struct err err = {0};
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    for (int pass = 0; pass < 2; pass++) // the second time from the caches
        for (size_t i = 0; i < json_array_size(rows); i++)
            check_row(tok, scratch, json_array_get(rows, i), what);
    tokenizer_scratch_free(scratch);
}

// The vectors, and once more after writing the tokenizer out and reading it back.
static void check_kind(const char *kind, bool lossless) {
    struct err err = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer/%s/vectors.json", test_golden_dir(), kind);
    json_t *rows = json_parse_file(path, &err);
    if (!rows) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK(json_array_size(rows) >= 200);
    snprintf(path, sizeof path, "%s/tokenizer/%s", test_golden_dir(), kind);
    struct tokenizer *tok = load_path(path);
    CHECK_EQ_INT(tokenizer_lossless(tok), lossless);
    check_rows(tok, rows, kind);
    CHECK_OK(tokenizer_save_hf(tok, test_temp_dir(), &err), err);
    struct tokenizer *again = load_path(test_temp_dir());
    CHECK_EQ_INT(tokenizer_vocab_size(again), tokenizer_vocab_size(tok));
    // SentencePiece's rule for user-defined pieces has no counterpart in a tokenizer.json: only
    // plain text is the same.
    if (strcmp(kind, "sentencepiece") != 0) check_rows(again, rows, "written and read back");
    if (strcmp(kind, "sentencepiece") != 0 && strcmp(kind, "tiktoken") != 0)
        CHECK(tokenizer_fingerprint(again) == tokenizer_fingerprint(tok));
    tokenizer_free(again);
    tokenizer_free(tok);
    json_decref(rows);
}

TEST(tokenizer_vectors_gpt2) {
    check_kind("gpt2", false);
} // lossy by its stripping tokens alone
TEST(tokenizer_vectors_gpt2_files) {
    check_kind("gpt2_files", true);
}
TEST(tokenizer_vectors_gpt2_prefix) {
    check_kind("gpt2_prefix", false);
}
TEST(tokenizer_vectors_llama3) {
    check_kind("llama3", false);
}
TEST(tokenizer_vectors_qwen2) {
    check_kind("qwen2", false);
}
TEST(tokenizer_vectors_smollm2) {
    check_kind("smollm2", false);
}
TEST(tokenizer_vectors_patterns) {
    check_kind("patterns", false);
}
TEST(tokenizer_vectors_capitals) {
    check_kind("capitals", true);
}
TEST(tokenizer_vectors_llama2) {
    check_kind("llama2", false);
}
TEST(tokenizer_vectors_metaspace) {
    check_kind("metaspace", false);
}
TEST(tokenizer_vectors_lowercase) {
    check_kind("lowercase", false);
}
TEST(tokenizer_vectors_sentencepiece) {
    check_kind("sentencepiece", false);
}
TEST(tokenizer_vectors_tiktoken) {
    check_kind("tiktoken", true);
}
