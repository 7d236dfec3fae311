// One value: from text into its field with a message that says what was expected and found, and
// back into YAML. See config_table.h.
#include "base/text.h"
#include "train/config_table.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *field(struct train_config *config, const struct option *o) {
    return (char *)config + o->offset;
}

static int number_text(const struct option *o, double value, char out[40]) {
    bool whole = o->type == OPTION_INT || o->type == OPTION_LONG || o->type == OPTION_SIZE;
    return snprintf(out, 40, whole ? "%.0f" : "%.10g", value);
}

static int check_range(const struct option *o, double value, struct err *err) {
    char least[40], most[40], found[40];
    if (value >= o->least && value <= o->most) return 0;
    number_text(o, o->least, least);
    number_text(o, o->most, most);
    number_text(o, value, found);
    if (o->most >= INT32_MAX) // far away: only the side that is passed is told
        return err_set(err, ERR_USAGE, "expected %s or %s, found %s",
                       value < o->least ? least : most, value < o->least ? "more" : "less", found);
    return err_set(err, ERR_USAGE, "expected a value from %s to %s, found %s", least, most, found);
}

static const char *type_words(const struct option *o) {
    switch (o->type) {
    case OPTION_INT:
    case OPTION_LONG:
        return "an integer";
    case OPTION_SIZE:
        return "a size like 512 MB, 20 GB or 4 GiB";
    case OPTION_REAL:
        return "a number";
    case OPTION_BOOL:
        return "true or false";
    case OPTION_TEXT:
        return "a text";
    case OPTION_CHOICE:
        return "a name";
    case OPTION_LIST:
        return "a text or a list of texts";
    case OPTION_NUMBERS:
        return "a number or a list of numbers";
    }
    return "";
}

static int not_this(const struct option *o, const char *found, struct err *err) {
    return err_set(err, ERR_USAGE, "expected %s, found \"%.200s\"", type_words(o), found);
}

static int read_integer(const struct option *o, const char *text, int64_t *out, struct err *err) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool plain = (text[0] >= '0' && text[0] <= '9') || text[0] == '-';
    if (!plain || end == text || *end) return not_this(o, text, err);
    if (errno == ERANGE) value = value < 0 ? INT64_MIN : INT64_MAX;
    if (check_range(o, (double)value, err) != 0) return -1;
    *out = value;
    return 0;
}

static int read_real(const struct option *o, const char *text, double *out, struct err *err) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || strchr("+-.0123456789", text[0]) == NULL || strpbrk(text, "xX"))
        return not_this(o, text, err);
    if (!isfinite(value))
        return err_set(err, ERR_USAGE, "expected a finite number, found \"%.200s\"", text);
    if (check_range(o, value, err) != 0) return -1;
    *out = value;
    return 0;
}

static const struct {
    const char *name;
    double bytes;
} size_units[] = {
    {"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"TB", 1e12}, {"GB", 1e9},
    {"MB", 1e6},           {"kB", 1e3},        {"KB", 1e3},     {"B", 1},     {"", 1}};
enum { SIZE_UNITS = sizeof size_units / sizeof size_units[0] };

static int read_size(const struct option *o, const char *text, uint64_t *out, struct err *err) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || text[0] < '0' || text[0] > '9') return not_this(o, text, err);
    while (*end == ' ') end++;
    for (int i = 0; i < SIZE_UNITS; i++)
        if (strcmp(end, size_units[i].name) == 0) {
            value *= size_units[i].bytes;
            if (check_range(o, value, err) != 0) return -1;
            *out = (uint64_t)value;
            return 0;
        }
    return not_this(o, text, err);
}

static int read_choice(const struct option *o, const char *text, int *out, struct err *err) {
    char names[16][64], list[512] = "";
    const char *all[16];
    int count = config_choice_count(o);
    for (int i = 0; i < count; i++) {
        all[i] = config_choice(o, i, names[i]);
        if (strcmp(all[i], text) == 0) {
            *out = i;
            return 0;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
                 i == 0           ? ""
                 : i + 1 == count ? " or "
                                  : ", ",
                 all[i]);
    }
    const char *nearest = text_nearest(text, all, (size_t)count);
    return err_set(err, ERR_USAGE, "expected %s, found \"%.200s\"%s%s%s", list, text,
                   nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                   nearest ? "\"?" : "");
}

static int read_bool(const struct option *o, const char *text, bool *out, struct err *err) {
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return not_this(o, text, err);
    *out = text[0] == 't';
    return 0;
}

// Items without the blanks around them; empty ones are refused.
static int read_list(struct train_config *config, const struct option *o, const char *text,
                     struct err *err) {
    char *out = field(config, o);
    size_t at = 0;
    out[0] = 0;
    if (text[0] == 0) return 0;
    for (const char *item = text;; item++) {
        size_t length = strcspn(item, ","), begin = 0, end = length;
        while (begin < end && item[begin] == ' ') begin++;
        while (end > begin && item[end - 1] == ' ') end--;
        char one[CONFIG_TEXT_BYTES];
        if (end == begin)
            return err_set(err, ERR_USAGE, "an element of the list is empty: \"%.200s\"", text);
        if (end - begin >= sizeof one || at + end - begin + 2 > o->size)
            return err_set(err, ERR_USAGE, "the list is longer than %zu bytes", o->size);
        memcpy(one, item + begin, end - begin);
        one[end - begin] = 0;
        double number;
        if (o->type == OPTION_NUMBERS && read_real(o, one, &number, err) != 0) return -1;
        at += (size_t)snprintf(out + at, o->size - at, "%s%s", at ? "," : "", one);
        item += length;
        if (*item == 0) return 0;
    }
}

