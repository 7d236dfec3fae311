// Writing a shard document by document. The file appears under its name only when it is complete:
// until then it is "NAME.tmp". Ids go to disk as they come; kept in memory are 8 bytes per
// document.
#pragma once
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/shard.h"

struct shard_writer {       // must not be moved while open
    struct shard_info info; // kind, vocab_size, fingerprint, eod, bos, ends_with_eod are set by the
                            // caller's `like`
    char path[4096];        // SHARD_WEFT: the file; SHARD_MEGATRON: the prefix of .bin and .idx
    char temporary[4096];
    struct file_writer file;
    struct hash_stream hash;
    struct text ids;    // of one document, in the width of the file
    struct text starts; // u64 each
};

// The width of an id follows from like->vocab_size. On failure nothing stays open.
int shard_writer_open(struct shard_writer *w, const char *path, const struct shard_info *like,
                      struct err *err);
// Appends a document. An id that the vocabulary does not have is an error, never wrapped.
int shard_writer_document(struct shard_writer *w, const uint32_t *ids, size_t count,
                          uint64_t text_bytes, struct err *err);
// Index and header, fsync, rename. `info` is that of the finished shard. Releases everything, also
// on failure.
int shard_writer_close(struct shard_writer *w, struct shard_info *info, struct err *err);
void shard_writer_abandon(struct shard_writer *w); // removes what was written
