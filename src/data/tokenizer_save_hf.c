// Writing a tokenizer.json and tokenizer_config.json that the `tokenizers` and `transformers`
// libraries load.
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

// A token's text as a JSON string. Bytes that are no UTF-8 cannot stand there; byte-level texts are
// always printable.
static json_t *token_string(const struct tokenizer *tok, uint32_t id) {
    struct text text = {0};
    json_t *value = NULL;
    if (tokenizer_token_text(tok, id, &text) == 0)
        value = json_stringn(text.data ? text.data : "", text.size);
    text_free(&text);
    return value;
}

static bool is_added(const struct tokenizer *tok, uint32_t id) {
    for (size_t i = 0; i < tok->added_count; i++)
        if (tok->added[i].id == id) return true;
    return false;
}

// Tokens of the model; added ones too where ids behind them belong to the model, because readers
// number the rest anew.
static json_t *vocab_value(const struct tokenizer *tok) {
    json_t *vocab = json_object();
    uint32_t last = 0;
    for (uint32_t id = 0; id < tok->vocab_size; id++)
        if (tok->tokens[id].in_model || tok->tokens[id].raw) last = id;
    for (uint32_t id = 0; id <= last && vocab; id++) {
        const struct token_info *token = &tok->tokens[id];
        if (token->type == 0 || (!token->in_model && !token->raw && !is_added(tok, id))) continue;
        struct text text = {0};
        if (tokenizer_token_text(tok, id, &text) != 0 ||
            json_object_setn_new(vocab, text.data ? text.data : "", text.size, json_integer(id)) !=
                0) {
            json_decref(vocab);
            vocab = NULL;
        }
        text_free(&text);
    }
    return vocab;
}

static json_t *merges_value(const struct tokenizer *tok) {
    json_t *merges = json_array();
    for (size_t i = 0; i < tok->merge_count; i++)
        json_array_append_new(merges, json_pack("[o, o]", token_string(tok, tok->merges[i].left),
                                                token_string(tok, tok->merges[i].right)));
    if (json_array_size(merges) == tok->merge_count) return merges;
    json_decref(merges); // a token that JSON cannot hold
    return NULL;
}

static json_t *added_value(const struct tokenizer *tok) {
    json_t *list = json_array();
    for (size_t i = 0; i < tok->added_count; i++) {
        const struct added_token *t = &tok->added[i];
        // Normalised search would put the prefix of a SentencePiece model into the token itself.
        bool normalized = t->normalized && !(tok->normal_count > 0 && tok->normal[0].first_only);
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)t->id, "content",
                            t->content, "single_word", t->single_word, "lstrip", t->lstrip,
                            "rstrip", t->rstrip, "normalized", normalized, "special", t->special));
    }
    return list;
}

static json_t *in_sequence(json_t *list, const char *key) {
    json_t *value;
    if (json_array_size(list) == 0)
        value = json_null();
    else if (json_array_size(list) == 1)
        value = json_incref(json_array_get(list, 0));
    else
        value = json_pack("{s:s, s:O}", "type", "Sequence", key, list);
    json_decref(list);
    return value;
}

static json_t *normalizer_value(const struct tokenizer *tok) {
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"};
    json_t *list = json_array();
    for (size_t i = 0; i < tok->normal_count; i++) {
        const struct normal_step *step = &tok->normal[i];
        json_t *value;
        if (step->kind == NORMAL_PREPEND)
            value = json_pack("{s:s, s:s}", "type", "Prepend", "prepend", step->content);
        else if (step->kind == NORMAL_REPLACE)
            value = json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String",
                              step->pattern, "content", step->content);
        else
            value = json_pack("{s:s}", "type", names[step->kind]);
        json_array_append_new(list, value);
    }
    return in_sequence(list, "normalizers");
}

static json_t *byte_level_value(bool prefix, bool use_regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *pattern_value(const char *kind, const char *text, enum split_behavior behavior,
                             bool invert) {
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", kind, text, "behavior",
                     behaviors[behavior], "invert", invert);
}

static json_t *split_value(const struct split_step *step) {
    static const char *const schemes[] = {"never", "first", "always"};
    switch (step->kind) {
    case SPLIT_SCANNER:
        return pattern_value("Regex", pretokenize_pattern_text(step->scanner), SPLIT_ISOLATED,
                             false);
    case SPLIT_PATTERN:
        return pattern_value("Regex", step->text, step->behavior, step->invert);
    case SPLIT_STRING:
        return pattern_value("String", step->text, step->behavior, step->invert);
    case SPLIT_DIGITS:
        return json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", step->individual);
    case SPLIT_METASPACE:
        return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", step->text,
                         "prepend_scheme", schemes[step->prepend], "split", step->split);
    case SPLIT_PREFIX_SPACE:
        break; // part of ByteLevel
    }
    return json_null();
}

