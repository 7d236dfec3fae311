// From text to shards: what counts as a document, splits, compression, faults, any number of
// threads.
#include "base/file.h"
#include "base/random.h"
#include "data/dataset.h"
#include "data/input_json.h"
#include "data/prepare.h"
#include "data_tools.h"
#include "test.h"
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static struct tokenizer *small_tokenizer(void) {
    static const char text[] = "the cat and the hat and the bat sat on the mat; then the rat ran "
                               "at the cat that sat there, and all of them were there again";
    static const char *const specials[] = {"<|end|>", "<|begin|>"};
    struct tokenizer_train_options options = {
        .vocab_size = 280, .specials = specials, .special_count = 2, .split = TOKENIZER_SPLIT_GPT2};
    struct tokenizer_train_text one = {text, sizeof text - 1};
    struct err err = {ERR_NONE, ""};
    struct tokenizer *tok = tokenizer_train(&one, 1, &options, &err);
    if (!tok) test_fail(__FILE__, __LINE__, "tokenizer_train: %s", err.text);
    return tok;
}

struct job {
    struct prepare_options options;
    struct prepare_counts counts;
    const char *paths[4];
    struct tokenizer *tok;
    struct err err;
};

static void start(struct job *j, const char *out) {
    *j = (struct job){.tok = small_tokenizer()};
    j->options = (struct prepare_options){.input = {.paths = j->paths},
                                          .field = "text",
                                          .tokenizer = j->tok,
                                          .eod = tokenizer_id_of(j->tok, "<|end|>"),
                                          .bos = PREPARE_NONE,
                                          .out = tools_path(out),
                                          .threads = 2};
    CHECK(j->options.eod >= 0);
}

static void add(struct job *j, const char *path) {
    j->paths[j->options.input.path_count++] = path;
}

static int run(struct job *j) {
    j->err = (struct err){ERR_NONE, ""};
    return prepare_run(&j->options, &j->counts, &j->err);
}

static void run_ok(struct job *j) {
    CHECK_OK(run(j), j->err);
}

static void run_fails(struct job *j, const char *part) {
    CHECK(run(j) == -1);
    CHECK_CONTAINS(j->err.text, part);
}

static void end(struct job *j) {
    tokenizer_free(j->tok);
}

static const char *write_text(const char *name, const char *text) {
    const char *path = tools_path(name);
    tools_write(path, text, strlen(text));
    return path;
}

// The documents of a split as text, each closed by "|"; the separator checked and left out.
static const char *documents_of(struct job *j, const char *split, struct text *out) {
    struct dataset set;
    char path[4096];
    struct err err = {ERR_NONE, ""};
    snprintf(path, sizeof path, "%s/%s", j->options.out, split);
    CHECK_OK(dataset_open(&set, path, &err), err);
    out->size = 0;
    for (size_t i = 0; i < set.count; i++) {
        struct shard shard;
        struct shard_report report;
        CHECK_OK(shard_verify(set.paths[i], -1, -1, &report, &err), err);
        CHECK_OK(shard_open(&shard, set.paths[i], NULL, &err), err);
        for (uint64_t d = 0; d < shard.info.documents; d++) {
            uint64_t begin, finish;
            CHECK_OK(shard_document(&shard, d, &begin, &finish, &err), err);
            CHECK(finish - begin >= 1);
            if (j->options.eod >= 0) CHECK_EQ_INT(shard_id(&shard, --finish), j->options.eod);
            for (uint64_t t = begin; t < finish; t++) {
                uint32_t id = shard_id(&shard, t);
                CHECK_OK(tokenizer_decode(j->tok, &id, 1, false, out, &err), err);
            }
            CHECK(text_puts(out, "|") == 0);
        }
        shard_close(&shard);
    }
    dataset_close(&set);
    return out->data;
}

TEST(prepare_skips_empty_documents) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, write_text("in.jsonl", "{\"text\": \"\"}\n{\"text\": \"a\"}\n{\"text\": \"\"}\n"));
    run_ok(&j);
    CHECK_EQ_INT(j.counts.documents[0], 1);
    CHECK_EQ_INT(j.counts.skipped_empty, 2);
    CHECK_EQ_INT(j.counts.tokens[0], 2);
    CHECK_EQ_INT(j.counts.text_bytes[0], 1);
    CHECK_STR(documents_of(&j, "train", &text), "a|");
    text_free(&text);
    end(&j);
}

