// Text to token ids and back. A tokenizer is loaded (Hugging Face, GPT-2, tiktoken, SentencePiece)
// or trained, and is read-only afterwards: any number of threads may use one at the same time, each
// with a `struct tokenizer_scratch` of its own (the cache of word -> ids lives there). Ids equal
// those of the implementation that a file comes from.
//
// Two kinds: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2, tiktoken), where every byte is
// representable, and BPE over characters with a fall-back to byte tokens (Llama 2, SentencePiece).
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct tokenizer_scratch;

struct token_list { // growing; start with {0}
    uint32_t *ids;
    size_t count, capacity;
};
void token_list_free(struct token_list *list);
int token_list_put(struct token_list *list, uint32_t id); // 0, or -1 when memory is short
int token_list_reserve(struct token_list *list,
                       size_t more_elements); // room for that many further ids

// --- loading and saving ---

// `path` is a folder (tokenizer.json, else vocab.json or encoder.json with merges.txt or vocab.bpe,
// else tokenizer.model, else one *.tiktoken; tokenizer_config.json, special_tokens_map.json and
// generation_config.json beside them are honoured) or one such file, told apart by its content.
// What a tokenizer.json asks for and weft does not know is refused by name.
struct tokenizer *tokenizer_load(const char *path, struct err *err);
void tokenizer_free(struct tokenizer *tok);

// Writes tokenizer.json and tokenizer_config.json into `folder` (made if absent); `tokenizers` and
// `transformers` load them and give the same ids.
int tokenizer_save_hf(const struct tokenizer *tok, const char *folder, struct err *err);

// --- what it is ---

uint32_t tokenizer_vocab_size(const struct tokenizer *tok); // largest id + 1, added tokens included
uint64_t
tokenizer_fingerprint(const struct tokenizer *tok); // hash over everything that affects ids
int32_t tokenizer_bos(const struct tokenizer *tok); // ids, or -1 when there is none
int32_t tokenizer_eos(const struct tokenizer *tok);
int32_t tokenizer_eot(
    const struct tokenizer *tok); // end of a chat turn (<|eot_id|>, <|im_end|>, ...), or -1
int32_t tokenizer_pad(const struct tokenizer *tok);
int32_t tokenizer_unk(const struct tokenizer *tok);
bool tokenizer_add_bos(const struct tokenizer *tok); // the files ask for BOS in front of a text
bool tokenizer_add_eos(const struct tokenizer *tok);
bool tokenizer_lossless(const struct tokenizer *tok); // decode(encode(x)) = x for any bytes x
// Bytes that a token stands for; NULL for an id without a token. They are not terminated; a special
// token's are its text.
const unsigned char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id,
                                           size_t *length);
bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id); // control tokens such as BOS
int32_t tokenizer_id_of(const struct tokenizer *tok,
                        const char *text); // token whose bytes are `text`, or -1
const char *tokenizer_chat_template(const struct tokenizer *tok); // as in the files, or NULL

// --- for exporters (GGUF) ---

enum tokenizer_kind { TOKENIZER_BYTE_LEVEL, TOKENIZER_CHARACTERS };
enum tokenizer_kind tokenizer_kind(const struct tokenizer *tok);
const char *tokenizer_gguf_model(const struct tokenizer *tok); // "gpt2" or "llama"
const char *tokenizer_gguf_pre(
    const struct tokenizer *tok); // "gpt-2", "llama-bpe", "qwen2", "smollm", "default"
// The numbers are GGUF's token types.
enum tokenizer_type {
    TOKENIZER_NORMAL = 1,
    TOKENIZER_UNKNOWN = 2,
    TOKENIZER_CONTROL = 3,
    TOKENIZER_USER_DEFINED = 4,
    TOKENIZER_UNUSED = 5,
    TOKENIZER_BYTE = 6,
};
enum tokenizer_type tokenizer_token_type(const struct tokenizer *tok, uint32_t id);
float tokenizer_token_score(const struct tokenizer *tok,
                            uint32_t id); // SentencePiece's, or minus the id
