// Damaged, foreign and hostile tokenizer files: one clear line, and nothing read out of bounds (the
// fuzzers run under the sanitizers too).
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "data/tokenizer.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *write_file(const char *name, const void *data, size_t size) {
    static char path[4200];
    struct err err = {0};
    CHECK_OK(file_join(path, sizeof path, test_temp_dir(), name, &err), err);
    CHECK_OK(file_replace(path, data, size, &err), err);
    return path;
}

static void check_refused(const char *name, const void *data, size_t size, const char *part) {
    struct err err = {0};
    struct tokenizer *tok = tokenizer_load(write_file(name, data, size), &err);
    if (tok) test_fail(__FILE__, __LINE__, "accepted: %.200s", (const char *)data);
    CHECK_CONTAINS(err.text, part);
    CHECK(!strchr(err.text, '\n'));
}

static void check_json(const char *text, const char *part) {
    check_refused("tokenizer.json", text, strlen(text), part);
}

#define MODEL(vocab, merges)                                                                       \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define BYTES "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
#define AB "{\"a\":0,\"b\":1,\"ab\":2}"

TEST(tokenizer_bad_json) {
    check_json("", "empty");
    check_json("{\"model\": ", "not valid JSON");
    check_json("[1, 2]", "neither a tokenizer.json");
    check_json("{}", "model");
    check_json("{" MODEL("{}", "[]") "}", "vocabulary is empty");
    check_json("{" MODEL("[]", "[]") "}", "model.vocab: expected an object");
    check_json("{" MODEL("{\"a\":-1}", "[]") "}", "expected an id");
    check_json("{" MODEL("{\"a\":99999999999}", "[]") "}", "expected an id");
    check_json("{" MODEL("{\"a\":1.5}", "[]") "}", "expected an id");
    check_json("{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", "given twice");
    check_json("{" MODEL("{\"a\":0,\"a\":1}", "[]") "}", "duplicate");
    check_json("{" BYTES MODEL(AB, "[\"a c\"]") "}", "the second is not in the vocabulary");
    check_json("{" BYTES MODEL(AB, "[\"x b\"]") "}", "the first is not in the vocabulary");
    check_json("{" BYTES MODEL(AB, "[\"b a\"]") "}", "the result is not in the vocabulary");
    check_json("{" BYTES MODEL(AB, "[\"ab\"]") "}", "expected two tokens");
    check_json("{" BYTES MODEL(AB, "[[\"a\"]]") "}", "entry 0");
    check_json("{" BYTES MODEL(AB, "[7]") "}", "entry 0");
    check_json("{" BYTES MODEL(AB, "{}") "}", "expected a list");
    check_json("{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", "Unigram");
    check_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
               "dropout");
    check_json(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}",
        "unk_token");
    check_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_"
               "suffix\":\"</w>\"}}",
               "end_of_word_suffix");
    check_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"novelty\":1}}",
               "novelty");
    check_json("{" BYTES MODEL("{\"<x y>\":0}", "[]") "}", "vocabulary is empty");
}

TEST(tokenizer_bad_parts_are_named) {
    static const struct {
        const char *part, *message;
    } cases[] = {
        {"\"novelty\":1,", "novelty"},
        {"\"truncation\":{\"max_length\":5},", "truncation"},
        {"\"padding\":{},", "padding"},
        {"\"normalizer\":{\"type\":\"BertNormalizer\"},", "BertNormalizer"},
        {"\"normalizer\":{\"type\":\"NFC\",\"extra\":1},", "extra"},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"},",
         "Regex"},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"},",
         "empty"},
        {"\"normalizer\":{\"type\":\"Prepend\"},", "Prepend"},
        {"\"normalizer\":5,", "normalizer"},
        {"\"normalizer\":{\"type\":\"Sequence\"},", "normalizers"},
        {"\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},", "BertPreTokenizer"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":"
         "\"Isolated\"},",
         "does not compile"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}"
         ",",
         "Odd"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"},",
         "expected a pattern"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":"
         "\"maybe\"},",
         "maybe"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{"
         "\"type\":\"Digits\"}]},",
         "behind ByteLevel"},
        {"\"post_processor\":{\"type\":\"BertProcessing\"},", "BertProcessing"},
        {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}},",
         "<s>"},
        {"\"decoder\":{\"type\":\"WordPiece\"},", "WordPiece"},
        {"\"added_tokens\":[{\"id\":5}],", "content"},
        {"\"added_tokens\":[{\"id\":-5,\"content\":\"x\"}],", "out of range"},
        {"\"added_tokens\":[{\"id\":5,\"content\":\"\"}],", "empty"},
        {"\"added_tokens\":[{\"id\":5,\"content\":\"x\\u0000y\"}],", "NUL"},
        {"\"added_tokens\":[{\"id\":0,\"content\":\"x\"}],", "which is the vocabulary's"},
        {"\"added_tokens\":[{\"id\":5,\"content\":\"x\"},{\"id\":6,\"content\":\"x\"}],",
         "given twice"},
        {"\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"odd\":true}],", "odd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1000];
        snprintf(text, sizeof text, "{%s%s}", cases[i].part, MODEL(AB, "[\"a b\"]"));
        check_json(text, cases[i].message);
    }
}

