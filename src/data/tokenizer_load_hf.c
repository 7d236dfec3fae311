// Loading a Hugging Face tokenizer.json: the BPE model and the added tokens here, the rest in
// tokenizer_load_steps.c.
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

static bool absent(json_t *value) {
    return !value || json_is_null(value);
}

static int read_vocab(struct tokenizer *tok, json_t *vocab, const char *path, struct err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(vocab))
        return err_set(err, ERR_DATA, "%s: model.vocab: expected an object", path);
    size_t length;
    json_object_keylen_foreach(vocab, key, length, value) {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= TOKENIZER_MAX_IDS)
            return err_set(err, ERR_DATA, "%s: model.vocab: \"%.60s\": expected an id from 0 to %u",
                           path, key, TOKENIZER_MAX_IDS - 1);
        int failed = tok->kind == TOKENIZER_BYTE_LEVEL
                         ? tokenizer_set_printable(tok, (uint32_t)id, key, length, path, err)
                         : tokenizer_set_token(tok, (uint32_t)id, key, length, TOKENIZER_NORMAL,
                                               true, path, err);
        if (failed) return -1;
    }
    return 0;
}

// The token of a piece of a merge, written in the notation of the vocabulary.
static uint32_t part_id(const struct tokenizer *tok, const char *text, size_t length) {
    if (tok->kind == TOKENIZER_CHARACTERS) return vocab_table_get(tok, text, length);
    char bytes[512];
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        int step = text_utf8_decode((const unsigned char *)text + i, length - i, &code_point);
        int byte = step ? byte_alphabet_inverse(code_point) : -1;
        if (byte < 0 || count == sizeof bytes) return TOKENIZER_NONE;
        bytes[count++] = (char)byte;
        i += (size_t)step;
    }
    return vocab_table_get(tok, bytes, count);
}

static int merge_parts(struct tokenizer *tok, size_t index, const char *left, size_t left_length,
                       const char *right, size_t right_length, const char *path, struct err *err) {
    uint32_t a = part_id(tok, left, left_length), b = part_id(tok, right, right_length),
             c = TOKENIZER_NONE;
    if (a != TOKENIZER_NONE && b != TOKENIZER_NONE) {
        struct text joined = {0};
        const struct token_info *x = &tok->tokens[a], *y = &tok->tokens[b];
        if (text_put(&joined, tok->pool.data + x->text_offset, x->text_length) != 0 ||
            text_put(&joined, tok->pool.data + y->text_offset, y->text_length) != 0) {
            text_free(&joined);
            return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
        }
        c = vocab_table_get(tok, joined.data, joined.size);
        text_free(&joined);
    }
    if (c == TOKENIZER_NONE)
        return err_set(err, ERR_DATA,
                       "%s: merge %zu (\"%.*s\" and \"%.*s\"): %s is not in the vocabulary", path,
                       index, (int)(left_length < 60 ? left_length : 60), left,
                       (int)(right_length < 60 ? right_length : 60), right,
                       a == TOKENIZER_NONE   ? "the first"
                       : b == TOKENIZER_NONE ? "the second"
                                             : "the result");
    return tokenizer_add_merge(tok, a, b, c, (uint32_t)index, err);
}

// "a b": the two parts, separated by the one space.
static int merge_line(struct tokenizer *tok, size_t index, const char *line, size_t length,
                      const char *path, struct err *err) {
    const char *space = memchr(line, ' ', length);
    size_t left = space ? (size_t)(space - line) : 0;
    if (!space || left == 0 || left + 1 == length || memchr(space + 1, ' ', length - left - 1))
        return err_set(
            err, ERR_DATA,
            "%s: merge %zu: expected two tokens with a space between them, found \"%.*s\"", path,
            index, (int)(length < 60 ? length : 60), line);
    return merge_parts(tok, index, line, left, space + 1, length - left - 1, path, err);
}

