// Shards: width of ids, sizes, round trips, other programs' formats, damaged files.
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "data_tools.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_ok(struct shard *shard, const char *path) {
    struct err err = {ERR_NONE, ""};
    CHECK_OK(shard_open(shard, path, NULL, &err), err);
}

static void check_document(const struct shard *shard, uint64_t d, uint64_t from, uint64_t to) {
    struct err err = {ERR_NONE, ""};
    uint64_t begin, end;
    CHECK_OK(shard_document(shard, d, &begin, &end, &err), err);
    CHECK_EQ_INT(begin, from);
    CHECK_EQ_INT(end, to);
}

TEST(shard_width_follows_the_vocabulary) {
    struct shard_info narrow = tools_like(SHARD_WEFT, 65536), wide = tools_like(SHARD_WEFT, 65537);
    struct shard shard;
    const char *a = tools_path("a.weft"), *b = tools_path("b.weft");
    tools_shard(a, &narrow, DOCUMENTS(65535, 0, -1));
    open_ok(&shard, a);
    CHECK_EQ_INT(shard.info.token_bytes, 2);
    CHECK_EQ_INT(shard_id(&shard, 0), 65535);
    shard_close(&shard);
    tools_shard(b, &wide, DOCUMENTS(65536, 0, -1));
    open_ok(&shard, b);
    CHECK_EQ_INT(shard.info.token_bytes, 4);
    CHECK_EQ_INT(shard_id(&shard, 0), 65536);
    shard_close(&shard);

    struct err err = {ERR_NONE, ""};
    struct shard_info info;
    CHECK_OK(shard_look(a, &info, &err), err);
    CHECK_OK(shard_check(&info, a, 65536, 0, &err), err);
    CHECK(shard_check(&info, a, 65537, 0, &err) == -1);
    CHECK_CONTAINS(err.text, "16 bits");
    CHECK_CONTAINS(err.text, "32 bits");
}

TEST(shard_id_that_does_not_fit_is_an_error) {
    const uint64_t vocabularies[] = {65536, 100, 65537};
    for (int i = 0; i < 3; i++) {
        struct err err = {ERR_NONE, ""};
        struct shard_writer w;
        struct shard_info like = tools_like(SHARD_WEFT, vocabularies[i]);
        uint32_t ids[2] = {1, (uint32_t)vocabularies[i]};
        CHECK_OK(shard_writer_open(&w, tools_path("x.weft"), &like, &err), err);
        CHECK(shard_writer_document(&w, ids, 2, 2, &err) == -1);
        CHECK_CONTAINS(err.text, "does not fit the vocabulary");
        shard_writer_abandon(&w);
        CHECK(!file_exists(tools_path("x.weft.tmp")));
    }
}

TEST(shard_sizes_count_the_separator) {
    const enum shard_kind kinds[] = {SHARD_WEFT, SHARD_MEGATRON};
    for (int k = 0; k < 2; k++) {
        struct shard_info like = tools_like(kinds[k], 300);
        like.eod = 0;
        like.ends_with_eod = true;
        const char *path = tools_path(k ? "pair" : "own.weft");
        tools_shard(path, &like, DOCUMENTS(1, 2, 3, 0, -1, 4, 0, -1));
        struct shard shard;
        open_ok(&shard, path);
        CHECK_EQ_INT(shard.info.tokens, 6);
        CHECK_EQ_INT(shard.info.documents, 2);
        check_document(&shard, 0, 0, 4);
        check_document(&shard, 1, 4, 6);
        const int stream[] = {1, 2, 3, 0, 4, 0};
        for (uint64_t i = 0; i < 6; i++) CHECK_EQ_INT(shard_id(&shard, i), stream[i]);
        shard_close(&shard);
        struct err err = {ERR_NONE, ""};
        struct shard_report report;
        CHECK_OK(shard_verify(path, 0, -1, &report, &err), err);
        CHECK_EQ_INT(report.largest_id, 4);
    }
}

