// What callers rely on: bytes come back, threads change nothing, long words stay cheap, streams are
// valid UTF-8, training is deterministic, special tokens go where the flags say.
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "data/tokenizer.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tokenizer *golden(const char *kind) {
    struct err err = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer/%s", test_golden_dir(), kind);
    struct tokenizer *tok = tokenizer_load(path, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    return tok;
}

static struct token_list encode(const struct tokenizer *tok, const char *bytes, size_t size,
                                unsigned flags) {
    struct err err = {0};
    struct token_list ids = {0};
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    CHECK_OK(tokenizer_encode(tok, scratch, bytes, size, flags, &ids, &err), err);
    tokenizer_scratch_free(scratch);
    return ids;
}

static void check_back(const struct tokenizer *tok, const char *bytes, size_t size) {
    struct err err = {0};
    struct text back = {0};
    struct token_list ids = encode(tok, bytes, size, TOKENIZER_PARSE_SPECIAL);
    CHECK_OK(tokenizer_decode(tok, ids.ids, ids.count, false, &back, &err), err);
    CHECK_EQ_INT(back.size, size);
    if (size) CHECK_BYTES(back.data, bytes, size);
    text_free(&back);
    token_list_free(&ids);
}

// Any bytes: random ones, and valid text with holes knocked into it.
TEST(tokenizer_bytes_come_back) {
    static const char *const kinds[] = {"capitals", "gpt2_files", "tiktoken"};
    char bytes[3000];
    for (size_t k = 0; k < 3; k++) {
        struct tokenizer *tok = golden(kinds[k]);
        CHECK(tokenizer_lossless(tok));
        for (uint64_t i = 0; i < 300; i++) {
            size_t size = random_key(i, "size") % sizeof bytes;
            for (size_t b = 0; b < size; b++) {
                uint32_t r[4];
                random_words(i, b, r);
                bytes[b] = i % 2 || r[1] % 8 == 0 ? (char)r[0] : "the riv\xC3\xA9r \n1'"[r[0] % 14];
            }
            check_back(tok, bytes, size);
        }
        tokenizer_free(tok);
    }
}

// A tokenizer with byte fall-back keeps bytes that are no UTF-8, and counts them.
TEST(tokenizer_invalid_bytes_kept_and_counted) {
    static const char text[] = "the \x80 river \xFF\xC3 stone \xE2\x82";
    static const char *const kinds[] = {"llama2", "sentencepiece", "gpt2_files", "patterns",
                                        "qwen2"};
    struct err err = {0};
    for (size_t k = 0; k < 5; k++) {
        struct tokenizer *tok = golden(kinds[k]);
        struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
        struct token_list ids = {0};
        struct text back = {0};
        uint64_t parallel = 0;
        CHECK_OK(tokenizer_encode(tok, scratch, text, sizeof text - 1, 0, &ids, &err), err);
        CHECK_EQ_INT(tokenizer_scratch_invalid_bytes(scratch), 5);
        CHECK_OK(tokenizer_decode(tok, ids.ids, ids.count, false, &back, &err), err);
        CHECK_EQ_INT(back.size, sizeof text - 1);
        CHECK_BYTES(back.data, text, sizeof text - 1);
        ids.count = 0;
        CHECK_OK(tokenizer_encode_parallel(tok, text, sizeof text - 1, 0, 2, &ids, &parallel, &err),
                 err);
        CHECK_EQ_INT(parallel, 5);
        token_list_free(&ids);
        text_free(&back);
        tokenizer_scratch_free(scratch);
        tokenizer_free(tok);
    }
}

static char *long_text(size_t size) {
    static const char *const words[] = {"the ",
                                        "river ",
                                        "<|endoftext|>",
                                        "\n\n",
                                        "can't ",
                                        "1234567 ",
                                        "caf\xC3\xA9 ",
                                        "\xE6\xB2\xB3\xE6\xB0\xB4",
                                        ". ",
                                        "  ",
                                        "e\xCC\x81 ",
                                        "<sep> ",
                                        "stone",
                                        " <user> ",
                                        "x",
                                        "\xC2\xA0",
                                        "wholeword "};
    char *text = malloc(size + 64);
    size_t at = 0;
    for (uint64_t i = 0; at < size; i++) {
        const char *word = words[random_key(i, "long") % (sizeof words / sizeof *words)];
        memcpy(text + at, word, strlen(word));
        at += strlen(word);
    }
    return text;
}

