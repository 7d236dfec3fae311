// Lists of measurements, one text each:
//   products       "bf16 forward 2x1 M N K SECONDS": 2 ranks of 1 thread were busy; 0x0: not said
//   attention      "bf16 2x1 CONTEXT HEAD_DIM FORWARD BACKWARD" in FLOP/s
//   kernel_points  "norm bf16 2x1 ELEMENTS SECONDS"
//   messages       "all_reduce 2 BYTES SECONDS"
#include "hardware/read_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_ELEMENTS = 100000 };

// Reads one element into place `index` of a list. -1: not of the form that the message names.
typedef int read_one(const char *element, int index, void *out);

static int each_element(const struct file_reader *r, const struct yaml_leaf *leaf,
                        const char *expected, read_one *one, int most, void *out, int *count) {
    char element[160], what[400];
    const char *at = leaf->text;
    int index = 0;
    while (*at) {
        size_t length = strcspn(at, ",");
        bool fits = length < sizeof element;
        snprintf(element, sizeof element, "%.*s", (int)(fits ? length : sizeof element - 1), at);
        if (index >= most) return read_refuse(r, leaf, "the list is longer than anything known");
        if (!fits || one(element, index++, out) != 0) {
            snprintf(what, sizeof what, "expected %s, found \"%.100s\"", expected, element);
            return read_refuse(r, leaf, what);
        }
        at += length + (at[length] == ',');
    }
    *count = index;
    return 0;
}

static int choose(const char *name, const char *(*name_of)(int), int count, int *out) {
    for (int i = 0; i < count; i++)
        if (strcmp(name_of(i), name) == 0) {
            *out = i;
            return 0;
        }
    return -1;
}
static const char *precision_at(int i) {
    return hardware_precision_name((enum hardware_precision)i);
}
static const char *form_at(int i) {
    return hardware_form_name((enum hardware_form)i);
}
static const char *kernel_at(int i) {
    return hardware_kernel_name((enum hardware_kernel)i);
}
static const char *message_at(int i) {
    return hardware_message_name((enum hardware_message_kind)i);
}
static bool positive(double x) {
    return x > 0 && isfinite(x);
}
static bool places(int ranks, int threads) {
    return ranks >= 0 && threads >= 0 && ranks <= 1000000 && threads <= 1000000;
}

static int read_tile(const char *element, int index, void *out) {
    struct accelerator *a = out;
    int m, n, end = 0;
    if (sscanf(element, "%dx%d%n", &m, &n, &end) != 2 || element[end] || m < 1 || n < 1 ||
        m > 8192 || n > 8192)
        return -1;
    a->tile_m[index] = m;
    a->tile_n[index] = n;
    return 0;
}

static int read_product(const char *element, int index, void *out) {
    struct hardware_product *p = (struct hardware_product *)out + index;
    char precision[24], form[24];
    long long m, n, k;
    int end = 0, a, b;
    if (sscanf(element, "%23s %23s %dx%d %lld %lld %lld %lf%n", precision, form, &p->ranks,
               &p->threads, &m, &n, &k, &p->seconds, &end) != 8 ||
        element[end] || choose(precision, precision_at, HARDWARE_PRECISIONS, &a) != 0 ||
        choose(form, form_at, HARDWARE_FORMS, &b) != 0 || m < 1 || n < 1 || k < 1 ||
        !positive(p->seconds) || !places(p->ranks, p->threads))
        return -1;
    p->precision = (enum hardware_precision)a;
    p->form = (enum hardware_form)b;
    p->m = m;
    p->n = n;
    p->k = k;
    return 0;
}

static int read_attention(const char *element, int index, void *out) {
    struct hardware_attention *p = (struct hardware_attention *)out + index;
    char precision[24];
    long long context, head_dim;
    int end = 0, a;
    if (sscanf(element, "%23s %dx%d %lld %lld %lf %lf%n", precision, &p->ranks, &p->threads,
               &context, &head_dim, &p->forward_rate, &p->backward_rate, &end) != 7 ||
        element[end] || choose(precision, precision_at, HARDWARE_PRECISIONS, &a) != 0 ||
        context < 1 || head_dim < 1 || !positive(p->forward_rate) || !positive(p->backward_rate) ||
        !places(p->ranks, p->threads))
        return -1;
    p->precision = (enum hardware_precision)a;
    p->context = context;
    p->head_dim = head_dim;
    return 0;
}

