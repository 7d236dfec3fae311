// Building a tokenizer piece by piece, as every loader and the trainer do; tokenizer_finish makes
// it usable.
#include "base/hash.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

static int no_memory(struct err *err) {
    return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
}

struct tokenizer *tokenizer_new(enum tokenizer_kind kind, struct err *err) {
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) {
        no_memory(err);
        return NULL;
    }
    tok->kind = kind;
    tok->bos = tok->eos = tok->eot = tok->pad = tok->unk = -1;
    return tok;
}

void tokenizer_free(struct tokenizer *tok) {
    if (!tok) return;
    free(tok->tokens);
    text_free(&tok->pool);
    free(tok->scores);
    free(tok->vocab.slots);
    free(tok->pairs.slots);
    free(tok->merges);
    for (size_t i = 0; i < tok->added_count; i++) {
        free(tok->added[i].content);
        free(tok->added[i].normal);
    }
    free(tok->added);
    added_matcher_free(&tok->raw_matcher);
    added_matcher_free(&tok->normal_matcher);
    for (size_t i = 0; i < tok->normal_count; i++) {
        free(tok->normal[i].pattern);
        free(tok->normal[i].content);
    }
    free(tok->normal);
    for (size_t i = 0; i < tok->split_count; i++) {
        pretokenize_pattern_free(tok->splits[i].pattern);
        free(tok->splits[i].text);
    }
    free(tok->splits);
    free(tok->chat_template);
    free(tok->may_follow);
    free(tok);
}

static int make_room(struct tokenizer *tok, uint32_t id, const char *where, struct err *err) {
    if (id >= TOKENIZER_MAX_IDS)
        return err_set(err, ERR_DATA, "%s: token id %u is out of range (at most %u)", where, id,
                       TOKENIZER_MAX_IDS - 1);
    if (id >= tok->token_capacity) {
        size_t capacity = tok->token_capacity ? tok->token_capacity * 2 : 1024;
        while (capacity <= id) capacity *= 2;
        struct token_info *grown = realloc(tok->tokens, capacity * sizeof *grown);
        if (!grown) return no_memory(err);
        memset(grown + tok->token_capacity, 0, (capacity - tok->token_capacity) * sizeof *grown);
        tok->tokens = grown;
        tok->token_capacity = capacity;
    }
    if (id >= tok->vocab_size) tok->vocab_size = id + 1;
    return 0;
}

int tokenizer_set_token(struct tokenizer *tok, uint32_t id, const char *text, size_t length,
                        enum tokenizer_type type, bool in_model, const char *where,
                        struct err *err) {
    if (length > UINT32_MAX)
        return err_set(err, ERR_DATA, "%s: the text of token %u is too long", where, id);
    if (make_room(tok, id, where, err) != 0) return -1;
    struct token_info *token = &tok->tokens[id];
    if (token->type != 0)
        return err_set(err, ERR_DATA, "%s: token id %u is given twice, to \"%.*s\" and to \"%.*s\"",
                       where, id, (int)(token->text_length < 40 ? token->text_length : 40),
                       tok->pool.data + token->text_offset, (int)(length < 40 ? length : 40), text);
    if (in_model && vocab_table_get(tok, text, length) != TOKENIZER_NONE)
        return err_set(err, ERR_DATA, "%s: token \"%.*s\" is given twice, as id %u and as id %u",
                       where, (int)(length < 40 ? length : 40), text,
                       vocab_table_get(tok, text, length), id);
    token->text_offset = token->bytes_offset = tok->pool.size;
    token->text_length = token->bytes_length = (uint32_t)length;
    token->type = (uint8_t)type;
    token->in_model = in_model;
    if (text_put(&tok->pool, text, length) != 0) return no_memory(err);
    return in_model ? vocab_table_put(&tok->vocab, tok, id, err) : 0;
}