TEST(tokenizer_parallel_gives_the_same_ids) {
    static const char *const kinds[] = {"gpt2",   "llama3",        "qwen2",    "smollm2",
                                        "llama2", "sentencepiece", "patterns", "metaspace"};
    size_t size = 1500000;
    char *text = long_text(size);
    struct err err = {0};
    for (size_t k = 0; k < 8; k++) {
        struct tokenizer *tok = golden(kinds[k]);
        unsigned flags = TOKENIZER_PARSE_SPECIAL;
        struct token_list serial = encode(tok, text, size, flags);
        for (int threads = 1; threads <= 3; threads += 2) {
            struct token_list parallel = {0};
            CHECK_OK(
                tokenizer_encode_parallel(tok, text, size, flags, threads, &parallel, NULL, &err),
                err);
            CHECK_EQ_INT(parallel.count, serial.count);
            CHECK_BYTES(parallel.ids, serial.ids, serial.count * sizeof(uint32_t));
            token_list_free(&parallel);
        }
        // The pieces that a large text is cut into change nothing: the same text behind a short
        // one.
        struct token_list whole = {0}, part = encode(tok, text, 900, flags);
        CHECK(serial.count > part.count);
        token_list_free(&whole);
        token_list_free(&part);
        token_list_free(&serial);
        tokenizer_free(tok);
    }
    free(text);
}

// A text in one piece against the same text encoded job by job: a cut every few bytes must not
// show. The reference is the concatenation over lines where lines are words' borders.
TEST(tokenizer_long_text_equals_its_lines) {
    struct tokenizer *tok = golden("gpt2_files");
    struct token_list joined = {0};
    struct text text = {0};
    for (uint64_t i = 0; i < 40000; i++) {
        char line[64];
        int size = snprintf(line, sizeof line, "the river%llu rose over %llu stones\n",
                            (unsigned long long)(i % 7),
                            (unsigned long long)(random_key(i, "line") % 100000));
        struct token_list ids = encode(tok, line, (size_t)size, 0);
        text_put(&text, line, (size_t)size);
        for (size_t k = 0; k < ids.count; k++) token_list_put(&joined, ids.ids[k]);
        token_list_free(&ids);
        if (i == 300) i = 39000; // scratch tables are costly to make: 1,300 lines are enough
    }
    while (text.size < 600000) {
        size_t half = text.size, count = joined.count;
        text_reserve(&text, half);
        text_put(&text, text.data, half);
        token_list_reserve(&joined, count);
        memcpy(joined.ids + count, joined.ids, count * sizeof(uint32_t));
        joined.count += count;
    }
    struct token_list whole = encode(tok, text.data, text.size, 0);
    CHECK_EQ_INT(whole.count, joined.count);
    CHECK_BYTES(whole.ids, joined.ids, whole.count * sizeof(uint32_t));
    token_list_free(&whole);
    token_list_free(&joined);
    text_free(&text);
    tokenizer_free(tok);
}

// Eight times the word takes about eight times as long, not sixty-four; and the ids are those of
// the short algorithm.
TEST(tokenizer_long_word_is_not_quadratic) {
    static const char *const kinds[] = {"gpt2_files", "llama2", "patterns", "tiktoken"};
    size_t large = 1000000, small = large / 8;
    char *word = malloc(large);
    for (int pattern = 0; pattern < 2; pattern++) {
        for (size_t i = 0; i < large; i++)
            word[i] = pattern ? "theriverandstone"[random_key(i, "word") % 16] : 'a';
        for (size_t k = 0; k < 4; k++) {
            struct tokenizer *tok = golden(kinds[k]);
            double seconds[2] = {1e9, 1e9};
            for (int round = 0; round < 3; round++)
                for (int which = 0; which < 2; which++) {
                    double begin = clock_process_cpu_seconds();
                    struct token_list ids = encode(tok, word, which ? large : small, 0);
                    double took = clock_process_cpu_seconds() - begin;
                    if (took < seconds[which]) seconds[which] = took;
                    CHECK(ids.count > 0);
                    token_list_free(&ids);
                }
            if (seconds[1] > 24 * seconds[0] + 0.05)
                test_fail(__FILE__, __LINE__, "%s: %.3f s for 125 KB, %.3f s for 1 MB", kinds[k],
                          seconds[0], seconds[1]);
            tokenizer_free(tok);
        }
    }
    free(word);
}