TEST(prepare_white_space_is_empty_too) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, write_text(
                "in.jsonl",
                "{\"text\": \" \\n\\t \"}\n\n{\"text\": \" x \"}\r\n   \n{\"text\": \"\\u0000\"}"));
    run_ok(&j);
    CHECK_EQ_INT(j.counts.documents[0], 2);
    CHECK_EQ_INT(j.counts.skipped_empty, 1);
    CHECK(memcmp(documents_of(&j, "train", &text), " x |\0|", 7) == 0);
    text_free(&text);
    end(&j);
}

TEST(prepare_without_any_document_fails) {
    struct job j;
    start(&j, "out");
    add(&j, write_text("in.jsonl", "{\"text\": \"\"}\n"));
    run_fails(&j, "no document with text");
    j.paths[0] = write_text("empty.txt", "");
    run_fails(&j, "no document with text");
    j.paths[0] = tools_path("nothing.txt");
    run_fails(&j, "no such file");
    CHECK_OK(file_make_folders(tools_path("folder"), &j.err), j.err);
    j.paths[0] = tools_path("folder");
    run_fails(&j, "no files");
    end(&j);
}

TEST(prepare_names_the_bad_line) {
    static const struct {
        const char *lines, *part;
    } cases[] = {
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n{\"text\": \"c\"}\n",
         "in.jsonl: line 2: not valid JSON"},
        {"{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n", "line 3: expected text in the field \"text\""},
        {"{\"text\": 5}\n", "line 1: expected text in the field \"text\", found something else"},
        {"{\"text\": null}\n", "line 1"},
        {"{\"text\": \"a\"}\n[1]\n", "line 2: expected an object"},
        {"[\n{\"text\": \"a\"}]\n", "one object per line"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "line 2: not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job j;
        start(&j, "out");
        add(&j, write_text("in.jsonl", cases[i].lines));
        run_fails(&j, cases[i].part);
        end(&j);
    }
}

TEST(prepare_counts_bad_lines_when_asked) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    j.options.skip_bad = true;
    add(&j,
        write_text("in.jsonl", "{\"text\": \"a\"}\nrubbish\n{\"body\": \"x\"}\n{\"text\": \"b\"}"));
    run_ok(&j);
    CHECK_EQ_INT(j.counts.skipped_bad, 2);
    CHECK_STR(documents_of(&j, "train", &text), "a|b|");
    text_free(&text);
    end(&j);
}

// What the quick scanner takes, the general parser takes with the same text; and it does take
// ordinary lines.
static bool check_scanner(const char *line, size_t size, struct text *room) {
    const char *found;
    size_t found_size;
    if (!input_json_text(line, size, "text", room, &found, &found_size)) return false;
    json_t *tree = json_loadb(line, size, JSON_ALLOW_NUL, NULL);
    json_t *value = json_object_get(tree, "text");
    if (!json_is_string(value)) test_fail(__FILE__, __LINE__, "taken: %.*s", (int)size, line);
    CHECK_EQ_INT(found_size, json_string_length(value));
    CHECK_BYTES(found, json_string_value(value), found_size);
    json_decref(tree);
    return true;
}

TEST(prepare_json_scanner_agrees_with_the_parser) {
    static const char *const lines[] = {
        "{\"text\": \"plain\"}",
        "{ \"id\": 12, \"m\": {\"a\": [1, 2.5, -3, null, true, {}]}, \"text\": \"\" } ",
        "{\"text\": \"\\\"q\\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u00e9 \\ud83d\\ude00 \\u0000 end\"}",
        "{\"text\": \"one\", \"text\": \"two\", \"z\": false}",
        "{\"text\": \"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\", \"n\": 0}",
        "{\"text\": \"\"}",
    };
    struct text room = {0};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char copy[256];
        size_t size = strlen(lines[i]), taken = 0;
        CHECK(check_scanner(lines[i], size, &room));
        for (uint64_t round = 0; round < 4000; round++) {
            static const char nasty[] = "{}[]\",:\\u0d8e-+.1\xff\x80\xed \t\n";
            uint32_t words[4];
            random_words(90 + i, round, words);
            memcpy(copy, lines[i], size);
            for (uint32_t k = 0; k <= words[0] % 2; k++)
                copy[words[1 + k] % size] = nasty[words[3] / (1 + 30 * k) % (sizeof nasty - 1)];
            taken += check_scanner(copy, words[0] % 5 == 0 ? words[2] % size : size, &room);
        }
        CHECK(taken > 20);
    }
    text_free(&room);
}