// A patch of the file; `seal` renews the hash of the header, as a writer with a fault would.
static void patch(const char *path, size_t at, uint64_t value, size_t bytes, int seal) {
    struct err err = {ERR_NONE, ""};
    char *data;
    size_t size;
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    memcpy(data + at, &value, bytes);
    if (seal) {
        uint64_t content = hash_bytes(data + SHARD_HEADER_BYTES, size - SHARD_HEADER_BYTES);
        memcpy(data + 88, &content, 8);
        uint64_t header = hash_bytes(data, 120);
        memcpy(data + 120, &header, 8);
    }
    tools_write(path, data, size);
    free(data);
}

TEST(shard_verify_names_the_document_with_a_wrong_size) {
    struct shard_info like = tools_like(SHARD_WEFT, 300);
    like.eod = 0;
    like.ends_with_eod = true;
    const char *path = tools_path("own.weft");
    for (int seal = 0; seal < 2; seal++) {
        tools_shard(path, &like, DOCUMENTS(1, 2, 3, 0, -1, 4, 0, -1, 5, 0, -1));
        size_t index = SHARD_HEADER_BYTES + 16; // 8 ids of 2 bytes
        patch(path, index + 16, 5, 8, seal);    // end of document 1, one short
        struct err err = {ERR_NONE, ""};
        struct shard_report report;
        CHECK(shard_verify(path, -1, -1, &report, &err) == -1);
        CHECK_CONTAINS(err.text, "document 1");
    }
    struct shard_info pair = tools_like(SHARD_MEGATRON, 300);
    const char *prefix = tools_path("pair");
    for (int document = 0; document < 3; document++) {
        tools_shard(prefix, &pair, DOCUMENTS(1, 2, 3, 0, -1, 4, 0, -1, 5, 0, -1));
        patch(tools_path("pair.idx"), 34 + 4 * (size_t)document, 1, 4, 0);
        struct err err = {ERR_NONE, ""};
        struct shard_report report;
        char name[32];
        CHECK(shard_verify(prefix, -1, -1, &report, &err) == -1);
        snprintf(name, sizeof name, "document %d", document);
        CHECK_CONTAINS(err.text, name);
    }
}

TEST(shard_verify_sees_flipped_bits_and_foreign_ids) {
    struct shard_info like = tools_like(SHARD_WEFT, 300);
    const char *path = tools_path("own.weft");
    struct shard_report report;
    for (size_t at = SHARD_HEADER_BYTES; at < SHARD_HEADER_BYTES + 10; at++) {
        tools_shard(path, &like, DOCUMENTS(1, 2, 3, 4, 7, -1));
        patch(path, at, 9, 1, 0);
        struct err err = {ERR_NONE, ""};
        CHECK(shard_verify(path, -1, -1, &report, &err) == -1);
    }
    tools_shard(path, &like, DOCUMENTS(1, 2, -1, 3, 4, -1));
    patch(path, SHARD_HEADER_BYTES + 6, 300, 2, 1);
    struct err err = {ERR_NONE, ""};
    CHECK(shard_verify(path, -1, -1, &report, &err) == -1);
    CHECK_CONTAINS(err.text, "document 1");
    CHECK_CONTAINS(err.text, "300");
}

TEST(shard_verify_finds_a_doubled_bos) {
    struct shard_info like = tools_like(SHARD_WEFT, 300);
    like.bos = 1;
    struct err err = {ERR_NONE, ""};
    struct shard_report report;
    const char *path = tools_path("own.weft");
    tools_shard(path, &like, DOCUMENTS(1, 5, 1, 1, -1, 1, 6, -1, 1, 1, 7, -1, 1, 1, -1));
    CHECK_OK(shard_verify(path, -1, -1, &report, &err), err);
    CHECK_EQ_INT(report.doubled_bos, 2);
    CHECK_EQ_INT(report.first_doubled_bos, 2);
    struct shard_info pair = tools_like(SHARD_MEGATRON, 300);
    tools_shard(tools_path("pair"), &pair, DOCUMENTS(1, 1, 4, -1));
    CHECK_OK(shard_verify(tools_path("pair"), -1, 1, &report, &err), err);
    CHECK_EQ_INT(report.doubled_bos, 1);
    CHECK_EQ_INT(report.first_doubled_bos, 0);
}

