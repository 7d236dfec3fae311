// The last step of building a tokenizer: tables, what its tokens decode to, which short cuts its
// rules allow, and the fingerprint over all that affects ids.
#include "base/hash.h"
#include "data/tokenizer_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char space_mark[] = "\xE2\x96\x81"; // U+2581, SentencePiece's space

static void find_byte_ids(struct tokenizer *tok) {
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t length = 1;
        text[0] = (char)byte;
        if (tok->kind == TOKENIZER_CHARACTERS)
            length = (size_t)snprintf(text, sizeof text, "<0x%02X>", byte);
        tok->byte_ids[byte] = vocab_table_get(tok, text, length);
    }
}

// Byte tokens of a character vocabulary decode to their byte, the space mark to a space.
static int find_decoded_bytes(struct tokenizer *tok, struct err *err) {
    if (tok->kind != TOKENIZER_CHARACTERS) return 0;
    for (int byte = 0; byte < 256; byte++) {
        uint32_t id = tok->byte_ids[byte];
        if (!tok->byte_fallback || id == TOKENIZER_NONE) continue;
        struct token_info *token = &tok->tokens[id];
        token->type = TOKENIZER_BYTE;
        token->bytes_offset = tok->pool.size;
        token->bytes_length = 1;
        char c = (char)byte;
        if (text_put(&tok->pool, &c, 1) != 0)
            return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
    }
    if (!tok->decode_space) return 0;
    for (uint32_t id = 0; id < tok->vocab_size; id++) {
        struct token_info *token = &tok->tokens[id];
        if (token->type != TOKENIZER_NORMAL ||
            !memmem(tok->pool.data + token->text_offset, token->text_length, space_mark, 3))
            continue;
        if (text_reserve(&tok->pool, token->text_length) != 0)
            return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
        const char *text = tok->pool.data + token->text_offset;
        token->bytes_offset = tok->pool.size;
        for (uint32_t i = 0; i < token->text_length; i++) {
            bool mark = i + 3 <= token->text_length && memcmp(text + i, space_mark, 3) == 0;
            tok->pool.data[tok->pool.size++] = mark ? ' ' : text[i];
            i += mark ? 2 : 0;
        }
        token->bytes_length = (uint32_t)(tok->pool.size - token->bytes_offset);
    }
    return 0;
}

// No token has a space mark behind another character: then words may be cut in front of each run of
// marks.
static bool marks_lead(const struct tokenizer *tok) {
    if (vocab_table_get(tok, space_mark, 3) == TOKENIZER_NONE) return false;
    for (uint32_t id = 0; id < tok->vocab_size; id++) {
        const struct token_info *token = &tok->tokens[id];
        if (!token->in_model) continue;
        const char *text = tok->pool.data + token->text_offset;
        for (uint32_t i = 3; i + 3 <= token->text_length; i++)
            if (memcmp(text + i, space_mark, 3) == 0 && memcmp(text + i - 3, space_mark, 3) != 0)
                return false;
        for (uint32_t i = 1; i < 3 && i + 3 <= token->text_length; i++)
            if (memcmp(text + i, space_mark, 3) == 0) return false;
    }
    return true;
}

// Which bytes meet at the border of two characters inside a token. Not where a cut could change
// more than merges: whole words that are looked up, unknown characters that are fused, merges of
// byte tokens.
static int find_borders(struct tokenizer *tok, struct err *err) {
    if (tok->split_count > 0 || tok->kind != TOKENIZER_CHARACTERS || tok->ignore_merges ||
        !tok->byte_fallback)
        return 0;
    for (int byte = 0; byte < 256; byte++)
        if (tok->byte_ids[byte] == TOKENIZER_NONE) return 0;
    for (size_t i = 0; i < tok->merge_count; i++)
        if (tok->tokens[tok->merges[i].left].type == TOKENIZER_BYTE ||
            tok->tokens[tok->merges[i].right].type == TOKENIZER_BYTE)
            return 0;
    tok->may_follow = calloc(65536, 1);
    if (!tok->may_follow) return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
    for (uint32_t id = 0; id < tok->vocab_size; id++) {
        const struct token_info *token = &tok->tokens[id];
        const unsigned char *text = (const unsigned char *)tok->pool.data + token->text_offset;
        if (!token->in_model || token->type == TOKENIZER_BYTE) continue;
        for (uint32_t i = 1; i < token->text_length; i++)
            tok->may_follow[text[i - 1] * 256 + text[i]] = 1;
    }
    tok->cut_before_space = marks_lead(tok);
    return 0;
}

