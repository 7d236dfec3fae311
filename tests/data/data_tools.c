// Helpers of the data tests, see data_tools.h.
#include "data_tools.h"
#include "base/random.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tools_path(const char *name) {
    static char paths[16][4096];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", test_temp_dir(), name);
    return path;
}

void tools_write(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK(fwrite(data, 1, bytes, f) == bytes);
    CHECK(fclose(f) == 0);
}

struct shard_info tools_like(enum shard_kind kind, uint64_t vocab) {
    return (struct shard_info){.kind = kind, .vocab_size = vocab, .eod = -1, .bos = -1};
}

void tools_shard(const char *path, const struct shard_info *like, const int *documents) {
    struct err err = {ERR_NONE, ""};
    struct shard_writer w;
    struct shard_info info;
    uint32_t ids[4096];
    CHECK_OK(shard_writer_open(&w, path, like, &err), err);
    for (size_t n = 0; *documents != -2; documents++) {
        if (*documents >= 0) {
            ids[n++] = (uint32_t)*documents;
            continue;
        }
        CHECK_OK(shard_writer_document(&w, ids, n, n, &err), err);
        n = 0;
    }
    CHECK_OK(shard_writer_close(&w, &info, &err), err);
}

void tools_counting_shard(const char *path, uint64_t vocab, uint32_t first, uint32_t count) {
    struct err err = {ERR_NONE, ""};
    struct shard_writer w;
    struct shard_info info, like = tools_like(SHARD_WEFT, vocab);
    uint32_t *ids = malloc(count * sizeof *ids);
    CHECK(ids != NULL);
    for (uint32_t i = 0; i < count; i++) ids[i] = (uint32_t)((first + i) % vocab);
    CHECK_OK(shard_writer_open(&w, path, &like, &err), err);
    CHECK_OK(shard_writer_document(&w, ids, count, count, &err), err);
    CHECK_OK(shard_writer_close(&w, &info, &err), err);
    free(ids);
}

void tools_random_shard(const char *path, uint64_t seed, uint64_t vocab, uint32_t documents,
                        uint32_t longest) {
    struct err err = {ERR_NONE, ""};
    struct shard_writer w;
    struct shard_info info, like = tools_like(SHARD_WEFT, vocab);
    uint32_t *ids = malloc(longest * sizeof *ids), words[4];
    CHECK(ids != NULL);
    CHECK_OK(shard_writer_open(&w, path, &like, &err), err);
    for (uint32_t d = 0; d < documents; d++) {
        random_words(seed, d, words);
        uint32_t length = 1 + words[0] % longest;
        if (words[1] % 4) length = 1 + length / 8;
        for (uint32_t i = 0; i < length; i++) {
            random_words(seed + 1, (uint64_t)d << 32 | i, words);
            ids[i] = (uint32_t)(words[0] % vocab);
        }
        CHECK_OK(shard_writer_document(&w, ids, length, length, &err), err);
    }
    CHECK_OK(shard_writer_close(&w, &info, &err), err);
    free(ids);
}

struct loader_options tools_options(const char *path, int context) {
    return (struct loader_options){.sets = {{path, 1.0}},
                                   .set_count = 1,
                                   .context = context,
                                   .rows = 1,
                                   .micro_batches = 1,
                                   .seed = 7,
                                   .readers = 1,
                                   .steps_ahead = 2,
                                   .vocab = 65536,
                                   .ranks = 1};
}

void tools_open(struct tools_loader *t, const struct loader_options *options) {
    struct err err = {ERR_NONE, ""};
    *t = (struct tools_loader){.options = *options};
    CHECK(posix_memalign(&t->memory, 64, loader_bytes(options)) == 0);
    t->loader = loader_open(options, t->memory, &err);
    if (!t->loader) test_fail(__FILE__, __LINE__, "loader_open: %s", err.text);
}

void tools_close(struct tools_loader *t) {
    loader_close(t->loader);
    free(t->memory);
}

struct batch *const *tools_step(struct tools_loader *t, uint64_t sample) {
    struct err err = {ERR_NONE, ""};
    struct batch *const *batches = NULL;
    CHECK_OK(loader_step(t->loader, sample, &batches, &err), err);
    return batches;
}