// The token in the notation of vocabulary files ("\u0120the", "<0x0A>"), appended to `out`. -1 when
// memory is short.
int tokenizer_token_text(const struct tokenizer *tok, uint32_t id, struct text *out);
size_t tokenizer_merge_count(const struct tokenizer *tok);
void tokenizer_merge(const struct tokenizer *tok, size_t index, uint32_t *left, uint32_t *right);
bool tokenizer_add_space_prefix(
    const struct tokenizer *tok); // a text gets a space in front (Llama 2)

// --- encoding ---

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,
    TOKENIZER_PARSE_SPECIAL = 1, // the text of special tokens in the input becomes their ids
    TOKENIZER_ADD_BOS = 2,       // an error when the tokenizer has no BOS
    TOKENIZER_ADD_EOS = 4,
};

struct tokenizer_scratch *tokenizer_scratch_new(const struct tokenizer *tok, struct err *err);
void tokenizer_scratch_free(struct tokenizer_scratch *scratch);
// Bytes so far that belonged to no valid UTF-8 sequence (they are encoded as bytes where the
// tokenizer can).
uint64_t tokenizer_scratch_invalid_bytes(const struct tokenizer_scratch *scratch);

// Appends the ids of `bytes[0..size)` to `out`. One call is one text: BOS, EOS and space prefixes
// go to its ends.
int tokenizer_encode(const struct tokenizer *tok, struct tokenizer_scratch *scratch,
                     const char *bytes, size_t size, unsigned flags, struct token_list *out,
                     struct err *err);
// The same ids, computed by `threads` threads (0: as many as OpenMP has) that share the text at
// safe borders. `invalid_bytes` may be NULL.
int tokenizer_encode_parallel(const struct tokenizer *tok, const char *bytes, size_t size,
                              unsigned flags, int threads, struct token_list *out,
                              uint64_t *invalid_bytes, struct err *err);

// --- decoding ---

// Appends the bytes of the ids; special tokens as their text, or left out with `skip_special`. An
// id beyond the vocabulary is an error.
int tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t count,
                     bool skip_special, struct text *out, struct err *err);

// Decoding as ids arrive: `out` only ever receives whole UTF-8 characters; bytes that can become no
// valid character are replaced by U+FFFD. Start with {0}; finish with tokenizer_stream_end.
struct tokenizer_stream {
    unsigned char pending[4];
    int pending_count;
    bool begun;
};
int tokenizer_stream_put(const struct tokenizer *tok, struct tokenizer_stream *stream, uint32_t id,
                         bool skip_special, struct text *out, struct err *err);
int tokenizer_stream_end(struct tokenizer_stream *stream, struct text *out);

// --- training ---

enum tokenizer_split { // how text is cut into words before merging
    TOKENIZER_SPLIT_GPT2,
    TOKENIZER_SPLIT_LLAMA3,
    TOKENIZER_SPLIT_QWEN2,
    TOKENIZER_SPLIT_SMOLLM2,
};
struct tokenizer_train_options {
    uint32_t vocab_size; // special tokens and 256 bytes included
    const char *const
        *specials; // texts that are never split; the first ids. The first one is BOS and EOS
    size_t special_count;
    enum tokenizer_split split;
    uint64_t least_count; // a pair seen fewer times is not merged; 0 means 1
    int threads;          // 0: as many as OpenMP has; the result does not depend on it
    void (*progress)(uint32_t done, uint32_t total, void *context); // may be NULL
    void *context;
};
struct tokenizer_train_text {
    const char *bytes;
    size_t size;
};
// Byte-level BPE (Sennrich et al. 2016): the most frequent pair of neighbours inside words is
// merged; among equals the lexicographically greatest pair of byte strings. Stops early when no
// pair is left.
struct tokenizer *tokenizer_train(const struct tokenizer_train_text *texts, size_t count,
                                  const struct tokenizer_train_options *options, struct err *err);
