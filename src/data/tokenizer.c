// What a tokenizer says about itself, lists of ids, and decoding.
#include "data/tokenizer.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){NULL, 0, 0};
}

int token_list_reserve(struct token_list *list, size_t more_elements) {
    if (more_elements >= SIZE_MAX / 16) return -1;
    size_t need = list->count + more_elements;
    if (need <= list->capacity) return 0;
    size_t capacity = list->capacity ? list->capacity : 64;
    while (capacity < need) capacity += capacity / 2;
    uint32_t *grown = realloc(list->ids, capacity * sizeof *grown);
    if (!grown) return -1;
    list->ids = grown;
    list->capacity = capacity;
    return 0;
}

int token_list_put(struct token_list *list, uint32_t id) {
    if (token_list_reserve(list, 1) != 0) return -1;
    list->ids[list->count++] = id;
    return 0;
}

uint32_t tokenizer_vocab_size(const struct tokenizer *tok) {
    return tok->vocab_size;
}
uint64_t tokenizer_fingerprint(const struct tokenizer *tok) {
    return tok->fingerprint;
}
int32_t tokenizer_bos(const struct tokenizer *tok) {
    return tok->bos;
}
int32_t tokenizer_eos(const struct tokenizer *tok) {
    return tok->eos;
}
int32_t tokenizer_eot(const struct tokenizer *tok) {
    return tok->eot;
}
int32_t tokenizer_pad(const struct tokenizer *tok) {
    return tok->pad;
}
int32_t tokenizer_unk(const struct tokenizer *tok) {
    return tok->unk;
}
bool tokenizer_add_bos(const struct tokenizer *tok) {
    return tok->add_bos;
}
bool tokenizer_add_eos(const struct tokenizer *tok) {
    return tok->add_eos;
}
const char *tokenizer_chat_template(const struct tokenizer *tok) {
    return tok->chat_template;
}
enum tokenizer_kind tokenizer_kind(const struct tokenizer *tok) {
    return tok->kind;
}

bool tokenizer_lossless(const struct tokenizer *tok) {
    if (tok->kind != TOKENIZER_BYTE_LEVEL || tok->normal_count > 0) return false;
    for (int byte = 0; byte < 256; byte++)
        if (tok->byte_ids[byte] == TOKENIZER_NONE) return false;
    for (size_t i = 0; i < tok->split_count; i++)
        if (tok->splits[i].behavior == SPLIT_REMOVED || tok->splits[i].kind >= SPLIT_METASPACE)
            return false;
    for (size_t i = 0; i < tok->added_count; i++)
        if (tok->added[i].lstrip || tok->added[i].rstrip) return false;
    return true;
}

static const struct token_info *token_at(const struct tokenizer *tok, uint32_t id) {
    return id < tok->vocab_size && tok->tokens[id].type != 0 ? &tok->tokens[id] : NULL;
}

const unsigned char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id,
                                           size_t *length) {
    const struct token_info *token = token_at(tok, id);
    if (!token) return NULL;
    *length = token->bytes_length;
    return (const unsigned char *)tok->pool.data + token->bytes_offset;
}

bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id) {
    const struct token_info *token = token_at(tok, id);
    return token && (token->type == TOKENIZER_CONTROL || token->type == TOKENIZER_UNKNOWN);
}

int32_t tokenizer_id_of(const struct tokenizer *tok, const char *text) {
    for (size_t i = 0; i < tok->added_count; i++)
        if (strcmp(tok->added[i].content, text) == 0) return (int32_t)tok->added[i].id;
    uint32_t id = vocab_table_get(tok, text, strlen(text));
    return id == TOKENIZER_NONE ? -1 : (int32_t)id;
}

const char *tokenizer_gguf_model(const struct tokenizer *tok) {
    return tok->kind == TOKENIZER_BYTE_LEVEL ? "gpt2" : "llama";
}

const char *tokenizer_gguf_pre(const struct tokenizer *tok) {
    switch (tok->scanner) {
    case SCAN_GPT2:
        return "gpt-2";
    case SCAN_LLAMA3:
        return "llama-bpe";
    case SCAN_QWEN2:
        return "qwen2";
    case SCAN_SMOLLM2:
        return "smollm";
    case SCAN_NONE:
        break;
    }
    return "default";
}

enum tokenizer_type tokenizer_token_type(const struct tokenizer *tok, uint32_t id) {
    const struct token_info *token = token_at(tok, id);
    return token ? (enum tokenizer_type)token->type : TOKENIZER_UNUSED;
}

float tokenizer_token_score(const struct tokenizer *tok, uint32_t id) {
    return tok->scores && id < tok->vocab_size ? tok->scores[id] : -(float)id;
}

