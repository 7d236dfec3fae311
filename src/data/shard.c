// Reading shards: the own format, and what is common to all; see shard.h. Every number of a header
// is compared with the size of the file before it is used.
#include "data/shard.h"
#include "base/hash.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>

const char *shard_kind_name(enum shard_kind kind) {
    static const char *const names[] = {"weft", "Megatron", "llm.c", "bare u16"};
    return names[kind];
}

unsigned shard_token_bytes(uint64_t vocab_size) {
    return vocab_size <= 65536 ? 2 : 4;
}

int shard_ids_path(const char *path, char out[4096], struct err *err) {
    size_t length = strlen(path);
    if (length + 5 > 4096) return err_set(err, ERR_IO, "path too long: %.100s...", path);
    memcpy(out, path, length + 1);
    if (text_ends_with(path, ".idx")) {
        memcpy(out + length - 4, ".bin", 5);
    } else if (!file_exists(path) || file_is_folder(path)) {
        char index[4096 + 8];
        memcpy(index, path, length);
        memcpy(index + length, ".idx", 5);
        if (file_exists(index)) memcpy(out + length, ".bin", 5);
    }
    return 0;
}

static uint64_t get64(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static uint32_t get32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static int damaged(const struct shard *shard, const char *what, uint64_t found, uint64_t expected,
                   struct err *err) {
    return err_set(err, ERR_DATA,
                   "%s: damaged or cut shard: %s is %llu, expected %llu; prepare or copy it again",
                   shard->path, what, (unsigned long long)found, (unsigned long long)expected);
}

static int open_own(struct shard *shard, struct err *err) {
    const unsigned char *h = shard->map.data;
    struct shard_info *info = &shard->info;
    uint64_t size = shard->map.size;
    if (size < SHARD_HEADER_BYTES)
        return damaged(shard, "size in bytes", size, SHARD_HEADER_BYTES, err);
    if (get32(h + 8) != SHARD_VERSION)
        return err_set(err, ERR_DATA,
                       "%s: shard of version %u, this program reads version %d; prepare the data "
                       "with this program",
                       shard->path, get32(h + 8), SHARD_VERSION);
    if (get64(h + 120) != hash_bytes(h, 120))
        return damaged(shard, "hash of the header", get64(h + 120), hash_bytes(h, 120), err);
    *info = (struct shard_info){
        .kind = SHARD_WEFT,
        .token_bytes = get32(h + 12),
        .tokens = get64(h + 16),
        .documents = get64(h + 24),
        .fingerprint = get64(h + 56),
        .vocab_size = get32(h + 64),
        .eod = (int32_t)get32(h + 68),
        .bos = (int32_t)get32(h + 72),
        .ends_with_eod = (get32(h + 76) & SHARD_ENDS_WITH_EOD) != 0,
        .text_bytes = get64(h + 80),
        .content_hash = get64(h + 88),
        .file_bytes = size,
    };
    uint64_t width = info->token_bytes, index = get64(h + 40);
    if (width != 2 && width != 4) return damaged(shard, "bytes per id", width, 2, err);
    if (get64(h + 48) != size) return damaged(shard, "size in bytes", size, get64(h + 48), err);
    if (get64(h + 32) != SHARD_HEADER_BYTES)
        return damaged(shard, "offset of the ids", get64(h + 32), SHARD_HEADER_BYTES, err);
    if (info->tokens > (size - SHARD_HEADER_BYTES) / width)
        return damaged(shard, "number of tokens", info->tokens, (size - SHARD_HEADER_BYTES) / width,
                       err);
    uint64_t after_ids = SHARD_HEADER_BYTES + (info->tokens * width + 7) / 8 * 8;
    if (index != after_ids) return damaged(shard, "offset of the index", index, after_ids, err);
    uint64_t room = index <= size ? (size - index) / 8 : 0;
    if (room == 0 || info->documents != room - 1 || index + room * 8 != size)
        return damaged(shard, "number of documents", info->documents, room ? room - 1 : 0, err);
    shard->ids = h + SHARD_HEADER_BYTES;
    shard->starts = (const uint64_t *)(const void *)(h + index);
    if (shard->starts[0] != 0)
        return damaged(shard, "start of document 0", shard->starts[0], 0, err);
    if (shard->starts[info->documents] != info->tokens)
        return damaged(shard, "end of the last document", shard->starts[info->documents],
                       info->tokens, err);
    return 0;
}

// Formats without a hash: size and both ends stand for the content.
static void hash_ends(struct shard *shard) {
    enum { END_BYTES = 1 << 16 };
    struct hash_stream h;
    size_t size = shard->map.size, end = size < END_BYTES ? size : END_BYTES;
    uint64_t numbers[3] = {size, shard->info.tokens, shard->info.documents};
    hash_begin(&h);
    hash_put(&h, numbers, sizeof numbers);
    if (size) {
        hash_put(&h, shard->map.data, end);
        hash_put(&h, shard->map.data + size - end, end);
    }
    shard->info.content_hash = hash_end(&h);
    shard->info.file_bytes = size;
}

static int open_mapped(struct shard *shard, struct err *err) {
    if (shard->map.size >= 8 && memcmp(shard->map.data, SHARD_MAGIC, 8) == 0)
        return open_own(shard, err);
    if (text_ends_with(shard->path, SHARD_SUFFIX))
        return err_set(err, ERR_DATA,
                       "%s: not a weft shard (it does not begin with \"%s\"); prepare it again "
                       "with `weft data prepare`",
                       shard->path, SHARD_MAGIC);
    char index[4096];
    size_t length = strlen(shard->path);
    memcpy(index, shard->path, length + 1);
    bool bin = text_ends_with(index, ".bin");
    if (bin) memcpy(index + length - 4, ".idx", 5);
    int result;
    if (bin && file_exists(index))
        result = file_map_open(&shard->index_map, index, err) == 0 ? shard_open_megatron(shard, err)
                                                                   : -1;
    else
        result = shard_open_plain(shard, err);
    if (result == 0) hash_ends(shard);
    return result;
}

int shard_open(struct shard *shard, const char *path, const char *ids_path, struct err *err) {
    *shard = (struct shard){.ids = NULL};
    if (shard_ids_path(path, shard->path, err) != 0) return -1;
    if (file_map_open(&shard->map, ids_path ? ids_path : shard->path, err) != 0) return -1;
    if (open_mapped(shard, err) == 0) return 0;
    shard_close(shard);
    return -1;
}

void shard_close(struct shard *shard) {
    file_map_close(&shard->map);
    file_map_close(&shard->index_map);
    free(shard->built_starts);
    shard->built_starts = NULL;
    shard->ids = NULL;
    shard->starts = NULL;
}

int shard_look(const char *path, struct shard_info *info, struct err *err) {
    struct shard shard;
    if (shard_open(&shard, path, NULL, err) != 0) return -1;
    *info = shard.info;
    shard_close(&shard);
    return 0;
}

void shard_copy(const struct shard *shard, uint64_t first, uint64_t count, int32_t *out) {
    if (shard->info.token_bytes == 4) {
        memcpy(out, shard->ids + 4 * first, 4 * count);
        return;
    }
    const uint16_t *from = (const uint16_t *)(const void *)shard->ids + first;
    for (uint64_t i = 0; i < count; i++) out[i] = from[i];
}

int shard_document(const struct shard *shard, uint64_t document, uint64_t *begin, uint64_t *end,
                   struct err *err) {
    uint64_t from = shard->starts[document], to = shard->starts[document + 1];
    if (from > to || to > shard->info.tokens)
        return err_set(
            err, ERR_DATA,
            "%s: document %llu: its index says tokens %llu to %llu of %llu; the shard is "
            "damaged, prepare or copy it again",
            shard->path, (unsigned long long)document, (unsigned long long)from,
            (unsigned long long)to, (unsigned long long)shard->info.tokens);
    *begin = from;
    *end = to;
    return 0;
}

int shard_find(const struct shard *shard, uint64_t token, uint64_t *document, struct err *err) {
    // last document whose start is <= token; empty ones at the same start lie in front of it
    uint64_t low = 0, high = shard->info.documents;
    while (low + 1 < high) {
        uint64_t middle = low + (high - low) / 2;
        if (shard->starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    uint64_t begin, end;
    if (shard_document(shard, low, &begin, &end, err) != 0) return -1;
    if (token < begin || token >= end)
        return err_set(err, ERR_DATA,
                       "%s: document %llu: no document holds token %llu; the index is damaged",
                       shard->path, (unsigned long long)low, (unsigned long long)token);
    *document = low;
    return 0;
}

int shard_check(const struct shard_info *info, const char *path, uint64_t vocab,
                uint64_t fingerprint, struct err *err) {
    if (vocab && info->token_bytes < shard_token_bytes(vocab))
        return err_set(err, ERR_DATA,
                       "%s: holds ids of 16 bits, but a vocabulary of %llu needs 32 bits; prepare "
                       "the data with that tokenizer",
                       path, (unsigned long long)vocab);
    if (vocab && info->vocab_size > vocab)
        return err_set(
            err, ERR_DATA,
            "%s: prepared with a vocabulary of %llu, larger than the %llu expected here; "
            "use the tokenizer that the data was prepared with, or prepare it again",
            path, (unsigned long long)info->vocab_size, (unsigned long long)vocab);
    if (fingerprint && info->fingerprint && fingerprint != info->fingerprint)
        return err_set(err, ERR_DATA,
                       "%s: prepared with another tokenizer (fingerprint %016llx, expected "
                       "%016llx); prepare the data with this one",
                       path, (unsigned long long)info->fingerprint,
                       (unsigned long long)fingerprint);
    return 0;
}
