// A cluster in the format that the reader reads.
#include "hardware/parts.h"
#include "hardware/show.h"
#include <stdio.h>
#include <string.h>

// The last part of a dotted key opens a map where its front differs from the field before.
struct writer {
    struct text *out;
    int indent;
    char open[64]; // front of the key whose map is open: "storage.node"
    bool failed;
};

static void put_indent(struct writer *w, int depth) {
    for (int i = 0; i < w->indent + 2 * depth; i++) w->failed |= text_puts(w->out, " ") != 0;
}

static void put_quoted(struct writer *w, const char *text) {
    w->failed |= text_puts(w->out, "\"") != 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            w->failed |= text_printf(w->out, "\\%c", *c) != 0;
        else if (*c < 0x20)
            w->failed |= text_printf(w->out, "\\x%02x", *c) != 0;
        else
            w->failed |= text_put(w->out, c, 1) != 0;
    }
    w->failed |= text_puts(w->out, "\"") != 0;
}

// Writes the maps that lead to the key, and the key's last part with a colon.
static void put_key(struct writer *w, const char *key) {
    char part[64];
    int depth = 0;
    const char *at = key, *dot;
    while ((dot = strchr(at, '.')) != NULL) {
        size_t front = (size_t)(dot - key);
        bool is_open =
            strncmp(w->open, key, front) == 0 && (w->open[front] == '.' || w->open[front] == 0);
        if (!is_open) {
            snprintf(part, sizeof part, "%.*s:\n", (int)(dot - at), at);
            put_indent(w, depth);
            w->failed |= text_puts(w->out, part) != 0;
        }
        depth++;
        at = dot + 1;
    }
    snprintf(w->open, sizeof w->open, "%.*s", (int)(at > key ? at - key - 1 : 0), key);
    put_indent(w, depth);
    w->failed |= text_printf(w->out, "%s: ", at) != 0;
}

static void put_figure(struct writer *w, const struct figure *f) {
    char number[32];
    unit_write(f->value, number);
    w->failed |= text_printf(w->out, "{value: %s, source: ", number) != 0;
    put_quoted(w, f->source);
    w->failed |= text_printf(w->out, ", origin: %s}\n", figure_origin_name(f->origin)) != 0;
}

static void put_item(struct writer *w, const char *item) {
    put_indent(w, 1);
    w->failed |= text_printf(w->out, "- \"%s\"\n", item) != 0;
}

static void put_products(struct writer *w, const struct accelerator *a) {
    char item[200], seconds[32];
    w->failed |= text_puts(w->out, "\n") != 0;
    for (int i = 0; i < a->product_count; i++) {
        const struct hardware_product *p = &a->products[i];
        unit_write(p->seconds, seconds);
        snprintf(item, sizeof item, "%s %s %dx%d %lld %lld %lld %s",
                 hardware_precision_name(p->precision), hardware_form_name(p->form), p->ranks,
                 p->threads, (long long)p->m, (long long)p->n, (long long)p->k, seconds);
        put_item(w, item);
    }
}

static void put_attention(struct writer *w, const struct accelerator *a) {
    char item[200], forward[32], backward[32];
    w->failed |= text_puts(w->out, "\n") != 0;
    for (int i = 0; i < a->attention_count; i++) {
        const struct hardware_attention *p = &a->attention[i];
        unit_write(p->forward_rate, forward);
        unit_write(p->backward_rate, backward);
        snprintf(item, sizeof item, "%s %dx%d %lld %lld %s %s",
                 hardware_precision_name(p->precision), p->ranks, p->threads, (long long)p->context,
                 (long long)p->head_dim, forward, backward);
        put_item(w, item);
    }
}

static void put_points(struct writer *w, const struct accelerator *a) {
    char item[200], elements[32], seconds[32];
    w->failed |= text_puts(w->out, "\n") != 0;
    for (int i = 0; i < a->kernel_point_count; i++) {
        const struct hardware_kernel_point *p = &a->kernel_points[i];
        unit_write(p->elements, elements);
        unit_write(p->seconds, seconds);
        snprintf(item, sizeof item, "%s %s %dx%d %s %s", hardware_kernel_name(p->kernel),
                 hardware_precision_name(p->precision), p->ranks, p->threads, elements, seconds);
        put_item(w, item);
    }
}

static void put_messages(struct writer *w, const struct cluster *c) {
    char item[200], bytes[32], seconds[32];
    w->failed |= text_puts(w->out, "\n") != 0;
    for (int i = 0; i < c->message_count; i++) {
        const struct hardware_message *p = &c->messages[i];
        unit_write(p->bytes, bytes);
        unit_write(p->seconds, seconds);
        snprintf(item, sizeof item, "%s %d %s %s", hardware_message_name(p->kind), p->ranks, bytes,
                 seconds);
        put_item(w, item);
    }
}

