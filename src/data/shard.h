// A shard: one file of token ids, mapped into memory, with the borders of its documents.
//
// Own format, little-endian (docs/data.md has the same table):
//     0  8  magic "WEFTTOKS"            64  4  vocabulary size
//     8  4  version, 1                  68  4  id that ends documents, or -1
//    12  4  bytes per id, 2 or 4        72  4  id that begins texts, or -1
//    16  8  tokens                      76  4  flags: 1 every document ends in that id
//    24  8  documents                   80  8  bytes of text that were tokenised
//    32  8  offset of the ids, 128      88  8  XXH3 of everything from byte 128 on
//    40  8  offset of the index         96 24  zero
//    48  8  bytes of the file          120  8  XXH3 of bytes 0..119
//    56  8  tokenizer fingerprint
// Ids, zero bytes up to a multiple of 8, then the index: documents + 1 u64 starts, the first 0 and
// the last `tokens`, so that a document's size counts the id that ends it.
//
// Also read: Megatron .bin/.idx pairs, llm.c .bin files and bare u16 files (nanoGPT). The last two
// know no documents: the whole file counts as one.
//
// Opening reads the header and checks everything against the size of the file, in O(1) for the own
// format; starts are checked where they are used. shard_verify looks at every byte.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include <stdbool.h>
#include <stdint.h>

#define SHARD_MAGIC "WEFTTOKS"
#define SHARD_SUFFIX ".weft"
enum { SHARD_VERSION = 1, SHARD_HEADER_BYTES = 128, SHARD_ENDS_WITH_EOD = 1 };

enum shard_kind { SHARD_WEFT, SHARD_MEGATRON, SHARD_LLMC, SHARD_BARE };
const char *shard_kind_name(enum shard_kind kind);

struct shard_info {
    enum shard_kind kind;
    unsigned token_bytes; // 2 or 4
    uint64_t tokens, documents;
    uint64_t fingerprint;  // of the tokenizer; 0: unknown
    uint64_t vocab_size;   // 0: unknown
    int32_t eod, bos;      // -1: none or unknown
    bool ends_with_eod;    // every document, by promise of the writer
    uint64_t text_bytes;   // 0: unknown
    uint64_t content_hash; // own: of the header; others: of size, beginning and end
    uint64_t file_bytes;   // of the file that holds the ids
};

struct shard {
    struct shard_info info;
    char path[4096]; // as opened, for messages
    struct file_map map, index_map;
    const unsigned char *ids; // tokens of token_bytes each
    const uint64_t *starts;   // [documents + 1] tokens
    uint64_t *built_starts;   // the same where the file holds them in another form
};

// Path of the file that holds the ids ("PREFIX" of a Megatron pair becomes "PREFIX.bin").
int shard_ids_path(const char *path, char out[4096], struct err *err);
// `ids_path`: a copy of the file with the ids, or NULL.
int shard_open(struct shard *shard, const char *path, const char *ids_path, struct err *err);
void shard_close(struct shard *shard);
// What shard_open would find, without staying open.
int shard_look(const char *path, struct shard_info *info, struct err *err);

static inline uint32_t shard_id(const struct shard *shard, uint64_t token) {
    return shard->info.token_bytes == 2 ? ((const uint16_t *)(const void *)shard->ids)[token]
                                        : ((const uint32_t *)(const void *)shard->ids)[token];
}
void shard_copy(const struct shard *shard, uint64_t first, uint64_t count, int32_t *out);
// Tokens [begin, end) of a document; a damaged index is an error.
int shard_document(const struct shard *shard, uint64_t document, uint64_t *begin, uint64_t *end,
                   struct err *err);
// Document that holds a token.
int shard_find(const struct shard *shard, uint64_t token, uint64_t *document, struct err *err);

// Can a model or tokenizer of `vocab` ids read this shard? Ids of 16 bits do not reach a larger
// vocabulary, and a larger vocabulary in the shard does not fit a smaller one. `fingerprint` 0: not
// compared.
int shard_check(const struct shard_info *info, const char *path, uint64_t vocab,
                uint64_t fingerprint, struct err *err);

// Width that holds the ids of a vocabulary: 2 up to 65,536 of them, else 4.
unsigned shard_token_bytes(uint64_t vocab_size);

// --- checking everything ---

struct shard_report {
    uint64_t doubled_bos;       // documents that begin with two of them
    uint64_t first_doubled_bos; // the first such document
    uint64_t largest_id;
};
// Hash, index, ids below the vocabulary, the last id of every document. `eod` and `bos` replace
// what the file says
// (-1: keep). The message names the document that is off.
int shard_verify(const char *path, int32_t eod, int32_t bos, struct shard_report *report,
                 struct err *err);

// --- other formats, for shard.c ---
int shard_open_megatron(struct shard *shard, struct err *err);
int shard_open_plain(struct shard *shard, struct err *err); // llm.c, bare
