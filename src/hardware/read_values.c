// The values of keys: figures with units and sources, whole numbers, choices, texts.
#include "hardware/read_parts.h"
#include "hardware/show.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// err holds the message; file, line and key go in front.
static int refuse_value(const struct file_reader *r, const struct yaml_leaf *leaf,
                        struct err *inner) {
    inner->text[400] = 0;
    return read_refuse(r, leaf, inner->text);
}

static const struct yaml_leaf *sibling(const struct file_reader *r, size_t at, size_t stem,
                                       const char *end) {
    const char *key = r->leaves->leaf[at].key;
    for (size_t i = 0; i < r->leaves->count; i++) {
        const struct yaml_leaf *other = &r->leaves->leaf[i];
        if (strncmp(other->key, key, stem) == 0 && strcmp(other->key + stem, end) == 0) {
            r->used[i] = true;
            return other;
        }
    }
    return NULL;
}

static int read_origin(const struct file_reader *r, const struct yaml_leaf *leaf,
                       enum figure_origin *out) {
    for (int origin = FIGURE_ASSUMED; origin <= FIGURE_FITTED; origin++)
        if (strcmp(leaf->text, figure_origin_name((enum figure_origin)origin)) == 0) {
            *out = (enum figure_origin)origin;
            return 0;
        }
    return read_refuse(r, leaf, "expected assumed, stated, measured or fitted");
}

// `rest` behind the field's key: "" or ".value". The other two are read with it.
static int read_figure(const struct file_reader *r, size_t at, const struct field *field,
                       const char *rest, struct figure *out) {
    const struct yaml_leaf *leaf = &r->leaves->leaf[at];
    struct figure figure = {.origin = FIGURE_STATED, .source = r->kept};
    struct err inner = {0};
    if (*rest && strcmp(rest, ".value") != 0) {
        size_t stem = strlen(leaf->key) - strlen(rest);
        if (!sibling(r, at, stem, ".value"))
            return read_refuse(r, leaf, "the figure's value is missing");
        return 0; // read with the value
    }
    if (unit_read(leaf->text, field->unit, &figure.value, &inner) != 0)
        return refuse_value(r, leaf, &inner);
    if (*rest) {
        size_t stem = strlen(leaf->key) - strlen(rest);
        const struct yaml_leaf *source = sibling(r, at, stem, ".source"),
                               *origin = sibling(r, at, stem, ".origin");
        if (source && !(figure.source = catalogue_text(r->catalogue, source->text, r->err)))
            return -1;
        if (origin && read_origin(r, origin, &figure.origin) != 0) return -1;
    }
    *out = figure;
    return 0;
}

static int read_int(const struct file_reader *r, const struct yaml_leaf *leaf,
                    const struct field *field, int *out) {
    char *end, what[160];
    double value = strtod(leaf->text, &end);
    bool number = end != leaf->text && *end == 0 && strchr("+-.0123456789", leaf->text[0]);
    if (!number || value != floor(value) || value < field->least || value > field->most) {
        snprintf(what, sizeof what, "expected a whole number from %.0f to %.0f, found \"%.60s\"",
                 field->least, field->most, leaf->text);
        return read_refuse(r, leaf, what);
    }
    *out = (int)value;
    return 0;
}

static int read_choice(const struct file_reader *r, const struct yaml_leaf *leaf,
                       const char *const *names, int *out) {
    char list[200] = "";
    size_t count = 0;
    for (; names[count]; count++) {
        if (strcmp(names[count], leaf->text) == 0) {
            *out = (int)count;
            return 0;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s",
                 count == 0 ? "" : (names[count + 1] ? ", " : " or "), names[count]);
    }
    char what[400];
    snprintf(what, sizeof what, "expected %s, found \"%.60s\"", list, leaf->text);
    return read_refuse(r, leaf, what);
}

int read_field(const struct file_reader *r, size_t at, const struct field *field, const char *rest,
               char *entry) {
    static const char *const truth[] = {"false", "true", NULL};
    const struct yaml_leaf *leaf = &r->leaves->leaf[at];
    void *out = entry + field->offset;
    int choice = 0;
    if (leaf->is_null) return read_refuse(r, leaf, "expected a value, found nothing");
    switch (field->kind) {
    case FIELD_FIGURE:
        return read_figure(r, at, field, rest, out);
    case FIELD_INT:
        return read_int(r, leaf, field, out);
    case FIELD_BOOL:
        if (read_choice(r, leaf, field->names ? field->names : truth, &choice) != 0) return -1;
        *(bool *)out = choice == 1;
        return 0;
    case FIELD_CHOICE:
        return read_choice(r, leaf, field->names, out);
    case FIELD_TEXT:
    case FIELD_REFERENCE:
        *(const char **)out = catalogue_text(r->catalogue, leaf->text, r->err);
        return *(const char **)out ? 0 : -1;
    default:
        return read_list(r, leaf, field, entry);
    }
}
