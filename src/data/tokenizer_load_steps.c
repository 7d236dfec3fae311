// The parts of a tokenizer.json around the model: normaliser, pre-tokenizer, post-processor,
// decoder. Each type and key that has a meaning here is read; any other is refused by name, so that
// no rule of a file is ever passed over.
#include "base/json.h"
#include "data/tokenizer_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 16

int tokenizer_check_keys(json_t *object, const char *const *allowed, const char *path,
                         const char *what, struct err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return err_set(err, ERR_DATA, "%s: %s: expected an object", path, what);
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (allowed[i] && strcmp(allowed[i], key) != 0) i++;
        if (!allowed[i])
            return err_set(err, ERR_DATA,
                           "%s: %s: the key \"%.60s\" is not supported; weft would give other ids",
                           path, what, key);
    }
    return 0;
}

static const char *type_of(json_t *value) {
    const char *type = json_string_value(json_object_get(value, "type"));
    return type ? type : "";
}

static int refuse(const char *path, const char *what, json_t *value, struct err *err) {
    if (!json_is_object(value) || !*type_of(value))
        return err_set(err, ERR_DATA, "%s: %s: expected an object with a \"type\"", path, what);
    return err_set(err, ERR_DATA, "%s: %s: the type \"%.60s\" is not supported", path, what,
                   type_of(value));
}

static int boolean(json_t *object, const char *key, bool fallback, const char *path, bool *out,
                   struct err *err) {
    return json_get_bool((struct json_at){object, path}, key, false, fallback, out, err);
}

// "pattern": {"String": ...} or {"Regex": ...}.
static int pattern_of(json_t *value, const char *path, const char *what, const char **string,
                      const char **regex, struct err *err) {
    static const char *const keys[] = {"String", "Regex", NULL};
    json_t *pattern = json_object_get(value, "pattern");
    if (tokenizer_check_keys(pattern, keys, path, what, err) != 0) return -1;
    *string = json_string_value(json_object_get(pattern, "String"));
    *regex = json_string_value(json_object_get(pattern, "Regex"));
    if (!*string == !*regex)
        return err_set(err, ERR_DATA, "%s: %s: expected a pattern", path, what);
    if (*string && !**string)
        return err_set(err, ERR_DATA, "%s: %s: the pattern is empty", path, what);
    return 0;
}

static int normalizer(struct tokenizer *tok, json_t *value, const char *path, int depth,
                      struct err *err) {
    static const struct {
        const char *type;
        enum normal_kind kind;
    } plain[] = {{"NFC", NORMAL_NFC},
                 {"NFD", NORMAL_NFD},
                 {"NFKC", NORMAL_NFKC},
                 {"NFKD", NORMAL_NFKD},
                 {"Lowercase", NORMAL_LOWERCASE}};
    static const char *const keys[] = {"type",    "prepend",     "pattern",
                                       "content", "normalizers", NULL};
    const char *type = type_of(value), *what = "normalizer";
    if (depth > DEEPEST) return err_set(err, ERR_DATA, "%s: %s: nested too deeply", path, what);
    if (!*type) return refuse(path, what, value, err);
    if (tokenizer_check_keys(value, keys, path, what, err) != 0) return -1;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0)
            return tokenizer_add_normal(tok, plain[i].kind, NULL, NULL, err);
    if (strcmp(type, "Prepend") == 0) {
        const char *prepend = json_string_value(json_object_get(value, "prepend"));
        if (!prepend)
            return err_set(err, ERR_DATA, "%s: %s: Prepend without \"prepend\"", path, what);
        return tokenizer_add_normal(tok, NORMAL_PREPEND, NULL, prepend, err);
    }
    if (strcmp(type, "Replace") == 0) {
        const char *string, *regex, *content = json_string_value(json_object_get(value, "content"));
        if (pattern_of(value, path, what, &string, &regex, err) != 0) return -1;
        if (regex)
            return err_set(err, ERR_DATA, "%s: %s: Replace by a Regex is not supported", path,
                           what);
        if (!content)
            return err_set(err, ERR_DATA, "%s: %s: Replace without \"content\"", path, what);
        return tokenizer_add_normal(tok, NORMAL_REPLACE, string, content, err);
    }
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_object_get(value, "normalizers"), *one;
        size_t i;
        if (!json_is_array(list))
            return err_set(err, ERR_DATA, "%s: %s: expected a list \"normalizers\"", path, what);
        json_array_foreach(list, i,
                           one) if (normalizer(tok, one, path, depth + 1, err) != 0) return -1;
        return 0;
    }
    return refuse(path, what, value, err);
}

