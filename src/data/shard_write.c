// Writing shards of the own format and Megatron pairs, see shard_write.h.
#include "data/shard_write.h"
#include "data/megatron.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int put(struct shard_writer *w, const void *data, size_t bytes, struct err *err) {
    hash_put(&w->hash, data, bytes);
    return file_writer_put(&w->file, data, bytes, err);
}

static int no_memory(const struct shard_writer *w, struct err *err) {
    return err_set(err, ERR_MEMORY, "%s: no memory for a document and the index", w->path);
}

static int put_start(struct shard_writer *w, struct err *err) {
    return text_put(&w->starts, &w->info.tokens, 8) == 0 ? 0 : no_memory(w, err);
}

int shard_writer_open(struct shard_writer *w, const char *path, const struct shard_info *like,
                      struct err *err) {
    *w = (struct shard_writer){.info = *like, .file = {.fd = -1}};
    w->info.token_bytes = shard_token_bytes(like->vocab_size);
    w->info.tokens = w->info.documents = w->info.text_bytes = 0;
    bool pair = like->kind == SHARD_MEGATRON;
    if (strlen(path) + 16 > sizeof w->path)
        return err_set(err, ERR_IO, "path too long: %.100s...", path);
    strcpy(w->path, path);
    snprintf(w->temporary, sizeof w->temporary, pair ? "%.4000s.bin.tmp" : "%.4000s.tmp", path);
    hash_begin(&w->hash);
    if (file_writer_open(&w->file, w->temporary, err) != 0) return -1;
    unsigned char zero[SHARD_HEADER_BYTES] = {0};
    int result = pair ? 0 : file_writer_put(&w->file, zero, sizeof zero, err);
    if (result == 0) result = put_start(w, err);
    if (result != 0) shard_writer_abandon(w);
    return result;
}

// The ids of a document in the width of the file, in w->ids.
static int narrow_ids(struct shard_writer *w, const uint32_t *ids, size_t count, struct err *err) {
    uint16_t block[4096];
    w->ids.size = 0;
    if (w->info.token_bytes == 4)
        return text_put(&w->ids, ids, 4 * count) == 0 ? 0 : no_memory(w, err);
    for (size_t at = 0; at < count; at += 4096) {
        size_t some = count - at < 4096 ? count - at : 4096;
        for (size_t i = 0; i < some; i++) block[i] = (uint16_t)ids[at + i];
        if (text_put(&w->ids, block, 2 * some) != 0) return no_memory(w, err);
    }
    return 0;
}

int shard_writer_document(struct shard_writer *w, const uint32_t *ids, size_t count,
                          uint64_t text_bytes, struct err *err) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= w->info.vocab_size)
            return err_set(
                err, ERR_DATA,
                "%s: document %llu: id %u does not fit the vocabulary of %llu (ids of %u "
                "bits); is this the right tokenizer?",
                w->path, (unsigned long long)w->info.documents, ids[i],
                (unsigned long long)w->info.vocab_size, 8 * w->info.token_bytes);
    if (count && narrow_ids(w, ids, count, err) != 0) return -1;
    if (count == 0) w->ids.size = 0;
    if (w->info.kind == SHARD_MEGATRON && count > INT_MAX)
        return err_set(err, ERR_DATA,
                       "%s: document %llu: %zu tokens; Megatron's index holds at most %d", w->path,
                       (unsigned long long)w->info.documents, count, INT_MAX);
    if (w->ids.size && put(w, w->ids.data, w->ids.size, err) != 0) return -1;
    w->info.tokens += count;
    w->info.documents++;
    w->info.text_bytes += text_bytes;
    return put_start(w, err);
}

static void set32(unsigned char *at, uint32_t value) {
    memcpy(at, &value, 4);
}

static void set64(unsigned char *at, uint64_t value) {
    memcpy(at, &value, 8);
}