TEST(shard_random_round_trips) {
    const enum shard_kind kinds[] = {SHARD_WEFT, SHARD_MEGATRON};
    for (int round = 0; round < 12; round++) {
        uint64_t vocab = round % 2 ? 70000 : 5000;
        struct shard_info like = tools_like(kinds[round / 2 % 2], vocab);
        const char *path = tools_path(round / 2 % 2 ? "pair" : "own.weft");
        struct err err = {ERR_NONE, ""};
        struct shard_writer w;
        struct shard_info info;
        uint32_t ids[200], words[4];
        CHECK_OK(shard_writer_open(&w, path, &like, &err), err);
        for (uint32_t d = 0; d < 50; d++) {
            random_words(9, (uint64_t)round << 32 | d, words);
            uint32_t length = words[0] % 200;
            for (uint32_t i = 0; i < length; i++) ids[i] = (uint32_t)((d * 977 + i * 61) % vocab);
            CHECK_OK(shard_writer_document(&w, ids, length, length, &err), err);
        }
        CHECK_OK(shard_writer_close(&w, &info, &err), err);
        struct shard shard;
        open_ok(&shard, path);
        CHECK_EQ_INT(shard.info.documents, 50);
        CHECK_EQ_INT(shard.info.tokens, info.tokens);
        uint64_t at = 0, begin, end, found;
        for (uint32_t d = 0; d < 50; d++) {
            random_words(9, (uint64_t)round << 32 | d, words);
            CHECK_OK(shard_document(&shard, d, &begin, &end, &err), err);
            CHECK_EQ_INT(begin, at);
            CHECK_EQ_INT(end - begin, words[0] % 200);
            for (; at < end; at++) {
                CHECK_EQ_INT(shard_id(&shard, at), (d * 977 + (at - begin) * 61) % vocab);
                CHECK_OK(shard_find(&shard, at, &found, &err), err);
                CHECK_EQ_INT(found, d);
            }
        }
        shard_close(&shard);
    }
}

TEST(shard_reads_llmc_and_bare_files) {
    struct err err = {ERR_NONE, ""};
    struct shard shard;
    int32_t header[256] = {20240520, 1, 3};
    unsigned char file[1024 + 12];
    const uint16_t narrow[3] = {50256, 7, 8};
    memcpy(file, header, 1024);
    memcpy(file + 1024, narrow, 6);
    tools_write(tools_path("a.bin"), file, 1030);
    open_ok(&shard, tools_path("a.bin"));
    CHECK_EQ_INT(shard.info.kind, SHARD_LLMC);
    CHECK_EQ_INT(shard.info.tokens, 3);
    CHECK_EQ_INT(shard_id(&shard, 0), 50256);
    shard_close(&shard);

    const uint32_t wide[3] = {128000, 7, 8};
    header[0] = 20240801;
    header[1] = 7;
    memcpy(file, header, 1024);
    memcpy(file + 1024, wide, 12);
    tools_write(tools_path("b.bin"), file, 1036);
    open_ok(&shard, tools_path("b.bin"));
    CHECK_EQ_INT(shard.info.token_bytes, 4);
    CHECK_EQ_INT(shard_id(&shard, 0), 128000);
    shard_close(&shard);
    tools_write(tools_path("b.bin"), file, 1032);
    CHECK(shard_open(&shard, tools_path("b.bin"), NULL, &err) == -1);
    CHECK_CONTAINS(err.text, "announces 3 tokens");

    tools_write(tools_path("c.bin"), narrow, 6);
    open_ok(&shard, tools_path("c.bin"));
    CHECK_EQ_INT(shard.info.kind, SHARD_BARE);
    CHECK_EQ_INT(shard.info.tokens, 3);
    CHECK_EQ_INT(shard_id(&shard, 2), 8);
    shard_close(&shard);
    err = (struct err){ERR_NONE, ""};
    tools_write(tools_path("c.bin"), narrow, 5);
    CHECK(shard_open(&shard, tools_path("c.bin"), NULL, &err) == -1);
    CHECK_CONTAINS(err.text, "an odd number");
}