int tokenizer_parse_normalizer(struct tokenizer *tok, json_t *value, const char *path,
                               struct err *err) {
    return !value || json_is_null(value) ? 0 : normalizer(tok, value, path, 0, err);
}

static int behavior_of(json_t *value, const char *path, enum split_behavior *out, struct err *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(json_object_get(value, "behavior"));
    for (int i = 0; i < 5 && name; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    return err_set(err, ERR_DATA,
                   "%s: pre_tokenizer: Split with the behavior \"%.40s\" is not supported", path,
                   name ? name : "");
}

static int split_step(struct tokenizer *tok, json_t *value, const char *path, struct err *err) {
    const char *string, *regex;
    enum split_behavior behavior = SPLIT_ISOLATED;
    bool invert;
    if (pattern_of(value, path, "pre_tokenizer", &string, &regex, err) != 0 ||
        behavior_of(value, path, &behavior, err) != 0 ||
        boolean(value, "invert", false, path, &invert, err) != 0)
        return -1;
    struct split_step *step = tokenizer_add_split(tok, err);
    if (!step) return -1;
    step->behavior = behavior;
    step->invert = invert;
    step->kind = string ? SPLIT_STRING : SPLIT_PATTERN;
    step->text = strdup(string ? string : regex);
    if (!step->text) return err_set(err, ERR_MEMORY, "no memory for a pattern");
    if (string) return 0;
    // A known pattern covers the text: isolated, or inverted and removed, its matches are the
    // words.
    enum pretokenize_scanner known = pretokenize_known_pattern(regex);
    if (known != SCAN_NONE &&
        (behavior == SPLIT_ISOLATED || (behavior == SPLIT_REMOVED && invert))) {
        step->kind = SPLIT_SCANNER;
        step->scanner = known;
        step->behavior = SPLIT_ISOLATED;
        step->invert = false;
        return 0;
    }
    char where[600];
    snprintf(where, sizeof where, "%s: pre_tokenizer", path);
    step->pattern = pretokenize_pattern_new(regex, where, err);
    return step->pattern ? 0 : -1;
}

static int byte_level_step(struct tokenizer *tok, json_t *value, const char *path,
                           struct err *err) {
    bool prefix, use_regex;
    if (boolean(value, "add_prefix_space", true, path, &prefix, err) != 0 ||
        boolean(value, "use_regex", true, path, &use_regex, err) != 0)
        return -1;
    if (prefix) {
        struct split_step *step = tokenizer_add_split(tok, err);
        if (!step) return -1;
        step->kind = SPLIT_PREFIX_SPACE;
        step->prepend = PREPEND_ALWAYS;
        step->behavior = SPLIT_ISOLATED;
    }
    return use_regex ? tokenizer_add_scanner(tok, SCAN_GPT2, err) : 0;
}

static int metaspace_step(struct tokenizer *tok, json_t *value, const char *path, struct err *err) {
    static const char *const schemes[] = {"never", "first", "always"};
    const char *mark = json_string_value(json_object_get(value, "replacement"));
    const char *scheme = json_string_value(json_object_get(value, "prepend_scheme"));
    bool prefix, split;
    if (!mark || !*mark)
        return err_set(err, ERR_DATA, "%s: pre_tokenizer: Metaspace without a replacement", path);
    if (boolean(value, "add_prefix_space", true, path, &prefix, err) != 0 ||
        boolean(value, "split", true, path, &split, err) != 0)
        return -1;
    int prepend = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    for (int i = 0; i < 3 && scheme; i++)
        if (strcmp(scheme, schemes[i]) == 0) prepend = i;
    if (scheme && strcmp(scheme, schemes[prepend]) != 0)
        return err_set(err, ERR_DATA,
                       "%s: pre_tokenizer: prepend_scheme \"%.40s\" is not supported", path,
                       scheme);
    struct split_step *step = tokenizer_add_split(tok, err);
    if (!step) return -1;
    step->kind = SPLIT_METASPACE;
    step->behavior = SPLIT_WITH_NEXT;
    step->prepend = (enum prepend_scheme)prepend;
    step->split = split;
    step->text = strdup(mark);
    return step->text ? 0 : err_set(err, ERR_MEMORY, "no memory for a tokenizer");
}

static int pre_tokenizer(struct tokenizer *tok, json_t *value, const char *path, bool *byte_level,
                         int depth, struct err *err) {
    static const char *const keys[] = {"type",
                                       "add_prefix_space",
                                       "trim_offsets",
                                       "use_regex",
                                       "pattern",
                                       "behavior",
                                       "invert",
                                       "pretokenizers",
                                       "split",
                                       "replacement",
                                       "individual_digits",
                                       "prepend_scheme",
                                       "str_rep",
                                       NULL};
    const char *type = type_of(value), *what = "pre_tokenizer";
    if (depth > DEEPEST) return err_set(err, ERR_DATA, "%s: %s: nested too deeply", path, what);
    if (!*type) return refuse(path, what, value, err);
    if (tokenizer_check_keys(value, keys, path, what, err) != 0) return -1;
    if (*byte_level)
        return err_set(err, ERR_DATA, "%s: %s: \"%.60s\" behind ByteLevel is not supported", path,
                       what, type);
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        return byte_level_step(tok, value, path, err);
    }
    if (strcmp(type, "Split") == 0) return split_step(tok, value, path, err);
    if (strcmp(type, "Metaspace") == 0) return metaspace_step(tok, value, path, err);
    if (strcmp(type, "Digits") == 0) {
        bool individual;
        if (boolean(value, "individual_digits", false, path, &individual, err) != 0) return -1;
        struct split_step *step = tokenizer_add_split(tok, err);
        if (!step) return -1;
        step->kind = SPLIT_DIGITS;
        step->individual = individual;
        step->behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return 0;
    }
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_object_get(value, "pretokenizers"), *one;
        size_t i;
        if (!json_is_array(list))
            return err_set(err, ERR_DATA, "%s: %s: expected a list \"pretokenizers\"", path, what);
        json_array_foreach(list, i, one) if (pre_tokenizer(tok, one, path, byte_level, depth + 1,
                                                           err) != 0) return -1;
        return 0;
    }
    return refuse(path, what, value, err);
}