TEST(tokenizer_begin_and_end_tokens) {
    struct err err = {0};
    struct tokenizer *tok = golden("llama3");
    CHECK(tokenizer_add_bos(tok) && tokenizer_bos(tok) == 0 && !tokenizer_add_eos(tok));
    struct token_list ids = encode(tok, "the", 3, TOKENIZER_ADD_BOS);
    CHECK(ids.count >= 2 && ids.ids[0] == 0);
    token_list_free(&ids);
    // A rendered chat template carries its own BOS: without the flag there is one, never two.
    ids = encode(tok, "<|begin|>the", 12, TOKENIZER_PARSE_SPECIAL);
    CHECK(ids.ids[0] == 0 && ids.ids[1] != 0);
    token_list_free(&ids);
    ids = encode(tok, "<|begin|>", 9, TOKENIZER_PLAIN);
    CHECK(ids.count > 1 && ids.ids[0] != 0);
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    CHECK_EQ_INT(tokenizer_encode(tok, scratch, "a", 1, TOKENIZER_ADD_EOS, &ids, &err), -1);
    CHECK_CONTAINS(err.text, "no EOS token");
    token_list_free(&ids);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
}

TEST(tokenizer_decode_refuses_unknown_ids) {
    struct err err = {0};
    struct tokenizer *tok = golden("gpt2_files");
    struct text out = {0};
    uint32_t id = tokenizer_vocab_size(tok);
    CHECK_EQ_INT(tokenizer_decode(tok, &id, 1, false, &out, &err), -1);
    CHECK_CONTAINS(err.text, "not in the vocabulary");
    size_t length;
    CHECK(tokenizer_token_bytes(tok, id, &length) == NULL);
    id = (uint32_t)tokenizer_eos(tok);
    CHECK(tokenizer_is_special(tok, id));
    err = (struct err){0};
    CHECK_OK(tokenizer_decode(tok, &id, 1, true, &out, &err), err);
    CHECK_EQ_INT(out.size, 0);
    CHECK_OK(tokenizer_decode(tok, &id, 1, false, &out, &err), err);
    CHECK_STR(out.data, "<|endoftext|>");
    text_free(&out);
    tokenizer_free(tok);
}

// Ids arrive one by one; what comes out is valid UTF-8 at every moment and, for valid text, the
// text in the end.
TEST(tokenizer_stream_is_valid_utf8) {
    static const char text[] =
        "caf\xC3\xA9 \xE6\xB2\xB3 \xF0\x9F\x98\x80\xF0\x9F\x87\xAB\xF0\x9F\x87\xB7 end";
    static const char *const kinds[] = {"gpt2_files", "llama2", "sentencepiece"};
    struct err err = {0};
    for (size_t k = 0; k < 3; k++) {
        struct tokenizer *tok = golden(kinds[k]);
        struct token_list ids = encode(tok, text, sizeof text - 1, 0);
        struct tokenizer_stream stream = {0};
        struct text out = {0};
        for (size_t i = 0; i < ids.count; i++) {
            CHECK_OK(tokenizer_stream_put(tok, &stream, ids.ids[i], false, &out, &err), err);
            CHECK_EQ_INT(text_utf8_valid_prefix(out.data ? out.data : "", out.size), out.size);
        }
        CHECK_EQ_INT(tokenizer_stream_end(&stream, &out), 0);
        CHECK_STR(out.data, text);
        token_list_free(&ids);
        text_free(&out);
        tokenizer_free(tok);
    }
}

TEST(tokenizer_stream_replaces_broken_bytes) {
    static const char text[] = "a\x80"
                               "b\xE6\xB2"
                               "c\xF0\x9F";
    struct err err = {0};
    struct tokenizer *tok = golden("gpt2_files");
    struct token_list ids = encode(tok, text, sizeof text - 1, 0);
    struct tokenizer_stream stream = {0};
    struct text out = {0};
    for (size_t i = 0; i < ids.count; i++)
        CHECK_OK(tokenizer_stream_put(tok, &stream, ids.ids[i], false, &out, &err), err);
    CHECK_EQ_INT(tokenizer_stream_end(&stream, &out), 0);
    CHECK_STR(out.data, "a\xEF\xBF\xBD"
                        "b\xEF\xBF\xBD\xEF\xBF\xBD"
                        "c\xEF\xBF\xBD");
    token_list_free(&ids);
    text_free(&out);
    tokenizer_free(tok);
}

