// Finding out what a path holds, and the small files beside a tokenizer that name its special
// tokens.
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_parts.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool member(const char *folder, const char *name, char path[4096]) {
    return file_join(path, 4096, folder, name, NULL) == 0 && file_exists(path);
}

// A token is written as its text or as an object with "content".
static int token_named(const struct tokenizer *tok, json_t *value, int32_t *id) {
    const char *text = json_string_value(value);
    if (!text) text = json_string_value(json_object_get(value, "content"));
    if (!text) return -1;
    int32_t found = tokenizer_id_of(tok, text);
    if (found < 0) return -1;
    *id = found;
    return 0;
}

static void read_special_names(struct tokenizer *tok, json_t *root) {
    const struct {
        const char *key;
        int32_t *id;
    } named[] = {{"bos_token", &tok->bos},
                 {"eos_token", &tok->eos},
                 {"pad_token", &tok->pad},
                 {"unk_token", &tok->unk}};
    for (size_t i = 0; i < 4; i++) {
        json_t *value = json_object_get(root, named[i].key);
        // The unknown token of the model decides about ids; a name beside it does not.
        if (value && named[i].id != &tok->unk) token_named(tok, value, named[i].id);
        if (json_is_null(value) && named[i].id == &tok->bos && !tok->add_bos) tok->bos = -1;
    }
}

// Llama 3.1 gave names to some reserved tokens of the rank file: 1 when `id` is such a one and has
// the new name.
static int rename_reserved(struct tokenizer *tok, uint32_t id, const char *content,
                           struct err *err) {
    for (size_t i = 0; i < tok->added_count; i++) {
        struct added_token *token = &tok->added[i];
        if (token->id != id || strncmp(token->content, "<|reserved_special_token_", 25) != 0)
            continue;
        char *name = strdup(content);
        struct token_info *info = &tok->tokens[id];
        info->text_offset = info->bytes_offset = tok->pool.size;
        info->text_length = info->bytes_length = (uint32_t)strlen(content);
        if (!name || text_puts(&tok->pool, content) != 0) {
            free(name);
            return err_set(err, ERR_MEMORY, "no memory for a tokenizer");
        }
        free(token->content);
        token->content = name;
        token->content_length = strlen(name);
        return 1;
    }
    return 0;
}

static int read_added_decoder(struct tokenizer *tok, json_t *list, const char *path,
                              struct err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(list, key, value) {
        char *end = NULL;
        unsigned long id = strtoul(key, &end, 10);
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content || *key == 0 || *end != 0 || id >= TOKENIZER_MAX_IDS)
            return err_set(err, ERR_DATA,
                           "%s: added_tokens_decoder: \"%.40s\": expected an id with a content",
                           path, key);
        bool known = false;
        for (size_t i = 0; i < tok->added_count && !known; i++)
            known = strcmp(tok->added[i].content, content) == 0;
        if (known) continue;
        int renamed = rename_reserved(tok, (uint32_t)id, content, err);
        if (renamed < 0) return -1;
        if (renamed) continue;
        struct added_token token = {
            .content = (char *)(uintptr_t)content,
            .id = (uint32_t)id,
            .special = json_is_true(json_object_get(value, "special")),
            .lstrip = json_is_true(json_object_get(value, "lstrip")),
            .rstrip = json_is_true(json_object_get(value, "rstrip")),
            .single_word = json_is_true(json_object_get(value, "single_word")),
            .normalized = json_is_true(json_object_get(value, "normalized")),
        };
        if (tokenizer_add_added(tok, &token, path, err) != 0) return -1;
    }
    return 0;
}

static int keep_template(struct tokenizer *tok, const char *text, struct err *err) {
    if (!text) return 0;
    free(tok->chat_template);
    tok->chat_template = strdup(text);
    return tok->chat_template ? 0 : err_set(err, ERR_MEMORY, "no memory for a chat template");
}

static int read_template(struct tokenizer *tok, json_t *value, struct err *err) {
    size_t i;
    json_t *one;
    const char *text = json_string_value(value);
    json_array_foreach(value, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (!text || (name && strcmp(name, "default") == 0))
            text = json_string_value(json_object_get(one, "template"));
    }
    return keep_template(tok, text, err);
}

// Qwen's vocab.json and merges.txt come with the class name as the only trace of their rules.
static int rules_of_class(struct tokenizer *tok, json_t *root, struct err *err) {
    const char *class = json_string_value(json_object_get(root, "tokenizer_class"));
    if (!class || strncmp(class, "Qwen2Tokenizer", 14) != 0) return 0;
    tok->bos = tok->eos = -1;
    if (tokenizer_add_normal(tok, NORMAL_NFC, NULL, NULL, err) != 0) return -1;
    return tokenizer_add_scanner(tok, SCAN_QWEN2, err);
}

static int read_config_file(struct tokenizer *tok, const char *path, bool bare, struct err *err) {
    json_t *root = json_parse_file_reals(path, err);
    if (!root) return -1;
    int failed = 0;
    if (bare) failed = rules_of_class(tok, root, err);
    if (!failed)
        failed = read_added_decoder(tok, json_object_get(root, "added_tokens_decoder"), path, err);
    if (!failed) {
        read_special_names(tok, root);
        json_t *bos = json_object_get(root, "add_bos_token"),
               *eos = json_object_get(root, "add_eos_token");
        if (json_is_boolean(bos)) tok->add_bos = json_is_true(bos) && tok->bos >= 0;
        if (json_is_boolean(eos)) tok->add_eos = json_is_true(eos) && tok->eos >= 0;
        failed = read_template(tok, json_object_get(root, "chat_template"), err);
    }
    json_decref(root);
    return failed;
}

