// The folder of a prepared data set, see prepare.h.
#include "base/file.h"
#include "base/hash.h"
#include "data/dataset.h"
#include "data/prepare_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int inner_path(const struct prepare_folder *f, const char *name, char out[4096],
                      struct err *err) {
    return file_join(out, 4096, f->options->out, name, err);
}

static int remove_inner(const struct prepare_folder *f, const char *name, struct err *err) {
    char path[4096];
    if (inner_path(f, name, path, err) != 0) return -1;
    if (!file_exists(path)) return 0;
    return file_remove_tree(path, err);
}

// A finished data set goes only when that is wanted; what an interrupted preparation left goes
// always.
static int clear_folder(const struct prepare_folder *f, struct err *err) {
    static const char *const parts[] = {"dataset.json", "train", "validation", "tokenizer"};
    char path[4096], unfinished[4096];
    if (inner_path(f, DATASET_UNFINISHED, unfinished, err) != 0) return -1;
    bool ours = f->options->overwrite || file_exists(unfinished);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (inner_path(f, parts[i], path, err) != 0) return -1;
        if (file_exists(path) && !ours)
            return err_set(err, ERR_USAGE,
                           "%s: is there already; choose another folder, or replace the data set "
                           "with --overwrite",
                           path);
    }
    if (file_replace(unfinished, "", 0, err) != 0) return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (remove_inner(f, parts[i], err) != 0) return -1;
    return 0;
}

int prepare_folder_open(struct prepare_folder *f, const struct prepare_options *o,
                        struct err *err) {
    *f = (struct prepare_folder){
        .options = o,
        .like = {.kind = o->format,
                 .vocab_size = tokenizer_vocab_size(o->tokenizer),
                 .fingerprint = tokenizer_fingerprint(o->tokenizer),
                 .eod = o->eod,
                 .bos = tokenizer_bos(o->tokenizer),
                 .ends_with_eod = o->eod >= 0},
        .splits = {{.name = "train"}, {.name = "validation"}},
    };
    for (int i = 0; i < 2; i++)
        if ((f->splits[i].list = json_array()) == NULL)
            return err_set(err, ERR_MEMORY, "no memory for the list of shards");
    if (o->bos >= 0) f->like.bos = o->bos;
    if (file_make_folders(o->out, err) != 0) return -1;
    return clear_folder(f, err);
}

static int shard_name(const struct prepare_folder *f, const struct prepare_split *split,
                      const char *suffix, char name[64]) {
    if (f->options->format == SHARD_MEGATRON)
        return snprintf(name, 64, "%s/data%s", split->name, suffix);
    return snprintf(name, 64, "%s/shard-%05llu" SHARD_SUFFIX, split->name,
                    (unsigned long long)split->shards);
}

static int open_shard(struct prepare_folder *f, struct prepare_split *split, struct err *err) {
    char name[64], path[4096];
    if (inner_path(f, split->name, path, err) != 0 || file_make_folders(path, err) != 0) return -1;
    shard_name(f, split, "", name);
    if (inner_path(f, name, path, err) != 0) return -1;
    struct shard_writer *writer = malloc(sizeof *writer);
    if (!writer) return err_set(err, ERR_MEMORY, "%s: no memory to write it", path);
    if (shard_writer_open(writer, path, &f->like, err) != 0) {
        free(writer);
        return -1;
    }
    split->writer = writer;
    return 0;
}

static int close_shard(struct prepare_folder *f, struct prepare_split *split, struct err *err) {
    struct shard_info info;
    char name[64], hash[17];
    struct shard_writer *writer = split->writer;
    split->writer = NULL;
    int result = shard_writer_close(writer, &info, err);
    free(writer);
    if (result != 0) return -1;
    shard_name(f, split, ".bin", name);
    hash_text(info.content_hash, hash);
    split->shards++;
    json_t *entry = json_pack("{s:s, s:I, s:I}", "file", name, "tokens", (json_int_t)info.tokens,
                              "documents", (json_int_t)info.documents);
    if (info.kind == SHARD_WEFT && entry) json_object_set_new(entry, "hash", json_string(hash));
    if (!entry || json_array_append_new(split->list, entry) != 0)
        return err_set(err, ERR_MEMORY, "no memory for the list of shards");
    return 0;
}