static json_t *pre_tokenizer_value(const struct tokenizer *tok) {
    json_t *list = json_array();
    if (tok->kind == TOKENIZER_CHARACTERS) {
        for (size_t i = 0; i < tok->split_count; i++)
            json_array_append_new(list, split_value(&tok->splits[i]));
        return in_sequence(list, "pretokenizers");
    }
    size_t last = tok->split_count;
    bool regex = last > 0 && tok->splits[last - 1].kind == SPLIT_SCANNER &&
                 (tok->splits[last - 1].scanner == SCAN_GPT2 ||
                  tok->splits[last - 1].scanner == SCAN_SMOLLM2);
    bool digits = regex && tok->splits[last - 1].scanner == SCAN_SMOLLM2;
    if (regex) last--;
    bool prefix = last > 0 && tok->splits[last - 1].kind == SPLIT_PREFIX_SPACE;
    if (prefix) last--;
    for (size_t i = 0; i < last; i++) json_array_append_new(list, split_value(&tok->splits[i]));
    if (digits)
        json_array_append_new(list,
                              json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    json_array_append_new(list, byte_level_value(prefix, regex));
    return in_sequence(list, "pretokenizers");
}

static void put_template_token(const struct tokenizer *tok, json_t *single, json_t *pair,
                               json_t *specials, int32_t id, int type) {
    json_t *name = token_string(tok, (uint32_t)id);
    json_t *entry = json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", name, "type_id", type);
    if (single) json_array_append(single, entry);
    json_array_append(pair, entry);
    json_decref(entry);
    json_object_set_new(
        specials, json_string_value(name),
        json_pack("{s:O, s:[i], s:[O]}", "id", name, "ids", (int)id, "tokens", name));
    json_decref(name);
}

static json_t *post_processor_value(const struct tokenizer *tok) {
    bool bos = tok->add_bos && tok->bos >= 0, eos = tok->add_eos && tok->eos >= 0;
    if (!bos && !eos)
        return tok->kind == TOKENIZER_BYTE_LEVEL ? byte_level_value(true, true) : json_null();
    json_t *single = json_array(), *pair = json_array(), *specials = json_object();
    for (int part = 0; part < 2; part++) {
        if (bos) put_template_token(tok, part ? NULL : single, pair, specials, tok->bos, part);
        json_t *text =
            json_pack("{s:{s:s, s:i}}", "Sequence", "id", part ? "B" : "A", "type_id", part);
        if (!part) json_array_append(single, text);
        json_array_append_new(pair, text);
        if (eos) put_template_token(tok, part ? NULL : single, pair, specials, tok->eos, part);
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", specials);
}

static json_t *decoder_value(const struct tokenizer *tok) {
    if (tok->kind == TOKENIZER_BYTE_LEVEL) return byte_level_value(true, true);
    json_t *list = json_array();
    if (tok->decode_space)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                              "String", "\xE2\x96\x81", "content", " "));
    json_array_append_new(list, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(list, json_pack("{s:s}", "type", "Fuse"));
    if (tok->strip_first_space)
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                              " ", "start", 1, "stop", 0));
    return in_sequence(list, "decoders");
}

static json_t *model_value(const struct tokenizer *tok) {
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                     "unk_token",
                     tok->unk >= 0 ? token_string(tok, (uint32_t)tok->unk) : json_null(),
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", tok->fuse_unk,
                     "byte_fallback", tok->byte_fallback, "ignore_merges", tok->ignore_merges,
                     "vocab", vocab_value(tok), "merges", merges_value(tok));
}

static int write_json(const char *folder, const char *name, json_t *value, struct err *err) {
    char path[4096];
    char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    json_decref(value);
    if (!text)
        return err_set(err, ERR_DATA,
                       "%s: a token's text is not valid UTF-8, which JSON cannot hold", name);
    int failed = file_join(path, sizeof path, folder, name, err) != 0 ||
                 file_replace(path, text, strlen(text), err) != 0;
    free(text);
    return failed ? -1 : 0;
}

static json_t *config_value(const struct tokenizer *tok) {
    const struct {
        const char *key;
        int32_t id;
    } named[] = {{"bos_token", tok->bos},
                 {"eos_token", tok->eos},
                 {"pad_token", tok->pad},
                 {"unk_token", tok->unk}};
    json_t *config = json_pack("{s:s, s:b, s:b, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "clean_up_tokenization_spaces", 0, "add_bos_token", tok->add_bos,
                               "add_eos_token", tok->add_eos);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        json_object_set_new(config, named[i].key,
                            named[i].id >= 0 ? token_string(tok, (uint32_t)named[i].id)
                                             : json_null());
    if (tok->chat_template)
        json_object_set_new(config, "chat_template", json_string(tok->chat_template));
    return config;
}

int tokenizer_save_hf(const struct tokenizer *tok, const char *folder, struct err *err) {
    json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                             "truncation", "padding", "added_tokens", added_value(tok),
                             "normalizer", normalizer_value(tok), "pre_tokenizer",
                             pre_tokenizer_value(tok), "post_processor", post_processor_value(tok),
                             "decoder", decoder_value(tok), "model", model_value(tok));
    if (file_make_folders(folder, err) != 0) {
        json_decref(root);
        return -1;
    }
    if (write_json(folder, "tokenizer.json", root, err) != 0) return -1;
    return write_json(folder, "tokenizer_config.json", config_value(tok), err);
}