static int read_merges(struct tokenizer *tok, json_t *merges, const char *path, struct err *err) {
    size_t i;
    json_t *one;
    if (!json_is_array(merges))
        return err_set(err, ERR_DATA, "%s: model.merges: expected a list", path);
    json_array_foreach(merges, i, one) {
        json_t *a = json_array_get(one, 0), *b = json_array_get(one, 1);
        int failed;
        if (json_is_string(one))
            failed = merge_line(tok, i, json_string_value(one), json_string_length(one), path, err);
        else if (json_array_size(one) == 2 && json_is_string(a) && json_is_string(b))
            failed = merge_parts(tok, i, json_string_value(a), json_string_length(a),
                                 json_string_value(b), json_string_length(b), path, err);
        else
            failed =
                err_set(err, ERR_DATA,
                        "%s: model.merges: entry %zu: expected \"a b\" or [\"a\", \"b\"]", path, i);
        if (failed) return -1;
    }
    return 0;
}

static int empty_affix(json_t *model, const char *key, const char *path, struct err *err) {
    json_t *value = json_object_get(model, key);
    if (absent(value) || (json_is_string(value) && json_string_length(value) == 0)) return 0;
    return err_set(err, ERR_DATA, "%s: model.%s: only null or \"\" is supported", path, key);
}

static int read_model(struct tokenizer *tok, json_t *model, const char *path, struct err *err) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    struct json_at at = {model, path};
    const char *type, *unk;
    if (tokenizer_check_keys(model, keys, path, "model", err) != 0 ||
        json_get_string(at, "type", false, "BPE", &type, err) != 0)
        return -1;
    if (strcmp(type, "BPE") != 0)
        return err_set(err, ERR_DATA, "%s: model.type \"%.40s\" is not supported, only BPE", path,
                       type);
    json_t *dropout = json_object_get(model, "dropout");
    if (!absent(dropout) && json_number_value(dropout) != 0)
        return err_set(err, ERR_DATA, "%s: model.dropout: only null or 0 is supported", path);
    if (empty_affix(model, "continuing_subword_prefix", path, err) != 0 ||
        empty_affix(model, "end_of_word_suffix", path, err) != 0 ||
        json_get_bool(at, "fuse_unk", false, false, &tok->fuse_unk, err) != 0 ||
        json_get_bool(at, "byte_fallback", false, false, &tok->byte_fallback, err) != 0 ||
        json_get_bool(at, "ignore_merges", false, false, &tok->ignore_merges, err) != 0 ||
        json_get_string(at, "unk_token", false, NULL, &unk, err) != 0 ||
        read_vocab(tok, json_object_get(model, "vocab"), path, err) != 0 ||
        read_merges(tok, json_object_get(model, "merges"), path, err) != 0)
        return -1;
    if (!unk) return 0;
    uint32_t id = part_id(tok, unk, strlen(unk));
    if (id == TOKENIZER_NONE)
        return err_set(err, ERR_DATA, "%s: model.unk_token \"%.60s\" is not in the vocabulary",
                       path, unk);
    tok->unk = (int32_t)id;
    tok->tokens[id].type = TOKENIZER_UNKNOWN;
    return 0;
}

static int read_added(struct tokenizer *tok, json_t *list, const char *path, struct err *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    size_t i;
    json_t *one;
    if (absent(list)) return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_DATA, "%s: added_tokens: expected a list", path);
    json_array_foreach(list, i, one) {
        struct added_token token = {0};
        struct json_at at = {one, path};
        int64_t id;
        const char *content;
        if (tokenizer_check_keys(one, keys, path, "added_tokens", err) != 0 ||
            json_get_int(at, "id", true, 0, &id, err) != 0 ||
            json_get_string(at, "content", true, NULL, &content, err) != 0 ||
            json_get_bool(at, "single_word", false, false, &token.single_word, err) != 0 ||
            json_get_bool(at, "lstrip", false, false, &token.lstrip, err) != 0 ||
            json_get_bool(at, "rstrip", false, false, &token.rstrip, err) != 0 ||
            json_get_bool(at, "special", false, false, &token.special, err) != 0 ||
            json_get_bool(at, "normalized", false, !token.special, &token.normalized, err) != 0)
            return -1;
        if (strlen(content) != json_string_length(json_object_get(one, "content")) || !*content)
            return err_set(err, ERR_DATA,
                           "%s: added_tokens: the token of id %lld is empty or holds a NUL", path,
                           (long long)id);
        if (id < 0 || id >= TOKENIZER_MAX_IDS)
            return err_set(err, ERR_DATA,
                           "%s: added_tokens: \"%.60s\": the id %lld is out of range", path,
                           content, (long long)id);
        token.id = (uint32_t)id;
        token.content = (char *)(uintptr_t)content;
        if (tokenizer_add_added(tok, &token, path, err) != 0) return -1;
    }
    return 0;
}