int tokenizer_token_text(const struct tokenizer *tok, uint32_t id, struct text *out) {
    const struct token_info *token = token_at(tok, id);
    if (!token) return text_printf(out, "[unused%u]", id);
    const char *text = tok->pool.data + token->text_offset;
    if (tok->kind != TOKENIZER_BYTE_LEVEL || token->raw || !token->in_model)
        return text_put(out, text, token->text_length);
    for (uint32_t i = 0; i < token->text_length; i++) {
        char utf8[4];
        int length = text_utf8_encode(byte_alphabet((unsigned char)text[i]), utf8);
        if (text_put(out, utf8, (size_t)length) != 0) return -1;
    }
    return 0;
}

size_t tokenizer_merge_count(const struct tokenizer *tok) {
    return tok->merge_count;
}

void tokenizer_merge(const struct tokenizer *tok, size_t index, uint32_t *left, uint32_t *right) {
    *left = tok->merges[index].left;
    *right = tok->merges[index].right;
}

bool tokenizer_add_space_prefix(const struct tokenizer *tok) {
    for (size_t i = 0; i < tok->normal_count; i++)
        if (tok->normal[i].kind == NORMAL_PREPEND) return true;
    for (size_t i = 0; i < tok->split_count; i++)
        if (tok->splits[i].kind == SPLIT_PREFIX_SPACE ||
            (tok->splits[i].kind == SPLIT_METASPACE && tok->splits[i].prepend != PREPEND_NEVER))
            return true;
    return false;
}

// Appends the bytes of one id; `begun`: something stands before it already.
static int put_token(const struct tokenizer *tok, uint32_t id, bool skip_special, bool *begun,
                     struct text *out, struct err *err) {
    const struct token_info *token = token_at(tok, id);
    if (!token)
        return err_set(err, ERR_DATA, "token id %u is not in the vocabulary of %u tokens", id,
                       tok->vocab_size);
    bool special = token->type == TOKENIZER_CONTROL || token->type == TOKENIZER_UNKNOWN;
    if (special && skip_special) return 0;
    const char *bytes = tok->pool.data + token->bytes_offset;
    size_t length = token->bytes_length;
    if (tok->strip_first_space && !*begun && length > 0 && bytes[0] == ' ') bytes++, length--;
    *begun = true;
    return text_put(out, bytes, length) == 0
               ? 0
               : err_set(err, ERR_MEMORY, "no memory for decoded text");
}

int tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, size_t count,
                     bool skip_special, struct text *out, struct err *err) {
    bool begun = false;
    for (size_t i = 0; i < count; i++)
        if (put_token(tok, ids[i], skip_special, &begun, out, err) != 0) return -1;
    return 0;
}

// Could the bytes still become a character when more of them follow?
static bool may_continue(const unsigned char *bytes, int count) {
    unsigned char first = bytes[0];
    int need = first >= 0xC2 && first <= 0xDF   ? 2
               : (first & 0xF0) == 0xE0         ? 3
               : first >= 0xF0 && first <= 0xF4 ? 4
                                                : 0;
    if (count >= need) return false;
    if (count > 1) {
        unsigned char second = bytes[1];
        if ((second & 0xC0) != 0x80 || (first == 0xE0 && second < 0xA0) ||
            (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
            (first == 0xF4 && second > 0x8F))
            return false;
    }
    return count <= 2 || (bytes[2] & 0xC0) == 0x80;
}

static int stream_byte(struct tokenizer_stream *stream, unsigned char byte, struct text *out) {
    stream->pending[stream->pending_count++] = byte;
    while (stream->pending_count > 0) {
        uint32_t code_point;
        int length = text_utf8_decode(stream->pending, (size_t)stream->pending_count, &code_point);
        if (length == 0 && may_continue(stream->pending, stream->pending_count)) return 0;
        int failed = length ? text_put(out, stream->pending, (size_t)length)
                            : text_puts(out, "\xEF\xBF\xBD");
        if (failed) return -1;
        if (length == 0) length = 1;
        stream->pending_count -= length;
        memmove(stream->pending, stream->pending + length, (size_t)stream->pending_count);
    }
    return 0;
}

int tokenizer_stream_put(const struct tokenizer *tok, struct tokenizer_stream *stream, uint32_t id,
                         bool skip_special, struct text *out, struct err *err) {
    struct text bytes = {0};
    int failed = put_token(tok, id, skip_special, &stream->begun, &bytes, err);
    for (size_t i = 0; i < bytes.size && !failed; i++)
        if (stream_byte(stream, (unsigned char)bytes.data[i], out) != 0)
            failed = err_set(err, ERR_MEMORY, "no memory for decoded text");
    text_free(&bytes);
    return failed;
}

int tokenizer_stream_end(struct tokenizer_stream *stream, struct text *out) {
    int count = stream->pending_count;
    stream->pending_count = 0;
    return count > 0 ? text_puts(out, "\xEF\xBF\xBD") : 0;
}