int tokenizer_set_printable(struct tokenizer *tok, uint32_t id, const char *text, size_t length,
                            const char *where, struct err *err) {
    struct text bytes = {0};
    if (text_reserve(&bytes, length) != 0) return no_memory(err);
    bool raw = false;
    for (size_t i = 0; i < length && !raw;) {
        uint32_t code_point;
        int step = text_utf8_decode((const unsigned char *)text + i, length - i, &code_point);
        int byte = step ? byte_alphabet_inverse(code_point) : -1;
        raw = byte < 0;
        bytes.data[bytes.size++] = (char)byte;
        i += (size_t)step;
    }
    int failed =
        raw ? tokenizer_set_token(tok, id, text, length, TOKENIZER_NORMAL, false, where, err)
            : tokenizer_set_token(tok, id, bytes.data, bytes.size, TOKENIZER_NORMAL, true, where,
                                  err);
    if (!failed) tok->tokens[id].raw = raw;
    text_free(&bytes);
    return failed;
}

int tokenizer_add_merge(struct tokenizer *tok, uint32_t left, uint32_t right, uint32_t result,
                        uint32_t rank, struct err *err) {
    if (tok->merge_count == tok->merge_capacity) {
        size_t capacity = tok->merge_capacity ? tok->merge_capacity * 2 : 4096;
        struct token_merge *grown = realloc(tok->merges, capacity * sizeof *grown);
        if (!grown) return no_memory(err);
        tok->merges = grown;
        tok->merge_capacity = capacity;
    }
    tok->merges[tok->merge_count++] = (struct token_merge){left, right, result, rank};
    return 0;
}

int tokenizer_add_added(struct tokenizer *tok, const struct added_token *model, const char *where,
                        struct err *err) {
    for (size_t i = 0; i < tok->added_count; i++)
        if (strcmp(tok->added[i].content, model->content) == 0)
            return err_set(err, ERR_DATA, "%s: the added token \"%.80s\" is given twice", where,
                           model->content);
    if (tok->added_count == tok->added_capacity) {
        size_t capacity = tok->added_capacity ? tok->added_capacity * 2 : 64;
        struct added_token *grown = realloc(tok->added, capacity * sizeof *grown);
        if (!grown) return no_memory(err);
        tok->added = grown;
        tok->added_capacity = capacity;
    }
    struct added_token *token = &tok->added[tok->added_count];
    *token = *model;
    token->normal = NULL;
    token->content = strdup(model->content);
    if (!token->content) return no_memory(err);
    token->content_length = strlen(token->content);
    tok->added_count++;
    if (make_room(tok, token->id, where, err) != 0) return -1;
    struct token_info *info = &tok->tokens[token->id];
    enum tokenizer_type type = token->special ? TOKENIZER_CONTROL : TOKENIZER_USER_DEFINED;
    if (info->type == 0)
        return tokenizer_set_token(tok, token->id, token->content, token->content_length, type,
                                   false, where, err);
    // Known to the model already: the same text is expected (in the printable alphabet for
    // byte-level ones).
    struct text text = {0};
    int failed = tokenizer_token_text(tok, token->id, &text);
    bool same = !failed && text.size == token->content_length &&
                (text.size == 0 || memcmp(text.data, token->content, text.size) == 0);
    if (!failed && !same)
        failed = err_set(err, ERR_DATA,
                         "%s: added token \"%.80s\" has id %u, which is the vocabulary's \"%.80s\"",
                         where, token->content, token->id, text.data ? text.data : "");
    text_free(&text);
    if (failed) return failed == -1 && same ? no_memory(err) : -1;
    if (info->type != TOKENIZER_UNKNOWN) info->type = (uint8_t)type;
    // It decodes to its own text, not to what the alphabet makes of it.
    info->bytes_offset = tok->pool.size;
    info->bytes_length = (uint32_t)token->content_length;
    return text_put(&tok->pool, token->content, token->content_length) == 0 ? 0 : no_memory(err);
}

