// A checking scanner for one JSON object on a line, see input_json.h. Grammar: RFC 8259.
#include "data/input_json.h"
#include <string.h>

enum {
    DEEPEST = 64,
    MOST_DIGITS = 17
}; // longer numbers may be out of range: the general parser knows

struct scan {
    const char *at, *end;
};

struct string { // the bytes between the quotes
    const char *begin;
    size_t size;
    bool escapes;
};

static void skip_space(struct scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

static bool take(struct scan *s, char wanted) {
    if (s->at == s->end || *s->at != wanted) return false;
    s->at++;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Four hexadecimal digits; -1 when they are none.
static int32_t hex4(const char *at, const char *end) {
    int32_t value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static bool scan_string(struct scan *s, struct string *out) {
    if (!take(s, '"')) return false;
    unsigned char all = 0;
    *out = (struct string){.begin = s->at};
    for (; s->at < s->end && *s->at != '"'; s->at++) {
        unsigned char c = (unsigned char)*s->at;
        all |= c;
        if (c < 0x20) return false;
        if (c != '\\') continue;
        out->escapes = true;
        if (++s->at == s->end || !strchr("\"\\/bfnrtu", *s->at) || *s->at == 0) return false;
        if (*s->at == 'u' && hex4(s->at + 1, s->end) < 0) return false;
    }
    out->size = (size_t)(s->at - out->begin);
    if (!take(s, '"')) return false;
    return all < 0x80 || text_utf8_valid_prefix(out->begin, out->size) == out->size;
}

static size_t scan_digits(struct scan *s) {
    const char *begin = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return (size_t)(s->at - begin);
}

static bool scan_number(struct scan *s) {
    take(s, '-');
    const char *first = s->at;
    size_t digits = scan_digits(s);
    if (digits == 0 || digits > MOST_DIGITS || (digits > 1 && *first == '0')) return false;
    if (take(s, '.') && scan_digits(s) == 0) return false;
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) return false;
    return true;
}

static bool scan_word(struct scan *s, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, word, length) != 0) return false;
    s->at += length;
    return true;
}

static bool scan_value(struct scan *s, int depth);

static bool scan_array(struct scan *s, int depth) {
    s->at++;
    skip_space(s);
    if (take(s, ']')) return true;
    do {
        if (!scan_value(s, depth + 1)) return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, ']');
}

// Members of an object; `field` NULL: none is looked for. The last one of that name counts.
static bool scan_object(struct scan *s, int depth, const char *field, struct string *value,
                        bool *found) {
    s->at++;
    skip_space(s);
    if (take(s, '}')) return true;
    do {
        struct string key;
        skip_space(s);
        if (!scan_string(s, &key) || key.escapes) return false;
        skip_space(s);
        if (!take(s, ':')) return false;
        skip_space(s);
        bool wanted = field && key.size == strlen(field) && memcmp(key.begin, field, key.size) == 0;
        if (wanted && !scan_string(s, value)) return false;
        if (wanted) *found = true;
        if (!wanted && !scan_value(s, depth + 1)) return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, '}');
}

static bool scan_value(struct scan *s, int depth) {
    struct string ignored;
    bool found;
    skip_space(s);
    if (depth > DEEPEST || s->at == s->end) return false;
    switch (*s->at) {
    case '{':
        return scan_object(s, depth, NULL, &ignored, &found);
    case '[':
        return scan_array(s, depth);
    case '"':
        return scan_string(s, &ignored);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return scan_number(s);
    }
}

// One \u escape (or a pair of surrogates) at `at`, behind the "u"; how many bytes it takes, 0 when
// it is no character.
static size_t decode_unicode(const char *at, const char *end, char out[4], int *length) {
    int32_t code = hex4(at, end);
    size_t taken = 4;
    if (code >= 0xDC00 && code <= 0xDFFF) return 0;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (end - at < 10 || at[4] != '\\' || at[5] != 'u') return 0;
        int32_t low = hex4(at + 6, end);
        if (low < 0xDC00 || low > 0xDFFF) return 0;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        taken = 10;
    }
    *length = text_utf8_encode((uint32_t)code, out);
    return taken;
}

static bool decode(const struct string *s, struct text *room) {
    const char *at = s->begin, *end = s->begin + s->size;
    room->size = 0;
    while (at < end) {
        const char *slash = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((slash ? slash : end) - at);
        if (plain && text_put(room, at, plain) != 0) return false;
        if (!slash) break;
        static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        char bytes[4];
        int length = 1;
        at = slash + 2;
        if (slash[1] == 'u') {
            size_t taken = decode_unicode(at, end, bytes, &length);
            if (taken == 0) return false;
            at += taken;
        } else {
            bytes[0] = meant[strchr(names, slash[1]) - names];
        }
        if (text_put(room, bytes, (size_t)length) != 0) return false;
    }
    return true;
}

bool input_json_text(const char *line, size_t size, const char *field, struct text *room,
                     const char **text, size_t *text_size) {
    struct scan s = {line, line + size};
    struct string value = {NULL, 0, false};
    bool found = false;
    skip_space(&s);
    if (s.at == s.end || *s.at != '{' || !scan_object(&s, 0, field, &value, &found)) return false;
    skip_space(&s);
    if (s.at != s.end || !found) return false;
    if (value.escapes && !decode(&value, room)) return false;
    *text = !value.escapes ? value.begin : room->data ? room->data : "";
    *text_size = value.escapes ? room->size : value.size;
    return true;
}
