// What a tokenizer consists of: shared by the files tokenizer_*.c and by nobody else.
//
// The way of a text: added tokens that are matched in the raw text are cut out; what lies between
// them is normalised, the remaining added tokens are cut out, the rest is split into words
// (pretokenize.h), and BPE merges inside a word.
#pragma once
#include "data/pretokenize.h"
#include "data/tokenizer.h"

#define TOKENIZER_NONE UINT32_MAX
#define TOKENIZER_MAX_IDS (1u << 24) // ids beyond it come from damaged files

struct token_info {
    size_t text_offset, bytes_offset; // into `pool`: the key of the vocabulary; what it decodes to
    uint32_t text_length, bytes_length;
    uint8_t type;  // enum tokenizer_type, 0: no such id
    bool in_model; // BPE may give it (not only an added token)
    bool raw;      // its text is not in the byte alphabet of a byte-level vocabulary
};

struct token_merge {
    uint32_t left, right, result;
    uint32_t rank; // the lowest in a word is merged first, the leftmost among equals
};

struct pair_table { // (left, right) -> rank and result; open addressing
    struct pair_slot {
        uint64_t key; // left << 32 | right; empty: all ones
        uint32_t rank, result;
    } * slots;
    size_t mask, count;
};

struct vocab_table { // text -> id; open addressing
    struct vocab_slot {
        uint32_t hash, id; // id TOKENIZER_NONE: empty
    } * slots;
    size_t mask, count;
};

struct added_token {
    char *content, *normal; // as written; as normalised (what is searched for when `normalized`)
    size_t content_length, normal_length;
    uint32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};

struct added_matcher { // added tokens by first byte, longest first
    uint32_t *order;   // indices into `added`
    uint32_t first[257];
    size_t count, plain_count; // plain: not special
    bool blind_cuts;           // no match can reach over a safe cut
};

enum normal_kind {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_LOWERCASE,
    NORMAL_PREPEND,
    NORMAL_REPLACE
};
struct normal_step {
    enum normal_kind kind;
    char *pattern, *content; // PREPEND uses content only
    bool first_only;         // PREPEND only at the beginning of the whole text
};

enum split_kind {
    SPLIT_SCANNER,
    SPLIT_PATTERN,
    SPLIT_STRING,
    SPLIT_DIGITS,
    SPLIT_METASPACE,
    SPLIT_PREFIX_SPACE
};
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
};
enum prepend_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };
struct split_step {
    enum split_kind kind;
    enum pretokenize_scanner scanner;
    struct pretokenize_pattern *pattern;
    char *text; // of the pattern, the string, or the replacement of METASPACE
    enum split_behavior behavior;
    bool invert;
    bool individual; // DIGITS
    bool split;      // METASPACE
    enum prepend_scheme prepend;
};

struct tokenizer {
    enum tokenizer_kind kind;
    uint32_t vocab_size;
    struct token_info *tokens;
    size_t token_capacity;
    struct text pool;
    float *scores; // [vocab_size] or NULL
    struct vocab_table vocab;
    struct pair_table pairs;
    struct token_merge *merges;
    size_t merge_count, merge_capacity;
    uint32_t byte_ids[256];
    bool ignore_merges; // a word that is a token stays whole
    bool byte_fallback, fuse_unk;
    int32_t bos, eos, eot, pad, unk;
    bool add_bos, add_eos;

    struct added_token *added;
    size_t added_count, added_capacity;
    struct added_matcher raw_matcher, normal_matcher;
    struct normal_step *normal;
    size_t normal_count;
    struct split_step *splits;
    size_t split_count;
    enum pretokenize_scanner scanner; // when the splits amount to one known pattern
    // Without pre-tokenizer, words may still be cut where no token reaches over: may_follow[a * 256
    // + b] tells whether some token holds a character that begins with byte b behind one that ends
    // in byte a. NULL: no cuts at all.
    uint8_t *may_follow;
    bool cut_before_space; // no token holds a space mark behind another character
    bool safe_cuts;        // pretokenize_safe_cut borders are borders of words
    bool decode_space;     // U+2581 decodes to a space
    bool strip_first_space;
    char *chat_template;
    uint64_t fingerprint;
};

// --- building (tokenizer_build.c) ---
struct tokenizer *tokenizer_new(enum tokenizer_kind kind, struct err *err);
// Sets the token of an id once; `where` names the file for messages.
int tokenizer_set_token(struct tokenizer *tok, uint32_t id, const char *text, size_t length,
                        enum tokenizer_type type, bool in_model, const char *where,
                        struct err *err);
// As above, for a key of a byte-level vocabulary in its printable alphabet.
int tokenizer_set_printable(struct tokenizer *tok, uint32_t id, const char *text, size_t length,
                            const char *where, struct err *err);
int tokenizer_add_merge(struct tokenizer *tok, uint32_t left, uint32_t right, uint32_t result,
                        uint32_t rank, struct err *err);
// Takes over `content`'s bytes as an added token; makes its id known when the model has none of
// that text.
int tokenizer_add_added(struct tokenizer *tok, const struct added_token *model, const char *where,
                        struct err *err);
int tokenizer_add_normal(struct tokenizer *tok, enum normal_kind kind, const char *pattern,
                         const char *content, struct err *err);
// Room for one more split step, cleared; NULL when memory is short.
struct split_step *tokenizer_add_split(struct tokenizer *tok, struct err *err);
int tokenizer_add_scanner(struct tokenizer *tok, enum pretokenize_scanner scanner, struct err *err);
// All splits of every token in two tokens become merges, ranked by their result's id (or score when
// there are scores).
int tokenizer_merges_from_ranks(struct tokenizer *tok, struct err *err);
// Tables, matchers, byte ids, fingerprint: the last step of every loader. An empty vocabulary is
// refused.
int tokenizer_finish(struct tokenizer *tok, const char *where, struct err *err);