int tokenizer_parse_pre_tokenizer(struct tokenizer *tok, json_t *value, const char *path,
                                  bool *byte_level, struct err *err) {
    *byte_level = false;
    if (!value || json_is_null(value)) return 0;
    if (pre_tokenizer(tok, value, path, byte_level, 0, err) != 0) return -1;
    // Digits one by one and then GPT-2's pattern: SmolLM2's, which has a scanner of its own.
    if (tok->split_count == 2 && tok->splits[0].kind == SPLIT_DIGITS && tok->splits[0].individual &&
        tok->splits[1].kind == SPLIT_SCANNER && tok->splits[1].scanner == SCAN_GPT2) {
        tok->splits[0] = tok->splits[1];
        tok->splits[0].scanner = SCAN_SMOLLM2;
        tok->split_count = 1;
    }
    return 0;
}

static bool is_mark(const char *text) {
    return text && strcmp(text, "\xE2\x96\x81") == 0;
}

static int decoder(struct tokenizer *tok, json_t *value, const char *path, int depth,
                   struct err *err) {
    const char *type = type_of(value), *what = "decoder";
    if (depth > DEEPEST) return err_set(err, ERR_DATA, "%s: %s: nested too deeply", path, what);
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "ByteFallback") == 0 ||
        strcmp(type, "Fuse") == 0)
        return 0;
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_string_value(json_object_get(value, "prepend_scheme"));
        if (!is_mark(json_string_value(json_object_get(value, "replacement"))))
            return err_set(err, ERR_DATA, "%s: %s: Metaspace with another replacement than U+2581",
                           path, what);
        tok->decode_space = true;
        tok->strip_first_space = scheme
                                     ? strcmp(scheme, "never") != 0
                                     : !json_is_false(json_object_get(value, "add_prefix_space"));
        return 0;
    }
    if (strcmp(type, "Replace") == 0) {
        const char *string, *regex, *content = json_string_value(json_object_get(value, "content"));
        if (pattern_of(value, path, what, &string, &regex, err) != 0) return -1;
        if (!is_mark(string) || !content || strcmp(content, " ") != 0)
            return err_set(err, ERR_DATA,
                           "%s: %s: Replace other than U+2581 by a space is not supported", path,
                           what);
        tok->decode_space = true;
        return 0;
    }
    if (strcmp(type, "Strip") == 0) {
        int64_t start, stop;
        const char *content = json_string_value(json_object_get(value, "content"));
        if (json_get_int((struct json_at){value, path}, "start", false, 0, &start, err) != 0 ||
            json_get_int((struct json_at){value, path}, "stop", false, 0, &stop, err) != 0)
            return -1;
        if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
            return err_set(err, ERR_DATA,
                           "%s: %s: Strip other than one leading space is not supported", path,
                           what);
        tok->strip_first_space = start == 1;
        return 0;
    }
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_object_get(value, "decoders"), *one;
        size_t i;
        if (!json_is_array(list))
            return err_set(err, ERR_DATA, "%s: %s: expected a list \"decoders\"", path, what);
        json_array_foreach(list, i,
                           one) if (decoder(tok, one, path, depth + 1, err) != 0) return -1;
        return 0;
    }
    return refuse(path, what, value, err);
}