TEST(prepare_another_field) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    j.options.field = "body";
    j.options.input.kind = INPUT_JSONL;
    add(&j, write_text("in.txt", "{\"text\": \"a\", \"body\": \"b\\u00e9\"}\n"));
    run_ok(&j);
    CHECK_STR(documents_of(&j, "train", &text), "b\xc3\xa9|");
    text_free(&text);
    end(&j);
}

TEST(prepare_splits_text_into_documents) {
    static const struct {
        const char *separator, *in, *out;
    } cases[] = {
        {NULL, "a\n\nb\n", "a\n\nb\n|"},
        {"blank-line", "a\nb\n\nc\n\n\n\nd\n", "a\nb|c|d|"},
        {"blank-line", "\n\n\na\r\n\r\nb", "a|b|"},
        {"blank-line", "only one\n", "only one|"},
        {"line", "a\nb\r\n\nc", "a|b|c|"},
        {"<|x|>", "a<|x|>b\n\nc<|x|>", "a|b\n\nc|"},
        {"<|x|>", "<|x|>a<|x|><|x|>b<|x", "a|b<|x|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job j;
        struct text text = {0};
        start(&j, "out");
        j.options.overwrite = true;
        j.options.input.separator = cases[i].separator;
        add(&j, write_text("in.txt", cases[i].in));
        run_ok(&j);
        CHECK_STR(documents_of(&j, "train", &text), cases[i].out);
        text_free(&text);
        end(&j);
    }
}

// A separator must be found wherever the pieces that are read happen to end.
TEST(prepare_finds_separators_at_any_place) {
    enum { BYTES = 300000 };
    char *data = malloc(BYTES + 1);
    CHECK(data != NULL);
    static const char *const separators[] = {"<|sep|>", "blank-line"};
    for (int s = 0; s < 2; s++) {
        const char *mark = s ? "\n\n" : separators[0];
        size_t length = strlen(mark), documents = 1;
        memset(data, 'a', BYTES);
        for (size_t at = 60000; at + length < BYTES - 1; at += 997 + documents % 13, documents++)
            memcpy(data + at, mark, length);
        data[BYTES] = 0;
        struct job j;
        start(&j, "out");
        j.options.overwrite = true;
        j.options.input.separator = separators[s];
        add(&j, write_text("in.txt", data));
        run_ok(&j);
        CHECK_EQ_INT(j.counts.documents[0], documents);
        CHECK_EQ_INT(j.counts.text_bytes[0], BYTES - (documents - 1) * length);
        end(&j);
    }
    free(data);
}

// ---- compression and folders -------------------------------------------------------------------

static size_t gzip_into(unsigned char *out, size_t room, const char *text, size_t size) {
    z_stream z = {0};
    CHECK(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = (unsigned char *)text;
    z.avail_in = (uInt)size;
    z.next_out = out;
    z.avail_out = (uInt)room;
    CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static char *lines_of_text(size_t *size) {
    struct text t = {0};
    for (int i = 0; i < 40000; i++)
        CHECK(text_printf(&t, "{\"text\": \"line %d of the cat\"}\n", i * 7919 % 100003) == 0);
    *size = t.size;
    return t.data;
}

TEST(prepare_reads_gzip_and_zstd) {
    size_t size, room = 4 << 20, half;
    char *text = lines_of_text(&size);
    unsigned char *packed = malloc(room);
    CHECK(packed != NULL);
    half = (size_t)(strchr(text + size / 2, '\n') - text) - 5; // in the middle of a line
    for (int kind = 0; kind < 3; kind++) {
        size_t bytes;
        if (kind == 0) { // two members
            bytes = gzip_into(packed, room, text, half);
            bytes += gzip_into(packed + bytes, room - bytes, text + half, size - half);
        } else { // one frame, two frames
            bytes = ZSTD_compress(packed, room, text, kind == 1 ? size : half, 3);
            CHECK(!ZSTD_isError(bytes));
            if (kind == 2)
                bytes += ZSTD_compress(packed + bytes, room - bytes, text + half, size - half, 3);
        }
        const char *path = tools_path(kind ? "in.jsonl.zst" : "in.jsonl.gz");
        tools_write(path, packed, bytes);
        struct job j;
        start(&j, "out");
        j.options.overwrite = true;
        add(&j, path);
        run_ok(&j);
        CHECK_EQ_INT(j.counts.documents[0], 40000);
        tools_write(path, packed, bytes - 9);
        run_fails(&j, "damaged or cut");
        packed[bytes / 3] ^= 0x55;
        packed[bytes / 3 + 1] ^= 0x55;
        tools_write(path, packed, bytes);
        if (kind == 0) CHECK(run(&j) == -1); // the zstd frames here carry no checksum
        end(&j);
    }
    free(packed);
    free(text);
}

TEST(prepare_walks_folders_in_order) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    CHECK_OK(file_make_folders(tools_path("in/b"), &j.err), j.err);
    write_text("in/c.txt", "third");
    write_text("in/b/x.jsonl", "{\"text\": \"second\"}");
    write_text("in/a.txt", "first");
    write_text("in/.hidden", "never");
    add(&j, tools_path("in"));
    add(&j, write_text("last.txt", "fourth"));
    run_ok(&j);
    CHECK_STR(documents_of(&j, "train", &text), "first|second|third|fourth|");
    CHECK_EQ_INT(j.counts.files, 4);
    text_free(&text);
    end(&j);
}

// ---- bits do not depend on threads -------------------------------------------------------------

static char *mixed_text(size_t *size) {
    struct text t = {0};
    uint32_t words[4];
    for (uint64_t i = 0; i < 2000; i++) {
        random_words(31, i, words);
        uint32_t length = i == 700 ? 1500000 : words[0] % 800;
        for (uint32_t k = 0; k < length; k++) {
            random_words(32 + i, k / 4, words);
            unsigned char byte = (unsigned char)(words[k % 4] >> 3);
            if (byte == 0 || byte > 0xf0) byte = 'a';
            if (byte == '\n') byte = ' ';
            CHECK(text_put(&t, &byte, 1) == 0);
        }
        CHECK(text_put(&t, "\n", 1) == 0);
    }
    *size = t.size;
    return t.data;
}

TEST(prepare_does_not_depend_on_threads) {
    size_t size, sizes[2][2];
    char *text = mixed_text(&size), *data[2][2];
    tools_write(tools_path("in.txt"), text, size);
    uint64_t invalid[3];
    for (int threads = 1; threads <= 3; threads++) {
        struct job j;
        start(&j, "out");
        j.options.overwrite = true;
        j.options.threads = threads;
        j.options.input.separator = "line";
        j.options.validation = 0.1;
        add(&j, tools_path("in.txt"));
        run_ok(&j);
        invalid[threads - 1] = j.counts.invalid_bytes;
        int which = threads > 1;
        for (int s = 0; s < 2; s++) {
            CHECK_OK(file_read(tools_path(s ? "out/validation/shard-00000.weft"
                                            : "out/train/shard-00000.weft"),
                               0, &data[which][s], &sizes[which][s], &j.err),
                     j.err);
            if (!which) continue;
            CHECK_EQ_INT(sizes[1][s], sizes[0][s]);
            CHECK_BYTES(data[1][s], data[0][s], sizes[0][s]);
            free(data[1][s]);
        }
        end(&j);
    }
    CHECK(invalid[0] > 1000);
    CHECK_EQ_INT(invalid[1], invalid[0]);
    CHECK_EQ_INT(invalid[2], invalid[0]);
    free(data[0][0]);
    free(data[0][1]);
    free(text);
}

TEST(prepare_keeps_invalid_bytes) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, write_text("in.txt", "caf\xe9 \xff\xfe ok \xc3\xa9 \xf0\x9f"));
    run_ok(&j);
    CHECK_EQ_INT(j.counts.invalid_bytes, 5);
    CHECK_STR(documents_of(&j, "train", &text), "caf\xe9 \xff\xfe ok \xc3\xa9 \xf0\x9f|");
    text_free(&text);
    end(&j);
}

