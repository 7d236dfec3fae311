// Ids against vectors that other implementations published, read from external data (make test
// DATA=DIR).
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *data_path(const char *name) {
    static char path[2][4096];
    static int turn;
    if (!test_data_dir()) SKIP("no external data");
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", test_data_dir(), name);
    if (!file_exists(path[turn])) SKIP("%s is not there", path[turn]);
    return path[turn];
}

static struct tokenizer *load(const char *name) {
    struct err err = {0};
    struct tokenizer *tok = tokenizer_load(data_path(name), &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    return tok;
}

static void check_ids(const struct tokenizer *tok, struct tokenizer_scratch *scratch,
                      const char *text, size_t size, const char *expected) {
    struct err err = {0};
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(tok, scratch, text, size, TOKENIZER_PLAIN, &ids, &err), err);
    const char *at = expected;
    size_t count = 0;
    for (;; count++) {
        char *end;
        while (*at == ' ' || *at == ',' || *at == '[') at++;
        unsigned long id = strtoul(at, &end, 10);
        if (end == at) break;
        if (count >= ids.count || ids.ids[count] != id)
            test_fail(__FILE__, __LINE__, "\"%.*s\": id %zu is %ld, expected %lu",
                      (int)(size < 60 ? size : 60), text, count,
                      count < ids.count ? (long)ids.ids[count] : -1, id);
        at = end;
    }
    CHECK_EQ_INT(ids.count, count);
    token_list_free(&ids);
}

static void check_llamacpp(const char *tokenizer, const char *name) {
    struct err err = {0};
    char path[200], *input, *output;
    size_t input_size, output_size;
    snprintf(path, sizeof path, "reftok/llamacpp/ggml-vocab-%s.gguf.inp", name);
    CHECK_OK(file_read(data_path(path), 0, &input, &input_size, &err), err);
    snprintf(path, sizeof path, "reftok/llamacpp/ggml-vocab-%s.gguf.out", name);
    CHECK_OK(file_read(data_path(path), 0, &output, &output_size, &err), err);
    struct tokenizer *tok = load(tokenizer);
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char *text = input, *line = output;
    int count = 0;
    while (text) {
        char *next = strstr(text, separator);
        size_t size = next ? (size_t)(next - text) : strlen(text);
        char *newline = strchr(line, '\n');
        if (!newline) break; // what follows the last separator has no line
        *newline = 0;
        check_ids(tok, scratch, text, size, line);
        line = newline + 1;
        text = next ? next + sizeof separator - 1 : NULL;
        count++;
    }
    CHECK(count >= 46);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
    free(input);
    free(output);
}

TEST(tokenizer_llamacpp_gpt2) {
    check_llamacpp("tokenizers/gpt2/tokenizer.json", "gpt-2");
}
TEST(tokenizer_llamacpp_llama3) {
    check_llamacpp("tokenizers/llama3_tiktoken", "llama-bpe");
}
TEST(tokenizer_llamacpp_qwen2) {
    check_llamacpp("tokenizers/qwen2", "qwen2");
}
TEST(tokenizer_llamacpp_llama2) {
    check_llamacpp("tokenizers/llama2_sentencepiece/tokenizer.model", "llama-spm");
}

static void check_plans(const char *tokenizer, const char *name, int least) {
    struct err err = {0};
    char *plans;
    size_t size;
    CHECK_OK(file_read(data_path("reftok/gpt_tokenizer/TestPlans.txt"), 0, &plans, &size, &err),
             err);
    struct tokenizer *tok = load(tokenizer);
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    int count = 0;
    for (char *block = strstr(plans, "EncodingName: "); block; count++) {
        char *next = strstr(block + 1, "EncodingName: ");
        if (next) next[-1] = 0;
        char *sample = strstr(block, "\nSample: "), *encoded = strstr(block, "\nEncoded: ");
        CHECK(sample && encoded);
        bool mine =
            strncmp(block + 14, name, strlen(name)) == 0 && block[14 + strlen(name)] == '\n';
        sample += 9;
        if (mine) check_ids(tok, scratch, sample, (size_t)(encoded - sample), encoded + 10);
        count -= !mine;
        block = next;
    }
    CHECK(count >= least);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
    free(plans);
}

TEST(tokenizer_plans_r50k) {
    check_plans("tokenizers/tiktoken/r50k_base.tiktoken", "r50k_base", 30);
}
TEST(tokenizer_plans_r50k_from_merges) {
    check_plans("tokenizers/gpt2/encoder.json", "r50k_base", 30);
}
TEST(tokenizer_plans_cl100k) {
    check_plans("tokenizers/tiktoken/cl100k_base.tiktoken", "cl100k_base", 30);
}

// The known counts of tiny Shakespeare: its first 90 % and last 10 % of characters with GPT-2's
// vocabulary.
TEST(tokenizer_shakespeare_counts) {
    struct err err = {0};
    char *text;
    size_t size;
    CHECK_OK(file_read(data_path("corpora/tinyshakespeare/input.txt"), 0, &text, &size, &err), err);
    struct tokenizer *tok = load("tokenizers/gpt2/tokenizer.json");
    size_t cut = size * 9 / 10;
    struct token_list first = {0}, last = {0};
    CHECK_OK(tokenizer_encode_parallel(tok, text, cut, 0, 2, &first, NULL, &err), err);
    CHECK_OK(tokenizer_encode_parallel(tok, text + cut, size - cut, 0, 1, &last, NULL, &err), err);
    CHECK_EQ_INT(first.count, 301966);
    CHECK_EQ_INT(last.count, 36059);
    token_list_free(&first);
    token_list_free(&last);
    tokenizer_free(tok);
    free(text);
}

// Merges learned from the corpus in the exact order of the published list.
TEST(tokenizer_training_reference) {
    struct err err = {0};
    char *text, *merges;
    size_t size, merges_size;
    CHECK_OK(file_read(data_path("reftok/cs336_bpe_training/corpus.en"), 0, &text, &size, &err),
             err);
    CHECK_OK(file_read(data_path("reftok/cs336_bpe_training/train-bpe-reference-merges.txt"), 0,
                       &merges, &merges_size, &err),
             err);
    const char *specials[] = {"<|endoftext|>"};
    struct tokenizer_train_options options = {
        .vocab_size = 500, .specials = specials, .special_count = 1};
    struct tokenizer_train_text all = {text, size};
    struct tokenizer *tok = tokenizer_train(&all, 1, &options, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_EQ_INT(tokenizer_merge_count(tok), 243);
    char *line = merges;
    for (size_t i = 0; i < 243; i++) {
        uint32_t left, right;
        struct text found = {0};
        tokenizer_merge(tok, i, &left, &right);
        tokenizer_token_text(tok, left, &found);
        text_puts(&found, " ");
        tokenizer_token_text(tok, right, &found);
        char *end = strchrnul(line, '\n');
        char saved = *end;
        *end = 0;
        CHECK_STR(found.data, line);
        line = saved ? end + 1 : end;
        text_free(&found);
    }
    tokenizer_free(tok);
    free(text);
    free(merges);
}