int prepare_folder_document(struct prepare_folder *f, int which, const uint32_t *ids, size_t count,
                            size_t text_bytes, struct err *err) {
    struct prepare_split *split = &f->splits[which];
    if (!split->writer && open_shard(f, split, err) != 0) return -1;
    if (shard_writer_document(split->writer, ids, count, text_bytes, err) != 0) return -1;
    uint64_t limit = f->options->shard_tokens ? f->options->shard_tokens : PREPARE_SHARD_TOKENS;
    bool full = split->writer->info.tokens >= limit && f->options->format == SHARD_WEFT;
    return full ? close_shard(f, split, err) : 0;
}

static json_t *describe(const struct prepare_folder *f, const struct prepare_counts *c) {
    const struct prepare_options *o = f->options;
    char fingerprint[17];
    hash_text(f->like.fingerprint, fingerprint);
    json_t *splits = json_object();
    for (int i = 0; i < 2 && splits; i++) {
        if (c->documents[i] == 0) continue;
        json_t *split = json_pack("{s:I, s:I, s:I, s:O}", "documents", (json_int_t)c->documents[i],
                                  "tokens", (json_int_t)c->tokens[i], "text_bytes",
                                  (json_int_t)c->text_bytes[i], "shards", f->splits[i].list);
        json_object_set_new(splits, f->splits[i].name, split);
    }
    return json_pack("{s:s, s:i, s:s, s:s, s:I, s:s, s:i, s:i, s:o, s:{s:I, s:I, s:I, s:I, s:I}}",
                     "format", "weft-dataset", "version", 1, "tokenizer", "tokenizer",
                     "tokenizer_fingerprint", fingerprint, "vocab_size",
                     (json_int_t)f->like.vocab_size, "dtype",
                     shard_token_bytes(f->like.vocab_size) == 2 ? "u16" : "u32", "eod", o->eod,
                     "bos", o->bos, "splits", splits, "source", "files", (json_int_t)c->files,
                     "bytes", (json_int_t)c->input_total_bytes, "skipped_empty",
                     (json_int_t)c->skipped_empty, "skipped_bad", (json_int_t)c->skipped_bad,
                     "invalid_utf8_bytes", (json_int_t)c->invalid_bytes);
}

int prepare_folder_finish(struct prepare_folder *f, const struct prepare_counts *counts,
                          struct err *err) {
    char path[4096];
    for (int i = 0; i < 2; i++)
        if (f->splits[i].writer && close_shard(f, &f->splits[i], err) != 0) return -1;
    if (inner_path(f, "tokenizer", path, err) != 0 ||
        tokenizer_save_hf(f->options->tokenizer, path, err) != 0)
        return -1;
    json_t *tree = describe(f, counts);
    char *text = tree ? json_dumps(tree, JSON_INDENT(2)) : NULL;
    json_decref(tree);
    if (!text) return err_set(err, ERR_MEMORY, "no memory for dataset.json");
    int result = inner_path(f, "dataset.json", path, err);
    if (result == 0) {
        size_t length = strlen(text);
        text[length] = '\n'; // in the place of the NUL
        result = file_replace(path, text, length + 1, err);
    }
    free(text);
    if (result == 0) result = inner_path(f, DATASET_UNFINISHED, path, err);
    if (result == 0 && unlink(path) != 0) result = err_set_errno(err, "%s: cannot remove it", path);
    return result;
}

void prepare_folder_close(struct prepare_folder *f) {
    for (int i = 0; i < 2; i++) {
        if (f->splits[i].writer) shard_writer_abandon(f->splits[i].writer);
        free(f->splits[i].writer);
        json_decref(f->splits[i].list);
    }
}