// ---- splits ------------------------------------------------------------------------------------

static const char *numbered(int count) {
    struct text t = {0};
    for (int i = 0; i < count; i++) CHECK(text_printf(&t, "{\"text\": \"d%d\"}\n", i) == 0);
    const char *path = write_text("in.jsonl", t.data);
    text_free(&t);
    return path;
}

// How often each document occurs, over both splits.
static void check_disjoint(struct job *j, int count) {
    struct text train = {0}, validation = {0};
    documents_of(j, "train", &train);
    documents_of(j, "validation", &validation);
    for (int i = 0; i < count; i++) {
        char name[16], first[16];
        snprintf(name, sizeof name, "|d%d|", i);
        snprintf(first, sizeof first, "d%d|", i);
        bool in_train = strstr(train.data, name) || strncmp(train.data, first, strlen(first)) == 0;
        bool in_validation =
            strstr(validation.data, name) || strncmp(validation.data, first, strlen(first)) == 0;
        CHECK(in_train != in_validation);
    }
    text_free(&train);
    text_free(&validation);
}

TEST(prepare_holds_documents_out) {
    struct job j;
    start(&j, "out");
    j.options.overwrite = true;
    add(&j, numbered(400));
    j.options.validation = 0.1;
    run_ok(&j);
    CHECK(j.counts.documents[1] > 15 && j.counts.documents[1] < 80);
    CHECK_EQ_INT(j.counts.documents[0] + j.counts.documents[1], 400);
    check_disjoint(&j, 400);
    struct text a = {0}, b = {0};
    documents_of(&j, "validation", &a);
    j.options.seed = 1;
    run_ok(&j);
    documents_of(&j, "validation", &b);
    CHECK(strcmp(a.data, b.data) != 0);
    j.options.validation = 7;
    run_ok(&j);
    CHECK_EQ_INT(j.counts.documents[1], 7);
    CHECK_EQ_INT(j.counts.documents[0], 393);
    check_disjoint(&j, 400);
    text_free(&a);
    text_free(&b);
    end(&j);
}