TEST(shard_foreign_and_cut_files_are_refused) {
    struct err err = {ERR_NONE, ""};
    struct shard shard;
    struct shard_info like = tools_like(SHARD_WEFT, 300);
    tools_write(tools_path("text.weft"), "It was a dark night.", 20);
    CHECK(shard_open(&shard, tools_path("text.weft"), NULL, &err) == -1);
    CHECK_CONTAINS(err.text, "not a weft shard");
    const char *path = tools_path("own.weft");
    tools_shard(path, &like, DOCUMENTS(1, 2, -1, 3, -1));
    char *data;
    size_t size;
    CHECK_OK(file_read(path, 0, &data, &size, &err), err);
    for (size_t cut = 0; cut < size; cut++) {
        err = (struct err){ERR_NONE, ""};
        tools_write(path, data, cut);
        CHECK(shard_open(&shard, path, NULL, &err) == -1);
        CHECK_CONTAINS(err.text, path);
    }
    free(data);
}

// Every byte sequence either opens and can be walked, or is refused: nothing is read outside the
// maps.
static void walk(const char *path) {
    struct shard shard;
    uint64_t begin, end, document;
    if (shard_open(&shard, path, NULL, NULL) != 0) return;
    volatile uint64_t sum = 0;
    for (uint64_t d = 0; d < shard.info.documents && d < 100; d++)
        if (shard_document(&shard, d, &begin, &end, NULL) == 0)
            for (uint64_t i = begin; i < end; i++) sum += shard_id(&shard, i);
    for (uint64_t i = 0; i < shard.info.tokens && i < 100; i++)
        if (shard_find(&shard, i, &document, NULL) == 0) sum += document;
    shard_close(&shard);
    struct shard_report report;
    shard_verify(path, -1, -1, &report, NULL);
}

static void mutate(const char *path, const char *victim, int rounds, int seal) {
    struct err err = {ERR_NONE, ""};
    char *data, *copy;
    size_t size;
    CHECK_OK(file_read(victim, 0, &data, &size, &err), err);
    copy = malloc(size);
    CHECK(copy != NULL);
    static const uint64_t nasty[] = {0,
                                     1,
                                     2,
                                     7,
                                     8,
                                     0x7fffffff,
                                     0xffffffff,
                                     UINT64_MAX,
                                     UINT64_MAX / 2,
                                     UINT64_MAX / 8,
                                     (uint64_t)1 << 62};
    for (int round = 0; round < rounds; round++) {
        uint32_t words[4];
        random_words(77, (uint64_t)round, words);
        memcpy(copy, data, size);
        size_t length = words[3] % 8 == 0 ? words[2] % size : size;
        for (uint32_t change = 0; change <= words[0] % 3; change++) {
            uint32_t more[4];
            random_words(78, (uint64_t)round << 8 | change, more);
            size_t region = more[3] % 2 && size > 128 ? 128 : size;
            size_t at = more[0] % region, width = (size_t)1 << more[1] % 4;
            uint64_t value = more[2] % 2 ? nasty[more[2] / 2 % 11] : more[3];
            if (at + width <= size) memcpy(copy + at, &value, width);
        }
        if (seal && length >= 128) {
            uint64_t header = hash_bytes(copy, 120);
            memcpy(copy + 120, &header, 8);
        }
        tools_write(victim, copy, length);
        walk(path);
    }
    tools_write(victim, data, size);
    free(data);
    free(copy);
}

TEST(shard_fuzz) {
    struct shard_info like = tools_like(SHARD_WEFT, 300), pair = tools_like(SHARD_MEGATRON, 300);
    const int *documents = DOCUMENTS(1, 2, 3, -1, 4, -1, 5, 6, 7, 8, 9, -1);
    tools_shard(tools_path("own.weft"), &like, documents);
    mutate(tools_path("own.weft"), tools_path("own.weft"), 300, 1);
    mutate(tools_path("own.weft"), tools_path("own.weft"), 60, 0);
    tools_shard(tools_path("pair"), &pair, documents);
    mutate(tools_path("pair"), tools_path("pair.idx"), 300, 0);
    int32_t header[300] = {20240520, 1, 88};
    tools_write(tools_path("llmc.bin"), header, 1200);
    mutate(tools_path("llmc.bin"), tools_path("llmc.bin"), 120, 0);
}

