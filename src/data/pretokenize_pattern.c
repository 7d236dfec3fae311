// Pre-tokenizer patterns through PCRE2 with its JIT compiler. The patterns are written for
// Oniguruma or Rust's regex crate; where a shorthand means something else there than in PCRE2 it is
// rewritten: \s is Unicode's White_Space (PCRE2's own takes U+180E in as well), \w takes marks and
// connector punctuation in. What cannot be carried over is refused.
#include "base/text.h"
#include "data/pretokenize.h"
#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct pretokenize_pattern {
    pcre2_code *code;
    char *where;
    bool jit;
};

struct pretokenize_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int put_shorthand(struct text *out, char letter, bool in_class, const char *where,
                         struct err *err) {
    switch (letter) {
    case 's':
        return text_puts(out, "\\p{wspace}");
    case 'S':
        return text_puts(out, "\\P{wspace}");
    case 'w':
        return text_puts(out,
                         in_class ? "\\p{L}\\p{M}\\p{N}\\p{Pc}" : "[\\p{L}\\p{M}\\p{N}\\p{Pc}]");
    case 'W':
        if (in_class)
            return err_set(err, ERR_DATA, "%s: \\W inside [...] is not supported in a pattern",
                           where);
        return text_puts(out, "[^\\p{L}\\p{M}\\p{N}\\p{Pc}]");
    case 'b':
    case 'B':
        return err_set(err, ERR_DATA, "%s: \\%c is not supported in a pattern", where, letter);
    case 'h':
    case 'H':
        return err_set(err, ERR_DATA, "%s: \\%c means different things in different engines", where,
                       letter);
    default: {
        char two[3] = {'\\', letter, 0};
        return text_puts(out, two);
    }
    }
}

// \uHHHH as \x{HHHH}; the characters read behind the letter, or 0.
static int put_code_point(struct text *out, const char *digits) {
    int count = 0;
    while (count < 4 && isxdigit((unsigned char)digits[count])) count++;
    if (count < 4) return 0;
    return text_printf(out, "\\x{%.4s}", digits) == 0 ? 4 : 0;
}

static int translate(const char *pattern, const char *where, struct text *out, struct err *err) {
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        int failed;
        if (p[0] == '\\' && p[1]) {
            int digits = p[1] == 'u' ? put_code_point(out, p + 2) : 0;
            failed = digits ? 0 : put_shorthand(out, p[1], in_class, where, err);
            p += 1 + digits;
        } else {
            if (in_class && p[0] == '&' && p[1] == '&')
                return err_set(err, ERR_DATA, "%s: && inside [...] is not supported in a pattern",
                               where);
            if (p[0] == '[' && !in_class) {
                in_class = true;
                failed = text_put(out, p, 1);
                if (!failed && p[1] == '^') failed = text_put(out, ++p, 1);
                if (!failed && p[1] == ']') failed = text_put(out, ++p, 1);
            } else {
                if (p[0] == ']') in_class = false;
                failed = text_put(out, p, 1);
            }
        }
        if (failed) return err_set(err, ERR_MEMORY, "no memory for a pattern");
    }
    return 0;
}

struct pretokenize_pattern *pretokenize_pattern_new(const char *pattern, const char *where,
                                                    struct err *err) {
    struct text text = {0};
    if (translate(pattern, where, &text, err) != 0) {
        text_free(&text);
        return NULL;
    }
    struct pretokenize_pattern *made = calloc(1, sizeof *made);
    int code = 0;
    PCRE2_SIZE offset = 0;
    if (made) made->where = strdup(where);
    if (made && made->where)
        made->code =
            pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &offset, NULL);
    text_free(&text);
    if (!made || !made->where) {
        err_set(err, ERR_MEMORY, "no memory for a pattern");
    } else if (!made->code) {
        PCRE2_UCHAR message[160];
        pcre2_get_error_message(code, message, sizeof message);
        err_set(err, ERR_DATA, "%s: the pattern does not compile: %s", where,
                (const char *)message);
    } else {
        made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
        return made;
    }
    pretokenize_pattern_free(made);
    return NULL;
}

void pretokenize_pattern_free(struct pretokenize_pattern *pattern) {
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern->where);
    free(pattern);
}

struct pretokenize_matcher *pretokenize_matcher_new(struct err *err) {
    struct pretokenize_matcher *m = calloc(1, sizeof *m);
    if (m) {
        m->data = pcre2_match_data_create(16, NULL);
        m->context = pcre2_match_context_create(NULL);
        m->stack = pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, NULL);
        if (m->data && m->context) {
            if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
            return m;
        }
    }
    pretokenize_matcher_free(m);
    err_set(err, ERR_MEMORY, "no memory to match patterns");
    return NULL;
}

void pretokenize_matcher_free(struct pretokenize_matcher *matcher) {
    if (!matcher) return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    if (matcher->stack) pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

int pretokenize_match(const struct pretokenize_pattern *pattern,
                      struct pretokenize_matcher *matcher, const unsigned char *text, size_t size,
                      size_t from, size_t *begin, size_t *end, struct err *err) {
    while (from <= size) {
        int found =
            pcre2_match(pattern->code, text, size, from, 0, matcher->data, matcher->context);
        if (found == PCRE2_ERROR_NOMATCH) return 0;
        if (found < 0) {
            PCRE2_UCHAR message[160];
            pcre2_get_error_message(found, message, sizeof message);
            return err_set(err, ERR_DATA, "%s: matching the pattern failed at byte %zu: %s",
                           pattern->where, from, (const char *)message);
        }
        PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
        if (range[1] > range[0]) {
            *begin = range[0], *end = range[1];
            return 1;
        }
        from = range[1] + 1;
        while (from < size && (text[from] & 0xC0) == 0x80) from++;
    }
    return 0;
}
