// Sheets of figures. See size.h.
#include "plan/size.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct size_line *size_put(struct size_sheet *sheet, const char *section, const char *name,
                           double value, const char *unit) {
    int at = sheet->count < SIZE_MOST_LINES ? sheet->count++ : SIZE_MOST_LINES - 1;
    sheet->lines[at] = (struct size_line){
        .section = section, .name = name, .unit = unit, .value = value, .chapter = NAN};
    return &sheet->lines[at];
}

void size_note(struct size_line *line, double chapter, const char *format, ...) {
    va_list args;
    line->chapter = chapter;
    va_start(args, format);
    vsnprintf(line->note, sizeof line->note, format, args);
    va_end(args);
}

const struct size_line *size_find(const struct size_sheet *sheet, const char *section,
                                  const char *name) {
    for (int i = 0; i < sheet->count; i++)
        if (strcmp(sheet->lines[i].section, section) == 0 &&
            strcmp(sheet->lines[i].name, name) == 0)
            return &sheet->lines[i];
    return NULL;
}

int size_check(const char *name, double value, double least, double most, struct err *err) {
    if (value >= least && value <= most) return 0;
    return err_set(err, ERR_USAGE, "size: %s %g: expected %g to %g", name, value, least, most);
}

// "980 GB", "16.3 GB/s", "34 min 5 s", "$20,309", "3.0 %", "1,170"
static const char *quantity(double value, const char *unit, char *out, size_t bytes) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    char digits[32];
    bool scaled = *unit == 'B' || strcmp(unit, "FLOP") == 0 || strcmp(unit, "FLOP/s") == 0;
    if (!isfinite(value)) {
        snprintf(out, bytes, "unknown");
    } else if (scaled) {
        int p = 0;
        while (fabs(value) >= 999.5 && p < 6) value /= 1000, p++;
        snprintf(out, bytes, "%.3g %s%s", value, prefixes[p], unit);
    } else if (strcmp(unit, "share") == 0) {
        snprintf(out, bytes, "%.3g %%", 100 * value);
    } else if (strcmp(unit, "s") == 0 && value >= 10) {
        snprintf(out, bytes, "%s", text_duration(value, digits));
    } else if (strcmp(unit, "s") == 0) {
        snprintf(out, bytes, value < 1 ? "%.3g ms" : "%.3g s", value < 1 ? 1000 * value : value);
    } else if (fabs(value) >= 1000 && fabs(value) < 1e15) {
        const char *dollar = *unit == '$' ? "$" : "";
        snprintf(out, bytes, "%s%s%s%s", dollar, text_count(llround(value), digits),
                 *dollar || !*unit || *unit == '/' ? "" : " ", *dollar ? unit + 1 : unit);
    } else {
        snprintf(out, bytes, "%.4g%s%s", value, !*unit || *unit == '/' ? "" : " ", unit);
    }
    return out;
}

static int print_line(const struct size_line *line, struct text *out) {
    char name[64], value[64], chapter[64];
    snprintf(name, sizeof name, "%s", line->name);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = ' ';
    int failed = text_printf(out, "  %-34s %16s", name,
                             quantity(line->value, line->unit, value, sizeof value));
    if (isfinite(line->chapter))
        failed |= text_printf(out, "   textbook %s",
                              quantity(line->chapter, line->unit, chapter, sizeof chapter));
    if (line->note[0]) failed |= text_printf(out, "   %s", line->note);
    return failed | text_puts(out, "\n");
}

int size_print(const struct size_sheet *sheet, struct text *out) {
    int failed = 0;
    const char *section = "";
    for (int i = 0; i < sheet->count; i++) {
        const struct size_line *line = &sheet->lines[i];
        if (strcmp(section, line->section) != 0)
            failed |= text_printf(out, "%s%s\n", i ? "\n" : "", line->section);
        section = line->section;
        failed |= print_line(line, out);
    }
    return failed ? -1 : 0;
}

json_t *size_json(const struct size_sheet *sheet) {
    json_t *out = json_object();
    for (int i = 0; i < sheet->count; i++) {
        const struct size_line *line = &sheet->lines[i];
        json_t *section = json_object_get(out, line->section), *one = json_object();
        if (!section) json_object_set_new(out, line->section, section = json_object());
        json_object_set_new(one, "value",
                            isfinite(line->value) ? json_real(line->value) : json_null());
        json_object_set_new(one, "unit", json_string(line->unit));
        if (isfinite(line->chapter)) json_object_set_new(one, "textbook", json_real(line->chapter));
        if (line->note[0]) json_object_set_new(one, "note", json_string(line->note));
        json_object_set_new(section, line->name, one);
    }
    return out;
}