TEST(prepare_refuses_splits_that_cannot_be) {
    struct job j;
    start(&j, "out");
    j.options.overwrite = true;
    add(&j, write_text("one.txt", "a\n\nb"));
    j.options.validation = 0.5;
    run_fails(&j, "--split-documents");
    j.options.validation = 1;
    run_fails(&j, "--split-documents");
    j.options.input.separator = "blank-line";
    run_ok(&j);
    check_disjoint(&j, 0);
    j.options.validation = 2;
    run_fails(&j, "only 2 documents");
    j.options.validation = 1.5;
    run_fails(&j, "whole number");
    j.options.validation = -0.5;
    run_fails(&j, "expected a share");
    j.options.validation = 1e-9;
    run_fails(&j, "give a number of documents");
    end(&j);
}

// ---- ids around a document ---------------------------------------------------------------------

TEST(prepare_puts_one_bos) {
    struct job j;
    struct err err = {ERR_NONE, ""};
    struct shard shard;
    start(&j, "out");
    int32_t bos = tokenizer_id_of(j.tok, "<|begin|>");
    j.options.bos = bos;
    j.options.parse_special = true;
    add(&j, write_text("in.jsonl", "{\"text\": \"<|begin|>the\"}\n{\"text\": \"the\"}\n"
                                   "{\"text\": \"the<|end|>\"}\n"));
    run_ok(&j);
    CHECK_OK(shard_open(&shard, tools_path("out/train/shard-00000.weft"), NULL, &err), err);
    uint64_t begin, finish;
    CHECK_EQ_INT(shard.info.documents, 3);
    for (uint64_t d = 0; d < 3; d++) { // all three come out the same
        CHECK_OK(shard_document(&shard, d, &begin, &finish, &err), err);
        CHECK_EQ_INT(finish - begin, shard.info.tokens / 3);
        CHECK_EQ_INT(shard_id(&shard, begin), bos);
        CHECK(shard_id(&shard, begin + 1) != (uint32_t)bos);
        CHECK_EQ_INT(shard_id(&shard, finish - 1), j.options.eod);
        CHECK(shard_id(&shard, finish - 2) != (uint32_t)j.options.eod);
    }
    shard_close(&shard);
    end(&j);
}

TEST(prepare_leaves_special_text_alone) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, write_text("in.txt", "the <|end|> of"));
    run_ok(&j);
    CHECK(j.counts.tokens[0] > 6);
    CHECK_STR(documents_of(&j, "train", &text), "the <|end|> of|");
    text_free(&text);
    end(&j);
}

// ---- the folder --------------------------------------------------------------------------------