static int finish_own(struct shard_writer *w, struct err *err) {
    static const unsigned char zero[8];
    size_t pad = (size_t)(-w->file.offset_bytes & 7);
    if (put(w, zero, pad, err) != 0) return -1;
    uint64_t index = w->file.offset_bytes;
    if (put(w, w->starts.data, w->starts.size, err) != 0) return -1;
    struct shard_info *info = &w->info;
    info->content_hash = hash_end(&w->hash);
    info->file_bytes = w->file.offset_bytes;
    unsigned char h[SHARD_HEADER_BYTES] = {0};
    memcpy(h, SHARD_MAGIC, 8);
    set32(h + 8, SHARD_VERSION);
    set32(h + 12, info->token_bytes);
    set64(h + 16, info->tokens);
    set64(h + 24, info->documents);
    set64(h + 32, SHARD_HEADER_BYTES);
    set64(h + 40, index);
    set64(h + 48, info->file_bytes);
    set64(h + 56, info->fingerprint);
    set32(h + 64, (uint32_t)info->vocab_size);
    set32(h + 68, (uint32_t)info->eod);
    set32(h + 72, (uint32_t)info->bos);
    set32(h + 76, info->ends_with_eod ? SHARD_ENDS_WITH_EOD : 0);
    set64(h + 80, info->text_bytes);
    set64(h + 88, info->content_hash);
    set64(h + 120, hash_bytes(h, 120));
    return file_writer_rewrite(&w->file, 0, h, sizeof h, err);
}

static int put_index(struct shard_writer *w, struct file_writer *file, struct err *err) {
    const uint64_t *starts = (const uint64_t *)(const void *)w->starts.data;
    uint64_t count = w->info.documents;
    unsigned char h[MEGATRON_HEADER_BYTES];
    memcpy(h, MEGATRON_MAGIC, 9);
    set64(h + 9, 1);
    h[17] = w->info.token_bytes == 2 ? MEGATRON_U16 : MEGATRON_I32;
    set64(h + 18, count);
    set64(h + 26, count + 1);
    int result = file_writer_put(file, h, sizeof h, err);
    for (uint64_t i = 0; i < count && result == 0; i++) {
        uint32_t size = (uint32_t)(starts[i + 1] - starts[i]);
        result = file_writer_put(file, &size, 4, err);
    }
    for (uint64_t i = 0; i < count && result == 0; i++) {
        uint64_t pointer = starts[i] * w->info.token_bytes;
        result = file_writer_put(file, &pointer, 8, err);
    }
    for (uint64_t i = 0; i <= count && result == 0; i++) result = file_writer_put(file, &i, 8, err);
    return result;
}

static int write_index(struct shard_writer *w, struct err *err) {
    char path[4096 + 8], temporary[4096 + 16];
    snprintf(path, sizeof path, "%s.idx", w->path);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    struct file_writer file;
    if (file_writer_open(&file, temporary, err) != 0) return -1;
    int result = put_index(w, &file, err);
    if (result == 0)
        result = file_writer_close(&file, true, err);
    else
        file_writer_abandon(&file);
    if (result == 0) result = file_rename(temporary, path, err);
    if (result != 0) unlink(temporary);
    return result;
}

int shard_writer_close(struct shard_writer *w, struct shard_info *info, struct err *err) {
    bool pair = w->info.kind == SHARD_MEGATRON;
    char path[4096 + 8];
    snprintf(path, sizeof path, pair ? "%s.bin" : "%s", w->path);
    int result = pair ? 0 : finish_own(w, err);
    if (result == 0) result = file_writer_close(&w->file, true, err);
    // The .bin file first: an index without it would be worse than the reverse.
    if (result == 0) result = file_rename(w->temporary, path, err);
    if (result == 0 && pair) result = write_index(w, err);
    if (result == 0) *info = w->info;
    shard_writer_abandon(w);
    return result;
}

void shard_writer_abandon(struct shard_writer *w) {
    file_writer_abandon(&w->file);
    if (w->temporary[0]) unlink(w->temporary);
    w->temporary[0] = 0;
    text_free(&w->ids);
    text_free(&w->starts);
}