static int nothing(json_t *root, const char *key, const char *path, struct err *err) {
    return absent(json_object_get(root, key))
               ? 0
               : err_set(err, ERR_DATA, "%s: \"%s\" is not supported; set it to null", path, key);
}

static int read_root(struct tokenizer *tok, json_t *root, const char *path, struct err *err) {
    if (read_model(tok, json_object_get(root, "model"), path, err) != 0 ||
        tokenizer_parse_normalizer(tok, json_object_get(root, "normalizer"), path, err) != 0 ||
        read_added(tok, json_object_get(root, "added_tokens"), path, err) != 0 ||
        tokenizer_parse_post_processor(tok, json_object_get(root, "post_processor"), path, err) !=
            0 ||
        tokenizer_parse_decoder(tok, json_object_get(root, "decoder"), path, err) != 0)
        return -1;
    return 0;
}

struct tokenizer *tokenizer_load_hf(const char *path, const char *json, size_t size,
                                    struct err *err) {
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    json_t *root = json_parse(json, size, path, err);
    if (!root) return NULL;
    struct tokenizer *tok = NULL;
    bool byte_level;
    if (tokenizer_check_keys(root, keys, path, "tokenizer", err) == 0 &&
        nothing(root, "truncation", path, err) == 0 && nothing(root, "padding", path, err) == 0 &&
        (tok = tokenizer_new(TOKENIZER_CHARACTERS, err)) != NULL) {
        if (tokenizer_parse_pre_tokenizer(tok, json_object_get(root, "pre_tokenizer"), path,
                                          &byte_level, err) == 0) {
            tok->kind = byte_level ? TOKENIZER_BYTE_LEVEL : TOKENIZER_CHARACTERS;
            if (read_root(tok, root, path, err) == 0) {
                json_decref(root);
                return tok;
            }
        }
    }
    tokenizer_free(tok);
    json_decref(root);
    return NULL;
}

// One merge per line; lines that begin with "#version" and empty ones are passed over.
static int read_merges_text(struct tokenizer *tok, const char *text, size_t size, const char *path,
                            struct err *err) {
    size_t index = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        const char *line = text + at;
        at += length + 1;
        if (length > 0 && line[length - 1] == '\r') length--;
        if (length == 0 || (length >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        if (merge_line(tok, index++, line, length, path, err) != 0) return -1;
    }
    return 0;
}

struct tokenizer *tokenizer_load_gpt2(const char *vocab_path, const char *merges_path,
                                      struct err *err) {
    char *text = NULL;
    size_t size = 0;
    json_t *vocab = json_parse_file(vocab_path, err);
    struct tokenizer *tok = vocab ? tokenizer_new(TOKENIZER_BYTE_LEVEL, err) : NULL;
    int failed = !tok || read_vocab(tok, vocab, vocab_path, err) != 0 ||
                 file_read(merges_path, 0, &text, &size, err) != 0 ||
                 read_merges_text(tok, text, size, merges_path, err) != 0;
    free(text);
    json_decref(vocab);
    if (!failed) {
        uint32_t end = vocab_table_get(tok, "<|endoftext|>", 13);
        if (end != TOKENIZER_NONE) {
            struct added_token token = {
                .content = (char *)(uintptr_t) "<|endoftext|>", .id = end, .special = true};
            failed = tokenizer_add_added(tok, &token, vocab_path, err);
            tok->bos = tok->eos = (int32_t)end;
        }
    }
    if (!failed) return tok;
    tokenizer_free(tok);
    return NULL;
}