int tokenizer_add_normal(struct tokenizer *tok, enum normal_kind kind, const char *pattern,
                         const char *content, struct err *err) {
    struct normal_step *grown = realloc(tok->normal, (tok->normal_count + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    tok->normal = grown;
    struct normal_step *step = &grown[tok->normal_count++];
    *step = (struct normal_step){kind, pattern ? strdup(pattern) : NULL,
                                 content ? strdup(content) : NULL, false};
    return (pattern && !step->pattern) || (content && !step->content) ? no_memory(err) : 0;
}

struct split_step *tokenizer_add_split(struct tokenizer *tok, struct err *err) {
    struct split_step *grown = realloc(tok->splits, (tok->split_count + 1) * sizeof *grown);
    if (!grown) {
        no_memory(err);
        return NULL;
    }
    tok->splits = grown;
    memset(&grown[tok->split_count], 0, sizeof *grown);
    return &grown[tok->split_count++];
}

int tokenizer_add_scanner(struct tokenizer *tok, enum pretokenize_scanner scanner,
                          struct err *err) {
    struct split_step *step = tokenizer_add_split(tok, err);
    if (!step) return -1;
    step->kind = SPLIT_SCANNER;
    step->scanner = scanner;
    step->behavior = SPLIT_ISOLATED;
    return 0;
}

static int compare_merges(const void *a, const void *b) {
    const struct token_merge *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static int compare_scores(const void *a, const void *b, void *context) {
    const float *scores = context;
    float x = scores[*(const uint32_t *)a], y = scores[*(const uint32_t *)b];
    return x != y ? (x > y ? -1 : 1) : 0;
}

// rank[id] of every token: its id, or its place among the distinct scores.
static uint32_t *rank_tokens(const struct tokenizer *tok) {
    uint32_t *order = malloc((size_t)tok->vocab_size * sizeof *order);
    uint32_t *rank = malloc((size_t)tok->vocab_size * sizeof *rank);
    if (order && rank) {
        for (uint32_t id = 0; id < tok->vocab_size; id++) order[id] = rank[id] = id;
        if (tok->scores) {
            qsort_r(order, tok->vocab_size, sizeof *order, compare_scores, tok->scores);
            uint32_t place = 0;
            for (uint32_t i = 0; i < tok->vocab_size; i++) {
                if (i > 0 && tok->scores[order[i]] != tok->scores[order[i - 1]]) place = i;
                rank[order[i]] = place;
            }
        }
        free(order);
        return rank;
    }
    free(order);
    free(rank);
    return NULL;
}

int tokenizer_merges_from_ranks(struct tokenizer *tok, struct err *err) {
    uint32_t *rank = rank_tokens(tok);
    if (!rank) return no_memory(err);
    for (uint32_t id = 0; id < tok->vocab_size; id++) {
        const struct token_info *token = &tok->tokens[id];
        if (token->type != TOKENIZER_NORMAL || !token->in_model) continue;
        const char *text = tok->pool.data + token->text_offset;
        for (uint32_t cut = 1; cut < token->text_length; cut++) {
            if (tok->kind == TOKENIZER_CHARACTERS && ((unsigned char)text[cut] & 0xC0) == 0x80)
                continue;
            uint32_t left = vocab_table_get(tok, text, cut);
            uint32_t right = left == TOKENIZER_NONE
                                 ? left
                                 : vocab_table_get(tok, text + cut, token->text_length - cut);
            if (right == TOKENIZER_NONE || tok->tokens[left].type != TOKENIZER_NORMAL ||
                tok->tokens[right].type != TOKENIZER_NORMAL)
                continue;
            if (tokenizer_add_merge(tok, left, right, id, rank[id], err) != 0) {
                free(rank);
                return -1;
            }
        }
    }
    free(rank);
    if (tok->merge_count) qsort(tok->merges, tok->merge_count, sizeof *tok->merges, compare_merges);
    return 0;
}
