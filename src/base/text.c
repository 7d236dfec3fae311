// Growing buffers, nearest names, quantities for people, and UTF-8; see text.h.
#include "base/text.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int text_reserve(struct text *t, size_t more) {
    if (more >= SIZE_MAX / 4 || t->size >= SIZE_MAX / 4) return -1;
    size_t need = t->size + more + 1;
    if (need <= t->capacity) return 0;
    size_t capacity = t->capacity ? t->capacity : 64;
    while (capacity < need) capacity *= 2;
    char *data = realloc(t->data, capacity);
    if (!data) return -1;
    t->data = data;
    t->capacity = capacity;
    return 0;
}

int text_put(struct text *t, const void *bytes, size_t count) {
    if (text_reserve(t, count) != 0) return -1;
    if (count) memcpy(t->data + t->size, bytes, count);
    t->size += count;
    t->data[t->size] = 0;
    return 0;
}

int text_puts(struct text *t, const char *s) {
    return text_put(t, s, strlen(s));
}

int text_printf(struct text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || text_reserve(t, (size_t)length) != 0) return -1;
    va_start(arguments, format);
    vsnprintf(t->data + t->size, (size_t)length + 1, format, arguments);
    va_end(arguments);
    t->size += (size_t)length;
    return 0;
}

int text_put_word(struct text *t, const char *word) {
    static const char plain[] = "@%+=:,./-_";
    bool quote = word[0] == 0;
    for (const char *p = word; *p; p++)
        quote = quote || !(isalnum((unsigned char)*p) || strchr(plain, *p));
    if (!quote) return text_puts(t, word);
    int failed = text_puts(t, "'");
    for (const char *p = word; *p; p++)
        failed |= *p == '\'' ? text_puts(t, "'\\''") : text_put(t, p, 1);
    return failed | text_puts(t, "'");
}

void text_free(struct text *t) {
    free(t->data);
    *t = (struct text){NULL, 0, 0};
}

// ---- nearest names -----------------------------------------------------------------------------

// The usual table, one row at a time, plus the row before the last for swapped neighbours. Names
// are short; a longer one counts as its first LONGEST characters.
enum { LONGEST = 127 };

static int same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

size_t text_distance(const char *a, const char *b) {
    size_t la = strnlen(a, LONGEST), lb = strnlen(b, LONGEST);
    size_t rows[3][LONGEST + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= lb; j++) last[j] = j;
    for (size_t i = 1; i <= la; i++) {
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = last[j - 1] + !same(a[i - 1], b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[lb];
}

bool text_ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && memcmp(text + a - b, end, b) == 0;
}

// The shortest of the names that go on after a whole word: "memory" of "memory_bytes".
static const char *begun_by(const char *name, size_t length, const char *const *names,
                            size_t count) {
    const char *best = NULL;
    for (size_t i = 0; length >= 3 && i < count; i++)
        if (strncasecmp(name, names[i], length) == 0 && names[i][length] &&
            strchr("_-.", names[i][length]) && (!best || strlen(names[i]) < strlen(best)))
            best = names[i];
    return best;
}

const char *text_nearest(const char *name, const char *const *names, size_t count) {
    size_t length = strlen(name), limit = length / 3;
    if (limit == 0 && length > 1) limit = 1;
    const char *best = NULL;
    size_t best_distance = limit + 1;
    for (size_t i = 0; i < count; i++) {
        size_t distance = text_distance(name, names[i]);
        if (distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
    }
    const char *longer = best_distance == 0 ? NULL : begun_by(name, length, names, count);
    return longer ? longer : best;
}

// ---- quantities --------------------------------------------------------------------------------

const char *text_bytes(uint64_t bytes, char out[32]) {
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(out, 32, "%u B", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1000;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        unit++;
    }
    // three digits
    snprintf(out, 32, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[unit]);
    return out;
}

const char *text_duration(double seconds, char out[32]) {
    if (!(seconds >= 0) || seconds > 1e11) {
        snprintf(out, 32, "unknown");
    } else if (seconds < 9.995) {
        snprintf(out, 32, "%.2f s", seconds);
    } else if (seconds < 59.5) {
        snprintf(out, 32, "%.0f s", seconds);
    } else {
        long long whole = (long long)(seconds + 0.5);
        if (whole < 3600)
            snprintf(out, 32, "%lld min %lld s", whole / 60, whole % 60);
        else if (whole < 86400)
            snprintf(out, 32, "%lld h %lld min", whole / 3600, whole % 3600 / 60);
        else
            snprintf(out, 32, "%lld d %lld h", whole / 86400, whole % 86400 / 3600);
    }
    return out;
}

const char *text_count(int64_t value, char out[32]) {
    char digits[24];
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)size);
    int at = 0;
    if (value < 0) out[at++] = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

// ---- UTF-8 -------------------------------------------------------------------------------------

int text_utf8_decode(const unsigned char *bytes, size_t size, uint32_t *code_point) {
    if (size == 0) return 0;
    uint32_t first = bytes[0];
    if (first < 0x80) {
        *code_point = first;
        return 1;
    }
    int length = first >= 0xc2 && first < 0xe0   ? 2
                 : first >= 0xe0 && first < 0xf0 ? 3
                 : first >= 0xf0 && first < 0xf5 ? 4
                                                 : 0;
    if (length == 0 || size < (size_t)length) return 0;
    uint32_t value = first & (0xffu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (bytes[i] & 0x3fu);
    }
    if (length == 3 && (value < 0x800 || (value >= 0xd800 && value < 0xe000))) return 0;
    if (length == 4 && (value < 0x10000 || value > 0x10ffff)) return 0;
    *code_point = value;
    return length;
}

size_t text_utf8_valid_prefix(const char *bytes, size_t size) {
    const unsigned char *at = (const unsigned char *)bytes;
    size_t done = 0;
    uint32_t ignored;
    while (done < size) {
        uint64_t eight;
        if (size - done >= 8) { // plain ASCII eight bytes at a time
            memcpy(&eight, at + done, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                done += 8;
                continue;
            }
        }
        int length = text_utf8_decode(at + done, size - done, &ignored);
        if (length == 0) break;
        done += (size_t)length;
    }
    return done;
}

int text_utf8_encode(uint32_t code_point, char out[4]) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xc0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xe0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (code_point >> 18 & 7));
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code_point & 0x3f));
    return 4;
}