TEST(shard_of_another_tokenizer_is_refused) {
    struct err err = {ERR_NONE, ""};
    struct shard_info like = tools_like(SHARD_WEFT, 300), info;
    like.fingerprint = 5;
    tools_shard(tools_path("own.weft"), &like, DOCUMENTS(1, -1));
    CHECK_OK(shard_look(tools_path("own.weft"), &info, &err), err);
    CHECK_OK(shard_check(&info, "own", 300, 5, &err), err);
    CHECK_OK(shard_check(&info, "own", 512, 0, &err), err);
    CHECK(shard_check(&info, "own", 300, 6, &err) == -1);
    CHECK_CONTAINS(err.text, "another tokenizer");
    err = (struct err){ERR_NONE, ""};
    CHECK(shard_check(&info, "own", 299, 0, &err) == -1);
    CHECK_CONTAINS(err.text, "vocabulary of 300");
}

TEST(dataset_of_a_folder) {
    struct err err = {ERR_NONE, ""};
    struct dataset set;
    struct shard_info like = tools_like(SHARD_WEFT, 300);
    CHECK_OK(file_make_folders(tools_path("d"), &err), err);
    CHECK(dataset_open(&set, tools_path("d"), &err) == -1);
    CHECK_CONTAINS(err.text, "weft data prepare");
    tools_shard(tools_path("d/b.weft"), &like, DOCUMENTS(3, -1, 4, -1));
    tools_shard(tools_path("d/a.weft"), &like, DOCUMENTS(1, 2, -1));
    CHECK_OK(dataset_open(&set, tools_path("d"), &err), err);
    CHECK_EQ_INT(set.count, 2);
    CHECK_EQ_INT(set.tokens, 4);
    CHECK_EQ_INT(set.documents, 3);
    CHECK_CONTAINS(set.paths[0], "a.weft");
    dataset_close(&set);
    tools_write(tools_path("d/c.weft.tmp"), "x", 1);
    err = (struct err){ERR_NONE, ""};
    CHECK(dataset_open(&set, tools_path("d"), &err) == -1);
    CHECK_CONTAINS(err.text, "unfinished");
    CHECK(remove(tools_path("d/c.weft.tmp")) == 0);
    like.vocab_size = 301;
    tools_shard(tools_path("d/c.weft"), &like, DOCUMENTS(3, -1));
    err = (struct err){ERR_NONE, ""};
    CHECK(dataset_open(&set, tools_path("d"), &err) == -1);
    CHECK_CONTAINS(err.text, "do not belong to one data set");
}

TEST(shard_real_megatron_pair) {
    if (!test_data_dir()) SKIP("needs external data");
    char path[4096];
    snprintf(path, sizeof path, "%s/formats/megatron_bin_idx/meg-gpt2-openwebtext_text_document",
             test_data_dir());
    struct err err = {ERR_NONE, ""};
    struct shard_report report;
    struct shard shard, again;
    CHECK_OK(shard_verify(path, -1, -1, &report, &err), err);
    CHECK_EQ_INT(report.largest_id, 4999);
    open_ok(&shard, path);
    CHECK_EQ_INT(shard.info.documents, 1000);
    CHECK_EQ_INT(shard.info.tokens, 1361845);
    // written again, both files come out byte for byte
    struct shard_info like = tools_like(SHARD_MEGATRON, 5000), info;
    struct shard_writer w;
    CHECK_OK(shard_writer_open(&w, tools_path("pair"), &like, &err), err);
    uint32_t *ids = malloc(shard.info.tokens * sizeof *ids);
    CHECK(ids != NULL);
    for (uint64_t d = 0; d < 1000; d++) {
        uint64_t begin, end;
        CHECK_OK(shard_document(&shard, d, &begin, &end, &err), err);
        for (uint64_t i = begin; i < end; i++) ids[i - begin] = shard_id(&shard, i);
        CHECK_OK(shard_writer_document(&w, ids, end - begin, 0, &err), err);
    }
    CHECK_OK(shard_writer_close(&w, &info, &err), err);
    open_ok(&again, tools_path("pair"));
    CHECK_EQ_INT(again.map.size, shard.map.size);
    CHECK_EQ_INT(again.index_map.size, shard.index_map.size);
    CHECK_BYTES(again.map.data, shard.map.data, shard.map.size);
    CHECK_BYTES(again.index_map.data, shard.index_map.data, shard.index_map.size);
    shard_close(&again);
    shard_close(&shard);
    free(ids);
}
