// Normal forms in front of splitting: Unicode's by utf8proc, and the replacements of
// SentencePiece-like tokenizers. Bytes that are no valid UTF-8 pass through unchanged.
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool is_ascii(const char *text, size_t size) {
    uint64_t any = 0, eight;
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&eight, text + i, 8);
        any |= eight;
    }
    for (; i < size; i++) any |= (unsigned char)text[i];
    return (any & 0x8080808080808080u) == 0;
}

static int unicode_form(const char *text, size_t size, utf8proc_option_t options, struct text *out,
                        struct err *err) {
    if (is_ascii(text, size)) return text_put(out, text, size);
    while (size > 0) {
        size_t valid = text_utf8_valid_prefix(text, size);
        if (valid > 0) {
            utf8proc_uint8_t *form = NULL;
            utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text,
                                                   (utf8proc_ssize_t)valid, &form, options);
            if (length < 0)
                return err_set(err, ERR_DATA, "normalising text: %s", utf8proc_errmsg(length));
            int failed = text_put(out, form, (size_t)length);
            free(form);
            if (failed) return -1;
        }
        if (valid < size && text_put(out, text + valid, 1) != 0) return -1;
        size_t step = valid < size ? valid + 1 : valid;
        text += step, size -= step;
    }
    return 0;
}

static utf8proc_int32_t lower(utf8proc_int32_t code_point, void *context) {
    (void)context;
    return utf8proc_tolower(code_point);
}

// Capitals to small letters; U+0130 becomes i and a combining dot, as full case mapping has it.
static int lowercase(const char *text, size_t size, struct text *out) {
    for (size_t i = 0; i < size;) {
        uint32_t code_point;
        int length = text_utf8_decode((const unsigned char *)text + i, size - i, &code_point);
        int failed;
        if (length == 0) {
            failed = text_put(out, text + i, 1);
            length = 1;
        } else if (code_point == 0x130) {
            failed = text_puts(out, "i\xCC\x87");
        } else {
            char small[4];
            failed = text_put(out, small,
                              (size_t)text_utf8_encode(
                                  (uint32_t)lower((utf8proc_int32_t)code_point, NULL), small));
        }
        if (failed) return -1;
        i += (size_t)length;
    }
    return 0;
}

static int replace(const char *text, size_t size, const struct normal_step *step,
                   struct text *out) {
    size_t pattern = strlen(step->pattern), content = strlen(step->content);
    const char *end = text + size;
    while (text < end) {
        const char *found = memmem(text, (size_t)(end - text), step->pattern, pattern);
        if (text_put(out, text, (size_t)((found ? found : end) - text)) != 0) return -1;
        if (!found) break;
        if (text_put(out, step->content, content) != 0) return -1;
        text = found + pattern;
    }
    return 0;
}

// The common case of a single byte that becomes a few: without a call for each.
static int replace_byte(const char *text, size_t size, char byte, const char *content,
                        struct text *out) {
    size_t length = strlen(content), found = 0;
    for (size_t i = 0; i < size; i++) found += text[i] == byte;
    if (text_reserve(out, size + found * length) != 0) return -1;
    char *to = out->data + out->size;
    for (size_t i = 0; i < size; i++) {
        if (text[i] != byte) {
            *to++ = text[i];
        } else {
            for (size_t k = 0; k < length; k++) *to++ = content[k];
        }
    }
    out->size = (size_t)(to - out->data);
    *to = 0;
    return 0;
}

static int apply(const struct normal_step *step, const char *text, size_t size, bool first,
                 struct text *out, struct err *err) {
    const int stable = UTF8PROC_STABLE;
    switch (step->kind) {
    case NORMAL_NFC:
        return unicode_form(text, size, stable | UTF8PROC_COMPOSE, out, err);
    case NORMAL_NFD:
        return unicode_form(text, size, stable | UTF8PROC_DECOMPOSE, out, err);
    case NORMAL_NFKC:
        return unicode_form(text, size, stable | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out, err);
    case NORMAL_NFKD:
        return unicode_form(text, size, stable | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out, err);
    case NORMAL_LOWERCASE:
        return lowercase(text, size, out);
    case NORMAL_PREPEND:
        if (size > 0 && (first || !step->first_only) && text_puts(out, step->content) != 0)
            return -1;
        return text_put(out, text, size);
    case NORMAL_REPLACE:
        if (strlen(step->pattern) == 1)
            return replace_byte(text, size, step->pattern[0], step->content, out);
        return replace(text, size, step, out);
    }
    return -1;
}

int tokenizer_normalize(const struct tokenizer *tok, const char *text, size_t size, bool first,
                        struct text *out, struct err *err) {
    struct text from = {0};
    const char *at = text;
    for (size_t i = 0; i < tok->normal_count; i++) {
        out->size = 0;
        if (apply(&tok->normal[i], at, size, first, out, err) != 0) {
            text_free(&from);
            return err_set(err, ERR_MEMORY, "no memory to normalise %zu bytes", size);
        }
        size = out->size;
        if (i + 1 < tok->normal_count) {
            struct text swap = from;
            from = *out;
            *out = swap;
            at = from.data ? from.data : "";
        }
    }
    text_free(&from);
    return 0;
}