TEST(tokenizer_bad_nesting) {
    size_t depth = 100000;
    char *text = malloc(depth + 1);
    memset(text, '[', depth);
    memcpy(text, "{\"model\":", 9);
    check_refused("tokenizer.json", text, depth, "nested");
    free(text);
    char sequence[2000] = "{\"normalizer\":", *at = sequence + strlen(sequence);
    for (int i = 0; i < 30; i++) at += sprintf(at, "{\"type\":\"Sequence\",\"normalizers\":[");
    at += sprintf(at, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 30; i++) at += sprintf(at, "]}");
    sprintf(at, "," MODEL(AB, "[]") "}");
    check_json(sequence, "nested too deeply");
}

TEST(tokenizer_bad_ranks) {
    check_refused("a.tiktoken", "YQ== 0\nYg== x\n", 14, ":2: expected \"base64 rank\"");
    check_refused("a.tiktoken", "YQ== 0\nYg 1\n", 12, ":2: expected");
    check_refused("a.tiktoken", "YQ== 0\nYg== 0\n", 14, "given twice");
    check_refused("a.tiktoken", "YQ== 0\nYQ== 1\n", 14, "given twice");
    check_refused("a.tiktoken", "YQ== 99999999\n", 14, "out of range");
    check_refused("a.tiktoken",
                  "\x7F"
                  "ELF\x01\x01",
                  6, "neither a tokenizer.json");
    check_refused("a.tiktoken", "plain words of a text\n", 22, "neither a tokenizer.json");
}

TEST(tokenizer_bad_merges_text) {
    struct err err = {0};
    write_file("vocab.json", AB, strlen(AB));
    write_file("merges.txt", "#version: 0.2\na b\nb c\n", 22);
    CHECK(!tokenizer_load(test_temp_dir(), &err));
    CHECK_CONTAINS(err.text, "merges.txt: merge 1");
}

TEST(tokenizer_absent) {
    struct err err = {0};
    CHECK(!tokenizer_load("/nonexistent/tokenizer.json", &err));
    CHECK_CONTAINS(err.text, "/nonexistent");
    err = (struct err){0};
    CHECK(!tokenizer_load(test_temp_dir(), &err));
    CHECK_CONTAINS(err.text, "no tokenizer.json");
}

TEST(tokenizer_bad_sentencepiece) {
    struct err err = {0};
    char path[4200], *data;
    size_t size;
    snprintf(path, sizeof path, "%s/tokenizer/sentencepiece/tokenizer.model", test_golden_dir());
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    check_refused("tokenizer.model", data, size / 2, "SentencePiece");
    check_refused("tokenizer.model", data, 3, "SentencePiece");
    static const char unigram[] = "\n\x08\n\x01"
                                  "a\x15\0\0\0\0\x12\x02\x18\x01";
    check_refused("tokenizer.model", unigram, sizeof unigram - 1, "unigram");
    free(data);
}

// Loads the bytes; a tokenizer that comes of it encodes and decodes. 1 when it was accepted.
static int try_file(const char *name, const char *bytes, size_t size) {
    static const char text[] = "The river's 1234 stones \xE6\xB2\xB3 <|endoftext|> <mask>  \x80\n";
    struct err err = {0};
    struct tokenizer *tok = tokenizer_load(write_file(name, bytes, size), &err);
    if (!tok) {
        CHECK(err.kind != ERR_NONE && err.text[0]);
        return 0;
    }
    struct token_list ids = {0};
    struct text back = {0};
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &err);
    if (tokenizer_encode(tok, scratch, text, sizeof text - 1, TOKENIZER_PARSE_SPECIAL, &ids,
                         &err) == 0)
        CHECK_OK(tokenizer_decode(tok, ids.ids, ids.count, false, &back, &err), err);
    text_free(&back);
    token_list_free(&ids);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
    return 1;
}

// Files with bytes changed, cut out, doubled: every outcome is a tokenizer that encodes, or an
// error.
static void fuzz(const char *kind, const char *name, int rounds) {
    struct err err = {0};
    char path[4200], *data;
    size_t size;
    int accepted = 0;
    snprintf(path, sizeof path, "%s/tokenizer/%s/%s", test_golden_dir(), kind, name);
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    char *mutant = malloc(size * 2 + 64);
    for (int round = 0; round < rounds; round++) {
        uint64_t key = random_key((uint64_t)round, name);
        size_t length = size;
        memcpy(mutant, data, size);
        for (uint64_t change = 0; change < 1 + key % 4; change++) {
            uint32_t r[4];
            random_words(key, change, r);
            size_t at = r[0] % length;
            switch (r[1] % 5) {
            case 0:
                mutant[at] = (char)r[2];
                break;
            case 1:
                mutant[at] = "{}[]\",:0919ax\\\x80\xFF"[r[2] % 17];
                break;
            case 2:
                length = at + 1;
                break;
            case 3: { // takes bytes out
                size_t count = 1 + r[2] % 40;
                if (at + count < length)
                    memmove(mutant + at, mutant + at + count, length - at - count), length -= count;
                break;
            }
            default: { // copies bytes from elsewhere
                size_t from = r[2] % length, count = 1 + r[3] % 60;
                if (from + count <= length && at + count <= length)
                    memmove(mutant + at, mutant + from, count);
            }
            }
        }
        accepted += try_file(name, mutant, length);
    }
    CHECK(accepted < rounds);
    free(mutant);
    free(data);
}