static struct tokenizer *train(const char *text, size_t size, uint32_t vocab_size,
                               enum tokenizer_split split, int threads) {
    static const char *const specials[] = {"<|endoftext|>", "<|im_end|>"};
    struct err err = {0};
    struct tokenizer_train_text all = {text, size};
    struct tokenizer_train_options options = {.vocab_size = vocab_size,
                                              .specials = specials,
                                              .special_count = 2,
                                              .split = split,
                                              .threads = threads};
    struct tokenizer *tok = tokenizer_train(&all, 1, &options, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    return tok;
}

// The textbook example (Sennrich et al. 2016) with its counts; ties fall to the lexicographically
// greatest pair.
TEST(tokenizer_trains_the_textbook_example) {
    static const char text[] = "low low low low low lower lower widest widest widest newest newest "
                               "newest newest newest newest";
    static const char *const expected[] = {"s t", "e st", "o w", "l ow", "w est", "n e"};
    struct err err = {0};
    struct text words = {0};
    for (const char *at = text; *at;
         at += strspn(at, " ")) { // each word a text of its own: none has a space
        size_t length = strcspn(at, " ");
        text_put(&words, at, length);
        text_put(&words, "<|endoftext|>", 13);
        at += length;
    }
    static const char *const specials[] = {"<|endoftext|>"};
    struct tokenizer_train_text all = {words.data, words.size};
    struct tokenizer_train_options options = {
        .vocab_size = 257 + 6, .specials = specials, .special_count = 1};
    struct tokenizer *tok = tokenizer_train(&all, 1, &options, &err);
    CHECK(tok && tokenizer_merge_count(tok) == 6);
    for (size_t i = 0; i < 6; i++) {
        uint32_t left, right;
        struct text pair = {0};
        tokenizer_merge(tok, i, &left, &right);
        tokenizer_token_text(tok, left, &pair);
        text_puts(&pair, " ");
        tokenizer_token_text(tok, right, &pair);
        CHECK_STR(pair.data, expected[i]);
        text_free(&pair);
    }
    text_free(&words);
    tokenizer_free(tok);
}

// Naive training: counts anew after every merge. Slow and plain, to hold the incremental counts to.
static void check_against_naive(const char *text, size_t size, uint32_t merges) {
    struct tokenizer *tok = train(text, size, 258 + merges, TOKENIZER_SPLIT_GPT2, 2);
    struct tokenizer *bytes_only = train(text, size, 258, TOKENIZER_SPLIT_GPT2, 1);
    struct token_list symbols = encode(bytes_only, text, size, 0);
    // A border of words lies where the trained tokenizer's own splitter puts one: GPT-2 words never
    // hold two spaces, and the text here is of letters with single spaces, so a word begins at each
    // space.
    uint32_t *word = malloc((symbols.count + 1) * sizeof *word), current = 0;
    for (size_t i = 0; i < symbols.count; i++) word[i] = text[i] == ' ' ? ++current : current;
    for (size_t m = 0; m < tokenizer_merge_count(tok); m++) {
        uint32_t left, right, best = 0;
        tokenizer_merge(tok, m, &left, &right);
        uint32_t found = 0;
        static uint32_t counts[600][600];
        memset(counts, 0, sizeof counts);
        for (size_t i = 0; i + 1 < symbols.count; i++)
            if (word[i] == word[i + 1]) counts[symbols.ids[i]][symbols.ids[i + 1]]++;
        for (uint32_t a = 0; a < 600; a++)
            for (uint32_t b = 0; b < 600; b++) best = counts[a][b] > best ? counts[a][b] : best;
        found = counts[left][right];
        CHECK_EQ_INT(found, best);
        size_t kept = 0;
        for (size_t i = 0; i < symbols.count; i++, kept++) {
            bool merge = i + 1 < symbols.count && word[i] == word[i + 1] &&
                         symbols.ids[i] == left && symbols.ids[i + 1] == right;
            symbols.ids[kept] = merge ? 258 + (uint32_t)m : symbols.ids[i];
            word[kept] = word[i];
            i += merge;
        }
        symbols.count = kept;
    }
    free(word);
    token_list_free(&symbols);
    tokenizer_free(bytes_only);
    tokenizer_free(tok);
}

TEST(tokenizer_training_counts_like_naive) {
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "aaaab  c"[random_key(i, "naive") % 8];
    for (size_t i = 1; i < sizeof text; i++)
        if (text[i] == ' ' && text[i - 1] == ' ') text[i] = 'a';
    text[0] = 'a', text[sizeof text - 1] = 'b';
    check_against_naive(text, sizeof text, 60);
}

TEST(tokenizer_training_is_deterministic) {
    size_t size = 2500000;
    char *text = long_text(size);
    struct err err = {0};
    struct tokenizer *one = train(text, size, 700, TOKENIZER_SPLIT_LLAMA3, 1);
    struct tokenizer *three = train(text, size, 700, TOKENIZER_SPLIT_LLAMA3, 3);
    CHECK(tokenizer_fingerprint(one) == tokenizer_fingerprint(three));
    CHECK_EQ_INT(tokenizer_eot(three),
                 -1); // a trained tokenizer's turn end is found when it is loaded
    CHECK_OK(tokenizer_save_hf(one, test_temp_dir(), &err), err);
    struct tokenizer *loaded = tokenizer_load(test_temp_dir(), &err);
    CHECK(loaded);
    CHECK(tokenizer_fingerprint(loaded) == tokenizer_fingerprint(one));
    CHECK_EQ_INT(tokenizer_eos(loaded), 0);
    CHECK_EQ_INT(tokenizer_eot(loaded), 1);
    struct token_list a = encode(one, text, 100000, 1), b = encode(loaded, text, 100000, 1);
    CHECK_EQ_INT(a.count, b.count);
    CHECK_BYTES(a.ids, b.ids, a.count * sizeof(uint32_t));
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_free(loaded);
    struct tokenizer *other = train(text, size, 701, TOKENIZER_SPLIT_LLAMA3, 1);
    CHECK(tokenizer_fingerprint(other) != tokenizer_fingerprint(one));
    tokenizer_free(other);
    other = train(text, size, 700, TOKENIZER_SPLIT_SMOLLM2, 1);
    CHECK(tokenizer_fingerprint(other) != tokenizer_fingerprint(one));
    tokenizer_free(other);
    tokenizer_free(one);
    tokenizer_free(three);
    free(text);
}

TEST(tokenizer_training_stops_and_refuses) {
    struct err err = {0};
    struct tokenizer *tok =
        train("aaa", 3, 1000, TOKENIZER_SPLIT_GPT2, 1); // two merges are possible
    CHECK_EQ_INT(tokenizer_vocab_size(tok), 260);
    tokenizer_free(tok);
    struct tokenizer_train_text none = {"", 0};
    struct tokenizer_train_options options = {.vocab_size = 200};
    CHECK(!tokenizer_train(&none, 1, &options, &err));
    CHECK_CONTAINS(err.text, "a vocabulary of 200 tokens");
    options.vocab_size = 300;
    err = (struct err){0};
    tok = tokenizer_train(&none, 1, &options, &err);
    CHECK(tok && tokenizer_vocab_size(tok) == 256);
    tokenizer_free(tok);
}

// A word of a megabyte must not make training quadratic either.
TEST(tokenizer_training_on_one_long_word) {
    size_t size = 1000000;
    char *text = malloc(size);
    for (size_t i = 0; i < size; i++)
        text[i] = "abcdefghijklmnopqrstuvwxyz"[random_key(i, "letters") % 26];
    double begin = clock_process_cpu_seconds();
    struct tokenizer *tok = train(text, size, 1000, TOKENIZER_SPLIT_GPT2, 1);
    CHECK_EQ_INT(tokenizer_vocab_size(tok), 1000);
    CHECK(clock_process_cpu_seconds() - begin < 20);
    tokenizer_free(tok);
    free(text);
}

TEST(tokenizer_export_view) {
    struct tokenizer *tok = golden("sentencepiece");
    CHECK_STR(tokenizer_gguf_model(tok), "llama");
    CHECK(tokenizer_add_space_prefix(tok) && tokenizer_add_bos(tok));
    CHECK_EQ_INT(tokenizer_token_type(tok, 0), TOKENIZER_UNKNOWN);
    CHECK_EQ_INT(tokenizer_token_type(tok, 1), TOKENIZER_CONTROL);
    CHECK_EQ_INT(tokenizer_token_type(tok, 3), TOKENIZER_USER_DEFINED);
    int32_t byte = tokenizer_id_of(tok, "<0x41>");
    CHECK(byte > 0);
    CHECK_EQ_INT(tokenizer_token_type(tok, (uint32_t)byte), TOKENIZER_BYTE);
    size_t length;
    CHECK(*tokenizer_token_bytes(tok, (uint32_t)byte, &length) == 'A' && length == 1);
    CHECK(tokenizer_token_score(tok, 300) < 0 &&
          tokenizer_token_score(tok, 300) > tokenizer_token_score(tok, 301));
    tokenizer_free(tok);
    tok = golden("smollm2");
    CHECK_STR(tokenizer_gguf_model(tok), "gpt2");
    CHECK_STR(tokenizer_gguf_pre(tok), "smollm");
    int32_t id = tokenizer_id_of(tok, " the");
    struct text text = {0};
    CHECK(id > 0 && tokenizer_token_text(tok, (uint32_t)id, &text) == 0);
    CHECK_STR(text.data, "\xC4\xA0the");
    text_free(&text);
    tokenizer_free(tok);
}

TEST(tokenizer_config_beside) {
    struct err err = {0};
    char from[4200], to[4200], *data;
    size_t size;
    snprintf(from, sizeof from, "%s/tokenizer/gpt2_files/vocab.json", test_golden_dir());
    CHECK_OK(file_read(from, 0, &data, &size, &err), err);
    CHECK_OK(file_join(to, sizeof to, test_temp_dir(), "vocab.json", &err), err);
    CHECK_OK(file_replace(to, data, size, &err), err);
    free(data);
    snprintf(from, sizeof from, "%s/tokenizer/gpt2_files/merges.txt", test_golden_dir());
    CHECK_OK(file_read(from, 0, &data, &size, &err), err);
    CHECK_OK(file_join(to, sizeof to, test_temp_dir(), "merges.txt", &err), err);
    CHECK_OK(file_replace(to, data, size, &err), err);
    free(data);
    static const char config[] =
        "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"bos_token\": null, \"eos_token\": "
        "{\"content\": \"<|im_end|>\"},"
        "\"pad_token\": \"<|endoftext|>\", \"model_max_length\": 1000000000000000019884624838656,"
        "\"chat_template\": [{\"name\": \"tool\", \"template\": \"t\"}, {\"name\": \"default\", "
        "\"template\": \"{{ x }}\"}],"
        "\"added_tokens_decoder\": {\"2000\": {\"content\": \"<|im_start|>\", \"special\": true},"
        "\"2001\": {\"content\": \"<|im_end|>\", \"special\": true}}}";
    CHECK_OK(file_join(to, sizeof to, test_temp_dir(), "tokenizer_config.json", &err), err);
    CHECK_OK(file_replace(to, config, sizeof config - 1, &err), err);
    struct tokenizer *tok = tokenizer_load(test_temp_dir(), &err);
    if (!tok) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_EQ_INT(tokenizer_vocab_size(tok), 2002);
    CHECK_EQ_INT(tokenizer_bos(tok), -1);
    CHECK_EQ_INT(tokenizer_eos(tok), 2001);
    CHECK_EQ_INT(tokenizer_eot(tok), 2001);
    CHECK_EQ_INT(tokenizer_pad(tok), tokenizer_id_of(tok, "<|endoftext|>"));
    CHECK_STR(tokenizer_chat_template(tok), "{{ x }}");
    CHECK_STR(tokenizer_gguf_pre(tok), "qwen2");
    struct token_list ids = encode(tok, "<|im_start|>", 12, TOKENIZER_PARSE_SPECIAL);
    CHECK(ids.count == 1 && ids.ids[0] == 2000);
    token_list_free(&ids);
    tokenizer_free(tok);
}