// --- tables (tokenizer_table.c) ---
int vocab_table_put(struct vocab_table *table, const struct tokenizer *tok, uint32_t id,
                    struct err *err);
uint32_t vocab_table_get(const struct tokenizer *tok, const char *text,
                         size_t length); // of the model, or NONE
int pair_table_build(struct pair_table *table, const struct tokenizer *tok, struct err *err);
static inline const struct pair_slot *pair_table_get(const struct pair_table *table, uint32_t left,
                                                     uint32_t right) {
    if (!table->slots) return NULL;
    uint64_t key = (uint64_t)left << 32 | right;
    for (size_t i = (key * 0x9E3779B97F4A7C15u) >> 20 & table->mask;; i = (i + 1) & table->mask) {
        if (table->slots[i].key == key) return &table->slots[i];
        if (table->slots[i].key == UINT64_MAX) return NULL;
    }
}
// The printable alphabet of byte-level vocabularies: the code point of a byte, and back (-1: none).
uint32_t byte_alphabet(unsigned char byte);
int byte_alphabet_inverse(uint32_t code_point);
unsigned char byte_alphabet_order(int index); // bytes in the order of their code points

// --- merging (tokenizer_bpe.c) ---
struct bpe_space { // working memory of a thread; start with {0}
    uint32_t *symbols, *next, *previous;
    uint32_t *rank;
    uint64_t *heap;
    size_t capacity, heap_capacity;
};
void bpe_space_free(struct bpe_space *space);
int bpe_space_reserve(struct bpe_space *space, size_t symbols, struct err *err);
// Merges space->symbols[0..count) in place; returns how many are left.
size_t bpe_merge(const struct tokenizer *tok, struct bpe_space *space, size_t count);
// Ids of one word, from its bytes or characters: appended to `out`.
int bpe_word(const struct tokenizer *tok, struct bpe_space *space, const unsigned char *word,
             size_t length, struct token_list *out, struct err *err);

// --- added tokens (tokenizer_added.c) ---
struct added_match {
    size_t begin, end; // bytes taken from the text, white space included where the token strips it
    const struct added_token *token;
};
int added_matcher_build(struct added_matcher *matcher, const struct tokenizer *tok, bool normalized,
                        struct err *err);
void added_matcher_free(struct added_matcher *matcher);
// Next token at or after `*position` in text[0..size); `from` is where the previous one ended.
// false: none.
bool added_next(const struct tokenizer *tok, const struct added_matcher *matcher,
                const unsigned char *text, size_t size, bool parse_special, size_t from,
                size_t *position, struct added_match *match);

// --- normalising (tokenizer_normalize.c) ---
// Replaces `out` by the normal form of the text. `first`: it is the beginning of the whole text.
int tokenizer_normalize(const struct tokenizer *tok, const char *text, size_t size, bool first,
                        struct text *out, struct err *err);

// --- splitting by any steps (tokenizer_split.c) ---
struct split_piece {
    size_t begin, end;
    bool match; // of a pattern, while one is applied
};
struct split_list {
    struct split_piece *at;
    size_t count, capacity;
};
struct split_pieces {            // working memory; start with {0}
    struct split_list list;      // the words, as ranges of `base`
    const unsigned char *base;   // the caller's text, or `text` when a step changed it
    struct split_list made, raw; // of the step at work
    struct text text, made_text;
    struct scan_window window;
    struct pretokenize_matcher *matcher;
    uint64_t invalid_bytes;
};
void split_pieces_free(struct split_pieces *pieces);
int tokenizer_split_text(const struct tokenizer *tok, const unsigned char *text, size_t size,
                         bool first, struct split_pieces *pieces, struct err *err);

// --- loaders ---
struct tokenizer *tokenizer_load_hf(const char *path, const char *json, size_t size,
                                    struct err *err);
struct tokenizer *tokenizer_load_gpt2(const char *vocab_path, const char *merges_path,
                                      struct err *err);
struct tokenizer *tokenizer_load_tiktoken(const char *path, const char *text, size_t size,
                                          struct err *err);
struct tokenizer *tokenizer_load_sentencepiece(const char *path, const char *data, size_t size,
                                               struct err *err);
// Parts of tokenizer.json (tokenizer_load_steps.c): `path` names the file for messages.
struct json_t;
int tokenizer_parse_normalizer(struct tokenizer *tok, struct json_t *value, const char *path,
                               struct err *err);
int tokenizer_parse_pre_tokenizer(struct tokenizer *tok, struct json_t *value, const char *path,
                                  bool *byte_level, struct err *err);
int tokenizer_parse_decoder(struct tokenizer *tok, struct json_t *value, const char *path,
                            struct err *err);
int tokenizer_parse_post_processor(struct tokenizer *tok, struct json_t *value, const char *path,
                                   struct err *err);
// Members of `object` beyond `allowed` (NULL-terminated) are refused by name.
int tokenizer_check_keys(struct json_t *object, const char *const *allowed, const char *path,
                         const char *what, struct err *err);
// tokenizer_config.json, special_tokens_map.json, generation_config.json in the folder
// (tokenizer_config.c); before tokenizer_finish.
int tokenizer_read_config(struct tokenizer *tok, const char *folder, struct err *err);
uint64_t tokenizer_compute_fingerprint(const struct tokenizer *tok);