static int read_point(const char *element, int index, void *out) {
    struct hardware_kernel_point *p = (struct hardware_kernel_point *)out + index;
    char kernel[24], precision[24];
    int end = 0, a, b;
    if (sscanf(element, "%23s %23s %dx%d %lf %lf%n", kernel, precision, &p->ranks, &p->threads,
               &p->elements, &p->seconds, &end) != 6 ||
        element[end] || choose(kernel, kernel_at, HARDWARE_KERNELS, &a) != 0 ||
        choose(precision, precision_at, HARDWARE_PRECISIONS, &b) != 0 || !positive(p->elements) ||
        !positive(p->seconds) || !places(p->ranks, p->threads))
        return -1;
    p->kernel = (enum hardware_kernel)a;
    p->precision = (enum hardware_precision)b;
    return 0;
}

static int read_message(const char *element, int index, void *out) {
    struct hardware_message *p = (struct hardware_message *)out + index;
    char kind[24];
    int end = 0, a;
    if (sscanf(element, "%23s %d %lf %lf%n", kind, &p->ranks, &p->bytes, &p->seconds, &end) != 4 ||
        element[end] || choose(kind, message_at, HARDWARE_MESSAGES, &a) != 0 || p->ranks < 2 ||
        !positive(p->bytes) || !positive(p->seconds))
        return -1;
    p->kind = (enum hardware_message_kind)a;
    return 0;
}

static int read_kernel(const char *element, int index, void *out) {
    double value;
    int end = 0;
    if (sscanf(element, "%lf%n", &value, &end) != 1 || element[end] || !(value >= 0) ||
        !isfinite(value))
        return -1;
    struct hardware_kernel_rate *rate = out;
    *(index == 0 ? &rate->seconds_per_element : &rate->fixed_seconds) = value;
    return 0;
}

// Room for as many as the list has, then its elements.
static int read_many(const struct file_reader *r, const struct yaml_leaf *leaf, size_t bytes,
                     const char *expected, read_one *one, void *list, int *count) {
    size_t commas = 0;
    for (const char *c = leaf->text; *c; c++) commas += *c == ',';
    void *room = catalogue_room(r->catalogue, (commas + 1) * bytes, r->err);
    if (!room || each_element(r, leaf, expected, one, MOST_ELEMENTS, room, count) != 0) return -1;
    memcpy(list, &room, sizeof room);
    return 0;
}

int read_list(const struct file_reader *r, const struct yaml_leaf *leaf, const struct field *field,
              char *entry) {
    struct accelerator *a = (void *)entry;
    struct cluster_entry *c = (void *)entry;
    int count = 0;
    switch (field->kind) {
    case FIELD_TILES:
        if (each_element(r, leaf, "tiles such as 128x256, up to 8192", read_tile,
                         HARDWARE_MOST_TILES, a, &a->tile_count) != 0)
            return -1;
        return a->tile_count > 0 ? 0 : read_refuse(r, leaf, "expected a tile at least");
    case FIELD_PRODUCTS:
        return read_many(r, leaf, sizeof *a->products,
                         "products such as \"bf16 forward 1x2 4096 768 3072 0.0123\" (ranks x "
                         "threads, m, n, k, seconds)",
                         read_product, &a->products, &a->product_count);
    case FIELD_ATTENTION:
        return read_many(r, leaf, sizeof *a->attention,
                         "attention such as \"bf16 1x2 1024 64 1.2e11 0.9e11\" (ranks x threads, "
                         "context, head_dim, FLOP/s forward and backward)",
                         read_attention, &a->attention, &a->attention_count);
    case FIELD_POINTS:
        return read_many(r, leaf, sizeof *a->kernel_points,
                         "kernels such as \"norm bf16 1x2 1048576 0.0004\" (ranks x threads, "
                         "elements, seconds)",
                         read_point, &a->kernel_points, &a->kernel_point_count);
    case FIELD_MESSAGES:
        return read_many(r, leaf, sizeof *c->cluster.messages,
                         "messages such as \"all_reduce 2 1048576 0.0004\" (ranks, bytes, seconds)",
                         read_message, &c->cluster.messages, &c->cluster.message_count);
    default:
        if (each_element(r, leaf, "two numbers [seconds per element, fixed seconds]", read_kernel,
                         2, entry + field->offset, &count) != 0)
            return -1;
        return count == 2 ? 0 : read_refuse(r, leaf, "expected two numbers");
    }
}
