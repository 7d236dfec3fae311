// Loading a SentencePiece model of the BPE kind (Llama 2): a protobuf message, of which the few
// fields that matter are read by the small wire reader below. Field numbers are those of
// sentencepiece_model.proto.
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

struct wire {
    const unsigned char *at, *end;
};
struct field {
    uint32_t number, type;
    uint64_t value; // varint, or the four bytes of a fixed32
    struct wire bytes;
};

static int read_varint(struct wire *w, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (w->at == w->end) return -1;
        unsigned char byte = *w->at++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return 0;
    }
    return -1;
}

static int read_fixed(struct wire *w, size_t bytes, uint64_t *value) {
    if ((size_t)(w->end - w->at) < bytes) return -1;
    *value = 0;
    for (size_t i = 0; i < bytes; i++) *value |= (uint64_t)w->at[i] << (8 * i);
    w->at += bytes;
    return 0;
}

// 1: a field was read; 0: the message is at its end; -1: it is damaged.
static int next_field(struct wire *w, struct field *f) {
    uint64_t tag, length;
    if (w->at == w->end) return 0;
    if (read_varint(w, &tag) != 0 || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return -1;
    f->number = (uint32_t)(tag >> 3);
    f->type = tag & 7;
    f->value = 0;
    f->bytes = (struct wire){NULL, NULL};
    switch (f->type) {
    case 0:
        return read_varint(w, &f->value) == 0 ? 1 : -1;
    case 1:
        return read_fixed(w, 8, &f->value) == 0 ? 1 : -1;
    case 5:
        return read_fixed(w, 4, &f->value) == 0 ? 1 : -1;
    case 2:
        if (read_varint(w, &length) != 0 || length > (uint64_t)(w->end - w->at)) return -1;
        f->bytes = (struct wire){w->at, w->at + length};
        w->at += length;
        return 1;
    default:
        return -1;
    }
}

struct model {
    uint64_t model_type;
    int64_t unk_id, bos_id, eos_id, pad_id;
    bool byte_fallback, dummy_prefix, remove_spaces, escape_spaces, suffix_spaces, charsmap;
};

static int damaged(const char *path, struct err *err) {
    return err_set(err, ERR_DATA, "%s: the SentencePiece message is damaged or cut off", path);
}

static int read_piece(struct tokenizer *tok, struct wire message, uint32_t id, const char *path,
                      struct err *err) {
    struct field f;
    struct wire piece = {NULL, NULL};
    float score = 0;
    uint64_t type = TOKENIZER_NORMAL;
    int more;
    while ((more = next_field(&message, &f)) > 0) {
        if (f.number == 1 && f.type == 2) piece = f.bytes;
        if (f.number == 2 && f.type == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        }
        if (f.number == 3 && f.type == 0) type = f.value;
    }
    if (more < 0 || !piece.at || piece.at == piece.end) return damaged(path, err);
    if (type < TOKENIZER_NORMAL || type > TOKENIZER_BYTE)
        return err_set(err, ERR_DATA, "%s: piece %u has the unknown type %llu", path, id,
                       (unsigned long long)type);
    if (id >= TOKENIZER_MAX_IDS) return err_set(err, ERR_DATA, "%s: too many pieces", path);
    if (score != score)
        return err_set(err, ERR_DATA, "%s: the score of piece %u is not a number", path, id);
    size_t length = (size_t)(piece.end - piece.at);
    if (memchr(piece.at, 0, length))
        return err_set(err, ERR_DATA, "%s: piece %u holds a NUL byte", path, id);
    bool in_model = type == TOKENIZER_NORMAL || type == TOKENIZER_BYTE;
    if (tokenizer_set_token(tok, id, (const char *)piece.at, length, (enum tokenizer_type)type,
                            in_model, path, err) != 0)
        return -1;
    tok->scores[id] = score;
    if (type != TOKENIZER_USER_DEFINED && type != TOKENIZER_CONTROL && type != TOKENIZER_UNKNOWN)
        return 0;
    char *content = strndup((const char *)piece.at, length);
    if (!content) return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
    struct added_token token = {.content = content,
                                .id = id,
                                .special = type != TOKENIZER_USER_DEFINED,
                                .normalized = type == TOKENIZER_USER_DEFINED};
    int failed = tokenizer_add_added(tok, &token, path, err);
    free(content);
    return failed;
}

static int read_trainer(struct wire message, struct model *m) {
    struct field f;
    int more;
    while ((more = next_field(&message, &f)) > 0) {
        if (f.type != 0) continue;
        switch (f.number) {
        case 3:
            m->model_type = f.value;
            break;
        case 24:
            m->suffix_spaces = f.value != 0;
            break;
        case 35:
            m->byte_fallback = f.value != 0;
            break;
        case 40:
            m->unk_id = (int32_t)f.value;
            break;
        case 41:
            m->bos_id = (int32_t)f.value;
            break;
        case 42:
            m->eos_id = (int32_t)f.value;
            break;
        case 43:
            m->pad_id = (int32_t)f.value;
            break;
        default:
            break;
        }
    }
    return more;
}

static int read_normalizer(struct wire message, struct model *m) {
    struct field f;
    int more;
    while ((more = next_field(&message, &f)) > 0) {
        if (f.number == 2 && f.type == 2) m->charsmap = f.bytes.at != f.bytes.end;
        if (f.number == 3 && f.type == 0) m->dummy_prefix = f.value != 0;
        if (f.number == 4 && f.type == 0) m->remove_spaces = f.value != 0;
        if (f.number == 5 && f.type == 0) m->escape_spaces = f.value != 0;
    }
    return more;
}

static int check_model(const struct model *m, const char *path, struct err *err) {
    static const char *const kinds[] = {"", "unigram", "bpe", "word", "char"};
    if (m->model_type != 2)
        return err_set(err, ERR_DATA,
                       "%s: a SentencePiece model of the kind \"%s\"; only bpe is supported", path,
                       m->model_type < 5 ? kinds[m->model_type] : "unknown");
    const char *what = m->charsmap         ? "a normalisation table (precompiled_charsmap)"
                       : m->remove_spaces  ? "remove_extra_whitespaces"
                       : m->suffix_spaces  ? "treat_whitespace_as_suffix"
                       : !m->escape_spaces ? "escape_whitespaces = false"
                                           : NULL;
    return what ? err_set(err, ERR_DATA, "%s: a SentencePiece model with %s is not supported", path,
                          what)
                : 0;
}

static int32_t known_id(const struct tokenizer *tok, int64_t id) {
    return id >= 0 && id < tok->vocab_size && tok->tokens[id].type != 0 ? (int32_t)id : -1;
}

static int read_model(struct tokenizer *tok, struct wire w, const char *path, struct err *err) {
    struct model m = {.model_type = 1,
                      .unk_id = 0,
                      .bos_id = 1,
                      .eos_id = 2,
                      .pad_id = -1,
                      .dummy_prefix = true,
                      .remove_spaces = true,
                      .escape_spaces = true};
    struct field f;
    struct wire counting = w;
    uint32_t pieces = 0, id = 0;
    int more;
    while ((more = next_field(&counting, &f)) > 0) {
        pieces += f.number == 1 && f.type == 2;
        if (f.number == 2 && f.type == 2 && read_trainer(f.bytes, &m) < 0) more = -1;
        if (f.number == 3 && f.type == 2 && read_normalizer(f.bytes, &m) < 0) more = -1;
        if (more < 0) break;
    }
    if (more < 0 || pieces == 0) return damaged(path, err);
    if (check_model(&m, path, err) != 0) return -1;
    tok->scores = calloc(pieces, sizeof *tok->scores);
    if (!tok->scores) return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
    while (next_field(&w, &f) > 0)
        if (f.number == 1 && f.type == 2 && read_piece(tok, f.bytes, id++, path, err) != 0)
            return -1;
    tok->unk = known_id(tok, m.unk_id);
    tok->bos = known_id(tok, m.bos_id);
    tok->eos = known_id(tok, m.eos_id);
    tok->pad = known_id(tok, m.pad_id);
    tok->add_bos = tok->bos >= 0;
    tok->byte_fallback = m.byte_fallback;
    tok->fuse_unk = true;
    tok->decode_space = true;
    tok->strip_first_space = m.dummy_prefix;
    if (m.dummy_prefix) {
        if (tokenizer_add_normal(tok, NORMAL_PREPEND, NULL, "\xE2\x96\x81", err) != 0) return -1;
        tok->normal[0].first_only = true;
    }
    return tokenizer_add_normal(tok, NORMAL_REPLACE, " ", "\xE2\x96\x81", err) != 0
               ? -1
               : tokenizer_merges_from_ranks(tok, err);
}

struct tokenizer *tokenizer_load_sentencepiece(const char *path, const char *data, size_t size,
                                               struct err *err) {
    struct tokenizer *tok = tokenizer_new(TOKENIZER_CHARACTERS, err);
    struct wire w = {(const unsigned char *)data, (const unsigned char *)data + size};
    if (tok && read_model(tok, w, path, err) == 0) return tok;
    tokenizer_free(tok);
    return NULL;
}