TEST(prepare_writes_shards_of_a_size) {
    struct job j;
    struct text text = {0};
    struct err err = {ERR_NONE, ""};
    start(&j, "out");
    add(&j, write_text("in.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"cdefgh\"}\n"
                                   "{\"text\": \"i\"}\n"));
    j.options.shard_tokens = 4;
    run_ok(&j);
    struct dataset set;
    CHECK_OK(dataset_open(&set, j.options.out, &err), err);
    CHECK_EQ_INT(set.count, 3);
    CHECK_EQ_INT(set.infos[0].documents, 2);
    CHECK_EQ_INT(set.infos[1].documents, 1);
    CHECK_EQ_INT(set.infos[0].eod, j.options.eod);
    CHECK_EQ_INT(set.infos[0].vocab_size, tokenizer_vocab_size(j.tok));
    CHECK_EQ_INT(set.text_bytes, 9);
    dataset_close(&set);
    CHECK_STR(documents_of(&j, "train", &text), "a|b|cdefgh|i|");
    text_free(&text);
    // the tokenizer beside the data is the one that made it
    char folder[4096];
    const char *const starts[] = {"out", "out/train", "out/train/shard-00000.weft"};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(dataset_tokenizer(tools_path(starts[i]), folder, &err), err);
        struct tokenizer *again = tokenizer_load(folder, &err);
        CHECK(again != NULL);
        CHECK_EQ_INT(tokenizer_fingerprint(again), tokenizer_fingerprint(j.tok));
        tokenizer_free(again);
    }
    end(&j);
}

TEST(prepare_megatron_pairs) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, numbered(20));
    j.options.format = SHARD_MEGATRON;
    j.options.validation = 5;
    j.options.shard_tokens = 3; // one pair all the same
    run_ok(&j);
    CHECK(file_exists(tools_path("out/train/data.idx")));
    check_disjoint(&j, 20);
    struct err err = {ERR_NONE, ""};
    struct shard_info info;
    CHECK_OK(shard_look(tools_path("out/validation/data"), &info, &err), err);
    CHECK_EQ_INT(info.kind, SHARD_MEGATRON);
    CHECK_EQ_INT(info.documents, 5);
    text_free(&text);
    end(&j);
}

TEST(prepare_replaces_only_when_asked) {
    struct job j;
    struct text text = {0};
    start(&j, "out");
    add(&j, write_text("in.txt", "first"));
    run_ok(&j);
    j.paths[0] = write_text("in2.txt", "second");
    run_fails(&j, "--overwrite");
    CHECK_STR(documents_of(&j, "train", &text), "first|");
    j.options.overwrite = true;
    run_ok(&j);
    CHECK_STR(documents_of(&j, "train", &text), "second|");
    text_free(&text);
    end(&j);
}

TEST(prepare_full_disk_leaves_nothing_that_looks_whole) {
    struct job j;
    struct text text = {0};
    struct dataset set;
    start(&j, "out");
    add(&j, numbered(200));
    j.options.shard_tokens = 50;
    for (uint64_t bytes = 0; bytes < 9000; bytes += 700) {
        file_fail_after(bytes, ENOSPC);
        int result = run(&j);
        file_fail_after(0, 0);
        if (result == 0) break;
        CHECK_EQ_INT(j.err.kind, ERR_IO);
        CHECK(dataset_open(&set, j.options.out, NULL) == -1);
        CHECK(dataset_open(&set, tools_path("out/train"), NULL) == -1);
    }
    run_ok(&j); // what was left is no obstacle
    CHECK_EQ_INT(j.counts.documents[0], 200);
    documents_of(&j, "train", &text);
    CHECK(text.data && strncmp(text.data, "d0|d1|d2|", 9) == 0);
    text_free(&text);
    end(&j);
}

TEST(prepare_real_corpus_has_the_known_tokens) {
    if (!test_data_dir()) SKIP("needs external data");
    struct job j;
    struct err err = {ERR_NONE, ""};
    char path[4096], corpus[4096];
    start(&j, "out");
    snprintf(path, sizeof path, "%s/tokenizers/gpt2", test_data_dir());
    snprintf(corpus, sizeof corpus, "%s/corpora/tinyshakespeare/input.txt", test_data_dir());
    struct tokenizer *gpt2 = tokenizer_load(path, &err);
    if (!gpt2) test_fail(__FILE__, __LINE__, "%s", err.text);
    char *text;
    size_t size;
    CHECK_OK(file_read(corpus, 0, &text, &size, &err), err);
    size_t cut = size * 9 / 10;
    tools_write(tools_path("a.txt"), text, cut);
    tools_write(tools_path("b.txt"), text + cut, size - cut);
    free(text);
    j.options.tokenizer = gpt2;
    j.options.eod = PREPARE_NONE;
    j.options.overwrite = true;
    add(&j, tools_path("a.txt"));
    run_ok(&j);
    CHECK_EQ_INT(j.counts.tokens[0], 301966);
    j.paths[0] = tools_path("b.txt");
    run_ok(&j);
    CHECK_EQ_INT(j.counts.tokens[0], 36059);
    tokenizer_free(gpt2);
    end(&j);
}