static int read_text(struct train_config *config, const struct option *o, const char *text,
                     struct err *err) {
    if (strlen(text) >= o->size)
        return err_set(err, ERR_USAGE, "the text is longer than %zu bytes", o->size - 1);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            return err_set(err, ERR_USAGE, "the text holds a control character");
    memcpy(field(config, o), text, strlen(text) + 1);
    return 0;
}

int config_assign(struct train_config *config, const struct option *o, struct config_value value,
                  struct err *err) {
    bool takes_list = o->type == OPTION_LIST || o->type == OPTION_NUMBERS;
    bool takes_text = o->type == OPTION_TEXT || o->type == OPTION_LIST ||
                      o->type == OPTION_CHOICE || o->type == OPTION_SIZE;
    if (value.is_null) return err_set(err, ERR_USAGE, "expected %s, found nothing", type_words(o));
    if (value.is_list && !takes_list)
        return err_set(err, ERR_USAGE, "expected %s, found a list", type_words(o));
    if (value.is_quoted && !takes_text && !(takes_list && value.text[0] == 0))
        return err_set(err, ERR_USAGE,
                       "expected %s, found the text \"%.200s\" (leave the quotes away)",
                       type_words(o), value.text);
    int64_t integer;
    switch (o->type) {
    case OPTION_INT:
        if (read_integer(o, value.text, &integer, err) != 0) return -1;
        *(int *)field(config, o) = (int)integer;
        return 0;
    case OPTION_LONG:
        return read_integer(o, value.text, field(config, o), err);
    case OPTION_SIZE:
        return read_size(o, value.text, field(config, o), err);
    case OPTION_REAL:
        return read_real(o, value.text, field(config, o), err);
    case OPTION_BOOL:
        return read_bool(o, value.text, field(config, o), err);
    case OPTION_CHOICE:
        return read_choice(o, value.text, field(config, o), err);
    case OPTION_TEXT:
        return read_text(config, o, value.text, err);
    case OPTION_LIST:
    case OPTION_NUMBERS:
        return read_list(config, o, value.text, err);
    }
    return 0;
}

// Plain where every YAML reader takes it for a text, else in double quotes.
static int write_text(struct text *out, const char *text, size_t length) {
    bool plain = length > 0 && strchr("-?:,[]{}#&*!|>'\"%@`~ ", text[0]) == NULL &&
                 text[length - 1] != ' ' && !(text[0] >= '0' && text[0] <= '9') && text[0] != '.' &&
                 text[0] != '+';
    for (size_t i = 0; i < length && plain; i++) plain = strchr(":#,[]{}\"\\", text[i]) == NULL;
    static const char *const words[] = {"true", "false", "null", "yes", "no", "on", "off"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        plain = plain && !(strlen(words[i]) == length && strncasecmp(words[i], text, length) == 0);
    if (plain) return text_put(out, text, length);
    if (text_puts(out, "\"") != 0) return -1;
    for (size_t i = 0; i < length; i++) {
        if ((text[i] == '"' || text[i] == '\\') && text_puts(out, "\\") != 0) return -1;
        if (text_put(out, text + i, 1) != 0) return -1;
    }
    return text_puts(out, "\"");
}

static int write_list(struct text *out, const struct option *o, const char *list) {
    if (text_puts(out, "[") != 0) return -1;
    for (const char *item = list; *item;) {
        size_t length = strcspn(item, ",");
        if (item > list && text_puts(out, ", ") != 0) return -1;
        if ((o->type == OPTION_LIST ? write_text(out, item, length)
                                    : text_put(out, item, length)) != 0)
            return -1;
        item += length + (item[length] == ',');
    }
    return text_puts(out, "]");
}

// The shortest digits that read back as the same double.
static int write_real(struct text *out, double value) {
    char digits[40];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) break;
    }
    return text_puts(out, digits);
}

static int write_size(struct text *out, uint64_t bytes) {
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {{"GB", 1000000000}, {"MB", 1000000}, {"kB", 1000}, {"B", 1}};
    int i = 0;
    while (bytes % units[i].bytes != 0) i++;
    return text_printf(out, "%llu %s", (unsigned long long)(bytes / units[i].bytes), units[i].name);
}

int config_write_value(const struct train_config *config, const struct option *o,
                       struct text *out) {
    const void *from = (const char *)config + o->offset;
    char name[64];
    switch (o->type) {
    case OPTION_INT:
        return text_printf(out, "%d", *(const int *)from);
    case OPTION_LONG:
        return text_printf(out, "%lld", (long long)*(const int64_t *)from);
    case OPTION_SIZE:
        return write_size(out, *(const uint64_t *)from);
    case OPTION_REAL:
        return write_real(out, *(const double *)from);
    case OPTION_BOOL:
        return text_puts(out, *(const bool *)from ? "true" : "false");
    case OPTION_CHOICE:
        return text_puts(out, config_choice(o, *(const int *)from, name));
    case OPTION_TEXT:
        return write_text(out, from, strlen(from));
    case OPTION_LIST:
    case OPTION_NUMBERS:
        return write_list(out, o, from);
    }
    return 0;
}
