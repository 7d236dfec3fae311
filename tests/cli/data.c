// `weft data` as a user meets it: what it prints, with which status it ends.
#include "base/file.h"
#include "data/shard_write.h"
#include "data/tokenizer.h"
#include "test.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char out[20000];

// A shard or pair of three documents; the second begins with two BOS.
static void make(const char *name, enum shard_kind kind, char path[4096]) {
    struct err err = {ERR_NONE, ""};
    struct shard_info info,
        like = {.kind = kind, .vocab_size = 300, .eod = 0, .bos = 1, .ends_with_eod = true};
    static const uint32_t ids[3][5] = {{1, 4, 5, 6, 0}, {1, 1, 7, 8, 0}, {1, 9, 9, 9, 0}};
    snprintf(path, 4096, "%s/%s", test_temp_dir(), name);
    struct shard_writer *w = malloc(sizeof *w);
    CHECK(w != NULL);
    CHECK_OK(shard_writer_open(w, path, &like, &err), err);
    for (int d = 0; d < 3; d++) CHECK_OK(shard_writer_document(w, ids[d], 5, 20, &err), err);
    CHECK_OK(shard_writer_close(w, &info, &err), err);
    free(w);
}

static void patch(const char *path, long at, unsigned char value) {
    FILE *f = fopen(path, "r+b");
    CHECK(f && fseek(f, at, SEEK_SET) == 0 && fputc(value, f) != EOF && fclose(f) == 0);
}

TEST(data_verify) {
    char path[4096], pair[4096], index[4200];
    make("a.weft", SHARD_WEFT, path);
    make("pair", SHARD_MEGATRON, pair);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s data verify %s %s --bos 1", test_weft(), path, pair), 0);
    CHECK_CONTAINS(out, "15 tokens in 3 documents");
    CHECK_CONTAINS(out, "document 1 begins with BOS twice");
    snprintf(index, sizeof index, "%s.idx", pair);
    patch(index, 34 + 4, 4); // size of document 1
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data verify %s", test_weft(), pair), 3);
    CHECK_CONTAINS(out, "document 1");
    patch(path, SHARD_HEADER_BYTES + 32 + 8, 4); // end of document 0
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data verify %s", test_weft(), path), 3);
    CHECK_CONTAINS(out, "document 0");
}

TEST(data_inspect_and_mix) {
    char path[4096], pair[4096];
    make("a.weft", SHARD_WEFT, path);
    make("pair", SHARD_MEGATRON, pair);
    CHECK_EQ_INT(
        test_shell(out, sizeof out, "%s data inspect --context 4 %s --json", test_weft(), path), 0);
    json_t *tree = json_loads(out, 0, NULL);
    CHECK(tree != NULL);
    CHECK_EQ_INT(json_integer_value(json_object_get(tree, "tokens")), 15);
    json_t *ways = json_object_get(tree, "layouts");
    static const struct {
        const char *way;
        int rows, cut, lost, pairs;
    } expected[] = {{"padded", 3, 3, 3, 30},
                    {"chunked", 3, 3, 3, 30},
                    {"chunked, masked", 3, 3, 3, 10 + 1 + 6 + 3 + 3},
                    {"best-fit", 3, 3, 3, 30}};
    for (int i = 0; i < 4; i++) {
        json_t *way = json_object_get(ways, expected[i].way);
        CHECK_EQ_INT(json_integer_value(json_object_get(way, "rows")), expected[i].rows);
        CHECK_EQ_INT(json_integer_value(json_object_get(way, "cut_documents")), expected[i].cut);
        CHECK_EQ_INT(json_integer_value(json_object_get(way, "lost_tokens")), expected[i].lost);
        CHECK_EQ_INT(json_integer_value(json_object_get(way, "attended_pairs")), expected[i].pairs);
    }
    json_decref(tree);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data inspect %s", test_weft(), pair), 0);
    CHECK_CONTAINS(out, "Megatron, ids of 16 bits");
    CHECK_CONTAINS(out, "best-fit");
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s data mix --context 2 --samples 30 %s=1 %s=2 --json", test_weft(),
                            path, pair),
                 0);
    tree = json_loads(out, 0, NULL);
    CHECK_EQ_INT(json_integer_value(json_object_get(json_array_get(tree, 0), "samples")), 10);
    CHECK_EQ_INT(json_integer_value(json_object_get(json_array_get(tree, 1), "samples")), 20);
    CHECK_CLOSE(json_number_value(json_object_get(json_array_get(tree, 1), "epochs")), 20.0 / 7,
                1e-9);
    json_decref(tree);
}

TEST(data_prepare_end_to_end) {
    const char *dir = test_temp_dir();
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cd %s && printf 'the cat sat on the mat and the cat ran' >t.txt && "
                            "%s tokenizer train --vocab-size 264 --out tok t.txt",
                            dir, test_weft()),
                 0);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cd %s && printf '{\"text\": \"\"}\\n{\"text\": \"a\"}\\n{\"text\": "
                            "\"\"}\\n' >in.jsonl && "
                            "%s data prepare --tokenizer tok --out data in.jsonl",
                            dir, test_weft()),
                 0);
    CHECK_CONTAINS(out, "1 documents, 2 tokens");
    CHECK_CONTAINS(out, "skipped_empty=2");
    CHECK_EQ_INT(test_shell(out, sizeof out, "cd %s && %s data verify data", dir, test_weft()), 0);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "cd %s && %s data prepare --tokenizer tok --out data in.jsonl", dir,
                            test_weft()),
                 2);
    CHECK_CONTAINS(out, "--overwrite");
    CHECK_EQ_INT(
        test_shell(out, sizeof out,
                   "cd %s && %s data prepare --tokenizer tok --out data2 --validation 0.5 t.txt",
                   dir, test_weft()),
        2);
    CHECK_CONTAINS(out, "--split-documents");
    CHECK_EQ_INT(
        test_shell(out, sizeof out,
                   "cd %s && %s data prepare --tokenizer tok --eod none --out d3 t.txt --json", dir,
                   test_weft()),
        0);
    CHECK_CONTAINS(out, "\"documents\": 1");
}

TEST(data_wrong_usage) {
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data --help", test_weft()), 0);
    CHECK_CONTAINS(out, "--split-documents");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data", test_weft()), 2);
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data prepear", test_weft()), 2);
    CHECK_CONTAINS(out, "prepare");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data prepare --out x y", test_weft()), 2);
    CHECK_CONTAINS(out, "--tokenizer is missing");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data prepare --tokeniser x", test_weft()), 2);
    CHECK_CONTAINS(out, "did you mean --tokenizer");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s data inspect /nonexistent/data", test_weft()), 4);
    CHECK_CONTAINS(out, "no such data");
}

TEST(data_bench_loader) {
    char path[4096];
    make("a.weft", SHARD_WEFT, path);
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s bench loader --data %s --context 4 --rows 2 --seconds 0.02 --json",
                            test_weft(), path),
                 0);
    json_t *tree = json_loads(out, 0, NULL);
    CHECK_EQ_INT(json_array_size(json_object_get(tree, "measured")), 5);
    CHECK(json_number_value(json_object_get(json_array_get(json_object_get(tree, "measured"), 0),
                                            "tokens_per_second")) > 0);
    json_decref(tree);
}