static void find_end_of_turn(struct tokenizer *tok) {
    static const char *const names[] = {"<|eot_id|>", "<|im_end|>", "<|end_of_turn|>",
                                        "<end_of_turn>", "<|end|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && tok->eot < 0; i++)
        for (size_t k = 0; k < tok->added_count; k++)
            if (strcmp(tok->added[k].content, names[i]) == 0) tok->eot = (int32_t)tok->added[k].id;
}

int tokenizer_read_config(struct tokenizer *tok, const char *folder, struct err *err) {
    char path[4096];
    bool bare = tok->kind == TOKENIZER_BYTE_LEVEL && tok->split_count == 0 && !tok->ignore_merges &&
                !member(folder, "tokenizer.json", path);
    if (member(folder, "special_tokens_map.json", path)) {
        json_t *root = json_parse_file_reals(path, err);
        if (!root) return -1;
        read_special_names(tok, root);
        json_decref(root);
    }
    if (member(folder, "tokenizer_config.json", path) &&
        read_config_file(tok, path, bare, err) != 0)
        return -1;
    if (bare && tok->split_count == 0 && tokenizer_add_scanner(tok, SCAN_GPT2, err) != 0) return -1;
    if (!tok->chat_template && member(folder, "chat_template.jinja", path)) {
        char *text = NULL;
        size_t size;
        if (file_read(path, 0, &text, &size, err) != 0) return -1;
        int failed = keep_template(tok, text, err);
        free(text);
        if (failed) return -1;
    }
    return 0;
}

// The folder of a file's path, into `out`.
static void folder_of(const char *path, char out[4096]) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length > 4095) length = 0;
    memcpy(out, path, length);
    out[length] = 0;
    if (!slash) strcpy(out, ".");
}

static bool looks_like_ranks(const char *data, size_t size) {
    size_t i = 0;
    while (i < size && i < 200 &&
           (isalnum((unsigned char)data[i]) || data[i] == '+' || data[i] == '/' || data[i] == '='))
        i++;
    return i > 0 && i + 1 < size && data[i] == ' ' && data[i + 1] >= '0' && data[i + 1] <= '9';
}

// vocab.json and encoder.json need the merges that lie beside them.
static const char *const gpt2_pairs[][2] = {{"vocab.json", "merges.txt"},
                                            {"encoder.json", "vocab.bpe"}};

static bool merges_beside(const char *path, char merges[4096]) {
    const char *slash = strrchr(path, '/');
    char folder[4096];
    folder_of(path, folder);
    for (size_t i = 0; i < 2; i++)
        if (strcmp(slash ? slash + 1 : path, gpt2_pairs[i][0]) == 0)
            return member(folder, gpt2_pairs[i][1], merges);
    return false;
}

static struct tokenizer *load_file(const char *path, struct err *err) {
    char merges[4096];
    if (merges_beside(path, merges)) return tokenizer_load_gpt2(path, merges, err);
    char *data = NULL;
    size_t size = 0;
    struct tokenizer *tok = NULL;
    if (file_read(path, 0, &data, &size, err) != 0) return NULL;
    size_t i = 0;
    while (i < size && (data[i] == ' ' || data[i] == '\n' || data[i] == '\r' || data[i] == '\t'))
        i++;
    if (size == 0)
        err_set(err, ERR_DATA, "%s: the file is empty", path);
    else if (i < size && data[i] == '{')
        tok = tokenizer_load_hf(path, data, size, err);
    else if (data[0] == 0x0A && !looks_like_ranks(data, size))
        tok = tokenizer_load_sentencepiece(path, data, size, err);
    else if (looks_like_ranks(data, size))
        tok = tokenizer_load_tiktoken(path, data, size, err);
    else
        err_set(err, ERR_DATA,
                "%s: neither a tokenizer.json nor a SentencePiece model nor a tiktoken rank file",
                path);
    free(data);
    return tok;
}

static struct tokenizer *load_folder(const char *folder, struct err *err) {
    char path[4096], merges[4096];
    if (member(folder, "tokenizer.json", path)) return load_file(path, err);
    for (size_t i = 0; i < 2; i++)
        if (member(folder, gpt2_pairs[i][0], path) && member(folder, gpt2_pairs[i][1], merges))
            return tokenizer_load_gpt2(path, merges, err);
    if (member(folder, "tokenizer.model", path)) return load_file(path, err);
    char **names;
    size_t count;
    if (file_list(folder, &names, &count, err) != 0) return NULL;
    struct tokenizer *tok = NULL;
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        if (length > 9 && strcmp(names[i] + length - 9, ".tiktoken") == 0) {
            if (found) {
                err_set(err, ERR_DATA, "%s: both %s and %s; name one of them", folder, found,
                        names[i]);
                found = NULL;
                break;
            }
            found = names[i];
        }
    }
    if (found && file_join(path, sizeof path, folder, found, err) == 0)
        tok = load_file(path, err);
    else
        err_set(err, ERR_DATA,
                "%s: no tokenizer.json, vocab.json with merges.txt, tokenizer.model or *.tiktoken",
                folder);
    file_list_free(names, count);
    return tok;
}

struct tokenizer *tokenizer_load(const char *path, struct err *err) {
    char folder[4096];
    bool is_folder = file_is_folder(path);
    if (is_folder)
        snprintf(folder, sizeof folder, "%s", path);
    else
        folder_of(path, folder);
    struct tokenizer *tok = is_folder ? load_folder(path, err) : load_file(path, err);
    if (!tok) return NULL;
    if (tokenizer_read_config(tok, folder, err) == 0) {
        find_end_of_turn(tok);
        if (tokenizer_finish(tok, path, err) == 0) return tok;
    }
    tokenizer_free(tok);
    return NULL;
}
