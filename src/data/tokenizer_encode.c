// Encoding. A text is cut at added tokens and, where the rules allow, at safe borders into jobs; a
// job is normalised, split into words, and each word is looked up in a cache of word -> ids before
// anything is merged. The cache has two tables: words of up to 15 bytes with up to 3 ids in half a
// cache line, two of them in a set, and words of up to 31 bytes with up to 7 ids in a whole line.
#include "data/tokenizer_parts.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_BITS 16
#define LONG_BITS 12
#define JOB_BYTES ((size_t)256 * 1024)

struct short_entry {
    uint64_t key[2]; // the bytes, zero behind them; length in the top byte (0: empty)
    uint32_t ids[4]; // three at most; the fourth is their number, so that one copy takes all
};
struct long_entry {
    uint64_t key[4];
    uint32_t count, ids[7];
};

struct tokenizer_scratch {
    const struct tokenizer *tok;
    struct short_entry *short_table;
    struct long_entry *long_table;
    uint8_t
        *whole; // [vocab_size] is the token what its own text becomes? 0 not yet known, 1 yes, 2 no
    struct bpe_space space;
    struct scan_window window;
    struct split_pieces pieces;
    struct text normal;
    uint64_t invalid_bytes;
};

struct tokenizer_scratch *tokenizer_scratch_new(const struct tokenizer *tok, struct err *err) {
    struct tokenizer_scratch *s = calloc(1, sizeof *s);
    if (s) {
        s->tok = tok;
        s->short_table = aligned_alloc(64, sizeof *s->short_table << SHORT_BITS);
        s->long_table = aligned_alloc(64, sizeof *s->long_table << LONG_BITS);
        s->whole = calloc(tok->vocab_size, 1);
        if (s->short_table && s->long_table && s->whole) {
            memset(s->short_table, 0, sizeof *s->short_table << SHORT_BITS);
            memset(s->long_table, 0, sizeof *s->long_table << LONG_BITS);
            return s;
        }
    }
    tokenizer_scratch_free(s);
    err_set(err, ERR_MEMORY, "no memory to encode");
    return NULL;
}

void tokenizer_scratch_free(struct tokenizer_scratch *scratch) {
    if (!scratch) return;
    free(scratch->short_table);
    free(scratch->long_table);
    free(scratch->whole);
    bpe_space_free(&scratch->space);
    scan_window_free(&scratch->window);
    split_pieces_free(&scratch->pieces);
    text_free(&scratch->normal);
    free(scratch);
}

uint64_t tokenizer_scratch_invalid_bytes(const struct tokenizer_scratch *scratch) {
    return scratch->invalid_bytes;
}

// Ids of a word that no cache holds. A word that is a token mostly becomes that token; whether it
// does is asked once.
static int word_anew(struct tokenizer_scratch *s, const unsigned char *word, size_t length,
                     struct token_list *out, struct err *err) {
    const struct tokenizer *tok = s->tok;
    uint32_t whole =
        length <= 64 ? vocab_table_get(tok, (const char *)word, length) : TOKENIZER_NONE;
    if (whole == TOKENIZER_NONE) return bpe_word(tok, &s->space, word, length, out, err);
    if (s->whole[whole] != 1) {
        size_t before = out->count;
        if (bpe_word(tok, &s->space, word, length, out, err) != 0) return -1;
        s->whole[whole] = out->count == before + 1 && out->ids[before] == whole ? 1 : 2;
        return 0;
    }
    return token_list_put(out, whole) == 0 ? 0
                                           : err_set(err, ERR_MEMORY, "no memory for token ids");
}

static uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product =
        (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

// The two entries that may hold a word: one cache line.
static struct short_entry *short_set(const struct tokenizer_scratch *s, uint64_t low,
                                     uint64_t high) {
    return &s->short_table[(mix(low, high) & ((1u << (SHORT_BITS - 1)) - 1)) * 2];
}

// A word of 1..31 bytes through the second table, and into the tables where it fits.
static int word_second(struct tokenizer_scratch *s, const unsigned char *word, size_t length,
                       struct token_list *out, struct err *err) {
    uint64_t key[4] = {0};
    memcpy(key, word, length);
    key[3] |= (uint64_t)length << 56;
    uint64_t hash = mix(key[0], key[1]) + mix(key[2], key[3]);
    struct long_entry *entry = &s->long_table[hash >> (64 - LONG_BITS)];
    if (memcmp(entry->key, key, sizeof key) == 0) {
        if (token_list_reserve(out, 8) != 0)
            return err_set(err, ERR_MEMORY, "no memory for token ids");
        memcpy(out->ids + out->count, entry->ids, sizeof entry->ids);
        out->count += entry->count;
        return 0;
    }
    size_t before = out->count;
    if (word_anew(s, word, length, out, err) != 0) return -1;
    size_t count = out->count - before;
    if (length <= 15 && count <= 3) {
        uint64_t low = key[0], high = key[1] | (uint64_t)length << 56;
        struct short_entry *small = short_set(s, low, high);
        small[1] = small[0]; // the one used longest ago gives way
        *small = (struct short_entry){{low, high}, {0, 0, 0, (uint32_t)count}};
        memcpy(small->ids, out->ids + before, count * sizeof(uint32_t));
    } else if (count <= 7) {
        memcpy(entry->key, key, sizeof key);
        memcpy(entry->ids, out->ids + before, count * sizeof(uint32_t));
        entry->count = (uint32_t)count;
    }
    return 0;
}

static int word_slow(struct tokenizer_scratch *s, const unsigned char *word, size_t length,
                     struct token_list *out, struct err *err) {
    return length <= 31 ? word_second(s, word, length, out, err)
                        : word_anew(s, word, length, out, err);
}

static const uint64_t keep_low[16] = {0,          0xFF,         0xFFFF,         0xFFFFFF,
                                      0xFFFFFFFF, 0xFFFFFFFFFF, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF,
                                      UINT64_MAX, UINT64_MAX,   UINT64_MAX,     UINT64_MAX,
                                      UINT64_MAX, UINT64_MAX,   UINT64_MAX,     UINT64_MAX};

// The entry of a word of at most 15 bytes, with `text + 16` readable; NULL when the table does not
// hold it.
static inline const struct short_entry *short_lookup(const struct tokenizer_scratch *s,
                                                     const unsigned char *text, size_t length) {
    uint64_t low, high;
    memcpy(&low, text, 8);
    memcpy(&high, text + 8, 8);
    low &= keep_low[length];
    high = (high & keep_low[length > 8 ? length - 8 : 0]) | (uint64_t)length << 56;
    struct short_entry *entry = short_set(s, low, high);
    if (__builtin_expect(entry->key[0] == low && entry->key[1] == high, 1)) return entry;
    if (entry[1].key[0] != low || entry[1].key[1] != high) return NULL;
    struct short_entry found = entry[1]; // the one used last stands in front
    entry[1] = entry[0];
    entry[0] = found;
    return entry;
}

// Words text[starts[k]..starts[k + 1]). `readable` bytes of text may be read.
static int encode_words(struct tokenizer_scratch *s, const unsigned char *text,
                        const uint32_t *starts, size_t count, size_t readable,
                        struct token_list *out, struct err *err) {
    // Three ids for each word and one of slack are there before the loop; slow words make room for
    // themselves.
    if (token_list_reserve(out, count * 3 + 8) != 0)
        return err_set(err, ERR_MEMORY, "no memory for token ids");
    uint32_t *to = out->ids + out->count;
    for (size_t k = 0; k < count; k++) {
        size_t begin = starts[k], length = starts[k + 1] - begin;
        if (length <= 15 && begin + 16 <= readable) {
            const struct short_entry *entry = short_lookup(s, text + begin, length);
            if (entry) {
                memcpy(to, entry->ids, sizeof entry->ids);
                to += entry->ids[3];
                continue;
            }
        }
        out->count = (size_t)(to - out->ids);
        if (word_slow(s, text + begin, length, out, err) != 0) return -1;
        if (token_list_reserve(out, (count - k) * 3 + 8) != 0)
            return err_set(err, ERR_MEMORY, "no memory for token ids");
        to = out->ids + out->count;
    }
    out->count = (size_t)(to - out->ids);
    return 0;
}

static int encode_scanned(struct tokenizer_scratch *s, const unsigned char *text, size_t size,
                          struct token_list *out, struct err *err) {
    for (size_t at = 0; at < size; at += s->window.used) {
        if (pretokenize_scan(s->tok->scanner, text + at, size - at, &s->window, err) != 0)
            return -1;
        s->invalid_bytes += s->window.invalid_bytes;
        if (encode_words(s, text + at, s->window.starts, s->window.count, size - at, out, err) != 0)
            return -1;
    }
    return 0;
}

static uint64_t count_invalid(const unsigned char *text, size_t size) {
    uint64_t invalid = 0, eight;
    while (size > 0) {
        while (size >= 8 && (memcpy(&eight, text, 8), (eight & 0x8080808080808080u) == 0))
            text += 8, size -= 8;
        size_t valid = text_utf8_valid_prefix((const char *)text, size);
        if (valid == size) break;
        invalid++;
        text += valid + 1, size -= valid + 1;
    }
    return invalid;
}

static bool mark_at(const unsigned char *text, size_t size, size_t at) {
    return at + 3 <= size && text[at] == 0xE2 && text[at + 1] == 0x96 && text[at + 2] == 0x81;
}

// The next place behind `at` where no token reaches over: two bytes that never meet inside a token,
// or a run of space marks behind something else.
static size_t next_border(const struct tokenizer *tok, const unsigned char *text, size_t size,
                          size_t at) {
    const uint8_t *may_follow = tok->may_follow;
    for (at++; at < size; at++) {
        unsigned char before = text[at - 1], byte = text[at];
        if (!may_follow[before * 256 + byte] && (byte & 0xC0) != 0x80) break;
        if (byte == 0xE2 && tok->cut_before_space && mark_at(text, size, at) &&
            !(at >= 3 && mark_at(text, size, at - 3)))
            break;
    }
    return at;
}

// Without pre-tokenizer.
static int encode_bare(struct tokenizer_scratch *s, const unsigned char *text, size_t size,
                       struct token_list *out, struct err *err) {
    uint32_t starts[257];
    size_t begin = 0;
    while (begin < size && s->tok->may_follow) {
        size_t count = 0, at = begin;
        while (at < size && count < 256 && at - begin < UINT32_MAX / 2) {
            starts[count++] = (uint32_t)(at - begin);
            at = next_border(s->tok, text, size, at);
        }
        starts[count] = (uint32_t)(at - begin);
        if (encode_words(s, text + begin, starts, count, size - begin, out, err) != 0) return -1;
        begin = at;
    }
    return begin < size ? word_slow(s, text + begin, size - begin, out, err) : 0;
}

static int encode_split(struct tokenizer_scratch *s, const unsigned char *text, size_t size,
                        bool first, struct token_list *out, struct err *err) {
    struct split_pieces *p = &s->pieces;
    if (tokenizer_split_text(s->tok, text, size, first, p, err) != 0) return -1;
    for (size_t i = 0; i < p->list.count; i++) {
        struct split_piece piece = p->list.at[i];
        if (word_slow(s, p->base + piece.begin, piece.end - piece.begin, out, err) != 0) return -1;
    }
    return 0;
}

// A stretch of normalised text without added tokens.
static int encode_plain(struct tokenizer_scratch *s, const unsigned char *text, size_t size,
                        bool first, struct token_list *out, struct err *err) {
    if (size == 0) return 0;
    if (s->tok->scanner != SCAN_NONE) return encode_scanned(s, text, size, out, err);
    if (s->tok->split_count == 0) return encode_bare(s, text, size, out, err);
    return encode_split(s, text, size, first, out, err);
}

struct job {
    size_t begin, end; // of the raw text
    int64_t id;        // an added token's, or -1
    bool first;
};

// Raw text of a job: normal form, then the added tokens that are matched in it.
static int encode_job(struct tokenizer_scratch *s, const char *bytes, const struct job *job,
                      bool parse_special, struct token_list *out, struct err *err) {
    const struct tokenizer *tok = s->tok;
    if (job->id >= 0)
        return token_list_put(out, (uint32_t)job->id) == 0
                   ? 0
                   : err_set(err, ERR_MEMORY, "no memory for token ids");
    const unsigned char *text = (const unsigned char *)bytes + job->begin;
    size_t size = job->end - job->begin;
    if (tok->scanner == SCAN_NONE)
        s->invalid_bytes += count_invalid(text, size); // a scanner counts on its way
    if (tok->normal_count > 0) {
        if (tokenizer_normalize(tok, (const char *)text, size, job->first, &s->normal, err) != 0)
            return -1;
        text = (const unsigned char *)s->normal.data;
        size = s->normal.size;
    }
    size_t done = 0, position = 0;
    struct added_match match;
    while (
        added_next(tok, &tok->normal_matcher, text, size, parse_special, done, &position, &match)) {
        if (match.begin > done && encode_plain(s, text + done, match.begin - done,
                                               job->first && done == 0, out, err) != 0)
            return -1;
        if (token_list_put(out, match.token->id) != 0)
            return err_set(err, ERR_MEMORY, "no memory for token ids");
        done = match.end;
    }
    return encode_plain(s, text + done, size - done, job->first && done == 0, out, err);
}

// Walks over the jobs of a text: those added tokens that stand in the raw text, and what lies
// between them.
struct job_walk {
    const struct tokenizer *tok;
    const unsigned char *text;
    size_t size, done, position;
    bool parse_special, has_match, searched;
    struct added_match match;
};

static bool next_job(struct job_walk *w, struct job *job) {
    if (!w->searched) {
        w->has_match = added_next(w->tok, &w->tok->raw_matcher, w->text, w->size, w->parse_special,
                                  w->done, &w->position, &w->match);
        w->searched = true;
    }
    size_t end = w->has_match ? w->match.begin : w->size;
    if (w->done < end) {
        *job = (struct job){w->done, end, -1, w->done == 0};
        if (w->tok->safe_cuts && end - w->done > JOB_BYTES) {
            size_t cut = pretokenize_safe_cut(w->text + w->done, end - w->done, JOB_BYTES);
            if (cut > 0) job->end = w->done + cut;
        }
        w->done = job->end;
        return true;
    }
    if (!w->has_match) return false;
    *job = (struct job){w->match.begin, w->match.end, w->match.token->id, false};
    w->done = w->match.end;
    w->searched = false;
    return true;
}

static int put_ends(const struct tokenizer *tok, unsigned flag, struct token_list *out,
                    struct err *err) {
    bool bos = flag == TOKENIZER_ADD_BOS;
    int32_t id = bos ? tok->bos : tok->eos;
    if (id < 0)
        return err_set(err, ERR_USAGE, "the tokenizer has no %s token to add", bos ? "BOS" : "EOS");
    return token_list_put(out, (uint32_t)id) == 0
               ? 0
               : err_set(err, ERR_MEMORY, "no memory for token ids");
}

int tokenizer_encode(const struct tokenizer *tok, struct tokenizer_scratch *scratch,
                     const char *bytes, size_t size, unsigned flags, struct token_list *out,
                     struct err *err) {
    bool parse_special = flags & TOKENIZER_PARSE_SPECIAL;
    struct job_walk walk = {.tok = tok,
                            .text = (const unsigned char *)bytes,
                            .size = size,
                            .parse_special = parse_special};
    struct job job;
    if ((flags & TOKENIZER_ADD_BOS) && put_ends(tok, TOKENIZER_ADD_BOS, out, err) != 0) return -1;
    while (next_job(&walk, &job))
        if (encode_job(scratch, bytes, &job, parse_special, out, err) != 0) return -1;
    return flags & TOKENIZER_ADD_EOS ? put_ends(tok, TOKENIZER_ADD_EOS, out, err) : 0;
}

static int gather_jobs(struct job_walk *walk, struct job **jobs, size_t *count, struct err *err) {
    size_t capacity = 0;
    struct job job;
    while (next_job(walk, &job)) {
        if (*count == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            struct job *grown = realloc(*jobs, capacity * sizeof *grown);
            if (!grown)
                return err_set(err, ERR_MEMORY, "no memory for %zu pieces of text", capacity);
            *jobs = grown;
        }
        (*jobs)[(*count)++] = job;
    }
    return 0;
}

struct share { // what one thread encodes: consecutive jobs
    struct token_list ids;
    struct err err;
    uint64_t invalid_bytes;
    int failed;
};

static void encode_share(const struct tokenizer *tok, const char *bytes, const struct job *jobs,
                         size_t count, bool parse_special, struct share *share) {
    struct tokenizer_scratch *scratch = tokenizer_scratch_new(tok, &share->err);
    share->failed = scratch ? 0 : -1;
    for (size_t j = 0; j < count && !share->failed; j++)
        share->failed =
            encode_job(scratch, bytes, &jobs[j], parse_special, &share->ids, &share->err);
    if (scratch) share->invalid_bytes = scratch->invalid_bytes;
    tokenizer_scratch_free(scratch);
}

// First job of the share `index` of `count`: borders by bytes of text.
static size_t share_border(const struct job *jobs, size_t job_count, size_t size, size_t index,
                           size_t count) {
    size_t byte = size / count * index, j = 0;
    if (index == count) return job_count;
    while (j < job_count && jobs[j].begin < byte) j++;
    return j;
}

int tokenizer_encode_parallel(const struct tokenizer *tok, const char *bytes, size_t size,
                              unsigned flags, int threads, struct token_list *out,
                              uint64_t *invalid_bytes, struct err *err) {
    if (threads <= 0) threads = omp_get_max_threads();
    struct job_walk walk = {.tok = tok,
                            .text = (const unsigned char *)bytes,
                            .size = size,
                            .parse_special = flags & TOKENIZER_PARSE_SPECIAL};
    struct job *jobs = NULL;
    size_t job_count = 0;
    struct share *shares = calloc((size_t)threads, sizeof *shares);
    int failed = shares ? gather_jobs(&walk, &jobs, &job_count, err)
                        : err_set(err, ERR_MEMORY, "no memory to encode");
    if (!failed && (flags & TOKENIZER_ADD_BOS)) failed = put_ends(tok, TOKENIZER_ADD_BOS, out, err);
    if (!failed) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
        for (int t = 0; t < threads; t++) {
            size_t begin = share_border(jobs, job_count, size, (size_t)t, (size_t)threads);
            size_t end = share_border(jobs, job_count, size, (size_t)t + 1, (size_t)threads);
            encode_share(tok, bytes, jobs + begin, end - begin, walk.parse_special, &shares[t]);
        }
    }
    uint64_t invalid = 0;
    for (int t = 0; t < threads && shares; t++) {
        struct share *share = &shares[t];
        if (!failed && share->failed) failed = err_set(err, share->err.kind, "%s", share->err.text);
        if (!failed && token_list_reserve(out, share->ids.count) != 0)
            failed = err_set(err, ERR_MEMORY, "no memory for token ids");
        if (!failed && share->ids.count) {
            memcpy(out->ids + out->count, share->ids.ids, share->ids.count * sizeof(uint32_t));
            out->count += share->ids.count;
        }
        invalid += share->invalid_bytes;
        token_list_free(&share->ids);
    }
    free(shares);
    free(jobs);
    if (!failed && (flags & TOKENIZER_ADD_EOS)) failed = put_ends(tok, TOKENIZER_ADD_EOS, out, err);
    if (!failed && invalid_bytes) *invalid_bytes = invalid;
    return failed;
}