static json_t *odd_value(uint32_t choice) {
    static const char *const texts[] = {
        "",          "a",     "\xC4\xA0", "the",     "<unk>", "\xE2\x96\x81", "Sequence",
        "ByteLevel", "Split", "Replace",  "\\p{L}+", "[",     "never"};
    switch (choice % 8) {
    case 0:
        return json_null();
    case 1:
        return json_integer(choice / 8 % 700);
    case 2:
        return json_boolean(choice & 8);
    case 3:
        return json_integer((json_int_t)choice << 20);
    case 4:
        return json_object();
    case 5:
        return json_array();
    default:
        return json_string(texts[choice / 8 % (sizeof texts / sizeof *texts)]);
    }
}

// Changes one node of a tree: to something odd, to a copy of a sibling, or away.
static void mutate(json_t *node, uint64_t key) {
    for (uint64_t depth = 0;; depth++) {
        uint32_t r[4];
        random_words(key, depth, r);
        size_t count = json_is_object(node) ? json_object_size(node) : json_array_size(node);
        if (count == 0) return;
        const char *name = NULL;
        json_t *child = json_array_get(node, r[0] % count);
        if (json_is_object(node)) {
            void *at = json_object_iter(node);
            for (size_t skip = r[0] % count; skip > 0; skip--) at = json_object_iter_next(node, at);
            name = json_object_iter_key(at);
            child = json_object_iter_value(at);
        }
        bool deeper = (json_object_size(child) || json_array_size(child)) && r[1] % 5;
        if (deeper) {
            node = child;
            continue;
        }
        json_t *other = r[2] % 3 ? odd_value(r[3]) : json_deep_copy(child);
        if (name && r[2] % 7 == 0)
            json_object_del(node, name);
        else if (name)
            json_object_set_new(node, r[2] % 11 == 0 ? "type" : name, other);
        else if (r[2] % 7 == 0)
            json_array_remove(node, r[0] % count);
        else
            json_array_insert_new(node, r[3] % count, other);
        if ((name || r[2] % 7 == 0) && !(name && r[2] % 7)) json_decref(other);
        return;
    }
}

// Valid JSON with wrong contents reaches deeper than damaged bytes do.
static void fuzz_tree(const char *kind, int rounds) {
    struct err err = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/tokenizer/%s/tokenizer.json", test_golden_dir(), kind);
    json_t *root = json_parse_file(path, &err);
    CHECK(root);
    int accepted = 0;
    for (int round = 0; round < rounds; round++) {
        json_t *tree = json_deep_copy(root);
        uint64_t key = random_key((uint64_t)round, kind);
        for (uint64_t change = 0; change < 1 + key % 2; change++) mutate(tree, key + change * 1000);
        char *text = json_dumps(tree, JSON_COMPACT);
        CHECK(text);
        accepted += try_file("tokenizer.json", text, strlen(text));
        free(text);
        json_decref(tree);
    }
    if (accepted < rounds / 50 || accepted > rounds * 9 / 10)
        test_fail(__FILE__, __LINE__, "%s: %d of %d accepted", kind, accepted, rounds);
    json_decref(root);
}

TEST(tokenizer_fuzz_tree_llama3) {
    fuzz_tree("llama3", 400);
}
TEST(tokenizer_fuzz_tree_llama2) {
    fuzz_tree("llama2", 400);
}
TEST(tokenizer_fuzz_tree_metaspace) {
    fuzz_tree("metaspace", 400);
}
TEST(tokenizer_fuzz_tree_lowercase) {
    fuzz_tree("lowercase", 400);
}
TEST(tokenizer_fuzz_tree_patterns) {
    fuzz_tree("patterns", 400);
}
TEST(tokenizer_fuzz_byte_level) {
    fuzz("llama3", "tokenizer.json", 300);
}
TEST(tokenizer_fuzz_patterns) {
    fuzz("patterns", "tokenizer.json", 300);
}
TEST(tokenizer_fuzz_characters) {
    fuzz("metaspace", "tokenizer.json", 300);
}
TEST(tokenizer_fuzz_tiktoken) {
    fuzz("tiktoken", "small.tiktoken", 300);
}
TEST(tokenizer_fuzz_sentencepiece) {
    fuzz("sentencepiece", "tokenizer.model", 1000);
}