static void find_short_cuts(struct tokenizer *tok) {
    if (tok->split_count == 1 && tok->splits[0].kind == SPLIT_SCANNER)
        tok->scanner = tok->splits[0].scanner;
    bool marks_from_spaces = false, keeps_cuts = true;
    for (size_t i = 0; i < tok->normal_count; i++) {
        const struct normal_step *step = &tok->normal[i];
        if (step->kind == NORMAL_REPLACE) {
            bool to_mark =
                strcmp(step->pattern, " ") == 0 && strcmp(step->content, space_mark) == 0;
            marks_from_spaces |= to_mark;
            keeps_cuts &= to_mark && tok->kind == TOKENIZER_CHARACTERS;
        } else if (step->kind == NORMAL_PREPEND) {
            keeps_cuts &=
                strcmp(step->content, space_mark) == 0 && tok->kind == TOKENIZER_CHARACTERS;
        } else if (step->kind == NORMAL_NFKC || step->kind == NORMAL_NFKD) {
            keeps_cuts = false;
        }
    }
    keeps_cuts &= tok->normal_matcher.blind_cuts;
    tok->safe_cuts =
        keeps_cuts && (tok->scanner != SCAN_NONE || (tok->cut_before_space && marks_from_spaces));
}

static int normalize_added(struct tokenizer *tok, struct err *err) {
    for (size_t i = 0; i < tok->added_count; i++) {
        struct added_token *token = &tok->added[i];
        struct text normal = {0};
        if (token->normalized && tok->normal_count > 0) {
            if (tokenizer_normalize(tok, token->content, token->content_length, false, &normal,
                                    err) != 0)
                return -1;
        } else if (text_put(&normal, token->content, token->content_length) != 0) {
            return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
        }
        token->normal = normal.data;
        token->normal_length = normal.size;
        if (!normal.data) token->normal = calloc(1, 1);
    }
    return 0;
}

static void put_string(struct hash_stream *h, const char *text, size_t length) {
    uint64_t size = length;
    hash_put(h, &size, sizeof size);
    if (length) hash_put(h, text, length);
}

static void put_number(struct hash_stream *h, int64_t number) {
    hash_put(h, &number, sizeof number);
}

uint64_t tokenizer_compute_fingerprint(const struct tokenizer *tok) {
    struct hash_stream h;
    hash_begin(&h);
    const int64_t numbers[] = {
        tok->kind, tok->vocab_size, tok->ignore_merges, tok->byte_fallback, tok->fuse_unk,
        tok->bos,  tok->eos,        tok->unk,           tok->add_bos,       tok->add_eos};
    hash_put(&h, numbers, sizeof numbers);
    for (uint32_t id = 0; id < tok->vocab_size; id++) {
        const struct token_info *token = &tok->tokens[id];
        put_number(&h, token->type);
        put_string(&h, tok->pool.data + token->text_offset, token->text_length);
    }
    for (size_t i = 0; i < tok->merge_count; i++) {
        const uint32_t merge[3] = {tok->merges[i].left, tok->merges[i].right, tok->merges[i].rank};
        hash_put(&h, merge, sizeof merge);
    }
    for (size_t i = 0; i < tok->added_count; i++) {
        const struct added_token *token = &tok->added[i];
        put_string(&h, token->content, token->content_length);
        put_number(&h, token->id * (int64_t)32 + token->special * 16 + token->lstrip * 8 +
                           token->rstrip * 4 + token->single_word * 2 + token->normalized);
    }
    for (size_t i = 0; i < tok->normal_count; i++) {
        const struct normal_step *step = &tok->normal[i];
        put_number(&h, step->kind * 2 + step->first_only);
        put_string(&h, step->pattern, step->pattern ? strlen(step->pattern) : 0);
        put_string(&h, step->content, step->content ? strlen(step->content) : 0);
    }
    for (size_t i = 0; i < tok->split_count; i++) {
        const struct split_step *step = &tok->splits[i];
        const int64_t parts[] = {step->kind,       step->scanner, step->behavior, step->invert,
                                 step->individual, step->split,   step->prepend};
        hash_put(&h, parts, sizeof parts);
        // A scanner stands for its pattern, whether a file spelled it out or not.
        bool named = step->kind != SPLIT_SCANNER && step->text;
        put_string(&h, step->text, named ? strlen(step->text) : 0);
    }
    return hash_end(&h);
}

int tokenizer_finish(struct tokenizer *tok, const char *where, struct err *err) {
    if (tok->vocab.count == 0) return err_set(err, ERR_DATA, "%s: the vocabulary is empty", where);
    find_byte_ids(tok);
    if (tok->kind == TOKENIZER_BYTE_LEVEL) {
        int known = 0;
        for (int byte = 0; byte < 256; byte++) known += tok->byte_ids[byte] != TOKENIZER_NONE;
        if (known == 0)
            return err_set(err, ERR_DATA,
                           "%s: a byte-level vocabulary without a single byte among its tokens",
                           where);
    }
    if (find_decoded_bytes(tok, err) != 0 || pair_table_build(&tok->pairs, tok, err) != 0 ||
        normalize_added(tok, err) != 0 ||
        added_matcher_build(&tok->raw_matcher, tok, false, err) != 0 ||
        added_matcher_build(&tok->normal_matcher, tok, true, err) != 0)
        return -1;
    if (find_borders(tok, err) != 0) return -1;
    find_short_cuts(tok);
    tok->fingerprint = tokenizer_compute_fingerprint(tok);
    return 0;
}