static void put_kernel(struct writer *w, const struct hardware_kernel_rate *rate) {
    char element[32], fixed[32];
    unit_write(rate->seconds_per_element, element);
    unit_write(rate->fixed_seconds, fixed);
    w->failed |= text_printf(w->out, "[%s, %s]\n", element, fixed) != 0;
}

static bool worth_writing(const struct field *field, const char *entry) {
    const void *at = entry + field->offset;
    const struct accelerator *a = (const void *)entry;
    switch (field->kind) {
    case FIELD_FIGURE:
        return ((const struct figure *)at)->origin != FIGURE_ABSENT;
    case FIELD_TEXT:
    case FIELD_REFERENCE:
        return *(const char *const *)at && **(const char *const *)at;
    case FIELD_INT:
        return *(const int *)at != 0;
    case FIELD_PRODUCTS:
        return a->product_count > 0;
    case FIELD_ATTENTION:
        return a->attention_count > 0;
    case FIELD_POINTS:
        return a->kernel_point_count > 0;
    case FIELD_MESSAGES:
        return ((const struct cluster_entry *)(const void *)entry)->cluster.message_count > 0;
    case FIELD_TILES:
        return a->tile_count > 0;
    case FIELD_KERNEL: {
        const struct hardware_kernel_rate *rate = at;
        return rate->seconds_per_element > 0 || rate->fixed_seconds > 0;
    }
    default:
        return true;
    }
}

static void put_field(struct writer *w, const struct field *field, const char *entry,
                      bool double_bandwidth) {
    const void *at = entry + field->offset;
    if (!worth_writing(field, entry)) return;
    put_key(w, field->key);
    switch (field->kind) {
    case FIELD_FIGURE: {
        struct figure figure = *(const struct figure *)at;
        if (double_bandwidth && strcmp(field->key, "bandwidth") == 0) figure.value *= 2;
        put_figure(w, &figure);
        return;
    }
    case FIELD_INT:
        w->failed |= text_printf(w->out, "%d\n", *(const int *)at) != 0;
        return;
    case FIELD_BOOL: {
        bool value = *(const bool *)at;
        const char *word = field->names ? field->names[value] : (value ? "true" : "false");
        w->failed |= text_printf(w->out, "%s\n", word) != 0;
        return;
    }
    case FIELD_CHOICE:
        w->failed |= text_printf(w->out, "%s\n", field->names[*(const int *)at]) != 0;
        return;
    case FIELD_TEXT:
    case FIELD_REFERENCE:
        put_quoted(w, *(const char *const *)at);
        w->failed |= text_puts(w->out, "\n") != 0;
        return;
    case FIELD_TILES: {
        const struct accelerator *a = (const void *)entry;
        for (int i = 0; i < a->tile_count; i++)
            w->failed |=
                text_printf(w->out, "%s%dx%d", i ? ", " : "[", a->tile_m[i], a->tile_n[i]) != 0;
        w->failed |= text_puts(w->out, "]\n") != 0;
        return;
    }
    case FIELD_PRODUCTS:
        put_products(w, (const void *)entry);
        return;
    case FIELD_ATTENTION:
        put_attention(w, (const void *)entry);
        return;
    case FIELD_POINTS:
        put_points(w, (const void *)entry);
        return;
    case FIELD_MESSAGES:
        put_messages(w, &((const struct cluster_entry *)(const void *)entry)->cluster);
        return;
    case FIELD_KERNEL:
        put_kernel(w, at);
        return;
    }
}

static void put_entry(struct writer *w, enum section_kind kind, const void *entry) {
    const struct section *section = section_of(kind);
    bool both = kind == SECTION_LINKS && ((const struct link *)entry)->both_directions_stated;
    w->indent = 2;
    put_indent(w, 0);
    w->failed |= text_printf(w->out, "%s:\n", *(const char *const *)entry) != 0;
    w->indent = 4;
    w->open[0] = 0;
    for (int f = 0; f < section->field_count; f++) put_field(w, &section->fields[f], entry, both);
}

int cluster_print_yaml(const struct cluster *cluster, struct text *out) {
    struct writer w = {.out = out};
    struct cluster_entry entry = {.cluster = *cluster, .accelerator = cluster->accelerator.name};
    w.failed |= text_puts(out, "accelerators:\n") != 0;
    put_entry(&w, SECTION_ACCELERATORS, &cluster->accelerator);
    if (cluster->fast.name || cluster->slow.name) w.failed |= text_puts(out, "links:\n") != 0;
    if (cluster->fast.name) {
        entry.fast = cluster->fast.name;
        put_entry(&w, SECTION_LINKS, &cluster->fast);
    }
    if (cluster->slow.name) {
        entry.slow = cluster->slow.name;
        if (!entry.fast || strcmp(entry.fast, entry.slow) != 0)
            put_entry(&w, SECTION_LINKS, &cluster->slow);
    }
    w.failed |= text_puts(out, "clusters:\n") != 0;
    put_entry(&w, SECTION_CLUSTERS, &entry);
    return w.failed ? -1 : 0;
}
