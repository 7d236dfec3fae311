// Entries line by line; see show.h.
#include "hardware/show.h"
#include "hardware/parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const hardware_kinds[] = {"accelerators", "links", "clusters", "stacks", NULL};

const char *figure_origin_name(enum figure_origin origin) {
    static const char *const names[] = {"absent", "assumed", "stated", "measured", "fitted"};
    return names[origin];
}

// "3.35 TB/s", "5 us", "0.803".
static void show_figure(double value, enum field_unit unit, char *out, size_t bytes) {
    static const struct {
        double least, factor;
        const char *prefix;
    } large[] = {{1e15, 1e-15, "P"},
                 {1e12, 1e-12, "T"},
                 {1e9, 1e-9, "G"},
                 {1e6, 1e-6, "M"},
                 {1e3, 1e-3, "k"}};
    if (unit == UNIT_BYTES && value >= 1073741824.0 && fmod(value, 1073741824.0) == 0) {
        snprintf(out, bytes, "%.5g GiB", value / 1073741824.0);
        return;
    }
    bool scaled = unit == UNIT_BYTES || unit == UNIT_BANDWIDTH || unit == UNIT_FLOPS;
    for (size_t i = 0; scaled && i < sizeof large / sizeof large[0]; i++)
        if (value >= large[i].least) {
            snprintf(out, bytes, "%.5g %s%s", value * large[i].factor, large[i].prefix,
                     unit_names[unit]);
            return;
        }
    if (unit == UNIT_SECONDS && value > 0 && value < 1) {
        bool micro = value < 1e-3;
        snprintf(out, bytes, "%.4g %s", value * (micro ? 1e6 : 1e3), micro ? "us" : "ms");
    } else if (unit == UNIT_SECONDS && value >= 3600)
        snprintf(out, bytes, "%.4g h", value / 3600);
    else if (unit == UNIT_MONEY)
        snprintf(out, bytes, "$%.4g", value);
    else if (unit == UNIT_PER_DAY || unit == UNIT_PER_SECOND)
        snprintf(out, bytes, "%.6g%s", value, unit_names[unit]);
    else
        snprintf(out, bytes, "%.6g%s%s", value, unit_names[unit][0] ? " " : "", unit_names[unit]);
}

static void show_tiles(const struct accelerator *a, struct hardware_line *line) {
    size_t used = 0;
    for (int i = 0; i < a->tile_count && used < sizeof line->text - 1; i++)
        used += (size_t)snprintf(line->text + used, sizeof line->text - used, "%s%dx%d",
                                 i ? " " : "", a->tile_m[i], a->tile_n[i]);
}

static bool show_count(struct hardware_line *line, int count) {
    snprintf(line->text, sizeof line->text, "%d measured", count);
    line->is_number = true;
    line->number = count;
    return count > 0;
}

// false: nothing given.
static bool show_field(const struct field *field, const char *entry, struct hardware_line *line) {
    const void *at = entry + field->offset;
    const struct accelerator *a = (const void *)entry;
    *line = (struct hardware_line){.key = field->key, .unit = "", .source = ""};
    switch (field->kind) {
    case FIELD_FIGURE: {
        const struct figure *f = at;
        line->is_figure = line->is_number = true;
        line->number = f->value;
        line->unit = unit_names[field->unit];
        line->origin = f->origin;
        line->source = f->source;
        show_figure(f->value, field->unit, line->text, sizeof line->text);
        return f->origin != FIGURE_ABSENT;
    }
    case FIELD_INT:
        line->is_number = true;
        line->number = *(const int *)at;
        snprintf(line->text, sizeof line->text, "%d", *(const int *)at);
        return *(const int *)at != 0;
    case FIELD_BOOL: {
        bool value = *(const bool *)at;
        const char *word = field->names ? field->names[value] : (value ? "true" : "false");
        snprintf(line->text, sizeof line->text, "%s", word);
        return true;
    }
    case FIELD_CHOICE:
        snprintf(line->text, sizeof line->text, "%s", field->names[*(const int *)at]);
        return true;
    case FIELD_TEXT:
    case FIELD_REFERENCE:
        line->long_text = *(const char *const *)at;
        return line->long_text && line->long_text[0];
    case FIELD_TILES:
        show_tiles(a, line);
        return a->tile_count > 0;
    case FIELD_PRODUCTS:
        return show_count(line, a->product_count);
    case FIELD_ATTENTION:
        return show_count(line, a->attention_count);
    case FIELD_POINTS:
        return show_count(line, a->kernel_point_count);
    case FIELD_MESSAGES:
        return show_count(
            line, ((const struct cluster_entry *)(const void *)entry)->cluster.message_count);
    case FIELD_KERNEL: {
        const struct hardware_kernel_rate *rate = at;
        snprintf(line->text, sizeof line->text, "%.4g s + %.4g s per element", rate->fixed_seconds,
                 rate->seconds_per_element);
        return rate->fixed_seconds > 0 || rate->seconds_per_element > 0;
    }
    }
    return false;
}

int hardware_lines(const struct catalogue *catalogue, const char *kind, const char *name,
                   void (*line)(void *context, const struct hardware_line *line), void *context) {
    int count = 0;
    for (int s = 0; s < SECTIONS; s++) {
        const struct section *section = section_of((enum section_kind)s);
        const char *entry = strcmp(section->name, kind) == 0
                                ? catalogue_find(catalogue, (enum section_kind)s, name)
                                : NULL;
        for (int f = 0; entry && f < section->field_count; f++) {
            struct hardware_line one;
            if (!show_field(&section->fields[f], entry, &one)) continue;
            line(context, &one);
            count++;
        }
    }
    return count;
}

int catalogue_added(const struct catalogue *catalogue, int index, const char **kind,
                    const char **name) {
    if (index >= 0 && index < catalogue->added_count) {
        *kind = section_of(catalogue->added[index].section)->name;
        *name = catalogue->added[index].name;
    }
    return catalogue->added_count;
}