int tokenizer_parse_decoder(struct tokenizer *tok, json_t *value, const char *path,
                            struct err *err) {
    return !value || json_is_null(value) ? 0 : decoder(tok, value, path, 0, err);
}

// A template puts at most one token in front of the text and one behind it.
static int template_processing(struct tokenizer *tok, json_t *value, const char *path,
                               struct err *err) {
    json_t *single = json_object_get(value, "single"), *one;
    size_t i;
    bool seen = false;
    if (!json_is_array(single))
        return err_set(err, ERR_DATA, "%s: post_processor: expected a list \"single\"", path);
    json_array_foreach(single, i, one) {
        json_t *special = json_object_get(one, "SpecialToken");
        if (!special) {
            if (seen || !json_object_get(one, "Sequence"))
                return err_set(err, ERR_DATA,
                               "%s: post_processor: a template without exactly one text", path);
            seen = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        json_t *entry =
            name ? json_object_get(json_object_get(value, "special_tokens"), name) : NULL;
        json_t *ids = json_object_get(entry, "ids");
        json_int_t id = json_integer_value(json_array_get(ids, 0));
        if (json_array_size(ids) != 1 || id < 0 || id >= (json_int_t)tok->vocab_size ||
            !tok->tokens[id].type)
            return err_set(err, ERR_DATA,
                           "%s: post_processor: \"%.60s\" is not one token of the vocabulary", path,
                           name ? name : "");
        if (seen ? tok->add_eos : tok->add_bos)
            return err_set(err, ERR_DATA,
                           "%s: post_processor: several tokens %s the text are not supported", path,
                           seen ? "behind" : "in front of");
        if (seen)
            tok->add_eos = true, tok->eos = (int32_t)id;
        else
            tok->add_bos = true, tok->bos = (int32_t)id;
    }
    return 0;
}

static int post_processor(struct tokenizer *tok, json_t *value, const char *path, int depth,
                          struct err *err) {
    const char *type = type_of(value);
    if (depth > DEEPEST)
        return err_set(err, ERR_DATA, "%s: post_processor: nested too deeply", path);
    if (strcmp(type, "ByteLevel") == 0) return 0; // only trims offsets
    if (strcmp(type, "TemplateProcessing") == 0) return template_processing(tok, value, path, err);
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = json_object_get(value, "processors"), *one;
        size_t i;
        if (!json_is_array(list))
            return err_set(err, ERR_DATA, "%s: post_processor: expected a list \"processors\"",
                           path);
        json_array_foreach(list, i,
                           one) if (post_processor(tok, one, path, depth + 1, err) != 0) return -1;
        return 0;
    }
    return refuse(path, "post_processor", value, err);
}

int tokenizer_parse_post_processor(struct tokenizer *tok, json_t *value, const char *path,
                                   struct err *err) {
    return !value || json_is_null(value) ? 0 : post_processor(tok, value, path, 0, err);
}
